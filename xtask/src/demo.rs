//! Runs `lockstep demo` end to end, like a new user. The demo must reach the accuracy given in the README, and use the
//! memory that `lockstep plan` predicts.

use std::path::Path;
use std::process::Command;

/// Allowed relative error of `lockstep plan`, or `PLAN_TOLERANCE_BYTES` if that is larger. The plan does not include
/// the heap memory of a generation's completions (texts, scores, table rows, records), which is not negligible for a
/// tiny model: in 9 measurements it was 7 to 11 MiB, for a plan of 178 MiB.
const PLAN_TOLERANCE: f64 = 0.02;
const PLAN_TOLERANCE_BYTES: f64 = 16e6;

/// The five measured steps do not evaluate, so the plan must not include evaluation. The plan of an evaluation's loss
/// is an upper bound anyway: it counts whole KV pages, and sequences of ten tokens fill only two thirds of them (108
/// MiB planned, 60 MiB measured).
const WITHOUT: &str = "eval_loss=false";

/// Runs the demo with the program from `cargo test --workspace`.
pub fn check() -> Result<(), String> {
    demo(&crate::cargo::executable("lockstep", "bin")?)
}

/// Runs the demo with the release build, which has only the default features; the test build also has NATS.
pub fn check_release() -> Result<(), String> {
    let program = crate::cargo::release()?.join("lockstep");
    refuses_nats(&program)?;
    demo(&program)
}

/// Checks that learner and worker of a program without NATS name the missing feature before they read any file.
fn refuses_nats(program: &Path) -> Result<(), String> {
    let server = "nats://127.0.0.1:1";
    let worker = ["worker", "--join", server, "--name", "dev1"];
    let learner = ["learner", "--model", "none", "--dataset", "none", "--reward", "unique_chars", "--out", "none"];
    let learner = [&learner[..], &["--nats", server, "--listen", "127.0.0.1:0"]].concat();
    for arguments in [&worker[..], &learner] {
        let run = Command::new(program).args(arguments).output().map_err(|e| format!("{}: {e}", program.display()))?;
        let printed = String::from_utf8_lossy(&run.stderr);
        if run.status.code() != Some(2) || !printed.contains("without NATS") || !printed.contains("--features nats") {
            return Err(format!("`{}` of a program without NATS: {}: {printed}", arguments[0], run.status));
        }
    }
    Ok(())
}

/// Runs the demo in a temporary directory, and checks accuracy and memory.
fn demo(program: &Path) -> Result<(), String> {
    let out = std::env::temp_dir().join(format!("lockstep-demo-{}", std::process::id()));
    let run = Command::new(program)
        .arg("demo")
        .arg("--out")
        .arg(&out)
        .output()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    let text = String::from_utf8_lossy(&run.stdout);
    println!("{text}");
    if !run.status.success() {
        return Err(format!("the demo failed with {}: {}", run.status, String::from_utf8_lossy(&run.stderr)));
    }
    let read = |key: &str| -> Result<f64, String> {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(key));
        let number =
            line.and_then(|rest| rest.trim().trim_start_matches(':').trim().split('%').next()?.trim().parse().ok());
        number.ok_or_else(|| format!("the demo's output has no line {key:?}"))
    };
    let (before, after) = (read("held-out accuracy after SFT")?, read("held-out accuracy after GRPO")?);
    let planned = memory(program, &out.join("grpo"));
    let recorded = recorded(program, &out.join("grpo"));
    let _ = std::fs::remove_dir_all(&out);
    let (planned, measured) = planned?;
    recorded?;
    println!("peak memory: {:.0} MiB planned, {:.0} MiB measured", planned / 1048576.0, measured / 1048576.0);
    if (planned - measured).abs() > PLAN_TOLERANCE_BYTES.max(PLAN_TOLERANCE * measured) {
        return Err("the error of lockstep plan exceeds 2 % and 16 MB".to_owned());
    }
    if before > 70.0 || after < 95.0 {
        return Err(format!("held-out accuracy {before} % after SFT (at most 70), {after} % after GRPO (at least 95)"));
    }
    Ok(())
}

/// Checks that the demo's GRPO run records completions up to the last step, and the effect of steps on some of them,
/// for the dashboard.
fn recorded(program: &Path, run: &Path) -> Result<(), String> {
    let index = Command::new(program).arg("rollouts").arg(run).arg("--index").output();
    let index = index.map_err(|e| format!("{}: {e}", program.display()))?;
    let text = String::from_utf8_lossy(&index.stdout);
    let last = text.lines().last().unwrap_or_default();
    if !last.contains("\"step\":500") {
        return Err(format!("the demo's last recorded group must be from step 500: {last:?}"));
    }
    let scored = std::fs::metadata(run.join("updates.bin")).map_or(0, |file| file.len());
    if scored == 0 { Err("the demo recorded no effect of a step on a group".to_owned()) } else { Ok(()) }
}

/// The peak of resident memory of a training run, in bytes: predicted by `lockstep plan`, and measured. The measurement
/// repeats some steps in a new process, without skipping groups, because the allocator of the demo's process still
/// holds memory from supervised fine-tuning.
fn memory(program: &Path, run: &Path) -> Result<(f64, f64), String> {
    let config = run.join("config.toml");
    let again = run.with_extension("memory");
    let steps = Command::new(program)
        .arg("train")
        .arg(&config)
        .args(["--set", "max_steps=5", "--set", "skip_zero_gradients=false", "--set", WITHOUT, "--out"])
        .arg(&again)
        .output()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    if !steps.status.success() {
        return Err(format!("lockstep train: {}", String::from_utf8_lossy(&steps.stderr)));
    }
    let plan = Command::new(program).args(["plan", "--json"]).arg(&config).args(["--set", WITHOUT]).output();
    let plan = plan.map_err(|e| format!("lockstep plan: {e}"))?;
    if !plan.status.success() {
        return Err(format!("lockstep plan: {}", String::from_utf8_lossy(&plan.stderr)));
    }
    let metrics = std::fs::read_to_string(again.join("metrics.jsonl")).map_err(|e| format!("metrics.jsonl: {e}"))?;
    let planned = number(&String::from_utf8_lossy(&plan.stdout), "total_bytes");
    let measured = metrics.lines().rev().find_map(|line| number(line, "peak_bytes"));
    planned.zip(measured).ok_or_else(|| "the output has no total_bytes or no peak_bytes".to_owned())
}

/// The number in a JSON object under `key`.
fn number(json: &str, key: &str) -> Option<f64> {
    let (_, rest) = json.split_once(&format!("\"{key}\":"))?;
    rest.split([',', '}']).next()?.trim().parse().ok()
}
