//! AdamW. The update is computed by [`kernels::ops::adamw`]; this file selects the parameters with weight decay and the
//! random bits that round bf16 moments.

use super::{Definition, OptimizerKind, Rule, StateTree, Step};
use crate::Result;
use kernels::Context;
use kernels::ops::adamw;
use model::weights::{ParamSpec, Params};

/// Constant that separates the random bits for rounding moments from other uses of the seed.
const ROUNDING: u64 = 0x4d4f_4d45_4e54_5300;

/// The names that transformers gives to its implementations of AdamW. All of them compute the same update.
pub(super) const DEFINITION: Definition = Definition {
    names: &[
        "adamw_torch",
        "adamw",
        "adamw_torch_fused",
        "adamw_hf",
        "adamw_apex_fused",
        "adamw_torch_xla",
        "adamw_torch_npu_fused",
        "paged_adamw",
        "paged_adamw_32bit",
    ],
    parse: |_| Ok(OptimizerKind::AdamW),
};

/// AdamW: Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101).
pub(super) struct AdamW;

impl Rule for AdamW {
    fn trees(&self) -> &'static [StateTree] {
        const ALL: fn(&ParamSpec) -> bool = |_| true;
        &[
            StateTree { name: "exp_avg", in_moments_dtype: true, keeps: ALL },
            StateTree { name: "exp_avg_sq", in_moments_dtype: true, keeps: ALL },
        ]
    }

    fn step(&mut self, ctx: &Context, step: Step<'_, '_>) -> Result<()> {
        step_on(ctx, step, |_| true)
    }
}

/// Takes a step on the parameters for which `of` returns true. `trees` has the first and second moments.
pub(super) fn step_on(ctx: &Context, step: Step<'_, '_>, of: impl Fn(&ParamSpec) -> bool) -> Result<()> {
    let Step { weights, masters, trees, grads, part, norm, number, learning_rate, config, .. } = step;
    let [m, v] = trees else { unreachable!("AdamW keeps two moments") };
    let chosen: Vec<(bool, bool)> = weights.specs().iter().map(|spec| (of(spec), spec.matrix)).collect();
    let mut first_block = 0;
    let moments = m.tensors_mut().into_iter().zip(v.tensors_mut());
    // Adapters come last and have no f32 master weights.
    let mut masters = masters.map(Params::tensors_mut).unwrap_or_default().into_iter();
    for ((((weight, grad), (m, v)), (chosen, decays)), range) in
        weights.tensors_mut().into_iter().zip(grads.tensors()).zip(moments).zip(chosen).zip(part.ranges())
    {
        let master = masters.next();
        if grad.is_empty() || !chosen {
            continue; // frozen, or updated by another rule
        }
        let (from, weight) = weight.overwrite();
        let blocks_before = first_block;
        first_block += adamw::Rounding::blocks(grad.len());
        if range.is_empty() {
            continue;
        }
        let flat = [grad.len()];
        let from = from.map(|from| from.reshape(&flat).rows(range.clone()));
        let weight = weight.reshape(&flat).rows(range.clone());
        let (param, from, rounded) = match master {
            Some(master) => (master.elements_mut(range.clone()), None, Some(weight)),
            None => (weight, from, None),
        };
        // A part begins with a chunk, whose elements are a multiple of those of a block.
        let first_block = blocks_before + adamw::Rounding::blocks(range.start);
        let rounding = adamw::Rounding { key: config.seed ^ ROUNDING, first_block };
        let hyper = adamw::Hyper {
            lr: learning_rate,
            beta1: config.adam_beta1,
            beta2: config.adam_beta2,
            eps: config.adam_epsilon,
            weight_decay: if decays { config.weight_decay } else { 0.0 },
            step: number,
        };
        let step = adamw::Step {
            param,
            from,
            rounded,
            grad: grad.elements(range.clone()),
            m: m.elements_mut(range.clone()),
            v: v.elements_mut(range.clone()),
            hyper,
            norm: norm.view(),
            max_norm: config.max_grad_norm as f32,
            rounding,
        };
        adamw::step(ctx, step)?;
    }
    Ok(())
}
