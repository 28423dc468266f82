//! When a run resumes from an older checkpoint, its later checkpoints and a copy of its logs are kept as a separate run
//! directory.

use super::RunDir;
use super::checkpoint;
use super::run_dir::sync_directory;
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use telemetry::Step;

/// Moves everything that the run did after `step` into `abandoned/after-step-N`, a run directory that can be resumed.
/// Checkpoints, completions tables and the final model are moved. Logs are copied, because the run's own logs are
/// truncated afterwards. Without later checkpoints nothing is moved, since the resumed run will write the same files
/// again; the exception is step 0, which may have logs without checkpoints.
///
/// The copies are made before the moves, and the newest checkpoint is moved first. If the process is killed in between,
/// the newest remaining checkpoint still matches the logs.
pub fn set_aside(run: &RunDir, step: Step, log_bytes: &BTreeMap<String, u64>) -> anyhow::Result<Option<PathBuf>> {
    let later: Vec<_> = checkpoint::all(run).into_iter().filter(|(other, _)| *other > step).collect();
    let logged = fs::metadata(run.metrics()).is_ok_and(|file| file.len() > 0);
    if later.is_empty() && (!log_bytes.is_empty() || !logged) {
        return Ok(None);
    }
    let name = |n: u32| format!("after-step-{step:06}{}", if n == 1 { String::new() } else { format!("-{n}") });
    let parent = run.root().join("abandoned");
    let target = (1..).map(|n| parent.join(name(n))).find(|dir| !dir.exists()).expect("some number is free");
    move_to(run, &target, step, &later).with_context(|| format!("cannot move later steps to {}", target.display()))?;
    Ok(Some(target))
}

fn move_to(run: &RunDir, target: &Path, step: Step, later: &[(Step, PathBuf)]) -> anyhow::Result<()> {
    let kept = RunDir::at(target);
    for dir in [kept.checkpoints(), kept.completions(), kept.tensorboard()] {
        disk::create_dir_all(dir)?;
    }
    let groups = [run.rollouts(), run.updates(), run.evaluations(), run.older_rollouts()];
    let logs = [run.config(), run.record(), run.metrics(), run.steps(), run.log(0)].into_iter().chain(groups);
    for file in logs.chain(files(&run.tensorboard())).filter(|file| file.is_file()) {
        let copy = target.join(file.strip_prefix(run.root())?);
        disk::copy(&file, &copy)?;
        disk::open(&copy)?.sync_all()?;
    }
    let is_later = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let number = name.strip_prefix("completions_").and_then(|name| name.split('.').next()?.parse().ok()).map(Step);
        number.is_some_and(|number| number > step)
    };
    let tables = files(&run.completions()).into_iter().filter(is_later);
    let newest_first = later.iter().rev().map(|(_, path)| path.clone());
    for path in tables.chain([run.model()]).chain(newest_first).filter(|path| path.exists()) {
        disk::rename(&path, target.join(path.strip_prefix(run.root())?))?;
    }
    let changed = [kept.checkpoints(), kept.completions(), target.to_owned(), run.checkpoints()];
    for dir in changed.iter().filter(|dir| dir.is_dir()) {
        sync_directory(dir)?;
    }
    Ok(())
}

fn files(dir: &Path) -> Vec<PathBuf> {
    disk::read_dir(dir).into_iter().flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_later_checkpoints_empty_logs_are_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::fresh(dir.path()).unwrap();
        run.create("").unwrap();
        // The run was killed before it logged the first step.
        fs::write(run.metrics(), "").unwrap();
        assert_eq!(set_aside(&run, Step(0), &BTreeMap::new()).unwrap(), None);
        assert!(!run.root().join("abandoned").exists());
        fs::write(run.metrics(), "{}\n").unwrap();
        let target = set_aside(&run, Step(0), &BTreeMap::new()).unwrap().unwrap();
        assert_eq!(fs::read_to_string(target.join("metrics.jsonl")).unwrap(), "{}\n");
    }

    #[test]
    fn abandoned_steps_are_kept_as_a_separate_run() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::fresh(dir.path()).unwrap();
        run.create("seed = 1\n").unwrap();
        let checkpoints =
            |steps: &[u64]| steps.iter().for_each(|step| fs::create_dir(run.checkpoint(Step(*step))).unwrap());
        checkpoints(&[1, 2, 3]);
        let tables =
            ["completions_00001.parquet", "completions_00002.parquet", "completions_3.jsonl", "completions_x.parquet"];
        for name in &tables {
            fs::write(run.completions().join(name), name).unwrap();
        }
        let logs =
            [run.metrics(), run.steps(), run.record(), run.log(0), run.rollouts(), run.updates(), run.evaluations()];
        for file in &logs {
            fs::write(file, "logged").unwrap();
        }
        fs::write(run.tensorboard().join("events"), "events").unwrap();
        fs::create_dir(run.model()).unwrap();
        let lengths = BTreeMap::from([("metrics.jsonl".to_owned(), 3)]);
        assert_eq!(set_aside(&run, Step(3), &lengths).unwrap(), None, "the run has no later steps");
        let target = set_aside(&run, Step(1), &lengths).unwrap().unwrap();
        assert_eq!(target, run.root().join("abandoned/after-step-000001"));
        let kept = RunDir::open(&target).unwrap();
        let steps = |run: &RunDir| checkpoint::all(run).iter().map(|(step, _)| step.0).collect::<Vec<_>>();
        assert_eq!((steps(&run), steps(&kept)), (vec![1], vec![2, 3]));
        let there = |run: &RunDir| tables.map(|name| run.completions().join(name).exists());
        assert_eq!((there(&run), there(&kept)), ([true, false, false, true], [false, true, true, false]));
        assert!(kept.model().is_dir() && !run.model().exists());
        for file in logs.iter().chain([&run.config()]) {
            let copy = target.join(file.file_name().unwrap());
            assert_eq!(fs::read(&copy).unwrap(), fs::read(file).unwrap(), "{}", copy.display());
        }
        assert_eq!(fs::read_to_string(kept.tensorboard().join("events")).unwrap(), "events");
        // A second directory of the same step has a different name.
        checkpoints(&[2]);
        assert_eq!(set_aside(&run, Step(1), &lengths).unwrap(), Some(run.root().join("abandoned/after-step-000001-2")));
        checkpoints(&[2]);
        assert_eq!(set_aside(&run, Step(1), &lengths).unwrap(), Some(run.root().join("abandoned/after-step-000001-3")));
    }
}
