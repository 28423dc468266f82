//! Optimizers compute the next weights from gradients, with clipping by the global gradient norm.
//!
//! Each optimizer is a [`Rule`] in its own file: `adamw.rs`, `muon.rs`. This file has the shared parts: the gradient
//! norm, the step count, and steps on a [`Part`] of the parameters; `state.rs` has the state for checkpoints.
//! A new optimizer needs a file, and entries in [`OPTIMIZERS`], [`OptimizerKind`] and [`OptimizerKind::rule`].

mod adamw;
mod muon;
mod part;
mod state;

pub(crate) use self::part::Part;
pub use self::state::{OptimizerState, SavedTree};

use self::muon::MuonConfig;
use crate::{Error, Result};
use kernels::ops::grad_norm;
use kernels::{Context, DType, Device, Memory, Tensor};
use model::weights::{Lent, NextParams, ParamSpec, Params, Sharing};
use model::{Grads, LoraConfig, ModelConfig};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The dtype of AdamW's moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MomentsDType {
    /// f32, as in torch.
    #[default]
    F32,
    /// bf16 with stochastic rounding, which halves the memory.
    Bf16,
}

/// The optimizer: AdamW or Muon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    /// AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101).
    #[default]
    AdamW,
    /// Muon for the matrices of decoder layers, AdamW for all other parameters.
    Muon(MuonConfig),
}

/// How configurations select an optimizer.
struct Definition {
    /// Names of the optimizer (those of transformers, if it has the optimizer). The usual name comes first.
    names: &'static [&'static str],
    /// Parses the optimizer's arguments from `optim_args`.
    parse: fn(&mut Args) -> std::result::Result<OptimizerKind, String>,
}

const OPTIMIZERS: &[Definition] = &[adamw::DEFINITION, muon::DEFINITION];

impl OptimizerKind {
    /// All names that [`parse`](Self::parse) accepts. The first one is the default.
    pub fn names() -> impl Iterator<Item = &'static str> {
        OPTIMIZERS.iter().flat_map(|definition| definition.names).copied()
    }

    /// Parses transformers' `optim` and `optim_args` ("momentum=0.9,ns_steps=5").
    pub fn parse(optim: &str, args: &str) -> std::result::Result<OptimizerKind, String> {
        let definition = OPTIMIZERS.iter().find(|definition| definition.names.contains(&optim));
        let definition = definition.ok_or_else(|| OptimizerKind::unknown(optim))?;
        let mut args = Args::parse(args)?;
        let kind = (definition.parse)(&mut args)?;
        args.all_read(optim)?;
        Ok(kind)
    }

    /// The error message for a name that is not in [`names`](Self::names).
    pub fn unknown(optim: &str) -> String {
        format!(
            "unknown optimizer `{optim}`: expected one of {}. For AdamW with half the memory, set \
             optim = \"adamw_torch\" and adam_moments_dtype = \"bf16\"",
            OptimizerKind::names().collect::<Vec<_>>().join(", ")
        )
    }

    fn rule(self) -> Box<dyn Rule> {
        match self {
            OptimizerKind::AdamW => Box::new(adamw::AdamW),
            OptimizerKind::Muon(config) => Box::new(muon::Muon::new(config)),
        }
    }
}

/// The `key=value` pairs of transformers' `optim_args`.
struct Args {
    pairs: Vec<(String, String)>,
    /// The keys that the optimizer reads.
    known: Vec<&'static str>,
}

impl Args {
    fn parse(text: &str) -> std::result::Result<Args, String> {
        let pairs = text.split(',').filter(|pair| !pair.trim().is_empty()).map(|pair| match pair.split_once('=') {
            Some((key, value)) => Ok((key.trim().to_owned(), value.trim().to_owned())),
            None => Err(format!("optim_args: `{}` must have the form key=value", pair.trim())),
        });
        Ok(Args { pairs: pairs.collect::<std::result::Result<_, _>>()?, known: Vec::new() })
    }
    /// Removes and returns the value of `key`; `default` if it is absent.
    fn take<T: std::str::FromStr>(&mut self, key: &'static str, default: T) -> std::result::Result<T, String> {
        self.known.push(key);
        let Some(at) = self.pairs.iter().position(|(name, _)| name == key) else { return Ok(default) };
        let (_, value) = self.pairs.remove(at);
        value.to_lowercase().parse().map_err(|_| format!("optim_args: `{value}` is not a valid value for `{key}`"))
    }
    fn all_read(self, optim: &str) -> std::result::Result<(), String> {
        let Some((key, _)) = self.pairs.first() else { return Ok(()) };
        let known = match self.known.as_slice() {
            [] => "none".to_owned(),
            known => known.join(", "),
        };
        Err(format!(
            "optim_args: the optimizer {optim} has no argument `{key}`; its arguments: {known} (AdamW's settings are \
             the keys adam_beta1, adam_beta2, adam_epsilon and weight_decay)"
        ))
    }
}

