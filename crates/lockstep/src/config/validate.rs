//! What a configuration must satisfy, each refusal saying how to mend it; and what is doubtful, said as a note.

use super::tasks::renames;
use super::values::ComputeDType;
use super::{Config, Purpose, Resolved, Strategy};
use crate::bad_input;
use crate::error::BadInput;
use train::loss::dpo::DpoLoss;

/// Checks `resolved`; adds notes on doubtful values.
pub(super) fn validate(resolved: &mut Resolved, purpose: Purpose) -> anyhow::Result<()> {
    generation_kwargs(&mut resolved.config)?;
    ranges(&resolved.config)?;
    renames(&resolved.config.columns).map_err(BadInput::new)?;
    schedules(resolved)?;
    super::lora::validate(resolved)?;
    if purpose == Purpose::Show {
        return Ok(());
    }
    let c = &resolved.config;
    if c.model_name_or_path.is_none() {
        bad_input!("no model: give --model DIR, or model_name_or_path in the configuration");
    }
    if matches!(purpose, Purpose::Sft | Purpose::Reward) && c.replay.is_some() {
        bad_input!(
            "`replay` is for `lockstep train`: supervised fine-tuning and reward models learn from dataset_name"
        );
    }
    if purpose == Purpose::Dpo {
        preference(resolved)?;
    }
    let c = &resolved.config;
    if c.dataset_name.is_none() && c.replay.is_none() {
        bad_input!("no training data: give --dataset FILE, or dataset_name in the configuration");
    }
    if purpose == Purpose::Grpo {
        super::algorithms::check(resolved)?;
        let c = &resolved.config;
        // First: it says what PPO has instead of GRPO's keys, whose own rules come second.
        super::ppo::check(c)?;
        batches(c)?;
        if c.sync_ref_model && !c.has_reference() {
            bad_input!(
                "`sync_ref_model` = true, but with beta = 0 (in PPO: kl_coef = 0) there is no reference model: set it above 0, or sync_ref_model = false"
            );
        }
        if c.sync_ref_model && c.dtype == ComputeDType::Bf16 {
            bad_input!(
                "`sync_ref_model` = true needs `dtype` = \"f32\": steps of ref_model_mixup_alpha are too small for a reference in bf16"
            );
        }
        // A replayed file brings the rewards of training.
        if c.replay.is_none() || c.eval_dataset_name.is_some() {
            rewards(c)?;
        }
        sampling(resolved)?;
        replay(resolved);
        super::ppo::notes(resolved);
    }
    Ok(())
}

/// What direct preference optimization needs.
fn preference(resolved: &mut Resolved) -> anyhow::Result<()> {
    let c = &resolved.config;
    if c.replay.is_some() {
        bad_input!("`replay` is for `lockstep train`: direct preference optimization learns from dataset_name");
    }
    if c.beta <= 0.0 {
        bad_input!("`beta` = {} must be above 0: it is what holds the policy to its reference (0.1 is usual)", c.beta);
    }
    if c.ref_model.is_some() || c.sync_ref_model {
        bad_input!(
            "in direct preference optimization the reference is the model that training begins with: remove ref_model and sync_ref_model"
        );
    }
    if c.label_smoothing != 0.0 && c.dpo_loss_type != DpoLoss::Robust {
        bad_input!(
            "`label_smoothing` = {} acts with dpo_loss_type = \"robust\" only: set that, or 0",
            c.label_smoothing
        );
    }
    if resolved.is_set("loss_type") && c.loss_type != crate::config::Config::default().loss_type {
        resolved.notes.push("loss_type is of `lockstep train`; here dpo_loss_type decides".to_owned());
    }
    Ok(())
}

/// `generation_kwargs` are transformers' names for keys of the table; each wins over its key, as in TRL.
fn generation_kwargs(c: &mut Config) -> anyhow::Result<()> {
    for (name, value) in std::mem::take(&mut c.generation_kwargs) {
        let bad = |e: String| BadInput::new(format!("`generation_kwargs`: {name}: {e}"));
        let value = toml::Value::try_from(&value).map_err(|e| bad(e.to_string()))?;
        let key = match name.as_str() {
            "temperature" | "top_p" | "top_k" | "min_p" | "repetition_penalty" => name.as_str(),
            "stop_strings" | "stop" => "stop",
            "eos_token_id" => "stop_token_ids",
            "max_new_tokens" => "max_completion_length",
            "do_sample" if value.as_bool() == Some(true) => continue,
            _ => {
                bad_input!(
                    "`generation_kwargs`: {name} is not supported; supported are temperature, top_p, top_k, min_p, \
                     repetition_penalty, stop_strings, eos_token_id, max_new_tokens"
                )
            }
        };
        let key = Config::key(key).ok_or_else(|| bad("no such key".to_owned()))?;
        (key.read)(c, &value).map_err(bad)?;
    }
    Ok(())
}

