//! Tests that drive training runs from user code, through the library's public interface.

mod drafts;
mod elsewhere;
mod goes_on;
mod liars;
mod memory;
mod profile;
mod receivers;
mod stale;
mod stop;
mod waits;
mod workers;

use super::{Run, RunOptions, TakeStep, TrainingRun};
use crate::config::{Config, Purpose, Strategy};
use crate::run::task::{Task, TrainingTask};
use crate::{LogRecord, Rows, StopReason, StopSignal};
use kernels::Context;
use model::tokenizer::{SpecialTokens, Tokenizer};
use model::{ModelConfig, Weights};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, atomic::AtomicUsize, atomic::Ordering};
use std::{ops::ControlFlow, path::Path};
use telemetry::{Event, EventKind, Sink, Step};

const SHAPE: &str = r#"{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 40,
"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
"head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
"tie_word_embeddings": true, "attention_bias": false, "bos_token_id": null, "eos_token_id": 0}"#;

pub(crate) fn one_thread() -> Context {
    crate::context(None, Some(1), crate::config::ComputeDType::F32).unwrap()
}

/// Creates a directory with a tiny model with random weights.
pub(crate) fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = Arc::new(ModelConfig::parse(SHAPE).unwrap());
    let weights = Weights::random(one_thread().memory(), &config, 1).unwrap();
    let special = SpecialTokens { eos: Some("<e>".into()), ..SpecialTokens::default() };
    let target = dir.path().join("model");
    Tokenizer::characters("abcdefghijklmnopqrstuvwxyz .,?".chars(), &special).unwrap().save(&target).unwrap();
    model::io::save_model(&target, &config, &weights, None, Default::default()).unwrap();
    dir
}

pub(crate) fn rows() -> Rows {
    let row = |(i, word)| json!({"prompt": format!("{word} "), "completion": format!("{word}."), "row": i});
    let words = ["ab", "sun", "moon", "tree", "x", "river"];
    Rows::try_from(words.into_iter().enumerate().map(row).collect::<Vec<Value>>()).unwrap()
}

/// A configuration of six steps, logged every second step.
pub(crate) fn config(dir: &Path, out: &str) -> Config {
    Config {
        model_name_or_path: Some(dir.join("model").display().to_string()),
        output_dir: Some(dir.join(out)),
        num_generations: 2,
        per_device_train_batch_size: 4,
        max_completion_length: 6,
        learning_rate: 0.01,
        max_steps: 6,
        logging_steps: 2,
        save_steps: 2,
        ..Config::default()
    }
}

/// Options with a reward that counts vowels.
fn options() -> RunOptions {
    RunOptions::new().context(one_thread()).train_rows(rows()).reward("vowels", |sample| {
        Some(sample.completion_text().chars().filter(|c| "aeiou".contains(*c)).count() as f64)
    })
}

fn weights_of(model: &Path) -> Vec<u8> {
    std::fs::read(model.join("model.safetensors")).unwrap()
}

#[test]
fn a_closure_scores_rows_in_memory() {
    let dir = directory();
    let scored = Arc::new(AtomicUsize::new(0));
    let count = scored.clone();
    let options = RunOptions::new().context(one_thread()).train_rows(rows()).reward("row", move |sample| {
        assert!(sample.prompt_text().ends_with(' '));
        count.fetch_add(1, Ordering::Relaxed);
        assert_eq!(Some(sample.row() as f64), sample.column("row")?.as_f64());
        sample.column("row")?.as_f64()
    });
    let result = Run::new(Purpose::Grpo, config(dir.path(), "out"), options).unwrap().run().unwrap();
    assert_eq!((result.stop_reason, result.step.0), (StopReason::Completed, 6));
    assert_eq!(scored.load(Ordering::Relaxed), 6 * 4);
    let mean = result.metric("rewards/row/mean").unwrap();
    assert!((0.0..=5.0).contains(&mean) && result.metric("reward") == Some(mean), "{mean}");
    assert!(result.num_tokens > 0 && result.dir.model().join("config.json").exists());
    // The run's configuration names the injected objects.
    let written = std::fs::read_to_string(result.dir.config()).unwrap();
    assert!(written.contains("function:row") && written.contains("dataset_name = \"memory\""), "{written}");
}

