//! The alarm conditions that depend only on a step's metrics, not on completions.

use super::conditions;
use super::measured::Measured;
use super::{COMPARED, Detection, History, REMEMBERED, remember};
use crate::run::bits64::Bits64;
use kernels::mean::{mean, share};
use rewards::NO_ANSWER;
use std::collections::BTreeMap;
use telemetry::Step;

/// Below this loss, a gradient of 0 is expected and raises no alarm.
const LEARNED: f64 = 0.01;
/// A mean entropy per token (in nats) below this is considered collapsed, regardless of the entropy at the start.
const CERTAIN: f64 = 0.005;
/// Up to this length limit in tokens, truncation is usually intended. If all completions are truncated from the first
/// generation on, the alarm is only a note.
const SHORT: f64 = 128.0;

/// Detects groups with equal totals by their `share`, or, without this metric, by the share of groups whose totals are
/// equal although rewards vary.
fn zero_variance(share: Option<f64>, measured: &Measured<'_>) -> Option<Detection> {
    let spread = measured.generation.map(|generation| &generation.spread);
    // PPO and runs with one completion per prompt do not compare groups: equal totals are reported only if rewards
    // vary.
    let hidden = || spread.and_then(|spread| spread.hidden_share());
    let share = share.or_else(hidden).filter(|share| *share >= conditions::ZERO_VARIANCE.threshold)?;
    let cause = spread.and_then(|spread| spread.cause());
    let what = cause.as_ref().map_or("all rewards are equal: no advantage", |cause| &cause.evidence);
    let evidence = format!("in {:.0} % of the groups {what}", share * 100.0);
    let remedy = cause.as_ref().map(|cause| cause.remedy);
    Some(Detection { remedy, ..Detection::new(&conditions::ZERO_VARIANCE, evidence) })
}

/// A step without any token in the loss.
pub(super) fn all_masked(sequences: u64, values: &BTreeMap<String, f64>) -> Detection {
    let why = match values.get("completions/clipped_ratio") {
        Some(share) if *share >= 1.0 => ": all were truncated at max_completion_length",
        _ => "",
    };
    let evidence = format!(
        "no token of the step's {} is in the loss: every one is masked, and nothing was learned{why}",
        telemetry::counted(sequences as usize, "sequence")
    );
    Detection::new(&conditions::NOTHING_LEARNED, evidence)
}

/// The share of sampled tokens that the tokenizer does not know.
pub(super) fn tokens_without_text((unknown, all): (usize, usize)) -> Option<Detection> {
    let part = share(unknown, all).filter(|share| *share >= conditions::UNKNOWN_TOKENS.threshold)?;
    let evidence = format!(
        "{:.0} % of the sampled tokens have ids beyond the tokenizer's vocabulary: they have no text, and rewards do \
         not see them",
        part * 100.0
    );
    Some(Detection::new(&conditions::UNKNOWN_TOKENS, evidence))
}

