//! AdamW over all parameters of a model, with clipping by the global gradient norm.
//!
//! The update itself is [`kernels::ops::adamw`]; this file knows which parameter decays, where the f32 masters of
//! weights that compute in bf16 are, and what a checkpoint needs.

use crate::{Error, Result};
use kernels::ops::{adamw, grad_norm};
use kernels::{Context, DType, Memory, Tensor};
use model::weights::{Named, NamedMut, Params};
use model::{Grads, LoraConfig, ModelConfig};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What the moments are kept in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MomentsDType {
    /// As torch.
    #[default]
    F32,
    /// Half the memory, by stochastic rounding.
    Bf16,
}

/// AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) with clipping by the global gradient norm; names and defaults
/// are transformers'.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerConfig {
    /// Decay of the first moment.
    pub adam_beta1: f64,
    /// Decay of the second moment.
    pub adam_beta2: f64,
    /// Added to the root of the second moment.
    pub adam_epsilon: f64,
    /// Decoupled decay of matrices; biases and norm weights do not decay.
    pub weight_decay: f64,
    /// The gradient is scaled down to this L2 norm; 0 for no clipping.
    pub max_grad_norm: f64,
    /// What the moments are kept in.
    pub moments: MomentsDType,
    /// The seed of what is random in a step: the rounding of bf16 moments, and an adapter's dropout.
    pub seed: u64,
}

/// Random bits of the moments' rounding, apart from every other use of the seed.
const ROUNDING: u64 = 0x4d4f_4d45_4e54_5300;

impl Default for OptimizerConfig {
    fn default() -> Self {
        OptimizerConfig {
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
            moments: MomentsDType::F32,
            seed: 0,
        }
    }
}

/// The global norm of a gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradNorm {
    /// L2 norm over all parameters.
    pub norm: f64,
    /// Every element is finite.
    pub finite: bool,
}

/// AdamW's state and what it steps with.
pub struct Optimizer {
    config: OptimizerConfig,
    state: Arc<OptimizerState>,
    /// What [`grad_norm::global`] writes.
    norm: Tensor,
    /// Steps taken.
    pub(crate) steps: u64,
}

/// Both moments of every parameter that is trained, in the order in which the weights lie in memory; and the f32
/// masters of those that compute in bf16. In f32 a weight is its own master.
pub struct OptimizerState {
    masters: Option<Params>,
    m: Params,
    v: Params,
}

impl Optimizer {
    /// Zero moments, of every parameter or, where there is an adapter, of the adapter's. Booked under "optimizer".
    pub fn new(
        memory: &Memory,
        model: &ModelConfig,
        adapter: Option<&LoraConfig>,
        config: OptimizerConfig,
    ) -> Optimizer {
        let memory = memory.part("optimizer");
        let moments = || match config.moments {
            MomentsDType::F32 => Params::trained(&memory, model, adapter),
            MomentsDType::Bf16 => Params::trained(&memory, model, adapter).zeros_in_bf16(&memory),
        };
        let masters = (model.compute != DType::F32).then(|| Params::masters(&memory, model, adapter));
        let norm = Tensor::zeros(&memory, &[2], DType::F32);
        Optimizer { config, state: Arc::new(OptimizerState { masters, m: moments(), v: moments() }), norm, steps: 0 }
    }

    /// The state, to look at.
    pub fn state(&self) -> &OptimizerState {
        &self.state
    }

    /// The state, to keep: a checkpoint is written from it meanwhile. [`step`](Self::step) is an error until it is
    /// dropped.
    pub fn hold(&self) -> Arc<OptimizerState> {
        self.state.clone()
    }

    /// The state, to overwrite when a run goes on.
    pub fn state_mut(&mut self) -> Result<&mut OptimizerState> {
        Arc::get_mut(&mut self.state).ok_or(Error::Held)
    }

    /// The global norm of `grads`, which [`step`](Self::step) clips with.
    pub fn measure(&mut self, ctx: &Context, grads: &Grads) -> Result<GradNorm> {
        let views: Vec<_> = grads.params.tensors().iter().map(|t| t.view()).collect();
        grad_norm::global(ctx, &views, self.norm.view_mut())?;
        let out = self.norm.to_vec_f32();
        Ok(GradNorm { norm: f64::from(out[0]), finite: out[1] == 1.0 && out[0].is_finite() })
    }

