//! The commands that open a run, and the dashboard.

use crate::support::command;
use std::path::Path;
use std::process::Command;

/// A command that opens `run`.
pub struct Tried {
    pub name: &'static str,
    arguments: &'static [&'static str],
    /// The result file, if the command computes something: its bits must not depend on the change.
    pub result: Option<&'static str>,
    /// Whether the command requires a run with workers.
    pub needs_fleet: bool,
}

const fn shows(name: &'static str, arguments: &'static [&'static str]) -> Tried {
    Tried { name, arguments, result: None, needs_fleet: false }
}

const FROM: &str = "run/checkpoints/step-000003";
const MODEL: &str = "run/model/model.safetensors";

pub const COMMANDS: [Tried; 16] = [
    Tried { result: Some(MODEL), ..shows("resume", &["train", "--resume", FROM]) },
    Tried {
        result: Some(MODEL),
        ..shows("resume by workers", &["train", "--resume", FROM, "--distributed", "--workers", "1"])
    },
    Tried {
        result: Some("fork/model/model.safetensors"),
        ..shows("fork", &["fork", "run", "--at", "3", "--out", "fork"])
    },
    shows("verify", &["verify", "run", "--all"]),
    shows("rollouts", &["rollouts", "run", "--index"]),
    shows("rollouts as a whole", &["rollouts", "run"]),
    shows("report", &["report", "run", "--out", "report"]),
    shows("report in place", &["report", "run"]),
    shows("board", &["board", "run", "--out", "board"]),
    shows("board in place", &["board", "run"]),
    shows("eval", &["eval", "run", "--dataset", "e.jsonl", "--reward", "unique_chars"]),
    shows("generate", &["generate", "--model", FROM, "--prompt", "ab", "--max-new-tokens", "4"]),
    Tried { needs_fleet: true, ..shows("status", &["status", "run"]) },
    Tried { needs_fleet: true, ..shows("status as JSON", &["status", "run", "--json"]) },
    Tried { needs_fleet: true, ..shows("queue", &["queue", "run", "ls"]) },
    shows("the page", &["dashboard", "run", "--port", "0"]),
];

impl Tried {
    /// The command line. The page is started, all its views are requested, and it is stopped.
    pub fn command(&self, root: &Path) -> Command {
        if self.name != "the page" {
            return command(root, self.arguments);
        }
        let program = command(root, self.arguments);
        let mut shell = Command::new("python3");
        shell.args(["-c", PAGE]).arg(program.get_program()).args(program.get_args()).current_dir(root);
        shell
    }
}

/// Starts the page, requests all its views, and stops it. Fails if a response is missing.
const PAGE: &str = r#"
import subprocess, sys, urllib.request
page = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
url = ""
while "http://" not in url:
    url = page.stdout.readline().decode()
    if not url:
        sys.exit(page.wait())
url = "http://" + url.split("http://")[1].split()[0].rstrip("/")
try:
    for path in ["/", "/api/runs", "/api/runs/run", "/api/runs/run/series?keys=reward", "/api/runs/run/map",
                 "/api/runs/run/groups", "/api/runs/run/prompts", "/api/runs/run/groups/0",
                 "/api/runs/run/groups/0/completions/0", "/api/runs/run/spans?step=1", "/api/jobs"]:
        try:
            urllib.request.urlopen(url + path, timeout=120).read()
        except urllib.error.HTTPError as error:
            print(path, error.code)
    print("answered")
finally:
    alive = page.poll() is None
    page.kill()
    page.wait()
sys.exit(0 if alive else 101)
"#;
