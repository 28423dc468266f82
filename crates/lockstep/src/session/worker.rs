//! A worker of a distributed run: a process that generates and scores groups for a learner.

use crate::config::{Config, Layers, Purpose, RewardErrors, WorkloadBounds, engine_config, listed};
use crate::data::prompt_dataset::context;
use crate::error::{BadInput, OrBadInput};
use crate::models::{ModelSource, load_generator};
use crate::rollouts::rewards::{ConfiguredReward, asked_by_workers, named_rewards, ready_rewards};
use crate::run;
use crate::run::RunDir;
use crate::sources::workers::{
    CHECKPOINT, Host, Identity, MakeRewards, NatsServer, Parts, Scorers, Shared, WorkerWork, fleet_error, is_server,
    join, share_cores,
};
use crate::stop::StopSignal;
use awaited::Awaited;
use fleet::WorkerName;
use fleet::exchange::spool::{Layout, SpoolWorker};
use fleet::exchange::{LearnerState, WorkerExchange};
use fleet::lock::{Locks, Owner};
use fleet::worker::{End, Work, Worker};
use model::Head;
use model::chat::PromptTime;
use rewards::{Reward, RewardSpec};
use rollout::{Drive, Engine};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

mod awaited;

/// How often the worker checks for the learner's files.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Creates the rewards that are functions of user code, a new set at each call.
pub type MakeFunctions = dyn Fn() -> Vec<Box<dyn Reward>> + Send + Sync;

/// Options of a worker.
pub struct WorkerOptions<'a> {
    /// The directory of the run that the worker joins, or the address `nats://…` of a NATS server.
    pub run: &'a Path,
    /// Token and certificates of the NATS server, whose address is in `run`.
    pub server: NatsServer,
    /// The worker's name, unique in the run.
    pub name: &'a str,
    /// Threads; `None` uses as many as the machine has cores.
    pub threads: Option<usize>,
    /// The sampling profiles whose groups this worker generates; empty for all.
    pub profiles: Vec<String>,
    /// Creates the rewards that are functions of user code; `None` without such functions.
    pub rewards: Option<Arc<MakeFunctions>>,
    /// Whether the worker's build of the program may differ from the learner's.
    pub allow_other_build: bool,
    /// Whether to wait for a learner even if the run has ended, or had no workers.
    pub waits: bool,
    /// Stops the worker.
    pub stop: StopSignal,
    /// Receives messages for the user.
    pub say: &'a dyn Fn(&str),
}

/// The error of a worker that the learner has expelled and whose results it no longer accepts.
#[derive(Debug, thiserror::Error)]
#[error(
    "worker {0} was expelled: one of its groups differs from a repetition of its job; the run's fleet/expelled.jsonl \
     has the first difference. The cause is faulty hardware or a modified program"
)]
pub struct Expelled(pub String);

/// Works for the run until it ends or `stop` is requested. The learner may start later than the worker.
pub fn work(options: WorkerOptions<'_>) -> anyhow::Result<()> {
    work_as(options, |work| work)
}

