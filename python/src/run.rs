//! Runs training from Python, with the interpreter lock released.

use crate::errors::{exception, of_panic};
use crate::eval_metrics::PythonEvalMetrics;
use crate::fields::method;
use crate::json;
use crate::observer::{Failure, Observer};
use crate::process::use_engine;
use crate::reward::PythonReward;
use crate::rollouts::PythonRollouts;
use lockstep::config::{Layers, Purpose, RewardErrors};
use lockstep::error::{BadInput, OrBadInput};
use lockstep::{Flow, ResumeFrom, Rows, Run, RunDir, RunOptions, RunResult, StopReason};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use telemetry::{Console, ConsoleOptions, Level, Listener, Step};

/// A stop request that any thread may set, and the number of completed steps, which an interrupted callback may not
/// have received.
#[pyclass(frozen)]
#[derive(Default)]
pub struct StopSignal {
    signal: lockstep::StopSignal,
    steps_done: Arc<AtomicU64>,
}

impl StopSignal {
    /// The stop signal for the run.
    pub fn signal(&self) -> lockstep::StopSignal {
        self.signal.clone()
    }
}

#[pymethods]
impl StopSignal {
    #[new]
    fn new() -> StopSignal {
        StopSignal::default()
    }

    /// Requests a stop with a checkpoint.
    fn request(&self) {
        self.signal.request();
    }

    /// Whether a stop was requested.
    fn is_requested(&self) -> bool {
        self.signal.is_requested()
    }

    /// Number of completed optimizer steps.
    fn steps_done(&self) -> u64 {
        self.steps_done.load(Ordering::Relaxed)
    }
}

/// Refuses a directory that contains a run or other files, with the same message as [`run()`].
#[pyfunction]
pub fn check_fresh(output_dir: PathBuf) -> PyResult<()> {
    RunDir::fresh(&output_dir).map(drop).map_err(|error| exception(&error))
}

/// A Python reward: its name, the callable, and whether it scores each group independently.
pub type GivenReward = (String, Py<PyAny>, bool);

/// The inputs of a run.
struct Job {
    purpose: Purpose,
    layers: Layers,
    resume: Option<String>,
    train_rows: Option<Vec<String>>,
    eval_rows: Option<Vec<String>>,
    eval_sets: Vec<(String, Vec<String>)>,
    rewards: Vec<GivenReward>,
    rollout_function: Option<Py<PyAny>>,
    eval_metrics: Option<PythonEvalMetrics>,
    observer: Observer,
    stop: lockstep::StopSignal,
    failure: Failure,
    steps_done: Arc<AtomicU64>,
    silent: bool,
    only_evaluate: bool,
    /// Whether workers generate completions, and call the rewards that score groups independently.
    distributed: bool,
}

