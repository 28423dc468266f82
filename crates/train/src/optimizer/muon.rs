//! Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon), as `torch.optim.Muon` computes it, in f32. The
//! momentum of each matrix of the decoder layers is orthogonalised by Newton-Schulz iterations. Embedding, head, norms,
//! biases and adapters are updated by AdamW. Below, b is the momentum buffer, μ the momentum, p the parameter, lr the
//! learning rate.
//!
//! ```text
//! g = clip · grad
//! b ← b + (1 − μ) (g − b)
//! u = g + μ (b − g)      with Nesterov momentum, else b
//! X = u / max(‖u‖, eps)  transposed where it has more rows than columns
//! X ← a X + (b G + c G²) X,  G = X Xᵀ,  (a, b, c) = (3.4445, −4.7750, 2.0315)      ns_steps times
//! p ← p (1 − lr · weight_decay) − lr · s · X,   s = √max(1, rows/cols), or 0.2 √max(rows, cols)
//! ```
//!
//! q, k, v, gate and up are updated as separate matrices, although two or three of them share a tensor. torch iterates
//! in bf16, which changes singular values by a few percent; here the iterations are f32 matmuls.

use super::{Args, Definition, OptimizerKind, Rule, StateTree, Step, adamw};
use crate::Result;
use kernels::ops::linear;
use kernels::{Context, DType, Matrix, Memory, Tensor};
use model::weights::{ParamSpec, Params, Part, Role};
use model::{LoraConfig, ModelConfig};
use serde::{Deserialize, Serialize};

/// Coefficients a, b, c of the quintic Newton-Schulz iteration: steep at 0, so that small singular values grow quickly.
const COEFFICIENTS: [f32; 3] = [3.4445, -4.7750, 2.0315];

/// The factor for the learning rate that depends on the shape of a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdjustLr {
    /// √max(1, rows / cols), torch's "original".
    #[default]
    Original,
    /// 0.2 √max(rows, cols), torch's "match_rms_adamw": AdamW's learning rates and weight decays can be reused
    /// (Moonshot AI 2025, arXiv:2502.16982).
    MatchRmsAdamW,
}

/// Muon's arguments; names and defaults are torch's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MuonConfig {
    /// The momentum μ.
    pub momentum: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
    /// Number of Newton-Schulz iterations.
    pub ns_steps: u32,
    /// Lower bound of the norm by which the update is divided.
    pub eps: f64,
    /// The learning-rate factor that depends on the matrix shape: torch's `adjust_lr_fn`.
    pub adjust_lr: AdjustLr,
}

impl Default for MuonConfig {
    fn default() -> Self {
        MuonConfig { momentum: 0.95, nesterov: true, ns_steps: 5, eps: 1e-7, adjust_lr: AdjustLr::Original }
    }
}

pub(super) const DEFINITION: Definition =
    Definition { names: &["muon"], parse: |args| Ok(OptimizerKind::Muon(MuonConfig::parse(args)?)) };

impl MuonConfig {
    fn parse(args: &mut Args) -> std::result::Result<MuonConfig, String> {
        let default = MuonConfig::default();
        let config = MuonConfig {
            momentum: args.take("momentum", default.momentum)?,
            nesterov: args.take("nesterov", default.nesterov)?,
            ns_steps: args.take("ns_steps", default.ns_steps)?,
            eps: args.take("eps", default.eps)?,
            adjust_lr: match args.take("adjust_lr_fn", "original".to_owned())?.as_str() {
                "original" => AdjustLr::Original,
                "match_rms_adamw" => AdjustLr::MatchRmsAdamW,
                other => {
                    return Err(format!("optim_args: adjust_lr_fn must be original or match_rms_adamw, got `{other}`"));
                }
            },
        };
        if !(0.0..1.0).contains(&config.momentum) {
            return Err(format!("optim_args: momentum must be at least 0 and below 1, got {}", config.momentum));
        }
        if config.ns_steps == 0 || config.ns_steps > 100 {
            return Err(format!("optim_args: ns_steps must be at least 1 and at most 100, got {}", config.ns_steps));
        }
        if !(config.eps > 0.0 && config.eps.is_finite()) {
            return Err(format!("optim_args: eps must be finite and above 0, got {}", config.eps));
        }
        Ok(config)
    }
}

