//! Batch sizes: prompts per generation batch, optimizer steps per generation batch, and steps of the whole run. Names
//! and counting are TRL's.

use crate::bad_input;
use crate::config::Config;

impl Config {
    /// The number of completions in a generation batch, all generated before the next updates.
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

    /// The number of prompts in a generation batch.
    pub(crate) fn prompts_per_generation(&self) -> usize {
        self.generation_batch() / self.num_generations
    }

    /// The number of completions in an optimizer step.
    pub(crate) fn completions_per_step(&self) -> usize {
        self.per_device_train_batch_size * self.gradient_accumulation_steps
    }

    /// How many times the updates pass over a generation batch (TRL's `num_iterations`, PPO's `num_ppo_epochs`).
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

/// Checks that groups, generation batches and optimizer steps divide each other, as TRL counts them.
pub(super) fn check(c: &Config) -> anyhow::Result<()> {
    let (g, per_device, accumulation) =
        (c.num_generations, c.per_device_train_batch_size, c.gradient_accumulation_steps);
    let least = c.policy_gradient().least_generations(c);
    if g < least {
        let why = "advantages compare a completion's reward with the rest of its group";
        bad_input!(
            "`num_generations` must be at least {least}, but is {g}{}",
            if least == 1 { String::new() } else { format!(": {why}") }
        );
    }
    if c.dynamic_sampling && g < 2 {
        bad_input!(
            "`dynamic_sampling` needs num_generations of at least 2: a group of one completion has only one reward"
        );
    }
    if c.generation_batch_size.is_some() && c.steps_per_generation.is_some() {
        bad_input!(
            "generation_batch_size and steps_per_generation both set the size of a generation batch: remove one of them"
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
        // Groups are complete if per_device_train_batch_size is a multiple of `unit`.
        let unit = g / gcd(g, steps);
        bad_input!(
            "the generation batch ({formula} completions) must be a multiple of num_generations = {g}, so that groups \
             are complete: set per_device_train_batch_size to {}, or num_generations to {}",
            multiples(per_device, unit),
            divisors(size)
        );
    }
    if !c.steps_per_generation().is_multiple_of(accumulation) {
        let steps = c.steps_per_generation();
        bad_input!(
            "one generation batch has {steps} micro-batches, which must be a multiple of gradient_accumulation_steps = \
             {accumulation}: set steps_per_generation to {}",
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Algorithm;

    /// Each size is a different prime, or 6 = 2 · 3, so that the factors of a result show which sizes are in it.
    #[test]
    fn batch_sizes_and_steps_match_trl() {
        let config = Config {
            per_device_train_batch_size: 5,
            gradient_accumulation_steps: 3,
            steps_per_generation: Some(6),
            num_iterations: 7,
            num_generations: 2,
            num_train_epochs: 1.5,
            max_steps: -1,
            ..Config::default()
        };
        assert_eq!((config.generation_batch(), config.steps_per_generation()), (30, 6));
        assert_eq!((config.prompts_per_generation(), config.completions_per_step()), (15, 15));
        assert_eq!((config.steps_per_pass(), config.passes()), (2, 7));
        // 11 · 2 · 7 = 154 steps per epoch; half an epoch is rounded up.
        assert_eq!((config.total_steps(11), config.total_steps(1)), (231, 21));
        assert_eq!(Config { num_train_epochs: 0.51, ..config.clone() }.total_steps(1), 8);
        assert_eq!(Config { max_steps: 1, ..config.clone() }.total_steps(11), 1);
        assert_eq!(Config { max_steps: 0, ..config.clone() }.total_steps(11), 231);
        let by_size = Config { steps_per_generation: None, generation_batch_size: Some(45), ..config.clone() };
        assert_eq!((by_size.generation_batch(), by_size.steps_per_generation(), by_size.steps_per_pass()), (45, 9, 3));
        let plain = Config { steps_per_generation: None, num_mini_batches: 4, num_ppo_epochs: 11, ..config };
        assert_eq!((plain.generation_batch(), plain.steps_per_generation(), plain.passes()), (15, 3, 7));
        let ppo = Config { algorithm: Algorithm::Ppo, ..plain };
        assert_eq!(
            (ppo.generation_batch(), ppo.steps_per_generation(), ppo.steps_per_pass(), ppo.passes()),
            (60, 12, 4, 11)
        );
    }

    #[test]
    fn batch_sizes_that_do_not_divide_each_other_are_refused() {
        let config = |change: fn(&mut Config)| {
            let mut config = Config { num_generations: 4, per_device_train_batch_size: 4, ..Config::default() };
            change(&mut config);
            check(&config).err().map(|error| error.to_string())
        };
        let refused = |change: fn(&mut Config), words: &str| assert_eq!(config(change).as_deref(), Some(words));
        assert_eq!(config(|_| {}), None);
        let others = "`num_generations` must be at least 2, but is 1: advantages compare a completion's reward with \
                      the rest of its group";
        refused(|c| c.num_generations = 1, others);
        refused(
            |c| (c.algorithm, c.num_generations) = (Algorithm::Ppo, 0),
            "`num_generations` must be at least 1, but is 0",
        );
        assert_eq!(config(|c| (c.algorithm, c.num_generations) = (Algorithm::Ppo, 1)), None);
        assert_eq!(config(|c| (c.num_generations, c.dynamic_sampling) = (2, true)), None);
        refused(
            |c| (c.algorithm, c.num_generations, c.dynamic_sampling) = (Algorithm::ReinforcePlusPlus, 1, true),
            "`dynamic_sampling` needs num_generations of at least 2: a group of one completion has only one reward",
        );
        refused(
            |c| (c.generation_batch_size, c.steps_per_generation) = (Some(8), Some(2)),
            "generation_batch_size and steps_per_generation both set the size of a generation batch: remove one of \
             them",
        );
        assert_eq!(config(|c| c.generation_batch_size = Some(8)), None);
        refused(
            |c| c.generation_batch_size = Some(10),
            "`generation_batch_size` = 10 must be a multiple of per_device_train_batch_size = 4: 8 or 12",
        );
        refused(
            |c| (c.num_generations, c.gradient_accumulation_steps) = (6, 2),
            "the generation batch (per_device_train_batch_size × steps_per_generation = 4 × 2 = 8 completions) must be \
             a multiple of num_generations = 6, so that groups are complete: set per_device_train_batch_size to 3 or \
             6, or num_generations to 2, 4, 8",
        );
        assert_eq!(config(|c| (c.num_generations, c.gradient_accumulation_steps) = (6, 3)), None);
        refused(
            |c| (c.steps_per_generation, c.gradient_accumulation_steps) = (Some(5), 3),
            "one generation batch has 5 micro-batches, which must be a multiple of gradient_accumulation_steps = 3: \
             set steps_per_generation to 3 or 6",
        );
    }
}
