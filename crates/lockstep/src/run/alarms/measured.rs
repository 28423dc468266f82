//! Whether a step measured the input of a condition. Without a measurement, the condition neither holds nor ends.

use super::conditions::{Condition, Every};
use super::signs::GenerationSigns;
use rewards::NO_ANSWER;
use std::collections::BTreeMap;

/// The measurements of a step: its metrics, and its generation if it has a new one.
pub struct Measured<'a> {
    pub values: &'a BTreeMap<String, f64>,
    pub generation: Option<&'a GenerationSigns>,
}

impl Measured<'_> {
    /// Whether the step measured the input of `condition` for `subject`.
    pub fn has(&self, condition: &Condition, subject: &str) -> bool {
        let has = |name: &str| self.values.contains_key(name);
        if condition.every == Every::Generation && self.generation.is_none() {
            return false;
        }
        match condition.id {
            "truncated" => has("completions/clipped_ratio"),
            "zero_variance" => has("frac_reward_zero_std") || self.generation.is_some_and(|g| g.spread.is_known()),
            "no_answer" => has(&format!("rewards/{subject}/{NO_ANSWER}")),
            "entropy_collapse" => has("entropy") || has("logprob_p10"),
            // RLOO, REINFORCE++ and PPO measure this once per generation.
            "kl_blow_up" | "stale_reference" => has("kl") || has("objective/kl"),
            "grad_norm" => has("grad_norm"),
            "diverged" => has("loss"),
            "margin" => has("rewards/margins"),
            "constant_reward" => {
                let own = |g: &GenerationSigns| g.rewards.iter().any(|r| r.name == subject && r.range.is_some());
                self.generation.is_some_and(own)
            }
            "cut_short"
            | "length_explodes"
            | "length_is_paid"
            | "repetition_explodes"
            | "empty_answer_wins"
            | "broken_text_wins"
            | "odd_marks_win"
            | "repetition_wins"
            | "one_text_wins" => self.generation.is_some_and(|generation| generation.mean_total.is_some()),
            _ => true,
        }
    }
}