/// Whether Muon updates this parameter: a matrix of a decoder layer.
fn is_hidden_matrix(spec: &ParamSpec) -> bool {
    let is_in_layer = |part: &Part| part.name.contains(".layers.");
    spec.matrix && spec.role == Role::Base && spec.parts.iter().all(is_in_layer)
}

/// Muon for the matrices of decoder layers, and AdamW for all other parameters.
pub(super) struct Muon {
    config: MuonConfig,
    iterations: Option<NewtonSchulz>,
}

impl Muon {
    pub fn new(config: MuonConfig) -> Muon {
        Muon { config, iterations: None }
    }

    /// Takes a step on one row-major matrix `param: [rows, cols]`. `update` has the clipped gradient, and is
    /// overwritten.
    #[allow(clippy::too_many_arguments)]
    fn matrix_step(
        &self,
        ctx: &Context,
        iterations: &mut NewtonSchulz,
        [rows, cols]: [usize; 2],
        [learning_rate, weight_decay]: [f64; 2],
        param: &mut [f32],
        buffer: &mut [f32],
        update: &mut [f32],
    ) -> Result<()> {
        let mu = self.config.momentum as f32;
        for (b, g) in buffer.iter_mut().zip(update.iter_mut()) {
            *b += (1.0 - mu) * (*g - *b);
            *g = if self.config.nesterov { *g + mu * (*b - *g) } else { *b };
        }
        iterations.orthogonalise(ctx, update, rows, cols, &self.config)?;
        let keep = (1.0 - learning_rate * weight_decay) as f32;
        let rate = (learning_rate * self.scale(rows, cols)) as f32;
        param.iter_mut().zip(update).for_each(|(p, u)| *p = *p * keep - rate * *u);
        Ok(())
    }

    fn scale(&self, rows: usize, cols: usize) -> f64 {
        match self.config.adjust_lr {
            AdjustLr::Original => (rows as f64 / cols as f64).max(1.0).sqrt(),
            AdjustLr::MatchRmsAdamW => 0.2 * (rows.max(cols) as f64).sqrt(),
        }
    }
}

impl Rule for Muon {
    fn trees(&self) -> &'static [StateTree] {
        const OTHERS: fn(&ParamSpec) -> bool = |spec| !is_hidden_matrix(spec);
        &[
            StateTree { name: "momentum_buffer", in_moments_dtype: false, keeps: is_hidden_matrix },
            StateTree { name: "exp_avg", in_moments_dtype: true, keeps: OTHERS },
            StateTree { name: "exp_avg_sq", in_moments_dtype: true, keeps: OTHERS },
        ]
    }

    fn is_unit(&self, spec: &ParamSpec) -> bool {
        is_hidden_matrix(spec)
    }

    fn reserve(&mut self, memory: &Memory, model: &ModelConfig, adapter: Option<&LoraConfig>) {
        // If an adapter is trained, the matrices of decoder layers are frozen.
        let shapes = if adapter.is_some() { Vec::new() } else { Params::shapes(model) };
        let shapes = shapes.into_iter().filter(is_hidden_matrix).flat_map(|spec| spec.parts).map(|part| part.shape);
        let sides = shapes.map(|shape| (shape[0].min(shape[1]), shape[0].max(shape[1])));
        self.iterations = Some(NewtonSchulz::new(memory, sides.collect()));
    }

    fn step(&mut self, ctx: &Context, step: Step<'_, '_>) -> Result<()> {
        let Step { weights, mut masters, trees, grads, part, norm, clip, number, learning_rate, config } = step;
        let (buffers, moments) = trees.split_first_mut().expect("trees are momentum, then AdamW's moments");
        // Each matrix belongs to one rank.
        let has_gradient: Vec<bool> = grads.tensors().into_iter().map(|grad| !grad.is_empty()).collect();
        let mut parts: Vec<Part> = Vec::new();
        let specs = weights.specs().to_vec();
        for (((spec, weight), has_gradient), range) in
            specs.iter().zip(weights.tensors_mut()).zip(has_gradient).zip(part.ranges())
        {
            match is_hidden_matrix(spec) && has_gradient {
                true if range.is_empty() => drop(weight.overwrite()),
                true => parts.extend(spec.parts.iter().cloned()),
                false => {}
            }
        }
        let mut iterations = self.iterations.take().expect("reserved");
        for Part { name, shape, .. } in parts {
            let read = |params: &Params| params.read(&name).expect("each parameter must have a tensor with its name");
            let (mut buffer, mut update) = (read(buffers), read(grads));
            for g in &mut update {
                *g *= clip;
            }
            let mut param = read(masters.as_deref().unwrap_or(weights.current()));
            let rates = [learning_rate, config.weight_decay];
            self.matrix_step(ctx, &mut iterations, [shape[0], shape[1]], rates, &mut param, &mut buffer, &mut update)?;
            buffers.write(&name, &buffer);
            weights.write(&name, &param);
            if let Some(masters) = &mut masters {
                masters.write(&name, &param);
            }
        }
        self.iterations = Some(iterations);
        let trees = moments;
        let others = Step { weights, masters, trees, grads, part, norm, clip, number, learning_rate, config };
        adamw::step_on(ctx, others, |spec| !is_hidden_matrix(spec))
    }
}

