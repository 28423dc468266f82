//! The settings of engine, trainer and optimizer as derived from a configuration.

use super::{grpo, trainer_config};
use crate::config::{Algorithm, Config, EvalSampling, SamplingPlan, Strategy, WorkloadBounds};
use crate::config::{engine_config, engine_config_of_rank, eval_sampling, sampling};
use model::{GroupId, LoraConfig, TargetModules};
use rollout::{EngineConfig, SamplingParams, Speculative};
use serde_json::json;
use train::{Objective, Schedule, ScheduleArguments, ScheduleKind};

#[test]
fn sampling_parameters_follow_the_configuration() {
    let config = Config {
        temperature: 0.5,
        top_k: 7,
        top_p: 0.75,
        min_p: Some(0.25),
        repetition_penalty: 1.5,
        max_completion_length: 99,
        stop: vec!["x".into()],
        stop_token_ids: vec![5, 6],
        seed: 11,
        record_rollouts: true,
        record_entropies: true,
        ..Config::default()
    };
    let expected = SamplingParams {
        temperature: 0.5,
        top_k: 7,
        top_p: 0.75,
        min_p: 0.25,
        repetition_penalty: 1.5,
        max_new_tokens: 99,
        stop_ids: vec![2, 3, 5, 6],
        stop_strings: vec!["x".into()],
        seed: 11,
        entropies: true,
        ..SamplingParams::default()
    };
    let training = sampling(&config, &[2, 3]);
    assert_eq!(training, expected);
    for (rollouts, entropies) in [(true, false), (false, true)] {
        let other = Config { record_rollouts: rollouts, record_entropies: entropies, ..config.clone() };
        assert!(!sampling(&other, &[]).entropies);
    }
    assert_eq!(sampling(&Config::default(), &[]).min_p, 0.0);
    let sampled = SamplingParams { entropies: false, ..expected };
    assert_eq!(eval_sampling(&config, &training), sampled);
    let greedy = Config { eval_sampling: EvalSampling::Greedy, ..config };
    let expected = SamplingParams { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..sampled };
    assert_eq!(eval_sampling(&greedy, &training), expected);
}

#[test]
fn profiles_replace_the_parameters_that_they_name() {
    let profiles = json!({
        "a": {"share": 0.25, "max_completion_length": 3, "top_p": 0.5, "top_k": 4, "min_p": 0.125,
            "repetition_penalty": 2.0},
        "b": {"share": 0.75},
    });
    let config = Config {
        sampling_profiles: profiles.as_object().cloned().unwrap_or_default(),
        max_completion_length: 64,
        temperature: 0.5,
        ..Config::default()
    };
    let plan = SamplingPlan::new(&config, &[9]).unwrap();
    let all = sampling(&config, &[9]);
    let own = SamplingParams {
        max_new_tokens: 3,
        top_p: 0.5,
        top_k: 4,
        min_p: 0.125,
        repetition_penalty: 2.0,
        ..all.clone()
    };
    assert_eq!((plan.ways(), &**plan.common()), (vec![&own, &all], &all));
    // The hashes of groups 0 and 1 are 0 and 0.618, the golden ratio modulo 1.
    assert_eq!((plan.profile(GroupId(0)), plan.profile(GroupId(1))), (Some("a"), Some("b")));
    assert_eq!((&**plan.of(GroupId(0)), &**plan.of(GroupId(1))), (&own, &all));
    // The hash of this group is the nearest to 1. The gap that rounding leaves below 1 belongs to the last profile.
    let golden = 0x9e37_79b9_7f4a_7c15_u64;
    let mut inverse = golden;
    (0..6).for_each(|_| inverse = inverse.wrapping_mul(2u64.wrapping_sub(golden.wrapping_mul(inverse))));
    assert_eq!(inverse.wrapping_mul(golden), 1);
    assert_eq!(plan.profile(GroupId(inverse.wrapping_neg())), Some("b"));
    let alike = SamplingPlan::alike(std::sync::Arc::new(all.clone()));
    assert_eq!((alike.ways(), alike.profile(GroupId(0)), alike.names().count()), (vec![&all], None, 0));
}

#[test]
fn engine_sizes_follow_the_configuration_and_the_prompts() {
    let config = Config {
        max_completion_length: 100,
        max_num_seqs: 8,
        prefix_sharing: false,
        speculative: Speculative::Auto,
        ..Config::default()
    };
    let bounds = |longest, sequences| WorkloadBounds::for_prompts(longest, sequences);
    let of = |config: &Config, context, bounds| {
        let sizes = engine_config(config, context, bounds);
        (sizes.max_num_seqs, sizes.max_model_len, sizes.kv_blocks, sizes.prefix_sharing, sizes.speculative)
    };
    let blocks = EngineConfig::blocks_for;
    let rest = (false, Speculative::Auto);
    assert_eq!(of(&config, 1000, bounds(30, 6)), (6, 130, blocks(6, 130), rest.0, rest.1));
    assert_eq!(of(&config, 120, bounds(30, 60)), (8, 120, blocks(8, 120), rest.0, rest.1));
    assert_eq!(of(&config, 1000, bounds(0, 0)).0, 1);
    let few = Config { kv_cache_blocks: Some(5), prefix_sharing: true, ..config.clone() };
    assert_eq!(of(&few, 1000, bounds(30, 6)), (6, 130, 5, true, Speculative::Auto));
    assert_eq!(bounds(3, 4), WorkloadBounds { longest_prompt: 3, sequences: 4, ref_logps: false, given: false });
    // A program's prompts may be as long as the configuration and the context allow.
    for (most, context, longest) in
        [(None, 1000, 30), (Some(50), 1000, 50), (Some(20), 1000, 30), (Some(50), 140, 40), (Some(50), 90, 30)]
    {
        let mut widened = bounds(30, 6);
        widened.widen_to_given(&Config { max_prompt_length: most, ..config.clone() }, context);
        let expected = WorkloadBounds { given: true, ..bounds(longest, 6) };
        assert_eq!(widened, expected, "{most:?} of {context}");
    }
}

