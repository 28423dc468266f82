//! What a run writes down and prints.

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
    /// Record the entropy of the distribution that each token was drawn from, too. It takes another pass of the sampled
    /// rows through the head; no bit of the run depends on it.
    record_entropies: bool = false
        => OURS.read_by(ONLINE).needs("record_rollouts", "true").on_resume(Free);
    /// Write TensorBoard files too.
    tensorboard: bool = true => OURS.trl_has("report_to").on_resume(Free);
} } } }
pub(in crate::config) use logging_keys;
