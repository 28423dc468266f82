//! How completions are grouped: prompts of a generation, optimizer steps of a generation, steps of the run. Names and
//! counting are TRL's.

macro_rules! batches_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Batches" {
    /// Completions of each prompt (the group, G). At least 2 where they are compared with each other.
    num_generations: usize = 8, RLOO = 2, RPP = 1, PPO = 1 => TRL.range(at_least(1.0).at_most(MANY)).read_by(ONLINE);
    /// Completions of one micro-batch in TRL's sense: times gradient_accumulation_steps is what one optimizer step
    /// sees. How many are computed at once is max_tokens_per_micro_batch.
    per_device_train_batch_size: usize = 8 => TRL.range(at_least(1.0).at_most(MANY));
    /// One optimizer step sees per_device_train_batch_size × this many completions.
    gradient_accumulation_steps: usize = 1 => TRL.range(at_least(1.0).at_most(MANY));
    /// Completions made at once; not set: per_device_train_batch_size × steps_per_generation. Divisible by
    /// num_generations.
    generation_batch_size: Option<usize> = None
        => TRL.range(at_least(1.0).at_most(MANY)).read_by(ONLINE.but(PPO)).instead(&[(PPO, "num_mini_batches")]);
    /// Micro-batches (of per_device_train_batch_size) that one generation serves; not set: gradient_accumulation_steps.
    steps_per_generation: Option<usize> = None
        => TRL.range(at_least(1.0).at_most(MANY)).read_by(ONLINE.but(PPO)).instead(&[(PPO, "num_mini_batches")]);
    /// Times that each generation is trained on (μ).
    num_iterations: usize = 1
        => TRL.range(at_least(1.0).at_most(MANY)).read_by(ONLINE.but(PPO)).instead(&[(PPO, "num_ppo_epochs")]);
    /// Optimizer steps of the run; -1: as num_train_epochs says.
    max_steps: i64 = -1 => TRL.on_resume(Warn);
    /// Passes over the dataset, where max_steps is not set.
    num_train_epochs: f64 = 3.0 => TRL.range(above(0.0)).on_resume(Warn);
} } } }
pub(in crate::config) use batches_keys;
