//! Keys of TRL and of transformers' TrainingArguments that are not in the table. Those without meaning here are
//! accepted, with one line saying so; those that ask for something that this build does not do are errors, unless they
//! ask for nothing. Together with the table every field of TRL's configurations has its answer (a test proves it).

use toml::Value;

/// What becomes of a key of TRL's that is not in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsupportedKey {
    /// Accepted; the line says why it changes nothing.
    Ignored(&'static str),
    /// Asks for what cannot be done; the text says what to do instead.
    Refused(&'static str),
}

/// What becomes of key `name` with `value`; `None` if TRL has no such key either.
pub fn unsupported_key(name: &str, value: &Value) -> Option<UnsupportedKey> {
    let (answer, neutral) = entry(name)?;
    Some(match answer {
        UnsupportedKey::Refused(_) if asks_for_nothing(value, neutral) => {
            UnsupportedKey::Ignored("it asks for what is done anyway")
        }
        answer => answer,
    })
}

/// What becomes of key `name`, and the values (with | between them) besides false and none with which it is not refused.
fn entry(name: &str) -> Option<(UnsupportedKey, &'static str)> {
    if let Some((_, why)) = IGNORED.iter().find(|(keys, _)| keys.contains(&name)) {
        return Some((UnsupportedKey::Ignored(why), ""));
    }
    let (_, neutral, what) = REFUSED.iter().find(|(keys, _, _)| keys.contains(&name))?;
    Some((UnsupportedKey::Refused(what), neutral))
}

/// All of them: names that share what becomes of them.
pub fn unsupported_keys() -> impl Iterator<Item = (&'static [&'static str], UnsupportedKey)> {
    let ignored = IGNORED.iter().map(|(names, why)| (*names, UnsupportedKey::Ignored(why)));
    ignored.chain(REFUSED.iter().map(|(names, _, instead)| (*names, UnsupportedKey::Refused(instead))))
}

/// All names known here, for the nearest one.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    unsupported_keys().flat_map(|(names, _)| names).copied()
}

/// Whether `value` is the neutral one, or false (where true is not neutral), or empty, or a word for nothing.
fn asks_for_nothing(value: &Value, neutral: &str) -> bool {
    match value {
        Value::Boolean(b) => *b == (neutral == "true"),
        Value::String(s) => {
            matches!(s.as_str(), "" | "no" | "none" | "None" | "null") || neutral.split('|').any(|word| word == s)
        }
        Value::Integer(n) => n.to_string() == neutral,
        Value::Float(x) => neutral.parse() == Ok(*x),
        Value::Array(a) => a.is_empty(),
        Value::Table(t) => t.is_empty(),
        Value::Datetime(_) => false,
    }
}

const VLLM: &str = "generation and training are one engine here; there is no vLLM to set up";
const TORCH: &str = "it tunes PyTorch or its data loader, which are not used here";
const DISTRIBUTED: &str = "it is about several processes or devices, and this run has one";
const HUB: &str = "nothing is uploaded to the Hub; the run's directory has everything";
const LOOKS: &str =
    "it is about how TRL prints or reports; see log_completions, --log-format, LOCKSTEP_LOG and tensorboard";

