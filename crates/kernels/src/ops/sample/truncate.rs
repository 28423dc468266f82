//! Repetition penalty and truncation (top-k, top-p, min-p) of one row of logits, in the order of transformers' logits
//! warpers.

use super::RowParams;
use super::inverse::{exp_below, inverse_cdf};
use crate::math;
use crate::simd::Simd;

/// A drawn token, and its log-probability in the truncated distribution.
pub(super) struct Drawn {
    pub id: usize,
    pub logp: f32,
}

/// Computes `warped = β · logits`, with the repetition penalty applied to the logits.
pub(super) fn penalise(logits: &[f32], beta: f32, params: &RowParams<'_>, warped: &mut [f32]) {
    for (z, warped) in logits.iter().zip(warped.iter_mut()) {
        *warped = z * beta;
    }
    if params.repetition_penalty != 1.0 {
        let penalty = params.repetition_penalty as f32;
        // The penalty is applied to the original logit, so that a token that occurs twice is penalised once.
        for &id in params.history {
            let z = logits[id as usize];
            warped[id as usize] = if z < 0.0 { z * penalty } else { z / penalty } * beta;
        }
    }
}

/// Truncates the scaled logits `z` and draws a token. On return, `weights` contains exp(z − max z). `sorted` (as long
/// as `z`) and `ids` are buffers.
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

/// Sets `ids` to the tokens that top-k, top-p and min-p keep, ascending. `weights` contains exp(z − max z).
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
}

/// top-p: visits `ids` from the most likely down, and keeps an id if the probabilities of the ids before it sum to less
/// than `top_p`. Equal logits are visited in ascending order of id. `ids` are ascending on entry and on return.
fn nucleus(top_p: f64, z: &[f32], weights: &[f32], ids: &mut Vec<u32>) {
    let total = ids.iter().map(|&id| f64::from(weights[id as usize])).sum::<f64>();
    match last_kept(top_p * total, total, z, weights, ids) {
        Some((least, last)) => ids.retain(|&id| {
            let key = descending(z[id as usize]);
            key < least || (key == least && id <= last)
        }),
        None => sorted_nucleus(top_p * total, z, weights, ids),
    }
}

/// Maps a logit to a u32 key whose ascending order is the descending order of `total_cmp`.
#[inline(always)]
fn descending(z: f32) -> u32 {
    let bits = z.to_bits();
    if bits >> 31 == 0 { !(bits | 1 << 31) } else { bits }
}

/// Number of bits of the key that each pass of the radix select resolves.
const DIGITS: [u32; 3] = [12, 10, 10];

/// Finds, without sorting, the key and id of the last token that [`sorted_nucleus`] keeps. Returns `None` if the
/// rounding of sums could change the result.
///
/// This is a radix select by weight. Each pass takes the keys that agree in the digits found so far, sums their weights
/// by the next digit, and chooses the digit in which the cumulative sum reaches `goal`. The sum of `n` non-negative
/// numbers, in any order, differs from its true value by at most n u Σ (u = 2⁻⁵³), so two such sums differ by at most
/// twice that. If the sums before and after the found id are farther than that from `goal`, the sorted order ends at
/// the same id.
fn last_kept(goal: f64, total: f64, z: &[f32], weights: &[f32], ids: &[u32]) -> Option<(u32, u32)> {
    // The slack is twice the bound, to cover the rounding of `goal` and of the sums computed here.
    let slack = 2.0 * f64::EPSILON * ids.len() as f64 * total;
    let (mut before, mut prefix, mut shift) = (0.0, 0, u32::BITS);
    for bits in DIGITS {
        let has_prefix = |key: u32| shift == u32::BITS || key >> shift == prefix;
        let mut sums = [0.0f64; 1 << DIGITS[0]];
        for &id in ids {
            let key = descending(z[id as usize]);
            if has_prefix(key) {
                sums[(key >> (shift - bits)) as usize & ((1 << bits) - 1)] += f64::from(weights[id as usize]);
            }
        }
        let digit = sums[..1 << bits].iter().position(|sum| {
            let reached = before + sum >= goal;
            before += if reached { 0.0 } else { *sum };
            reached
        })?;
        shift -= bits;
        prefix = prefix << bits | digit as u32;
    }
    for &id in ids.iter().filter(|&&id| descending(z[id as usize]) == prefix) {
        let with = before + f64::from(weights[id as usize]);
        if with >= goal {
            return (before < goal - slack && with >= goal + slack).then_some((prefix, id));
        }
        before = with;
    }
    None
}

