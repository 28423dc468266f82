//! Runs all tests of the CUDA kernels on the emulator after a change of the kernels, and records the versions of the
//! sources that passed.

use crate::cargo;
use crate::provenance::date;
use crate::sources::{below, is_one_of};
use std::collections::BTreeMap;
use std::path::Path;

/// The committed file with the result.
const RESULT: &str = "crates/kernels/emulated.txt";
const SOURCES: &str = "crates/kernels/src";
const SCHEDULES: u32 = 5;

/// Runs every emulated test with five schedules of blocks and threads, at larger sizes than in CI, and writes the
/// result.
pub fn full() -> Result<(), String> {
    let before = sources(Path::new("."))?;
    let schedules = SCHEDULES.to_string();
    let all = [("LOCKSTEP_EMULATOR_SCHEDULES", schedules.as_str()), ("LOCKSTEP_EMULATOR_FULL", "1"), ("CI", "true")];
    let kernels = passed(&["test", "-p", "lockstep-kernels", "--lib", "--", "cuda", "tensor_core"], &all)?;
    let mut runs = 0;
    for schedule in 0..SCHEDULES {
        let schedule = [("LOCKSTEP_EMULATOR_SCHEDULE", schedule.to_string())];
        let one = [(schedule[0].0, schedule[0].1.as_str()), ("LOCKSTEP_EMULATOR_SECONDS", "600")];
        runs += passed(&["test", "--workspace", "--test", "it", "--", "emulated"], &one)?;
    }
    let after = sources(Path::new("."))?;
    if after != before {
        return Err("kernels changed during the tests: run the command again".into());
    }
    let text = format!(
        "# The result of `cargo xtask emulate --full`, and hashes of the tested sources. Not edited by hand.\n\
         date {}\nschedules {SCHEDULES}\npassed {kernels} tests of kernels, {runs} of whole runs\n{}",
        date(),
        after.iter().map(|(path, hash)| format!("{hash} {path}\n")).collect::<String>()
    );
    std::fs::write(RESULT, text).map_err(|e| format!("{RESULT}: {e}"))?;
    println!("{RESULT} has a new result: commit it");
    Ok(())
}

/// Reports whether the recorded result belongs to the current sources. A difference is not a failure: CI runs the
/// emulated tests at small sizes, and the full run is needed only before a release.
pub fn check() -> Result<(), String> {
    let text = std::fs::read_to_string(RESULT).unwrap_or_default();
    let changed = changed(&text, &sources(Path::new("."))?);
    if changed.is_empty() {
        println!("{RESULT} is up to date with the kernels")
    } else {
        println!(
            "note: changed since the last full emulation: {}; `cargo xtask emulate --full` repeats it",
            changed.join(", ")
        )
    }
    Ok(())
}

/// The sources that were changed, added or deleted since the recorded result.
fn changed(result: &str, now: &BTreeMap<String, String>) -> Vec<String> {
    let is_hash = |word: &str| word.len() == 16 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let lines = result.lines().filter_map(|line| line.split_once(' ')).filter(|(hash, _)| is_hash(hash));
    let then: BTreeMap<&str, &str> = lines.map(|(hash, path)| (path, hash)).collect();
    let of_now = now.iter().filter(|(path, hash)| then.get(path.as_str()) != Some(&hash.as_str()));
    let gone = then.keys().filter(|path| !now.contains_key(**path)).map(|path| (*path).to_owned());
    of_now.map(|(path, _)| path.clone()).chain(gone).collect()
}

/// Hashes of the kernels, their include files and the emulator, by path, without tests.
fn sources(root: &Path) -> Result<BTreeMap<String, String>, String> {
    let mut found = BTreeMap::new();
    for file in below(&root.join(SOURCES).to_string_lossy())? {
        let path = file.strip_prefix(root).unwrap_or(&file);
        if is_one_of(path, &["cu", "cuh", "h"]) && !path.iter().any(|part| part == "tests") {
            let bytes = std::fs::read(&file).map_err(|e| format!("{}: {e}", path.display()))?;
            found.insert(path.display().to_string(), fnv(&bytes));
        }
    }
    Ok(found)
}

/// The 64-bit FNV-1a hash of `bytes`, which is the same on every machine.
fn fnv(bytes: &[u8]) -> String {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

/// Runs tests and returns the number that passed; an error if no test ran.
fn passed(arguments: &[&str], environment: &[(&str, &str)]) -> Result<u32, String> {
    let output = cargo::command().args(arguments).envs(environment.iter().copied()).output();
    let output = output.map_err(|e| format!("cargo: {e}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo {}: {}\n{errors}", arguments.join(" "), output.status));
    }
    match count(&said) {
        0 => Err(format!("cargo {}: no test ran", arguments.join(" "))),
        passed => Ok(passed),
    }
}

fn count(said: &str) -> u32 {
    let results = said.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    results.filter_map(|line| line.split(' ').next()?.parse::<u32>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_change_to_a_source_is_reported() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(SOURCES).join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("ops/a/a.cu", "one");
        write("device/kernel.cuh", "two");
        write("device/tests/planted.cu", "of a test");
        let then = sources(root.path()).unwrap();
        assert_eq!(then.len(), 2);
        let result: String = then.iter().map(|(path, hash)| format!("{hash} {path}\n")).collect();
        let result = format!("# a comment of words\ndate 2026-11-23\n{result}");
        assert_eq!(changed(&result, &then), [""; 0]);
        write("device/kernel.cuh", "three");
        assert_eq!(changed(&result, &sources(root.path()).unwrap()), [format!("{SOURCES}/device/kernel.cuh")]);
        write("device/kernel.cuh", "two");
        write("ops/b/b.cu", "new");
        assert_eq!(changed(&result, &sources(root.path()).unwrap()), [format!("{SOURCES}/ops/b/b.cu")]);
        std::fs::remove_file(root.path().join(SOURCES).join("ops/a/a.cu")).unwrap();
        assert_eq!(changed(&result, &sources(root.path()).unwrap()).len(), 2);
        assert_eq!(changed("", &then).len(), 2);
    }

    #[test]
    fn hashes_and_counts_match_known_values() {
        assert_eq!([fnv(b""), fnv(b"a")], ["cbf29ce484222325", "af63dc4c8601ec8c"]);
        assert_eq!(count("test result: ok. 3 passed; 0 failed\nx\ntest result: ok. 4 passed; 0 failed"), 7);
        assert_eq!(count("test result: FAILED. 3 passed; 1 failed"), 0);
    }
}