/// Like [`work`], but `honesty` can replace the worker by one that gives wrong answers, for tests.
pub(super) fn work_as<W: Work>(
    options: WorkerOptions<'_>,
    honesty: impl FnOnce(WorkerWork) -> W,
) -> anyhow::Result<()> {
    let WorkerOptions { run, server, name, threads, profiles, rewards, allow_other_build, waits, stop, say } = options;
    let name = WorkerName::new(name).map_err(BadInput::new)?;
    if name.as_str() == CHECKPOINT {
        return Err(BadInput::new(format!("{name} cannot be a worker's name: it is reserved")));
    }
    let awaited = Awaited { name: name.as_str(), run, is_server: is_server(run), waits, stop: &stop, say };
    // This check comes before the worker creates its directories.
    awaited.refuse_a_run_without_learner(Instant::now())?;
    let (exchange, host): (Box<dyn WorkerExchange + Send>, _) = if awaited.is_server {
        let server = NatsServer { url: run.display().to_string(), ..server };
        let (exchange, watch) = join(&server, name.clone())?;
        (exchange, Some(Host::open(&server, watch)?))
    } else {
        (Box::new(SpoolWorker::join(run, name.clone()).map_err(fleet_error)?), None)
    };
    let mut worker = Worker::new(exchange, name.clone(), profiles.clone());
    let wanted = Wanted { name: &name, threads, profiles: &profiles, rewards, allow_other_build, stop: &stop, say };
    let (files, parts) = loop {
        let Some(state) = awaited.learner(worker.exchange())? else { return Ok(()) };
        match wanted.prepare(run, host.as_ref(), &state) {
            // The next learner has started in the meantime: the state is the old learner's, but the files are the new
            // one's.
            Err(_) if !awaited.is_of_learner(&state)? => {}
            prepared => break prepared?,
        }
    };
    share_cores(&parts.ctx, &files.run)?;
    say(&format!("{name} works for {} with {}", run.display(), parts.ctx.describe()));
    let mut work = honesty(WorkerWork::new(parts));
    let asked = stop.clone();
    let cannot_fetch = || host.as_ref().is_some_and(Host::has_failed);
    match worker.run(&mut work, &|| asked.is_requested() || cannot_fetch()).map_err(fleet_error)? {
        End::RunEnded => Ok(()),
        End::Expelled => Err(Expelled(name.to_string()).into()),
        End::Stopped => match host.as_ref().and_then(Host::failure) {
            Some(error) => Err(error),
            None => Ok(stop.check()?),
        },
    }
}

/// The requested properties of a worker.
struct Wanted<'a> {
    name: &'a WorkerName,
    threads: Option<usize>,
    profiles: &'a [String],
    rewards: Option<Arc<MakeFunctions>>,
    allow_other_build: bool,
    stop: &'a StopSignal,
    say: &'a dyn Fn(&str),
}

impl Wanted<'_> {
    /// Reads the run's files and builds the worker's parts, which must match the learner with this state.
    fn prepare(&self, run: &Path, host: Option<&Host>, state: &LearnerState) -> anyhow::Result<(Files, Parts)> {
        let shared: Shared = serde_json::from_value(state.shared.clone()).or_bad_input_in("learner.json")?;
        let batch = (state.groups as usize, state.max_staleness as usize);
        if host.is_none() {
            refuse_memory_of_others(&Layout::in_run(run), &shared)?;
        }
        if let Some(host) = host {
            wait_for_files(host, shared.run, self.stop, self.say)?;
        }
        let files = match host {
            Some(host) => Files { run: host.dir().to_owned(), model: Some(host.model()) },
            None => Files { run: run.to_owned(), model: None },
        };
        let config = files.config()?;
        refuse_unknown(self.profiles, &config)?;
        let mut parts = parts(&files, config, self.threads, self.rewards.clone(), self.stop.clone(), &shared, batch)?;
        let name = self.name;
        if let Some(what) = parts.identity.other_build(&shared.identity) {
            if !self.allow_other_build {
                return Err(BadInput::new(format!(
                    "{name} cannot work for this run: {what}. Start the worker with the learner's program, or accept \
                     its answers with --allow-other-build: their bits may then differ from those of the learner's \
                     build"
                )));
            }
            (self.say)(&format!("{name} works for a learner of another build: {what}"));
            parts.identity.build = shared.identity.build.clone();
        }
        if let Some(what) = parts.identity.difference(&shared.identity) {
            return Err(BadInput::new(format!("{name} cannot work for this run: {what}")));
        }
        Ok((files, parts))
    }
}