#[test]
fn missing_options_are_reported() {
    let dir = directory();
    let refused = |config: Config, options: RunOptions, word: &str| {
        let error = Run::new(Purpose::Grpo, config, options).err().expect("refused");
        assert!(crate::error::is_bad_input(&error) && error.to_string().contains(word), "{error}");
        assert!(!dir.path().join("out").exists());
    };
    let plain = || RunOptions::new().context(one_thread());
    refused(config(dir.path(), "out"), plain().train_rows(rows()), "reward");
    refused(config(dir.path(), "out"), plain().reward("r", |_| Some(1.0)), "training data");
    let named = Config { reward_funcs: vec!["function:mine".into()], ..config(dir.path(), "out") };
    refused(named, plain().train_rows(rows()), "function:mine");
    refused(Config { output_dir: None, ..config(dir.path(), "out") }, options(), "output_dir");
    assert!(Rows::try_from(vec![json!("no row")]).is_err());
}

#[test]
fn a_run_driven_step_by_step_has_the_bits_of_a_whole_run() {
    let dir = directory();
    let whole = Run::new(Purpose::Grpo, config(dir.path(), "whole"), options()).unwrap().run().unwrap();
    let mut run = Run::new(Purpose::Grpo, config(dir.path(), "steps"), options()).unwrap();
    assert_eq!(run.total_steps(), 6);
    for step in 1..6 {
        assert_eq!((run.step().unwrap(), run.last_step().0), (None, step));
    }
    assert_eq!(run.step().unwrap(), Some(StopReason::Completed));
    assert_eq!(run.step().unwrap(), Some(StopReason::Completed), "an ended run takes no further step");
    let stepped = run.finish().unwrap();
    assert_eq!(weights_of(&whole.dir.model()), weights_of(&stepped.dir.model()));
    assert_ne!(weights_of(&whole.dir.model()), weights_of(&dir.path().join("model")));
}

#[test]
fn a_caller_can_save_and_evaluate_between_any_steps() {
    let dir = directory();
    let config = Config { save_strategy: Strategy::No, logging_steps: 1, ..config(dir.path(), "out") };
    let order = Arc::new(Mutex::new(Vec::new()));
    let (steps, logs) = (order.clone(), order.clone());
    let options = options().eval_rows(rows()).on_log(move |log: &LogRecord<'_>| {
        logs.lock().unwrap().push((log.step.0, if log.get("eval_reward").is_some() { "evaluation" } else { "log" }));
        ControlFlow::Continue(())
    });
    let options = options.on_step(move |step| {
        steps.lock().unwrap().push((step.0, "step"));
        ControlFlow::Continue(())
    });
    let mut run = Run::new(Purpose::Grpo, config, options).unwrap();
    run.save_checkpoint().unwrap();
    assert_eq!(std::fs::read_dir(run.dir().checkpoints()).unwrap().count(), 0, "no step has been taken");
    run.step().unwrap();
    run.save_checkpoint().unwrap();
    // A saved step is not saved again.
    let mark = run.dir().checkpoint(Step(1)).join("mark");
    std::fs::write(&mark, "").unwrap();
    run.save_checkpoint().unwrap();
    assert!(mark.exists());
    run.step().unwrap();
    run.evaluate_now().unwrap();
    let saved = [1, 2].map(|step| run.dir().checkpoint(Step(step)).is_dir());
    assert!(saved == [true, false] && run.steps_per_epoch() > 0);
    // A run that is finished before its last step has a checkpoint and can be resumed.
    let result = run.finish().unwrap();
    assert_eq!((result.stop_reason, result.step.0), (StopReason::Requested, 2));
    assert!(result.dir.checkpoint(Step(2)).is_dir() && result.dir.model().is_dir());
    let expected = [(1, "step"), (1, "log"), (2, "step"), (2, "log"), (2, "evaluation")];
    assert_eq!(*order.lock().unwrap(), expected);
}

