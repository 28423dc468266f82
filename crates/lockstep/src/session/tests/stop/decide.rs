//! Evaluations and checkpoints after steps and epochs, if the caller decides.

use super::super::{config, directory, one_thread, rows};
use crate::config::{Config, Purpose, Strategy};
use crate::{Follow, Run, RunEvent, RunOptions};
use std::ops::ControlFlow::Continue;
use std::sync::{Arc, Mutex};
use telemetry::Step;

/// An event as a word and its step.
fn named(event: &RunEvent<'_>) -> String {
    match event {
        RunEvent::Begin(step) => format!("begin{step}"),
        RunEvent::Step(step) => format!("step{step}"),
        RunEvent::Epoch(step) => format!("epoch{step}"),
        RunEvent::Log(log) if log.get("eval_loss").is_some() => format!("eval{}", log.step),
        RunEvent::Log(log) => format!("log{}", log.step),
        RunEvent::Checkpoint(step, _) => format!("save{step}"),
    }
}

/// The events of a run of two epochs with three steps each. `asks` decides from the events so far.
fn events(change: impl Fn(&mut Config), asks: impl Fn(&[String], Follow, bool) -> bool + 'static) -> String {
    let dir = directory();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (events, so_far) = (seen.clone(), seen.clone());
    let options = RunOptions::new()
        .context(one_thread())
        .train_rows(rows())
        .eval_rows(rows())
        .on_event(move |event, _| {
            events.lock().unwrap().push(named(event));
            Continue(())
        })
        .decide(move |what, is_due| asks(&so_far.lock().unwrap(), what, is_due));
    let mut config = Config {
        per_device_train_batch_size: 2,
        logging_steps: 1,
        save_strategy: Strategy::No,
        ..config(dir.path(), "out")
    };
    change(&mut config);
    Run::new(Purpose::Sft, config, options).unwrap().run().unwrap();
    seen.lock().unwrap().join(" ")
}

fn last(events: &[String], name: &str) -> bool {
    events.last().is_some_and(|event| event == name)
}

