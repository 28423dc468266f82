//! The demo end to end, as a newcomer runs it: it must reach the accuracy that the README promises.

use std::process::Command;

/// Runs the demo in a directory of its own and reads its result from the run's record.
pub fn check() -> Result<(), String> {
    crate::cargo(&["build", "--release"], &[])?;
    let out = std::env::temp_dir().join(format!("lockstep-demo-{}", std::process::id()));
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let program = std::path::Path::new(&target).join("release/lockstep");
    let run = Command::new(&program)
        .arg("demo")
        .arg("--out")
        .arg(&out)
        .output()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    let text = String::from_utf8_lossy(&run.stdout);
    println!("{text}");
    if !run.status.success() {
        return Err(format!("the demo ended with {}: {}", run.status, String::from_utf8_lossy(&run.stderr)));
    }
    let read = |key: &str| -> Result<f64, String> {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(key));
        let number =
            line.and_then(|rest| rest.trim().trim_start_matches(':').trim().split('%').next()?.trim().parse().ok());
        number.ok_or_else(|| format!("the demo printed no line {key:?}"))
    };
    let (before, after) = (read("held-out accuracy after SFT")?, read("held-out accuracy after GRPO")?);
    let _ = std::fs::remove_dir_all(&out);
    if before > 70.0 || after < 95.0 {
        return Err(format!("held-out accuracy {before} % after SFT (at most 70), {after} % after GRPO (at least 95)"));
    }
    Ok(())
}
