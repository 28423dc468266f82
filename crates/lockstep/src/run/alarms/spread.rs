//! Finds the cause of equal totals in groups: all rewards are equal, or varying rewards cancel in the weighted sum, or
//! varying rewards have a weight of 0. Each cause has a different remedy.

use super::conditions;
use crate::rollouts::{Rollouts, ScoredCompletion};
use std::collections::BTreeSet;

/// The evidence and the remedy if a group's totals are equal although a reward varies.
pub struct Cause {
    /// The evidence after the share of groups.
    pub evidence: String,
    /// The remedy that replaces the condition's usual one.
    pub remedy: &'static str,
}

/// How the totals of a generation's groups vary. If no group has two scored completions, as with one completion per
/// prompt, the whole generation is treated as one group.
#[derive(Default)]
pub struct Spread {
    /// Groups with at least two scored completions.
    groups: usize,
    /// How many of `groups` have equal totals.
    equal: usize,
    /// How many of `equal` groups have varying rewards with a weight other than 0, which cancel.
    cancel: usize,
    /// How many of `equal` groups have varying rewards only with weight 0.
    unweighted: usize,
    /// Names of the rewards that vary in the groups of `cancel` and `unweighted`.
    varying: BTreeSet<String>,
}

impl Spread {
    /// Compares the totals and the rewards within each group.
    pub fn of(rollouts: &Rollouts) -> Spread {
        let mut spread = Spread::default();
        for group in &rollouts.groups {
            spread.add(rollouts, &group.completions.iter().collect::<Vec<_>>());
        }
        if spread.groups == 0 {
            spread.add(rollouts, &rollouts.completions().collect::<Vec<_>>());
        }
        spread
    }

    fn add(&mut self, rollouts: &Rollouts, group: &[&ScoredCompletion]) {
        let Some(total) = range(group.iter().filter_map(|c| rollouts.total(c))) else { return };
        self.groups += 1;
        if total > conditions::CONSTANT.threshold {
            return;
        }
        self.equal += 1;
        let varies = |k: &usize| {
            range(group.iter().filter_map(|c| c.rewards[*k]))
                .is_some_and(|range| range > conditions::CONSTANT.threshold)
        };
        let varying: Vec<usize> = (0..rollouts.reward_names.len()).filter(varies).collect();
        if varying.iter().any(|&k| rollouts.reward_weights[k] != 0.0) {
            self.cancel += 1;
        } else if !varying.is_empty() {
            self.unweighted += 1;
        }
        self.varying.extend(varying.into_iter().map(|k| rollouts.reward_names[k].clone()));
    }

    /// The share of groups with equal totals in which a reward varies; `None` without groups.
    pub fn hidden_share(&self) -> Option<f64> {
        kernels::mean::share(self.cancel + self.unweighted, self.groups)
    }

    /// The cause of at least half of the groups with equal totals, if rewards vary in these groups.
    pub fn cause(&self) -> Option<Cause> {
        let names = self.varying.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let most = |count: usize| count > 0 && 2 * count >= self.equal;
        if most(self.cancel) {
            let evidence = format!(
                "all totals are equal although rewards vary ({names}): their weighted sum cancels and gives no \
                 advantage"
            );
            let remedy = "these rewards have opposite effects: change a sign, set other reward_weights, or remove one \
                          of these rewards";
            return Some(Cause { evidence, remedy });
        }
        most(self.unweighted).then(|| Cause {
            evidence: format!("all totals are equal although rewards vary ({names}): the weight of these rewards is 0"),
            remedy: "a weight other than 0 (reward_weights) for a reward that varies",
        })
    }

    /// Whether there is a group to compare.
    pub fn is_known(&self) -> bool {
        self.groups > 0
    }
}

/// Greatest minus least value; `None` for fewer than two.
fn range(values: impl Iterator<Item = f64> + Clone) -> Option<f64> {
    let (low, high) = values.clone().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)));
    (values.count() > 1).then_some(high - low)
}
