//! How completions are grouped: prompts of a generation, optimizer steps of a generation, steps of the run. Names and
//! counting are TRL's.

use crate::bad_input;
use crate::config::{Algorithm, Config};

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

impl Config {
    /// Completions that one generation makes.
    pub(crate) fn generation_batch(&self) -> usize {
        self.generation_batch_size.unwrap_or_else(|| self.per_device_train_batch_size * self.steps_per_generation())
    }

    /// Micro-batches in TRL's sense that one generation serves.
    pub(crate) fn steps_per_generation(&self) -> usize {
        match (self.steps_per_generation, self.generation_batch_size) {
            (Some(steps), _) => steps,
            (None, Some(size)) => size / self.per_device_train_batch_size.max(1),
            (None, None) if self.algorithm == Algorithm::Ppo => {
                self.gradient_accumulation_steps * self.num_mini_batches
            }
            (None, None) => self.gradient_accumulation_steps,
        }
    }

    /// Prompts of one generation.
    pub(crate) fn prompts_per_generation(&self) -> usize {
        self.generation_batch() / self.num_generations
    }

    /// Completions that one optimizer step sees.
    pub(crate) fn completions_per_step(&self) -> usize {
        self.per_device_train_batch_size * self.gradient_accumulation_steps
    }

    /// Times that a generation is passed over.
    pub(crate) fn passes(&self) -> usize {
        if self.algorithm == Algorithm::Ppo { self.num_ppo_epochs } else { self.num_iterations }
    }

    /// Optimizer steps of one pass over a generation; a generation is passed over [`passes`](Self::passes) times.
    pub(crate) fn steps_per_pass(&self) -> usize {
        self.steps_per_generation() / self.gradient_accumulation_steps
    }

    /// Optimizer steps of the run, with `chunks` generations in an epoch.
    pub(crate) fn total_steps(&self, chunks: usize) -> u64 {
        if self.max_steps > 0 {
            return self.max_steps as u64;
        }
        let per_epoch = (chunks * self.steps_per_pass() * self.passes()) as f64;
        (self.num_train_epochs * per_epoch).ceil() as u64
    }
}

impl Algorithm {
    /// The fewest completions of a prompt that it can compare.
    pub(crate) fn least_generations(self) -> usize {
        match self {
            Algorithm::Ppo | Algorithm::ReinforcePlusPlus => 1,
            Algorithm::Grpo | Algorithm::Rloo | Algorithm::ReinforcePlusPlusBaseline => 2,
        }
    }
}

/// Groups, generations and optimizer steps fit into each other, in TRL's way of counting.
pub(in crate::config) fn check(c: &Config) -> anyhow::Result<()> {
    let (g, per_device, accumulation) =
        (c.num_generations, c.per_device_train_batch_size, c.gradient_accumulation_steps);
    let least = c.algorithm.least_generations();
    if g < least {
        let why = "a completion's advantage is its reward against the others of its group";
        bad_input!(
            "`num_generations` must be at least {least}, but is {g}{}",
            if least == 1 { String::new() } else { format!(": {why}") }
        );
    }
    if c.dynamic_sampling && g < 2 {
        bad_input!(
            "`dynamic_sampling` needs num_generations of at least 2: the rewards of a group of one are always equal"
        );
    }
    if c.generation_batch_size.is_some() && c.steps_per_generation.is_some() {
        bad_input!(
            "generation_batch_size and steps_per_generation both say how much is generated at once: remove one of them"
        );
    }
    if let Some(size) = c.generation_batch_size
        && !size.is_multiple_of(per_device)
    {
        bad_input!(
            "`generation_batch_size` = {size} must be a multiple of per_device_train_batch_size = {per_device}: {}",
            multiples(size, per_device)
        );
    }
    let size = c.generation_batch();
    if !size.is_multiple_of(g) {
        let steps = c.steps_per_generation();
        let formula = format!("per_device_train_batch_size × steps_per_generation = {per_device} × {steps} = {size}");
        // Batch sizes per micro-batch that work with these steps.
        let unit = g / gcd(g, steps);
        bad_input!(
            "the generation batch ({formula} completions) must be a multiple of num_generations = {g}, so that groups \
             are whole: set per_device_train_batch_size to {}, or num_generations to {}",
            multiples(per_device, unit),
            divisors(size)
        );
    }
    if !c.steps_per_generation().is_multiple_of(accumulation) {
        let steps = c.steps_per_generation();
        bad_input!(
            "one generation serves {steps} micro-batches, which are no whole number of optimizer steps of \
             {accumulation} (gradient_accumulation_steps): set steps_per_generation to {}",
            multiples(steps, accumulation)
        );
    }
    Ok(())
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The multiples of `unit` around `n`, in words.
fn multiples(n: usize, unit: usize) -> String {
    let (low, high) = (n / unit * unit, n.div_ceil(unit) * unit);
    if low == 0 { high.to_string() } else { format!("{low} or {high}") }
}

/// The divisors of `n` from 2 to 4096, the largest few, in words.
fn divisors(n: usize) -> String {
    let all: Vec<String> = (2..=n.min(4096)).filter(|d| n.is_multiple_of(*d)).map(|d| d.to_string()).collect();
    match all.as_slice() {
        [] => "nothing (the batch is too small)".to_owned(),
        [one] => one.clone(),
        [.., _] => all[all.len().saturating_sub(4)..].join(", "),
    }
}
