//! Configuration keys of what a run logs and prints.

macro_rules! logging_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Logging" {
    /// Optimizer steps between lines of metrics; means are taken over the steps between.
    logging_steps: u64 = 10 => TRL.range(at_least(1.0)).on_resume(Free);
    /// Log the first step too.
    logging_first_step: bool = false => TRL.on_resume(Free);
    /// Write sample completions to the run's directory and print some.
    log_completions: bool = false => TRL.read_by(ONLINE).on_resume(Free);
    /// Optimizer steps between printed completions; not set: logging_steps.
    log_completions_steps: Option<u64> = None
        => OURS.range(at_least(1.0)).read_by(ONLINE).needs("log_completions", "true").on_resume(Free);
    /// How many completions to print; not set: all of the step.
    num_completions_to_print: Option<usize> = None
        => TRL.read_by(ONLINE).needs("log_completions", "true").on_resume(Free);
    /// Write every group that is trained on to rollouts.bin in the run's directory, for `lockstep train --replay` and
    /// `lockstep rollouts`.
    record_rollouts: bool = false => OURS.read_by(ONLINE).on_resume(Free);
    /// Bytes that rollouts.bin may have; with the group that would be beyond them recording ends, which the run says.
    /// Not set: no limit but the disk's.
    max_rollouts_bytes: Option<usize> = None
        => OURS.range(at_least(1.0)).read_by(ONLINE).needs("record_rollouts", "true").on_resume(Free);
    /// Record the entropy of the distribution that each token was drawn from, too. It takes another pass of the sampled
    /// rows through the head; no bit of the run depends on it.
    record_entropies: bool = false
        => OURS.read_by(ONLINE).needs("record_rollouts", "true").on_resume(Free);
    /// Record what an optimizer step did to the tokens that it learned from, too: their log-probabilities after it, in
    /// updates.bin, of one group in as many as keep all recording near a hundredth of the run's processor time.
    record_updates: bool = true
        => OURS.read_by(ONLINE).needs("record_rollouts", "true").on_resume(Free);
    /// The optimizer steps whose spans go to trace.json, as "3-5" or "3-5,100"; not set: all, until it has 32 MiB.
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
    pub(crate) fn traced_steps(&self) -> anyhow::Result<Vec<std::ops::RangeInclusive<u64>>> {
        let range = |part: &str| -> Option<std::ops::RangeInclusive<u64>> {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            (1..=last).contains(&first).then_some(first..=last)
        };
        let Some(text) = &self.trace_steps else { return Ok(Vec::new()) };
        let ranges = text.split(',').map(range).collect::<Option<_>>();
        ranges.ok_or_else(|| {
            let what =
                format!("`trace_steps` = \"{text}\" names no optimizer steps: write \"3-5\", \"7\" or \"3-5,100\"");
            crate::error::BadInput::new(what)
        })
    }

    /// Whether the run records how each optimizer step changed its tokens' log-probabilities.
    pub(crate) fn records_updates(&self) -> bool {
        self.record_rollouts && self.record_updates
    }
}
