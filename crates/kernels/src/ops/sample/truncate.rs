//! Penalty and truncation of one row, in the order of transformers' warpers.

use super::RowParams;
use super::cpu::{exp_below, inverse_cdf};
use crate::math;
use crate::simd::Simd;

/// A draw, and its log-probability in the distribution drawn from.
pub(super) struct Drawn {
    pub id: usize,
    pub logp: f32,
}

/// `warped = β · penalised logits`.
pub(super) fn penalise(logits: &[f32], beta: f32, params: &RowParams<'_>, warped: &mut [f32]) {
    for (z, warped) in logits.iter().zip(warped.iter_mut()) {
        *warped = z * beta;
    }
    if params.repetition_penalty != 1.0 {
        let penalty = params.repetition_penalty as f32;
        // From the logit itself, so that a token seen twice is penalised once.
        for &id in params.history {
            let z = logits[id as usize];
            warped[id as usize] = if z < 0.0 { z * penalty } else { z / penalty } * beta;
        }
    }
}

/// Truncates `z`, draws, and leaves exp(z − max z) in `weights`. `sorted` is as long as `z`; it and `ids` hold
/// anything.
#[inline(always)]
pub(super) fn draw<V: Simd>(
    params: &RowParams<'_>,
    z: &[f32],
    weights: &mut [f32],
    sorted: &mut [f32],
    ids: &mut Vec<u32>,
    uniform: impl FnOnce() -> f64,
) -> Drawn {
    let max = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if params.temperature == 0.0 {
        return Drawn { id: z.iter().position(|&z| z == max).unwrap_or(0), logp: 0.0 };
    }
    exp_below::<V>(z, max, weights);
    keep(params, z, weights, sorted, ids);
    let kept = &*ids;
    let total: f64 = kept.iter().map(|&id| f64::from(weights[id as usize])).sum();
    let (at, _) = inverse_cdf(kept.iter().map(|&id| weights[id as usize]), uniform());
    let id = kept.get(at).map_or(0, |&id| id as usize);
    Drawn { id, logp: (z[id] - max) - math::ln1::<V>(total as f32) }
}

/// Makes `ids` those that stay, ascending; `weights` are exp(z − max).
fn keep(params: &RowParams<'_>, z: &[f32], weights: &[f32], sorted: &mut [f32], ids: &mut Vec<u32>) {
    ids.clear();
    ids.extend(0..z.len() as u32);
    if params.top_k > 0 && params.top_k < z.len() {
        sorted.copy_from_slice(z);
        let (_, &mut least, _) = sorted.select_nth_unstable_by(params.top_k - 1, |a, b| b.total_cmp(a));
        ids.retain(|&id| z[id as usize] >= least);
    }
    if params.top_p < 1.0 {
        nucleus(params.top_p, z, weights, ids);
    }
    if params.min_p > 0.0 {
        ids.retain(|&id| f64::from(weights[id as usize]) >= params.min_p);
    }
    ids.sort_unstable();
}

/// Keeps, from the most likely on, every id before which less than `top_p` is gathered. Of equals, the lowest ids
/// first.
fn nucleus(top_p: f64, z: &[f32], weights: &[f32], ids: &mut Vec<u32>) {
    let goal = top_p * ids.iter().map(|&id| f64::from(weights[id as usize])).sum::<f64>();
    let order = |a: &u32, b: &u32| z[*b as usize].total_cmp(&z[*a as usize]).then(a.cmp(b));
    // A nucleus is small, most often: sort the first few, and more only if they do not reach.
    let mut sorted = 256;
    loop {
        let n = sorted.min(ids.len());
        if n < ids.len() {
            ids.select_nth_unstable_by(n, order);
        }
        ids[..n].sort_unstable_by(order);
        let mut before = 0.0;
        let reached = ids[..n].iter().position(|&id| {
            let reached = before >= goal;
            before += f64::from(weights[id as usize]);
            reached
        });
        match reached {
            Some(at) => return ids.truncate(at.max(1)),
            None if n == ids.len() => return,
            None => sorted *= 8,
        }
    }
}