/// Optimizer settings; names and defaults are transformers'.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerConfig {
    /// The optimizer: AdamW or Muon.
    pub optim: OptimizerKind,
    /// AdamW's decay rate β₁ of the first moment.
    pub adam_beta1: f64,
    /// AdamW's decay rate β₂ of the second moment.
    pub adam_beta2: f64,
    /// AdamW's ε, added to the square root of the second moment.
    pub adam_epsilon: f64,
    /// Coefficient of decoupled weight decay, for matrices only; biases and norm weights do not decay.
    pub weight_decay: f64,
    /// Maximum L2 norm of the gradient, to which larger gradients are scaled down; 0 for no clipping.
    pub max_grad_norm: f64,
    /// The dtype of AdamW's moments.
    pub moments: MomentsDType,
    /// Seed of the random numbers of a step, for rounding bf16 moments and for LoRA dropout.
    pub seed: u64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        OptimizerConfig {
            optim: OptimizerKind::AdamW,
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

/// The global norm of the gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradNorm {
    /// L2 norm over all parameters.
    pub norm: f64,
    /// Whether every element of the gradient is finite.
    pub finite: bool,
}

/// A kind of optimizer state, with one number per parameter. Checkpoints store it under its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateTree {
    /// torch's name of the state, such as `exp_avg`.
    pub name: &'static str,
    /// Whether this state has the dtype [`OptimizerConfig::moments`]. Otherwise it is f32.
    pub in_moments_dtype: bool,
    /// Selects the parameters that have this state.
    pub keeps: fn(&ParamSpec) -> bool,
}

/// The update rule of an optimizer.
pub(crate) trait Rule: Send {
    /// The kinds of state that the optimizer keeps. A checkpoint writes each to its own file, and the memory plan
    /// counts them.
    fn trees(&self) -> &'static [StateTree];

    /// Whether the update of a tensor needs all of its elements, so that ranks do not divide the tensor.
    fn is_unit(&self, _spec: &ParamSpec) -> bool {
        false
    }

    /// Allocates the memory for steps.
    fn reserve(&mut self, _memory: &Memory, _model: &ModelConfig, _adapter: Option<&LoraConfig>) {}

    /// Takes one step on the elements of [`Step::part`] that have a gradient.
    fn step(&mut self, ctx: &Context, step: Step<'_, '_>) -> Result<()>;
}

/// Arguments of [`Rule::step`].
pub(crate) struct Step<'a, 'w> {
    /// The next version of the weights. *Written* from the current version, or rounded from the f32 masters if there
    /// are any. Parameters that the rule does not write stay unchanged.
    pub weights: &'a mut NextParams<'w>,
    /// f32 master weights of a model that computes in bf16; adapters have none. *Updated.*
    pub masters: Option<&'a mut Params>,
    /// Optimizer state, in the order of [`Rule::trees`]. *Updated.*
    pub trees: &'a mut [Params],
    /// Gradients. Frozen parameters have no elements.
    pub grads: &'a Params,
    /// The elements to update. Other ranks update the others meanwhile.
    pub part: &'a Part,
    /// The gradient norm `[2]`, as [`grad_norm::global`] writes it.
    pub norm: &'a Tensor,
    /// Factor for gradients: 1, or less if the norm is above `max_grad_norm`.
    pub clip: f32,
    /// Index of this step, counted from 1.
    pub number: u64,
    pub learning_rate: f64,
    pub config: &'a OptimizerConfig,
}

/// An optimizer: its settings, update rule and state.
pub struct Optimizer {
    config: OptimizerConfig,
    rule: Box<dyn Rule>,
    state: Arc<OptimizerState>,
    /// The part of the parameters that this process updates.
    part: Part,
    /// In a plan, the state of this part.
    counted: Vec<Tensor>,
    /// The gradient norm, as [`grad_norm::global`] writes it.
    norm: Tensor,
    measured: f64,
    /// Number of steps taken.
    pub(crate) steps: u64,
}

