//! What follows from a configuration: sizes, counts, and the settings of the trainer. It refuses nothing.

use super::{Algorithm, Config};

impl Config {
    /// Completions that one generation makes.
    pub fn generation_batch(&self) -> usize {
        self.generation_batch_size.unwrap_or_else(|| self.per_device_train_batch_size * self.steps_per_generation())
    }

    /// Micro-batches in TRL's sense that one generation serves.
    pub fn steps_per_generation(&self) -> usize {
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
    pub fn prompts_per_generation(&self) -> usize {
        self.generation_batch() / self.num_generations
    }

    /// Rows of one training pass: without packing no group shares a pass, since a group is never cut.
    pub fn micro_batch_tokens(&self) -> usize {
        if self.packing { self.max_tokens_per_micro_batch } else { 1 }
    }

    /// Completions that one optimizer step sees.
    pub fn completions_per_step(&self) -> usize {
        self.per_device_train_batch_size * self.gradient_accumulation_steps
    }

    /// Times that a generation is passed over.
    pub fn passes(&self) -> usize {
        if self.algorithm == Algorithm::Ppo { self.num_ppo_epochs } else { self.num_iterations }
    }

    /// Whether the policy is held near a reference model.
    pub fn has_reference(&self) -> bool {
        if self.algorithm == Algorithm::Ppo { self.kl_coef != 0.0 } else { self.beta != 0.0 }
    }

    /// Optimizer steps of one pass over a generation; a generation is passed over [`passes`](Self::passes) times.
    pub fn steps_per_pass(&self) -> usize {
        self.steps_per_generation() / self.gradient_accumulation_steps
    }

    /// Optimizer steps of the run, with `chunks` generations in an epoch.
    pub fn total_steps(&self, chunks: usize) -> u64 {
        if self.max_steps > 0 {
            return self.max_steps as u64;
        }
        let per_epoch = (chunks * self.steps_per_pass() * self.passes()) as f64;
        (self.num_train_epochs * per_epoch).ceil() as u64
    }

    /// Steps of rising learning rate in a run of `total` steps.
    pub fn warmup(&self, total: u64) -> u64 {
        let share = if self.warmup_steps == 0.0 { self.warmup_ratio.unwrap_or(0.0) } else { self.warmup_steps };
        // As transformers: below 1 it is a share, rounded up.
        let steps = if share < 1.0 || self.warmup_steps == 0.0 { (share * total as f64).ceil() } else { share };
        steps as u64
    }

    /// Optimizer steps between evaluations.
    pub fn eval_steps(&self) -> u64 {
        self.eval_steps.unwrap_or(self.logging_steps)
    }

    /// Completions of each evaluation prompt.
    pub fn generations_eval(&self) -> usize {
        self.num_generations_eval.unwrap_or(match self.eval_sampling {
            super::EvalSampling::Sampled => self.num_generations,
            super::EvalSampling::Greedy => 1,
        })
    }

    /// The weight of each reward.
    pub fn weights_of_rewards(&self) -> Vec<f64> {
        self.reward_weights.clone().unwrap_or_else(|| vec![1.0; self.reward_funcs.len()])
    }

    /// The seed of shuffling, or `None` for the files' order, which replayed rollouts always keep.
    pub fn shuffle_seed(&self) -> Option<u64> {
        (self.shuffle_dataset && self.replay.is_none()).then(|| self.data_seed.unwrap_or(self.seed))
    }

    /// The loss that the keys describe.
    pub fn loss(&self) -> train::LossConfig {
        train::LossConfig {
            loss_type: self.loss_type,
            importance_sampling_level: self.importance_sampling_level,
            epsilon: self.epsilon,
            epsilon_high: self.epsilon_high,
            delta: self.delta,
            sapo_temperature_pos: self.sapo_temperature_pos,
            sapo_temperature_neg: self.sapo_temperature_neg,
            vespo_k_pos: self.vespo_k_pos,
            vespo_lambda_pos: self.vespo_lambda_pos,
            vespo_k_neg: self.vespo_k_neg,
            vespo_lambda_neg: self.vespo_lambda_neg,
            beta: if self.algorithm == Algorithm::ReinforcePlusPlus { 0.0 } else { self.beta },
            use_bias_correction_kl: self.use_bias_correction_kl,
            mask_truncated_completions: self.mask_truncated_completions,
            off_policy_mask_threshold: self.off_policy_mask_threshold,
            top_entropy_quantile: self.top_entropy_quantile,
            entropy: train::loss::entropy::EntropyConfig {
                entropy_coef: self.entropy_coef,
                use_adaptive_entropy: self.use_adaptive_entropy,
                entropy_coef_min: self.entropy_coef_min,
                entropy_coef_max: self.entropy_coef_max,
                entropy_coef_delta: self.entropy_coef_delta,
                entropy_target: self.entropy_target,
            },
            importance_sampling: train::loss::sampling::Correction {
                enabled: self.vllm_importance_sampling_correction,
                mode: self.vllm_importance_sampling_mode,
                clip_max: self.vllm_importance_sampling_clip_max,
                clip_min: self.vllm_importance_sampling_clip_min,
            },
            max_completion_length: self.max_completion_length,
        }
    }

    /// The optimizer that the keys describe.
    pub fn optimizer(&self) -> train::OptimizerConfig {
        train::OptimizerConfig {
            adam_beta1: self.adam_beta1,
            adam_beta2: self.adam_beta2,
            adam_epsilon: self.adam_epsilon,
            weight_decay: self.weight_decay,
            max_grad_norm: self.max_grad_norm,
            moments: self.adam_moments_dtype,
            seed: self.seed,
        }
    }

    /// The learning rate's course over `total` optimizer steps.
    pub fn schedule(&self, total: u64) -> train::Schedule {
        train::Schedule {
            kind: self.lr_scheduler_type,
            learning_rate: self.learning_rate,
            warmup_steps: self.warmup(total),
            total_steps: total,
        }
    }
}
