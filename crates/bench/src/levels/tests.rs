use super::*;

fn run_all(algorithm: Algorithm) -> (Vec<Value>, Value) {
    let (levels, settings) = (algorithm.levels().to_vec(), algorithm.settings());
    let options = LevelsOptions { shape: Shape::Tiny, settings, levels, steps: 3, threads: Some(2) };
    let mut events = Vec::new();
    let mut hear = |event: &Value| {
        events.push(event.clone());
        Ok(())
    };
    let report = run(&options, &mut hear).unwrap().json();
    (events, report)
}

/// In the first step, every f32 level samples the same tokens with the same log-probabilities and computes the same
/// values. Later steps agree only between levels whose updates have the same bits. Instruction sets and threads do not
/// change bits, but computing the prompt once per completion does: it changes the order in which gradients are added.
#[test]
fn levels_give_the_same_results_at_different_speeds() {
    for algorithm in Algorithm::ALL {
        let (events, report) = run_all(algorithm);
        let steps: Vec<&Value> = events.iter().filter(|event| event["event"] == "step").collect();
        assert_eq!(steps.len(), 3 * algorithm.levels().len());
        let stages: Vec<&str> = match algorithm {
            Algorithm::Grpo => vec!["rollout_s", "update_s"],
            Algorithm::Ppo => vec!["rollout_s", "values_s", "update_s", "value_update_s"],
        };
        let sames: &[&str] = match algorithm {
            Algorithm::Grpo => &["same_completions"],
            Algorithm::Ppo => &["same_completions", "same_values"],
        };
        for step in &steps {
            let (level, is_first) = (step["level"].as_str().unwrap(), step["step"] == 1);
            for same in sames.iter().map(|key| &step[key]) {
                match level {
                    "none" => assert!(same.is_null() && step["same_weights"].is_null()),
                    "bf16" => {
                        assert_eq!(*same, false, "bf16 must give different log-probabilities and values from f32")
                    }
                    _ => assert!(*same == true || !is_first, "{step}"),
                }
            }
            assert!(stages.iter().all(|stage| step[stage].as_f64().unwrap() > 0.0), "{step}");
        }
        // Vector instructions, threads and kept activations do not change a single bit of a whole run.
        for level in ["vectors", "threads", "kept"] {
            assert!(
                steps
                    .iter()
                    .filter(|step| step["level"] == level)
                    .all(|s| { s["same_weights"] == true && sames.iter().all(|key| s[key] == true) }),
                "{level}"
            );
        }
        assert_eq!(report["rows"].as_array().unwrap().len(), algorithm.levels().len());
        let start = events.first().unwrap();
        let keys: Vec<&str> = start["stages"].as_array().unwrap().iter().map(|s| s["key"].as_str().unwrap()).collect();
        assert_eq!((&start["event"], keys), (&json!("start"), stages));
        assert_eq!(events.last().unwrap()["event"], "end");
        let notes = report["notes"].as_array().unwrap();
        let row = |id: &str| report["rows"].as_array().unwrap().iter().find(|row| row["level"] == id).unwrap();
        for (note, named) in notes.iter().zip(algorithm.named()) {
            let row = row(named.level.id);
            let [step_s, speedup] = ["step_s", "speedup"].map(|key| row[key].as_f64().unwrap());
            let line = format!("{}: {step_s:.3} s per step, {speedup:.1} × as fast as the first level. ", named.id);
            assert_eq!(note, &(line + named.says));
        }
    }
}

/// A named level is measured by the last level of its group. If that level was not measured, the report line names the
/// last one that was.
#[test]
fn a_named_level_is_the_last_level_of_its_group() {
    for algorithm in Algorithm::ALL {
        for named in algorithm.named() {
            let last = algorithm.levels().iter().rfind(|level| level.stage == named.id).unwrap();
            assert_eq!((last.id, last.idea), (named.level.id, named.level.idea), "{}", named.id);
        }
        let stages: std::collections::BTreeSet<&str> = algorithm.levels().iter().map(|level| level.stage).collect();
        assert_eq!(stages, algorithm.named().iter().map(|named| named.id).collect());
    }
    let step = |update_s: f64| Step { update_s, ..Step::default() };
    let level = |id: &str| Algorithm::Grpo.level(id).unwrap();
    let runs = [(level("none"), vec![step(3.0)]), (level("shared"), vec![step(0.5), step(0.25)])];
    let lines = named_lines(Algorithm::Grpo, &runs);
    assert_eq!(lines.len(), 2);
    assert!(
        lines[0].starts_with("baseline: 3.000 s per step, 1.0 × as fast as the first level. No optimization"),
        "{}",
        lines[0]
    );
    let fast = "optimal: 0.250 s per step, 12.0 × as fast as the first level.";
    assert_eq!(lines[1], format!("{fast} Measured only up to: shared prompt."));
    assert!(Preset::find("ppo-document").unwrap().levels().iter().any(|level| level.stage == "baseline"));
}

