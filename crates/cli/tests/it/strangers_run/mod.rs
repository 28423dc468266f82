//! Opens run directories from untrusted sources: with links that lead out of them, named pipes, devices, sparse files,
//! and modified files. Every command and the page must either give the right result or name the file. Nothing outside
//! the run may change, and no command may hang, panic or take much memory.

mod changes;
mod commands;
mod watched;

use super::distributed_faults::{learner_of, signal};
use crate::support::runs::{arguments, directory, good, metrics};
use changes::{CHANGES, Change, Random, make_outside};
use commands::{COMMANDS, Tried};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use watched::{Seen, family, watched};

/// How much the memory of two executions of the same command may differ.
const NOISE: u64 = 24 << 20;
/// How much additional memory a sparse or irregular file may cost.
const MAX_EXTRA_BYTES: u64 = 64 << 20;

/// Runs that together have every file to be changed: a run of one process, a run in chunks, and a run with workers that
/// were killed.
const BASES: [(&str, &[&str]); 3] = [
    ("one", &["max_staleness=1", "num_iterations=2", "steps_per_generation=2"]),
    ("chunks", &["max_staleness=2", "partial_rollout_tokens=2"]),
    ("killed", &["max_staleness=3", "save_steps=3"]),
];
const OWN: [&str; 7] = [
    "record_rollouts=true",
    "tensorboard=false",
    "max_steps=6",
    "eval_strategy=no",
    "logging_steps=1",
    "save_steps=1",
    "save_total_limit=9",
];

/// A run, and a file in it that is changed.
const FILES: [(&str, &str); 23] = [
    ("one", "checkpoints/step-000003/run_state.json"),
    ("one", "checkpoints/step-000003/generation_batch.bin"),
    ("one", "checkpoints/step-000003/frontier.bin"),
    ("chunks", "checkpoints/step-000003/frontier.begun.bin"),
    ("one", "updates.bin"),
    ("one", "record.json"),
    ("one", "rollouts.bin"),
    ("one", "rollouts.idx"),
    ("one", "metrics.jsonl"),
    ("one", "steps.jsonl"),
    ("one", "config.toml"),
    ("one", "checkpoints/step-000003/files.json"),
    ("one", "checkpoints/step-000003/tokenizer.json"),
    ("one", "checkpoints/step-000003/model.safetensors"),
    ("killed", "fleet/learner.json"),
    ("killed", "fleet/learner.lock"),
    ("killed", "fleet/workers/dev1/alive.lock"),
    ("killed", "fleet/workers/dev1/status.json"),
    ("killed", "fleet/settings"),
    ("killed", "fleet/made_by.jsonl"),
    ("killed", "fleet/pending/*"),
    ("killed", "fleet/complete_from_dev1/*"),
    ("killed", "fleet/batches/*"),
];

/// A command and a run.
type Call = (&'static str, &'static str);
/// The outcome of a command: how it ended, and the weights that it wrote.
type Done = (Seen, Option<Vec<u8>>);

/// A directory with the runs, and files outside of the runs that must not change.
struct World {
    dir: tempfile::TempDir,
    /// The outcome of each command on each unmodified run.
    unchanged: BTreeMap<Call, Done>,
    outside: Vec<(PathBuf, Vec<u8>)>,
}

impl World {
    fn new() -> World {
        let dir = directory();
        let root = dir.path();
        make_outside(&root.join("outside"));
        let outside = contents(&root.join("outside"));
        World { dir, unchanged: BTreeMap::new(), outside }
    }

    /// Creates the original of a run, unless it exists.
    fn make(&self, base: &str) -> PathBuf {
        let (root, place) = (self.root(), self.root().join(format!("base-{base}")));
        if place.exists() {
            return place;
        }
        let _ = fs::remove_dir_all(root.join("run"));
        let (_, set) = BASES.iter().find(|(name, _)| *name == base).unwrap();
        let all = [&OWN[..], set].concat();
        match base {
            "killed" => kill_in_the_middle(root, &all),
            _ => drop(good(root, &arguments("train", "run", &all))),
        }
        fs::rename(root.join("run"), &place).unwrap();
        place
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }

    /// A copy of a run, named `run`, without files of other commands.
    fn fresh(&self, base: &str) -> PathBuf {
        let (run, from) = (self.root().join("run"), self.make(base));
        for old in ["run", "fork", "report", "board"] {
            let _ = fs::remove_dir_all(self.root().join(old));
        }
        assert!(Command::new("cp").arg("-a").arg(from).arg(&run).status().unwrap().success());
        for made in &["report", "board"] {
            fs::create_dir(self.root().join(made)).unwrap();
        }
        run
    }

