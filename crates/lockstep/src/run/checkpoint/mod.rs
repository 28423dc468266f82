//! Checkpoints: a loadable model directory plus the state of the training run. A checkpoint is either complete or
//! absent.
//!
//! A checkpoint is written under a temporary name, every file and directory is synced, the checkpoint is renamed into
//! place, and the parent directory is synced. Only then are older checkpoints deleted. So whenever the process dies,
//! the newest directory named `step-…` is complete. This module does not depend on the kind of run.

mod checkpoints;
mod writer;

pub use checkpoints::Checkpoints;
use writer::CheckpointWriter;

use crate::bad_input;
use crate::config::Config;
use crate::error::OrBadInput;
use crate::run::run_dir::{RunDir, sync_directory};
use crate::run::state;
use crate::step::model_step;
use anyhow::Context as _;
use model::FileDType;
use model::io::{CONFIG, FILE_LIST, FileList, convert_weights, is_listed};
use std::path::{Path, PathBuf};
use telemetry::Step;

const TEMPORARY: &str = ".unfinished-";

/// Prefixes of the checkpoint's files that do not belong to the model: optimizer state, value model, reference model,
/// the generation batch in use, batches generated ahead, lineages of the weights that workers may have, and the state
/// of the Python package's trainer.
const OF_RUN: [&str; 7] =
    ["optimizer_", "value_", "reference.", "generation_batch.", "frontier.", "fleet.", "trainer_state."];

