use super::*;
use crate::error::is_bad_input;
use crate::session::PlannedRun;
use kernels::Device;
use std::path::Path;
use telemetry::Sinks;

/// The shape of a model whose weights take most of the memory if batches are small.
const SHAPE: &str = r#"{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 20000,
"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
"num_key_value_heads": 4,
"head_dim": 64, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
"tie_word_embeddings": true, "attention_bias": false, "bos_token_id": null, "eos_token_id": 0}"#;

/// Each case: a command, and the keys set in its configuration.
const CASES: &[(Purpose, &[(&str, &str)])] = &[
    (Purpose::Show, &[]),
    (Purpose::Show, &[("dtype", "bf16")]),
    (Purpose::Show, &[("adam_moments_dtype", "bf16")]),
    (Purpose::Show, &[("use_peft", "true")]),
    (Purpose::Show, &[("use_peft", "true"), ("dtype", "bf16")]),
    (Purpose::Show, &[("use_peft", "true"), ("lora_r", "64"), ("beta", "0.1")]),
    (Purpose::Show, &[("beta", "0.1")]),
    (Purpose::Show, &[("beta", "0.1"), ("sync_ref_model", "true")]),
    (Purpose::Show, &[("optim", "muon")]),
    (Purpose::Show, &[("gradient_checkpointing", "true")]),
    (Purpose::Show, &[("max_tokens_per_micro_batch", "64")]),
    (Purpose::Show, &[("max_tokens_per_micro_batch", "100000"), ("per_device_train_batch_size", "64")]),
    (Purpose::Show, &[("max_num_seqs", "2")]),
    (Purpose::Show, &[("kv_cache_blocks", "4000"), ("speculative", "auto")]),
    (Purpose::Show, &[("max_completion_length", "1900"), ("num_generations", "16"), ("generation_batch_size", "16")]),
    (Purpose::Show, &[("max_prompt_length", "100"), ("prefix_sharing", "false"), ("threads", "4")]),
    (Purpose::Show, &[("algorithm", "ppo"), ("kl_coef", "0.05")]),
    (Purpose::Show, &[("algorithm", "ppo"), ("dtype", "bf16")]),
    (Purpose::Show, &[("packing", "false"), ("record_rollouts", "true")]),
    (Purpose::Sft, &[("max_length", "512")]),
    (Purpose::Sft, &[("use_peft", "true"), ("per_device_train_batch_size", "32")]),
    (Purpose::Sft, &[("dtype", "bf16"), ("gradient_checkpointing", "true")]),
    (Purpose::Dpo, &[]),
    (Purpose::Dpo, &[("use_peft", "true"), ("dtype", "bf16")]),
    (Purpose::Reward, &[]),
    (Purpose::Reward, &[("adam_moments_dtype", "bf16"), ("gradient_checkpointing", "true")]),
];

/// A directory with data and the model's files, without its weights.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let special = model::tokenizer::SpecialTokens { eos: Some("#".into()), ..Default::default() };
    std::fs::create_dir(dir.path().join("model")).unwrap();
    std::fs::write(dir.path().join("model/config.json"), SHAPE).unwrap();
    model::Tokenizer::characters(('a'..='z').chain([' ']), &special).unwrap().save(&dir.path().join("model")).unwrap();
    let text = "some words ".repeat(20);
    let row = format!("{{\"prompt\": \"{text}\", \"completion\": \"{text}\"}}\n");
    std::fs::write(dir.path().join("sft.jsonl"), row.repeat(8)).unwrap();
    let row = format!("{{\"prompt\": \"{text}\", \"chosen\": \"{text}\", \"rejected\": \"no\"}}\n");
    std::fs::write(dir.path().join("pairs.jsonl"), row.repeat(8)).unwrap();
    dir
}

