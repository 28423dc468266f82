//! `lockstep train --distributed`, `learner` and `worker`: one training run by several processes.

use crate::dashboard::beside;
use crate::options::{ConfigArgs, LogArgs, RewardArgs, RunArgs, SharingArgs, threads, utf8};
use crate::program::{EndedWith, this_program};
use crate::session::{Distribution, new_directory, resolve_distributed, run_on};
use crate::signals::{Promise, requests, stop_on_signals};
use fleet::exchange::spool::Layout;
use fleet::supervisor::{self, Limits, Role};
use lockstep::config::{Config, Layers, Purpose, WorkerKind, worker_kinds};
use lockstep::directory::find_run;
use lockstep::error::OrBadInput;
use lockstep::workers::{NatsServer, Network, WorkerOptions, is_server, work};
use lockstep::{RunDir, StopSignal, bad_input};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// How long a child process may take to save its state after its supervisor has exited.
const GRACE: Duration = Duration::from_secs(60);

/// Starts the learner of a distributed run, which trains on completions from workers. Workers join through the run's
/// directory; they may start before the learner, and leave or join at any time. The configuration is that of `lockstep
/// train`.
#[derive(Debug, clap::Args)]
pub struct LearnerArgs {
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub rewards: RewardArgs,
    #[command(flatten)]
    pub sharing: SharingArgs,
    #[command(flatten)]
    pub network: NetworkArgs,
}