/// Like [`nucleus`], but computed by its definition, with sorting.
fn sorted_nucleus(goal: f64, z: &[f32], weights: &[f32], ids: &mut Vec<u32>) {
    ids.sort_unstable_by_key(|&id| (descending(z[id as usize]), id));
    let mut before = 0.0;
    let reached = ids.iter().position(|&id| {
        let reached = before >= goal;
        before += f64::from(weights[id as usize]);
        reached
    });
    ids.truncate(reached.map_or(ids.len(), |at| at.max(1)));
    ids.sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::normal;

    /// The definition of top-p that `nucleus` must reproduce: sorts the first few tokens, and more only if these do not
    /// reach `top_p`.
    fn oracle(top_p: f64, z: &[f32], weights: &[f32], ids: &mut Vec<u32>) {
        let goal = top_p * ids.iter().map(|&id| f64::from(weights[id as usize])).sum::<f64>();
        let order = |a: &u32, b: &u32| z[*b as usize].total_cmp(&z[*a as usize]).then(a.cmp(b));
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

    /// Checks that the nucleus equals the oracle's. Returns whether it was found without sorting.
    #[track_caller]
    fn same(top_p: f64, z: &[f32], ids: &[u32]) -> bool {
        let max = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> = z.iter().map(|z| libm::expf(z - max)).collect();
        let (mut expected, mut found, mut sorted) = (ids.to_vec(), ids.to_vec(), ids.to_vec());
        oracle(top_p, z, &weights, &mut expected);
        expected.sort_unstable();
        nucleus(top_p, z, &weights, &mut found);
        assert_eq!(found, expected, "top_p {top_p} of {}", ids.len());
        let total = ids.iter().map(|&id| f64::from(weights[id as usize])).sum::<f64>();
        sorted_nucleus(top_p * total, z, &weights, &mut sorted);
        assert_eq!(sorted, expected, "sorted, top_p {top_p} of {}", ids.len());
        last_kept(top_p * total, total, z, &weights, ids).is_some()
    }

    #[test]
    fn the_radix_select_keeps_the_nucleus_of_the_sort() {
        let (mut decided, mut all) = (0, 0);
        for (case, n) in [1usize, 2, 255, 256, 257, 3000, 20_000].into_iter().enumerate() {
            let drawn = normal::<f32>(case as u64, n);
            for scale in [0.0, 1e-3, 0.3, 4.0, 60.0] {
                for top_p in [1e-9, 0.3, 0.5, 0.95, 0.999_99] {
                    // Logits as drawn, shifted to other powers of two, and rounded so that many are equal.
                    for step in [0.0, 0.25] {
                        let near = |x: &f32| 20.0 + scale * x;
                        let tied = |x: f32| if step > 0.0 { (x / step).round() * step } else { x };
                        let z: Vec<f32> = drawn.iter().map(|x| tied(near(x))).collect();
                        let some: Vec<u32> = (0..n as u32).filter(|id| id % 3 != 1).collect();
                        decided += usize::from(same(top_p, &z, &(0..n as u32).collect::<Vec<_>>()));
                        decided += usize::from(same(top_p, &z, &some));
                        all += 2;
                    }
                }
            }
        }
        // The cases that need sorting are ties whose sums meet the goal exactly, and tails that weigh less than the
        // rounding error.
        assert!(decided * 10 > all * 8, "{decided} of {all} without sorting");
    }

    #[test]
    fn non_finite_logits_and_signed_zeros_keep_their_order() {
        let z = [0.0, -0.0, -f32::INFINITY, 1.0, -0.0, 0.0, -3.0, f32::MIN_POSITIVE / 2.0, -f32::MIN_POSITIVE / 2.0];
        let ids: Vec<u32> = (0..z.len() as u32).collect();
        for i in 1..100 {
            same(f64::from(i) / 100.0, &z, &ids);
        }
        for odd in [f32::NAN, f32::INFINITY] {
            let mut z = z;
            z[4] = odd;
            assert!(!same(0.5, &z, &ids), "there is nothing to select");
        }
    }

    #[test]
    fn the_radix_select_defers_to_the_sort_at_ambiguous_goals() {
        let ids: Vec<u32> = (0..1024).collect();
        assert!(!same(0.5, &[1.0; 1024], &ids));
        assert!(same(0.5 + 1e-6, &[1.0; 1024], &ids));
    }
}