/// Buffers of the Newton-Schulz iterations, for each shape `[m, n]` with m ≤ n of the model's matrices.
struct NewtonSchulz {
    memory: Memory,
    shapes: Vec<Iteration>,
}

struct Iteration {
    m: usize,
    n: usize,
    /// The matrix X and its next value `[m, n]`.
    x: Tensor,
    next: Tensor,
    /// G = X Xᵀ and its square `[m, m]`.
    gram: Tensor,
    square: Tensor,
    /// X, its transpose, and G, in the layout that matmuls read.
    packed: Matrix,
    transposed: Matrix,
    packed_gram: Matrix,
}

impl NewtonSchulz {
    fn new(memory: &Memory, mut sides: Vec<(usize, usize)>) -> NewtonSchulz {
        sides.sort_unstable();
        sides.dedup();
        let zeros = |shape: &[usize]| Tensor::zeros(memory, shape, DType::F32);
        let iteration = |(m, n): (usize, usize)| Iteration {
            m,
            n,
            x: zeros(&[m, n]),
            next: zeros(&[m, n]),
            gram: zeros(&[m, m]),
            square: zeros(&[m, m]),
            packed: Matrix::zeros_of(memory, m, n, DType::F32),
            transposed: Matrix::zeros_of(memory, n, m, DType::F32),
            packed_gram: Matrix::zeros_of(memory, m, m, DType::F32),
        };
        NewtonSchulz { memory: memory.clone(), shapes: sides.into_iter().map(iteration).collect() }
    }

    /// Replaces the row-major matrix `u: [rows, cols]` by an approximation of U Vᵀ, with U and V from its singular
    /// value decomposition.
    fn orthogonalise(
        &mut self,
        ctx: &Context,
        u: &mut [f32],
        rows: usize,
        cols: usize,
        config: &MuonConfig,
    ) -> Result<()> {
        let (m, n) = (rows.min(cols), rows.max(cols));
        let at = self.shapes.iter().position(|shape| (shape.m, shape.n) == (m, n));
        debug_assert!(at.is_some(), "[{rows}, {cols}] was not reserved on {:?}", self.memory.device());
        let Some(at) = at else { return Ok(()) };
        let shape = &mut self.shapes[at];
        let norm = u.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt().max(config.eps) as f32;
        for x in u.iter_mut() {
            *x /= norm;
        }
        let mut x = if rows > cols { transpose(u, rows, cols) } else { u.to_vec() };
        for _ in 0..config.ns_steps {
            shape.iterate(ctx, &mut x)?;
        }
        u.copy_from_slice(&if rows > cols { transpose(&x, cols, rows) } else { x });
        Ok(())
    }
}

