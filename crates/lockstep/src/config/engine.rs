//! Derives the settings of the engine and of the trainer from a configuration.

use super::keys::Config;
use super::values::EvalSampling;
use rollout::{EngineConfig, SamplingParams};
use train::{Objective, TrainerConfig};

/// Lengths and counts from the data that determine a run's memory together with its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadBounds {
    /// Tokens of the longest prompt.
    pub longest_prompt: usize,
    /// The largest number of completions generated at once, in a generation batch or an evaluation.
    pub sequences: usize,
    /// Whether rollouts come from a file with the reference model's log-probabilities, so that no reference model is
    /// loaded.
    pub ref_logps: bool,
    /// Whether a function of the calling program generates the completions, possibly without log-probabilities.
    pub given: bool,
}

impl WorkloadBounds {
    /// The bounds of a run that generates `sequences` completions at once.
    pub fn for_prompts(longest_prompt: usize, sequences: usize) -> WorkloadBounds {
        WorkloadBounds { longest_prompt, sequences, ref_logps: false, given: false }
    }

    /// The bounds of the same data after the configuration has changed from `before` to `config`.
    pub(crate) fn under(self, config: &Config, before: &Config) -> WorkloadBounds {
        let is_generation = self.sequences == before.generation_batch();
        WorkloadBounds {
            longest_prompt: config.max_prompt_length.map_or(self.longest_prompt, |most| most.min(self.longest_prompt)),
            sequences: if is_generation { config.generation_batch() } else { self.sequences },
            ..self
        }
    }

    /// Adapts the bounds to completions that the calling program generates: prompts may be as long as
    /// `max_prompt_length`.
    pub(crate) fn widen_to_given(&mut self, config: &Config, context: usize) {
        let room = context.saturating_sub(config.max_completion_length);
        let most = config.max_prompt_length.map_or(0, |most| most.min(room));
        (self.longest_prompt, self.given) = (self.longest_prompt.max(most), true);
    }
}

/// The sampling parameters of training.
pub fn sampling(config: &Config, eos_ids: &[u32]) -> SamplingParams {
    let own = config.stop_token_ids.iter().map(|&id| id as u32);
    SamplingParams {
        temperature: config.temperature,
        top_k: config.top_k,
        top_p: config.top_p,
        min_p: config.min_p.unwrap_or(0.0),
        repetition_penalty: config.repetition_penalty,
        max_new_tokens: config.max_completion_length,
        stop_ids: eos_ids.iter().copied().chain(own).collect(),
        stop_strings: config.stop.clone(),
        seed: config.seed,
        entropies: config.record_rollouts && config.record_entropies,
        ..SamplingParams::default()
    }
}

/// The sampling parameters of an evaluation, derived from `training`'s.
pub fn eval_sampling(config: &Config, training: &SamplingParams) -> SamplingParams {
    // Evaluations are not recorded, so they need no entropies.
    let sampled = SamplingParams { entropies: false, ..training.clone() };
    match config.eval_sampling {
        EvalSampling::Greedy => SamplingParams { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..sampled },
        EvalSampling::Sampled => sampled,
    }
}

/// The engine's sizes: sequences have room for the longest prompt with its completion, and there is a slot for each
/// sequence that is generated at the same time.
pub fn engine_config(config: &Config, context: usize, bounds: WorkloadBounds) -> EngineConfig {
    let max_model_len = context.min(bounds.longest_prompt + config.max_completion_length);
    let max_num_seqs = config.max_num_seqs.min(bounds.sequences).max(1);
    let mut sizes = EngineConfig::new(max_num_seqs, max_model_len);
    sizes.kv_blocks = config.kv_cache_blocks.unwrap_or(sizes.kv_blocks);
    sizes.prefix_sharing = config.prefix_sharing;
    sizes.speculative = config.speculative;
    sizes
}

/// The trainer's settings for an objective. Preference pairs use temperature 1; a value model is trained without an
/// adapter.
pub fn trainer_config(config: &Config, objective: Objective) -> TrainerConfig {
    let pairs = matches!(objective, Objective::Preference(_) | Objective::Ranking(_));
    let value_model = matches!(objective, Objective::Value(_));
    TrainerConfig {
        objective,
        optimizer: config.optimizer(),
        adapter: if value_model { None } else { config.adapter() },
        temperature: if pairs { 1.0 } else { config.temperature },
        max_tokens_per_micro_batch: config.micro_batch_tokens(),
        prefix_sharing: config.prefix_sharing,
        skip_zero_gradients: config.skip_zero_gradients && config.computes_every_group().is_none(),
        gradient_checkpointing: config.gradient_checkpointing,
        gradient_shares: config.gradient_shares,
    }
}