/// Waits until the learner's files, other than weights, have been fetched to this host.
fn wait_for_files(host: &Host, run: [u8; 16], stop: &StopSignal, say: &dyn Fn(&str)) -> anyhow::Result<()> {
    while !host.is_ready(run) {
        stop.check()?;
        host.take_news().iter().for_each(|news| say(news));
        if let Some(error) = host.failure() {
            return Err(error);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// The directories of the run's files, as seen by a worker.
struct Files {
    /// The directory with the configuration and `fleet/learner.json`.
    run: PathBuf,
    /// The directory of the model, if it differs from the configuration's.
    model: Option<PathBuf>,
}

impl Files {
    /// Reads the run's configuration.
    fn config(&self) -> anyhow::Result<Config> {
        let file = RunDir::open(&self.run)?.config();
        Ok(Layers { purpose: Purpose::Grpo, file: Some(file), ..Layers::default() }.resolve()?.config)
    }
}

/// Refuses a learner if this worker cannot open the learner's weights in memory. The worker would otherwise wait
/// forever.
fn refuse_memory_of_others(layout: &Layout, shared: &Shared) -> anyhow::Result<()> {
    let places = shared.slots.values().map(|slot| &slot.path).chain(&shared.base);
    let is_memory = places.into_iter().any(|path| path.starts_with("/proc"));
    let here = Locks::system().this_process();
    let learner = layout.learner_process().filter(|learner| is_memory && !learner.is_in_namespace_of(&here));
    match learner {
        Some(Owner { pid, boot, .. }) if boot != here.boot => Err(BadInput::new(format!(
            "the learner is process {pid} of another machine: join it over the network (`lockstep learner --nats URL \
             --listen ADDR`, `lockstep worker --join URL`)"
        ))),
        Some(Owner { pid, .. }) => Err(BadInput::new(format!(
            "the learner is process {pid} of another container, whose memory this worker cannot open: start the \
             learner with --weights-dir and a directory that both containers see, such as /dev/shm"
        ))),
        None => Ok(()),
    }
}

/// Refuses a sampling profile that the run does not have; the worker would wait forever.
fn refuse_unknown(profiles: &[String], config: &Config) -> anyhow::Result<()> {
    match profiles.iter().find(|name| !config.sampling_profiles.contains_key(*name)) {
        None => Ok(()),
        Some(unknown) => Err(BadInput::new(format!(
            "--profiles {unknown}: the run has no `[sampling_profiles.{unknown}]`; its profiles are: {}",
            listed(config.sampling_profiles.keys().map(String::as_str))
        ))),
    }
}

/// Builds the worker's parts from the run's configuration.
fn parts(
    files: &Files,
    mut config: Config,
    threads: Option<usize>,
    functions: Option<Arc<MakeFunctions>>,
    stop: StopSignal,
    shared: &Shared,
    (groups, staleness): (usize, usize),
) -> anyhow::Result<Parts> {
    let ctx = run::context(config.device, threads.or(config.threads), config.dtype)?;
    let model = match &files.model {
        Some(model) => model.clone(),
        None => ModelSource::of(&config, Head::Lm)?.dir,
    };
    let time = PromptTime(shared.prompt_time_s);
    let assets = load_generator(&model, &config, time)?;
    let identity = Identity::of(&ctx, &config, &assets.files);
    // Other rewards belong to the learner: functions of its program, and models, whose memory each worker would need.
    let here = |spec: &RewardSpec| {
        let is_function = spec.function().or_bad_input()?.is_some();
        let elsewhere = is_function && functions.is_none() || spec.model().or_bad_input()?.is_some();
        anyhow::Ok(!elsewhere)
    };
    let names = rewards::names(&config.reward_funcs).or_bad_input()?;
    let mut own = Vec::new();
    for (spec, name) in std::mem::take(&mut config.reward_funcs).into_iter().zip(names) {
        if here(&spec)? && shared.rewards.contains(&name) {
            own.push(spec);
        }
    }
    config.reward_funcs = own;
    let refuses_failed_rewards = config.reward_errors == RewardErrors::Stop;
    let wanted = shared.rewards.clone();
    let configured = config.clone();
    let has_functions = functions.is_some();
    let make: MakeRewards = Arc::new(move |start: &StopSignal, stop: &StopSignal| {
        let functions_here = functions.as_ref().map_or(Vec::new(), |make| make());
        let named = named_rewards(&configured, functions_here, time, start)?;
        let asked = asked_by_workers(&named, functions.is_some());
        if let Some(missing) = wanted.iter().find(|name| !asked.contains(*name)) {
            return Err(BadInput::new(format!("this worker cannot call the reward `{missing}` of the run")));
        }
        debug_assert!(named.iter().all(|reward| matches!(reward, ConfiguredReward::Ready(..))));
        Ok(ready_rewards(named, Vec::new(), stop))
    });
    // In a run without workers, each reward scores one batch at a time. Here it scores as many batches at once as may
    // be in flight. A program's functions are called by one thread.
    let scorers = if has_functions { 1 } else { staleness + 1 };
    let scorers = Scorers::new(make, assets.tokenizer.clone(), scorers, &stop)?;
    let mut bounds = WorkloadBounds::for_prompts(shared.longest_prompt, config.num_generations);
    bounds.sequences = groups.saturating_mul(config.num_generations);
    let sizes = engine_config(&config, context(&config, &assets), bounds);
    let mut engine = Engine::new(&ctx, &assets.config, sizes).or_bad_input()?;
    engine.set_detokenizer(assets.tokenizer.clone());
    let groups = engine.config().max_num_seqs.div_ceil(config.num_generations);
    Ok(Parts {
        out: std::path::absolute(&files.run)?,
        lora: config.adapter(),
        ctx,
        model: assets.config.clone(),
        drive: Drive::new(engine),
        groups,
        scorers,
        identity,
        refuses_failed_rewards,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::is_bad_input;
    use serde_json::json;

    #[test]
    fn a_worker_with_an_unknown_profile_is_refused() {
        let profiles = json!({"a": {"share": 0.5}, "b": {"share": 0.5}}).as_object().cloned().unwrap();
        let config = Config { sampling_profiles: profiles, ..Config::default() };
        let refused = |names: &[&str], config: &Config| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let error = refuse_unknown(&names, config).err()?;
            assert!(is_bad_input(&error));
            Some(error.to_string())
        };
        assert_eq!((refused(&[], &config), refused(&["b", "a"], &config)), (None, None));
        let words = "--profiles c: the run has no `[sampling_profiles.c]`; its profiles are: a, b";
        assert_eq!(refused(&["a", "c"], &config).as_deref(), Some(words));
        let words = "--profiles a: the run has no `[sampling_profiles.a]`; its profiles are: none";
        assert_eq!(refused(&["a"], &Config::default()).as_deref(), Some(words));
    }

    #[test]
    fn a_worker_reads_the_runs_files_and_refuses_reserved_names() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files { run: dir.path().to_owned(), model: None };
        assert!(is_bad_input(&files.config().unwrap_err()));
        std::fs::write(
            dir.path().join("config.toml"),
            "seed = 7\nmodel_name_or_path = \"m\"\ndataset_name = \"d\"\nreward_funcs = \"gsm8k\"\n",
        )
        .unwrap();
        assert_eq!(files.config().unwrap().seed, 7);
        let stop = StopSignal::new();
        let options = |name| WorkerOptions {
            run: dir.path(),
            server: NatsServer::default(),
            name,
            threads: Some(1),
            profiles: Vec::new(),
            rewards: None,
            allow_other_build: false,
            waits: true,
            stop: stop.clone(),
            say: &|_| {},
        };
        let unnamed = work(options("two words")).unwrap_err();
        assert!(is_bad_input(&unnamed) && unnamed.to_string().contains("cannot name a worker"), "{unnamed:#}");
        stop.request();
        assert!(crate::stop::is_stopped(&work(options("w")).unwrap_err()));
        let expelled = Expelled("w".to_owned()).to_string();
        assert!(expelled.starts_with("worker w was expelled: "), "{expelled}");
    }
}
