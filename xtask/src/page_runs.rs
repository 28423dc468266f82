//! Trains the runs that the page's tests open, one of every kind, and compares them with the committed runs. If they
//! differ, the committed runs are out of date, and `make_runs.sh` must be run again.

use crate::cargo::output;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const FOLDER: &str = "crates/dashboard/browser";
/// The archives in `FOLDER/runs`; each has one directory per run.
const ARCHIVES: [&str; 3] = ["kinds", "long", "sweep"];

/// Properties that must be equal in two runs with the same configuration. Times may differ, and results may differ by
/// rounding between instruction sets.
#[derive(Debug, Default, PartialEq)]
struct Facts {
    /// The command of the run, from record.json.
    kind: String,
    /// The verdict without its numbers: "Learned", "Gamed", …
    verdict: String,
    files: BTreeSet<String>,
    /// The keys of config.toml, including keys without a value.
    keys: BTreeSet<String>,
    /// The metric names in metrics.jsonl.
    metrics: BTreeSet<String>,
}

/// Trains all runs, compares them with the committed runs, and returns a summary.
pub fn run() -> Result<String, String> {
    let program = crate::cargo::program()?;
    let root = std::env::temp_dir().join(format!("lockstep-page-runs-{}", std::process::id()));
    let result = compare(&program, &root);
    // Leftover files are harmless.
    let _ = fs::remove_dir_all(&root);
    result
}

fn compare(program: &Path, root: &Path) -> Result<String, String> {
    let packed = root.join("packed");
    fs::create_dir_all(&packed).map_err(|e| format!("{}: {e}", packed.display()))?;
    let script = Path::new(FOLDER).join("make_runs.sh");
    output(Command::new(script).arg(&packed).env("LOCKSTEP", program))?;
    let before = unpacked(program, &Path::new(FOLDER).join("runs"), &root.join("committed"))?;
    let now = unpacked(program, &packed, &root.join("made"))?;
    let different = differences(&before, &now);
    if different.is_empty() {
        return Ok(format!("{} runs of every kind have the same keys, metrics, files and verdicts", now.len()));
    }
    Err(format!("the runs in {FOLDER}/runs are out of date: run {FOLDER}/make_runs.sh\n{}", different.join("\n")))
}

/// Unpacks the archives below `into`, and reads their runs by name.
fn unpacked(program: &Path, packed: &Path, into: &Path) -> Result<BTreeMap<String, Facts>, String> {
    let mut all = BTreeMap::new();
    for archive in ARCHIVES {
        let place = into.join(archive);
        fs::create_dir_all(&place).map_err(|e| format!("{}: {e}", place.display()))?;
        let name = packed.join(format!("{archive}.tar.br"));
        let file = fs::File::open(&name).map_err(|e| format!("{}: {e}", name.display()))?;
        let mut unpack = Command::new("node")
            .arg(Path::new(FOLDER).join("archive.mjs"))
            .arg("unpack")
            .stdin(file)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .map_err(|e| format!("node: {e}"))?;
        let tar = unpack.stdout.take().ok_or("node has no output")?;
        output(Command::new("tar").arg("-x").arg("-C").arg(&place).stdin(tar))?;
        unpack.wait().map_err(|e| format!("node: {e}"))?;
        for entry in fs::read_dir(&place).map_err(|e| format!("{}: {e}", place.display()))?.flatten() {
            let report = output(Command::new(program).arg("report").arg(entry.path()).arg("--print"))?;
            let name = format!("{archive}/{}", entry.file_name().to_string_lossy());
            all.insert(name, facts(&entry.path(), &report)?);
        }
    }
    Ok(all)
}

/// The properties of the run in `dir`. `report` starts with the run's name and verdict.
fn facts(dir: &Path, report: &str) -> Result<Facts, String> {
    let read = |name: &str| fs::read_to_string(dir.join(name)).map_err(|e| format!("{}/{name}: {e}", dir.display()));
    let json = |text: &str| serde_json::from_str::<Value>(text).map_err(|e| format!("{}: {e}", dir.display()));
    let mut files = BTreeSet::new();
    for path in crate::sources::below(&dir.to_string_lossy())? {
        files.insert(without_steps(path.strip_prefix(dir).unwrap_or(&path)));
    }
    // Only runs of at least five seconds write this file.
    files.remove("profile.json");
    let mut metrics = BTreeSet::new();
    for line in read("metrics.jsonl")?.lines() {
        metrics.extend(json(line)?.as_object().into_iter().flatten().map(|(name, _)| name.clone()));
    }
    let config = read("config.toml")?;
    let keys = config.lines().filter_map(|line| line.trim_start_matches("# ").split_once(" ="));
    Ok(Facts {
        kind: json(&read("record.json")?)?["kind"].as_str().unwrap_or_default().to_owned(),
        verdict: headline(report).split(':').next().unwrap_or_default().to_owned(),
        files,
        keys: keys.map(|(key, _)| key.to_owned()).collect(),
        metrics,
    })
}