impl Optimizer {
    /// An optimizer with zero state, for all parameters or, if there is an adapter, for the adapter only. The memory
    /// ledger counts it as "optimizer".
    pub fn new(
        memory: &Memory,
        model: &ModelConfig,
        adapter: Option<&LoraConfig>,
        config: OptimizerConfig,
    ) -> Optimizer {
        let rule = config.optim.rule();
        let state = OptimizerState::zeros(&memory.part("optimizer"), model, adapter, &config, rule.trees());
        Optimizer::of(memory, model, adapter, config, state, Part::whole(&shape(model, adapter)))
    }

    fn of(
        memory: &Memory,
        model: &ModelConfig,
        adapter: Option<&LoraConfig>,
        config: OptimizerConfig,
        state: OptimizerState,
        part: Part,
    ) -> Optimizer {
        let (memory, mut rule) = (memory.part("optimizer"), config.optim.rule());
        rule.reserve(&memory, model, adapter);
        let norm = Tensor::zeros(&memory, &[2], DType::F32);
        Optimizer { config, rule, state: Arc::new(state), part, counted: Vec::new(), norm, measured: 0.0, steps: 0 }
    }

    /// Leaves all parameters but the part of rank 0 to other ranks, and moves the state, which is zeros, to slots that
    /// they access at the returned paths ([`for_rank`](Self::for_rank)). In a plan, counts only the part of rank 0.
    pub(crate) fn divide(
        &mut self,
        memory: &Memory,
        model: &ModelConfig,
        adapter: Option<&LoraConfig>,
        sharing: &Sharing,
        world_size: usize,
    ) -> Result<Vec<PathBuf>> {
        self.part = part_of(&*self.rule, model, adapter, [0, world_size]);
        let (meta, memory) = (Memory::new(Device::Meta), memory.part("optimizer"));
        let shapes = OptimizerState::zeros(&meta, model, adapter, &self.config, self.rule.trees());
        let mut paths = Vec::new();
        if memory.has_values() {
            self.state = Arc::new(OptimizerState::zeros(&meta, model, adapter, &self.config, &[])); // frees the old one
            self.state = Arc::new(shapes.replace(|tree| {
                let (params, path) = sharing.lend(&memory, tree)?;
                paths.push(path);
                Ok(params)
            })?);
        } else {
            let (state, counted) = shapes.counted(&memory, &self.part);
            (self.state, self.counted) = (Arc::new(state), counted);
        }
        Ok(paths)
    }

    /// The optimizer of a rank other than 0, which updates its part in the slots at `paths`, that rank 0
    /// [lends](Self::divide).
    pub(crate) fn for_rank(
        memory: &Memory,
        model: &ModelConfig,
        adapter: Option<&LoraConfig>,
        config: OptimizerConfig,
        ranks: [usize; 2],
        paths: &[PathBuf],
    ) -> Result<(Optimizer, Vec<Lent>)> {
        let (rule, meta) = (config.optim.rule(), Memory::new(Device::Meta));
        let (mut lent, mut paths) = (Vec::new(), paths.iter());
        let state = OptimizerState::zeros(&meta, model, adapter, &config, rule.trees()).replace(|tree| {
            let (slot, params) = Lent::open(paths.next().map_or(Path::new(""), PathBuf::as_path), memory, tree)?;
            lent.push(slot);
            Ok(params)
        })?;
        let part = part_of(&*rule, model, adapter, ranks);
        Ok((Optimizer::of(memory, model, adapter, config, state, part), lent))
    }

    /// The memory of a rank other than 0, for a plan.
    pub(crate) fn count_rank(
        memory: &Memory,
        model: &ModelConfig,
        adapter: Option<&LoraConfig>,
        config: OptimizerConfig,
        ranks: [usize; 2],
    ) -> Optimizer {
        let (rule, meta) = (config.optim.rule(), Memory::new(Device::Meta));
        let part = part_of(&*rule, model, adapter, ranks);
        let shapes = OptimizerState::zeros(&meta, model, adapter, &config, rule.trees());
        let (state, counted) = shapes.counted(&memory.part("optimizer"), &part);
        Optimizer { counted, ..Optimizer::of(memory, model, adapter, config, state, part) }
    }

    /// Replaces the numbers of AdamW for the following steps. The kind of optimizer, the dtype of moments and the seed
    /// stay.
    pub(crate) fn set_adam(&mut self, config: OptimizerConfig) {
        let OptimizerConfig { optim, moments, seed, .. } = self.config;
        self.config = OptimizerConfig { optim, moments, seed, ..config };
    }