static IGNORED: &[(&[&str], &str)] = &[
    (
        &[
            "use_vllm",
            "vllm_mode",
            "vllm_model_impl",
            "vllm_enable_sleep_mode",
            "vllm_server_base_url",
            "vllm_server_host",
            "vllm_server_port",
            "vllm_server_timeout",
            "vllm_group_port",
            "vllm_gpu_memory_utilization",
            "vllm_max_model_length",
            "vllm_tensor_parallel_size",
            "use_transformers_continuous_batching",
            "transformers_continuous_batching_config",
            "use_transformers_paged",
            "cache_implementation",
            "ds3_gather_for_generation",
        ],
        VLLM,
    ),
    (
        &[
            "torch_compile",
            "torch_compile_backend",
            "torch_compile_mode",
            "torch_empty_cache_steps",
            "use_liger_kernel",
            "liger_kernel_config",
            "use_cache",
            "tf32",
            "activation_checkpointing_kwargs",
            "gradient_checkpointing_kwargs",
            "dataloader_num_workers",
            "dataloader_pin_memory",
            "dataloader_persistent_workers",
            "dataloader_prefetch_factor",
            "dataloader_multiprocessing_context",
            "dataloader_in_order",
            "remove_unused_columns",
            "label_names",
            "length_column_name",
            "pad_to_multiple_of",
            "full_determinism",
            "use_cpu",
            "accelerator_config",
            "skip_memory_metrics",
            "trust_remote_code",
            "attn_implementation",
            "cast_lm_head_to_fp32",
            "eval_do_concat_batches",
            "eval_use_gather_object",
            "eval_accumulation_steps",
            "include_for_metrics",
            "batch_eval_metrics",
            "prediction_loss_only",
            "per_device_eval_batch_size",
            "dataset_num_proc",
            "no_cuda",
            "use_mps_device",
            "activation_offloading",
            "overwrite_output_dir",
        ],
        TORCH,
    ),
    (
        &[
            "average_tokens_across_devices",
            "log_on_each_node",
            "save_on_each_node",
            "local_rank",
            "ddp_find_unused_parameters",
            "ddp_bucket_cap_mb",
            "ddp_broadcast_buffers",
            "ddp_static_graph",
            "ddp_backend",
            "ddp_timeout",
            "ignore_bias_buffers",
        ],
        DISTRIBUTED,
    ),
    (
        &[
            "push_to_hub",
            "hub_token",
            "hub_private_repo",
            "hub_model_id",
            "hub_strategy",
            "hub_always_push",
            "hub_revision",
            "log_completions_hub_repo",
            "trackio_space_id",
            "trackio_bucket_id",
            "trackio_static_space_id",
        ],
        HUB,
    ),
    (
        &[
            "report_to",
            "project",
            "logging_strategy",
            "logging_dir",
            "logging_nan_inf_filter",
            "include_num_input_tokens_seen",
            "log_level",
            "log_level_replica",
            "disable_tqdm",
            "log_multimodal",
            "log_unique_prompts",
            "debug",
        ],
        LOOKS,
    ),
    (&["dataloader_drop_last"], "the incomplete last batch of an epoch is always left out"),
    (&["do_train", "do_eval", "do_predict"], "the command says what is done"),
    (&["resume_from_checkpoint"], "resuming is the flag --resume DIR|latest"),
    (
        &["save_only_model", "enable_jit_checkpoint"],
        "checkpoints always hold the whole state, and signals always write one",
    ),
    (&["ignore_data_skip", "restore_callback_states_from_checkpoint"], "a resumed run always continues exactly"),
    (
        &["packing_strategy", "eval_packing", "padding_free", "pad_token"],
        "batches are packed without padding, and rows are never joined",
    ),
    (&["truncation_mode"], "nothing is ever cut: rows longer than max_length are left out, and counted"),
    (
        &["precompute_ref_log_probs", "precompute_ref_batch_size"],
        "the reference's log-probabilities are always computed once, before training",
    ),
    (&["f_alpha_divergence_coef", "discopop_tau"], "it is of a variant of DPO that is not supported"),
    (
        &["bnb_4bit_quant_type", "bnb_4bit_quant_storage", "use_bnb_nested_quant"],
        "it is about quantised weights, which are not used here",
    ),
    (&["lora_task_type"], "the command says what the adapter is for"),
    (&["eval_delay"], "evaluation begins with its first eval_steps"),
];

const BF16: &str =
    "the key is dtype = \"bf16\" here (the default is f32; the checkpoint's own dtype is read whatever it is)";
const FP16: &str = "compute is f32 or bf16 here: remove it, or set dtype = \"bf16\" (the checkpoint's own dtype is read whatever it is)";
const ONE: &str = "this build trains in one process on one machine; remove it";