impl Iteration {
    /// One Newton-Schulz iteration: X ← a X + (b G + c G²) X, with G = X Xᵀ.
    fn iterate(&mut self, ctx: &Context, x: &mut [f32]) -> Result<()> {
        let [a, b, c] = COEFFICIENTS;
        let matmul = |x: &Tensor, w: &Matrix, y: &mut Tensor| {
            linear::forward(ctx, linear::Forward { x: x.view(), w, bias: None, y: y.view_mut(), accumulate: false })
        };
        self.x.view_mut().copy_from_f32(x);
        self.packed.pack_rows(0, x);
        matmul(&self.x, &self.packed, &mut self.gram)?;
        let mut gram = self.gram.to_vec_f32();
        self.packed_gram.pack_rows(0, &gram);
        // G is symmetric, so G Gᵀ = G².
        matmul(&self.gram, &self.packed_gram, &mut self.square)?;
        gram.iter_mut().zip(self.square.to_vec_f32()).for_each(|(g, square)| *g = b * *g + c * square);
        self.gram.view_mut().copy_from_f32(&gram);
        self.transposed.pack_rows(0, &transpose(x, self.m, self.n));
        matmul(&self.gram, &self.transposed, &mut self.next)?;
        x.iter_mut().zip(self.next.to_vec_f32()).for_each(|(x, next)| *x = a * *x + next);
        Ok(())
    }
}

