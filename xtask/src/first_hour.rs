//! Checks `bench/cuda/first_hour.sh` without a GPU, before a machine is rented: the archive is packed, unpacked and run
//! on the emulator at small sizes. With programs that fail or never end, the script must still write a complete report.

use crate::cargo;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A timeout that is reached only if something hangs.
const MINUTES: Duration = Duration::from_secs(600);

pub fn check() -> Result<(), String> {
    // The programs from the build of `cargo test --workspace`.
    let programs = [cargo::executable("lockstep", "bin")?, cargo::executable("kernels", "lib")?];
    let root = std::path::absolute("target/first-hour").map_err(|e| e.to_string())?;
    if root.exists() {
        std::fs::remove_dir_all(&root).map_err(|e| format!("{}: {e}", root.display()))?;
    }
    std::fs::create_dir_all(&root).map_err(|e| format!("{}: {e}", root.display()))?;
    reports_are_complete_whatever_happens(&root)?;
    let packed = Script::packed(&root, programs)?;
    packed.knows_every_operation()?;
    packed.passes_on_the_emulator(&root.join("emulated"))
}

/// The script, with its environment.
struct Script {
    path: PathBuf,
    environment: Vec<(&'static str, PathBuf)>,
}

impl Script {
    /// The script in the repository, with these two programs.
    fn with([lockstep, tests]: [PathBuf; 2]) -> Script {
        let path = Path::new("bench/cuda/first_hour.sh").to_owned();
        Script { path, environment: vec![("LOCKSTEP_BIN", lockstep), ("LOCKSTEP_KERNEL_TESTS", tests)] }
    }

    /// The script in an archive of these programs: `pack` writes the archive, and everything else runs from it.
    fn packed(root: &Path, programs: [PathBuf; 2]) -> Result<Script, String> {
        let to = root.join("pack");
        Script::with(programs).ends(&["pack", &to.to_string_lossy()], 0)?;
        let archive = to.join("first-hour.tar.gz");
        let untar = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&to).status();
        match untar {
            Ok(status) if status.success() => {}
            other => return Err(format!("tar -xzf {}: {other:?}", archive.display())),
        }
        Ok(Script { path: to.join("first-hour/first_hour.sh"), environment: Vec::new() })
    }

    fn start(&self, arguments: &[&str]) -> Result<Child, String> {
        let mut command = Command::new("bash");
        command.arg(&self.path).args(arguments).stdin(Stdio::null()).env_remove("OUT");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.spawn().map_err(|e| format!("bash {}: {e}", self.path.display()))
    }

    fn ends(&self, arguments: &[&str], code: i32) -> Result<(), String> {
        let status = self.start(arguments)?.wait().map_err(|e| e.to_string())?;
        is(&format!("the exit code of {} {}", self.path.display(), arguments.join(" ")), &status.code(), &Some(code))
    }

    /// Checks that the script's table has exactly the operations that have kernels and a test.
    fn knows_every_operation(&self) -> Result<(), String> {
        let text = std::fs::read_to_string(&self.path).map_err(|e| format!("{}: {e}", self.path.display()))?;
        let rows = text.lines().filter_map(|line| line.trim().strip_prefix("'operations/")?.split(' ').next());
        let mut known: Vec<&str> = rows.collect();
        known.sort_unstable();
        let tests = self.path.with_file_name("kernel-tests");
        let list = Command::new(&tests).args(["--list", "::cuda::tests::cuda_gives_the_bits"]).output();
        let list = list.map_err(|e| format!("{}: {e}", tests.display()))?.stdout;
        let list = String::from_utf8_lossy(&list);
        let mut tested: Vec<&str> =
            list.lines().filter_map(|line| line.strip_prefix("ops::")?.split("::").next()).collect();
        tested.sort_unstable();
        is("the operations of the script's table", &known, &tested)
    }

