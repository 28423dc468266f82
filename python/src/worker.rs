//! A worker of a distributed run: a process that generates, and scores with Python functions.

use crate::errors::{exception, of_panic};
use crate::observer::Failure;
use crate::process::use_engine;
use crate::reward::PythonReward;
use crate::run::{GivenReward, StopSignal};
use lockstep::workers::{MakeFunctions, NatsServer, WorkerOptions};
use pyo3::prelude::*;
use rewards::Reward;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

/// Works for the run in this directory until the run ends or `stop` is set. `rewards` are `(name, function, by_group)`.
/// `profiles` are the sampling profiles whose groups this worker generates; if empty, all. `allow_other_build` accepts
/// a learner from another build. `waits` also waits for the learner of a run that has ended or had no workers. Messages
/// for the user go to `say`.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "Python's keywords")]
#[pyo3(signature = (
    run, name, *, rewards, stop, say, threads=None, profiles=Vec::new(), allow_other_build=false, waits=false
))]
pub fn work(
    py: Python<'_>,
    run: PathBuf,
    name: &str,
    rewards: Vec<GivenReward>,
    stop: &Bound<'_, StopSignal>,
    say: Py<PyAny>,
    threads: Option<usize>,
    profiles: Vec<String>,
    allow_other_build: bool,
    waits: bool,
) -> PyResult<()> {
    use_engine()?;
    let (failure, stop) = (Failure::default(), stop.get().signal());
    let make: Arc<MakeFunctions> = {
        let (failure, stop) = (failure.clone(), stop.clone());
        Arc::new(move || {
            let reward = |(name, call, by_group): &GivenReward| {
                let (name, call) = (name.clone(), Python::attach(|py| call.clone_ref(py)));
                let (by_group, failure, stop) = (*by_group, failure.clone(), stop.clone());
                Box::new(PythonReward { name, call, by_group, failure, stop, forgives: false }) as Box<dyn Reward>
            };
            rewards.iter().map(reward).collect()
        })
    };
    let say = |text: &str| Python::attach(|py| drop(say.call1(py, (text,))));
    let token = std::env::var("LOCKSTEP_NATS_TOKEN").ok().filter(|token| !token.is_empty());
    let server = NatsServer { token, ..NatsServer::default() };
    let ended = py.detach(|| {
        let (rewards, run) = (Some(make), &*run);
        let options =
            WorkerOptions { run, server, name, threads, profiles, rewards, allow_other_build, waits, stop, say: &say };
        catch_unwind(AssertUnwindSafe(|| lockstep::workers::work(options)))
    });
    match (failure.take(), ended) {
        (Some(error), _) => Err(error),
        (None, Ok(ended)) => ended.map_err(|error| exception(&error)),
        (None, Err(panic)) => Err(of_panic(&*panic)),
    }
}
