//! The configuration keys that can lower a run's memory, with the values to try.

use crate::config::{ComputeDType, Config};
use crate::run::memory_plan::Longest;
use kernels::context::threads_from_env;
use rollout::Speculative;
use train::MomentsDType;

/// A key that may lower the memory of a run.
pub struct Lever {
    /// The key.
    pub key: &'static str,
    /// The values to try, from the smallest change to the largest; empty if the key cannot be lowered.
    values: fn(&Config, Longest) -> Vec<usize>,
    /// Sets the key to a value.
    pub set: fn(&mut Config, usize),
    /// A value as written in the configuration; `None` for a plain number.
    written: Option<&'static str>,
}

impl Lever {
    pub fn values(&self, config: &Config, longest: Longest) -> Vec<usize> {
        (self.values)(config, longest)
    }

    /// The change as `key = value`, with the key's current number.
    pub fn text(&self, now: &Config, value: usize) -> String {
        match self.written {
            Some(text) => format!("{} = {text}", self.key),
            None => {
                // The first value to try is half of the current value.
                let before = self.now(now).map_or(String::new(), |n| format!(" (now {n})"));
                format!("{} = {value}{before}", self.key)
            }
        }
    }

    fn now(&self, config: &Config) -> Option<usize> {
        match self.key {
            "max_tokens_per_micro_batch" => Some(config.max_tokens_per_micro_batch),
            "max_num_seqs" => Some(config.max_num_seqs),
            "kv_cache_blocks" => config.kv_cache_blocks,
            "threads" => config.threads,
            "num_generations" => Some(config.num_generations),
            "max_completion_length" => Some(config.max_completion_length),
            "max_prompt_length" => config.max_prompt_length,
            "max_length" => config.max_length,
            "max_staleness" => Some(config.max_staleness),
            "lora_r" => Some(config.lora_r),
            "per_device_train_batch_size" => Some(config.per_device_train_batch_size),
            _ => None,
        }
    }
}

/// The halves of `n`, from the largest down to `least`.
fn halves(n: usize, least: usize) -> Vec<usize> {
    let halves = std::iter::successors(Some(n / 2), |n| Some(n / 2)).take_while(|&half| half > least);
    halves.chain((n > least).then_some(least)).collect()
}

fn switch(is_on: bool) -> Vec<usize> {
    if is_on { Vec::new() } else { vec![1] }
}

const fn flag(
    key: &'static str,
    written: &'static str,
    values: fn(&Config, Longest) -> Vec<usize>,
    set: fn(&mut Config, usize),
) -> Lever {
    Lever { key, values, set, written: Some(written) }
}

const fn number(key: &'static str, values: fn(&Config, Longest) -> Vec<usize>, set: fn(&mut Config, usize)) -> Lever {
    Lever { key, values, set, written: None }
}

/// All keys, in this order: keys that do not change bits, keys that round, keys that change the training method, keys
/// that change the task.
pub const LEVERS: &[Lever] = &[
    flag(
        "gradient_checkpointing",
        "true",
        |c, _| switch(c.gradient_checkpointing),
        |c, _| c.gradient_checkpointing = true,
    ),
    number(
        "max_tokens_per_micro_batch",
        |c, _| halves(c.max_tokens_per_micro_batch, 1),
        |c, n| c.max_tokens_per_micro_batch = n,
    ),
    number("max_num_seqs", |c, _| halves(c.max_num_seqs.min(c.generation_batch()), 1), |c, n| c.max_num_seqs = n),
    number(
        "kv_cache_blocks",
        |c, _| c.kv_cache_blocks.map_or(Vec::new(), |n| halves(n, 1)),
        |c, n| c.kv_cache_blocks = Some(n),
    ),
    flag(
        "speculative",
        "\"off\"",
        |c, _| switch(c.speculative == Speculative::Off),
        |c, _| c.speculative = Speculative::Off,
    ),
    flag("prefix_sharing", "true", |c, _| switch(c.prefix_sharing), |c, _| c.prefix_sharing = true),
    number(
        "threads",
        |c, _| c.threads.or_else(|| threads_from_env().ok()).map_or(Vec::new(), |n| halves(n, 1)),
        |c, n| c.threads = Some(n),
    ),
    flag("record_updates", "false", |c, _| switch(!c.record_updates), |c, _| c.record_updates = false),
    flag(
        "adam_moments_dtype",
        "\"bf16\"",
        |c, _| switch(c.adam_moments_dtype == MomentsDType::Bf16),
        |c, _| c.adam_moments_dtype = MomentsDType::Bf16,
    ),
    flag("dtype", "\"bf16\"", |c, _| switch(c.dtype == ComputeDType::Bf16), |c, _| c.dtype = ComputeDType::Bf16),
    flag("use_peft", "true", |c, _| switch(c.use_peft), |c, _| c.use_peft = true),
    number("lora_r", |c, _| if c.use_peft { halves(c.lora_r, 1) } else { Vec::new() }, |c, n| c.lora_r = n),
    number("max_staleness", |c, _| halves(c.max_staleness, 0), |c, n| c.max_staleness = n),
    // In bf16, every optimizer keeps master weights; Muon has one moment for each matrix in a layer.
    flag(
        "optim",
        "\"muon\"",
        |c, _| switch(c.optim.is_some() || c.optim_args.is_some()),
        |c, _| c.optim = "muon".parse().ok(),
    ),
    flag("beta", "0", |c, _| switch(c.beta == 0.0), |c, _| c.beta = 0.0),
    flag("kl_coef", "0", |c, _| switch(c.kl_coef == 0.0), |c, _| c.kl_coef = 0.0),
    flag("eval_loss", "false", |c, _| switch(!c.eval_loss), |c, _| c.eval_loss = false),
    number(
        "per_device_train_batch_size",
        |c, _| halves(c.per_device_train_batch_size, 1),
        |c, n| c.per_device_train_batch_size = n,
    ),
    number("num_generations", |c, _| divisors(c.num_generations), |c, n| c.num_generations = n),
    // Below this length, hardly any task is left, and longer rows would be skipped.
    number(
        "max_completion_length",
        |c, _| halves(c.max_completion_length, c.max_completion_length.div_ceil(8).max(16)),
        |c, n| c.max_completion_length = n,
    ),
    number(
        "max_prompt_length",
        |c, longest| {
            let n = c.max_prompt_length.map_or(longest.prompt, |n| n.min(longest.prompt));
            halves(n, n.div_ceil(2).max(16))
        },
        |c, n| c.max_prompt_length = Some(n),
    ),
    number(
        "max_length",
        |c, longest| {
            let n = c.max_length.map_or(longest.positions(), |n| n.min(longest.positions()));
            halves(n, n.div_ceil(2).max(16))
        },
        |c, n| c.max_length = Some(n),
    ),
];

/// The divisors of a group's size from 2 on, without the size itself, the largest first.
fn divisors(n: usize) -> Vec<usize> {
    (2..n).rev().filter(|divisor| n.is_multiple_of(*divisor)).collect()
}
