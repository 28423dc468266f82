//! How runs end: by their callers, by evaluations, at their last step, and by errors of the caller's code.

use super::super::{config, directory, one_thread, options, rows, weights_of};
use crate::config::{Config, Purpose, Strategy};
use crate::rollouts::function::{Generate, GivenCompletion, RolloutFunction, RolloutRequest};
use crate::run::eval_metrics::{EvalBatch, EvalMetrics, SetSize};
use crate::{Run, RunEvent, RunOptions, StopReason};
use std::ops::ControlFlow::{Break, Continue};
use std::path::Path;
use std::sync::{Arc, Mutex};
use telemetry::{Event, EventKind, Sink, Sinks, Step};

/// Keeps every event.
#[derive(Clone, Default)]
pub(super) struct Seen(Arc<Mutex<Vec<EventKind>>>);

impl Sink for Seen {
    fn receive(&mut self, event: &Event) -> telemetry::Result<()> {
        self.0.lock().unwrap().push(event.kind.clone());
        Ok(())
    }
}

impl Seen {
    pub(super) fn messages(&self) -> Vec<String> {
        let of = |event: &EventKind| match event {
            EventKind::Message { text, .. } => Some(text.clone()),
            _ => None,
        };
        self.0.lock().unwrap().iter().filter_map(of).collect()
    }

    /// The logged steps, with the names of their metrics.
    fn logged(&self) -> Vec<(u64, Vec<(String, f64)>)> {
        let of = |event: &EventKind| match event {
            EventKind::Metrics { step, values } => Some((step.0, values.clone())),
            _ => None,
        };
        self.0.lock().unwrap().iter().filter_map(of).collect()
    }
}

fn sft() -> RunOptions {
    RunOptions::new().context(one_thread()).train_rows(rows()).eval_rows(rows())
}

/// Two epochs with three steps each.
fn small(dir: &Path, out: &str) -> Config {
    Config { per_device_train_batch_size: 2, logging_steps: 1, save_strategy: Strategy::No, ..config(dir, out) }
}

fn train(config: Config, options: RunOptions) -> crate::RunResult {
    Run::new(Purpose::Sft, config, options).unwrap().run().unwrap()
}

/// The steps of a run's remaining checkpoints.
fn saved(result: &crate::RunResult) -> Vec<u64> {
    let steps = (0..20).filter(|step| result.dir.checkpoint(Step(*step)).is_dir());
    steps.collect()
}

