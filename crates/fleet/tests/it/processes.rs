//! Tests of learner, workers and supervisor as processes that are killed. Each process is this test program, started
//! again with only the test [`a_process`].

use crate::fake::{FakeWork, check_log, count_kill, learn, sequential, slots};
use fleet::exchange::spool::{Layout, SpoolLearner, SpoolWorker};
use fleet::supervisor::{self, Limits, Role};
use fleet::worker::{Proceeded, Work, Worker};
use fleet::{Job, JobName, Plan, WorkerName};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn process(role: &str, out: &Path, settings: &[(&str, String)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::a_process", "--nocapture", "--test-threads=1"]);
    command.env("FLEET_ROLE", role).env("FLEET_OUT", out).stdout(Stdio::null());
    let log = std::fs::OpenOptions::new().append(true).create(true).open(out.join("log")).unwrap();
    command.stderr(log).envs(settings.iter().map(|(key, value)| (*key, value)));
    command
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

fn plan() -> Plan {
    Plan {
        chunks: true,
        stale_after_ms: number("FLEET_STALE_MS", 1500),
        straggler_after_ms: Some(400),
        failures_per_job: number("FLEET_DEATHS", 1_000_000) as u32,
        kills_per_job: number("FLEET_DEATHS", 1_000_000) as u32,
        ..Plan::new(number("FLEET_BATCHES", 10), 3, 2)
    }
}

/// Work that aborts the process when it begins the job with this name.
struct Fragile(FakeWork, Option<String>);

impl Work for Fragile {
    fn has_room(&self) -> bool {
        self.0.has_room()
    }

    fn begin(&mut self, job: Job) {
        if self.1.as_deref() == Some(&job.name.to_string()) {
            std::process::abort();
        }
        self.0.begin(job);
    }

    fn forget(&mut self, job: JobName) {
        self.0.forget(job);
    }

    fn proceed(&mut self) -> Proceeded {
        self.0.proceed()
    }

    fn stages(&self) -> Vec<(JobName, String)> {
        self.0.stages()
    }
}

/// The entry point of each process. As a test it does nothing.
#[test]
fn a_process() {
    let Ok(role) = std::env::var("FLEET_ROLE") else { return };
    let out = PathBuf::from(std::env::var_os("FLEET_OUT").unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    supervisor::watch_parent(Duration::from_secs(10), move || stopped.store(true, Ordering::Relaxed));
    let stopped = || stop.load(Ordering::Relaxed);
    let ended = match role.as_str() {
        "learner" => SpoolLearner::open(&out).and_then(|exchange| {
            let end = learn(&out, plan(), exchange, 3, &stopped)?;
            std::fs::write(out.join("end"), format!("{end:?}")).unwrap();
            Ok(())
        }),
        "supervisor" => {
            let inherited = || Vec::new();
            let learner =
                Role { name: "learner".to_owned(), command: Box::new(|_| process("learner", &out, &inherited())) };
            let worker = |i: u64| {
                let (out, name) = (out.clone(), format!("dev{i}"));
                Role { name: name.clone(), command: Box::new(move |_| process(&name, &out, &[])) }
            };
            let limits =
                Limits { restarts: 1_000_000, kills: 1_000_000, grace: Duration::from_secs(5), ..Limits::default() };
            let workers = (1..=number("FLEET_WORKERS", 2)).map(worker).collect();
            let code = supervisor::run(learner, workers, limits, &mut || None, &mut |text| eprintln!("{text}"));
            std::process::exit(code.unwrap());
        }
        name => SpoolWorker::join(&out, WorkerName::new(name).unwrap()).and_then(|exchange| {
            let takes = Duration::from_millis(number("FLEET_TAKES_MS", 4));
            let fake = FakeWork::new(&out, slots(&plan()), takes, true);
            let mut work = Fragile(fake, std::env::var("FLEET_KILLER").ok());
            Worker::new(exchange, WorkerName::new(name).unwrap(), Vec::new()).run(&mut work, &stopped).map(drop)
        }),
    };
    if let Err(error) = ended {
        eprintln!("{role}: {error}");
        std::process::exit(if matches!(error, fleet::Error::Refused(_)) { 2 } else { 1 });
    }
    std::process::exit(0);
}

/// PIDs of the running processes according to the locks that they hold, the learner first.
fn pids(out: &Path) -> Vec<Option<u32>> {
    let status = fleet::status::read(out).unwrap();
    let learner = status.learner.filter(|_| status.learner_alive).map(|learner| learner.pid);
    std::iter::once(learner).chain(status.workers.iter().map(|worker| worker.alive)).collect()
}

fn signal(pid: u32, signal: Signal) {
    if pid > 0 {
        let _ = kill_process(Pid::from_raw(pid as i32).unwrap(), signal);
    }
}

fn lives(pid: u32) -> bool {
    test_kill_process(Pid::from_raw(pid as i32).unwrap()).is_ok()
}

/// Waits for a process. If the test fails, the log and the status of the run are printed.
fn wait(child: &mut Child, out: &Path) -> std::process::ExitStatus {
    let ended = testing::wait_for_end;
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ended("a process of the fleet", child)))
        .unwrap_or_else(|_| panic!("the process does not end: {:?}\n{}", fleet::status::read(out), log(out)))
}

fn log(out: &Path) -> String {
    std::fs::read_to_string(out.join("log")).unwrap_or_default()
}

fn check_end(out: &Path, batches: u64) {
    let plan = Plan { chunks: true, ..Plan::new(batches, 3, 2) };
    let end = std::fs::read_to_string(out.join("end")).unwrap();
    assert_eq!(end, format!("{:?}", Some(sequential(&plan))), "the weights at the end\n{}", log(out));
    assert!(check_log(out).unwrap() as u64 >= batches);
}

/// Kills random processes `kills` times. The run must end with the weights of the undisturbed run, and a batch that is
/// trained on more than once must have the same scores each time.
fn kill_at_random(kills: u64, batches: u64) {
    let out = tempfile::tempdir().unwrap();
    let out = out.path();
    let settings = [("FLEET_BATCHES", batches.to_string()), ("FLEET_KILLS", kills.to_string())];
    let mut supervisor = process("supervisor", out, &settings).spawn().unwrap();
    let mut seed = 7u64;
    let mut random = move |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % n
    };
    let mut killed = [0u64; 2];
    while killed[0] + killed[1] < kills && supervisor.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5 + random(60)));
        let pids = pids(out);
        let which = if random(4) == 0 { 0 } else { random(pids.len() as u64) as usize };
        if let Some(pid) = pids[which] {
            signal(pid, Signal::KILL);
            count_kill(out);
            killed[usize::from(which > 0)] += 1;
        }
    }
    let status = wait(&mut supervisor, out);
    assert_eq!(status.code(), Some(0), "{}", log(out));
    check_end(out, batches);
    assert_eq!(killed[0] + killed[1], kills, "the run ended before the last kill: {killed:?}\n{}", log(out));
    eprintln!("{} kills of the learner, {} of workers, {} steps", killed[0], killed[1], check_log(out).unwrap());
}

