//! Ranks that a launcher starts, here with the variables of each launcher: the bits of one process, faults, and
//! launches that are refused.

use crate::distributed_faults::signal;
use crate::support::runs::{arguments, directory, good, same};
use crate::support::{command, listing};
use lockstep::ranks::Launch;
use std::path::Path;
use std::process::{Output, Stdio, id};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use testing::wait_until;

/// The variables with which a launcher starts a rank of `n` ranks. `launch` tells launches apart.
type Launcher = fn(rank: usize, n: usize, launch: u32) -> String;

fn torchrun(rank: usize, n: usize, launch: u32) -> String {
    format!(
        "RANK={rank} WORLD_SIZE={n} LOCAL_RANK={rank} LOCAL_WORLD_SIZE={n} MASTER_ADDR=localhost MASTER_PORT={launch} \
         TORCHELASTIC_RUN_ID=tests-{} OMP_NUM_THREADS=1",
        id()
    )
}

fn open_mpi(rank: usize, n: usize, launch: u32) -> String {
    let world = "OMPI_COMM_WORLD";
    format!("{world}_RANK={rank} {world}_SIZE={n} {world}_LOCAL_SIZE={n} PMIX_NAMESPACE={}.{launch}", id())
}

/// Launches are told apart by their parent process, so at most one runs at a time.
fn pmi(rank: usize, n: usize, _: u32) -> String {
    format!("PMI_RANK={rank} PMI_SIZE={n}")
}

fn srun(rank: usize, n: usize, launch: u32) -> String {
    let job = id();
    format!(
        "SLURM_PROCID={rank} SLURM_LOCALID={rank} SLURM_NTASKS={n} SLURM_NNODES=1 SLURM_JOB_ID={job} \
         SLURM_STEP_ID={launch}"
    )
}

fn new_launch() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

struct Process {
    id: u32,
    output: Receiver<Output>,
    is_finished: Arc<AtomicBool>,
}

struct Ended {
    code: Option<i32>,
    printed: String,
}

impl Process {
    /// Starts `lockstep` with these variables.
    fn start(root: &Path, arguments: &[&str], variables: &str) -> Process {
        let mut command = command(root, arguments);
        command.envs(variables.split_whitespace().map(|pair| pair.split_once('=').unwrap()));
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (id, (sender, output)) = (child.id(), channel());
        let is_finished = Arc::<AtomicBool>::default();
        let finished = is_finished.clone();
        std::thread::spawn(move || {
            let _ = sender.send(child.wait_with_output().unwrap());
            finished.store(true, Ordering::Release);
        });
        Process { id, output, is_finished }
    }

    fn is_finished(&self) -> bool {
        self.is_finished.load(Ordering::Acquire)
    }