impl History {
    /// Checks the conditions on the metrics of step `step`.
    pub(super) fn look_at_values(&mut self, step: Step, measured: &Measured<'_>, seen: &mut Vec<Detection>) {
        let values = measured.values;
        let value = |name: &str| values.get(name).copied();
        let percent = |share: f64| share * 100.0;
        if let Some(share) = value("completions/clipped_ratio").filter(|s| *s >= conditions::TRUNCATED.threshold) {
            let evidence =
                format!("{:.0} % of the completions were truncated at max_completion_length", percent(share));
            self.cut_from_the_first = self.cut_from_the_first.or(Some(true));
            let short = value("completions/max_length").is_some_and(|length| length <= SHORT);
            let quiet = short && self.cut_from_the_first == Some(true);
            seen.push(Detection { quiet, ..Detection::new(&conditions::TRUNCATED, evidence) });
        } else if value("completions/clipped_ratio").is_some() {
            self.cut_from_the_first = Some(false);
        }
        seen.extend(zero_variance(value("frac_reward_zero_std"), measured));
        let rewards = values.iter().filter_map(|(name, share)| Some((name.strip_prefix("rewards/")?, *share)));
        let unanswered = rewards.filter_map(|(name, share)| {
            let reward = name.strip_suffix(NO_ANSWER)?.strip_suffix('/')?;
            (share >= conditions::NO_ANSWER.threshold).then_some((reward, share))
        });
        for (reward, share) in unanswered {
            let evidence = format!("it finds no answer in {:.0} % of the completions, right or wrong", percent(share));
            seen.push(Detection::new(&conditions::NO_ANSWER, evidence).of(reward));
        }
        // Entropy is checked only for sampled completions, since low entropy is the goal of supervised training.
        if let Some(entropy) = value("entropy").filter(|e| e.is_finite() && self.lowest.is_some()) {
            let known = self.entropies.len() >= COMPARED;
            if !known {
                self.entropies.push(Bits64(entropy));
            }
            let first = mean(self.entropies.iter().map(|e| e.0)).filter(|_| known);
            if let Some(first) = first.filter(|first| entropy < conditions::ENTROPY.threshold * first) {
                let evidence = format!("the entropy of a token is {entropy:.3} nats; it began at {first:.3}");
                seen.push(Detection::new(&conditions::ENTROPY, evidence));
            } else if entropy < CERTAIN {
                let evidence = format!("the entropy of a token is {entropy:.5} nats: only one text is sampled");
                seen.push(Detection::new(&conditions::ENTROPY, evidence));
            }
        }
        // If no group has a gradient, entropy is not measured; the sampled log-probabilities replace it.
        if let (None, Some(logp)) = (value("entropy"), value("logprob_p10").filter(|logp| *logp > -CERTAIN)) {
            let evidence = format!(
                "no group teaches anything, and nine of ten tokens were drawn with a log-probability above {logp:.5}: \
                 only one text is sampled"
            );
            seen.push(Detection::new(&conditions::ENTROPY, evidence));
        }
        self.look_at_supervised(values, seen);
        // PPO's divergence is that of a whole completion.
        let kl_per_token = || {
            let length = value("completions/mean_length").filter(|length| *length > 0.0)?;
            Some(value("objective/kl")? / length)
        };
        if let Some(kl) = value("kl").or_else(kl_per_token).filter(|kl| *kl >= conditions::KL.threshold) {
            let evidence = format!("the divergence from the reference model is {kl:.3} nats per token");
            seen.push(Detection::new(&conditions::KL, evidence));
        }
        // If the policy began as the reference, the divergence is 0 nats in the first step.
        let kl = value("kl").or_else(kl_per_token).filter(|kl| kl.is_finite());
        self.first_kl = self.first_kl.or_else(|| kl.filter(|_| step == Step(1)).map(Bits64));
        let far = |kl: &f64| *kl >= conditions::STALE_REFERENCE.threshold;
        if let (Some(first), Some(kl)) = (self.first_kl.map(|kl| kl.0).filter(far), kl.filter(far)) {
            let evidence = format!(
                "in the first step, the policy was already {first:.3} nats per token from the reference model, and now \
                 it is {kl:.3} nats away: the run is pulled towards a model that it did not start from"
            );
            seen.push(Detection::new(&conditions::STALE_REFERENCE, evidence));
        }
        if let Some(norm) = value("grad_norm").filter(|norm| norm.is_finite() && *norm > 0.0) {
            let mut norms: Vec<f64> = self.grad_norms.iter().map(|n| n.0).collect();
            norms.sort_by(f64::total_cmp);
            let median = norms.get(norms.len() / 2).copied().filter(|_| norms.len() * 2 >= REMEMBERED);
            if let Some(median) = median.filter(|median| norm > conditions::GRAD_NORM.threshold * median) {
                let evidence =
                    format!("the gradient's norm is {norm:.3}; the median of the previous steps is {median:.3}");
                seen.push(Detection::new(&conditions::GRAD_NORM, evidence));
            }
            remember(&mut self.grad_norms, Bits64(norm));
        }
    }

    /// Checks whether SFT or DPO has diverged. Runs that sample completions are skipped.
    fn look_at_supervised(&mut self, values: &BTreeMap<String, f64>, seen: &mut Vec<Detection>) {
        let value = |name: &str| values.get(name).copied();
        if self.lowest.is_some() || value("objective/kl").is_some() || value("reward").is_some() {
            return;
        }
        if let Some(loss) = value("loss").filter(|loss| loss.is_finite()) {
            let known = self.losses.len() >= COMPARED;
            if !known {
                self.losses.push(Bits64(loss));
            }
            let first = mean(self.losses.iter().map(|loss| loss.0)).filter(|first| known && *first > 0.0);
            if value("grad_norm") == Some(0.0) && loss > LEARNED {
                let evidence = format!("the gradient is exactly 0 (loss {loss:.4}): the model no longer learns");
                seen.push(Detection::new(&conditions::DIVERGED, evidence));
            } else if let Some(first) = first.filter(|first| loss > conditions::DIVERGED.threshold * first) {
                let evidence = format!("the loss is {loss:.4}; it began at {first:.4}");
                seen.push(Detection::new(&conditions::DIVERGED, evidence));
            }
        }
        if let Some(margin) = value("rewards/margins").filter(|margin| margin.abs() >= conditions::MARGIN.threshold) {
            let evidence = format!(
                "the margin between chosen and rejected answers is {margin:.0}; a margin of a few makes the loss 0"
            );
            seen.push(Detection::new(&conditions::MARGIN, evidence));
        }
    }
}
