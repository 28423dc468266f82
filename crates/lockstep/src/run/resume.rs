//! Finds the start of a training run (new, or from a checkpoint), and checks that its settings have not changed since
//! that checkpoint.

use super::RunDir;
use super::checkpoint;
use super::inputs::ResumeFrom;
use super::state::{self, RunState};
use crate::bad_input;
use crate::config::{Config, Layers, Resolved, changes_on_resume};
use crate::error::{BadInput, OrBadInput, paragraph};
use kernels::Context;
use std::path::{Path, PathBuf};

/// Finds the run and the checkpoint named by `resume`; `latest` means the run in `output_dir`.
pub fn find_run(resume: &str, output_dir: Option<&Path>) -> anyhow::Result<(RunDir, ResumeFrom)> {
    let named = match resume {
        "latest" => output_dir.map(Path::to_owned).ok_or_else(|| {
            BadInput::new("--resume latest needs the run's directory. Give --out DIR, or --resume DIR".to_owned())
        })?,
        dir => PathBuf::from(dir),
    };
    if resume == "latest" && RunDir::is_new(&named) {
        return Ok((RunDir::fresh(&named)?, ResumeFrom::Beginning));
    }
    // The path of a checkpoint may be relative to its run's directory, or go through a link.
    let path = named.canonicalize().unwrap_or_else(|_| named.clone());
    if let Some(root) = run_of(&path) {
        stays_in_run(&named, root)?;
        return Ok((RunDir::existing(root)?, ResumeFrom::Checkpoint(path)));
    }
    let dir = RunDir::existing(&path)?;
    checkpoint::put_back(&dir)?;
    match checkpoint::latest(&dir) {
        Some(checkpoint) => Ok((dir, ResumeFrom::Checkpoint(checkpoint))),
        None if dir.model().exists() => Err(BadInput::new(format!(
            "{}: the run has ended and left no checkpoint to resume from (save_strategy = \"no\")",
            path.display()
        ))),
        None => Ok((dir, ResumeFrom::Beginning)),
    }
}

/// Finds a run and one of its models; `path` is a run or a checkpoint. The model is the checkpoint's, or the run's
/// final model, or else that of the run's newest checkpoint. Takes no lock and writes nothing, since another process
/// may be training the run.
pub fn find_model(path: &Path) -> anyhow::Result<(RunDir, PathBuf)> {
    if let Some(found) = named_checkpoint(path)? {
        return Ok(found);
    }
    if !path.join("config.toml").is_file() && path.join("config.json").is_file() {
        bad_input!("{0} is a model, not a run: give it as --model {0}", path.display());
    }
    let run = RunDir::open(path)?;
    let model = Some(run.model()).filter(|model| model.is_dir()).or_else(|| checkpoint::latest(&run));
    match model {
        Some(model) => Ok((run, model)),
        None => bad_input!("{}: the run has neither a model nor a checkpoint yet", path.display()),
    }
}

/// Finds a run and the checkpoint `path`, or else its newest checkpoint. Like [`find_model`], it only reads.
pub(super) fn find_checkpoint(path: &Path) -> anyhow::Result<(RunDir, Option<PathBuf>)> {
    if let Some((run, checkpoint)) = named_checkpoint(path)? {
        return Ok((run, Some(checkpoint)));
    }
    let run = RunDir::open(&path.canonicalize().or_bad_input_in(path.display())?)?;
    let checkpoint = checkpoint::latest(&run);
    Ok((run, checkpoint))
}

/// The run and the checkpoint, if `path` is a checkpoint. As in [`find_run`], the path may go through a link.
fn named_checkpoint(path: &Path) -> anyhow::Result<Option<(RunDir, PathBuf)>> {
    let real = path.canonicalize().or_bad_input_in(path.display())?;
    let Some(root) = run_of(&real) else { return Ok(None) };
    stays_in_run(path, root)?;
    Ok(Some((RunDir::open(root)?, real)))
}

/// The run's directory, if the absolute `path` is one of its checkpoints. (The state is later read only if it is a
/// regular file.)
fn run_of(path: &Path) -> Option<&Path> {
    path.join(state::FILE)
        .symlink_metadata()
        .is_ok()
        .then(|| path.parent().and_then(Path::parent).unwrap_or(Path::new("/")))
}