#[test]
fn two_hundred_kills_change_no_bit() {
    kill_at_random(200, 200);
}

/// Run by `cargo xtask nightly fleet_kills`.
#[test]
#[ignore = "minutes: the nightly check runs it"]
fn two_thousand_kills_change_no_bit() {
    kill_at_random(2000, 2000);
}

#[test]
fn without_its_supervisor_every_process_ends_and_the_next_start_resumes() {
    let out = tempfile::tempdir().unwrap();
    let out = out.path();
    let settings = [("FLEET_BATCHES", "40".to_owned()), ("FLEET_TAKES_MS", "20".to_owned())];
    let mut supervisor = process("supervisor", out, &settings).spawn().unwrap();
    let trained = || std::fs::read_to_string(out.join("trained.log")).is_ok_and(|text| text.lines().count() >= 3);
    let running = || pids(out).into_iter().flatten().collect::<Vec<u32>>();
    let running = testing::wait_for("three batches are trained on while a learner and two workers run", || {
        trained().then(running).filter(|running| running.len() == 3)
    });
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    testing::wait_until("every process ends", || !running.iter().any(|pid| lives(*pid)));
    assert!(!out.join("end").exists() || std::fs::read_to_string(out.join("end")).unwrap() == "None");
    let mut supervisor = process("supervisor", out, &settings).spawn().unwrap();
    assert_eq!(wait(&mut supervisor, out).code(), Some(0), "{}", log(out));
    check_end(out, 40);
}