/// Writes the checkpoint of `step`. `fill` writes the files into the empty directory that is passed to it. On an error,
/// such as a full disk, the unfinished files are removed and older checkpoints stay unchanged.
pub fn write(run: &RunDir, step: Step, fill: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<PathBuf> {
    let target = run.checkpoint(step);
    let temporary = run.checkpoints().join(format!("{TEMPORARY}step-{step:06}"));
    let written = write_to(&temporary, &target, step, fill);
    if written.is_err() {
        let _ = disk::remove_dir_all(&temporary);
    }
    written.with_context(|| {
        let kept = latest(run).map_or("no earlier checkpoint exists".to_owned(), |c| {
            format!("the last good checkpoint is {}", c.display())
        });
        format!("cannot write the checkpoint of step {step} to {}; {kept}", target.display())
    })?;
    Ok(target)
}

fn write_to(
    temporary: &Path,
    target: &Path,
    step: Step,
    fill: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    replace_dir(temporary, target, |dir| {
        fill(dir)?;
        Ok(FileList::of(dir, model_step(step))?.write(dir)?)
    })
}

/// Fills a new directory and then puts it in the place of `target`, in one step if the file system supports it. The new
/// files are in `temporary` until then, in the same parent, and stay there after an error.
pub fn replace_dir(
    temporary: &Path,
    target: &Path,
    fill: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    remove_if_there(temporary)?;
    disk::create_dir_all(temporary)?;
    fill(temporary)?;
    sync_tree(temporary)?;
    let parent = target.parent().expect("the temporary directory has the same parent");
    // A checkpoint of the same step exists if it was written before a due evaluation. A rename does not replace a
    // directory that is not empty.
    if target.exists() && disk::exchange(temporary, target).is_ok() {
        sync_directory(parent)?;
        return Ok(remove_if_there(temporary)?);
    }
    // Where the file system cannot exchange two directories, the older one is moved aside first.
    let mut aside = temporary.as_os_str().to_owned();
    aside.push(".old");
    let aside = Path::new(&aside);
    remove_if_there(aside)?;
    if target.exists() {
        disk::rename(target, aside)?;
    }
    disk::rename(temporary, target)?;
    sync_directory(parent)?;
    remove_if_there(aside)?;
    Ok(())
}

fn remove_if_there(dir: &Path) -> std::io::Result<()> {
    match disk::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Syncs `dir` and every file and directory below it.
fn sync_tree(dir: &Path) -> std::io::Result<()> {
    for entry in disk::read_dir(dir)? {
        let path = entry.path();
        if entry.is_dir() { sync_tree(&path)? } else { disk::open(&path)?.sync_all()? }
    }
    sync_directory(dir)
}

/// Copies the model of `checkpoint` to the new directory `target`, without the files that only a run needs. Weight
/// files are hard-linked if the file system allows it, since they never change in place.
///
/// If `in_dtype` differs from the checkpoint's dtype, weights are rounded to it.
pub fn link_model(checkpoint: &Path, target: &Path, in_dtype: Option<FileDType>) -> anyhow::Result<()> {
    disk::create_dir_all(target)?;
    if let Some(dtype) = in_dtype {
        convert_weights(checkpoint, target, dtype)?;
    }
    for entry in disk::read_dir(checkpoint)? {
        let from = entry.path();
        let name = from.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let to = target.join(&name);
        let is_written = name == CONFIG || name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
        if is_of_run(&name) || in_dtype.is_some() && is_written {
            continue;
        }
        if entry.is_dir() {
            copy_listed(&from, &name, &to)?;
            continue;
        }
        if !name.ends_with(".safetensors") || disk::hard_link(&from, &to).is_err() {
            disk::copy(&from, &to)?;
        }
    }
    Ok(sync_tree(target)?)
}

/// Whether [`link_model`] copies the checkpoint's file `name`, a path in the checkpoint.
pub fn is_of_model(name: &str) -> bool {
    !is_of_run(name) && (!name.contains('/') || is_listed(name))
}

/// Whether only a run needs this file or folder of a checkpoint.
fn is_of_run(name: &str) -> bool {
    [state::FILE, FILE_LIST].contains(&name) || OF_RUN.iter().any(|prefix| name.starts_with(prefix))
}

/// Copies the files of the folder `from` that belong to a model, such as additional chat templates. `name` is the
/// folder's path in the model directory.
fn copy_listed(from: &Path, name: &str, to: &Path) -> anyhow::Result<()> {
    for entry in disk::read_dir(from)? {
        let file = entry.file_name();
        if is_listed(&format!("{name}/{}", file.to_string_lossy())) {
            disk::create_dir_all(to)?;
            disk::copy(entry.path(), to.join(file))?;
        }
    }
    Ok(())
}

/// Refuses the checkpoint `dir` if its files do not match the list that was written with them. Checkpoints of older
/// versions have no list; for these, the returned text notes that nothing was compared.
pub fn check(dir: &Path) -> anyhow::Result<Option<String>> {
    let Some(list) = FileList::read(dir).or_bad_input()? else {
        return Ok(Some(format!(
            "{} has no {FILE_LIST} (older versions wrote none), so there is no check that all files belong to the same \
             step",
            dir.display()
        )));
    };
    list.check(dir, |_| true).or_bad_input()?;
    let step = state::RunState::read(dir)?.step;
    if model_step(step) != list.step {
        bad_input!(
            "{} belongs to step {}, but {} belongs to step {step}",
            dir.join(FILE_LIST).display(),
            list.step,
            state::FILE
        );
    }
    Ok(None)
}

/// All complete checkpoints as (step, directory), oldest first.
pub fn all(run: &RunDir) -> Vec<(Step, PathBuf)> {
    let mut found: Vec<(Step, PathBuf)> = disk::read_dir(run.checkpoints())
        .into_iter()
        .flatten()
        .filter(|entry| entry.is_dir())
        .filter_map(|entry| {
            let step = entry.file_name().to_str()?.strip_prefix("step-")?.parse().ok().map(Step)?;
            Some((step, entry.path()))
        })
        .collect();
    found.sort();
    found
}

/// The newest complete checkpoint.
pub fn latest(run: &RunDir) -> Option<PathBuf> {
    all(run).pop().map(|(_, path)| path)
}

/// Which checkpoints are kept.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// The number of newest checkpoints to keep; `None` keeps all.
    pub limit: Option<usize>,
    /// The step of the best evaluation, whose checkpoint is also kept.
    pub best: Option<Step>,
}

impl Kept {
    /// The rule in `config`. The checkpoint of the best evaluation is kept if its weights will be the run's result.
    pub fn new(config: &Config, best: Option<&state::Best>) -> Kept {
        let best = best.filter(|_| config.load_best_model_at_end).map(|best| best.step);
        Kept { limit: config.save_total_limit, best }
    }
}

/// Deletes the oldest checkpoints beyond the limit, but never the newest nor the best.
pub fn prune(run: &RunDir, kept: Kept) -> anyhow::Result<()> {
    let Kept { limit: Some(limit), best } = kept else { return Ok(()) };
    let all = all(run);
    let newest = all.last().map(|c| c.0);
    let expendable: Vec<_> = all.iter().filter(|(step, _)| Some(*step) != newest && Some(*step) != best).collect();
    let excess = all.len().saturating_sub(limit.max(1));
    for (_, path) in expendable.into_iter().take(excess) {
        // The directory is renamed first, so that no run resumes from a half-deleted checkpoint.
        let doomed = run.checkpoints().join(format!("{TEMPORARY}{}", path.file_name().unwrap().to_string_lossy()));
        remove_if_there(&doomed)?;
        disk::rename(path, &doomed)?;
        disk::remove_dir_all(&doomed)?;
    }
    Ok(())
}

/// Renames a checkpoint back if it was moved aside for a newer checkpoint of the same step, and the newer one was never
/// completed.
pub fn put_back(run: &RunDir) -> anyhow::Result<()> {
    for (name, path) in unfinished(run) {
        if let Some(original) = name.strip_suffix(".old").map(|name| run.checkpoints().join(name))
            && !original.exists()
        {
            disk::rename(path, original)?;
        }
    }
    Ok(())
}

/// Removes temporary directories that a killed process left behind.
pub fn sweep(run: &RunDir) -> anyhow::Result<()> {
    put_back(run)?;
    Ok(unfinished(run).try_for_each(|(_, path)| disk::remove_dir_all(path))?)
}

/// The directories with a temporary name, as the rest of the name and the path.
fn unfinished(run: &RunDir) -> impl Iterator<Item = (String, PathBuf)> {
    disk::read_dir(run.checkpoints()).into_iter().flatten().filter_map(|entry| {
        let name = entry.file_name().to_str()?;
        Some((name.strip_prefix(TEMPORARY)?.to_owned(), entry.path()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn run() -> (tempfile::TempDir, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::fresh(dir.path()).unwrap();
        run.create("").unwrap();
        (dir, run)
    }

    fn put(run: &RunDir, step: u64) {
        write(run, Step(step), |dir| Ok(fs::write(dir.join("x"), step.to_string())?)).unwrap();
    }

    #[test]
    fn an_interrupted_checkpoint_is_never_the_latest() {
        let (_dir, run) = run();
        put(&run, 5);
        let error = write(&run, Step(10), |dir| {
            fs::write(dir.join("x"), "half")?;
            anyhow::bail!("No space left on device")
        });
        let message = format!("{:#}", error.unwrap_err());
        assert!(message.contains("No space left") && message.contains("step-000005"), "{message}");
        assert_eq!(latest(&run), Some(run.checkpoint(Step(5))));
        assert_eq!(fs::read_dir(run.checkpoints()).unwrap().count(), 1);
    }

    #[test]
    fn sweeping_restores_a_checkpoint_that_was_moved_aside() {
        let (_dir, run) = run();
        put(&run, 7);
        fs::rename(run.checkpoint(Step(7)), run.checkpoints().join(".unfinished-step-000007.old")).unwrap();
        fs::create_dir(run.checkpoints().join(".unfinished-step-000008")).unwrap();
        sweep(&run).unwrap();
        assert_eq!(all(&run), [(Step(7), run.checkpoint(Step(7)))]);
        assert_eq!(fs::read_dir(run.checkpoints()).unwrap().count(), 1);
    }

    /// The process was killed after the newer checkpoint was complete and before the older one was deleted.
    #[test]
    fn sweeping_keeps_the_newer_of_two_checkpoints_of_a_step() {
        let (_dir, run) = run();
        put(&run, 7);
        let aside = run.checkpoints().join(".unfinished-step-000007.old");
        fs::create_dir(&aside).unwrap();
        fs::write(aside.join("x"), "older").unwrap();
        sweep(&run).unwrap();
        assert_eq!(fs::read_to_string(run.checkpoint(Step(7)).join("x")).unwrap(), "7");
        assert_eq!(fs::read_dir(run.checkpoints()).unwrap().count(), 1);
    }

    #[test]
    fn writing_a_step_again_replaces_its_checkpoint() {
        let (_dir, run) = run();
        put(&run, 3);
        write(&run, Step(3), |dir| Ok(fs::write(dir.join("y"), "second")?)).unwrap();
        assert!(run.checkpoint(Step(3)).join("y").exists() && !run.checkpoint(Step(3)).join("x").exists());
    }

    const STATE: &str = r#"{"format": 3, "step": 3, "weights_version": 2, "isa": "a", "data_hash": "d",
        "sampler": {"epoch": 0, "cursor": 4}, "trainer": {"steps": 2, "skipped_in_a_row": 0, "skipped_total": 0},
        "task": null, "num_tokens": 9, "unlogged": {}, "best": null, "evaluations_without_improvement": 0,
        "log_bytes": {}}"#;

    fn with_state(run: &RunDir, step: u64) -> PathBuf {
        let fill =
            |dir: &Path| Ok(fs::write(dir.join(state::FILE), STATE).and_then(|()| fs::write(dir.join("x"), "x"))?);
        write(run, Step(step), fill).unwrap()
    }

    #[test]
    fn a_checkpoint_with_files_of_another_step_is_refused() {
        let (_dir, run) = run();
        let checkpoint = with_state(&run, 3);
        assert_eq!(checkpoint, run.checkpoint(Step(3)));
        assert_eq!(check(&checkpoint).unwrap(), None);
        fs::write(checkpoint.join("x"), "y").unwrap();
        assert!(crate::error::is_bad_input(&check(&checkpoint).unwrap_err()));
        fs::remove_file(checkpoint.join(FILE_LIST)).unwrap();
        let place = checkpoint.display();
        let unlisted = "(older versions wrote none), so there is no check that all files belong to the same step";
        assert_eq!(check(&checkpoint).unwrap(), Some(format!("{place} has no {FILE_LIST} {unlisted}")));
        let other = with_state(&run, 4);
        let error = check(&other).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("{} belongs to step 4, but run_state.json belongs to step 3", other.join(FILE_LIST).display())
        );
    }

    #[test]
    fn a_failed_checkpoint_names_the_last_good_one() {
        let (_dir, run) = run();
        let failing = |step: u64| format!("{:#}", write(&run, Step(step), |_| anyhow::bail!("full")).unwrap_err());
        let words = |step: u64, kept: &str| {
            format!(
                "cannot write the checkpoint of step {step} to {}; {kept}: full",
                run.checkpoint(Step(step)).display()
            )
        };
        assert_eq!(failing(2), words(2, "no earlier checkpoint exists"));
        put(&run, 2);
        let kept = format!("the last good checkpoint is {}", run.checkpoint(Step(2)).display());
        assert_eq!(failing(5), words(5, &kept));
        // A failed attempt leaves no files for the next one.
        let unfinished = run.checkpoints().join(".unfinished-step-000007");
        fs::create_dir(&unfinished).unwrap();
        fs::write(unfinished.join("old"), "").unwrap();
        let aside = run.checkpoints().join(".unfinished-step-000007.old");
        fs::create_dir(&aside).unwrap();
        put(&run, 7);
        assert!(!run.checkpoint(Step(7)).join("old").exists() && !unfinished.exists() && !aside.exists());
        write(&run, Step(7), |dir| Ok(fs::write(dir.join("again"), "")?)).unwrap();
        assert!(!aside.exists() && run.checkpoint(Step(7)).join("again").exists());
    }

    #[test]
    fn checkpoints_are_listed_by_step_and_limited_in_number() {
        let (_dir, run) = run();
        for step in &[10, 9, 1_000_000] {
            put(&run, *step);
        }
        for other in ["step-x", "steps-3", "step-", "3"] {
            fs::create_dir(run.checkpoints().join(other)).unwrap();
        }
        assert_eq!(all(&run).iter().map(|c| c.0.0).collect::<Vec<_>>(), [9, 10, 1_000_000]);
        assert_eq!(latest(&run), Some(run.checkpoint(Step(1_000_000))));
        // The newest and the best checkpoint are kept, whatever the limit.
        prune(&run, Kept { limit: Some(2), best: None }).unwrap();
        assert_eq!(all(&run).iter().map(|c| c.0.0).collect::<Vec<_>>(), [10, 1_000_000]);
        prune(&run, Kept { limit: Some(1), best: Some(Step(10)) }).unwrap();
        assert_eq!(all(&run).len(), 2);
        prune(&run, Kept { limit: Some(0), best: None }).unwrap();
        assert_eq!(all(&run).iter().map(|c| c.0.0).collect::<Vec<_>>(), [1_000_000]);
        let best = state::Best { step: Step(4), metric: 1.0 };
        let kept = |load_best_model_at_end| {
            let config = Config { load_best_model_at_end, save_total_limit: Some(3), ..Config::default() };
            let kept = Kept::new(&config, Some(&best));
            (kept.limit, kept.best)
        };
        assert_eq!((kept(true), kept(false)), ((Some(3), Some(Step(4))), (Some(3), None)));
    }

    #[test]
    fn a_model_is_copied_without_the_files_of_the_run() {
        let (dir, run) = run();
        let files = ["model.safetensors", "config.json", "optimizer_exp_avg.safetensors", "value_model.json"];
        let more = ["reference.safetensors", "generation_batch.bin", "frontier.bin", "run_state.json"];
        write(&run, Step(1), |dir| {
            for name in files.iter().chain(&more) {
                fs::write(dir.join(name), name)?;
            }
            fs::create_dir(dir.join("sub.safetensors"))?;
            fs::create_dir(dir.join("additional_chat_templates"))?;
            fs::write(dir.join("additional_chat_templates/tool_use.jinja"), "tools")?;
            Ok(fs::write(dir.join("additional_chat_templates/notes.txt"), "mine")?)
        })
        .unwrap();
        let target = dir.path().join("a model");
        link_model(&run.checkpoint(Step(1)), &target, None).unwrap();
        let names: Vec<String> = FileList::of(&target, model::Step(1)).unwrap().files.into_keys().collect();
        assert_eq!(names, ["additional_chat_templates/tool_use.jinja", "config.json", "model.safetensors"]);
        assert_eq!(fs::read_to_string(target.join("config.json")).unwrap(), "config.json");
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let links = |name: &str| fs::metadata(target.join(name)).unwrap().nlink();
            assert_eq!((links("model.safetensors"), links("config.json")), (2, 1), "weights are hard-linked");
        }
    }
}