#[test]
fn callbacks_of_every_kind_end_the_run() {
    let dir = directory();
    let at = |ends: bool| if ends { Break(()) } else { Continue(()) };
    let event = |of: fn(&RunEvent<'_>) -> bool| sft().on_event(move |event, _| at(of(event)));
    let every = |out: &str| Config { save_strategy: Strategy::Steps, save_steps: 2, ..small(dir.path(), out) };
    for (out, options, step) in [
        ("step", sft().on_step(move |step| at(step == Step(3))), 3),
        ("log", sft().on_log(move |log| at(log.step == Step(2))), 2),
        ("event of a step", event(|event| matches!(event, RunEvent::Step(Step(4)))), 4),
        ("event of a log", event(|event| matches!(event, RunEvent::Log(log) if log.get("loss").is_some())), 1),
        // The checkpoint of step 2 is complete only when step 3 is prepared, so step 3 is the last.
        ("checkpoint", sft().on_checkpoint(move |step, _| at(step == Step(2))), 3),
        ("event of a checkpoint", event(|event| matches!(event, RunEvent::Checkpoint(Step(2), _))), 3),
    ] {
        let result = train(every(out), options);
        assert_eq!((result.stop_reason, result.step.0), (StopReason::Requested, step), "{out}");
        assert!(result.dir.checkpoint(Step(step)).is_dir() && result.dir.model().is_dir(), "{out}");
    }
}

#[test]
fn events_come_in_order() {
    let dir = directory();
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = events.clone();
    let options = sft().on_event(move |event, policy| {
        assert_eq!(policy.eos_ids, [0]);
        seen.lock().unwrap().push(match event {
            RunEvent::Begin(step) => ("begin", step.0),
            RunEvent::Step(step) => ("step", step.0),
            RunEvent::Epoch(step) => ("epoch", step.0),
            RunEvent::Log(log) => (if log.get("eval_loss").is_some() { "evaluation" } else { "log" }, log.step.0),
            RunEvent::Checkpoint(step, path) => {
                assert!(path.join("run_state.json").is_file());
                ("checkpoint", step.0)
            }
        });
        Continue(())
    });
    let config = Config {
        save_strategy: Strategy::Steps,
        save_steps: 1,
        eval_strategy: Strategy::Steps,
        eval_steps: Some(2),
        eval_on_start: true,
        max_steps: 2,
        ..small(dir.path(), "out")
    };
    train(config, options);
    let expected = [
        ("evaluation", 0),
        ("begin", 0),
        ("step", 1),
        ("log", 1),
        ("begin", 1),
        ("checkpoint", 1),
        ("step", 2),
        ("log", 2),
        ("evaluation", 2),
        ("checkpoint", 2),
    ];
    assert_eq!(*events.lock().unwrap(), expected);
}

#[test]
fn checkpoints_and_evaluations_follow_steps_or_epochs() {
    let dir = directory();
    let of = |save_strategy, save_steps, eval_strategy, out: &str| {
        let seen = Seen::default();
        let config = Config { save_strategy, save_steps, eval_strategy, eval_steps: Some(4), ..small(dir.path(), out) };
        let result = train(config, sft().sink(seen.clone()));
        let evaluated =
            seen.logged().into_iter().filter(|(_, values)| values.iter().any(|(name, _)| name == "eval_loss"));
        (saved(&result), evaluated.map(|(step, _)| step).collect::<Vec<_>>())
    };
    assert_eq!(of(Strategy::No, 2, Strategy::Epoch, "no"), (vec![], vec![3, 6]));
    assert_eq!(of(Strategy::Steps, 4, Strategy::Steps, "steps"), (vec![4, 6], vec![4]));
    assert_eq!(of(Strategy::Epoch, 4, Strategy::No, "epochs"), (vec![3, 6], vec![]));
}

#[test]
fn each_step_logs_its_own_metrics() {
    let dir = directory();
    let (seen, grpo) = (Seen::default(), Seen::default());
    train(Config { max_steps: 4, ..small(dir.path(), "sft") }, sft().sink(seen.clone()));
    let rollout_times = ["prefill_time_s", "decode_time_s", "sampling_time_s"];
    let value = |values: &[(String, f64)], name: &str| values.iter().find(|(own, _)| own == name).map(|(_, x)| *x);
    for (step, values) in seen.logged() {
        assert_eq!(value(&values, "epoch"), Some(step as f64 / 3.0));
        assert!(rollout_times.iter().all(|name| value(&values, name).is_none()), "{values:?}");
        for name in
            ["step_time", "cpu_time_s", "update_time_s", "forward_time_s", "backward_time_s", "optimizer_time_s"]
        {
            assert!(value(&values, name).is_some_and(|seconds| seconds >= 0.0), "{name}");
        }
        assert!(value(&values, "update_tokens_per_s").unwrap() > 0.0 && value(&values, "peak_bytes").unwrap() > 0.0);
    }
    let tokens: Vec<f64> = seen.logged().iter().filter_map(|(_, values)| value(values, "num_tokens")).collect();
    assert!(tokens.len() == 4 && tokens.is_sorted() && tokens[0] > 0.0 && tokens[3] > tokens[0], "{tokens:?}");
    let config = Config { max_steps: 1, ..config(dir.path(), "grpo") };
    Run::new(Purpose::Grpo, config, options().sink(grpo.clone())).unwrap().run().unwrap();
    let values = grpo.logged().remove(0).1;
    assert!(rollout_times.iter().all(|name| value(&values, name).is_some()), "{values:?}");
    assert!(value(&values, "rollout/spec_decode_saved_time_s").is_none(), "nothing is guessed");
}

#[test]
fn resuming_an_ended_run_reports_why_it_ended() {
    let dir = directory();
    let every = |out: &str| Config { save_strategy: Strategy::Steps, save_steps: 3, ..small(dir.path(), out) };
    let done = train(every("done"), sft());
    let resume = |root: &Path| {
        let seen = Seen::default();
        let mut run = Run::resume(Purpose::Sft, root, sft().sink(seen.clone())).unwrap();
        let reason = run.step().unwrap();
        (reason, run.last_step().0, seen.messages())
    };
    let (reason, steps, messages) = resume(done.dir.root());
    assert_eq!((reason, steps), (Some(StopReason::Completed), 6));
    let words = "the run has already ended: it has done 6 of 6 steps";
    assert!(messages.iter().any(|text| text == words), "{messages:?}");
    // Training lowers the loss, but here a higher loss is better, so the two evaluations after the first do not
    // improve.
    let early = Config {
        eval_strategy: Strategy::Steps,
        eval_steps: Some(1),
        save_steps: 1,
        early_stopping_patience: Some(2),
        metric_for_best_model: Some("loss".into()),
        greater_is_better: Some(true),
        ..every("early")
    };
    let stopped = train(early, sft());
    assert_eq!(
        (stopped.stop_reason, stopped.step.0, stopped.best.map(|best| best.0.0)),
        (StopReason::EarlyStopping, 3, Some(1))
    );
    let (reason, steps, messages) = resume(stopped.dir.root());
    assert_eq!((reason, steps), (Some(StopReason::EarlyStopping), 3));
    let words = "the run has already ended: it stopped early after step 3 of 6: 2 evaluations in a row without \
                 improvement (raise early_stopping_patience to continue)";
    assert!(messages.iter().any(|text| text == words), "{messages:?}");
    // A run with steps left continues.
    let half = train(every("half"), sft().on_step(|step| if step == Step(4) { Break(()) } else { Continue(()) }));
    let (reason, steps, messages) = resume(half.dir.root());
    assert_eq!((reason, steps), (None, 5));
    assert!(!messages.iter().any(|text| text.contains("already ended")), "{messages:?}");
}

#[test]
fn the_result_is_the_best_checkpoint() {
    let dir = directory();
    let best = |out: &str| Config {
        eval_strategy: Strategy::Steps,
        save_strategy: Strategy::Steps,
        eval_steps: Some(1),
        save_steps: 1,
        load_best_model_at_end: true,
        save_total_limit: Some(1),
        metric_for_best_model: Some("loss".into()),
        greater_is_better: Some(true),
        max_steps: 3,
        ..small(dir.path(), out)
    };
    let seen = Seen::default();
    let result = train(best("best"), sft().sink(seen.clone()));
    assert_eq!(saved(&result), [1, 3], "the best and the last");
    let weights = |step: u64| weights_of(&result.dir.checkpoint(Step(step)));
    assert!(weights_of(&result.dir.model()) == weights(1) && weights(1) != weights(3));
    assert!(!result.dir.model().join("run_state.json").exists());
    let snapshot = dir.path().join("at the end");
    result.policy.save(&snapshot).unwrap();
    assert!(weights_of(&snapshot) == weights(1), "the policy of the result, too");
    assert!(seen.messages().iter().any(|text| text == "the result is the best checkpoint, of step 1"));
    // If the best checkpoint is missing, the last weights are the result.
    let seen = Seen::default();
    let options = sft().sink(seen.clone()).on_checkpoint(|step, path| {
        if step == Step(3) {
            std::fs::remove_dir_all(path.with_file_name("step-000001")).unwrap();
        }
        Continue(())
    });
    let result = train(best("gone"), options);
    assert!(weights_of(&result.dir.model()) == weights_of(&result.dir.checkpoint(Step(3))));
    let words = "the best checkpoint, of step 1, is missing: the result is the last weights";
    assert!(seen.messages().iter().any(|text| text == words), "{:?}", seen.messages());
}

/// Metrics of the caller that fail at the first batch.
struct Failing;

impl EvalMetrics for Failing {
    fn batch_size(&self) -> usize {
        2
    }
    fn keeps_outputs(&self) -> bool {
        false
    }
    fn needs_loss(&self) -> bool {
        false
    }
    fn begin(&mut self, _name: &str, _size: SetSize) -> anyhow::Result<()> {
        Ok(())
    }
    fn batch(&mut self, _batch: EvalBatch) -> anyhow::Result<()> {
        anyhow::bail!("a bug of the caller's")
    }
    fn end(&mut self) -> anyhow::Result<Vec<(String, f64)>> {
        Ok(Vec::new())
    }
}

impl RolloutFunction for Failing {
    fn complete(&mut self, _: &RolloutRequest<'_>, _: &mut Generate<'_>) -> anyhow::Result<Vec<GivenCompletion>> {
        anyhow::bail!("a bug of the caller's")
    }
}

#[test]
fn an_error_of_the_callers_code_saves_the_last_step_and_tells_how_to_resume() {
    let dir = directory();
    let evaluated = Config { eval_strategy: Strategy::Steps, eval_steps: Some(2), ..small(dir.path(), "metrics") };
    let mut run = Run::new(Purpose::Sft, evaluated, sft().eval_metrics(Failing)).unwrap();
    assert_eq!(run.step().unwrap(), None);
    let error = format!("{:#}", run.step().unwrap_err());
    let root = run.dir().root().display().to_string();
    assert!(error.starts_with(&format!("stopped after step 2; resume the run in {root}: ")), "{error}");
    assert!(
        error.contains("the metrics of the evaluation failed") && error.contains("a bug of the caller's"),
        "{error}"
    );
    assert!(run.dir().checkpoint(Step(2)).is_dir() && !run.dir().model().exists());
    let function = Config { max_steps: 1, ..config(dir.path(), "function") };
    let mut run = Run::new(Purpose::Grpo, function, options().rollout_function(Failing)).unwrap();
    let error = format!("{:#}", run.step().unwrap_err());
    let root = run.dir().root().display().to_string();
    assert!(error.starts_with(&format!("stopped after step 0; resume the run in {root}: ")), "{error}");
    assert!(error.contains("a bug of the caller's") && !run.dir().checkpoint(Step(0)).exists(), "{error}");
}

#[test]
fn completions_tables_and_printed_completions_are_limited_as_configured() {
    let dir = directory();
    let seen = Seen::default();
    let config = Config {
        log_completions: true,
        log_completions_steps: Some(4),
        num_completions_to_print: Some(3),
        reward_funcs: vec!["function:vowels".into()],
        ..config(dir.path(), "out")
    };
    Run::new(Purpose::Grpo, config, options().sink(seen.clone())).unwrap().run().unwrap();
    let events = seen.0.lock().unwrap();
    let tables = events.iter().filter_map(|event| match event {
        EventKind::Completions { rows, shown } => Some((rows.clone(), *shown)),
        _ => None,
    });
    let tables: Vec<_> = tables.collect();
    assert_eq!(tables.iter().map(|(rows, shown)| (rows.step.0, *shown)).collect::<Vec<_>>(), [(2, 0), (4, 3), (6, 3)]);
    for (rows, _) in &tables {
        assert_eq!((rows.prompts.len(), rows.completions.len(), rows.advantages.len()), (4, 4, 4));
        assert_eq!((&rows.prompts[0], &rows.prompts[2]), (&rows.prompts[1], &rows.prompts[3]));
        let names: Vec<&str> = rows.rewards.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["vowels"], "it is asked once");
        let vowels = |text: &str| text.chars().filter(|c| "aeiou".contains(*c)).count() as f64;
        let scores = rows.completions.iter().map(|text| Some(vowels(text.as_str().unwrap()))).collect::<Vec<_>>();
        assert_eq!(rows.rewards[0].1, scores);
    }
}

/// A run that only evaluates takes no steps, reads no training data and leaves no model.
#[test]
fn a_run_that_only_evaluates_takes_no_steps() {
    let dir = directory();
    let seen = Seen::default();
    let config = Config { dataset_name: Some("/no/such/data".into()), ..small(dir.path(), "out") };
    let options = RunOptions::new().context(one_thread()).eval_rows(rows()).only_evaluates().sink(seen.clone());
    let mut run = Run::new(Purpose::Sft, config, options).unwrap();
    run.evaluate_now().unwrap();
    assert_eq!((run.step().unwrap(), run.last_step().0), (Some(StopReason::Requested), 0));
    let result = run.finish().unwrap();
    assert!(!result.dir.model().exists() && saved(&result).is_empty());
    assert_eq!(seen.logged().len(), 1);
    let no_model = crate::session::plan(Purpose::Sft, &Config::default(), false, &Sinks::new()).unwrap_err();
    let words = "no model: give --model DIR, or model_name_or_path in the configuration";
    assert_eq!((crate::error::is_bad_input(&no_model), no_model.to_string()), (true, words.to_owned()));
}
