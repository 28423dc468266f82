//! The tests of `cargo xtask nightly fleet_runs` and `kills`: real runs in which any process is killed at any time, and
//! a full disk.

use super::distributed::{distributed, end, pids, start};
use crate::support::runs::{arguments, directory, good, metrics, of_lines, rollouts, same_but_workers};
use fleet::exchange::spool::Layout;
use fleet::status;
use lockstep::wire::file::GroupFile;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Two slow reward programs: one with constant scores, and one with different scores at each call.
const REWARDS: [(&str, &str); 2] = [
    ("sure.sh", "while read -r line; do sleep 0.02; echo '{\"rewards\": [1, 0.5]}'; done\n"),
    (
        "random.sh",
        "while read -r line; do set -- $(od -An -N3 -tu1 /dev/urandom); sleep \"0.0$(($3 % 6))\"; \
         echo \"{\\\"rewards\\\": [$1, $2]}\"; done\n",
    ),
];
const LIMIT: Duration = Duration::from_secs(600);

fn kill(pid: u32) {
    let _ = Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status();
}

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Number of killed supervisors, learners and workers.
#[derive(Default)]
struct Kills([u32; 3]);

/// Whether a process of a run in `root` is alive, including one that is still starting.
fn has_processes(root: &Path) -> bool {
    let mut all = fs::read_dir("/proc").unwrap().flatten();
    all.any(|process| fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == root))
}

/// Runs to the end while processes are killed, at most `most` times.
fn killed(root: &Path, out: &str, set: &[&str], most: u32, random: &mut Random, kills: &mut Kills) {
    let (run, begun) = (root.join(out), Instant::now());
    let mut child = start(root, &distributed(out, "2", set));
    let mut left = most;
    loop {
        assert!(begun.elapsed() < LIMIT, "{:?}", status::read(&run));
        std::thread::sleep(Duration::from_millis(20 + random.below(500)));
        if child.try_wait().unwrap().is_some() {
            end(child);
            return;
        }
        let learner = status::read(&run).ok().and_then(|status| status.learner.filter(|_| status.learner_alive));
        let all = pids(&run);
        let is_saved = fs::read_dir(run.join("checkpoints")).is_ok_and(|mut entries| entries.next().is_some());
        if left == 0 || all.is_empty() || !is_saved {
            continue;
        }
        left -= 1;
        if random.below(12) == 0 {
            kills.0[0] += 1;
            child.kill().unwrap();
            child.wait().unwrap();
            while has_processes(root) {
                assert!(begun.elapsed() < LIMIT, "{:?}", pids(&run));
                std::thread::sleep(Duration::from_millis(5));
            }
            child = start(root, &["train", "--resume", out, "--distributed", "--workers", "2"]);
            continue;
        }
        let chosen = all[random.below(all.len() as u64) as usize];
        kills.0[if learner.is_some_and(|learner| learner.pid == chosen) { 1 } else { 2 }] += 1;
        kill(chosen);
    }
}