#[test]
fn a_stopped_worker_is_killed_after_the_limit_and_not_before() {
    // A batch has at least two jobs of 40 ms each, so 100 batches take longer than the limit.
    for (limit_ms, batches, is_killed) in [(3000, 100, true), (600_000, 30, false)] {
        let out = tempfile::tempdir().unwrap();
        let out = out.path();
        let settings = [
            ("FLEET_BATCHES", batches.to_string()),
            ("FLEET_TAKES_MS", "40".to_owned()),
            ("FLEET_STALE_MS", limit_ms.to_string()),
        ];
        let mut worker = process("dev1", out, &settings).spawn().unwrap();
        let mut other = process("dev2", out, &settings).spawn().unwrap();
        let mut learner = process("learner", out, &settings).spawn().unwrap();
        testing::wait_until("the learner and both workers run", || pids(out).iter().flatten().count() == 3);
        signal(worker.id(), Signal::STOP);
        if is_killed {
            assert_eq!(wait(&mut worker, out).signal(), Some(9), "{}", log(out));
        } else {
            std::thread::sleep(Duration::from_millis(300));
            signal(worker.id(), Signal::CONT);
            assert_eq!(wait(&mut worker, out).code(), Some(0), "the worker was killed\n{}", log(out));
        }
        assert_eq!(wait(&mut learner, out).code(), Some(0), "{}", log(out));
        assert_eq!(wait(&mut other, out).code(), Some(0), "the other worker was killed\n{}", log(out));
        assert_eq!(log(out).contains("worker dev1 was killed: it made no progress"), is_killed, "{}", log(out));
        check_end(out, batches);
    }
}

#[test]
fn a_job_that_kills_its_worker_three_times_ends_the_run_and_is_named() {
    let out = tempfile::tempdir().unwrap();
    let out = out.path();
    let settings = [("FLEET_KILLER", "000004.0".to_owned()), ("FLEET_DEATHS", "3".to_owned())];
    let mut supervisor = process("supervisor", out, &settings).spawn().unwrap();
    assert_eq!(wait(&mut supervisor, out).code(), Some(1), "{}", log(out));
    assert!(log(out).contains("3 workers") && log(out).contains("job 000004.0"), "{}", log(out));
    assert_eq!(pids(out).into_iter().flatten().count(), 0, "nothing is left running");
}

#[test]
fn duplicate_learners_and_workers_are_refused_and_the_process_is_named() {
    let out = tempfile::tempdir().unwrap();
    let out = out.path();
    let mut worker = process("dev1", out, &[]).spawn().unwrap();
    let name = WorkerName::new("dev1").unwrap();
    testing::wait_until("the worker runs", || {
        Layout::in_run(out).alive(&name).exists() && pids(out).iter().flatten().count() >= 1
    });
    let mut second = process("dev1", out, &[]).spawn().unwrap();
    assert_eq!(wait(&mut second, out).code(), Some(2));
    let refusal = format!("is already running: process {}", worker.id());
    assert!(log(out).contains(&refusal) && log(out).contains("another --name"), "{}", log(out));
    let first = SpoolLearner::open(out).unwrap();
    let mut second = process("learner", out, &[]).spawn().unwrap();
    assert_eq!(wait(&mut second, out).code(), Some(2));
    let refusal = format!("a learner of {} is already running: process {}", out.display(), std::process::id());
    assert!(log(out).contains(&refusal), "{}", log(out));
    drop(first);
    worker.kill().unwrap();
    worker.wait().unwrap();
}