#[test]
fn a_callback_ends_the_run_and_an_interrupted_one_resumes_to_the_same_bits() {
    let dir = directory();
    let whole = Run::new(Purpose::Grpo, config(dir.path(), "whole"), options()).unwrap().run().unwrap();

    let stops =
        options().on_step(|step| if step == Step(3) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) });
    let stopped = Run::new(Purpose::Grpo, config(dir.path(), "stopped"), stops).unwrap().run().unwrap();
    assert_eq!((stopped.stop_reason, stopped.step.0), (StopReason::Requested, 3));
    assert!(stopped.dir.checkpoint(Step(3)).is_dir() && stopped.dir.model().is_dir());

    let (stop, saved) = (StopSignal::new(), Arc::new(Mutex::new(Vec::new())));
    let (signal, checkpoints) = (stop.clone(), saved.clone());
    let interrupted = options().stop_signal(stop).on_checkpoint(move |step, path| {
        checkpoints.lock().unwrap().push((step.0, path.join("run_state.json").exists()));
        if step == Step(4) {
            signal.request();
        }
        ControlFlow::Continue(())
    });
    let interrupted = Run::new(Purpose::Grpo, config(dir.path(), "interrupted"), interrupted).unwrap().run().unwrap();
    // The checkpoint was written while the fifth step was prepared; this step is taken, and is the last.
    assert_eq!((interrupted.stop_reason, interrupted.step.0), (StopReason::Interrupted, 5));
    assert_eq!(*saved.lock().unwrap(), [(2, true), (4, true), (5, true)]);
    assert!(!interrupted.dir.model().exists());
    let resumed = Run::resume(Purpose::Grpo, interrupted.dir.root(), options()).unwrap().run().unwrap();
    assert_eq!((resumed.stop_reason, resumed.step.0), (StopReason::Completed, 6));
    assert_eq!(weights_of(&whole.dir.model()), weights_of(&resumed.dir.model()));
}

/// A run that a signal stops during a step must save a checkpoint, even if checkpoints are off.
#[test]
fn a_stop_leaves_a_checkpoint_whatever_is_configured() {
    let dir = directory();
    let stop = StopSignal::new();
    let signal = stop.clone();
    let options = options().stop_signal(stop).on_step(move |step| {
        if step == Step(3) {
            signal.request();
        }
        ControlFlow::Continue(())
    });
    let config = Config { save_strategy: Strategy::No, ..config(dir.path(), "out") };
    let result = Run::new(Purpose::Grpo, config, options).unwrap().run().unwrap();
    assert_eq!((result.stop_reason, result.step.0), (StopReason::Interrupted, 3));
    assert!(result.dir.checkpoint(Step(3)).is_dir() && !result.dir.model().exists());
}

/// A reward program that scores all completions as 1, and logs 0 in the first round of each step and 1 in the second.
const ROUNDS: &str = r#"i=0; while read -r line; do
echo "{\"rewards\": [1, 1, 1, 1], \"metrics\": {\"second_round\": $((i % 2))}}"; i=$((i + 1)); done
"#;

/// Discards a generation in its second round. The regenerated batch must not count the first round twice.
#[test]
fn a_discarded_generation_leaves_no_trace() {
    let dir = directory();
    let program = dir.path().join("rounds.sh");
    std::fs::write(&program, ROUNDS).unwrap();
    // All rewards are equal, so each group is replaced: eight completions per step.
    let run = |out: &str| Config {
        dynamic_sampling: true,
        dynamic_sampling_max_rounds: 2,
        logging_steps: 1,
        reward_funcs: vec![format!("command:sh {}", program.display()).as_str().into()],
        ..config(dir.path(), out)
    };
    let stopping_at = |completion: usize| {
        let (asked, stop) = (AtomicUsize::new(0), StopSignal::new());
        let plain = RunOptions::new().context(one_thread()).train_rows(rows()).stop_signal(stop.clone());
        plain.reward("one", move |_| {
            if asked.fetch_add(1, Ordering::Relaxed) + 1 == completion {
                stop.request();
            }
            Some(1.0)
        })
    };
    let whole = Run::new(Purpose::Grpo, run("whole"), stopping_at(0)).unwrap().run().unwrap();
    let interrupted = Run::new(Purpose::Grpo, run("run"), stopping_at(3 * 8 + 8)).unwrap().run().unwrap();
    // No checkpoint was due after the third step; it is saved after the generation is discarded.
    assert_eq!((interrupted.stop_reason, interrupted.step.0), (StopReason::Interrupted, 3));
    let resumed = Run::resume(Purpose::Grpo, interrupted.dir.root(), stopping_at(0)).unwrap().run().unwrap();
    assert_eq!((resumed.step.0, resumed.num_tokens), (6, whole.num_tokens));
    let lines = std::fs::read_to_string(resumed.dir.metrics()).unwrap();
    let second = |line: &str| {
        let line: serde_json::Map<String, Value> = serde_json::from_str(line).unwrap();
        line.iter().find(|(name, _)| name.ends_with("second_round")).and_then(|(_, value)| value.as_f64())
    };
    let steps = lines.lines().filter(|line| !line.contains("\"alarm\":"));
    assert_eq!(steps.map(second).collect::<Vec<_>>(), [Some(0.5); 6], "{lines}");
}