    fn passes_on_the_emulator(&self, out: &Path) -> Result<(), String> {
        let place = out.to_string_lossy();
        let arguments = ["--device", "cuda-emulated", "--small", "--budget", "7200", "--out", &place];
        self.ends(&arguments, 0)?;
        let report = report(out)?;
        let outcomes = |outcome: &str| -> Vec<&str> {
            let checks = report["checks"].as_array().into_iter().flatten();
            checks.filter(|it| it["outcome"] == outcome).filter_map(|it| it["check"].as_str()).collect()
        };
        is("`emulated`", &report["emulated"], &Value::Bool(true))?;
        is("`passed`", &report["passed"], &Value::Bool(true))?;
        let passed = [
            "device",
            "functions",
            "operations/rmsnorm",
            "operations/glu",
            "cpu/grpo",
            "cpu/adapter",
            "formula",
            "twice",
            "resume",
        ];
        is("the checks that passed", &outcomes("passed"), &passed.to_vec())?;
        is("the checks without an outcome", &report["not_checked"], &Value::Array(Vec::new()))?;
        is(
            "the files of the report",
            &files(out)?,
            &["log.txt", "report.json", "report.txt"].map(String::from).to_vec(),
        )
    }
}

/// Runs the script with programs that fail or never end, and with bad arguments.
fn reports_are_complete_whatever_happens(root: &Path) -> Result<(), String> {
    let (failing, endless) = (root.join("failing"), root.join("endless"));
    // A message that needs escaping in JSON.
    let fails = "case $* in *glu*) printf 'DIFFERS: \"y\" is 1\\\\2\\t\\xff×\\n'; exit 101 ;; esac\n\
                 echo 'test result: ok. 1 passed; 0 failed'\n";
    // The program ignores SIGTERM, like a process blocked in a driver.
    let never_ends =
        format!("trap '' TERM\necho $$ >{}/pid\necho begun\nwhile :; do sleep 1; done\n", endless.display());
    let failing = Script::with(programs(&failing, fails)?);
    let never_ending = Script::with(programs(&endless, &never_ends)?);
    let place = |name: &str| root.join(name).to_string_lossy().into_owned();

    // A failing operation is reported, and the other operations still run.
    let out = place("one-fails");
    failing.ends(&["--only", "operations/glu,functions,formula,operations/linear", "--out", &out], 1)?;
    let found = report(Path::new(&out))?;
    is("the checks that failed", &found["failed"], &serde_json::json!(["operations/glu"]))?;
    is(
        "the order and outcomes",
        &outcomes(&found),
        &"functions: passed, operations/glu: failed, operations/linear: passed, formula: skipped".to_owned(),
    )?;
    is("the note", &found["checks"][1]["note"], &"DIFFERS: y is 12 ; exit code 1".into())?;

    // A budget too small for any operation, and a budget that expires in the middle.
    let out = place("no-budget");
    failing.ends(&["--only", "functions,cpu", "--budget", "1", "--out", &out], 3)?;
    let expected = "functions: does not fit, cpu/grpo: does not fit, cpu/adapter: does not fit, cpu/7m: does not fit";
    is("the outcomes without a budget", &outcomes(&report(Path::new(&out))?), &expected.to_owned())?;
    let out = place("short-budget");
    never_ending.ends(&["--only", "functions,operations/glu", "--budget", "8", "--out", &out], 3)?;
    let found = report(Path::new(&out))?;
    is(
        "the outcomes of a short budget",
        &outcomes(&found),
        &"functions: stopped, operations/glu: does not fit".to_owned(),
    )?;
    is("`passed` of a short budget", &found["passed"], &Value::Bool(false))?;
    gone(&endless)?;

    // The script is killed in the middle, with SIGKILL and with SIGTERM.
    for (signal, code, state) in [("KILL", None, "running"), ("TERM", Some(143), "stopped by SIGTERM")] {
        let out = place(signal);
        let mut script = never_ending.start(&["--only", "functions,operations/glu", "--out", &out])?;
        until("the check to run", || {
            report(Path::new(&out)).is_ok_and(|report| report["running"] == "functions") && endless.join("pid").exists()
        })?;
        let killed = Command::new("kill").args([format!("-{signal}"), script.id().to_string()]).status();
        is("kill", &killed.map_err(|e| e.to_string())?.success(), &true)?;
        let status: ExitStatus = script.wait().map_err(|e| e.to_string())?;
        is(&format!("the exit code after SIG{signal}"), &status.code(), &code)?;
        let found = report(Path::new(&out))?;
        is(&format!("the state after SIG{signal}"), &found["state"], &state.into())?;
        let expected = serde_json::json!(["functions", "operations/glu"]);
        is(&format!("what was not checked after SIG{signal}"), &found["not_checked"], &expected)?;
        let first = if signal == "KILL" { "running" } else { "stopped" };
        is(&format!("the outcomes after SIG{signal}"), &found["checks"][0]["outcome"], &first.into())?;
        let log = if signal == "KILL" { "running.txt" } else { "log.txt" };
        let log = std::fs::read_to_string(Path::new(&out).join(log)).map_err(|e| format!("{out}/{log}: {e}"))?;
        is(&format!("`begun` in the log after SIG{signal}"), &log.contains("begun"), &true)?;
        gone(&endless)?;
    }

    // Bad arguments write nothing, and an earlier report is not overwritten.
    let before = files(Path::new(&place("TERM")))?;
    failing.ends(&["--out", &place("TERM")], 2)?;
    is("the files of an earlier report", &files(Path::new(&place("TERM")))?, &before)?;
    let out = place("refused");
    for arguments in [["--device", "tpu"], ["--only", "operations/glu,operations/none"], ["--budget", "-1"]] {
        failing.ends(&[&arguments[..], &["--out", &out]].concat(), 2)?;
        is("a directory for bad arguments", &Path::new(&out).exists(), &false)?;
    }
    Ok(())
}

