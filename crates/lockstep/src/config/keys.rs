//! The table of keys. One entry is all there is to say about a key; everything else reads this table.

use super::values::{Algorithm, ComputeDType, EvalSampling, KeyValue, Strategy, Task};
use rewards::RewardSpec;
use serde_json::{Map, Value as Json};
use std::path::PathBuf;
use train::loss::dpo::DpoLoss;
use train::loss::sampling::CorrectionMode;
use train::{
    ImportanceSamplingLevel, KlEstimator, LossType, MomentsDType, MultiObjectiveAggregation, ScaleRewards, ScheduleKind,
};

/// What a resumed run may do with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnResume {
    /// Change it: no bit of the result depends on it.
    Free,
    /// Change it: from there on the run differs from the one that was never stopped, and that is said.
    Said,
    /// Not change it: the saved state would not fit, or would mean something else.
    Refused,
}

/// A key of the table.
#[derive(Debug)]
pub struct Key {
    /// Its name, TRL's where TRL has it.
    pub name: &'static str,
    /// The section that it is shown under.
    pub section: &'static str,
    /// The type's name.
    pub type_name: fn() -> String,
    /// The type's JSON Schema.
    pub schema: fn() -> Json,
    /// TRL's default: `same`, a value, or `-` where TRL has no such key.
    pub trl: &'static str,
    /// Whether it may change on resume.
    pub on_resume: OnResume,
    /// What it means.
    pub doc: &'static str,
    pub(super) read: fn(&mut Config, &toml::Value) -> Result<(), String>,
    pub(super) read_text: fn(&mut Config, &str) -> Result<(), String>,
    pub(super) write: fn(&Config) -> Option<toml::Value>,
}