/// The configuration of a command with these keys set, as from a user.
fn configured(root: &Path, purpose: Purpose, set: &[(&str, &str)]) -> Config {
    let model = root.join("model").display().to_string();
    let data = root.join(if purpose == Purpose::Sft { "sft.jsonl" } else { "pairs.jsonl" }).display().to_string();
    let mut all = vec![("model_name_or_path".to_owned(), model), ("max_steps".to_owned(), "1".to_owned())];
    if purpose != Purpose::Show {
        all.push(("dataset_name".to_owned(), data));
    }
    all.extend(set.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    // An unfinished configuration is checked as a training configuration.
    let mut complete = all.clone();
    complete.extend([("dataset_name", "d"), ("reward_funcs", "length:10")].map(|(k, v)| (k.to_owned(), v.to_owned())));
    if purpose == Purpose::Show {
        let layers = Layers { purpose: Purpose::Grpo, set: complete, ..Layers::default() };
        layers.resolve().unwrap_or_else(|error| panic!("{set:?}: {error}"));
    }
    let layers = Layers { purpose, set: all, ..Layers::default() };
    layers.resolve().unwrap_or_else(|error| panic!("{set:?}: {error}")).config
}

/// Calls `call` with the replanner and plan of each case, and collects the failures.
fn for_each_case(
    device: Device,
    call: impl Fn(&Replan<'_>, &MemoryPlan, &dyn Fn(&[String]) -> MemoryPlan) -> Vec<String>,
) {
    let dir = directory();
    let mut wrong = Vec::new();
    for (purpose, set) in CASES {
        let config = configured(dir.path(), *purpose, set);
        let run = PlannedRun { purpose: *purpose, config: &config, distributed: false, ranks: 1, device };
        let found = run.with_planner(&Available::default(), &Sinks::new(), |planner| {
            let plan = |config: &Config| Ok(planner(config)?.on(device));
            let replan = Replan { purpose: *purpose, config: &config, resumes: false, plan: &plan };
            // Applies the changes as a user would write them.
            let written = |changes: &[String]| {
                let pair = |text: &String| {
                    let (key, value) = text.split_once(" = ").expect("key = value");
                    let value = value.split(" (now ").next().unwrap().trim_matches('"');
                    (key.to_owned(), value.to_owned())
                };
                let pairs: Vec<(String, String)> = changes.iter().map(pair).collect();
                let pairs: Vec<(&str, &str)> = pairs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
                let own = set.iter().filter(|(key, _)| pairs.iter().all(|(other, _)| other != key)).copied();
                plan(&configured(dir.path(), *purpose, &own.chain(pairs.iter().copied()).collect::<Vec<_>>())).unwrap()
            };
            Ok(call(&replan, &plan(&config)?, &written))
        });
        wrong.extend(found.unwrap().into_iter().map(|what| format!("{purpose:?} {set:?}: {what}")));
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(CASES.len() >= 20);
}

/// Gives a run this percentage of the memory that it needs.
fn percent(plan: &MemoryPlan, percent: u64) -> Available {
    let of = |bytes: u64| bytes / 100 * percent;
    Available { host: Some(of(plan.needed())), device: plan.device_total.map(of), limit: None }
}

fn each_named_key_lowers_the_memory(device: Device, shares: &[u64]) {
    for_each_case(device, |replan, plan, written| {
        let mut wrong = Vec::new();
        let now = Changed { texts: Vec::new(), config: replan.config.clone(), plan: plan.clone() };
        for &share in shares {
            let available = percent(plan, share);
            let single: Vec<Changed> =
                LEVERS.iter().filter_map(|lever| replan.apply(&now, lever, &available)).collect();
            let together = replan.together(&now, &available);
            for changed in single.iter().chain([&together]).filter(|changed| !changed.texts.is_empty()) {
                let again = written(&changed.texts);
                let size = |plan: &MemoryPlan| (plan.needed(), plan.device_total);
                if size(&again) != size(&changed.plan) || again.excess(&available) >= plan.excess(&available) {
                    wrong.push(format!(
                        "{}: expected {:?}, got {:?} of {:?}",
                        changed.texts.join(", "),
                        size(&changed.plan),
                        size(&again),
                        size(plan)
                    ));
                }
            }
            let message = replan.check(plan, &available).unwrap_err();
            let text = message.to_string();
            assert!(
                is_bad_input(&message)
                    && text.contains("It fits with") == single.iter().any(|one| one.plan.excess(&available) == 0),
                "{text}"
            );
            // If one or two changes make a run fit, it is not reported as impossible.
            if text.contains("No key makes it fit") {
                let fits = |changed: &Changed| changed.plan.excess(&available) == 0;
                for first in &single {
                    let second = LEVERS.iter().filter_map(|lever| replan.apply(first, lever, &available));
                    wrong.extend(second.filter(fits).map(|pair| format!("{:?} fit at {share} %: {text}", pair.texts)));
                }
            }
        }
        wrong
    });
}

#[test]
fn each_suggested_key_lowers_the_memory_to_the_stated_size() {
    each_named_key_lowers_the_memory(Device::Cpu, &[97, 60, 20]);
}

#[test]
fn each_suggested_key_lowers_the_memory_of_a_device() {
    each_named_key_lowers_the_memory(Device::CudaEmulated, &[60]);
}

/// Each key listed with a part lowers that part and the whole, at its smallest value.
#[test]
fn each_key_listed_with_a_part_lowers_that_part() {
    for_each_case(Device::Cpu, |replan, plan, written| {
        let mut named = plan.clone();
        replan.name_keys(&mut named);
        let mut wrong = Vec::new();
        for part in named.parts.iter().filter(|part| !part.lowered_by.is_empty()) {
            for key in part.lowered_by.split(", ") {
                let (key, beside) = key.split_once(" (with use_peft)").map_or((key, false), |(key, _)| (key, true));
                let Some(lever) = LEVERS.iter().find(|lever| lever.key == key) else { continue };
                let lora: &[String] = if beside { &["use_peft = true".to_owned()] } else { &[] };
                let before = if beside { written(lora) } else { plan.clone() };
                let from =
                    if beside { Config { use_peft: true, ..replan.config.clone() } } else { replan.config.clone() };
                let value = *lever.values(&from, plan.longest).last().unwrap();
                let after = written(&[lora, &[lever.text(&from, value)]].concat());
                if after.bytes_of(part) >= before.bytes_of(part) || after.needed() >= before.needed() {
                    wrong.push(format!("{}: {key}", part.name));
                }
            }
        }
        // Each part of the trained model has a lever, unless only an adapter is trained.
        for name in ["weights", "training: gradients", "training: optimizer"] {
            let part = named.parts.iter().find(|part| part.name == name);
            // A reference model that follows the policy excludes adapters and bf16.
            if !replan.config.use_peft
                && !replan.config.sync_ref_model
                && part.is_some_and(|part| part.lowered_by.is_empty())
                && replan.config.dtype == crate::config::ComputeDType::F32
            {
                wrong.push(format!("{name}: no key"));
            }
        }
        wrong
    });
}

#[test]
fn a_resumed_run_is_only_advised_of_keys_that_may_change() {
    let dir = directory();
    let config = configured(dir.path(), Purpose::Show, &[]);
    let run = PlannedRun { purpose: Purpose::Show, config: &config, distributed: false, ranks: 1, device: Device::Cpu };
    run.with_planner(&Available::default(), &Sinks::new(), |planner| {
        let text = |resumes: bool| {
            let replan = Replan { purpose: Purpose::Show, config: &config, resumes, plan: &**planner };
            replan.check(&planner(&config).unwrap(), &percent(&planner(&config).unwrap(), 90)).unwrap_err().to_string()
        };
        let (new, resumed) = (text(false), text(true));
        assert!(new.contains("use_peft") && new.contains("adam_moments_dtype"), "{new}");
        assert!(!resumed.contains("use_peft") && resumed.contains("gradient_checkpointing"), "{resumed}");
        Ok(())
    })
    .unwrap();
}
