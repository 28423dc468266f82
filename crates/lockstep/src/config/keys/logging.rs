//! Configuration keys of logging and printing.

use std::ops::RangeInclusive;
use telemetry::Step;

macro_rules! logging_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Logging" {
    /// Optimizer steps between two lines of metrics, which average over these steps.
    logging_steps: u64 = 10 => TRL.range(at_least(1.0)).on_resume(Free);
    /// Log the first step too.
    logging_first_step: bool = false => TRL.on_resume(Free);
    /// Write sample completions to the run's directory and print some.
    log_completions: bool = false => TRL.read_by(ONLINE).on_resume(Free);
    /// Optimizer steps between printed completions; not set: logging_steps.
    log_completions_steps: Option<u64> = None
        => OURS.range(at_least(1.0)).read_by(ONLINE).needs("log_completions", "true").on_resume(Free);
    /// How many completions to print; not set: all of that step.
    num_completions_to_print: Option<usize> = None
        => TRL.read_by(ONLINE).needs("log_completions", "true").on_resume(Free);
    /// Write every group that is trained on to rollouts.bin in the run's directory, for `lockstep train --replay` and
    /// `lockstep rollouts`.
    record_rollouts: bool = false => OURS.read_by(ONLINE).on_resume(Free);
    /// The largest size of rollouts.bin in bytes. Recording ends before the group that would exceed it, and the run
    /// logs this. Not set: limited only by the disk.
    max_rollouts_bytes: Option<usize> = None
        => OURS.range(at_least(1.0)).read_by(ONLINE).needs("record_rollouts", "true").on_resume(Free);
    /// Also record the entropy of the distribution from which each token was drawn. This takes a second pass of the
    /// sampled rows through the lm head; no bit of the run depends on it.
    record_entropies: bool = false
        => OURS.read_by(ONLINE).needs("record_rollouts", "true").on_resume(Free);
    /// Also record in updates.bin, after each optimizer step, the new log-probabilities of the tokens that the step
    /// learned from. Only a sample of the groups is recorded, so that this takes about a hundredth of the run's
    /// processor time.
    record_updates: bool = true
        => OURS.read_by(ONLINE).needs("record_rollouts", "true").on_resume(Free);
    /// The optimizer steps whose spans go to trace.json, as "3-5" or "3-5,100"; not set: all, until the file has 32
    /// MiB.
    trace_steps: Option<String> = None => OURS.on_resume(Free);
    /// Write TensorBoard files too.
    tensorboard: bool = true => OURS.trl_has("report_to").on_resume(Free);
    /// Receivers of each logged line of metrics and each alarm, as JSON: "command:PROGRAM ARGUMENTS" reads lines on its
    /// standard input, "http://HOST/PATH" and "https://HOST/PATH" get POST requests (docs/runs.md). No receiver stops
    /// or delays the run. TRL's values are accepted, and nothing is sent to these services.
    report_to: Vec<String> = Vec::new() => TRL.trl_defaults(&[(ALL, "\"none\"")]).on_resume(Free);
} } } }
pub(in crate::config) use logging_keys;

impl crate::config::Config {
    /// The optimizer steps that `trace_steps` lists, as ranges; empty if all steps are traced.
    pub(crate) fn traced_steps(&self) -> anyhow::Result<Vec<RangeInclusive<Step>>> {
        let range = |part: &str| -> Option<RangeInclusive<Step>> {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            (1..=last).contains(&first).then_some(Step(first)..=Step(last))
        };
        let Some(text) = &self.trace_steps else { return Ok(Vec::new()) };
        let ranges = text.split(',').map(range).collect::<Option<_>>();
        ranges.ok_or_else(|| {
            let what =
                format!("`trace_steps` = \"{text}\" names no optimizer steps: write \"3-5\", \"7\" or \"3-5,100\"");
            crate::error::BadInput::new(what)
        })
    }

    /// Whether the run records how each optimizer step changed the log-probabilities of its tokens.
    pub(crate) fn records_updates(&self) -> bool {
        self.record_rollouts && self.record_updates
    }
}
