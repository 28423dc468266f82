use super::*;

fn run_all(levels: Vec<Level>) -> (Vec<Value>, Value) {
    let options = Options { shape: Shape::Tiny, levels, steps: 3, threads: Some(2) };
    let mut events = Vec::new();
    let mut hear = |event: &Value| {
        events.push(event.clone());
        Ok(())
    };
    let report = run(&options, &mut hear).unwrap().json();
    (events, report)
}

/// Every f32 level draws the same tokens with the same log-probabilities in the first step, whatever computes them.
/// Later ones do where the update has the same bits, as it has whatever the instructions and threads. (A prompt that is
/// computed for each completion gives other sums of gradients than a shared one.)
#[test]
fn levels_differ_in_speed_alone() {
    let (events, report) = run_all(LEVELS.to_vec());
    let steps: Vec<&Value> = events.iter().filter(|event| event["event"] == "step").collect();
    assert_eq!(steps.len(), 3 * LEVELS.len());
    for step in &steps {
        let (level, is_first) = (step["level"].as_str().unwrap(), step["step"] == 1);
        let same = &step["same_completions"];
        match level {
            "none" => assert!(same.is_null() && step["same_weights"].is_null()),
            "bf16" => assert_eq!(*same, false, "another arithmetic draws with other log-probabilities"),
            _ => assert!(*same == true || !is_first, "{step}"),
        }
        assert!(step["rollout_s"].as_f64().unwrap() > 0.0 && step["update_s"].as_f64().unwrap() > 0.0);
    }
    // Vectors and threads change no bit of whole runs.
    for level in ["vectors", "threads"] {
        assert!(
            steps
                .iter()
                .filter(|step| step["level"] == level)
                .all(|s| s["same_completions"] == true && s["same_weights"] == true),
            "{level}"
        );
    }
    assert_eq!(report["rows"].as_array().unwrap().len(), LEVELS.len());
    assert_eq!(events.first().unwrap()["event"], "start");
    assert_eq!(events.last().unwrap()["event"], "end");
}

/// A level that computed another update from the same tokens would be told.
#[test]
fn an_update_that_is_another_is_refused() {
    let step =
        |loss| Step { rollout_s: 1.0, update_s: 1.0, reward: 0.5, loss, grad_norm: 2.0, drawn: Vec::new(), weights: 0 };
    agree((&LEVELS[0], &step(1.0)), (&LEVELS[1], &step(1.0 + 1e-6))).unwrap();
    let error = agree((&LEVELS[0], &step(1.0)), (&LEVELS[1], &step(1.01))).unwrap_err();
    assert!(error.to_string().starts_with("cache: loss 1.01"), "{error}");
}

#[test]
fn the_code_of_every_level_is_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for level in LEVELS {
        assert!(root.join(level.code).is_file(), "{}", level.code);
        assert_eq!(Level::find(level.id).map(|found| found.name), Some(level.name));
    }
}