#[test]
fn num_tokens_counts_the_prompt_once_per_completion() {
    let dir = directory();
    let config = Config { max_completion_length: 1, max_steps: 3, ..config(dir.path(), "out") };
    let result = Run::new(Purpose::Grpo, config, options()).unwrap().run().unwrap();
    // Three steps with two prompts each cover all prompts once. The prompts have 25 tokens, and two completions of one
    // token each.
    assert_eq!(result.num_tokens, 2 * 25 + 3 * 4);
}

/// With a learning rate of 0, the steps on a generation can only differ by their samples.
#[test]
fn each_step_on_a_generation_uses_other_samples() {
    let dir = directory();
    let entropies = Arc::new(Mutex::new(Vec::new()));
    let seen = entropies.clone();
    let options = options().on_log(move |log: &LogRecord<'_>| {
        seen.lock().unwrap().push(log.get("entropy").unwrap());
        ControlFlow::Continue(())
    });
    let config = Config {
        steps_per_generation: Some(3),
        learning_rate: 0.0,
        max_steps: 3,
        logging_steps: 1,
        ..config(dir.path(), "out")
    };
    Run::new(Purpose::Grpo, config, options).unwrap().run().unwrap();
    let found = entropies.lock().unwrap();
    assert!(found.len() == 3 && found[0] != found[1] && found[1] != found[2] && found[0] != found[2], "{found:?}");
}

/// If the last checkpoint could not be written, the run must take no further steps.
#[test]
fn a_completed_run_takes_no_further_step() {
    let dir = directory();
    let mut run = Run::new(Purpose::Grpo, Config { max_steps: 1, ..config(dir.path(), "out") }, options()).unwrap();
    let checkpoints = run.dir().checkpoints();
    std::fs::remove_dir_all(&checkpoints).unwrap();
    std::fs::write(&checkpoints, "in the way").unwrap();
    assert!(run.step().is_err());
    assert_eq!((run.step().unwrap(), run.last_step().0), (Some(StopReason::Completed), 1));
}

/// A task whose evaluations return the given losses.
struct Evaluated {
    task: Box<dyn TakeStep>,
    losses: std::array::IntoIter<f64, 6>,
}

impl Task for Evaluated {
    fn shown_metrics(&self) -> &'static [&'static str] {
        self.task.shown_metrics()
    }
    fn evaluate(&mut self, _run: &mut TrainingRun) -> anyhow::Result<Option<Vec<(String, f64)>>> {
        Ok(self.losses.next().map(|loss| vec![("eval_loss".to_owned(), loss)]))
    }
}

impl TakeStep for Evaluated {
    fn take_step(&mut self, run: &mut TrainingRun) -> anyhow::Result<()> {
        self.task.take_step(run)
    }
}

#[test]
fn patience_counts_evaluations_in_a_row() {
    let dir = directory();
    let ends = |out: &str, losses: [f64; 6]| {
        let config = Config {
            eval_strategy: Strategy::Steps,
            eval_steps: Some(1),
            early_stopping_patience: Some(2),
            metric_for_best_model: Some("loss".into()),
            ..config(dir.path(), out)
        };
        let sft = RunOptions::new().context(one_thread()).train_rows(rows()).eval_rows(rows());
        let mut run = Run::new(Purpose::Sft, config, sft).unwrap();
        run.task = Box::new(Evaluated { task: run.task, losses: losses.into_iter() });
        let result = run.run().unwrap();
        (result.stop_reason, result.step.0, result.best.map(|(step, metric)| (step.0, metric)))
    };
    let early = ends("early", [3.0, 4.0, 5.0, 0.0, 0.0, 0.0]);
    assert_eq!(early, (StopReason::EarlyStopping, 3, Some((1, 3.0))));
    let apart = ends("apart", [3.0, 4.0, 2.0, 2.5, 1.0, 1.5]);
    assert_eq!(apart, (StopReason::Completed, 6, Some((5, 1.0))));
}