/// How workers on other machines join.
#[derive(Debug, clap::Args)]
pub struct NetworkArgs {
    /// The NATS server with JetStream through which workers join: nats://HOST:PORT or tls://HOST:PORT, followed by
    /// /NAME if the server has several runs.
    #[arg(long, value_name = "URL", requires = "listen")]
    pub nats: Option<String>,
    /// The local address and port from which workers download weights, such as 0.0.0.0:7070.
    #[arg(long, value_name = "ADDR", requires = "nats")]
    pub listen: Option<SocketAddr>,
    /// The address under which workers reach --listen, HOST or HOST:PORT; by default, the address that this machine
    /// uses to reach the NATS server.
    #[arg(long, value_name = "HOST", requires = "listen")]
    pub advertise: Option<String>,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Credentials of a NATS server.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ServerArgs {
    /// A file with the NATS server's token; LOCKSTEP_NATS_TOKEN if not given.
    #[arg(long, value_name = "FILE")]
    pub nats_token_file: Option<PathBuf>,
    /// For a tls:// server: the CA certificate (PEM) that signed the server's certificate, if the system does not have
    /// it.
    #[arg(long, value_name = "FILE")]
    pub nats_ca: Option<PathBuf>,
}

impl ServerArgs {
    fn server(&self, url: String) -> anyhow::Result<NatsServer> {
        let token = match &self.nats_token_file {
            Some(file) => disk::read_to_string(file, disk::most::STATE).or_bad_input_in(file.display())?,
            None => std::env::var("LOCKSTEP_NATS_TOKEN").unwrap_or_default(),
        };
        let token = Some(token.trim().to_owned()).filter(|token| !token.is_empty());
        if let Some(file) = self.nats_ca.as_ref().filter(|file| !file.is_file()) {
            bad_input!("--nats-ca {}: no such file", file.display());
        }
        Ok(NatsServer { url, token, certificates: self.nats_ca.clone() })
    }
}

impl NetworkArgs {
    fn network(self) -> anyhow::Result<Option<Network>> {
        let (Some(url), Some(listen)) = (self.nats, self.listen) else { return Ok(None) };
        let network = Network { server: self.server.server(url)?, listen, advertise: self.advertise };
        network.check()?;
        Ok(Some(network))
    }
}

/// Starts a worker of a distributed run, which generates and scores completions until the run ends. A worker may be
/// killed at any time: another worker then repeats its job.
#[derive(Debug, clap::Args)]
pub struct WorkerArgs {
    /// The run's directory (--out of its learner), which need not exist yet; on another machine, the address of the
    /// learner's NATS server, nats://HOST:PORT.
    #[arg(long, value_name = "DIR|URL")]
    pub join: PathBuf,
    /// The worker's name, unique within the run: letters, digits, - and _.
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Threads; by default the run's `threads`, or all cores.
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// Generates only groups of these sampling profiles; all if not given.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub profiles: Vec<String>,
    /// Allows a learner from another build of the program; results may then differ in their bits.
    #[arg(long)]
    pub allow_other_build: bool,
    /// Also waits for a learner if the run has ended or was not distributed, because a learner will resume it.
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

pub(crate) fn learner(args: LearnerArgs) -> anyhow::Result<()> {
    supervisor::leave_terminal();
    let mut run = args.run;
    refuse_ranks(&run)?;
    args.rewards.give(&mut run.config.more)?;
    let console = run.log.open()?;
    let stop = stop_on_signals(&console, Promise::Run)?;
    stop_without_supervisor(&stop);
    args.sharing.check()?;
    let distribution = Distribution { weights_dir: args.sharing.weights_dir, network: args.network.network()? };
    run_on(Purpose::Grpo, &run, console, stop, Some(distribution))
}

pub(crate) fn worker(args: WorkerArgs) -> anyhow::Result<()> {
    supervisor::leave_terminal();
    let console = args.log.open()?;
    let stop = stop_on_signals(&console, Promise::Stops("the worker returns its job to the queue and exits"))?;
    stop_without_supervisor(&stop);
    let say = |text: &str| console.info(text);
    let WorkerArgs { join, name, threads, profiles, allow_other_build, wait: waits, server, .. } = args;
    let url = if is_server(&join) { join.display().to_string() } else { String::new() };
    let server = server.server(url)?;
    let (run, name) = (&*join, &*name);
    let rewards = None;
    work(WorkerOptions { run, server, name, threads, profiles, rewards, allow_other_build, waits, stop, say: &say })
}

fn stop_without_supervisor(stop: &StopSignal) {
    let stop = stop.clone();
    supervisor::watch_parent(GRACE, move || stop.request());
}

/// Starts a learner and its workers, restarts processes that are killed, and returns when all have exited.
pub(crate) fn supervise(args: &RunArgs, workers: Option<u32>, sharing: &SharingArgs) -> anyhow::Result<()> {
    if workers == Some(0) {
        bad_input!("--workers must be at least 1, got 0; without --distributed, one process does everything");
    }
    refuse_ranks(args)?;
    sharing.check()?;
    let console = args.log.open()?;
    let (out, config) = run_of(args)?;
    let workers = flags_of_workers(&config, workers)?;
    let is_new = RunDir::is_new(&out);
    let first = arguments(args, &out)?;
    let mut shared: Vec<OsString> = args.log.flags().into_iter().map(Into::into).collect();
    if let Some(dir) = &sharing.weights_dir {
        shared.extend(["--weights-dir".into(), dir.clone().into()]);
    }
    let learner = {
        let out = out.clone();
        move |starts: u32| {
            let mut command = this_program();
            command.arg("learner");
            if starts > 0 && out.join("config.toml").is_file() {
                command.arg("--resume").arg(&out)
            } else {
                command.args(&first)
            };
            command.args(&shared);
            command
        }
    };
    let layout = Layout::in_run(&out);
    disk::create_dir_all(layout.root()).or_bad_input_in(out.display())?;
    let role = |(i, flags): (usize, Vec<String>)| {
        let (name, log) = (format!("dev{i}"), layout.root().join(format!("dev{i}.log")));
        let (out, own) = (out.clone(), name.clone());
        let command = move |_| {
            let mut command = this_program();
            command.arg("worker").arg("--join").arg(&out).args(["--name", &own]).args(&flags);
            // A run that is resumed may be marked as ended, or may not have been distributed; its learner starts at the
            // same time.
            command.arg("--wait");
            let file = disk::Options::new().append().create().mode(0o600).open(&log);
            let (stdout, stderr) = match file.and_then(|file| Ok((file.try_clone()?, file))) {
                Ok((stdout, stderr)) => (stdout.into(), stderr.into()),
                Err(_) => (Stdio::null(), Stdio::null()),
            };
            command.stdout(stdout).stderr(stderr);
            command
        };
        Role { name, command: Box::new(command) }
    };
    let (logs, dir) = (layout.root().join("dev1.log"), out.display());
    console.info(&format!(
        "started a learner and {} in {dir}; see `lockstep status {dir}`, and the logs {}, …",
        telemetry::counted(workers.len(), "worker"),
        logs.display()
    ));
    if let Some(port) = args.dashboard {
        beside(&out, port, &console);
    }
    let requests = requests()?;
    let learner = Role { name: "the learner".to_owned(), command: Box::new(learner) };
    let all = (1..).zip(workers).map(role).collect();
    let mut report = |text: &str| {
        if text.contains(" was refused: ") {
            console.warn(&with_last_words(text, layout.root()))
        } else {
            console.warn(text)
        }
    };
    let code = supervisor::run(learner, all, Limits::default(), &mut || requests.try_recv().ok(), &mut report)
        .map_err(|error| anyhow::anyhow!(with_last_words(&error.to_string(), layout.root())))?;
    if is_new && !out.join("config.toml").exists() {
        // The learner refused the run before it began.
        let _ = disk::remove_dir_all(layout.root());
        let _ = std::fs::remove_dir(&out);
    }
    match code {
        0 => Ok(()),
        code => Err(EndedWith(u8::try_from(code).unwrap_or(1)).into()),
    }
}

fn refuse_ranks(args: &RunArgs) -> anyhow::Result<()> {
    match args.ranks {
        None | Some(1) => Ok(()),
        Some(n) => bad_input!(
            "--ranks {n} cannot divide the learner of a run with workers yet: leave out --ranks, or the workers"
        ),
    }
}

impl SharingArgs {
    /// An error if this user cannot create files in the weights directory.
    fn check(&self) -> anyhow::Result<()> {
        let Some(dir) = &self.weights_dir else { return Ok(()) };
        let flag = || format!("--weights-dir {}", dir.display());
        if !dir.is_dir() {
            bad_input!("{}: no such directory; use an existing one, such as /dev/shm", flag());
        }
        let probe = dir.join(format!(".lockstep-{}.probe", telemetry::system::since_1970().as_nanos()));
        disk::Options::new().write().create_new().open(&probe).or_bad_input_in(flag())?;
        disk::remove_file(&probe).or_bad_input_in(flag())
    }
}

/// The command-line flags of each worker: `--workers` identical workers, or the workers in the configuration, or one
/// worker.
fn flags_of_workers(config: &Config, counted: Option<u32>) -> anyhow::Result<Vec<Vec<String>>> {
    if let Some(n) = counted {
        return Ok(vec![Vec::new(); n as usize]);
    }
    let kinds = worker_kinds(config)?;
    let flags = |kind: &WorkerKind| {
        let mut flags = Vec::new();
        if let Some(threads) = kind.threads {
            flags.extend(["--threads".to_owned(), threads.to_string()]);
        }
        if !kind.profiles.is_empty() {
            flags.extend(["--profiles".to_owned(), kind.profiles.join(",")]);
        }
        vec![flags; kind.count as usize]
    };
    Ok(if kinds.is_empty() { vec![Vec::new()] } else { kinds.iter().flat_map(flags).collect() })
}

/// The directory and the configuration of a new or resumed run. Configuration errors are reported here.
fn run_of(args: &RunArgs) -> anyhow::Result<(PathBuf, Config)> {
    let ConfigArgs { out, .. } = &args.config;
    if let Some(resume) = &args.resume {
        let (run, _) = find_run(resume, out.as_deref())?;
        let file = Layers { purpose: Purpose::Grpo, file: Some(run.config()), ..Layers::default() };
        return Ok((run.root().to_owned(), file.resolve()?.config));
    }
    let config = resolve_distributed(&args.config)?.config;
    let out = config.output_dir.clone().unwrap_or_else(new_directory);
    RunDir::fresh(&out)?;
    Ok((std::path::absolute(&out)?, config))
}

/// The command-line arguments of the learner.
fn arguments(args: &RunArgs, out: &Path) -> anyhow::Result<Vec<OsString>> {
    let layers = args.config.layers(Purpose::Grpo)?;
    let mut arguments: Vec<OsString> = layers.file.into_iter().map(Into::into).collect();
    for (key, value) in layers.set {
        arguments.extend(["--set".into(), format!("{key}={value}").into()]);
    }
    match &args.resume {
        Some(resume) => arguments.extend(["--resume".into(), resume.into()]),
        None => arguments.extend(["--set".into(), format!("output_dir={}", utf8("--out", out)?).into()]),
    }
    Ok(arguments)
}

/// Appends the last error in a process's log to a message of the supervisor. The first word of the message is the name
/// of the process.
fn with_last_words(message: &str, logs: &Path) -> String {
    let log = logs.join(format!("{}.log", message.split(' ').next().unwrap_or_default()));
    let text = disk::read(&log, disk::most::STATE).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    match text.lines().rev().find(|line| line.starts_with("error: ")) {
        Some(line) => format!("{message}: {}: {line}", log.display()),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    fn run(words: &[&str]) -> RunArgs {
        Line::parse_from(["train"].iter().chain(words)).run
    }

    #[test]
    fn the_workers_flag_overrides_the_workers_of_the_configuration() {
        let config = |text: &str| -> Config {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("c.toml");
            std::fs::write(&file, text).unwrap();
            let layers = Layers { purpose: Purpose::Show, file: Some(file), ..Layers::default() };
            layers.resolve().unwrap().config
        };
        let flags = |config: &Config, counted: Option<u32>| -> Vec<String> {
            flags_of_workers(config, counted).unwrap().iter().map(|flags| flags.join(" ")).collect()
        };
        assert_eq!(flags(&Config::default(), None), [""]);
        assert_eq!(flags(&Config::default(), Some(3)), ["", "", ""]);
        let of_kinds = config(
            "[sampling_profiles.a]\nshare = 0.5\n[sampling_profiles.b]\nshare = 0.5\n\
             [[workers]]\ncount = 2\nthreads = 3\n[[workers]]\nprofiles = [\"a\", \"b\"]\n",
        );
        assert_eq!(flags(&of_kinds, None), ["--threads 3", "--threads 3", "--profiles a,b"]);
        assert_eq!(flags(&of_kinds, Some(1)), [""]);
    }

    #[test]
    fn the_learner_is_started_with_the_file_keys_and_directory_of_the_run() {
        let words = |args: &RunArgs| -> Vec<String> {
            let words = arguments(args, Path::new("/runs/a")).unwrap();
            words.into_iter().map(|word| word.into_string().unwrap()).collect()
        };
        let new = run(&["c.toml", "--seed", "3", "--set", "beta=0.5"]);
        assert_eq!(words(&new), ["c.toml", "--set", "seed=3", "--set", "beta=0.5", "--set", "output_dir=/runs/a"]);
        let resumed = run(&["--seed", "3", "--resume", "latest"]);
        assert_eq!(words(&resumed), ["--set", "seed=3", "--resume", "latest"]);
    }

    #[test]
    fn zero_workers_and_missing_nats_files_are_refused() {
        let why = supervise(&run(&[]), Some(0), &SharingArgs::default()).unwrap_err().to_string();
        assert!(why.starts_with("--workers must be at least 1, got 0"), "{why}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, " secret\n").unwrap();
        let of = |nats_token_file: Option<PathBuf>, nats_ca: Option<PathBuf>| {
            ServerArgs { nats_token_file, nats_ca }.server("nats://a".to_owned())
        };
        let server = of(Some(file.clone()), Some(file.clone())).unwrap();
        assert_eq!(
            (server.url.as_str(), server.token.as_deref(), server.certificates),
            ("nats://a", Some("secret"), Some(file.clone()))
        );
        std::fs::write(&file, "\n").unwrap();
        assert_eq!(of(Some(file), None).unwrap().token, None, "an empty file must count as no token");
        let none = dir.path().join("none");
        let why = of(None, Some(none.clone())).map(|_| ()).unwrap_err().to_string();
        assert_eq!(why, format!("--nats-ca {}: no such file", none.display()));
        assert!(of(Some(none), None).is_err());
    }
}
