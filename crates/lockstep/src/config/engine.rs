//! The settings of the engine and of the trainer that follow from a configuration.

use super::keys::Config;
use super::values::EvalSampling;
use rollout::{EngineConfig, SamplingParams};
use train::{Objective, TrainerConfig};

/// What the data say that the memory of a run depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadBounds {
    /// Tokens of the longest prompt.
    pub longest_prompt: usize,
    /// Completions that are generated at once, at most: those of a generation, or of an evaluation.
    pub sequences: usize,
    /// Rollouts from a file bring the reference's log-probabilities, all of them: none is loaded.
    pub ref_logps: bool,
    /// A program makes the completions, and may know no log-probabilities of them.
    pub given: bool,
}

impl WorkloadBounds {
    /// The bounds of a run whose prompts get `sequences` completions at once.
    pub fn of_prompts(longest_prompt: usize, sequences: usize) -> WorkloadBounds {
        WorkloadBounds { longest_prompt, sequences, ref_logps: false, given: false }
    }

    /// Completions come from a program, whose prompts may be as long as `max_prompt_length`.
    pub(crate) fn widen_to_given(&mut self, config: &Config, context: usize) {
        let room = context.saturating_sub(config.max_completion_length);
        let most = config.max_prompt_length.map_or(0, |most| most.min(room));
        (self.longest_prompt, self.given) = (self.longest_prompt.max(most), true);
    }
}

/// How tokens are drawn in training.
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

/// How tokens are drawn in an evaluation, beside `training`'s way.
pub fn eval_sampling(config: &Config, training: &SamplingParams) -> SamplingParams {
    // Evaluations are not recorded.
    let sampled = SamplingParams { entropies: false, ..training.clone() };
    match config.eval_sampling {
        EvalSampling::Greedy => SamplingParams { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..sampled },
        EvalSampling::Sampled => sampled,
    }
}

/// The engine's sizes: room for the longest prompt and its completion, for as many sequences as are ever asked for at
/// once.
pub fn engine_config(config: &Config, context: usize, bounds: WorkloadBounds) -> EngineConfig {
    let max_model_len = context.min(bounds.longest_prompt + config.max_completion_length);
    let max_num_seqs = config.max_num_seqs.min(bounds.sequences).max(1);
    let mut sizes = EngineConfig::new(max_num_seqs, max_model_len);
    sizes.kv_blocks = config.kv_cache_blocks.unwrap_or(sizes.kv_blocks);
    sizes.prefix_sharing = config.prefix_sharing;
    sizes.speculative = config.speculative;
    sizes
}

/// How the trainer works. Pairs are compared at T = 1; a value model is trained whole.
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
    }
}