    /// The optimizer's state, read-only.
    pub fn state(&self) -> &OptimizerState {
        &self.state
    }

    /// A shared pointer to the state, from which a checkpoint is written in the background. Until it is dropped,
    /// [`step`](Self::step) fails.
    pub fn hold(&self) -> Arc<OptimizerState> {
        self.state.clone()
    }

    /// The state, to overwrite when a training run resumes.
    pub fn state_mut(&mut self) -> Result<&mut OptimizerState> {
        Arc::get_mut(&mut self.state).ok_or(Error::Held)
    }

    /// The part of the parameters that this process updates.
    pub(crate) fn part(&self) -> &Part {
        &self.part
    }

    /// Computes the global norm of `grads`, by which the next [`step`](Self::step) clips.
    pub fn measure(&mut self, ctx: &Context, grads: &Grads) -> Result<GradNorm> {
        let views: Vec<_> = grads.params.tensors().iter().map(|t| t.view()).collect();
        grad_norm::global(ctx, &views, self.norm.view_mut())?;
        Ok(self.measured_norm())
    }

    /// Like [`measure`](Self::measure), for a norm in the form of [`grad_norm::global`] that ranks have computed.
    pub(crate) fn set_norm(&mut self, norm: [f32; 2]) -> GradNorm {
        self.norm.view_mut().copy_from_f32(&norm);
        self.measured_norm()
    }

    fn measured_norm(&mut self) -> GradNorm {
        let out = self.norm.to_vec_f32();
        self.measured = f64::from(out[0]);
        GradNorm { norm: self.measured, finite: out[1] == 1.0 && out[0].is_finite() }
    }

    /// Takes one step on this process's part of the trained parameters, clipping by the norm that was measured last.
    pub fn step(
        &mut self,
        ctx: &Context,
        weights: &mut NextParams<'_>,
        grads: &Params,
        learning_rate: f64,
    ) -> Result<()> {
        let state = Arc::get_mut(&mut self.state).ok_or(Error::Held)?;
        if self.steps == 0 {
            state.adopt(weights.current(), &self.part);
        }
        self.steps += 1;
        let most = self.config.max_grad_norm;
        let clip = if most == 0.0 { 1.0 } else { (most / (self.measured + 1e-6)).min(1.0) as f32 };
        let (masters, trees) = state.parts_mut();
        let step = Step {
            weights,
            masters,
            trees,
            grads,
            part: &self.part,
            norm: &self.norm,
            clip,
            number: self.steps,
            learning_rate,
            config: &self.config,
        };
        self.rule.step(ctx, step)
    }
}

/// The part of the parameters that a rank updates; `ranks` are its number and the number of all.
fn part_of(rule: &dyn Rule, model: &ModelConfig, adapter: Option<&LoraConfig>, ranks: [usize; 2]) -> Part {
    let [rank, world_size] = ranks;
    Part::of(&shape(model, adapter), |spec| rule.is_unit(spec), rank, world_size)
}

/// The shape of the trained parameters.
fn shape(model: &ModelConfig, adapter: Option<&LoraConfig>) -> Params {
    Params::trained(&Memory::new(Device::Meta), model, adapter)
}

#[cfg(test)]
mod tests {
    mod parts;
    mod settings;

    use super::muon::{AdjustLr, MuonConfig};
    use super::*;
    use kernels::Isa;
    use model::FileDType;
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
    fn bf16_moments_of_each_tensor_are_rounded_with_different_noise() {
        let ctx = Context::cpu(Isa::best(), 1);
        let (mut weights, mut optimizer, grads) = parts(&ctx);
        optimizer.measure(&ctx, &grads).unwrap();
        optimizer.step(&ctx, &mut NextParams::in_place(&mut weights.params), &grads.params, 1e-3).unwrap();
        let m = optimizer.state().trees().next().unwrap().tensors;
        let layer_moment = |i: usize| m.get(&format!("model.layers.{i}.mlp.down_proj.weight")).unwrap();
        let (first, second) = (layer_moment(0), layer_moment(1));
        // Every value is the same number, rounded either up or down.
        assert!(first != second && first.iter().chain(&second).all(|x| (x / first[0] - 1.0).abs() < 0.01));
    }

    #[test]
    fn one_nan_element_makes_the_gradient_non_finite() {
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