/// Transposes a row-major matrix `[rows, cols]`.
fn transpose(x: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|c| (0..rows).map(move |r| x[r * cols + c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Optimizer, OptimizerConfig};
    use kernels::Isa;
    use kernels::check::normal;
    use model::io::{TensorSink, TensorSource};
    use model::weights::{NamedMut, NextParams};
    use model::{Grads, Weights};
    use std::sync::Arc;

    const CONFIG: &str = r#"{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 40,
        "hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": false}"#;

    /// Reference for the Newton-Schulz iterations: the formula in f64 with plain loops.
    fn orthogonal(u: &[f64], rows: usize, cols: usize, steps: u32) -> Vec<f64> {
        let at = |x: &[f64], cols: usize, i: usize, j: usize| x[i * cols + j];
        let matmul = |a: &[f64], b: &[f64], m: usize, k: usize, n: usize| -> Vec<f64> {
            let element = |i: usize, j: usize| (0..k).map(|l| at(a, k, i, l) * at(b, n, l, j)).sum();
            (0..m * n).map(|e| element(e / n, e % n)).collect()
        };
        let transposed = |x: &[f64], rows: usize, cols: usize| -> Vec<f64> {
            (0..rows * cols).map(|e| at(x, cols, e % rows, e / rows)).collect()
        };
        let (m, n) = (rows.min(cols), rows.max(cols));
        let mut x = if rows > cols { transposed(u, rows, cols) } else { u.to_vec() };
        let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-7);
        for x in &mut x {
            *x /= norm;
        }
        let [a, b, c] = COEFFICIENTS.map(f64::from);
        for _ in 0..steps {
            let gram = matmul(&x, &transposed(&x, m, n), m, n, m);
            let square = matmul(&gram, &gram, m, m, m);
            let poly: Vec<f64> = gram.iter().zip(&square).map(|(g, s)| b * g + c * s).collect();
            let next = matmul(&poly, &x, m, m, n);
            x.iter_mut().zip(next).for_each(|(x, next)| *x = a * *x + next);
        }
        if rows > cols { transposed(&x, cols, rows) } else { x }
    }

    fn in_f64(x: &[f32]) -> Vec<f64> {
        x.iter().map(|&x| f64::from(x)).collect()
    }

    fn is_layer_matrix(name: &str) -> bool {
        name.contains(".layers.") && name.ends_with("proj.weight")
    }

    #[test]
    fn each_matrix_of_a_layer_is_orthogonalised_and_adamw_updates_the_rest() {
        for compute in [DType::F32, DType::Bf16] {
            for isa in Isa::present() {
                let ctx = Context::cpu(isa, 2);
                let model = Arc::new(ModelConfig { compute, ..ModelConfig::parse(CONFIG).unwrap() });
                let mut weights = Weights::random(ctx.memory(), &model, 1).unwrap();
                let mut plain = Weights::random(ctx.memory(), &model, 1).unwrap();
                let specs = TensorSource::tensors(&weights);
                let mut expected: Vec<Vec<f64>> =
                    specs.iter().map(|s| in_f64(&weights.get(&s.name).unwrap())).collect();
                let mut buffers: Vec<Vec<f64>> = expected.iter().map(|w| vec![0.0; w.len()]).collect();
                let muon = MuonConfig { momentum: 0.9, ..MuonConfig::default() };
                let common = OptimizerConfig { weight_decay: 0.1, max_grad_norm: 2.0, ..OptimizerConfig::default() };
                let config = OptimizerConfig { optim: OptimizerKind::Muon(muon), ..common };
                let mut optimizer = Optimizer::new(ctx.memory(), &model, None, config);
                let mut adamw = Optimizer::new(ctx.memory(), &model, None, common);
                let mut grads = Grads::trained(ctx.memory(), &model, None);
                for step in 0..3 {
                    let grad = |i: usize| -> Vec<f32> { normal((100 * step + i) as u64, expected[i].len()) };
                    let all: Vec<Vec<f32>> = (0..specs.len()).map(grad).collect();
                    for (spec, grad) in specs.iter().zip(&all) {
                        NamedMut { params: &mut grads.params }.put(&spec.name, grad).unwrap();
                    }
                    let norm = optimizer.measure(&ctx, &grads).unwrap().norm;
                    adamw.measure(&ctx, &grads).unwrap();
                    optimizer.step(&ctx, &mut NextParams::in_place(&mut weights.params), &grads.params, 0.02).unwrap();
                    adamw.step(&ctx, &mut NextParams::in_place(&mut plain.params), &grads.params, 0.02).unwrap();
                    let clip = (2.0 / (norm + 1e-6)).min(1.0);
                    for (i, spec) in specs.iter().enumerate().filter(|(_, spec)| is_layer_matrix(&spec.name)) {
                        let momentum = |(&g, b): (&f32, &mut f64)| {
                            let g = clip * f64::from(g);
                            *b += 0.1 * (g - *b);
                            g + 0.9 * (*b - g)
                        };
                        let update: Vec<f64> = all[i].iter().zip(&mut buffers[i]).map(momentum).collect();
                        let (rows, cols) = (spec.shape[0], spec.shape[1]);
                        let rate = 0.02 * (rows as f64 / cols as f64).max(1.0).sqrt();
                        let update = orthogonal(&update, rows, cols, 5);
                        expected[i].iter_mut().zip(update).for_each(|(p, u)| *p = *p * (1.0 - 0.02 * 0.1) - rate * u);
                    }
                }
                // bf16 keeps eight significant bits.
                let tolerance = if compute == DType::F32 { 1e-5 } else { 1e-2 };
                for (spec, expected) in specs.iter().zip(&expected) {
                    let (muon, adamw) = (weights.get(&spec.name).unwrap(), plain.get(&spec.name).unwrap());
                    if is_layer_matrix(&spec.name) {
                        let worst = in_f64(&muon)
                            .iter()
                            .zip(expected)
                            .map(|(a, b)| (a - b).abs())
                            .max_by(f64::total_cmp)
                            .unwrap();
                        assert!(worst < tolerance, "{}, {isa:?}, {compute:?}: {worst}", spec.name);
                    } else {
                        assert!(muon == adamw, "{} must be updated by AdamW", spec.name);
                    }
                }
                let trees: Vec<(&str, usize)> =
                    optimizer.state().trees().map(|tree| (tree.name, tree.tensors.tensors().len())).collect();
                // Each layer has seven matrices. AdamW updates the embedding, the final norm and the lm head, and in
                // each layer three biases and two norms.
                assert_eq!(trees, [("momentum_buffer", 14), ("exp_avg", 13), ("exp_avg_sq", 13)]);
            }
        }
    }

    /// Compares with fixtures of `conformance/muon_fixtures.py`: the steps of torch.optim.Muon, and the same steps with
    /// iterations in f32.
    #[test]
    fn muon_steps_match_torch() {
        #[derive(Deserialize)]
        struct Made {
            learning_rate: f64,
            weight_decay: f64,
            cases: Vec<Case>,
        }
        #[derive(Deserialize)]
        struct Case {
            rows: usize,
            cols: usize,
            optim_args: String,
            start: Vec<f32>,
            grads: Vec<Vec<f32>>,
            torch: Vec<Vec<f32>>,
            f32: Vec<Vec<f32>>,
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/muon.json");
        let made: Made = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        for isa in Isa::present() {
            let ctx = Context::cpu(isa, 1);
            for case in &made.cases {
                let (rows, cols) = (case.rows, case.cols);
                let OptimizerKind::Muon(config) = OptimizerKind::parse("muon", &case.optim_args).unwrap() else {
                    panic!()
                };
                let mut iterations = NewtonSchulz::new(ctx.memory(), vec![(rows.min(cols), rows.max(cols))]);
                let (mut param, mut buffer) = (case.start.clone(), vec![0.0; rows * cols]);
                for ((grad, torch), exact) in case.grads.iter().zip(&case.torch).zip(&case.f32) {
                    let rates = [made.learning_rate, made.weight_decay];
                    let mut update = grad.clone();
                    let step = Muon::new(config);
                    step.matrix_step(&ctx, &mut iterations, [rows, cols], rates, &mut param, &mut buffer, &mut update)
                        .unwrap();
                    let which = format!("{rows} × {cols}, {isa:?}");
                    assert!(param.iter().all(|x| x.is_finite()), "{which}: the step's result is not finite: {param:?}");
                    let far = |other: &[f32]| {
                        param.iter().zip(other).map(|(a, b)| (a - b).abs()).max_by(f32::total_cmp).unwrap()
                    };
                    assert!(far(exact) < 1e-5, "{which}: {} from the iterations in f32", far(exact));
                    assert!(far(torch) < 2e-2, "{which}: {} from torch", far(torch));
                    assert!(far(&case.start) > 1e-2, "{which}: the steps must change the matrix");
                }
            }
        }
    }

    #[test]
    fn newton_schulz_brings_singular_values_near_one() {
        let ctx = Context::cpu(Isa::best(), 1);
        for (rows, cols) in [(8, 8), (5, 33), (33, 5), (1, 7), (64, 24)] {
            let (m, n) = (rows.min(cols), rows.max(cols));
            let mut iterations = NewtonSchulz::new(ctx.memory(), vec![(m, n)]);
            let mut u: Vec<f32> = normal(3, rows * cols);
            let exact = orthogonal(&in_f64(&u), rows, cols, 5);
            iterations.orthogonalise(&ctx, &mut u, rows, cols, &MuonConfig::default()).unwrap();
            let worst = u.iter().zip(&exact).map(|(&a, &b)| (f64::from(a) - b).abs()).max_by(f64::total_cmp).unwrap();
            assert!(worst < 1e-5, "{rows} × {cols}: {worst}");
            // The mean of σ² must be consistent with singular values σ between 0.7 and 1.2.
            let squares: f32 = u.iter().map(|x| x * x).sum();
            assert!((0.4..1.5).contains(&(squares / m as f32)), "{rows} × {cols}: {squares}");
            let mut zero = vec![0.0; rows * cols];
            iterations.orthogonalise(&ctx, &mut zero, rows, cols, &MuonConfig::default()).unwrap();
            assert!(zero.iter().all(|&x| x == 0.0));
        }
    }
}