/// Two programs in `directory`: `lockstep`, which does nothing, and the tests, with this script as the body.
fn programs(directory: &Path, tests: &str) -> Result<[PathBuf; 2], String> {
    std::fs::create_dir_all(directory).map_err(|e| e.to_string())?;
    let program = |name: &str, body: &str| -> Result<PathBuf, String> {
        let path = directory.join(name);
        std::fs::write(&path, format!("#!/usr/bin/env bash\n{body}"))
            .map_err(|e| format!("{}: {e}", path.display()))?;
        let made = Command::new("chmod").arg("+x").arg(&path).status();
        is("chmod", &made.map_err(|e| e.to_string())?.success(), &true)?;
        Ok(path)
    };
    Ok([program("lockstep", "echo lockstep\n")?, program("kernel-tests", tests)?])
}

/// Waits until the endless program whose PID is in `directory` has ended, and deletes the PID file.
fn gone(directory: &Path) -> Result<(), String> {
    let file = directory.join("pid");
    let pid = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    // A process whose parent does not reap it remains as a zombie.
    let ended = |stat: String| stat.rsplit(')').next().is_some_and(|state| state.trim().starts_with('Z'));
    let path = Path::new("/proc").join(pid.trim()).join("stat");
    until("the endless program to be ended", || std::fs::read_to_string(&path).map_or(true, ended))?;
    std::fs::remove_file(&file).map_err(|e| e.to_string())
}

fn until(what: &str, holds: impl Fn() -> bool) -> Result<(), String> {
    let began = Instant::now();
    while !holds() {
        if began.elapsed() > MINUTES {
            return Err(format!("timed out after {} s waiting for {what}", MINUTES.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn report(out: &Path) -> Result<Value, String> {
    let path = out.join("report.json");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

fn outcomes(report: &Value) -> String {
    let checks = report["checks"].as_array().into_iter().flatten();
    let one = |it: &Value| [&it["check"], &it["outcome"]].map(|it| it.as_str().unwrap_or("?").to_owned()).join(": ");
    checks.map(one).collect::<Vec<_>>().join(", ")
}

fn files(directory: &Path) -> Result<Vec<String>, String> {
    let entries = std::fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

fn is<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: {found:?}, expected {expected:?}"))
}
