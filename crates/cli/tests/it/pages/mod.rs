//! Runs the commands in the documents exactly as printed, and compares their output and the numbers on the pages.
//! Marked pages have the comment [`page::MARK`]. `cargo xtask nightly pages` runs the slow pages, which train the
//! demo's model.

mod page;

use crate::support::runs::{directory, good};
use crate::support::without_settings;
use page::{MARK, Piece, missing, pieces, table};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use testing::wait_until;

/// The marked pages: the quick ones, whose commands take only seconds, and the slow ones.
const QUICK: [&str; 2] = ["on-a-cluster.md", "the-result.md"];
const LONG: [&str; 3] = ["from-nothing.md", "tutorial.md", "writing-a-reward.md"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn text_of(name: &str) -> String {
    fs::read_to_string(repository().join("docs").join(name)).unwrap()
}

/// A shell in a temporary directory, with `lockstep` in its `PATH`.
struct Shell {
    dir: tempfile::TempDir,
    path: String,
    done: BTreeSet<String>,
}

impl Shell {
    fn new(dir: tempfile::TempDir) -> Shell {
        let bin = dir.path().join(".bin");
        fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_lockstep"), bin.join("lockstep")).unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        Shell { dir, path, done: BTreeSet::new() }
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new("bash");
        command.args(["-c", words]).current_dir(self.root()).env("PATH", &self.path).env("HF_HUB_OFFLINE", "1");
        command.stdin(Stdio::null());
        without_settings(&mut command);
        command
    }

    /// Runs a command, which must succeed. Returns everything that it printed.
    fn run(&self, words: &str) -> String {
        let Output { status, stdout, stderr } = self.command(words).output().unwrap();
        let printed = String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap();
        assert!(status.success(), "{words}: {status}\n{printed}");
        printed
    }

    /// Writes the files of a page and runs its commands, except commands that already ran here. Each command must print
    /// the output that the page shows.
    fn follow(&mut self, name: &str) {
        let page = text_of(name);
        assert!(page.contains(MARK), "{name} is not marked");
        let pieces = pieces(&page);
        assert!(pieces.iter().any(|piece| matches!(piece, Piece::Command(..))), "{name} has no command");
        for piece in pieces {
            match piece {
                Piece::File(file, text) => fs::write(self.root().join(file), text).unwrap(),
                Piece::Command(words, output) => self.take(name, &words, &output),
            }
        }
    }

    fn take(&mut self, page: &str, words: &str, output: &[String]) {
        // The page shows a file that the reader has to create.
        if let Some(file) = words.strip_prefix("cat ").filter(|file| !self.root().join(file).exists()) {
            fs::write(self.root().join(file), output.join("\n") + "\n").unwrap();
        }
        if !self.done.insert(words.to_owned()) {
            return;
        }
        eprintln!("{page}: {words}");
        let printed = self.run(words);
        if let Some(line) = missing(&printed, output) {
            panic!("{page}: `{words}` does not print\n{line}\nbut\n{printed}");
        }
    }

    fn json_lines(&self, words: &str) -> Vec<Value> {
        let printed = String::from_utf8(self.command(words).output().unwrap().stdout).unwrap();
        printed
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{words}: {e}\n{line}")))
            .collect()
    }
}

fn reverse() -> Shell {
    let dir = tempfile::tempdir().unwrap();
    let files = repository().join("examples/reverse");
    for file in ["config.json", "make_data.py", "reward.py"] {
        fs::copy(files.join(file), dir.path().join(file)).unwrap();
    }
    Shell::new(dir)
}

#[test]
fn exactly_the_tested_pages_are_marked() {
    let entries = fs::read_dir(repository().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let marked: BTreeSet<String> = entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .filter(|path| fs::read_to_string(path).unwrap().contains(MARK))
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(marked, QUICK.iter().chain(&LONG).map(|name| (*name).to_owned()).collect());
}

/// Runs those parts of the slow pages that need no trained model.
#[test]
fn the_first_commands_of_the_slow_pages_run() {
    let mut shell = reverse();
    let page = text_of("from-nothing.md");
    let long = ["lockstep sft", "lockstep train", "lockstep eval", "lockstep generate"];
    let quick = |words: &str| !long.iter().any(|long| words.starts_with(long));
    let mut run = 0;
    for piece in pieces(&page) {
        if let Piece::Command(words, output) = piece
            && quick(&words)
        {
            shell.take("from-nothing.md", &words, &output);
            run += 1;
        }
    }
    assert_eq!(run, 3, "make_data.py, head, init");
    let mut run = 0;
    for piece in pieces(&text_of("writing-a-reward.md")) {
        match piece {
            Piece::File(name, text) => fs::write(shell.root().join(name), text).unwrap(),
            Piece::Command(words, output) if words.contains("tries.jsonl") => {
                shell.take("writing-a-reward.md", &words, &output);
                run += 1;
            }
            Piece::Command(..) => {}
        }
    }
    assert_eq!(run, 2, "cat and score-rewards");
}

/// The page's placeholders are used as directory names: a model `BASE`, and a run `OUT` that trained an adapter.
#[test]
fn the_commands_of_the_page_about_the_result_run() {
    let dir = directory();
    fs::rename(dir.path().join("model"), dir.path().join("BASE")).unwrap();
    let set = ["use_peft=true", "lora_r=2", "max_steps=2", "max_completion_length=4", "num_generations=2"];
    let set = ["per_device_train_batch_size=2", "eval_dataset_name=e.jsonl"].iter().chain(&set);
    let set: Vec<&str> = set.flat_map(|pair| ["--set", pair]).collect();
    let train = ["train", "--model", "BASE", "--dataset", "d.jsonl", "--reward", "unique_chars", "--out", "OUT"];
    good(dir.path(), &[&train[..], &set].concat());
    let short = "max_steps = 1\ndataset_name = \"d.jsonl\"\nreward_funcs = [\"unique_chars\"]\n\
                 max_completion_length = 4\nnum_generations = 2\nper_device_train_batch_size = 2\n";
    fs::write(dir.path().join("other.toml"), short).unwrap();
    let mut shell = Shell::new(dir);
    shell.follow("the-result.md");
    assert!(shell.root().join("merged/model.safetensors").is_file());
}

/// Runs the page's job script with a fake `scontrol`: on SIGUSR1 the script requeues itself, and the next start ends
/// with the bits of an uninterrupted job.
#[test]
fn the_job_script_of_the_cluster_page_resumes_after_a_signal() {
    let page = text_of("on-a-cluster.md");
    assert!(page.contains(MARK));
    let script = page.split("```\n").find(|block| block.starts_with("#!/bin/bash\n")).expect("the page has a script");
    let shell = Shell::new(directory());
    let root = shell.root();
    fs::write(root.join("job.sh"), script).unwrap();
    fs::write(root.join(".bin/scontrol"), "#!/bin/sh\necho \"$@\" >> queue\n").unwrap();
    shell.run("chmod +x .bin/scontrol");
    // The reward waits while a file exists, so that the job is stopped in the middle.
    let reward = "import os, time\n\ndef letters(completions, **kwargs):\n    \
                  while os.path.exists('wait'):\n        time.sleep(0.01)\n    \
                  return [float(len(set(text))) for text in completions]\n";
    fs::write(root.join("reward.py"), reward).unwrap();
    let config = |out: &str| {
        format!(
            "model_name_or_path = \"model\"\ndataset_name = \"d.jsonl\"\n\
             reward_funcs = [\"python:reward.py:letters\"]\n\
             num_generations = 2\nper_device_train_batch_size = 4\nmax_completion_length = 6\nmax_steps = 6\n\
             learning_rate = 0.01\nlogging_steps = 1\noutput_dir = \"{out}\"\n"
        )
    };
    let job = |out: &str, is_stopped: bool| {
        fs::write(root.join("run.toml"), config(out)).unwrap();
        let mut child = shell.command("exec bash job.sh").env("SLURM_JOB_ID", "77").spawn().unwrap();
        if is_stopped {
            let log = root.join(out).join("metrics.jsonl");
            wait_until("a step is logged", || fs::metadata(&log).is_ok_and(|file| file.len() > 0));
            fs::write(root.join("wait"), "").unwrap();
            shell.run(&format!("kill -USR1 {}", child.id()));
            let log = root.join(out).join("lockstep-0.log");
            wait_until("the signal is acknowledged", || {
                fs::read_to_string(&log).is_ok_and(|text| text.contains("SIGUSR1"))
            });
            fs::remove_file(root.join("wait")).unwrap();
        }
        child.wait().unwrap().code()
    };
    assert_eq!(job("whole", false), Some(0));
    assert!(!root.join("queue").exists());
    assert_eq!(job("stopped", true), Some(138));
    assert_eq!(fs::read_to_string(root.join("queue")).unwrap(), "requeue 77\n");
    assert!(!root.join("stopped/model").exists(), "the job must be stopped before it ends");
    assert_eq!(job("stopped", false), Some(0));
    let weights = |out: &str| fs::read(root.join(out).join("model/model.safetensors")).unwrap();
    assert_eq!(weights("whole"), weights("stopped"));
    // All other commands of the page need a network or Slurm.
    assert_eq!(pieces(&page), []);
}

#[test]
#[ignore = "five minutes; `cargo xtask nightly pages` runs it"]
fn training_from_scratch_gives_the_numbers_on_its_page() {
    reverse().follow("from-nothing.md");
    println!("from-nothing.md: every command prints what the page shows");
}

#[test]
#[ignore = "ten minutes; `cargo xtask nightly pages` runs it"]
fn the_tutorial_gives_the_numbers_on_its_page() {
    let mut shell = Shell::new(tempfile::tempdir().unwrap());
    shell.follow("tutorial.md");
    let wrong = numbers_of_the_tutorial(&shell);
    assert!(wrong.is_empty(), "docs/tutorial.md:\n{}", wrong.join("\n"));
    shell.follow("writing-a-reward.md");
    println!("tutorial.md, writing-a-reward.md: every command prints what the page shows, and the tables are right");
}

/// Compares the numbers in the tutorial's tables and text with the files of its runs.
fn numbers_of_the_tutorial(shell: &Shell) -> Vec<String> {
    let page = text_of("tutorial.md");
    let mut wrong = Vec::new();
    let mut same = |what: &str, page: &str, found: &str| {
        if page != found {
            wrong.push(format!("{what}: the page has {page}, but the run has {found}"));
        }
    };
    let texts = |values: &Value, digits: usize| -> String {
        let values = values.as_array().into_iter().flatten().filter_map(Value::as_f64);
        values.map(|x| format!("{x:.digits$}")).collect::<Vec<_>>().join(", ")
    };
    let group = shell.json_lines("lockstep rollouts one --group 1");
    let rows = table(&page, "completion_ids");
    assert_eq!((rows.len(), group.len()), (4, 4));
    for (row, line) in rows.iter().zip(&group) {
        // The digit d is the token d + 2; token 1 ends a completion.
        let ids = line["completion_ids"].as_array().unwrap().iter().filter_map(Value::as_u64);
        let text: String = ids.filter(|id| *id > 1).map(|id| (id - 2).to_string()).collect();
        same("completion", &row[0], &text);
        same("completion_ids", &row[1], &texts(&line["completion_ids"], 0));
        same("logprobs", &row[2], &texts(&line["logprobs"], 4).replace("-0.0000", "0.0000"));
        same("rewards", &row[3], &texts(&line["rewards"], 0));
        same("advantages", &row[4], &format!("{:.7}", line["advantages"].as_f64().unwrap()));
    }
    let scores = shell.json_lines("lockstep score --model one/model --input group.jsonl");
    let first = |line: &Value| line["logprobs"][0].as_f64().unwrap();
    let digits = |share: f64| format!("{:.1}", 100.0 * libm::exp(share));
    let rows = table(&page, "after");
    assert_eq!(rows.len(), 3);
    for (row, place) in rows.iter().zip([0, 1, 2]) {
        let (before, after) = (first(&group[place]), first(&scores[place]));
        same("before", &row[1], &format!("{before:.4}"));
        same("after", &row[2], &format!("{after:.4}"));
        same("probability", &row[3], &format!("{} → {} %", digits(before), digits(after)));
    }
    // Values from metrics.jsonl that the text quotes.
    let metrics = fs::read_to_string(shell.root().join("one/metrics.jsonl")).unwrap();
    let quoted: Vec<&str> = page.split('`').filter(|part| part.starts_with('"') && part.contains("\":")).collect();
    assert!(quoted.len() >= 3, "{quoted:?}");
    for part in quoted {
        let is_there = metrics.contains(&format!("{part},")) || metrics.contains(&format!("{part}}}"));
        same("metrics.jsonl", part, if is_there { part } else { "has no such value" });
    }
    // The run with too high a learning rate.
    shell.run("lockstep train step.toml --set learning_rate=1e-3 --out far");
    let far = shell.json_lines("lockstep score --model far/model --input group.jsonl");
    let share = format!("{:.3} %", 100.0 * libm::exp(first(&far[2])));
    let printed = page.split_once("falls to ").and_then(|(_, rest)| rest.split_once(". A gradient")).unwrap().0;
    same("the probability of 93 at 1e-3", &printed.split_whitespace().collect::<Vec<_>>().join(" "), &share);
    // The rewards in the page's last run.
    let metrics = fs::read_to_string(shell.root().join("two/steps.jsonl")).unwrap();
    let rewards: Vec<f64> =
        metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["reward"].as_f64().unwrap()).collect();
    let ends = rewards.chunks(10).map(|part| part.iter().sum::<f64>() / part.len() as f64).collect::<Vec<_>>();
    let printed = page.split_once("the mean of ten steps rises from").unwrap().1;
    let printed: Vec<&str> = printed.split_whitespace().take(3).collect();
    let shown = format!("{:.2} to {:.2}", ends[0], ends[ends.len() - 1]);
    same("the rewards of the last run", printed.join(" ").trim_end_matches([')', ',', '.']), &shown);
    wrong
}