/// The verdict in a report printed by `lockstep report --print`.
pub fn headline(report: &str) -> &str {
    report.lines().find(|line| !line.is_empty() && !line.starts_with('#')).unwrap_or_default()
}

/// The path without step numbers: a run that was stopped has its last checkpoint at an arbitrary step.
fn without_steps(path: &Path) -> String {
    let part = |part: &std::ffi::OsStr| {
        let part = part.to_string_lossy().into_owned();
        if part.starts_with("step-") { "step".to_owned() } else { part }
    };
    path.iter().map(part).collect::<PathBuf>().to_string_lossy().into_owned()
}

/// The differences, one line per run and property.
fn differences(before: &BTreeMap<String, Facts>, now: &BTreeMap<String, Facts>) -> Vec<String> {
    let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let mut found = Vec::new();
    for name in names {
        let (Some(before), Some(now)) = (before.get(name), now.get(name)) else {
            let is = if now.contains_key(name) { "is not committed" } else { "is not created any more" };
            found.push(format!("{name} {is}"));
            continue;
        };
        for (what, before, now) in [("kind", &before.kind, &now.kind), ("verdict", &before.verdict, &now.verdict)] {
            if before != now {
                found.push(format!("{name}: {what} was {before:?}, now {now:?}"));
            }
        }
        for (what, before, now) in [
            ("files", &before.files, &now.files),
            ("keys", &before.keys, &now.keys),
            ("metrics", &before.metrics, &now.metrics),
        ] {
            let (gone, new): (Vec<_>, Vec<_>) = (before.difference(now).collect(), now.difference(before).collect());
            if !gone.is_empty() || !new.is_empty() {
                found.push(format!("{name}: {what} removed {gone:?}, added {new:?}"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = "{\"step\":1,\"reward\":1.0}\n{\"step\":2,\"loss\":0.1}\n";

    fn run(metrics: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = dir.path().join("checkpoints/step-000040");
        fs::create_dir_all(&checkpoint).unwrap();
        fs::write(checkpoint.join("config.json"), "{}").unwrap();
        fs::write(dir.path().join("metrics.jsonl"), metrics).unwrap();
        fs::write(dir.path().join("config.toml"), "# Model\nseed = 1  # default\n# task =  # not set\n").unwrap();
        fs::write(dir.path().join("record.json"), "{\"kind\": \"train\"}").unwrap();
        dir
    }

    #[test]
    fn properties_are_read_from_the_files_of_a_run() {
        let read = facts(run(METRICS).path(), "# x\n\nLearned: reward went from 1 to 2.\n").unwrap();
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let files = ["checkpoints/step/config.json", "config.toml", "metrics.jsonl", "record.json"];
        assert_eq!(
            read,
            Facts {
                kind: "train".to_owned(),
                verdict: "Learned".to_owned(),
                files: set(&files),
                keys: set(&["seed", "task"]),
                metrics: set(&["step", "reward", "loss"]),
            }
        );
        assert!(facts(run("not JSON\n").path(), "").is_err());
    }

    #[test]
    fn each_difference_has_a_line() {
        let of = |metrics: &str, report: &str| facts(run(metrics).path(), report).unwrap();
        let learned = || of(METRICS, "Learned: x");
        let runs = |all: Vec<(&str, Facts)>| {
            all.into_iter().map(|(name, facts)| (name.to_owned(), facts)).collect::<BTreeMap<_, _>>()
        };
        let before = runs(vec![("a", learned()), ("b", learned()), ("c", learned())]);
        assert_eq!(differences(&before, &before), [""; 0]);
        let changed = METRICS.replace("loss", "kl");
        let now = runs(vec![("a", of(METRICS, "Worse: x")), ("b", of(&changed, "Learned: y")), ("d", learned())]);
        let expected = [
            "a: verdict was \"Learned\", now \"Worse\"",
            "b: metrics removed [\"loss\"], added [\"kl\"]",
            "c is not created any more",
            "d is not committed",
        ];
        assert_eq!(differences(&before, &now), expected);
    }
}