/// Returns an error if the path `named`, after links are followed, is in a different run from `root`: `checkpoints` in
/// an untrusted run may be a link to another run's directory.
fn stays_in_run(named: &Path, root: &Path) -> anyhow::Result<()> {
    let named = std::path::absolute(named).or_bad_input_in(named.display())?;
    let Some(named_run) = run_of(&named).filter(|run| run.join("config.toml").is_file()) else { return Ok(()) };
    if named_run.canonicalize().is_ok_and(|named_run| named_run != root) {
        bad_input!(
            "{}: a link leads out of the run {} to {}. Give the checkpoint's path inside its own run",
            named.display(),
            named_run.display(),
            root.display()
        );
    }
    Ok(())
}

/// The configuration with which `run` is resumed: the file in `layers`, or else the run's own `config.toml`, overridden
/// by the other settings in `layers`. A change of a fixed key is an error. The returned messages describe changes that
/// the user should know about.
pub fn resolve_resumed(run: &RunDir, layers: Layers) -> anyhow::Result<(Resolved, Vec<String>)> {
    let began = Layers { purpose: layers.purpose, file: Some(run.config()), ..Layers::default() }.resolve()?;
    let now = Layers { file: layers.file.clone().or(Some(run.config())), ..layers }.resolve()?;
    let changes = changes_on_resume(&began.config, &now.config)?;
    Ok((now, changes))
}

/// If the checkpoint from which a run starts is damaged, adds advice to the error: resume from the checkpoint before.
pub fn or_earlier<T>(result: anyhow::Result<T>, resume_from: &ResumeFrom, dir: &RunDir) -> anyhow::Result<T> {
    let (Err(error), Some(checkpoint)) = (&result, resume_from.checkpoint()) else { return result };
    let text = paragraph(error);
    if !text.contains(&*checkpoint.to_string_lossy()) {
        return result;
    }
    let earlier = checkpoint::all(dir).into_iter().map(|(_, path)| path).take_while(|path| path != checkpoint).last();
    let fix = match earlier {
        Some(earlier) => format!("resume from the checkpoint before it with --resume {}", earlier.display()),
        None => "no earlier checkpoint exists: start a new run in another directory".to_owned(),
    };
    Err(BadInput::new(format!("{text}; {fix}")))
}