#[test]
fn ranks_divide_sequences_and_pages_of_the_engine_by_whole_groups() {
    let config = Config { num_generations: 4, max_completion_length: 100, max_num_seqs: 64, ..Config::default() };
    let bounds = |sequences| WorkloadBounds::for_prompts(30, sequences);
    let of = |config: &Config, sequences, ranks| {
        let whole = engine_config(config, 1000, bounds(sequences));
        let sizes = engine_config_of_rank(config, whole.clone(), bounds(sequences), ranks);
        assert_eq!((sizes.max_model_len, sizes.rows()), (whole.max_model_len, whole.rows()));
        (sizes.max_num_seqs, sizes.kv_blocks)
    };
    let sized = |n| (n, EngineConfig::blocks_for(n, 130));
    assert_eq!(of(&config, 24, 1), sized(24));
    assert_eq!([of(&config, 24, 2), of(&config, 24, 4), of(&config, 24, 16)], [12, 8, 4].map(sized));
    // Both limits are those of all ranks together.
    let limited = Config { max_num_seqs: 6, kv_cache_blocks: Some(10), ..config.clone() };
    assert_eq!([of(&limited, 24, 1), of(&limited, 24, 2), of(&limited, 24, 16)], [(6, 10), (3, 5), (1, 4)]);
    let too_few = Config { kv_cache_blocks: Some(2), ..config };
    assert_eq!(of(&too_few, 24, 2).1, 2, "the engine refuses this size, as that of one process does");
}

#[test]
fn trainer_settings_follow_the_configuration() {
    let config = Config {
        temperature: 0.5,
        max_tokens_per_micro_batch: 77,
        prefix_sharing: false,
        gradient_checkpointing: true,
        use_peft: true,
        lora_r: 4,
        ..Config::default()
    };
    let policy = trainer_config(&config, config.objective());
    assert_eq!((policy.temperature, policy.max_tokens_per_micro_batch), (0.5, 77));
    assert_eq!((policy.prefix_sharing, policy.gradient_checkpointing, policy.skip_zero_gradients), (false, true, true));
    assert_eq!((policy.optimizer, policy.adapter.map(|lora| lora.r)), (config.optimizer(), Some(4)));
    assert_eq!(policy.objective, config.objective());
    // Reward models use no temperature, and value models no adapter.
    for (objective, temperature, is_adapted) in [
        (Objective::Preference(config.dpo()), 1.0, true),
        (Objective::Ranking(config.ranking()), 1.0, true),
        (Objective::Value(config.value_loss()), 0.5, false),
        (Objective::Supervised, 0.5, true),
    ] {
        let of = trainer_config(&config, objective);
        assert_eq!((of.temperature, of.adapter.is_some()), (temperature, is_adapted), "{:?}", of.objective);
    }
    let every_group = Config { beta: 0.1, ..config.clone() };
    assert!(!trainer_config(&every_group, every_group.objective()).skip_zero_gradients);
    // Without packing, each group is a pass of its own.
    let apart = Config { packing: false, ..config };
    assert_eq!(trainer_config(&apart, apart.objective()).max_tokens_per_micro_batch, 1);
}

#[test]
fn adapter_settings_follow_the_configuration() {
    let of = |set: &[(&str, &str)]| grpo(set).unwrap().config.adapter();
    assert_eq!(of(&[("lora_r", "4")]), None);
    assert_eq!(of(&[("use_peft", "true")]), Some(LoraConfig::default()));
    let all =
        [("use_peft", "true"), ("lora_r", "3"), ("lora_alpha", "5"), ("use_rslora", "true"), ("lora_dropout", "0.1")];
    let lora = |names: TargetModules, dropout| {
        Some(LoraConfig { r: 3, alpha: 5.0, use_rslora: true, dropout, target_modules: names })
    };
    for (text, target) in [
        ("all-linear", TargetModules::AllLinear),
        ("q_proj", TargetModules::Names(vec!["q_proj".into()])),
        (
            "[\"self_attn.q_proj\", \"up_proj\"]",
            TargetModules::Names(vec!["self_attn.q_proj".into(), "up_proj".into()]),
        ),
        (".*(q|k)_proj", TargetModules::Regex(".*(q|k)_proj".into())),
        ("[\"a|b\", \"c\"]", TargetModules::Names(vec!["a|b".into(), "c".into()])),
    ] {
        let set = [&all[..], &[("lora_target_modules", text)]].concat();
        assert_eq!(of(&set), lora(target, 0.1), "{text}");
    }
    let off = [&all[..], &[("lora_target_modules", "all-linear"), ("disable_dropout", "true")]].concat();
    assert_eq!(of(&off), lora(TargetModules::AllLinear, 0.0));
}

