//! Batch sizes: prompts per generation batch, optimizer steps per generation batch, and steps of the whole run. Names
//! and counting are TRL's.

use crate::bad_input;
use crate::config::Config;

impl Config {
    /// Completions of one generation batch, which is what is generated before the next updates.
    pub(crate) fn generation_batch(&self) -> usize {
        self.generation_batch_size.unwrap_or_else(|| self.per_device_train_batch_size * self.steps_per_generation())
    }

    /// Micro-batches, in TRL's sense, into which one generation batch is split.
    pub(crate) fn steps_per_generation(&self) -> usize {
        match (self.steps_per_generation, self.generation_batch_size) {
            (Some(steps), _) => steps,
            (None, Some(size)) => size / self.per_device_train_batch_size.max(1),
            (None, None) => self.gradient_accumulation_steps * self.policy_gradient().mini_batches(self),
        }
    }

    /// Prompts of one generation batch.
    pub(crate) fn prompts_per_generation(&self) -> usize {
        self.generation_batch() / self.num_generations
    }

    /// Completions that one optimizer step learns from.
    pub(crate) fn completions_per_step(&self) -> usize {
        self.per_device_train_batch_size * self.gradient_accumulation_steps
    }

    /// How often the updates pass over one generation batch (TRL's `num_iterations`, PPO's `num_ppo_epochs`).
    pub(crate) fn passes(&self) -> usize {
        self.policy_gradient().passes(self)
    }

    /// Optimizer steps of one pass over a generation batch; [`passes`](Self::passes) is the number of passes.
    pub(crate) fn steps_per_pass(&self) -> usize {
        self.steps_per_generation() / self.gradient_accumulation_steps
    }

    /// Optimizer steps of the whole run, where an epoch has `chunks` generation batches.
    pub(crate) fn total_steps(&self, chunks: usize) -> u64 {
        if self.max_steps > 0 {
            return self.max_steps as u64;
        }
        let per_epoch = (chunks * self.steps_per_pass() * self.passes()) as f64;
        (self.num_train_epochs * per_epoch).ceil() as u64
    }
}

/// Checks that groups, generation batches and optimizer steps divide each other, in TRL's way of counting.
pub(super) fn check(c: &Config) -> anyhow::Result<()> {
    let (g, per_device, accumulation) =
        (c.num_generations, c.per_device_train_batch_size, c.gradient_accumulation_steps);
    let least = c.policy_gradient().least_generations(c);
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
        // Values of per_device_train_batch_size that divide into groups with these steps.
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

/// The multiples of `unit` just below and above `n`, as text for a message.
fn multiples(n: usize, unit: usize) -> String {
    let (low, high) = (n / unit * unit, n.div_ceil(unit) * unit);
    if low == 0 { high.to_string() } else { format!("{low} or {high}") }
}

/// The four largest divisors of `n` between 2 and 4096, as text for a message.
fn divisors(n: usize) -> String {
    let all: Vec<String> = (2..=n.min(4096)).filter(|d| n.is_multiple_of(*d)).map(|d| d.to_string()).collect();
    match all.as_slice() {
        [] => "nothing (the batch is too small)".to_owned(),
        [one] => one.clone(),
        [.., _] => all[all.len().saturating_sub(4)..].join(", "),
    }
}
