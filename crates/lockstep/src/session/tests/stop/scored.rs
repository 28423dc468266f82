//! Evaluations of a model outside a run.

use super::super::{config, directory, one_thread};
use crate::config::{Config, EvalSampling, Purpose};
use crate::session::Evaluator;
use crate::{Policy, Run, RunOptions, StopSignal, is_stopped};
use model::chat::PromptTime;
use serde_json::json;
use std::path::Path;
use telemetry::Sinks;

/// Writes two sets of prompts, and returns a configuration that evaluates them.
fn sets(dir: &Path) -> Config {
    let write = |name: &str, words: &[&str]| {
        let rows = words.iter().map(|word| format!("{}\n", json!({"prompt": word}))).collect::<String>();
        std::fs::write(dir.join(name), rows).unwrap();
        dir.join(name).display().to_string()
    };
    let (first, second) = (write("first.jsonl", &["ab", "sun moon"]), write("second.jsonl", &["tree"]));
    Config {
        eval_dataset_name: Some(first),
        eval_datasets: json!({"other": second}).as_object().cloned().unwrap(),
        reward_funcs: vec!["unique_chars".into()],
        num_generations_eval: Some(3),
        ..config(dir, "unused")
    }
}

#[test]
fn an_evaluator_works_for_models_of_one_shape() {
    let dir = directory();
    let (model, ctx) = (dir.path().join("model"), one_thread());
    let sinks = Sinks::new();
    let mut evaluator =
        Evaluator::new(&ctx, sets(dir.path()), (&model, PromptTime(0)), &sinks, StopSignal::new()).unwrap();
    let prompts: Vec<String> = evaluator.prompts().map(|prompt| prompt.text().into_owned()).collect();
    assert_eq!(prompts, ["ab", "sun moon", "tree"]);
    assert_eq!((evaluator.first_prompt().len(), evaluator.template()), (2, None));
    let policy = Policy::load(&ctx, &model, crate::config::ComputeDType::F32).unwrap();
    let mut evaluate = |sampling| evaluator.evaluate(&policy, sampling).unwrap();
    let sampled = evaluate(EvalSampling::Sampled);
    let shape = |outcome: &crate::rollouts::evaluate::Outcome| {
        let groups = outcome.rollouts.groups.iter().map(|group| group.completions.len()).collect::<Vec<_>>();
        (outcome.name.clone(), groups)
    };
    assert_eq!(sampled.iter().map(shape).collect::<Vec<_>>(), [(String::new(), vec![3, 3]), ("other".into(), vec![3])]);
    for outcome in &sampled {
        let scores: Vec<f64> = outcome.rollouts.completions().map(|c| c.rewards[0].unwrap()).collect();
        let mean = scores.iter().sum::<f64>() / scores.len() as f64;
        assert!((outcome.metric("reward").unwrap() - mean).abs() < 1e-12 && outcome.problems.is_empty());
        let words: Vec<usize> = outcome
            .rollouts
            .completions()
            .map(|c| c.content.text().chars().collect::<std::collections::BTreeSet<_>>().len())
            .collect();
        assert_eq!(scores, words.iter().map(|n| *n as f64).collect::<Vec<_>>());
    }
    let ids = |outcomes: &[crate::rollouts::evaluate::Outcome]| {
        let all = outcomes.iter().flat_map(|outcome| outcome.rollouts.completions().map(|c| c.completion.ids.clone()));
        all.collect::<Vec<_>>()
    };
    // A second evaluation has the same result, and greedy completions of a prompt are equal.
    assert_eq!(ids(&evaluate(EvalSampling::Sampled)), ids(&sampled));
    let greedy = ids(&evaluate(EvalSampling::Greedy));
    assert!(greedy.chunks(3).all(|group| group[0] == group[1] && group[1] == group[2]) && greedy != ids(&sampled));
}

#[test]
fn an_evaluation_of_a_model_stops_on_request() {
    let dir = directory();
    let (model, ctx, stop) = (dir.path().join("model"), one_thread(), StopSignal::new());
    let mut evaluator =
        Evaluator::new(&ctx, sets(dir.path()), (&model, PromptTime(0)), &Sinks::new(), stop.clone()).unwrap();
    let policy = Policy::load(&ctx, &model, crate::config::ComputeDType::F32).unwrap();
    stop.request();
    assert!(is_stopped(&evaluator.evaluate(&policy, EvalSampling::Sampled).err().unwrap()));
    let late = Evaluator::new(&ctx, sets(dir.path()), (&model, PromptTime(0)), &Sinks::new(), stop);
    assert!(is_stopped(&late.err().unwrap()));
    let none = Evaluator::new(
        &ctx,
        sets(dir.path()),
        (&dir.path().join("none"), PromptTime(0)),
        &Sinks::new(),
        StopSignal::new(),
    );
    assert!(crate::error::is_bad_input(&none.err().unwrap()));
}

/// A run that evaluates its model before the first step gets the same numbers.
#[test]
fn a_run_and_an_evaluator_get_the_same_metrics() {
    let dir = directory();
    let (model, ctx) = (dir.path().join("model"), one_thread());
    let config = sets(dir.path());
    let mut evaluator =
        Evaluator::new(&ctx, config.clone(), (&model, PromptTime(0)), &Sinks::new(), StopSignal::new()).unwrap();
    let policy = Policy::load(&ctx, &model, crate::config::ComputeDType::F32).unwrap();
    let alone = evaluator.evaluate(&policy, EvalSampling::Sampled).unwrap();
    let logged = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = logged.clone();
    let options = RunOptions::new().context(ctx).only_evaluates().on_log(move |log| {
        seen.lock().unwrap().push([log.get("eval_reward"), log.get("eval_other_reward")]);
        std::ops::ControlFlow::Continue(())
    });
    let train = Some(dir.path().join("first.jsonl").display().to_string());
    let mut run = Run::new(Purpose::Grpo, Config { dataset_name: train, ..config }, options).unwrap();
    run.evaluate_now().unwrap();
    let expected = [alone[0].metric("reward"), alone[1].metric("reward")];
    assert!(expected.iter().all(Option::is_some));
    assert_eq!(*logged.lock().unwrap(), [expected]);
}
