//! Configuration keys of batch sizes and training length: completions per group and per generation batch, optimizer
//! steps per generation batch, steps of the run. Names and counting are TRL's.

macro_rules! batches_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Batches" {
    /// Completions per prompt (the group size, G); at least 2 if the algorithm compares them.
    num_generations: usize = 8, RLOO = 2, RPP = 1, PPO = 1
        => TRL.range(at_least(1.0).at_most(MAX_COUNT)).read_by(ONLINE);
    /// Completions per micro-batch, as TRL counts: an optimizer step uses this × gradient_accumulation_steps
    /// completions. max_tokens_per_micro_batch decides how many are computed at once.
    per_device_train_batch_size: usize = 8 => TRL.range(at_least(1.0).at_most(MAX_COUNT));
    /// Micro-batches per optimizer step, which uses per_device_train_batch_size × this many completions.
    gradient_accumulation_steps: usize = 1 => TRL.range(at_least(1.0).at_most(MAX_COUNT));
    /// Drop the incomplete last batch of an epoch. If false, SFT, DPO and reward models train on it, which is the
    /// default in TRL and in Python. Generation batches are always complete.
    dataloader_drop_last: bool = true => TRL.trl_defaults(&[(ALL, "false")]);
    /// Completions per generation batch; not set: per_device_train_batch_size × steps_per_generation. It must be a
    /// multiple of num_generations.
    generation_batch_size: Option<usize> = None
        => TRL.range(at_least(1.0).at_most(MAX_COUNT)).read_by(ONLINE.but(PPO)).instead(&[(PPO, "num_mini_batches")]);
    /// Micro-batches (of per_device_train_batch_size completions) per generation batch; not set:
    /// gradient_accumulation_steps.
    steps_per_generation: Option<usize> = None
        => TRL.range(at_least(1.0).at_most(MAX_COUNT)).read_by(ONLINE.but(PPO)).instead(&[(PPO, "num_mini_batches")]);
    /// Passes over each generation batch (μ).
    num_iterations: usize = 1
        => TRL.range(at_least(1.0).at_most(MAX_COUNT)).read_by(ONLINE.but(PPO)).instead(&[(PPO, "num_ppo_epochs")]);
    /// The staleness of the sampling weights, in generation batches: batch b is sampled with the weights from the start
    /// of batch b − max_staleness. 0: on-policy.
    max_staleness: usize = 0
        => OURS.trl_has("AsyncGRPOConfig.max_staleness, in weight updates (default 4); older samples are discarded")
            .range(at_least(0.0).at_most(64.0)).read_by(ONLINE);
    /// With max_staleness: a completion changes to newer weights each time it has grown by this many tokens. Token t of
    /// batch b is sampled with the weights from the start of batch clamp(b − max_staleness + ⌊t /
    /// partial_rollout_tokens⌋, 0, b). Not set: one version samples the whole completion.
    partial_rollout_tokens: Option<usize> = None
        => OURS.range(at_least(1.0).at_most(LONG)).read_by(ONLINE);
    /// Distributed runs: the most unfinished jobs, pending or in progress, per worker.
    max_inflight_tasks: usize = 1024
        => OURS.trl_has("AsyncGRPOConfig.max_inflight_tasks, for all workers").range(at_least(1.0).at_most(MAX_COUNT))
            .read_by(ONLINE).on_resume(Free);
    /// Distributed runs: the most results that wait for batches after the next one, per worker.
    queue_maxsize: usize = 1024
        => OURS.trl_has("AsyncGRPOConfig.queue_maxsize, for all workers").range(at_least(0.0).at_most(MAX_COUNT))
            .read_by(ONLINE).on_resume(Free);
    /// Distributed runs: a worker without progress for this many seconds is killed, and its job is repeated.
    heartbeat_stale_after_s: f64 = 60.0
        => OURS.trl_has("AsyncGRPOConfig.heartbeat_stale_after_s: 120").range(at_least(0.1)).read_by(ONLINE)
            .on_resume(Free);
    /// Distributed runs: the workers that `lockstep train --distributed` starts, instead of --workers: entries with
    /// `count` (default 1), `threads` (default: the run's) and `profiles`, the sampling_profiles whose groups they
    /// generate (default: all). No bit depends on it.
    workers: Vec<Map<String, Json>> = Vec::new() => OURS.read_by(ONLINE).on_resume(Free);
    /// Distributed runs: if this many workers in a row fail on the same job, the run ends.
    max_failures_per_job: usize = 3 => OURS.range(at_least(1.0).at_most(MAX_COUNT)).read_by(ONLINE).on_resume(Free);
    /// Distributed runs: like max_failures_per_job, for workers that vanish (kill -9, out of memory) while this is
    /// their only job. The limit is higher, since the job may not be the cause.
    max_kills_per_job: usize = 30 => OURS.range(at_least(1.0).at_most(MAX_COUNT)).read_by(ONLINE).on_resume(Free);
    /// Distributed runs: among groups sampled with older weights, the share whose log-probabilities the learner
    /// recomputes before it overwrites these weights. async/logp_mismatch_tokens counts the tokens that differ, and
    /// should be 0.
    audit_stale: f64 = 0.0 => OURS.range(at_least(0.0).at_most(1.0)).read_by(ONLINE).on_resume(Free);
    /// Distributed runs: whether the learner trusts all workers ("workers"), or regenerates a share of each worker's
    /// groups and expels workers whose results differ in any bit ("audit").
    trust: Trust = Trust::Workers => OURS.read_by(ONLINE).on_resume(Free);
    /// With trust = "audit": the share of each batch's groups that the learner regenerates. The groups are drawn after
    /// the workers have sent their results.
    audit_share: f64 = 0.05
        => OURS.range(above(0.0).at_most(1.0)).read_by(ONLINE).needs("trust", "audit").on_resume(Free);
    /// Optimizer steps of the run; -1: num_train_epochs decides.
    max_steps: i64 = -1 => TRL.on_resume(Warn);
    /// Passes over the dataset, if max_steps is not set.
    num_train_epochs: f64 = 3.0 => TRL.range(above(0.0)).on_resume(Warn);
} } } }
pub(in crate::config) use batches_keys;