    fn run(&self, tried: &Tried) -> (Seen, Option<Vec<u8>>) {
        let seen = watched(tried.command(self.root()));
        let result = tried.result.map(|path| fs::read(self.root().join(path)).unwrap_or_default());
        (seen, result)
    }

    fn learn(&mut self, base: &'static str, tried: &'static Tried) {
        if !self.unchanged.contains_key(&(base, tried.name)) {
            self.fresh(base);
            let (seen, result) = self.run(tried);
            // A killed run cannot be verified as a whole, which is exit code 2.
            let is_verify = tried.name == "verify" && base == "killed" && seen.code == Some(2);
            assert!(seen.code == Some(0) || is_verify, "{} of the unchanged run {base}: {}", tried.name, seen.printed);
            assert!(result.as_ref().is_none_or(|result| !result.is_empty()), "{} of {base}", tried.name);
            self.unchanged.insert((base, tried.name), (seen, result));
        }
    }

    /// Changes a file and runs a command. Returns the first violated rule.
    fn case(
        &mut self,
        (base, file): (&'static str, &str),
        change: Change,
        tried: &'static Tried,
        seed: u64,
    ) -> Vec<String> {
        self.learn(base, tried);
        let run = self.fresh(base);
        let path = find(&run, file);
        let length = fs::metadata(&path).unwrap().len();
        let what = changes::apply(change, &path, &self.root().join("outside"), &mut Random(seed));
        let (seen, result) = self.run(tried);
        let (expected, of_unchanged) = &self.unchanged[&(base, tried.name)];
        let mut wrong = Vec::new();
        if seen.hangs {
            wrong.push("it hangs".to_owned());
        }
        if !matches!(seen.code, Some(0..=2)) || seen.printed.contains("panicked") {
            wrong.push(format!("the exit code is {:?}", seen.code));
        }
        let more = match change {
            Change::Cut | Change::Flipped | Change::Grown | Change::Emptied => 4 * length + NOISE,
            Change::Link | Change::Directory | Change::Fifo | Change::Sparse => MAX_EXTRA_BYTES,
        };
        if seen.peak > expected.peak + more {
            wrong.push(format!(
                "the command takes {} MiB, but {} for the unchanged run",
                seen.peak >> 20,
                expected.peak >> 20
            ));
        }
        if contents(&self.root().join("outside")) != self.outside {
            wrong.push("files outside of the run changed".to_owned());
        }
        // A configuration has no checksum, because users edit it.
        let is_bound = file != "config.toml";
        let name = path.file_name().unwrap().to_string_lossy();
        // A failed verification names the difference and its place.
        let is_convicted = seen.code == Some(1) && seen.printed.contains("DIFFERS");
        if is_bound && seen.code != expected.code && !is_convicted && !seen.printed.contains(&*name) {
            wrong.push(format!("the error does not name {name}"));
        }
        if is_bound && seen.code == expected.code && result != *of_unchanged && !seen.printed.contains(&*name) {
            wrong.push(format!("the result differs, and no error names {name}"));
        }
        wrong
            .iter()
            .map(|why| format!("{} ({what}, seed {seed}): {why}\n{}", tried.name, last(&seen.printed)))
            .collect()
    }
}

/// The end of a string.
fn last(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(6)..].iter().map(|line| format!("    {line}\n")).collect()
}

/// The file at a path in `run`; a last component `*` stands for the first file of the directory, by name.
fn find(run: &Path, pattern: &str) -> PathBuf {
    match pattern.strip_suffix("/*") {
        None => run.join(pattern),
        Some(directory) => {
            let mut all: Vec<PathBuf> = fs::read_dir(run.join(directory)).unwrap().map(|e| e.unwrap().path()).collect();
            all.sort();
            all.into_iter().find(|path| path.is_file()).unwrap_or_else(|| panic!("{directory} is empty"))
        }
    }
}

/// The paths below a directory, with the contents of files.
fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut found, mut open) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path.clone());
            }
            let bytes = fs::read(&path).unwrap_or_default();
            found.push((path, bytes));
        }
    }
    found.sort();
    found
}