#[test]
fn optimizers_and_schedules_follow_the_configuration() {
    let config = Config {
        adam_beta1: 0.5,
        adam_beta2: 0.25,
        adam_epsilon: 1e-3,
        weight_decay: 0.125,
        max_grad_norm: 2.0,
        adam_moments_dtype: train::MomentsDType::Bf16,
        seed: 7,
        learning_rate: 0.01,
        lr_scheduler_type: ScheduleKind::Cosine,
        lr_scheduler_kwargs: [("num_cycles".to_owned(), 1.5.into())].into_iter().collect(),
        warmup_steps: 3.0,
        ..Config::default()
    };
    let expected = train::OptimizerConfig {
        optim: train::OptimizerKind::AdamW,
        adam_beta1: 0.5,
        adam_beta2: 0.25,
        adam_epsilon: 1e-3,
        weight_decay: 0.125,
        max_grad_norm: 2.0,
        moments: train::MomentsDType::Bf16,
        seed: 7,
    };
    assert_eq!(config.optimizer(), expected);
    let muon = Config { optim: "muon".parse().ok(), optim_args: Some("momentum=0.5".into()), ..config.clone() };
    assert_eq!(muon.optimizer().optim, train::OptimizerKind::parse("muon", "momentum=0.5").unwrap());
    let kind = ScheduleKind::Cosine;
    let arguments = ScheduleArguments { num_cycles: 1.5, ..ScheduleArguments::of(kind) };
    let schedule = Schedule { kind, arguments, learning_rate: 0.01, warmup_steps: 3, total_steps: 50 };
    assert_eq!(config.schedule(50), schedule);
    // A warmup_steps below 1 is a share of all steps; if it is 0, warmup_ratio is the share.
    let steps = |warmup_steps: f64, warmup_ratio| Config { warmup_steps, warmup_ratio, ..Config::default() }.warmup(30);
    assert_eq!((steps(1.0, None), steps(2.5, Some(0.5)), steps(0.99, None), steps(0.5, Some(0.1))), (1, 2, 30, 15));
    assert_eq!(
        (steps(0.0, Some(0.5)), steps(0.0, Some(0.51)), steps(0.0, Some(1.0)), steps(0.0, None)),
        (15, 16, 30, 0)
    );
}

#[test]
fn losses_follow_the_configuration() {
    let config = Config {
        epsilon: 0.3,
        cliprange: 0.4,
        cliprange_value: 0.6,
        vf_coef: 0.7,
        entropy_coef: 0.01,
        label_smoothing: 0.2,
        discopop_tau: 0.3,
        beta: 0.9,
        center_rewards_coefficient: Some(0.05),
        ..Config::default()
    };
    assert_eq!(
        (config.epsilon_high(), Config { epsilon_high: Some(0.5), ..config.clone() }.epsilon_high()),
        (0.3, 0.5)
    );
    assert_eq!((config.ppo().cliprange, config.ppo().entropy_coef), (0.4, 0.01));
    assert_eq!((config.value_loss().cliprange_value, config.value_loss().vf_coef), (0.6, 0.7));
    let dpo = config.dpo();
    assert_eq!((dpo.beta, dpo.label_smoothing, dpo.discopop_tau), (0.9, 0.2, 0.3));
    assert_eq!(config.ranking().center_rewards_coefficient, Some(0.05));
}

/// Only runs that generate completions record them. A replayed file is read once unless num_train_epochs is set.
#[test]
fn defaults_depend_on_the_command_and_on_replay() {
    let replay = |set: &[(&str, &str)]| grpo(&[&[("replay", "r.jsonl")], set].concat()).unwrap();
    assert_eq!(replay(&[]).config.num_train_epochs, 1.0);
    assert_eq!(replay(&[("num_train_epochs", "3")]).config.num_train_epochs, 3.0);
    assert_eq!(grpo(&[]).unwrap().config.num_train_epochs, 3.0);
    let note = |key: &str| format!("{key} is not used: the rollouts come from the file of `replay`");
    assert_eq!(replay(&[]).notes, [note("dataset_name")]);
    assert_eq!(replay(&[("dataset_name", "none")]).notes, [""; 0]);
    let both = replay(&[("dynamic_sampling", "true")]).notes;
    assert_eq!(both, [note("dataset_name"), note("dynamic_sampling")]);
    let strategy = Config::default();
    assert_eq!((strategy.save_strategy, strategy.eval_strategy), (Strategy::Steps, Strategy::No));
    assert_eq!(strategy.algorithm, Algorithm::Grpo);
}
