//! Runs on a real terminal, through `script`: a terminal that closes (a lost connection), a terminal that only the
//! foreground may write to (`stty tostop`), and Ctrl-C typed once and twice. A closing terminal sends SIGHUP more than
//! once, and every later write to it fails.

use super::distributed::{distributed, pids};
use crate::support::command;
use crate::support::runs::{arguments, directory, good};
use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// A terminal with a shell that runs the program, and then writes its exit code to the file `code`.
struct Terminal {
    script: RefCell<Child>,
    code: PathBuf,
    shown: PathBuf,
}

impl Terminal {
    /// Opens the terminal; `settings` is a shell command that runs first.
    fn open(root: &Path, name: &str, settings: &str, arguments: &[&str]) -> Terminal {
        let (code, shown) = (root.join(format!("{name}.code")), root.join(format!("{name}.shown")));
        let words: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
        // A signal that a shell handles has its default action in the shell's child processes. A terminal that closes
        // kills the outer shell, so all other processes in the foreground get SIGHUP.
        let second = format!(
            "trap : INT HUP; {settings}\n'{}' {}\necho $? > '{}'\n",
            env!("CARGO_BIN_EXE_lockstep"),
            words.join(" "),
            code.display()
        );
        let line = format!("trap : INT; sh '{name}.sh'; true");
        fs::write(root.join(format!("{name}.sh")), second).unwrap();
        let mut script = testing::with_default_hangup("script");
        for (name, value) in command(root, &[]).get_envs() {
            match value {
                Some(value) => script.env(name, value),
                None => script.env_remove(name),
            };
        }
        script.args(["--quiet", "--flush", "--command", &line]).arg(&shown).current_dir(root);
        script.env("SHELL", "/bin/sh").env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::null());
        let script = script.stderr(Stdio::null()).spawn().unwrap();
        Terminal { script: RefCell::new(script), code, shown }
    }

    fn press_ctrl_c(&mut self) {
        self.script.get_mut().stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    }

    /// The terminal's contents.
    fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.shown).unwrap_or_default()).into_owned()
    }

    fn close(&mut self) {
        self.script.get_mut().kill().unwrap();
        self.script.get_mut().wait().unwrap();
    }

    /// Waits until the program exits and the terminal has shown all of its output, and returns the program's exit code.
    fn code(&self, what: &str) -> i32 {
        let code = testing::wait_for(&format!("{what} ends"), || {
            fs::read_to_string(&self.code).ok().filter(|text| text.ends_with('\n'))
        });
        let has_ended = || !matches!(self.script.borrow_mut().try_wait(), Ok(None));
        testing::wait_until(&format!("the terminal of {what} ends"), has_ended);
        code.trim().parse().unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.script.get_mut().kill();
        let _ = self.script.get_mut().wait();
    }
}

fn checkpoints(run: &Path) -> usize {
    fs::read_dir(run.join("checkpoints")).map_or(0, Iterator::count)
}

/// Checks that no process of a run logs an error or leaves partial files, however its console fails.
fn assert_sound(root: &Path, terminal: &Terminal, what: &str) {
    assert!(!terminal.text().contains("panicked"), "{what}: {}", terminal.text());
    for (path, _) in crate::support::listing(root) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(name != "core" && !name.starts_with("core."), "{what}: {}", path.display());
        if name.ends_with(".log") {
            assert!(!fs::read_to_string(&path).unwrap().contains("panicked"), "{what}: {}", path.display());
        }
    }
}

const LONG: [&str; 3] = ["max_steps=1000000", "save_steps=1000000", "eval_strategy=no"];