/// A reward that needs a ticket file for each answer, while the directory of tickets exists.
const TICKETS: &str = r#"while read -r line; do
    while [ -d tickets ] && ! rmdir tickets/* 2>/dev/null; do sleep 0.02; done
    echo '{"rewards": [1, 0.5]}'
done
"#;

/// A run of three steps that is resumed with a worker. All its processes are killed while some jobs are pending, some
/// complete, and some part of batches.
fn kill_in_the_middle(root: &Path, set: &[&str]) {
    fs::write(root.join("tickets.sh"), TICKETS).unwrap();
    let reward = r#"reward_funcs=[{ kind = "command", command = "sh tickets.sh", by_group = true }]"#;
    good(root, &arguments("train", "run", &[set, &["max_steps=3", reward]].concat()));
    let (run, tickets) = (root.join("run"), root.join("tickets"));
    fs::create_dir(&tickets).unwrap();
    let resume = ["train", "--resume", "run", "--set", "max_steps=12", "--distributed", "--workers", "1"];
    let mut command = crate::support::command(root, &resume);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let all = |name: &str| fs::read_dir(run.join("fleet").join(name)).into_iter().flatten().flatten();
    let answer_until = |name: &str| {
        testing::wait_until(name, || {
            let _ = fs::create_dir(tickets.join("one"));
            all(name).next().is_some()
        });
    };
    // A batch is kept until the next checkpoint. A paused learner collects no results.
    answer_until("batches");
    let learner = learner_of(&run).expect("a learner that learns");
    signal(learner, "STOP");
    // A learner that is paused while it computes keeps its cores, and the worker waits for them. So the learner is
    // resumed briefly now and then, without tickets.
    let mut looks = 0;
    testing::wait_until("an answer that is not collected", || {
        looks += 1;
        if looks % 500 == 0 {
            let _ = fs::remove_dir(tickets.join("one"));
            signal(learner, "CONT");
            std::thread::sleep(Duration::from_millis(20));
            signal(learner, "STOP");
        }
        let _ = fs::create_dir(tickets.join("one"));
        all("complete_from_dev1").next().is_some()
    });
    for pid in family(child.id()) {
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status();
    }
    let _ = child.wait();
    if all("pending").next().is_none() {
        // The worker had claimed all jobs, and returned this one when it exited.
        let job = all("processing_by_dev1").next().expect("a job without a result");
        fs::rename(job.path(), run.join("fleet/pending").join(job.file_name())).unwrap();
    }
    assert!(all("complete_from_dev1").next().is_some() && all("batches").next().is_some());
    fs::remove_dir_all(tickets).unwrap();
}

/// Runs cases, and reports all failures together.
fn all_right(world: &mut World, cases: impl Iterator<Item = (usize, Change, usize, u64)>) -> usize {
    let (mut wrong, mut done) = (Vec::new(), 0);
    for (file, change, command, seed) in cases {
        let (base, name) = FILES[file];
        if COMMANDS[command].needs_fleet && base != "killed" {
            continue;
        }
        // Shown only if a case hangs or fails.
        eprintln!("{name}: {change:?}, {}, seed {seed}", COMMANDS[command].name);
        wrong.extend(world.case((base, name), change, &COMMANDS[command], seed));
        done += 1;
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    done
}

/// Some files, with changes and commands that a seed selects.
#[test]
fn some_changed_runs_give_the_same_bits_or_an_error_naming_the_file() {
    let mut world = World::new();
    let mut random = Random(42);
    let mut draw = |n: usize| random.below(n as u64) as usize;
    let case = |_| (draw(FILES.len()), CHANGES[draw(CHANGES.len())], draw(COMMANDS.len()), draw(1 << 30) as u64);
    let cases: Vec<_> = (0..10).map(case).collect();
    all_right(&mut world, cases.into_iter());
}

/// Makes 200 changes to each file, so that every command is tested with each kind of change.
#[test]
#[ignore = "hours: cargo xtask nightly strangers_run"]
fn all_changed_runs_give_the_same_bits_or_an_error_naming_the_file() {
    let count = std::env::var("LOCKSTEP_CHANGES").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let mut world = World::new();
    let cases = (0..FILES.len()).flat_map(|file| {
        (0..count).map(move |i| {
            (file, CHANGES[i % CHANGES.len()], i / CHANGES.len() % COMMANDS.len(), (file * 1000 + i) as u64)
        })
    });
    let done = all_right(&mut world, cases);
    println!(
        "{done} changes of {} files by {} commands: the same bits, or the file is named",
        FILES.len(),
        COMMANDS.len()
    );
}

/// Files and directories of a run that are replaced by links out of it, each with a command that would write or delete
/// there.
const LINKS: [(&str, &str, &str); 21] = [
    ("killed", "fleet", "resume by workers"),
    ("killed", "fleet/batches", "resume by workers"),
    ("killed", "fleet/pending", "resume by workers"),
    ("killed", "fleet/complete_from_dev1", "resume by workers"),
    ("killed", "fleet/processing_by_dev1", "resume by workers"),
    ("killed", "fleet/workers", "resume by workers"),
    ("killed", "fleet/workers/dev1", "resume by workers"),
    ("killed", "fleet/cores", "resume by workers"),
    ("killed", "fleet/settings", "resume by workers"),
    ("killed", "fleet/made_by.jsonl", "resume by workers"),
    ("killed", "fleet/dev1.log", "resume by workers"),
    ("one", "checkpoints", "resume"),
    ("one", "checkpoints/step-000002", "resume"),
    ("one", "metrics.jsonl", "resume"),
    ("one", "steps.jsonl", "resume"),
    ("one", "rollouts.bin", "resume"),
    ("one", "rollouts.idx", "resume"),
    ("one", "lockstep-0.log", "resume"),
    ("one", "run.lock", "resume"),
    ("one", "tensorboard", "board in place"),
    ("one", "completions", "resume"),
];

/// Runs a command with a link in the run. Returns the first violated rule.
fn with_link(world: &mut World, base: &'static str, link: &str, tried: &'static Tried) -> Option<String> {
    world.learn(base, tried);
    let path = world.fresh(base).join(link);
    let is_dir = !path.is_file();
    let _ = if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    let target = world.root().join(if is_dir { "outside" } else { "outside/thesis" });
    symlink(&target, &path).unwrap();
    eprintln!("{} with {link} as a link", tried.name);
    let (seen, _) = world.run(tried);
    let case = format!("{} with {link} as a link: {:?}\n{}", tried.name, seen.code, last(&seen.printed));
    if contents(&world.root().join("outside")) != world.outside {
        fs::remove_dir_all(world.root().join("outside")).unwrap();
        make_outside(&world.root().join("outside"));
        return Some(format!("files outside of the run changed: {case}"));
    }
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let is_named = seen.code == world.unchanged[&(base, tried.name)].0.code || seen.printed.contains(&name);
    let is_right = !seen.hangs && matches!(seen.code, Some(0..=2)) && is_named;
    (!is_right).then_some(case)
}

#[test]
fn some_commands_do_not_write_or_delete_through_links() {
    let mut world = World::new();
    let find = |name: &str| COMMANDS.iter().find(|tried| tried.name == name).unwrap();
    let one = |(base, link, command)| with_link(&mut world, base, link, find(command));
    let wrong: Vec<String> = LINKS.into_iter().filter_map(one).collect();
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
#[ignore = "minutes: cargo xtask nightly strangers_run"]
fn all_commands_do_not_write_or_delete_through_links() {
    let mut world = World::new();
    let mut wrong = Vec::new();
    for (base, link, _) in LINKS {
        for tried in COMMANDS.iter().filter(|tried| !tried.needs_fleet || base == "killed") {
            wrong.extend(with_link(&mut world, base, link, tried));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// A fork copies only files of the checkpoint: neither other files in the directory nor targets of links.
#[test]
fn a_fork_copies_only_files_of_the_checkpoint() {
    let world = World::new();
    let rows: [(&str, Option<&str>, Option<&str>); 8] = [
        ("checkpoints/step-000003/notes.txt", Some("outside/thesis"), None),
        ("checkpoints/step-000003/more", Some("outside"), None),
        ("checkpoints/step-000003/.profile", Some("outside/.profile"), None),
        ("checkpoints/step-000003/pipe", None, None),
        (
            "checkpoints/step-000003/tokenizer.json",
            Some("base-one/checkpoints/step-000003/tokenizer.json"),
            Some("tokenizer.json"),
        ),
        ("checkpoints/step-000003/optimizer_exp_avg.safetensors", Some("outside/thesis"), Some("optimizer_exp_avg")),
        ("tensorboard/events.out.tfevents.9", Some("outside/thesis"), Some("events.out.tfevents.9")),
        ("tensorboard/more", Some("outside"), Some("more")),
    ];
    for (place, target, refused) in rows {
        let run = world.fresh("one");
        let path = run.join(place);
        let _ = fs::remove_file(&path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match target {
            Some(target) => symlink(world.root().join(target), &path).unwrap(),
            None => assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
        }
        let fork = COMMANDS.iter().find(|tried| tried.name == "fork").unwrap();
        let (seen, _) = world.run(fork);
        let forked = world.root().join("fork");
        match refused {
            None => {
                assert_eq!(seen.code, Some(0), "{place}: {}", seen.printed);
                assert!(!forked.join(place).exists() && !forked.join(place).is_symlink(), "{place}");
                assert_eq!(metrics(&forked), metrics(&world.root().join("base-one")), "{place}");
            }
            Some(name) => {
                assert!(
                    seen.code == Some(2) && seen.printed.contains(name),
                    "{place}: {:?} {}",
                    seen.code,
                    seen.printed
                );
            }
        }
        let secret = b"years of work";
        let copied = |path: &Path| fs::read(path).is_ok_and(|bytes| bytes == secret);
        let leaked: Vec<_> = if forked.exists() { contents(&forked) } else { Vec::new() };
        assert!(leaked.iter().all(|(path, _)| !copied(path)), "{place}");
        assert_eq!(contents(&world.root().join("outside")), world.outside, "{place}");
    }
}