/// Each key within its own range.
fn ranges(c: &Config) -> anyhow::Result<()> {
    let at_least_1 = [
        ("per_device_train_batch_size", c.per_device_train_batch_size as u64),
        ("gradient_accumulation_steps", c.gradient_accumulation_steps as u64),
        ("num_iterations", c.num_iterations as u64),
        ("num_ppo_epochs", c.num_ppo_epochs as u64),
        ("num_mini_batches", c.num_mini_batches as u64),
        ("max_completion_length", c.max_completion_length as u64),
        ("save_steps", c.save_steps),
        ("logging_steps", c.logging_steps),
        ("max_tokens_per_micro_batch", c.max_tokens_per_micro_batch as u64),
        ("max_num_seqs", c.max_num_seqs as u64),
        ("ref_model_sync_steps", c.ref_model_sync_steps),
        ("dynamic_sampling_max_rounds", c.dynamic_sampling_max_rounds as u64),
    ];
    for (name, value) in at_least_1 {
        if value == 0 {
            bad_input!("`{name}` must be at least 1, but is 0");
        }
    }
    let optional_at_least_1 = [
        ("generation_batch_size", c.generation_batch_size.map(|n| n as u64)),
        ("steps_per_generation", c.steps_per_generation.map(|n| n as u64)),
        ("max_samples", c.max_samples.map(|n| n as u64)),
        ("eval_max_samples", c.eval_max_samples.map(|n| n as u64)),
        ("max_prompt_length", c.max_prompt_length.map(|n| n as u64)),
        ("max_length", c.max_length.map(|n| n as u64)),
        ("eval_steps", c.eval_steps),
        ("num_generations_eval", c.num_generations_eval.map(|n| n as u64)),
        ("save_total_limit", c.save_total_limit.map(|n| n as u64)),
        ("early_stopping_patience", c.early_stopping_patience.map(|n| n as u64)),
        ("log_completions_steps", c.log_completions_steps),
        ("threads", c.threads.map(|n| n as u64)),
        ("kv_cache_blocks", c.kv_cache_blocks.map(|n| n as u64)),
        ("max_model_len", c.max_model_len.map(|n| n as u64)),
    ];
    for (name, value) in optional_at_least_1 {
        if value == Some(0) {
            bad_input!("`{name}` must be at least 1, but is 0; \"none\" leaves it unset");
        }
    }
    // Name, value, lowest, whether the lowest is allowed, highest, whether the highest is.
    let ranged = [
        ("temperature", c.temperature, 0.0, true, f64::MAX, true),
        ("top_p", c.top_p, 0.0, false, 1.0, true),
        ("min_p", c.min_p.unwrap_or(0.0), 0.0, true, 1.0, true),
        ("repetition_penalty", c.repetition_penalty, 0.0, false, f64::MAX, true),
        ("beta", c.beta, 0.0, true, f64::MAX, true),
        ("label_smoothing", c.label_smoothing, 0.0, true, 0.5, false),
        ("ref_model_mixup_alpha", c.ref_model_mixup_alpha, 0.0, true, 1.0, true),
        ("center_rewards_coefficient", c.center_rewards_coefficient.unwrap_or(0.0), 0.0, true, f64::MAX, true),
        ("epsilon", c.epsilon, 0.0, true, f64::MAX, true),
        ("kl_coef", c.kl_coef, 0.0, true, f64::MAX, true),
        ("kl_target", c.kl_target, 0.0, false, f64::MAX, true),
        ("kl_horizon", c.kl_horizon, 0.0, false, f64::MAX, true),
        ("missing_eos_penalty", c.missing_eos_penalty.unwrap_or(0.0), 0.0, true, f64::MAX, true),
        ("gamma", c.gamma, 0.0, true, 1.0, true),
        ("lam", c.lam, 0.0, true, 1.0, true),
        ("cliprange", c.cliprange, 0.0, true, f64::MAX, true),
        ("cliprange_value", c.cliprange_value, 0.0, true, f64::MAX, true),
        ("vf_coef", c.vf_coef, 0.0, true, f64::MAX, true),
        ("value_learning_rate", c.value_learning_rate.unwrap_or(0.0), 0.0, true, f64::MAX, true),
        ("target_kl", c.target_kl.unwrap_or(1.0), 0.0, false, f64::MAX, true),
        ("epsilon_high", c.epsilon_high.unwrap_or(0.0), 0.0, true, f64::MAX, true),
        ("sapo_temperature_pos", c.sapo_temperature_pos, 0.0, false, f64::MAX, true),
        ("sapo_temperature_neg", c.sapo_temperature_neg, 0.0, false, f64::MAX, true),
        ("vespo_k_pos", c.vespo_k_pos, 0.0, true, f64::MAX, true),
        ("vespo_lambda_pos", c.vespo_lambda_pos, 0.0, true, f64::MAX, true),
        ("vespo_k_neg", c.vespo_k_neg, 0.0, true, f64::MAX, true),
        ("vespo_lambda_neg", c.vespo_lambda_neg, 0.0, true, f64::MAX, true),
        ("top_entropy_quantile", c.top_entropy_quantile, 0.0, true, 1.0, true),
        ("off_policy_mask_threshold", c.off_policy_mask_threshold.unwrap_or(1.0), 0.0, false, f64::MAX, true),
        ("entropy_coef", c.entropy_coef, f64::MIN, true, f64::MAX, true),
        ("entropy_coef_min", c.entropy_coef_min, f64::MIN, true, c.entropy_coef_max, true),
        ("entropy_coef_delta", c.entropy_coef_delta, 0.0, true, f64::MAX, true),
        (
            "vllm_importance_sampling_clip_min",
            c.vllm_importance_sampling_clip_min.unwrap_or(0.0),
            0.0,
            true,
            f64::MAX,
            true,
        ),
        (
            "vllm_importance_sampling_clip_max",
            c.vllm_importance_sampling_clip_max.unwrap_or(1.0),
            0.0,
            false,
            f64::MAX,
            true,
        ),
        ("learning_rate", c.learning_rate, 0.0, true, f64::MAX, true),
        ("warmup_steps", c.warmup_steps, 0.0, true, f64::MAX, true),
        ("warmup_ratio", c.warmup_ratio.unwrap_or(0.0), 0.0, true, 1.0, true),
        ("weight_decay", c.weight_decay, 0.0, true, f64::MAX, true),
        ("adam_beta1", c.adam_beta1, 0.0, true, 1.0, false),
        ("adam_beta2", c.adam_beta2, 0.0, true, 1.0, false),
        ("adam_epsilon", c.adam_epsilon, 0.0, false, f64::MAX, true),
        ("max_grad_norm", c.max_grad_norm, 0.0, true, f64::MAX, true),
        ("num_train_epochs", c.num_train_epochs, 0.0, false, f64::MAX, true),
    ];
    for (name, value, low, low_too, high, high_too) in ranged {
        let above = if low_too { value >= low } else { value > low };
        let below = if high_too { value <= high } else { value < high };
        if !(above && below) {
            let low_words = if low_too { "at least" } else { "above" };
            let high_words = match (high == f64::MAX, high_too) {
                (true, _) => String::new(),
                (false, true) => format!(" and at most {high}"),
                (false, false) => format!(" and below {high}"),
            };
            bad_input!("`{name}` must be {low_words} {low}{high_words}, but is {value}");
        }
    }
    if c.max_steps != -1 && c.max_steps < 1 {
        bad_input!("`max_steps` must be at least 1, or -1 for num_train_epochs passes, but is {}", c.max_steps);
    }
    if let Some(delta) = c.delta
        && delta <= 1.0 + c.epsilon_high.unwrap_or(c.epsilon)
    {
        bad_input!(
            "`delta` = {delta} must be above 1 + epsilon_high = {}: it bounds ratios that the clip lets through",
            1.0 + c.epsilon_high.unwrap_or(c.epsilon)
        );
    }
    Ok(())
}