    /// One step of AdamW on every parameter that is trained, with the norm measured last.
    pub fn step(&mut self, ctx: &Context, weights: &mut Params, grads: &Grads, learning_rate: f64) -> Result<()> {
        let state = Arc::get_mut(&mut self.state).ok_or(Error::Held)?;
        if self.steps == 0 {
            state.adopt(weights);
        }
        self.steps += 1;
        let decays: Vec<bool> = weights.specs().iter().map(|s| s.matrix).collect();
        let mut first_block = 0;
        let (params, moments) = (weights.tensors_mut(), state.m.tensors_mut().into_iter().zip(state.v.tensors_mut()));
        // Adapters come last, and have no master.
        let mut masters = state.masters.as_mut().map(Params::tensors_mut).unwrap_or_default().into_iter();
        for (((weight, grad), (m, v)), decays) in
            params.into_iter().zip(grads.params.tensors()).zip(moments).zip(decays)
        {
            let master = masters.next();
            if grad.bytes() == 0 {
                continue; // frozen
            }
            let (param, weight) = match master {
                Some(master) => (master, Some(weight)),
                None => (weight, None),
            };
            let flat = [param.view().shape().iter().product()];
            let rounding = adamw::Rounding { key: self.config.seed ^ ROUNDING, first_block };
            first_block += adamw::Rounding::blocks(flat[0]);
            let hyper = adamw::Hyper {
                lr: learning_rate,
                beta1: self.config.adam_beta1,
                beta2: self.config.adam_beta2,
                eps: self.config.adam_epsilon,
                weight_decay: if decays { self.config.weight_decay } else { 0.0 },
                step: self.steps,
            };
            let step = adamw::Step {
                param: param.view_mut().reshape(&flat),
                rounded: weight.map(|w| w.view_mut().reshape(&flat)),
                grad: grad.view().reshape(&flat),
                m: m.view_mut().reshape(&flat),
                v: v.view_mut().reshape(&flat),
                hyper,
                norm: self.norm.view(),
                max_norm: self.config.max_grad_norm as f32,
                rounding,
            };
            adamw::step(ctx, step)?;
        }
        Ok(())
    }
}

impl OptimizerState {
    /// Makes the weights the masters' first values, before the first step.
    fn adopt(&mut self, weights: &Params) {
        let Some(masters) = &mut self.masters else { return };
        for part in masters.specs().iter().flat_map(|s| &s.parts).map(|p| p.name.clone()).collect::<Vec<_>>() {
            if let Some(data) = weights.read(&part) {
                masters.write(&part, &data); // not where it is frozen
            }
        }
    }

    /// The f32 masters of weights that compute in bf16, under the names and in the row-major order of Hugging Face
    /// files.
    pub fn masters(&self) -> Option<Named<'_>> {
        self.masters.as_ref().map(|params| Named { params })
    }

    /// The same, to overwrite when a run goes on.
    pub fn masters_mut(&mut self) -> Option<NamedMut<'_>> {
        self.masters.as_mut().map(|params| NamedMut { params })
    }

    /// The first and second moments, under the names and in the row-major order of Hugging Face files.
    pub fn moments(&self) -> [Named<'_>; 2] {
        [Named { params: &self.m }, Named { params: &self.v }]
    }

    /// The same, to overwrite when a run goes on.
    pub fn moments_mut(&mut self) -> [NamedMut<'_>; 2] {
        [NamedMut { params: &mut self.m }, NamedMut { params: &mut self.v }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::Isa;
    use model::Weights;
    use model::io::TensorSource;

    const CONFIG: &str = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 40,
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false}"#;

    /// A model, an optimizer with bf16 moments, and a gradient that is 0.3 everywhere.
    fn parts(ctx: &Context) -> (Weights, Optimizer, Grads) {
        let model = Arc::new(ModelConfig::parse(CONFIG).unwrap());
        let weights = Weights::random(ctx.memory(), &model, 1).unwrap();
        let config = OptimizerConfig { moments: MomentsDType::Bf16, ..OptimizerConfig::default() };
        let mut grads = Grads::trained(ctx.memory(), &model, None);
        grads.params.tensors_mut().into_iter().for_each(|t| t.view_mut().fill(0.3));
        (weights, Optimizer::new(ctx.memory(), &model, None, config), grads)
    }

    #[test]
    fn bf16_moments_of_each_tensor_are_rounded_with_noise_of_their_own() {
        let ctx = Context::cpu(Isa::best(), 1);
        let (mut weights, mut optimizer, grads) = parts(&ctx);
        optimizer.measure(&ctx, &grads).unwrap();
        optimizer.step(&ctx, &mut weights.params, &grads, 1e-3).unwrap();
        let [m, _] = optimizer.state().moments();
        let of_layer = |i: usize| m.get(&format!("model.layers.{i}.mlp.down_proj.weight")).unwrap();
        let (first, second) = (of_layer(0), of_layer(1));
        // The same number everywhere, rounded up or down.
        assert!(first != second && first.iter().chain(&second).all(|x| (x / first[0] - 1.0).abs() < 0.01));
    }

    #[test]
    fn one_element_that_is_no_number_makes_the_gradient_not_finite() {
        let ctx = Context::cpu(Isa::best(), 1);
        let (_, mut optimizer, mut grads) = parts(&ctx);
        let measured = optimizer.measure(&ctx, &grads).unwrap();
        let n: usize = grads.params.tensors().iter().map(|t| t.to_vec_f32().len()).sum();
        assert!(measured.finite && (measured.norm / (0.3 * (n as f64).sqrt()) - 1.0).abs() < 1e-6, "{measured:?}");
        for bad in [f32::NAN, f32::INFINITY] {
            let mut tensors = grads.params.tensors_mut();
            let last = tensors.last_mut().unwrap();
            let mut values = last.to_vec_f32();
            values[3] = bad;
            last.view_mut().copy_from_f32(&values);
            assert!(!optimizer.measure(&ctx, &grads).unwrap().finite, "{bad}");
        }
    }
}