pub(super) fn check_resumable(state: &RunState, config: &Config, ctx: &Context, data_hash: &str) -> anyhow::Result<()> {
    if state.data_hash != data_hash {
        let data = config.replay.as_ref().map(|file| file.display().to_string()).or(config.dataset_name.clone());
        bad_input!(
            "{}: the training data has changed since the run began: its SHA-256 is {data_hash}, but was {}. Restore \
             the old file, or start a new run",
            data.unwrap_or_default(),
            state.data_hash
        );
    }
    let (isa, arithmetic) = (ctx.describe(), ctx.arithmetic(config.dtype.dtype()));
    let same = state.arithmetic.as_ref().map_or(state.isa == isa, |began| began == arithmetic);
    if !same && !config.allow_other_isa {
        let began = state.arithmetic.as_deref().unwrap_or("an older version's formula");
        return Err(BadInput::new(format!(
            "the run's matmuls are {began} on {0}, but here they would be {arithmetic} on {isa}, with different bits. \
             Set LOCKSTEP_ISA={0} if this machine has it, or allow_other_isa = true to resume with {isa}",
            state.isa
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use telemetry::Step;

    /// Creates a run with complete checkpoints of the steps 1 and 2.
    fn run() -> (tempfile::TempDir, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::fresh(&dir.path().canonicalize().unwrap()).unwrap();
        run.create("").unwrap();
        for step in [1, 2] {
            checkpoint::write(&run, Step(step), |dir| Ok(fs::write(dir.join(state::FILE), "{}")?)).unwrap();
        }
        run.unlock();
        (dir, run)
    }

    #[test]
    fn the_newest_checkpoint_is_found_even_if_it_was_moved_aside() {
        let (_dir, run) = run();
        fs::rename(run.checkpoint(Step(2)), run.checkpoints().join(".unfinished-step-000002.old")).unwrap();
        let (_lock, from) = find_run(&run.root().to_string_lossy(), None).unwrap();
        assert_eq!(from.checkpoint(), Some(&*run.checkpoint(Step(2))));
    }

    #[test]
    fn the_model_of_a_run_is_its_result_or_its_newest_checkpoint() {
        let (_dir, run) = run();
        let model = |path: &Path| find_model(path).unwrap().1;
        assert_eq!(model(run.root()), run.checkpoint(Step(2)));
        assert_eq!(model(&run.checkpoint(Step(1))), run.checkpoint(Step(1)));
        // The result may be a checkpoint other than the newest, for example the best.
        fs::create_dir(run.model()).unwrap();
        assert_eq!(model(run.root()), run.model());
        assert_eq!(model(&run.checkpoint(Step(1))), run.checkpoint(Step(1)));
    }

    fn refused(result: anyhow::Result<impl Sized>) -> String {
        let error = result.err().expect("it was accepted");
        assert!(crate::error::is_bad_input(&error), "{error}");
        error.to_string()
    }

    #[test]
    fn a_run_is_found_by_its_own_path_or_a_checkpoints() {
        let (_dir, run) = run();
        let root = run.root().to_owned();
        let found =
            |resume: &str, out: Option<&Path>| find_run(resume, out).map(|(dir, from)| (dir.root().to_owned(), from));
        let place = |resume: &str, out: Option<&Path>| {
            let (dir, from) = found(resume, out).unwrap();
            (dir, from.checkpoint().map(Path::to_owned))
        };
        let text = |path: &Path| path.display().to_string();
        assert_eq!(place(&text(&root), None), (root.clone(), Some(run.checkpoint(Step(2)))));
        assert_eq!(place("latest", Some(&root)), (root.clone(), Some(run.checkpoint(Step(2)))));
        assert_eq!(place(&text(&run.checkpoint(Step(1))), None), (root.clone(), Some(run.checkpoint(Step(1)))));
        assert_eq!(
            refused(found("latest", None)),
            "--resume latest needs the run's directory. Give --out DIR, or --resume DIR"
        );
        let new = root.join("new");
        assert_eq!(refused(found(&text(&new), None)), format!("{} is not a run: it has no config.toml", new.display()));
        let (dir, from) = found("latest", Some(&new)).unwrap();
        assert!(dir == new && matches!(from, ResumeFrom::Beginning));
        fs::remove_dir_all(run.checkpoints()).unwrap();
        let (_, from) = found(&text(&root), None).unwrap();
        assert!(matches!(from, ResumeFrom::Beginning));
        fs::create_dir(run.model()).unwrap();
        let ended = "the run has ended and left no checkpoint to resume from (save_strategy = \"no\")";
        assert_eq!(refused(found(&text(&root), None)), format!("{}: {ended}", root.display()));
    }

    /// The user may name a checkpoint through a link, but a link in an untrusted run must not lead out of that run.
    #[test]
    fn a_checkpoint_behind_a_link_out_of_the_run_is_refused() {
        use std::os::unix::fs::symlink;
        let (dir, run) = run();
        let root = dir.path().canonicalize().unwrap();
        let text = |path: &Path| path.display().to_string();
        let best = root.join("best");
        symlink(run.checkpoint(Step(1)), &best).unwrap();
        symlink("step-000001", run.checkpoints().join("latest")).unwrap();
        symlink(&root, root.join("again")).unwrap();
        let again = root.join("again/checkpoints/step-000001");
        for named in
            [best, run.checkpoints().join("latest"), again, root.join("checkpoints/../checkpoints/step-000001")]
        {
            let (found, from) = find_run(&text(&named), None).unwrap();
            assert_eq!(
                (found.root(), from.checkpoint()),
                (run.root(), Some(&*run.checkpoint(Step(1)))),
                "{}",
                named.display()
            );
            assert_eq!(find_model(&named).unwrap().1, run.checkpoint(Step(1)));
        }
        let stranger = root.join("stranger");
        fs::create_dir(&stranger).unwrap();
        fs::write(stranger.join("config.toml"), "").unwrap();
        symlink(run.checkpoints(), stranger.join("checkpoints")).unwrap();
        let named = stranger.join("checkpoints/step-000001");
        for error in [refused(find_run(&text(&named), None).map(drop)), refused(find_model(&named).map(drop))] {
            assert!(error.starts_with(&format!("{}: a link leads out of the run", named.display())), "{error}");
        }
        let error = refused(find_run(&text(&stranger), None).map(drop));
        assert!(
            error.starts_with(&format!("{} is a symbolic link", stranger.join("checkpoints").display())),
            "{error}"
        );
        // A checkpoint that is a link is not one of the run's own checkpoints.
        fs::remove_file(stranger.join("checkpoints")).unwrap();
        fs::create_dir(stranger.join("checkpoints")).unwrap();
        symlink(run.checkpoint(Step(2)), stranger.join("checkpoints/step-000002")).unwrap();
        let (_, from) = find_run(&text(&stranger), None).unwrap();
        assert!(matches!(from, ResumeFrom::Beginning));
        assert!(find_run(&text(&stranger.join("checkpoints/step-000002")), None).is_err());
    }

    #[test]
    fn a_directory_without_a_model_is_refused_with_the_reason() {
        let (_dir, run) = run();
        fs::remove_dir_all(run.checkpoints()).unwrap();
        let root = run.root().display();
        let none = "the run has neither a model nor a checkpoint yet";
        assert_eq!(refused(find_model(run.root())), format!("{root}: {none}"));
        let model = run.root().join("some model");
        fs::create_dir(&model).unwrap();
        let display = model.display();
        assert_eq!(refused(find_model(&model)), format!("{display} is not a run: it has no config.toml"));
        fs::write(model.join("config.json"), "{}").unwrap();
        let fix = format!("{display} is a model, not a run: give it as --model {display}");
        assert_eq!(refused(find_model(&model)), fix);
        fs::write(model.join("config.toml"), "").unwrap();
        assert!(refused(find_model(&model)).ends_with(none));
        assert!(refused(find_model(&run.root().join("nothing"))).contains("nothing: "));
    }

    #[test]
    fn the_error_of_a_damaged_checkpoint_names_the_one_before() {
        let (_dir, run) = run();
        let of = |step: u64, text: &str| {
            let from = ResumeFrom::Checkpoint(run.checkpoint(Step(step)));
            or_earlier(Err::<(), _>(anyhow::anyhow!("{text}")), &from, &run).unwrap_err().to_string()
        };
        let damaged = |step: u64| format!("{}/x is damaged", run.checkpoint(Step(step)).display());
        let before =
            format!("resume from the checkpoint before it with --resume {}", run.checkpoint(Step(1)).display());
        assert_eq!(of(2, &damaged(2)), format!("{}; {before}", damaged(2)));
        let first = "no earlier checkpoint exists: start a new run in another directory";
        assert_eq!(of(1, &damaged(1)), format!("{}; {first}", damaged(1)));
        // Other errors and successes are passed on unchanged.
        assert_eq!(of(2, "the disk is full"), "the disk is full");
        assert_eq!(or_earlier(Ok(3), &ResumeFrom::Checkpoint(run.checkpoint(Step(2))), &run).unwrap(), 3);
        let nothing = or_earlier(Err::<(), _>(anyhow::anyhow!(damaged(2))), &ResumeFrom::Nothing, &run);
        assert_eq!(nothing.unwrap_err().to_string(), damaged(2));
    }

    fn state(change: impl FnOnce(&mut serde_json::Value)) -> RunState {
        let mut state = serde_json::json!({"format": 3, "step": 2, "weights_version": 2, "isa": "another",
            "arithmetic": null, "data_hash": "d1", "sampler": {"epoch": 0, "cursor": 4},
            "trainer": {"steps": 2, "skipped_in_a_row": 0, "skipped_total": 0, "entropy": null}, "task": null,
            "num_tokens": 9, "unlogged": {}, "best": null, "evaluations_without_improvement": 0, "log_bytes": {}});
        change(&mut state);
        serde_json::from_value(state).unwrap()
    }

    #[test]
    fn a_resume_with_other_data_or_arithmetic_is_refused() {
        let ctx = crate::context(None, Some(1), crate::config::ComputeDType::F32).unwrap();
        let (isa, own) = (ctx.describe(), ctx.arithmetic(kernels::DType::F32));
        let config = Config { dataset_name: Some("d.jsonl".into()), ..Config::default() };
        let check = |state: &RunState, config: &Config| check_resumable(state, config, &ctx, "d1");
        let same = state(|state| state["arithmetic"] = own.into());
        check(&same, &config).unwrap();
        // Older versions wrote only the instruction set.
        check(&state(|state| state["isa"] = isa.into()), &config).unwrap();
        let older = refused(check(&state(|_| ()), &config));
        let words = |began: &str| {
            format!(
                "the run's matmuls are {began} on another, but here they would be {own} on {isa}, with different bits. \
                 Set LOCKSTEP_ISA=another if this machine has it, or allow_other_isa = true to resume with {isa}"
            )
        };
        assert_eq!(older, words("an older version's formula"));
        let other = state(|state| (state["isa"], state["arithmetic"]) = (isa.into(), "other".into()));
        assert!(refused(check(&other, &config)).starts_with("the run's matmuls are other on "));
        check(&other, &Config { allow_other_isa: true, ..config.clone() }).unwrap();
        let data = |config: &Config| refused(check_resumable(&same, config, &ctx, "d2"));
        let changed = |name: &str| {
            format!(
                "{name}: the training data has changed since the run began: its SHA-256 is d2, but was d1. Restore the \
                 old file, or start a new run"
            )
        };
        assert_eq!(data(&config), changed("d.jsonl"));
        assert_eq!(data(&Config { replay: Some("r.jsonl".into()), ..config }), changed("r.jsonl"));
    }
}