/// A task that waits for a batch that never arrives, as a learner may wait for its workers.
struct Waiting(Box<dyn Fn() + Send>);

impl TrainingTask for Waiting {
    type Batch = ();

    fn next_batch(&mut self, run: &TrainingRun) -> anyhow::Result<()> {
        loop {
            run.stop.check()?;
            (self.0)();
        }
    }
    fn step(&mut self, _run: &mut TrainingRun, (): ()) -> anyhow::Result<()> {
        unreachable!("no batch")
    }
}

impl Task for Waiting {
    fn shown_metrics(&self) -> &'static [&'static str] {
        &[]
    }
    fn evaluate(&mut self, _run: &mut TrainingRun) -> anyhow::Result<Option<Vec<(String, f64)>>> {
        Ok(None)
    }
}

#[test]
fn a_stop_request_ends_the_wait_for_a_batch() {
    let dir = directory();
    let (stop, looks) = (StopSignal::new(), AtomicUsize::new(0));
    let signal = stop.clone();
    let sft = RunOptions::new().context(one_thread()).train_rows(rows()).stop_signal(stop);
    let mut run = Run::new(Purpose::Sft, config(dir.path(), "waits"), sft).unwrap();
    run.task = Box::new(Waiting(Box::new(move || {
        if looks.fetch_add(1, Ordering::Relaxed) == 3 {
            signal.request();
        }
    })));
    let result = run.run().unwrap();
    assert_eq!((result.stop_reason, result.step.0), (StopReason::Interrupted, 0));
    assert!(!result.dir.checkpoint(Step(0)).exists());
}

/// After a reward has failed a step, the same run repeats the step in the same process.
#[test]
fn a_failed_step_is_repeated_with_the_same_bits() {
    let dir = directory();
    let config = |out: &str| Config {
        reward_patience: 1,
        reward_funcs: vec!["function:vowels".into()],
        logging_steps: 1,
        ..config(dir.path(), out)
    };
    let whole = Run::new(Purpose::Grpo, config("whole"), options()).unwrap().run().unwrap();
    let asked = AtomicUsize::new(0);
    let failing = RunOptions::new().context(one_thread()).train_rows(rows()).reward("vowels", move |sample| {
        // Fails once for each completion of the fourth step.
        let fails = (12..16).contains(&asked.fetch_add(1, Ordering::Relaxed));
        let vowels = sample.completion_text().chars().filter(|c| "aeiou".contains(*c)).count();
        (!fails).then_some(vowels as f64)
    });
    let mut run = Run::new(Purpose::Grpo, config("failed"), failing).unwrap();
    (0..3).for_each(|_| assert_eq!(run.step().unwrap(), None));
    let error = format!("{:#}", run.step().unwrap_err());
    assert!(error.contains("stopped after step 3") && error.contains("vowels"), "{error}");
    assert!(run.last_step() == Step(3) && run.dir().checkpoint(Step(3)).is_dir());
    let failed = run.run().unwrap();
    assert_eq!((failed.step.0, failed.num_tokens), (6, whole.num_tokens));
    assert_eq!(weights_of(&whole.dir.model()), weights_of(&failed.dir.model()));
    let metrics = |dir: &crate::RunDir| -> Vec<Value> {
        let text = std::fs::read_to_string(dir.metrics()).unwrap();
        let line = |line: &str| serde_json::from_str::<serde_json::Map<String, Value>>(line).unwrap();
        let without_times = |line: serde_json::Map<String, Value>| {
            line.into_iter().filter(|(name, _)| !stop::is_measured(name)).collect::<serde_json::Map<_, _>>().into()
        };
        text.lines().map(line).map(without_times).collect()
    };
    assert_eq!(metrics(&whole.dir), metrics(&failed.dir));
}