/// Evaluation, checkpoints and early stopping agree with each other.
fn schedules(resolved: &mut Resolved) -> anyhow::Result<()> {
    let c = &resolved.config;
    if c.eval_strategy != Strategy::No && c.eval_dataset_name.is_none() {
        bad_input!(
            "`eval_strategy` asks for evaluation, but there is no data for it: set eval_dataset_name, or eval_strategy = \"no\""
        );
    }
    let needs_eval = if c.load_best_model_at_end { Some("load_best_model_at_end") } else { None }
        .or(c.early_stopping_patience.map(|_| "early_stopping_patience"));
    if let Some(key) = needs_eval
        && c.eval_strategy == Strategy::No
    {
        bad_input!("`{key}` needs evaluation: set eval_strategy = \"steps\", eval_steps and eval_dataset_name");
    }
    if let Some(key) = needs_eval
        && c.metric_for_best_model.is_none()
    {
        bad_input!(
            "`{key}` needs to know what is better: set metric_for_best_model to an evaluation metric (\"reward\" with rewards, else \"loss\")"
        );
    }
    if c.load_best_model_at_end {
        if c.save_strategy != c.eval_strategy {
            bad_input!(
                "`load_best_model_at_end` needs a checkpoint at every evaluation: set save_strategy as eval_strategy"
            );
        }
        let (save, eval) = (c.save_steps, c.eval_steps());
        if c.save_strategy == Strategy::Steps && !save.is_multiple_of(eval) {
            bad_input!(
                "`load_best_model_at_end` needs save_steps ({save}) to be a multiple of eval_steps ({eval}): set save_steps = {}",
                save.div_ceil(eval) * eval
            );
        }
    }
    let most = c.generations_eval();
    if let Some(k) = c.eval_pass_at_k.iter().find(|&&k| k == 0 || k > most) {
        bad_input!(
            "`eval_pass_at_k` has {k}, but there are {most} completions of each prompt: set num_generations_eval = {k} or more"
        );
    }
    if c.eval_dataset_name.is_some() && c.eval_strategy == Strategy::No {
        resolved.notes.push(
            "eval_dataset_name is set, but eval_strategy is \"no\": nothing is evaluated while the run goes on"
                .to_owned(),
        );
    }
    Ok(())
}

