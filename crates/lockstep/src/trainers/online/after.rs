//! Records the effect of an optimizer step on the tokens of a group: their log-probabilities under the new weights. The
//! number of recorded groups is limited, so that this and the recording of rollouts take at most about a hundredth of
//! the run's CPU time.
//!
//! The choice of groups depends on timing. The groups are therefore written to a separate file, `updates.bin`, which is
//! left out of comparisons of runs, and training does not depend on them.

use super::RolloutPipeline;
use crate::rollouts::function::lock;
use crate::rollouts::wire::{Completion, Group};
use crate::run::training::TrainingRun;
use model::columns::NEW_LOGPS;
use telemetry::system::cpu_s;
use train::Sample;

/// The share of the run's CPU seconds that all recording may take.
const MAX_SHARE: f64 = 0.01;

/// The share that scoring may take if the recording of rollouts leaves less, as with tiny models.
const MIN_SHARE: f64 = 0.0015;

/// Chooses the groups to record, and measures the time to score them.
pub struct AfterStep {
    began_s: f64,
    /// CPU seconds spent recording rollouts so far.
    recorded_s: f64,
    /// CPU seconds spent scoring groups so far.
    scored_s: f64,
    /// CPU seconds of the process at the last trained generation.
    last_s: f64,
    /// CPU seconds to score one token; `None` before any token was scored.
    per_token_s: Option<f64>,
    /// The number of scored groups.
    count: usize,
    /// The group to score after the current step.
    chosen: Vec<Sample>,
}

impl AfterStep {
    /// Starts counting CPU time now.
    pub fn new() -> AfterStep {
        let now = cpu_s();
        AfterStep {
            began_s: now,
            recorded_s: 0.0,
            scored_s: 0.0,
            last_s: now,
            per_token_s: None,
            count: 0,
            chosen: Vec::new(),
        }
    }

    /// Chooses a group of `part`, if the time limit allows. `part` has the samples of the first step on a generation,
    /// and `now` is the CPU time of the process in seconds. Groups with a gradient are chosen round-robin.
    pub fn choose(&mut self, part: &[Sample], now: f64) {
        let step_s = now - std::mem::replace(&mut self.last_s, now);
        let groups: Vec<&[Sample]> = part.chunk_by(|a, b| a.group == b.group).filter(|group| teaches(group)).collect();
        if groups.is_empty() {
            return;
        }
        let group = groups[self.count % groups.len()];
        // A step generates, computes a gradient and updates, which takes at least as long as four forward passes;
        // scoring takes one.
        let per_token_s = self.per_token_s.unwrap_or(step_s / 4.0 / tokens(part).max(1) as f64);
        let estimate = per_token_s * tokens(group) as f64;
        let run_s = now - self.began_s;
        if self.scored_s + estimate <= (MAX_SHARE * run_s - self.recorded_s).max(MIN_SHARE * run_s) {
            self.chosen = group.to_vec();
        }
    }

    /// Counts the time of recording a generation.
    pub fn recorded(&mut self, seconds: f64) {
        self.recorded_s += seconds;
    }

    fn scored(&mut self, seconds: f64, tokens: usize) {
        self.scored_s += seconds;
        self.per_token_s = Some(seconds / tokens.max(1) as f64);
        self.count += 1;
    }
}

fn tokens(samples: &[Sample]) -> usize {
    let prompt = samples.first().map_or(0, |sample| sample.prompt.ids.len());
    prompt + samples.iter().map(|sample| sample.completion.len()).sum::<usize>()
}

fn teaches(group: &[Sample]) -> bool {
    group.iter().any(|sample| !sample.advantage.is_zero())
}

impl RolloutPipeline {
    /// Scores the chosen group with the weights after the step, and records it.
    pub(super) fn record_after_step(&mut self, run: &mut TrainingRun) -> anyhow::Result<()> {
        let (Some(after), Some(scorer)) = (&mut self.after, &self.scorer) else { return Ok(()) };
        let samples = std::mem::take(&mut after.chosen);
        let Some(first) = samples.first() else { return Ok(()) };
        let (before, span) = (cpu_s(), run.log.stages.span("record"));
        let sequences: Vec<_> = samples.iter().map(Sample::sequence).collect();
        let (ctx, weights) = (&run.learner.ctx, &run.learner.policy.weights);
        let temperature = self.sampling.common().temperature;
        let scores = match lock(scorer).score(ctx, weights, &sequences, temperature) {
            // The step is already taken, and a stop request does not undo it.
            Err(_) if run.stop.is_requested() => return Ok(()),
            scores => scores?,
        };
        let completion = |(place, (sample, scores)): (usize, (&Sample, model::net::Scores))| {
            let mut completion = Completion::new(place, sample.completion.clone());
            completion.loss_mask.clone_from(&sample.loss_mask);
            completion.columns.set(NEW_LOGPS, scores.logps);
            completion
        };
        let group = Group {
            group: first.group,
            step: Some(run.learner.step),
            prompt_ids: first.prompt.ids.clone(),
            completions: samples.iter().zip(scores).enumerate().map(completion).collect(),
            ..Group::default()
        };
        run.log.reporter.record_update(group)?;
        span.end();
        after.scored(cpu_s() - before, tokens(&samples));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{GroupId, Prompt};
    use train::Advantage;

    fn sample(group: u64, length: usize, advantage: f32) -> Sample {
        let advantage = Advantage::Sequence(advantage);
        Sample { group: GroupId(group), advantage, ..Sample::supervised(Prompt::new([1]), vec![2; length]) }
    }

    #[test]
    fn recording_takes_at_most_a_hundredth_of_the_time_and_groups_take_turns() {
        let mut after = AfterStep { began_s: 0.0, last_s: 0.0, ..AfterStep::new() };
        let part: Vec<Sample> = [(1, 0.5), (1, -0.5), (2, 0.0), (2, 0.0), (3, 1.0), (3, -1.0)]
            .map(|(group, advantage)| sample(group, 10, advantage))
            .into();
        let (mut scored, mut spent) = (Vec::new(), 0.0);
        for step in 1..=400 {
            let now = f64::from(step);
            // Recording the generation takes 0.5 % of the time.
            after.recorded(0.005);
            spent += 0.005;
            after.choose(&part, now);
            let chosen = std::mem::take(&mut after.chosen);
            if let Some(first) = chosen.first() {
                assert_eq!(chosen.len(), 2);
                scored.push((step, first.group));
                // Scoring takes a twentieth of a step.
                after.scored(0.05, tokens(&chosen));
                spent += 0.05;
            }
            assert!(spent <= MAX_SHARE * now, "{spent} of {now}");
        }
        // The first group is scored when 0.5 % of the run's time covers the cost, and then one group every tenth step.
        assert!((16..=18).contains(&scored[0].0), "{scored:?}");
        assert!((35..=40).contains(&scored.len()), "{}", scored.len());
        assert!(
            scored.iter().take(4).map(|one| one.1.0).eq([1, 3, 1, 3]),
            "the group without a gradient is never chosen"
        );
        after.choose(&part[2..4], 1000.0);
        assert!(after.chosen.is_empty());
    }
}