impl Key {
    /// Its value in `config` as TOML, `None` where it is not set.
    pub fn value(&self, config: &Config) -> Option<toml::Value> {
        (self.write)(config)
    }
    /// Its value in `config` in words: TOML, or `none`.
    pub fn value_text(&self, config: &Config) -> String {
        self.value(config).map_or_else(|| "none".to_owned(), |v| v.to_string())
    }
    /// Its meaning on one line.
    pub fn meaning(&self) -> String {
        self.doc.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

macro_rules! keys {
    ($($section:literal { $($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr, trl $trl:literal, $resume:ident;)* })*) => {
        /// A whole configuration. Names and meanings are TRL's where TRL has the key; defaults too.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $($($(#[doc = $doc])+ pub $name: $type,)*)*
        }

        impl Default for Config {
            fn default() -> Self {
                Config { $($($name: $default,)*)* }
            }
        }

        /// Every key, in the order in which it is shown.
        pub static KEYS: &[Key] = &[$($(Key {
            name: stringify!($name),
            section: $section,
            type_name: <$type as KeyValue>::type_name,
            schema: <$type as KeyValue>::schema,
            trl: $trl,
            on_resume: OnResume::$resume,
            doc: concat!($($doc, "\n"),+),
            read: |config, value| { config.$name = KeyValue::read(value)?; Ok(()) },
            read_text: |config, text| { config.$name = KeyValue::read_text(text)?; Ok(()) },
            write: |config| KeyValue::write(&config.$name),
        },)*)*];
    };
}

keys! {
    "Model and run" {
        /// The model to train: a Hugging Face directory, or a Hub id (fetched into the local cache); or the PEFT directory of a
        /// low-rank adapter to go on with, on the model that its adapter_config.json names.
        model_name_or_path: Option<String> = None, trl "required", Refused;
        /// The reference model of the KL term, frozen; not set: the model as it was at the start. Loaded only if beta > 0.
        ref_model: Option<String> = None, trl "-", Refused;
        /// What products read: f32; or bf16, which halves the memory of weights (beside f32 masters of what is trained), of keys and values,
        /// and of what is kept for the way back. Sums, gradients and moments stay f32.
        dtype: ComputeDType = ComputeDType::F32, trl "bfloat16 (bf16 = true)", Refused;
        /// The run's directory; it must not exist, or be a run that is resumed.
        output_dir: Option<PathBuf> = None, trl "trainer_output", Free;
        /// A name for the run, kept in its config.toml.
        run_name: Option<String> = None, trl "same", Free;
        /// The seed of everything random: shuffling, sampling, initial weights.
        seed: u64 = 42, trl "same", Refused;
        /// The seed of shuffling alone; not set: `seed`.
        data_seed: Option<u64> = None, trl "same", Refused;
        /// A preset that fills in columns, system prompt, rewards and what evaluation counts as right, where they are not set.
        task: Option<Task> = None, trl "-", Refused;
    }
    "Data" {
        /// The training data: a JSONL or Parquet file, a directory of them, or a Hub id (fetched into the local cache).
        dataset_name: Option<String> = None, trl "same", Refused;
        /// A configuration of the data set: the sub-directory or file-name part that stands for it.
        dataset_config: Option<String> = None, trl "same", Refused;
        /// The split: in a directory, files whose name starts with it.
        dataset_split: String = "train".to_owned(), trl "dataset_train_split", Refused;
        /// The column that holds the prompt: text, or a list of chat messages.
        prompt_column: String = "prompt".to_owned(), trl "-", Refused;
        /// The column that holds the completion to learn from (supervised fine-tuning only).
        completion_column: String = "completion".to_owned(), trl "-", Refused;
        /// New names for columns, new = "old": rewards read the new names. For example { answer = "ground_truth" }.
        columns: Map<String, Json> = Map::new(), trl "-", Refused;
        /// A system message put before every prompt. A text prompt becomes a chat of it and one user message.
        system_prompt: Option<String> = None, trl "-", Refused;
        /// Use the first rows only.
        max_samples: Option<usize> = None, trl "-", Refused;
        /// Leave out rows whose prompt has more tokens (how many is said). Not set: a prompt that does not fit the context
        /// is an error. A prompt is never cut.
        max_prompt_length: Option<usize> = None, trl "-", Refused;
        /// The longest prompt + completion in supervised fine-tuning and of either side of a pair; longer rows are left out, and how many is said.
        max_length: Option<usize> = Some(1024), trl "same", Refused;
        /// Train on the rollouts of this file instead of generating (`lockstep train --replay FILE`); then no data set and no
        /// reward is needed, and num_train_epochs is 1 where it is not set. See docs/algorithms.md for the lines.
        replay: Option<PathBuf> = None, trl "-", Refused;
        /// Draw prompts in a new random order each epoch.
        shuffle_dataset: bool = true, trl "same", Refused;
        /// More values for the chat template, for example { enable_thinking = false }.
        chat_template_kwargs: Map<String, Json> = Map::new(), trl "same", Refused;
    }
    "Rewards" {
        /// The rewards: names ("gsm8k"), names with their main option ("format:REGEX", "command:./reward.py"), or tables
        /// ({ kind = "length", target = 40 }); "model:DIR" is a reward model. { kind = "command", command = "./reward.py",
        /// by_group = true } is asked about each group as soon as it has ended, while others are generated.
        reward_funcs: Vec<RewardSpec> = Vec::new(), trl "argument of GRPOTrainer", Refused;
        /// One weight for each reward; not set: all 1.
        reward_weights: Option<Vec<f64>> = None, trl "same", Refused;
        /// What group advantages are divided by: the group's standard deviation, the batch's, or nothing.
        scale_rewards: ScaleRewards = ScaleRewards::Group, trl "same", Refused;
        /// How several rewards become one: their weighted sum is compared within the group, or each is, before they are summed
        /// and compared within the batch (GDPO; scale_rewards then has no part).
        multi_objective_aggregation: MultiObjectiveAggregation = MultiObjectiveAggregation::SumThenNormalize, trl "same", Refused;
        /// algorithm "rloo": bounds of the summed reward, as [low, high].
        reward_clip_range: Option<Vec<f64>> = None, trl "same (RLOOConfig)", Refused;
        /// algorithm "rloo": bring advantages to mean 0 and deviation 1 over the batch.
        normalize_advantages: bool = false, trl "same (RLOOConfig)", Refused;
    }
    "Batches" {
        /// Completions of each prompt (the group, G); at least 2.
        num_generations: usize = 8, trl "same", Refused;
        /// Completions of one micro-batch in TRL's sense: times gradient_accumulation_steps is what one optimizer step sees.
        /// How many are computed at once is max_tokens_per_micro_batch.
        per_device_train_batch_size: usize = 8, trl "same", Refused;
        /// One optimizer step sees per_device_train_batch_size × this many completions.
        gradient_accumulation_steps: usize = 1, trl "same", Refused;
        /// Completions made at once; not set: per_device_train_batch_size × steps_per_generation. Divisible by num_generations.
        generation_batch_size: Option<usize> = None, trl "same", Refused;
        /// Micro-batches (of per_device_train_batch_size) that one generation serves; not set: gradient_accumulation_steps.
        steps_per_generation: Option<usize> = None, trl "same", Refused;
        /// Times that each generation is trained on (μ).
        num_iterations: usize = 1, trl "same", Refused;
        /// Optimizer steps of the run; -1: as num_train_epochs says.
        max_steps: i64 = -1, trl "same", Said;
        /// Passes over the data set, where max_steps is not set.
        num_train_epochs: f64 = 3.0, trl "same", Said;
    }
    "Sampling" {
        /// The most tokens of a completion.
        max_completion_length: usize = 512, trl "same", Refused;
        /// Logits are divided by it, in sampling and in the loss.
        temperature: f64 = 1.0, trl "same", Refused;
        /// Sample from the likeliest tokens whose probabilities reach this sum; 1: all.
        top_p: f64 = 1.0, trl "same", Said;
        /// Sample from this many likeliest tokens; 0: all.
        top_k: usize = 0, trl "same", Said;
        /// Leave out tokens less likely than this times the likeliest.
        min_p: Option<f64> = None, trl "same", Said;
        /// Makes tokens that stand in the text so far less likely (> 1) or likelier (< 1).
        repetition_penalty: f64 = 1.0, trl "same", Said;
        /// Draw fresh prompts in place of groups whose rewards are all equal (DAPO's dynamic sampling).
        dynamic_sampling: bool = false, trl "-", Said;
        /// Rounds of generation for one batch at most, the first included; groups that are still without a spread stay.
        dynamic_sampling_max_rounds: usize = 10, trl "-", Said;
        /// Texts that end a completion.
        stop: Vec<String> = Vec::new(), trl "generation_kwargs.stop_strings", Said;
        /// Token ids that end a completion, beside the model's own.
        stop_token_ids: Vec<u64> = Vec::new(), trl "-", Said;
        /// transformers' generation arguments: temperature, top_p, top_k, min_p, repetition_penalty, stop_strings,
        /// eos_token_id; each wins over the key of its name.
        generation_kwargs: Map<String, Json> = Map::new(), trl "same", Said;
    }
    "Loss" {
        /// How rewards become a gradient: it decides the advantages, the loss, and the defaults of num_generations and beta.
        /// "rloo": against the other completions, whole completions clipped (num_generations 2, beta 0.05).
        /// "reinforce_plus_plus": tokens against the batch, KL in the reward (1, 0.01); "reinforce_plus_plus_baseline":
        /// against the group, then the batch, KL in the loss. "ppo": a value model (1; its keys are under PPO).
        algorithm: Algorithm = Algorithm::Grpo, trl "the trainer's class", Refused;
        /// The policy loss: how the ratio weighs a token, and how tokens and sequences are averaged.
        loss_type: LossType = LossType::Dapo, trl "same", Said;
        /// Whether each token or each sequence has its own importance ratio.
        importance_sampling_level: ImportanceSamplingLevel = ImportanceSamplingLevel::Token, trl "same", Said;
        /// The weight of the KL divergence to the reference model; 0: none is loaded. (In direct preference optimization: how
        /// strongly the policy is held to its reference, by default TRL's there, 0.1.)
        beta: f64 = 0.0, trl "same", Refused;
        /// Let the reference model follow the policy: every ref_model_sync_steps steps it becomes
        /// ref_model_mixup_alpha · policy + (1 − ref_model_mixup_alpha) · reference.
        sync_ref_model: bool = false, trl "same", Refused;
        /// How far the reference model moves towards the policy: 0 not at all, 1 all the way.
        ref_model_mixup_alpha: f64 = 0.6, trl "same", Said;
        /// Optimizer steps between two moves of the reference model.
        ref_model_sync_steps: u64 = 512, trl "same", Said;
        /// How strongly the scores of a pair are drawn to a mean of 0 (`lockstep reward` only; 0.01 is usual); not set: not at all.
        center_rewards_coefficient: Option<f64> = None, trl "same", Said;
        /// Direct preference optimization: what is made of a pair's difference (`loss_type` in TRL's DPOConfig).
        dpo_loss_type: DpoLoss = DpoLoss::Sigmoid, trl "loss_type of DPOConfig", Said;
        /// dpo_loss_type "robust": the share of pairs that are the wrong way round, from 0 to below 0.5.
        label_smoothing: f64 = 0.0, trl "same", Said;
        /// The ratio is clipped below 1 − epsilon.
        epsilon: f64 = 0.2, trl "same", Said;
        /// The ratio is clipped above 1 + epsilon_high; not set: epsilon. With loss_type "cispo" it is the largest ratio
        /// itself (5 is recommended).
        epsilon_high: Option<f64> = None, trl "same", Said;
        /// Upper bound of the ratio that is not clipped (two-sided clipping); above 1 + epsilon_high.
        delta: Option<f64> = None, trl "same", Said;
        /// loss_type "sapo": the temperature of its gate for tokens with an advantage above 0.
        sapo_temperature_pos: f64 = 1.0, trl "same", Said;
        /// loss_type "sapo": the temperature of its gate for other tokens.
        sapo_temperature_neg: f64 = 1.05, trl "same", Said;
        /// loss_type "vespo": the exponent k of the sequence's weight where the advantage is not negative.
        vespo_k_pos: f64 = 2.0, trl "same", Said;
        /// loss_type "vespo": the decay λ of the sequence's weight where the advantage is not negative.
        vespo_lambda_pos: f64 = 3.0, trl "same", Said;
        /// loss_type "vespo": the exponent k of the sequence's weight where the advantage is negative.
        vespo_k_neg: f64 = 3.0, trl "same", Said;
        /// loss_type "vespo": the decay λ of the sequence's weight where the advantage is negative.
        vespo_lambda_neg: f64 = 2.0, trl "same", Said;
        /// Leave completions that the length limit cut out of the loss.
        mask_truncated_completions: bool = false, trl "same", Said;
        /// Multiply the KL estimate by the importance ratio, so that its gradient is unbiased.
        use_bias_correction_kl: bool = true, trl "same", Said;
        /// Train on this share of the tokens, those of highest entropy; 1: all. The KL term stays on all. The bound is taken over
        /// the whole optimizer batch, which takes another forward pass where it is more than one micro-batch.
        top_entropy_quantile: f64 = 1.0, trl "same", Said;
        /// Leave completions with a negative advantage out of the policy term where the policy has moved further than this from
        /// what sampled them: the mean over tokens of log π_sampler − log π_θ.
        off_policy_mask_threshold: Option<f64> = None, trl "same", Said;
        /// The weight of the entropy bonus: J − entropy_coef × mean entropy per token; adaptive: its first value.
        entropy_coef: f64 = 0.0, trl "same", Said;
        /// Let the weight of the entropy bonus grow by entropy_coef_delta in steps whose entropy is at most entropy_target, and
        /// shrink otherwise; it is applied after such steps only.
        use_adaptive_entropy: bool = false, trl "same", Refused;
        /// The least adaptive weight.
        entropy_coef_min: f64 = 0.0, trl "same", Said;
        /// The largest adaptive weight.
        entropy_coef_max: f64 = 1.0, trl "same", Said;
        /// How much the adaptive weight changes in an optimizer step.
        entropy_coef_delta: f64 = 0.005, trl "same", Said;
        /// The entropy per token, in nats, below which the adaptive weight acts.
        entropy_target: f64 = 0.2, trl "same", Said;
        /// Correct for samples whose sampler was not the policy that this run had before training on them (a file's, another
        /// version's): log π_old is computed when they come in, and the policy term is weighed with c = π_old / π_sampler.
        /// Off: what the sampler recorded is log π_old. In a run that samples for itself c is exactly 1.
        vllm_importance_sampling_correction: bool = false, trl "true, where use_vllm is (which is false)", Said;
        /// What c is of, the token or the sequence, and what happens outside its bounds: brought back, or left out.
        vllm_importance_sampling_mode: CorrectionMode = CorrectionMode::SequenceMask, trl "same", Said;
        /// The largest c.
        vllm_importance_sampling_clip_max: Option<f64> = Some(3.0), trl "same", Said;
        /// The smallest c.
        vllm_importance_sampling_clip_min: Option<f64> = None, trl "same", Said;
    }
    "PPO" {
        /// What the value model starts as: "policy" (the policy's layers under a score that is 0), or the directory of a
        /// reward or value model with one score.
        value_model: String = "policy".to_owned(), trl "value_model of PPOTrainer: the reward model", Refused;
        /// The weight of the KL divergence to the reference model in the reward of each token; 0: none is loaded.
        kl_coef: f64 = 0.05, trl "same (PPOConfig)", Refused;
        /// How the divergence is estimated at a token: k1 is log π − log π_ref, k3 is never negative.
        kl_estimator: KlEstimator = KlEstimator::K1, trl "same (PPOConfig)", Said;
        /// Adapt kl_coef after each generation, so that the divergence per completion comes near kl_target.
        adap_kl_ctrl: bool = false, trl "same (PPOConfig of 0.11, true there)", Refused;
        /// The divergence per completion, in nats, that adap_kl_ctrl aims at.
        kl_target: f64 = 6.0, trl "target (PPOConfig of 0.11)", Said;
        /// How slowly adap_kl_ctrl acts, in completions.
        kl_horizon: f64 = 10_000.0, trl "horizon (PPOConfig of 0.11)", Said;
        /// Taken from the score of a completion that does not end by itself.
        missing_eos_penalty: Option<f64> = None, trl "same (PPOConfig)", Said;
        /// The discount of later rewards (γ).
        gamma: f64 = 1.0, trl "same (PPOConfig)", Said;
        /// How far advantage estimates look: 0 to the next value, 1 to the end of the completion (λ).
        lam: f64 = 0.95, trl "same (PPOConfig)", Said;
        /// Divide the rewards of tokens by their standard deviation over the generation.
        whiten_rewards: bool = false, trl "same (PPOConfig)", Said;
        /// The ratio of new to old policy is clipped to 1 ± this.
        cliprange: f64 = 0.2, trl "same (PPOConfig)", Said;
        /// Values are clipped to what they were at rollout ± this.
        cliprange_value: f64 = 0.2, trl "same (PPOConfig)", Said;
        /// The weight of the value loss. The value model has an optimizer of its own, so that it matters only for
        /// max_grad_norm and adam_epsilon.
        vf_coef: f64 = 0.1, trl "same (PPOConfig)", Said;
        /// The value model's highest learning rate; not set: learning_rate.
        value_learning_rate: Option<f64> = None, trl "-", Said;
        /// Times that each generation is trained on.
        num_ppo_epochs: usize = 4, trl "same (PPOConfig)", Refused;
        /// Optimizer steps that each pass over a generation is cut into: a generation is this many times
        /// per_device_train_batch_size × gradient_accumulation_steps completions.
        num_mini_batches: usize = 1, trl "same (PPOConfig)", Refused;
        /// Go on to the next generation once the new policy is further than 1.5 times this (in nats per token) from the old.
        target_kl: Option<f64> = None, trl "same (PPOConfig of 0.11)", Said;
    }
    "Optimizer" {
        /// The highest learning rate. (Where TRL's default is another, it is here too: 2e-5 in supervised
        /// fine-tuning, 1e-4 for reward models.)
        learning_rate: f64 = 1e-6, trl "same", Said;
        /// The learning rate's course after warm-up.
        lr_scheduler_type: ScheduleKind = ScheduleKind::Linear, trl "same", Said;
        /// Steps of rising learning rate; a number below 1 is a share of all steps.
        warmup_steps: f64 = 0.0, trl "same", Said;
        /// The same as a share of all steps, used where warmup_steps is 0.
        warmup_ratio: Option<f64> = None, trl "same (deprecated there)", Said;
        /// AdamW's decoupled weight decay; biases and norms do not decay.
        weight_decay: f64 = 0.0, trl "same", Said;
        /// AdamW's decay of the first moment.
        adam_beta1: f64 = 0.9, trl "same", Said;
        /// AdamW's decay of the second moment.
        adam_beta2: f64 = 0.999, trl "same", Said;
        /// AdamW's ε.
        adam_epsilon: f64 = 1e-8, trl "same", Said;
        /// What AdamW's moments are kept in: f32, or bf16 by stochastic rounding, which halves their memory.
        adam_moments_dtype: MomentsDType = MomentsDType::F32, trl "-", Refused;
        /// Gradients are scaled down to this norm; 0: never.
        max_grad_norm: f64 = 1.0, trl "same", Said;
    }
    "Adapter" {
        /// Train a low-rank adapter (LoRA) and freeze the model: no gradients and no moments of its weights. The run's result is
        /// a PEFT directory. The reference model of beta > 0 is then the model without its adapter, and takes no memory. In a
        /// reward model the head is trained beside it. True by itself where the model is an adapter's directory, whose
        /// adapter_config.json then gives the keys of this section; one that says otherwise is refused.
        use_peft: bool = false, trl "same", Refused;
        /// The adapter's rank.
        lora_r: usize = 16, trl "same", Refused;
        /// The adapter's scale is lora_alpha / lora_r.
        lora_alpha: f64 = 32.0, trl "same", Refused;
        /// The chance that an input of the adapter is dropped, for the gradient of a training step alone: rollout and every
        /// log-probability that is compared with it know no dropout, for which a policy's step computes a second forward.
        lora_dropout: f64 = 0.0, trl "0.05", Refused;
        /// Train as if lora_dropout were 0.
        disable_dropout: bool = false, trl "same (true for DPO and reward models)", Refused;
        /// The modules that are adapted: names such as q_proj, one regular expression of whole names, or all-linear; not set:
        /// q_proj and v_proj.
        lora_target_modules: Option<Vec<String>> = None, trl "same", Refused;
        /// Scale by lora_alpha / √lora_r instead.
        use_rslora: bool = false, trl "same", Refused;
    }
    "Evaluation" {
        /// The evaluation data; not set: none.
        eval_dataset_name: Option<String> = None, trl "-", Said;
        /// The split of the evaluation data; not set: `test`, and all of a single file.
        eval_dataset_split: Option<String> = None, trl "dataset_test_split", Said;
        /// Use the first rows of the evaluation data only.
        eval_max_samples: Option<usize> = None, trl "-", Said;
        /// When to evaluate.
        eval_strategy: Strategy = Strategy::No, trl "same", Free;
        /// Optimizer steps between evaluations; not set: logging_steps.
        eval_steps: Option<u64> = None, trl "same", Free;
        /// Evaluate before the first step too.
        eval_on_start: bool = false, trl "same", Free;
        /// How completions are drawn in evaluation.
        eval_sampling: EvalSampling = EvalSampling::Sampled, trl "sampled", Said;
        /// Completions of each evaluation prompt; not set: num_generations if sampled, 1 if greedy.
        num_generations_eval: Option<usize> = None, trl "same", Said;
        /// The k of pass@k (a prompt counts if one of k completions is right); each at most num_generations_eval.
        eval_pass_at_k: Vec<usize> = Vec::new(), trl "-", Said;
    }
    "Checkpoints" {
        /// When to write checkpoints (one is always written at the end).
        save_strategy: Strategy = Strategy::Steps, trl "same", Free;
        /// Optimizer steps between checkpoints.
        save_steps: u64 = 500, trl "same", Free;
        /// Keep this many checkpoints, the newest and the best; not set: all.
        save_total_limit: Option<usize> = None, trl "same", Free;
        /// Leave the best checkpoint's weights as the run's result.
        load_best_model_at_end: bool = false, trl "same", Said;
        /// The evaluation metric that decides which is best, with or without `eval_`.
        metric_for_best_model: Option<String> = None, trl "same", Said;
        /// Whether more of it is better; not set: yes, unless its name ends in `loss`.
        greater_is_better: Option<bool> = None, trl "same", Said;
        /// Stop after this many evaluations in a row without a better metric.
        early_stopping_patience: Option<usize> = None, trl "EarlyStoppingCallback", Said;
        /// How much better counts as better.
        early_stopping_threshold: f64 = 0.0, trl "EarlyStoppingCallback", Said;
    }
    "Logging" {
        /// Optimizer steps between lines of metrics; means are taken over the steps between.
        logging_steps: u64 = 10, trl "same", Free;
        /// Log the first step too.
        logging_first_step: bool = false, trl "same", Free;
        /// Write sample completions to the run's directory and print some.
        log_completions: bool = false, trl "same", Free;
        /// Optimizer steps between printed completions; not set: logging_steps.
        log_completions_steps: Option<u64> = None, trl "-", Free;
        /// How many completions to print; not set: all of the step.
        num_completions_to_print: Option<usize> = None, trl "same", Free;
        /// Write every rollout that is trained on to rollouts.jsonl in the run's directory, for `lockstep train --replay`.
        record_rollouts: bool = false, trl "-", Free;
        /// Write TensorBoard files too.
        tensorboard: bool = true, trl "report_to", Free;
    }
    "Machine" {
        /// Threads; not set: all cores that the process may use. No bit depends on it.
        threads: Option<usize> = None, trl "-", Free;
        /// Rows (tokens) of one forward and backward pass. Less takes less memory; no bit depends on it.
        max_tokens_per_micro_batch: usize = 4096, trl "-", Free;
        /// Keep only each layer's input and compute the rest again in the backward pass: less memory, more work.
        /// No bit depends on it. (TRL's default, true, is for GPUs.)
        gradient_checkpointing: bool = false, trl "true", Free;
        /// Compute a prompt once for all completions of its group, in generation and training. Log-probabilities have the
        /// same bits either way; gradients differ in rounding, since their sums run in another order.
        prefix_sharing: bool = true, trl "-", Said;
        /// Put several groups into one training pass, up to max_tokens_per_micro_batch; off: one group each. No bit depends on it.
        packing: bool = true, trl "-", Free;
        /// The most sequences that are generated at the same time. No bit depends on it.
        max_num_seqs: usize = 64, trl "-", Free;
        /// Memory of the KV cache in blocks of 64 tokens; not set: enough for max_num_seqs of max_model_len.
        kv_cache_blocks: Option<usize> = None, trl "-", Free;
        /// The longest prompt + completion; not set: the model's context, or less where no prompt needs it.
        max_model_len: Option<usize> = None, trl "vllm_max_model_length", Free;
        /// Resume on another instruction set than the run began with (other bits in the last place).
        allow_other_isa: bool = false, trl "-", Free;
    }
}

impl Config {
    /// The key of this name.
    pub fn key(name: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.name == name)
    }
}