#[test]
#[ignore = "minutes: cargo xtask nightly fleet_runs"]
fn kills_of_any_process_change_no_bit() {
    let wanted = std::env::var("LOCKSTEP_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(500);
    let dir = directory();
    let root = dir.path();
    for (name, script) in REWARDS {
        fs::write(root.join(name), script).unwrap();
    }
    let own = ["max_steps=400", "save_steps=5", "record_rollouts=true", "eval_steps=100", "max_staleness=2"];
    let reward =
        |name: &str| format!(r#"reward_funcs=[{{ kind = "command", command = "sh {name}", by_group = true }}]"#);
    let (sure, other) = (reward(REWARDS[0].0), reward(REWARDS[1].0));
    let set = |reward| [&own[..], &[reward]].concat();
    good(root, &arguments("train", "one", &set(&sure)));
    let (mut random, mut kills, mut runs) = (Random(29), Kills::default(), 0);
    while kills.0.iter().sum::<u32>() < wanted {
        let left = wanted - kills.0.iter().sum::<u32>();
        let out = format!("out-{runs}");
        let is_sure = runs % 2 == 0;
        killed(root, &out, &set(if is_sure { &sure } else { &other }), left, &mut random, &mut kills);
        let run = root.join(&out);
        assert!(pids(&run).is_empty());
        let groups = GroupFile::open(&run.join("rollouts.bin")).unwrap();
        assert!(groups.groups().map(|group| group.unwrap().group.0).eq(0..800), "each group must be trained on once");
        if is_sure {
            let model = |run: &Path| fs::read(run.join("model/model.safetensors")).unwrap();
            assert!(model(&run) == model(&root.join("one")), "{out}");
        } else {
            assert!(good(root, &["verify", &out, "--all"]).out.contains("proven: 400 steps"))
        }
        runs += 1;
    }
    let [supervisors, learners, workers] = kills.0;
    println!(
        "{learners} kills of learners, {workers} of workers, {supervisors} of supervisors in {runs} runs of 400 steps"
    );
}

/// Every file below a directory, with its bytes.
fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = crate::support::listing(directory).into_iter().filter(|(path, _)| path.is_file());
    files.map(|(path, _)| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Starts a command and kills it after a random part of its usual duration, unless it ends earlier.
fn cut(root: &Path, arguments: &[&str], takes: Duration, random: &mut Random) {
    let mut child = start(root, arguments);
    std::thread::sleep(takes.mul_f64(random.below(1100) as f64 / 1000.0));
    let _ = child.kill();
    child.wait().unwrap();
}

/// Kills `kills` commands `verify` and `fork` midway. The original run must stay unchanged, and a fork that is
/// restarted or continued must have the same bits.
fn killed_readers(root: &Path, kills: u32, seed: u64) {
    let set = ["record_rollouts=true", "save_steps=4", "eval_strategy=no", "logging_steps=1"];
    good(root, &arguments("train", "original", &set));
    let original = contents(&root.join("original"));
    let mut takes = Vec::new();
    let forks = ["0", "4", "6"];
    for (i, at) in forks.iter().enumerate() {
        let begun = Instant::now();
        good(root, &["verify", "original", "--all"]);
        let verified = begun.elapsed();
        good(root, &["fork", "original", "--at", at, "--out", &format!("whole-{i}")]);
        takes.push((verified, begun.elapsed() - verified));
    }
    let mut random = Random(seed);
    for i in 0..kills {
        let which = random.below(forks.len() as u64) as usize;
        let (at, whole, out) = (forks[which], root.join(format!("whole-{which}")), format!("fork-{i}"));
        cut(root, &["verify", "original", "--all"], takes[which].0, &mut random);
        assert!(contents(&root.join("original")) == original, "seed {seed}, kill {i}: verify changed the run");
        let again = ["fork", "original", "--at", at, "--out", &out];
        cut(root, &again, takes[which].1, &mut random);
        assert!(contents(&root.join("original")) == original, "seed {seed}, kill {i}: fork changed the run");
        // In half of the cases, resuming the fork is killed, too.
        let resume = ["train", "--resume", &out];
        let is_run = || root.join(&out).join("config.toml").exists();
        if is_run() && random.below(2) == 0 {
            cut(root, &resume, takes[which].1, &mut random);
        }
        if is_run() {
            good(root, &resume)
        } else {
            let _ = fs::remove_dir_all(root.join(&out));
            good(root, &again)
        };
        let fork = root.join(&out);
        same_bits(&whole, &fork);
        good(root, &["verify", &out, "--all"]);
        let left: Vec<_> = crate::support::listing(root).into_iter().map(|(path, _)| path).collect();
        let is_half = |path: &&PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.ends_with(".partial") || name.ends_with(".tmp")
        };
        let half: Vec<_> = left.iter().filter(is_half).collect();
        assert!(half.is_empty(), "seed {seed}, kill {i}: {half:?}");
        fs::remove_dir_all(fork).unwrap();
    }
}

fn same_bits(expected: &Path, found: &Path) {
    let weights = |run: &Path| fs::read(run.join("model/model.safetensors")).unwrap();
    assert!(weights(expected) == weights(found), "{}", found.display());
    assert_eq!(metrics(expected), metrics(found), "{}", found.display());
    assert_eq!(rollouts(expected), rollouts(found), "{}", found.display());
}

/// A sample of the kills of [`two_hundred_kills_change_no_bit`].
#[test]
fn kills_of_verify_and_fork_change_no_bit() {
    killed_readers(directory().path(), 3, 7);
}

/// 100 kills of learners, workers and their supervisors, and of 50 commands `verify` and 50 commands `fork`.
#[test]
#[ignore = "minutes: cargo xtask nightly kills"]
fn two_hundred_kills_change_no_bit() {
    let seed = std::env::var("LOCKSTEP_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(42);
    println!("seed {seed}");
    let dir = directory();
    let root = dir.path();
    let [two, one] = ["[1, 0.5]", "[0.5]"].map(|scores| REWARDS[0].1.replace("[1, 0.5]", scores));
    fs::write(root.join("sure.sh"), two).unwrap();
    // A group in PPO has one completion.
    fs::write(root.join("one.sh"), one).unwrap();
    let reward =
        |name: &str| format!(r#"reward_funcs=[{{ kind = "command", command = "sh {name}", by_group = true }}]"#);
    let (mut random, mut kills) = (Random(seed), Kills::default());
    let kinds: [&[&str]; 4] = [
        &["max_staleness=0"],
        &["max_staleness=1", "use_peft=true", "lora_r=2"],
        &["max_staleness=2", "partial_rollout_tokens=2", "num_iterations=2"],
        &["max_staleness=1", "algorithm=ppo", "num_generations=1"],
    ];
    for (i, kind) in kinds.iter().cycle().enumerate() {
        let left = 100 - kills.0.iter().sum::<u32>();
        if left == 0 {
            break;
        }
        let reward = reward(if kind.contains(&"algorithm=ppo") { "one.sh" } else { "sure.sh" });
        let set =
            [&["max_steps=100", "save_steps=5", "record_rollouts=true", "eval_steps=50", &reward], *kind].concat();
        let (one, out) = (format!("one-{}", i % kinds.len()), format!("out-{i}"));
        if !root.join(&one).exists() {
            good(root, &arguments("train", &one, &set));
        }
        killed(root, &out, &set, left.min(25), &mut random, &mut kills);
        let result = |run: &str| {
            let model = root.join(run).join("model");
            ["model.safetensors", "adapter_model.safetensors"].map(|name| fs::read(model.join(name)).ok())
        };
        assert!(result(&out) == result(&one) && result(&out) != [None, None], "seed {seed}: {out}");
        good(root, &["verify", &out, "--all"]);
        fs::remove_dir_all(root.join(&out)).unwrap();
    }
    let [supervisors, learners, workers] = kills.0;
    killed_readers(root, 50, seed);
    println!(
        "seed {seed}: 200 kills: {learners} of learners, {workers} of workers, {supervisors} of supervisors, 50 of \
         verify, 50 of fork: the same bits, nothing half-written"
    );
}

/// A small file system mounted at a directory, unmounted on drop.
struct Mounted(PathBuf);

impl Mounted {
    fn new(path: PathBuf) -> Option<Mounted> {
        fs::create_dir_all(&path).unwrap();
        let mut mount = Command::new("mount");
        let done = mount.args(["-t", "tmpfs", "-o", "size=64k,mode=0700", "none"]).arg(&path).status();
        done.is_ok_and(|status| status.success()).then_some(Mounted(path))
    }

    /// Writes a file until the file system is full.
    fn fill(&self) -> PathBuf {
        let ballast = self.0.join("ballast");
        let mut file = fs::File::create(&ballast).unwrap();
        while file.write_all(&[0; 512]).is_ok() {}
        ballast
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn wait_until(child: &mut Child, what: impl Fn() -> bool) {
    testing::wait_until("the event occurs while the run is active", || {
        let happened = what();
        assert!(happened || child.try_wait().unwrap().is_none(), "the run ended before the event");
        happened
    });
}

/// The disk for a worker's results is full for a while: the worker keeps the results until there is room.
#[test]
#[ignore = "mounts a file system: cargo xtask nightly fleet_runs"]
fn a_worker_whose_disk_is_full_waits_for_room() {
    let dir = directory();
    let root = dir.path();
    let run = root.join("out");
    let set = ["max_steps=40", "max_staleness=1"];
    good(root, &arguments("train", "one", &set));
    let results = Layout::in_run(&run).complete(&fleet::WorkerName::new("dev1").unwrap());
    let Some(disk) = Mounted::new(results) else { panic!("mount failed: it needs root") };
    let mut child = start(root, &distributed("out", "1", &set));
    wait_until(&mut child, || run.join("checkpoints/step-000002").is_dir());
    let ballast = disk.fill();
    let waits = || {
        let workers = status::read(&run).map_or(Vec::new(), |status| status.workers);
        let mut jobs = workers.into_iter().filter_map(|worker| worker.status).flat_map(|status| status.jobs);
        jobs.any(|(_, stage)| stage.contains("waiting for disk space"))
    };
    wait_until(&mut child, waits);
    std::thread::sleep(Duration::from_millis(700));
    assert!(waits() && child.try_wait().unwrap().is_none());
    fs::remove_file(ballast).unwrap();
    end(child);
    same_but_workers(&root.join("one"), &run);
    println!("a worker waited for room on its disk");
}

/// The GSM8K example with real data and a small real model: adapter, checkpoints, TensorBoard, from one command.
#[test]
#[ignore = "real data: cargo xtask nightly fleet_runs"]
fn gsm8k_with_workers_matches_a_single_process() {
    let (model, data) = (testing::shared("models/stories260k"), testing::shared("data/gsm8k"));
    let (Some(model), Some(data)) = (model, data) else { return };
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/gsm8k_workers.toml");
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    let (model, train, test) = (text(model), text(data.join("train.jsonl")), text(data.join("test.jsonl")));
    let (example, test) = (text(example), format!("eval_dataset_name={test}"));
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    // The story model scores 0 on GSM8K, so a second reward gives it something to learn.
    let set = [
        r#"reward_funcs=["gsm8k", "unique_chars"]"#,
        "max_steps=20",
        "max_completion_length=64",
        "num_generations_eval=1",
        "eval_steps=10",
        "dataset_config=none",
        "system_prompt=none",
        "max_samples=400",
        "gradient_checkpointing=false",
        &test,
    ];
    let run = |out: &str, more: &[&str]| {
        let mut all = vec!["train", &example, "--model", &model, "--dataset", &train, "--out", out];
        for pair in &set {
            all.extend(["--set", *pair]);
        }
        let begun = Instant::now();
        good(root, &[&all[..], more].concat());
        begun.elapsed().as_secs_f64()
    };
    let (one_s, many_s) = (run("one", &[]), run("many", &["--distributed", "--workers", "2"]));
    let result = |run: &str| fs::read(root.join(run).join("model/adapter_model.safetensors")).unwrap();
    assert!(result("one") == result("many"));
    let many = root.join("many");
    assert!(
        many.join("checkpoints/step-000020").is_dir() && fs::read_dir(many.join("tensorboard")).unwrap().count() > 0
    );
    let rewards = of_lines(&many, "rewards/unique_chars/mean");
    let mismatches = fs::read_to_string(many.join("metrics.jsonl")).unwrap();
    assert!(mismatches.contains("\"async/logp_mismatch_tokens\":0.0") && rewards.len() == 20);
    let tokens = of_lines(&many, "num_tokens").last().copied().unwrap_or_default();
    println!(
        "GSM8K: 20 steps, {tokens} tokens, {many_s:.1} s with two workers, {one_s:.1} s in one process; reward {:.3} \
         to {:.3}",
        rewards[0],
        rewards.last().unwrap()
    );
}