#[test]
fn texts_are_learned_from_their_second_token_on() {
    let dir = directory();
    let words = ["ab.", "sun.", "moon.", "tree.", "xy.", "river."];
    let texts = words.map(|text| json!({"body": text}));
    let split = words.map(|text| json!({"prompt": text[..1], "completion": text[1..]}));
    let train = |rows: Vec<Value>, out: &str, change: fn(&mut Config)| {
        let mut config = config(dir.path(), out);
        change(&mut config);
        let options = RunOptions::new().context(one_thread()).train_rows(Rows::try_from(rows).unwrap());
        Run::new(Purpose::Sft, config, options).map(|run| weights_of(&run.run().unwrap().dir.model()))
    };
    let renamed = |c: &mut Config| drop(c.columns.insert("text".into(), "body".into()));
    let whole = train(texts.to_vec(), "whole", renamed).unwrap();
    assert_eq!(whole, train(split.to_vec(), "split", |_| {}).unwrap());
    let mixed = vec![json!({"text": "ab."}), split[1].clone()];
    let refused = |error: anyhow::Error| error.to_string();
    assert!(refused(train(mixed, "mixed", |_| {}).unwrap_err()).contains("row 1: the row has no completion"));
    let short = vec![json!({"text": ""})];
    assert!(refused(train(short, "short", |_| {}).unwrap_err()).contains("no row has a token to learn"));
}

#[test]
fn rows_in_memory_can_be_named_evaluation_sets() {
    let dir = directory();
    let config = Config { eval_strategy: Strategy::Steps, eval_steps: Some(6), ..config(dir.path(), "sets") };
    let options = options().eval_rows(rows()).eval_set("easy", rows());
    let result = Run::new(Purpose::Grpo, config, options).unwrap().run().unwrap();
    let file = std::fs::read_to_string(result.dir.metrics()).unwrap();
    let line = file.lines().find(|line| line.contains("eval_")).expect("nothing was evaluated");
    let metrics: Value = serde_json::from_str(line).unwrap();
    assert_eq!(metrics["eval_easy_reward"].as_f64().expect("no such set"), metrics["eval_reward"].as_f64().unwrap());
}

/// A sink that keeps all logged lines.
struct Logged(Arc<Mutex<Vec<(u64, usize)>>>);

impl Sink for Logged {
    fn receive(&mut self, event: &Event) -> telemetry::Result<()> {
        if let EventKind::Metrics { step, values } = &event.kind {
            self.0.lock().unwrap().push((step.0, values.len()));
        }
        Ok(())
    }
}

#[test]
fn sinks_and_callbacks_receive_what_is_logged_to_files() {
    let dir = directory();
    let (events, logs) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let seen = logs.clone();
    let sft = RunOptions::new().context(one_thread()).train_rows(rows()).eval_rows(rows());
    let sft = sft.sink(Logged(events.clone())).on_log(move |log: &LogRecord<'_>| {
        seen.lock().unwrap().push((log.step.0, log.metrics.len()));
        ControlFlow::Continue(())
    });
    let config = Config { eval_strategy: Strategy::Epoch, ..config(dir.path(), "sft") };
    let result = Run::new(Purpose::Sft, config, sft).unwrap().run().unwrap();
    let file = std::fs::read_to_string(result.dir.metrics()).unwrap();
    let line = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        (line["step"].as_u64().unwrap(), line.as_object().unwrap().len() - ["step", "time_s"].len())
    };
    let lines: Vec<(u64, usize)> = file.lines().map(line).collect();
    assert!(file.contains("eval_loss") && lines.iter().any(|(step, _)| *step == 6), "{file}");
    assert_eq!([&*events.lock().unwrap(), &*logs.lock().unwrap()], [&lines; 2]);
}

/// The environment variable that marks the child process of the test below.
const CHILD: &str = "LOCKSTEP_TEST_SILENT";

#[test]
fn without_a_console_nothing_is_printed() {
    let dir = directory();
    if std::env::var_os(CHILD).is_some() {
        let result = Run::new(Purpose::Grpo, config(dir.path(), "out"), options()).unwrap().run().unwrap();
        assert!(std::fs::read_to_string(result.dir.log(0)).unwrap().contains("parameters"));
        return;
    }
    let test = ["--exact", "session::tests::without_a_console_nothing_is_printed", "--nocapture", "--quiet"];
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let child = again.args(test).env(CHILD, "1").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(child.status.success(), "{}", text(&child.stderr));
    assert_eq!(text(&child.stderr), "");
    let is_from_harness =
        |line: &str| ["", "."].contains(&line) || line.starts_with("running") || line.contains("test result");
    assert!(text(&child.stdout).lines().all(is_from_harness), "{}", text(&child.stdout));
}