    fn ended(self) -> Ended {
        let Output { status, stdout, stderr } = testing::receive("the process ends", &self.output);
        let printed = [stdout, stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        Ended { code: status.code(), printed }
    }
}

/// Starts all ranks of one launch, the last one first.
fn launch(root: &Path, arguments: &[&str], launcher: Launcher, n: usize) -> Vec<Process> {
    let number = new_launch();
    let start = |rank| Process::start(root, arguments, &launcher(rank, n, number));
    let mut processes: Vec<_> = (0..n).rev().map(start).collect();
    processes.reverse();
    processes
}

/// Waits for all ranks, which must exit with this code, and all but rank 0 print nothing. Returns the text of rank 0.
#[track_caller]
fn all_end(processes: Vec<Process>, code: i32) -> String {
    let mut ended: Vec<_> = processes.into_iter().map(Process::ended).collect();
    let first = ended.remove(0);
    assert_eq!(first.code, Some(code), "{}", first.printed);
    for other in ended {
        assert_eq!((other.code, &*other.printed), (Some(code), ""), "rank 0 printed:\n{}", first.printed);
    }
    first.printed
}

#[test]
fn the_ranks_of_each_launcher_give_the_bits_of_one_process() {
    let dir = directory();
    let root = dir.path();
    let kinds: [(&str, Launcher, usize, &[&str]); 5] = [
        ("train", torchrun, 2, &["beta=0.04", "per_device_train_batch_size=8", "record_rollouts=true"]),
        ("train", srun, 4, &["algorithm=ppo", "num_mini_batches=2", "per_device_train_batch_size=8"]),
        ("sft", open_mpi, 4, &["packing=false"]),
        ("reward", pmi, 2, &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"]),
        ("dpo", pmi, 4, &["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"]),
    ];
    for (i, (purpose, launcher, n, set)) in kinds.into_iter().enumerate() {
        let [one, started, launched] = ["one", "started", "launched"].map(|kind| format!("{kind}-{i}"));
        let printed = all_end(launch(root, &arguments(purpose, &launched, set), launcher, n), 0);
        let cores = std::thread::available_parallelism().unwrap().get();
        let threads = (cores / n).max(1); // and not the one of OMP_NUM_THREADS
        let line = format!("{n} ranks of {threads} thread");
        assert!(printed.contains(&line) && printed.contains(&format!("gradient_shares = {n}: ")), "{printed}");
        let shares = format!("gradient_shares={n}");
        good(root, &arguments(purpose, &one, &[set, &[&*shares]].concat()));
        same(&root.join(&one), &root.join(&launched));
        if purpose == "train" {
            let n = n.to_string();
            good(root, &[arguments(purpose, &started, set), vec!["--ranks", &n]].concat());
            same(&root.join(&started), &root.join(&launched));
        }
    }
}

#[test]
fn a_process_that_is_alone_runs_without_ranks() {
    let dir = directory();
    let root = dir.path();
    for (i, variables) in [
        "RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=1",
        // The shell of a batch script, and torchrun with one process in a step of two tasks.
        "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_NNODES=1 SLURM_JOB_ID=7",
        "RANK=0 WORLD_SIZE=1 SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_JOB_ID=7 SLURM_STEP_ID=0",
    ]
    .into_iter()
    .enumerate()
    {
        let out = format!("run-{i}");
        let arguments = arguments("sft", &out, &["max_steps=1", "eval_strategy=no"]);
        let ended = Process::start(root, &arguments, variables).ended();
        assert_eq!(ended.code, Some(0), "{}", ended.printed);
        let config = std::fs::read_to_string(root.join(out).join("config.toml")).unwrap();
        assert!(config.contains("gradient_shares = 1  # default\n") && !ended.printed.contains("ranks"), "{variables}");
    }
}

#[test]
fn a_killed_rank_ends_the_launch_and_another_one_resumes_the_run() {
    let dir = directory();
    let root = dir.path();
    let set = ["gradient_shares=4", "per_device_train_batch_size=8", "save_steps=1"];
    good(root, &arguments("train", "whole", &set));
    let mut ranks = launch(root, &arguments("train", "killed", &set), torchrun, 4);
    let checkpoint = root.join("killed/checkpoints/step-000002/files.json");
    wait_until("a checkpoint is written", || checkpoint.exists());
    let killed = ranks.remove(2);
    signal(killed.id, "9");
    let printed = all_end(ranks, 1);
    let why = format!("error: rank 2 of 4 (process {}) ended or was killed", killed.id);
    let last = printed.lines().last().unwrap_or_default();
    assert!(
        last.starts_with(&why) && last.contains(": resume the run ") && last.contains("lockstep-2.log"),
        "{printed}"
    );
    let how = ["; stopped after step ", ", during an optimizer step"];
    assert!(how.iter().any(|how| last.contains(how)), "{printed}");
    assert_eq!(killed.ended().code, None);
    all_end(launch(root, &["train", "--resume", "killed"], srun, 2), 0);
    same(&root.join("whole"), &root.join("killed"));
}

/// A rank that starts late, signals to all processes, as schedulers send them, and a killed rank 0.
#[test]
fn ranks_end_with_rank_0() {
    let dir = directory();
    let root = dir.path();
    let set = ["per_device_train_batch_size=8", "max_steps=100000", "save_steps=100000", "eval_strategy=no"];
    for (sent, code) in [("TERM", Some(143)), ("9", None)] {
        let out = format!("run-{sent}");
        let (arguments, number) = (arguments("train", &out, &set), new_launch());
        let [early, first] = [1, 0].map(|rank| Process::start(root, &arguments, &torchrun(rank, 4, number)));
        std::thread::sleep(Duration::from_secs(1));
        assert!(!root.join(&out).exists(), "the run must wait for all ranks");
        let [late, last] = [3, 2].map(|rank| Process::start(root, &arguments, &torchrun(rank, 4, number)));
        let log = root.join(&out).join("metrics.jsonl");
        wait_until("a step is logged", || std::fs::metadata(&log).is_ok_and(|file| file.len() > 0));
        if sent == "TERM" {
            for rank in [&early, &late, &last] {
                signal(rank.id, sent);
            }
        }
        signal(first.id, sent);
        let first = first.ended();
        assert_eq!(first.code, code, "{}", first.printed);
        for rank in [early, late, last] {
            let Ended { code: found, printed } = rank.ended();
            assert_eq!((found, &*printed), (code.or(Some(1)), ""));
        }
        if sent == "TERM" {
            assert!(root.join(&out).join("checkpoints").read_dir().unwrap().count() > 0, "{}", first.printed);
        }
    }
}

/// Every process of the launch ends with code 2, rank 0 with one sentence, and nothing is written.
#[track_caller]
fn launch_refused(root: &Path, arguments: &[&str], processes: Vec<Process>, why: &str) {
    let before = listing(root);
    let printed = all_end(processes, 2);
    assert!(printed.lines().last().is_some_and(|line| line.starts_with("error: ")), "{arguments:?}: {printed}");
    assert_eq!(printed.matches("error: ").count(), 1, "{arguments:?}: {printed}");
    assert!(printed.contains(why), "{arguments:?}: {printed}");
    assert_eq!(listing(root), before, "files were written; {arguments:?}");
}

#[test]
fn launches_that_cannot_be_a_run_are_refused() {
    let dir = directory();
    let root = dir.path();
    let train =
        |set: &[&'static str], flags: &[&'static str]| [arguments("train", "run", set), flags.to_vec()].concat();
    let pairs = "WORLD_SIZE must be a power of two, since gradients are added in pairs, got 3: use 2 or 4";
    let more = "WORLD_SIZE 4 is more than gradient_shares = 2, by which the gradients of this run are divided";
    let flag = "--ranks is 2, but the launcher has started 4 processes (WORLD_SIZE): leave out --ranks";
    let workers = "--distributed cannot be combined with ranks yet, but WORLD_SIZE is 2: start one process";
    let cases: [(&[&str], &[&str], usize, &str); 6] = [
        (&[], &[], 3, pairs),
        (&["gradient_shares=2"], &[], 4, more),
        (&[], &["--ranks", "2"], 4, flag),
        (&[], &["--distributed"], 2, workers),
        // The configuration and the data are read by rank 0 alone.
        (&["learning_rate=fast"], &[], 2, "learning_rate"),
        (&["dataset_name=none.jsonl"], &[], 2, "none.jsonl"),
    ];
    for (set, flags, n, why) in cases {
        let arguments = train(set, flags);
        launch_refused(root, &arguments, launch(root, &arguments, torchrun, n), why);
    }
    let arguments = train(&[], &[]);
    let nodes = |rank, n, launch| srun(rank, n, launch).replace("SLURM_NNODES=1", "SLURM_NNODES=2");
    let why = "must be on one machine, but SLURM_NNODES is 2 and SLURM_NTASKS is 2: start all of them on one node";
    launch_refused(root, &arguments, launch(root, &arguments, nodes, 2), why);
}

#[test]
fn wrong_and_missing_variables_are_refused_by_each_process() {
    let dir = directory();
    let root = dir.path();
    let arguments = arguments("train", "run", &[]);
    let by_hand = "start the processes with torchrun, accelerate, mpirun or srun, or unset";
    for (variables, why) in [
        ("RANK=0", format!("RANK is set, as by a launcher, but WORLD_SIZE is not: {by_hand} RANK")),
        ("WORLD_SIZE=2", format!("WORLD_SIZE is set, as by a launcher, but RANK is not: {by_hand} WORLD_SIZE")),
        ("RANK=2 WORLD_SIZE=2", "RANK = 2 must be less than WORLD_SIZE = 2".to_owned()),
        ("RANK=0 WORLD_SIZE=two", "WORLD_SIZE, which a launcher sets, must be a number, got `two`".to_owned()),
        ("PMI_RANK=x PMI_SIZE=2", "PMI_RANK, which a launcher sets, must be a number, got `x`".to_owned()),
    ] {
        let process = Process::start(root, &arguments, variables);
        launch_refused(root, &arguments, vec![process], &format!("error: {why}\n"));
    }
    // Commands that do not train may run in a launch.
    let shown = Process::start(root, &["config", "show"], "RANK=0").ended();
    assert_eq!(shown.code, Some(0), "{}", shown.printed);
}

#[test]
fn two_processes_with_one_rank_are_refused() {
    let dir = directory();
    let root = dir.path();
    let (arguments, before) = (arguments("train", "run", &[]), listing(root));
    let start = |ranks: [usize; 4]| {
        let number = new_launch();
        ranks.map(|rank| Process::start(root, &arguments, &torchrun(rank, 4, number)))
    };
    let ended = start([0, 1, 2, 1]).map(Process::ended);
    let why = "error: two processes of this launch have rank 1 of 4: ";
    assert!(ended[0].printed.contains(why), "{}", ended[0].printed);
    let (refused, others): (Vec<_>, Vec<_>) = ended[1..].iter().partition(|ended| ended.printed.starts_with(why));
    assert!(refused.len() == 1 && others.iter().all(|other| other.printed.is_empty()));
    assert!(ended.iter().all(|ended| ended.code == Some(2)), "{}", ended[0].printed);
    assert_eq!(listing(root), before, "files were written");

    // One of them remains rank 0.
    let number = new_launch();
    let mut both = Vec::from([0, 0].map(|rank| Process::start(root, &arguments, &torchrun(rank, 4, number))));
    let second = testing::wait_for("one of them ends", || {
        let output = both.iter().position(|process| process.is_finished())?;
        Some(both.remove(output).ended())
    });
    let why = "error: two processes of this launch have rank 0 of 4: ";
    assert!(second.code == Some(2) && second.printed.starts_with(why), "{}", second.printed);
    let first = both.remove(0);
    signal(first.id, "TERM");
    assert_eq!(first.ended().code, Some(143));
    assert_eq!(listing(root), before, "files were written");
}

/// This test is a process of another build.
#[test]
fn another_build_of_the_program_is_refused() {
    let dir = directory();
    let root = dir.path();
    let (arguments, number, before) = (arguments("train", "run", &[]), new_launch(), listing(root));
    let rank_0 = Process::start(root, &arguments, &torchrun(0, 2, number));
    let variables = torchrun(1, 2, number);
    let get = |name: &str| {
        let pair = variables.split_whitespace().find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        pair.map(str::to_owned)
    };
    let launch = Launch::of(&get).unwrap().unwrap();
    let why = lockstep::ranks::join(&launch, &mut |_| {}).err().unwrap().to_string();
    let named = format!("rank 1 of 2 (process {}) is build ", id());
    assert!(why.starts_with(&named) && why.contains(" of the program, but rank 0 is "), "{why}");
    let ended = rank_0.ended();
    assert_eq!(ended.code, Some(2));
    assert!(ended.printed.ends_with(&format!("error: {why}\n")), "{}", ended.printed);
    assert_eq!(listing(root), before, "files were written");
}