/// Commands whose terminal closes, and whether they must leave a checkpoint.
fn closes(rows: &[(&str, bool)]) {
    let Some(()) = testing::program("script") else { return };
    let dir = directory();
    let root = dir.path();
    for (name, has_checkpoint) in rows {
        let set = |more: &[&'static str]| [&LONG[..], more].concat();
        let pairs = ["dataset_name=p.jsonl", "eval_dataset_name=q.jsonl"];
        let all = match *name {
            "sft" => arguments("sft", name, &set(&[])),
            "dpo" | "reward" => arguments(name, name, &set(&pairs)),
            "ppo" => arguments("train", name, &set(&["algorithm=ppo", "num_generations=1"])),
            "lora" => arguments("train", name, &set(&["use_peft=true", "lora_r=2", "num_iterations=2"])),
            "workers" => distributed(name, "2", &set(&["max_staleness=0"])),
            "workers4" => distributed(name, "4", &set(&["max_staleness=0", "use_peft=true", "lora_r=2"])),
            // The results go only to standard output, which is closed.
            "json" => [&arguments("train", name, &set(&[]))[..], &["--log-format", "json"]].concat(),
            _ => arguments("train", name, &set(&[])),
        };
        let mut terminal = Terminal::open(root, name, "true", &all);
        let run = root.join(name);
        super::stopping::wait_for(&run.join("metrics.jsonl"), true);
        terminal.close();
        assert_eq!(terminal.code(name), 129, "{name}: {}", terminal.text());
        testing::wait_until("every process ends", || pids(&run).is_empty());
        assert_eq!(checkpoints(&run) == 1, *has_checkpoint, "{name}");
        assert_sound(&run, &terminal, name);
        assert!(!run.join("model").exists(), "{name}: an unfinished run must not have a result");
    }
}

#[test]
fn a_closing_terminal_stops_a_run_with_a_checkpoint() {
    closes(&[("train", true), ("workers", true)]);
}

#[test]
#[ignore = "a minute: cargo xtask nightly terminals"]
fn a_closing_terminal_stops_every_kind_of_run_with_a_checkpoint() {
    closes(&[
        ("sft", true),
        ("dpo", true),
        ("reward", true),
        ("ppo", true),
        ("lora", true),
        ("json", true),
        ("workers4", true),
    ]);
    println!("a terminal closed in 7 kinds of runs: each left a checkpoint");
}

/// Commands that save nothing also exit with the code of the signal.
#[test]
fn a_closing_terminal_ends_commands_that_save_nothing() {
    let Some(()) = testing::program("script") else { return };
    let dir = directory();
    let root = dir.path();
    // The reward does not answer, so the command is busy.
    fs::write(root.join("reward.sh"), "read -r line; touch asked; sleep 600\n").unwrap();
    let rewards = ["--set", r#"reward_funcs=["command:sh reward.sh"]"#];
    let eval = ["eval", "--model", "model", "--dataset", "e.jsonl", "--max-completion-length", "6"];
    let score = ["score-rewards", "--input", "d.jsonl"];
    for (name, all) in [("eval", &eval[..]), ("score-rewards", &score)] {
        let mut terminal = Terminal::open(root, name, "true", &[all, &rewards].concat());
        testing::wait_until(&format!("{name} asks"), || root.join("asked").exists());
        terminal.close();
        assert_eq!(terminal.code(name), 129, "{name}: {}", terminal.text());
        assert_sound(root, &terminal, name);
        fs::remove_file(root.join("asked")).unwrap();
    }
    let mut terminal = Terminal::open(root, "worker", "true", &["worker", "--join", "none", "--name", "w"]);
    testing::wait_until("the worker waits", || pids(&root.join("none")).len() == 1);
    terminal.close();
    assert_eq!(terminal.code("worker"), 129);
    testing::wait_until("the worker ends", || pids(&root.join("none")).is_empty());
}

/// With `stty tostop`, a background process that writes is stopped, and its run hangs.
#[test]
fn a_run_does_not_hang_on_a_terminal_with_tostop() {
    let Some(()) = testing::program("script") else { return };
    let dir = directory();
    let root = dir.path();
    let short = ["max_staleness=0", "max_steps=12"];
    let terminal = Terminal::open(root, "short", "stty tostop", &distributed("short", "2", &short));
    assert_eq!(terminal.code("a short run"), 0, "{}", terminal.text());
    assert!(terminal.text().contains("done: 12 steps"), "the learner must write to the terminal: {}", terminal.text());
    good(root, &arguments("train", "one", &short));
    crate::support::runs::same_but_workers(&root.join("one"), &root.join("short"));
    // Only the supervisor gets Ctrl-C.
    let long = [&LONG[..], &["max_staleness=0"]].concat();
    let mut terminal = Terminal::open(root, "long", "stty tostop", &distributed("long", "2", &long));
    super::stopping::wait_for(&root.join("long/metrics.jsonl"), true);
    terminal.press_ctrl_c();
    assert_eq!(terminal.code("a long run"), 130, "{}", terminal.text());
    assert_eq!(checkpoints(&root.join("long")), 1, "{}", terminal.text());
    assert!(
        !fs::read_to_string(root.join("long/fleet/dev1.log")).unwrap().contains("SIGINT"),
        "workers must not get SIGINT"
    );
}

/// A reward that never answers blocks the learner. A second Ctrl-C waits neither for the reward nor for the grace
/// period.
#[test]
fn a_second_ctrl_c_ends_a_run_with_workers_at_once() {
    let Some(()) = testing::program("script") else { return };
    let dir = directory();
    let root = dir.path();
    fs::write(root.join("reward.sh"), "trap '' TERM INT; read -r line; echo $$ > pid; while :; do sleep 1; done\n")
        .unwrap();
    let set = [r#"reward_funcs=["command:sh reward.sh"]"#, "max_staleness=0"];
    let mut terminal = Terminal::open(root, "out", "true", &distributed("out", "2", &set));
    super::stopping::wait_for(&root.join("pid"), true);
    terminal.press_ctrl_c();
    testing::wait_until("the first Ctrl-C is acknowledged", || terminal.text().contains("SIGINT"));
    terminal.press_ctrl_c();
    assert_eq!(terminal.code("out"), 130, "{}", terminal.text());
    // No process remains after the program has exited.
    assert!(pids(&root.join("out")).is_empty());
    assert_sound(root, &terminal, "out");
}