/// The order of events for each decision that a caller can make.
#[test]
fn callers_decide_the_actions_after_steps_and_epochs() {
    let one = |config: &mut Config| config.max_steps = 1;
    let four = |config: &mut Config| config.max_steps = 4;
    let begin = |config: &mut Config| (config.max_steps, config.eval_on_start) = (1, true);
    // As configured, with an event at the end of each epoch and of the run.
    assert_eq!(
        events(four, |_, _, is_due| is_due),
        "begin0 step1 log1 begin1 step2 log2 begin2 step3 log3 epoch3 begin3 step4 log4 epoch4"
    );
    // Nothing is done except logging the last step.
    assert_eq!(events(four, |_, _, _| false), "begin0 step1 begin1 step2 begin2 step3 epoch3 begin3 step4 epoch4 log4");
    // Every action is done, and nothing is logged or saved twice.
    assert_eq!(events(one, |_, _, _| true), "begin0 step1 log1 eval1 save1 epoch1 eval1");
    assert_eq!(events(begin, |_, _, is_due| is_due), "eval0 begin0 step1 log1 epoch1");
    // An action requested after an event is done when it is due.
    let after = |of: Follow, event: &'static str| {
        move |events: &[String], what: Follow, _: bool| what == of && last(events, event)
    };
    assert_eq!(events(one, after(Follow::Log, "step1")), "begin0 step1 log1 epoch1");
    assert_eq!(events(one, after(Follow::Evaluate, "step1")), "begin0 step1 eval1 epoch1 log1");
    assert_eq!(events(one, after(Follow::Save, "step1")), "begin0 step1 epoch1 save1 log1");
    assert_eq!(events(one, after(Follow::Log, "epoch1")), "begin0 step1 epoch1 log1");
    assert_eq!(events(one, after(Follow::Evaluate, "epoch1")), "begin0 step1 epoch1 eval1 log1");
    assert_eq!(events(one, after(Follow::Save, "epoch1")), "begin0 step1 epoch1 save1 log1");
    // If the caller waits for it, a checkpoint is complete before the next step begins.
    let saves = |waits: bool| {
        move |events: &[String], what: Follow, _: bool| match what {
            Follow::Save => last(events, "step1"),
            Follow::Complete => waits,
            _ => false,
        }
    };
    let two = |config: &mut Config| config.max_steps = 2;
    assert_eq!(events(two, saves(true)), "begin0 step1 save1 begin1 step2 epoch2 log2");
    assert_eq!(events(two, saves(false)), "begin0 step1 begin1 save1 step2 epoch2 log2");
    // If the caller chooses, an epoch's evaluation comes after the epoch's event.
    let by_epoch = |config: &mut Config| (config.max_steps, config.eval_strategy) = (3, Strategy::Epoch);
    assert_eq!(
        events(by_epoch, |_, what, is_due| what == Follow::Evaluate && is_due),
        "begin0 step1 begin1 step2 begin2 step3 eval3 epoch3 log3"
    );
    let late = |events: &[String], what: Follow, _: bool| what == Follow::Evaluate && last(events, "epoch3");
    assert_eq!(events(by_epoch, late), "begin0 step1 begin1 step2 begin2 step3 epoch3 eval3 log3");
    // The first epoch ends after its first step, and the steps of the other epochs follow.
    let five = |config: &mut Config| config.max_steps = 5;
    assert_eq!(
        events(five, |events, what, is_due| match what {
            Follow::EndEpoch => last(events, "step1"),
            Follow::Log => false,
            _ => is_due,
        }),
        "begin0 step1 epoch1 begin1 step2 begin2 step3 begin3 step4 epoch4 begin4 step5 epoch5 log5"
    );
    let best = |config: &mut Config| {
        (config.max_steps, config.save_strategy, config.load_best_model_at_end) = (2, Strategy::Steps, true);
        (config.eval_strategy, config.eval_steps, config.save_steps) = (Strategy::Steps, Some(1), 1);
        config.metric_for_best_model = Some("eval_loss".into());
    };
    assert_eq!(
        events(best, |events, what, _| what == Follow::Evaluate && last(events, "step1")),
        "begin0 step1 eval1 begin1 save1 step2 epoch2 save2 log2",
        "the best evaluation is always saved"
    );
}

/// A callback that breaks ends the run after the step, and the end of the epoch is reported. At the beginning of a
/// step, it ends the run before that step.
#[test]
fn breaking_at_any_event_ends_the_run_after_the_step() {
    for at in ["begin1", "step2", "log2", "eval2", "save2", "epoch3"] {
        let dir = directory();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let events = seen.clone();
        let options = RunOptions::new()
            .context(one_thread())
            .train_rows(rows())
            .eval_rows(rows())
            .on_event(move |event, _| {
                let name = named(event);
                let stops = name == at;
                events.lock().unwrap().push(name);
                if stops { std::ops::ControlFlow::Break(()) } else { Continue(()) }
            })
            .decide(|what, is_due| is_due || what == Follow::Complete);
        let config = Config {
            per_device_train_batch_size: 2,
            logging_steps: 1,
            save_strategy: Strategy::Steps,
            save_steps: 2,
            eval_strategy: Strategy::Steps,
            eval_steps: Some(2),
            max_steps: 5,
            ..config(dir.path(), "out")
        };
        // With two rows per step, an epoch has three steps.
        let result = Run::new(Purpose::Sft, config, options).unwrap().run().unwrap();
        let events = seen.lock().unwrap().join(" ");
        if at == "begin1" {
            assert!(result.step == Step(1) && events.starts_with("begin0 step1 log1 begin1"), "{events}");
            assert!(!events.contains("step2"), "{events}");
            continue;
        }
        let two = "begin0 step1 log1 begin1 step2 log2 eval2 save2 ";
        let (steps, rest) = if at == "epoch3" { (3, "begin2 step3 log3 epoch3 save3") } else { (2, "epoch2") };
        assert_eq!((result.step.0, events), (steps, format!("{two}{rest}")), "{at}");
    }
}