/// If all values were 0 in the first step, comparing the values of two levels would test nothing.
#[test]
fn values_of_the_first_step_are_not_zero() {
    let settings = Algorithm::Ppo.settings();
    let mut run = Run::new(&Algorithm::Ppo.level("fused").unwrap(), Shape::Tiny, &settings, Some(1)).unwrap();
    let step = run.step(0).unwrap();
    let distinct: std::collections::BTreeSet<u32> = step.values.concat().into_iter().collect();
    assert!(distinct.len() > step.values.concat().len() / 2, "{distinct:?}");
    let value = step.value.unwrap();
    assert!(value.loss > 0.0 && value.grad_norm > 0.0 && step.policy.grad_norm > 0.0);
}

/// Losses may differ by rounding, but not by 1 %, when tokens and values are the same.
#[test]
fn a_level_with_a_different_update_is_an_error() {
    let step = |loss, value_loss: Option<f64>| Step {
        policy: Updated { loss, grad_norm: 2.0 },
        value: value_loss.map(|loss| Updated { loss, grad_norm: 2.0 }),
        ..Step::default()
    };
    let [none, cache] = ["none", "cache"].map(|id| Algorithm::Ppo.level(id).unwrap());
    let agree = |a: Step, b: Step| agree((&none, &a), (&cache, &b));
    agree(step(1.0, None), step(1.0 + 1e-6, None)).unwrap();
    let error = agree(step(1.0, None), step(1.01, None)).unwrap_err();
    assert!(error.to_string().starts_with("cache: loss 1.01"), "{error}");
    agree(step(1.0, Some(1.0)), step(1.0, Some(1.0 + 1e-6))).unwrap();
    let error = agree(step(1.0, Some(1.0)), step(1.0, Some(1.01))).unwrap_err();
    assert!(error.to_string().starts_with("cache: value loss 1.01"), "{error}");
    // If the values differ, the updates may differ too.
    let others = Step { values: vec![vec![1]], ..step(1.0, Some(1.01)) };
    agree(step(1.0, Some(1.0)), others).unwrap();
}

#[test]
fn source_files_named_by_levels_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for algorithm in Algorithm::ALL {
        for level in algorithm.levels() {
            assert!(root.join(level.code).is_file(), "{}", level.code);
            assert_eq!(algorithm.level(level.id).map(|found| found.idea), Some(level.idea));
        }
    }
    assert!(Algorithm::Ppo.level("shared").is_none());
}

/// The preset repeats the hyperparameters of `examples/ppo_preset.toml`, so the two must stay equal.
#[test]
fn the_ppo_preset_matches_its_example() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/ppo_preset");
    let of: toml::Table = std::fs::read_to_string(format!("{example}.toml")).unwrap().parse().unwrap();
    let number = |key: &str| of[key].as_float().unwrap_or_else(|| of[key].as_integer().unwrap() as f64);
    let Preset { settings, shape, algorithm, .. } = Preset::find("ppo-document").unwrap();
    let ppo = settings.ppo.unwrap();
    assert_eq!(of["algorithm"].as_str(), Some(algorithm.id()));
    for (key, ours) in [
        ("per_device_train_batch_size", (settings.prompts * settings.generations) as f64),
        ("max_completion_length", settings.new_tokens as f64),
        ("num_ppo_epochs", ppo.epochs as f64),
        ("learning_rate", settings.learning_rate),
        ("gamma", ppo.gamma),
        ("lam", ppo.lam),
        ("cliprange", ppo.policy.cliprange),
        ("vf_coef", ppo.value.vf_coef),
        ("entropy_coef", ppo.policy.entropy_coef),
    ] {
        assert_eq!(number(key), ours, "{key}");
    }
    let model: Value =
        serde_json::from_str(&std::fs::read_to_string(format!("{example}_model.json")).unwrap()).unwrap();
    let shape: Value = serde_json::from_str(&shape.config_json()).unwrap();
    for key in [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
        "tie_word_embeddings",
    ] {
        assert_eq!(model[key], shape[key], "{key}");
    }
}
