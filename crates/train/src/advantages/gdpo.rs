//! GDPO, group reward-decoupled normalisation (arXiv:2601.05242): the rewards of each function are normalised within
//! the group before they are summed, so that functions with a larger scale or spread do not drown out the others.
//! Below, r_ik is the reward of sample i by function k with weight w_k.
//!
//! ```text
//! z_ik = (r_ik − mean of k in its group) / (s_k + 1e-4)   s_k: the group's standard deviation of k
//! z_i  = Σ_k w_k z_ik                                      over the k that scored i
//! A_i  = (z_i − mean of z) / (s + 1e-4)                    over the whole batch
//! ```
//!
//! If a function scored only one sample of a group, its rewards have no deviation in that group, and it contributes
//! nothing there.

use super::{Advantages, RewardMatrix, SMALL, ZeroStd, deviation, exact, given, mean, metrics, per_sequence};

/// Computes GDPO's advantages. `scale_rewards` is not used. Panics if a row has the wrong number of scores.
pub fn compute(matrix: &RewardMatrix) -> Advantages {
    let rewards = matrix.totals();
    let mut sums: Vec<Option<f64>> = rewards.iter().map(|r| r.map(|_| 0.0)).collect();
    for group in matrix.groups() {
        for (k, weight) in matrix.weights.iter().enumerate() {
            let column: Vec<Option<f64>> = matrix.rows[group.clone()].iter().map(|row| given(row.scores[k])).collect();
            let std = if group.len() > 1 { deviation(&column) } else { Some(0.0) };
            let (Some(mean), Some(std)) = (mean(&column), std) else { continue };
            for (reward, sum) in column.iter().zip(&mut sums[group.clone()]) {
                if let (Some(r), Some(sum)) = (reward, sum) {
                    *sum += weight * (r - mean) / (std + SMALL);
                }
            }
        }
    }
    let std = if sums.len() > 1 { deviation(&sums) } else { Some(0.0) };
    let center = mean(&sums).unwrap_or(0.0);
    let advantage = |z: &Option<f64>| match (z, std) {
        (Some(z), Some(std)) => (z - center) / (std + SMALL),
        _ => 0.0,
    };
    let advantages: Vec<f64> = sums.iter().map(advantage).collect();
    let mut zero_std = ZeroStd::default();
    zero_std.add(rewards.len(), exact(std, &sums));
    let metrics = metrics(matrix, &rewards, zero_std);
    Advantages { advantages: per_sequence(&advantages), rewards, metrics }
}