/// Groups, generations and optimizer steps fit into each other, in TRL's way of counting.
fn batches(c: &Config) -> anyhow::Result<()> {
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
        bad_input!("`dynamic_sampling` needs num_generations of at least 2: a group of one has no spread");
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
            "the generation batch ({formula} completions) must be a multiple of num_generations = {g}, so that groups are whole: \
             set per_device_train_batch_size to {}, or num_generations to {}",
            multiples(per_device, unit),
            divisors(size)
        );
    }
    if !c.steps_per_generation().is_multiple_of(accumulation) {
        let steps = c.steps_per_generation();
        bad_input!(
            "one generation serves {steps} micro-batches, which are no whole number of optimizer steps of {accumulation} \
             (gradient_accumulation_steps): set steps_per_generation to {}",
            multiples(steps, accumulation)
        );
    }
    Ok(())
}

fn rewards(c: &Config) -> anyhow::Result<()> {
    if c.reward_funcs.is_empty() {
        bad_input!(
            "no reward: give --reward gsm8k (or format:REGEX, length:N, exact_match, unique_chars, command:PROGRAM, model:DIR), or \
             reward_funcs in the configuration"
        );
    }
    if let Some(weights) = &c.reward_weights
        && weights.len() != c.reward_funcs.len()
    {
        bad_input!(
            "`reward_weights` has {} numbers, but there are {} rewards: one weight for each",
            weights.len(),
            c.reward_funcs.len()
        );
    }
    Ok(())
}

fn sampling(resolved: &mut Resolved) -> anyhow::Result<()> {
    let c = &resolved.config;
    if c.temperature == 0.0 {
        bad_input!(
            "`temperature` = 0 gives all completions of a group the same text, and then nothing can be learned: set it above 0 (1.0 is usual)"
        );
    }
    let truncated = [
        ("top_p", c.top_p < 1.0),
        ("top_k", c.top_k > 0),
        ("min_p", c.min_p.is_some_and(|p| p > 0.0)),
        ("repetition_penalty", c.repetition_penalty != 1.0),
    ];
    let named: Vec<&str> = truncated.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
    if !named.is_empty() {
        resolved.notes.push(format!(
            "{} changes the distribution that is sampled, but log-probabilities are the model's own: the policy gradient is biased",
            named.join(", ")
        ));
    }
    Ok(())
}

/// What has no meaning beside `replay`.
fn replay(resolved: &mut Resolved) {
    let c = &resolved.config;
    if c.replay.is_none() {
        return;
    }
    let idle = [("dataset_name", c.dataset_name.is_some()), ("dynamic_sampling", c.dynamic_sampling)];
    for (name, _) in idle.into_iter().filter(|(_, set)| *set) {
        resolved.notes.push(format!("{name} has no meaning here: the rollouts come from the file that `replay` names"));
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The multiples of `unit` around `n`, in words.
fn multiples(n: usize, unit: usize) -> String {
    let (low, high) = (n / unit * unit, n.div_ceil(unit) * unit);
    if low == 0 { high.to_string() } else { format!("{low} or {high}") }
}

/// The divisors ≥ 2 of `n`, the largest few, in words.
fn divisors(n: usize) -> String {
    let all: Vec<String> = (2..=n).filter(|d| n.is_multiple_of(*d)).map(|d| d.to_string()).collect();
    match all.as_slice() {
        [] => "nothing (the batch is too small)".to_owned(),
        [one] => one.clone(),
        [.., _] => all[all.len().saturating_sub(4)..].join(", "),
    }
}
