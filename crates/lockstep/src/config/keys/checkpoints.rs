//! Configuration keys of checkpoints, the best checkpoint, and early stopping.

macro_rules! checkpoints_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Checkpoints" {
    /// When to write checkpoints. Unless this is "no", one is also written at the end. A run that a signal stops always
    /// writes one.
    save_strategy: Strategy = Strategy::Steps => TRL.on_resume(Free);
    /// Optimizer steps between checkpoints.
    save_steps: u64 = 500 => TRL.range(at_least(1.0)).on_resume(Free);
    /// Keep this many checkpoints, the newest and the best; not set: all.
    save_total_limit: Option<usize> = None => TRL.range(at_least(1.0)).on_resume(Free);
    /// Make the best checkpoint's weights the run's result.
    load_best_model_at_end: bool = false => TRL.on_resume(Warn);
    /// The evaluation metric that selects the best checkpoint, with or without the prefix `eval_`.
    metric_for_best_model: Option<String> = None => TRL.on_resume(Warn);
    /// Whether a higher metric_for_best_model is better; not set: true, unless the metric's name ends in `loss`.
    greater_is_better: Option<bool> = None => TRL.on_resume(Warn);
    /// Stop the run after this many evaluations in a row without an improvement.
    early_stopping_patience: Option<usize> = None
        => OURS.trl_has("EarlyStoppingCallback").range(at_least(1.0)).on_resume(Warn);
    /// The smallest change of the metric that counts as an improvement.
    early_stopping_threshold: f64 = 0.0 => OURS.trl_has("EarlyStoppingCallback").on_resume(Warn);
} } } }
pub(in crate::config) use checkpoints_keys;