/// The spellings of the one optimizer.
const ADAMW: &str = "adamw|adamw_torch|adamw_torch_fused|adamw_hf|adamw_apex_fused|adamw_torch_xla|\
                     adamw_torch_npu_fused|paged_adamw|paged_adamw_32bit";

/// Keys, the values (with | between them) besides false and none that ask for nothing, and what to do instead.
static REFUSED: &[(&[&str], &str, &str)] = &[
    (&["bf16", "bf16_full_eval"], "", BF16),
    (&["fp16", "fp16_full_eval"], "", FP16),
    (&["torch_dtype"], "float32", BF16),
    (&["load_in_8bit", "load_in_4bit"], "", "weights are not quantised in this build; remove it"),
    (
        &["peft_config"],
        "",
        "set use_peft = true, lora_r, lora_alpha, lora_dropout, lora_target_modules and use_rslora instead",
    ),
    (&["lora_modules_to_save"], "", "only the adapter is trained, and a reward model's head beside it; remove it"),
    (&["lora_target_parameters"], "", "modules are adapted, not single parameters: set lora_target_modules"),
    (&["use_dora"], "", "adapters are plain LoRA here; remove it"),
    (&["model_init_kwargs"], "", "models are read as their config.json says; remove it"),
    (&["model_revision"], "main", "the newest revision of a Hub id is read; for another, give its local directory"),
    (&["activation_checkpointing"], "", "the key is gradient_checkpointing here"),
    (
        &["optim"],
        ADAMW,
        "the optimizer is AdamW: adamw_torch or adamw_torch_fused, in f32 (adam_moments_dtype = \"bf16\" takes half the memory)",
    ),
    (
        &["optim_args", "optim_target_modules"],
        "",
        "the optimizer is AdamW, set by learning_rate, weight_decay, adam_beta1, adam_beta2 and adam_epsilon; remove it",
    ),
    (&["lr_scheduler_kwargs"], "", "the schedules here take no arguments; remove it"),
    (&["label_smoothing_factor"], "0", "there is no label smoothing; remove it"),
    (&["neftune_noise_alpha"], "", "there is no embedding noise; remove it"),
    (&["auto_find_batch_size"], "", "memory is set by max_tokens_per_micro_batch, which changes no result; remove it"),
    (&["train_sampling_strategy"], "random", "the order is random or the file's: shuffle_dataset"),
    (&["parallelism_config", "fsdp", "fsdp_config", "deepspeed"], "", ONE),
    (&["router_aux_loss_coef"], "", "mixture-of-experts models are not supported"),
    (
        &["vllm_structured_outputs_regex"],
        "",
        "constrained generation is not supported; a `format` reward asks for a form",
    ),
    (&["vllm_importance_sampling_cap"], "", "the key is vllm_importance_sampling_clip_max"),
    (&["max_tool_calling_iterations"], "", "tools are not supported in this build; remove it"),
    (&["dataset_train_split"], "train", "the key is dataset_split here"),
    (&["dataset_test_split"], "test", "the key is eval_dataset_split here"),
    (&["dataset_streaming"], "", "datasets are read before training; max_samples takes the first rows only"),
    (&["dataset_text_field"], "text", "name the columns: prompt_column and completion_column"),
    (&["dataset_kwargs"], "", "rows are read as prompt_column, columns and system_prompt say; remove it"),
    (
        &["chat_template_path"],
        "",
        "the model's own chat template is used: put the file into its directory as chat_template.jinja",
    ),
    (&["eos_token"], "", "the model's own EOS ids are used; stop_token_ids adds others"),
    (&["completion_only_loss"], "true", "the loss is of completions only: set completion_column"),
    (&["assistant_only_loss"], "", "the loss is of the last answer only (completion_column); remove it"),
    (&["loss_weights"], "", "one loss is minimised: dpo_loss_type"),
    (&["f_divergence_type"], "reverse_kl", "the divergence is the reverse KL; remove it"),
    (&["ld_alpha", "use_weighting"], "", "this variant of DPO is not supported; remove it"),
];