/// Trains: `values` is a JSON object of configuration values, rows are JSON objects, `rewards` are `(name, function,
/// by_group)`; `rollout_function`, if given, generates the completions, and `eval_metrics` computes metrics of held-out
/// rows. The methods of `observer` are called with keyword arguments: `begin`, `step_begin`, `step_end`, `epoch_end`,
/// `log`, `save`; `wants` decides what follows. With `only_evaluate`, no optimizer step is taken.
#[pyfunction]
#[pyo3(signature = (
    name, values, *, rewards, observer, stop, rollout_function=None, eval_metrics=None, train_rows=None,
    eval_rows=None, eval_sets=vec![], resume=None, silent=false, only_evaluate=false,
    distributed=false
))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub fn run<'py>(
    py: Python<'py>,
    name: &str,
    values: &str,
    rewards: Vec<GivenReward>,
    observer: Py<PyAny>,
    stop: &Bound<'py, StopSignal>,
    rollout_function: Option<Py<PyAny>>,
    eval_metrics: Option<Bound<'py, PyAny>>,
    train_rows: Option<Vec<String>>,
    eval_rows: Option<Vec<String>>,
    eval_sets: Vec<(String, Vec<String>)>,
    resume: Option<String>,
    silent: bool,
    only_evaluate: bool,
    distributed: bool,
) -> PyResult<Bound<'py, PyDict>> {
    use_engine()?;
    let (purpose, _) = method(name)?;
    let StopSignal { signal, steps_done } = stop.get();
    let (failure, stop) = (Failure::default(), signal.clone());
    let values = json::values(values).map_err(|error| exception(&error))?;
    let eval_metrics =
        eval_metrics.map(|object| PythonEvalMetrics::new(&object, failure.clone(), stop.clone())).transpose()?;
    let job = Job {
        purpose,
        layers: Layers { purpose, values, ..Layers::default() },
        resume,
        train_rows,
        eval_rows,
        eval_sets,
        rewards,
        rollout_function,
        eval_metrics,
        observer: Observer::new(observer.bind(py), failure.clone(), stop.clone())?,
        stop,
        failure: failure.clone(),
        steps_done: steps_done.clone(),
        silent,
        only_evaluate,
        distributed,
    };
    let ended = py.detach(|| {
        // The run is not shared with other threads: it is created, executed and dropped here.
        catch_unwind(AssertUnwindSafe(|| job.run().map(Ended::of)))
    });
    if let Some(error) = failure.take() {
        // The run's error adds only the place to resume from, so it becomes a note of the exception.
        if let Ok(Err(context)) = &ended {
            let _ = error.value(py).call_method1("add_note", (lockstep::error::paragraph(context),));
        }
        return Err(error);
    }
    match ended {
        Ok(Ok(ended)) => ended.to_python(py),
        Ok(Err(error)) => Err(exception(&error)),
        Err(panic) => Err(of_panic(&*panic)),
    }
}

impl Job {
    fn run(self) -> anyhow::Result<RunResult> {
        let warned = self.observer.clone();
        let console = Console::new(ConsoleOptions {
            level: Level::from_env().map_err(BadInput::new)?,
            silent: self.silent,
            warnings: Some(Listener::new(move |text| warned.warn(text))),
            ..ConsoleOptions::default()
        })?;
        let mut branch = match &self.resume {
            Some(resume) => self.branch(resume)?,
            None => None,
        };
        let (resolved, dir, resume_from) = match (&self.resume, &mut branch) {
            (Some(_), Some(branch)) => {
                lockstep::directory::check_command(branch.of(), self.purpose.command())?;
                let (resolved, changes) = lockstep::directory::resolve_resumed(branch.of(), self.layers.clone())?;
                changes.iter().for_each(|change| console.warn(&format!("changed on resume: {change}")));
                let (dir, resume_from) = branch.make()?;
                (resolved, dir, resume_from)
            }
            (None, _) => {
                let resolved = self.layers.resolve()?;
                let Some(out) = resolved.config.output_dir.clone() else {
                    return Err(BadInput::new("`output_dir` is missing: set the directory of the run"));
                };
                (resolved, RunDir::fresh(&out)?, ResumeFrom::Nothing)
            }
            (Some(resume), None) => {
                let (dir, resume_from) = lockstep::directory::find_run(resume, None)?;
                lockstep::directory::check_command(&dir, self.purpose.command())?;
                let (resolved, changes) = lockstep::directory::resolve_resumed(&dir, self.layers.clone())?;
                changes.iter().for_each(|change| console.warn(&format!("changed on resume: {change}")));
                (resolved, dir, resume_from)
            }
        };
        let forgives = resolved.config.reward_errors == RewardErrors::Continue;
        let mut options = RunOptions::new().console(console).stop_signal(self.stop.clone());
        let steps_done = self.steps_done.clone();
        options = options.on_step(move |step| {
            steps_done.store(step.0, Ordering::Relaxed);
            Flow::Continue(())
        });
        options = self.observer.told_by(options);
        if let Some(rows) = self.train_rows {
            options = options.train_rows(parsed(&rows)?);
        }
        if let Some(rows) = self.eval_rows {
            options = options.eval_rows(parsed(&rows)?);
        }
        for (name, rows) in self.eval_sets {
            options = options.eval_set(name, parsed(&rows)?);
        }
        for (name, call, by_group) in self.rewards {
            let (failure, stop) = (self.failure.clone(), self.stop.clone());
            options = options.reward_of_batch(PythonReward { name, call, by_group, failure, stop, forgives });
        }
        if let Some(call) = self.rollout_function {
            let (failure, stop) = (self.failure.clone(), self.stop.clone());
            options = options.rollout_function(PythonRollouts { call, failure, stop });
        }
        if let Some(metrics) = self.eval_metrics {
            options = options.eval_metrics(metrics);
        }
        if self.only_evaluate {
            options = options.only_evaluates();
        }
        if let Some(rendezvous) = crate::launch::rendezvous().filter(|_| !self.only_evaluate) {
            options = options.launched_ranks(rendezvous);
        }
        if self.distributed {
            options = options.distributed(None).functions_of_workers();
        }
        let run = Run::resolved(self.purpose, resolved, dir, resume_from, options);
        if let (Err(_), Some(branch)) = (&run, &branch) {
            branch.remove();
        }
        let mut run = run?;
        self.steps_done.store(run.last_step().0, Ordering::Relaxed);
        let steps = [run.last_step().0, run.total_steps(), run.steps_per_epoch(), run.steps_skipped()];
        let dir = run.dir().root().to_owned();
        let _ = self.observer.call("begin", run.policy(), |py| {
            let arguments = PyDict::new(py);
            let names = ["step", "total_steps", "steps_per_epoch", "steps_skipped"];
            names.into_iter().zip(steps).try_for_each(|(name, steps)| arguments.set_item(name, steps))?;
            arguments.set_item("dir", dir)?;
            Ok(arguments)
        });
        if self.only_evaluate {
            run.evaluate_now()?;
            return run.finish();
        }
        let driven = drive(&mut run);
        if self.failure.is_set() || !matches!(driven, Ok(reason) if reason != StopReason::Interrupted) {
            self.observer.leave(run.last_step(), run.policy());
        }
        driven?;
        run.finish()
    }

    /// The branch to create, if training resumes from a run in another directory.
    fn branch(&self, resume: &str) -> anyhow::Result<Option<lockstep::directory::Branch>> {
        let out = self.layers.clone().resolve()?.config.output_dir;
        out.map_or(Ok(None), |out| lockstep::directory::Branch::find(resume, &out))
    }
}

/// Takes steps until the run ends.
fn drive(run: &mut Run) -> anyhow::Result<StopReason> {
    loop {
        if let Some(reason) = run.step()? {
            return Ok(reason);
        }
    }
}

fn parsed(rows: &[String]) -> anyhow::Result<Rows> {
    let rows = rows.iter().map(|row| serde_json::from_str(row)).collect::<Result<Vec<_>, _>>().or_bad_input()?;
    Rows::try_from(rows)
}

/// The result of a run for Python; the model and its memory are already freed.
struct Ended {
    stop_reason: &'static str,
    step: Step,
    num_tokens: u64,
    best: Option<(Step, f64)>,
    entropy_coef: Option<f64>,
    metrics: Vec<(String, f64)>,
    dir: RunDir,
    time_table: String,
}

impl Ended {
    fn of(result: RunResult) -> Ended {
        let stop_reason = result.stop_reason.name();
        let RunResult { step, num_tokens, best, entropy_coef, metrics, dir, summary, .. } = result;
        Ended {
            stop_reason,
            step,
            num_tokens,
            best,
            entropy_coef,
            metrics,
            dir,
            time_table: summary.table().render(100),
        }
    }

    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (ended, metrics) = (PyDict::new(py), PyDict::new(py));
        self.metrics.iter().try_for_each(|(name, value)| metrics.set_item(name, value))?;
        ended.set_item("stop_reason", self.stop_reason)?;
        ended.set_item("step", self.step.0)?;
        ended.set_item("num_tokens", self.num_tokens)?;
        ended.set_item("best", self.best.map(|(step, metric)| (step.0, metric)))?;
        ended.set_item("entropy_coef", self.entropy_coef)?;
        ended.set_item("metrics", metrics)?;
        ended.set_item("dir", self.dir.root())?;
        ended.set_item("model", self.dir.model())?;
        ended.set_item("time_table", &self.time_table)?;
        Ok(ended)
    }
}
