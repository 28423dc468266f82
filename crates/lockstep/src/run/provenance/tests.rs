use super::*;
use crate::config::ComputeDType;
use crate::error::is_bad_input;
use crate::stop::is_stopped;
use std::fs;
use std::path::PathBuf;

struct Place {
    dir: tempfile::TempDir,
    run: RunDir,
}

/// A run's directory, next to two models.
fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    for model in ["model", "other"] {
        let model = dir.path().join(model);
        fs::create_dir(&model).unwrap();
        fs::write(model.join("config.json"), format!("{{}} {}", model.display())).unwrap();
        fs::write(model.join("model.safetensors"), "weights").unwrap();
        fs::write(model.join("notes.txt"), "no file of the model").unwrap();
    }
    let run = RunDir::fresh(&dir.path().join("run")).unwrap();
    run.create("").unwrap();
    Place { dir, run }
}

impl Place {
    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn config(&self) -> Config {
        Config { model_name_or_path: Some(self.at("model").display().to_string()), seed: 7, ..Config::default() }
    }

    fn hashed(&self, config: &Config, purpose: Purpose, resumes: bool) -> anyhow::Result<Models> {
        let model = self.at("model");
        let files = ModelFiles::read(&model).unwrap();
        Models::hashed(&self.run, config, purpose, (&model, &files), resumes, &StopSignal::new())
    }

    /// Starts a run after `step` and reads its record.
    fn start(&self, config: &Config, models: &Models, command: &str, step: u64, changed: &[&str]) -> RunRecord {
        let ctx = crate::context(None, Some(1), ComputeDType::F32).unwrap();
        let changed = changed.iter().map(|line| (*line).to_owned()).collect();
        let (config_toml, data_hash, prompt_time) = ("toml", "d1", PromptTime(86_400));
        let metadata = RunMetadata {
            command,
            config,
            config_toml,
            ctx: &ctx,
            models,
            prompt_time,
            data_hash,
            step: Step(step),
            changed,
        };
        write(&self.run, metadata).unwrap();
        RunRecord::read(&self.run.record()).unwrap()
    }
}

fn names(files: &[FileHash]) -> Vec<&str> {
    files.iter().map(|file| file.name.as_str()).collect()
}

#[test]
fn a_record_lists_the_sources_and_starts_of_a_run() {
    let place = place();
    let config = Config { dataset_name: Some("data".into()), dtype: ComputeDType::Bf16, ..place.config() };
    let models = place.hashed(&config, Purpose::Sft, false).unwrap();
    let record = place.start(&config, &models, "sft", 0, &[]);
    assert_eq!((record.kind.as_str(), record.seed, record.threads, record.dtype.as_str()), ("sft", 7, 1, "bf16"));
    assert_eq!((record.device.as_str(), record.config_sha256), ("cpu", sha256(b"toml")));
    assert_eq!(record.versions["lockstep"], env!("CARGO_PKG_VERSION"));
    assert_eq!(names(&record.model), ["config.json", "model.safetensors"]);
    assert_eq!((record.data.len(), record.data[0].name.as_str(), record.data[0].sha256.as_str()), (1, "data", "d1"));
    assert!(record.reference.is_empty() && record.rewards.is_empty() && !record.isa.is_empty());
    assert!(!record.arithmetic.is_empty() && !record.command.is_empty());
    assert_eq!(models.weights_sha256(), sha256(b"weights"));

    // A second start is added, and the entries of the first start are kept.
    let other = Config { seed: 8, replay: Some("r.jsonl".into()), ..config };
    fs::write(place.at("model/model.safetensors"), "others").unwrap();
    let mut models = place.hashed(&other, Purpose::Sft, false).unwrap();
    models.changed_rewards = vec!["a reward".to_owned()];
    let again = place.start(&other, &models, "sft", 5, &["seed was 7, now 8"]);
    assert_eq!((again.model, again.command), (record.model, record.command));
    assert_eq!((again.seed, again.data[0].name.as_str()), (8, "r.jsonl"));
    let starts: Vec<_> = again.starts.iter().map(|start| (start.step.0, start.changed.join("; "))).collect();
    assert_eq!(starts, [(0, String::new()), (5, "seed was 7, now 8; a reward".to_owned())]);
    assert!(again.starts.iter().all(|start| start.device == "cpu" && start.isa == record.isa && start.time_s > 0));
    assert!(again.starts.iter().all(|start| start.prompt_time_s == 86_400));
    assert_eq!(prompt_time(&place.run), Some(PromptTime(86_400)));
    // Older versions rendered prompts with each start's own date.
    let mut older = RunRecord::read(&place.run.record()).unwrap();
    older.starts.iter_mut().zip([7, 9]).for_each(|(start, time)| (start.time_s, start.prompt_time_s) = (time, 0));
    fs::write(place.run.record(), older.to_bytes().unwrap()).unwrap();
    assert_eq!(prompt_time(&place.run), Some(PromptTime(7)));
    fs::remove_file(place.run.record()).unwrap();
    assert_eq!(prompt_time(&place.run), None);
}

#[test]
fn a_resumed_run_with_another_model_is_refused() {
    let place = place();
    let config = place.config();
    let missing = place.hashed(&config, Purpose::Sft, true).unwrap();
    let words = format!(
        "{} is missing or does not record the run's first model, so there is no check that {} is the same",
        place.run.record().display(),
        place.at("model").display()
    );
    assert_eq!(missing.unchecked, Some(words));
    let models = place.hashed(&config, Purpose::Sft, false).unwrap();
    assert_eq!(models.unchecked, None);
    place.start(&config, &models, "sft", 0, &[]);
    // The weights are in the checkpoint. The weight files are read again only for an adapter's base or a reference
    // model.
    fs::write(place.at("model/model.safetensors"), "others").unwrap();
    let resumed = place.hashed(&config, Purpose::Sft, true).unwrap();
    assert_eq!((names(&resumed.model), resumed.unchecked), (vec!["config.json"], None));
    let lora = Config { use_peft: true, ..config.clone() };
    for error in [place.hashed(&lora, Purpose::Sft, true), place.hashed(&config, Purpose::Dpo, true)] {
        let error = error.err().unwrap();
        let words = format!(
            "{}: the model has changed since the run began: its SHA-256 is {}, but in record.json it is {}. Restore \
             the old file, or start a new run",
            place.at("model/model.safetensors").display(),
            sha256(b"others"),
            sha256(b"weights")
        );
        assert_eq!((is_bad_input(&error), error.to_string()), (true, words));
    }
    // A new run has no record to compare with.
    assert!(place.hashed(&lora, Purpose::Sft, false).is_ok());
    fs::write(place.at("model/config.json"), "{}").unwrap();
    assert!(place.hashed(&config, Purpose::Sft, true).is_err());
    let stop = StopSignal::new();
    stop.request();
    let stopped =
        Models::hashed(&place.run, &config, Purpose::Sft, (&place.at("model"), &ModelFiles::default()), false, &stop);
    assert!(is_stopped(&stopped.err().unwrap()));
}

#[test]
fn changed_files_that_affect_prompts_are_refused() {
    let place = place();
    let config = place.config();
    let model = place.at("model");
    let listed = ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"];
    fs::create_dir(model.join("additional_chat_templates")).unwrap();
    for name in &listed {
        fs::write(model.join(name), "text").unwrap();
    }
    let record = place.start(&config, &place.hashed(&config, Purpose::Sft, false).unwrap(), "sft", 0, &[]);
    assert_eq!(names(record.prompt_files.as_ref().unwrap()), listed);
    let why = || place.hashed(&config, Purpose::Sft, true).err().unwrap().to_string();
    for name in listed {
        let path = model.join(name);
        let same = format!("{}: the model has changed since the run began: ", path.display());
        let (was, is) = (sha256(b"text"), sha256(b"texts"));
        fs::write(&path, "texts").unwrap();
        let changed = format!("its SHA-256 is {is}, but in record.json it is {was}. Restore the old");
        assert_eq!(why(), same.clone() + &changed + " file, or start a new run");
        fs::remove_file(&path).unwrap();
        let missing =
            format!("this file is missing, but affects prompts (its SHA-256 in record.json is {was}). Restore the old");
        assert_eq!(why(), same + &missing + " file, or start a new run");
        fs::write(&path, "text").unwrap();
    }
    let new = model.join("tokenizer_config.json");
    fs::write(&new, "{}").unwrap();
    let did_not_exist = "this file is new (not in record.json), but affects prompts. Remove it, or start a new run";
    let same = "the model has changed since the run began";
    assert_eq!(why(), format!("{}: {same}: {did_not_exist}", new.display()));
    // The record of an older version lacks these files: a note is returned, and later starts compare them.
    let older = RunRecord { prompt_files: None, ..record };
    fs::write(place.run.record(), older.to_bytes().unwrap()).unwrap();
    let models = place.hashed(&config, Purpose::Sft, true).unwrap();
    assert!(models.unchecked.is_none() && models.older.as_ref().unwrap().contains("is from an older version"));
    place.start(&config, &models, "sft", 5, &[]);
    assert_eq!(place.hashed(&config, Purpose::Sft, true).unwrap().older, None);
    fs::remove_file(&new).unwrap();
    assert!(why().contains("tokenizer_config.json"));
}

#[test]
fn reference_models_and_teachers_are_recorded_too() {
    let place = place();
    let other = Some(place.at("other").display().to_string());
    let reference = Config { beta: 0.1, ref_model: other.clone(), ..place.config() };
    let teacher = Config {
        algorithm: crate::config::Algorithm::Distillation,
        teacher_model_name_or_path: other.clone(),
        ..place.config()
    };
    let dpo = Config { ref_model: other.clone(), ..place.config() };
    for (config, purpose, what) in [
        (&reference, Purpose::Grpo, "reference model"),
        (&teacher, Purpose::Grpo, "teacher"),
        (&dpo, Purpose::Dpo, "reference model"),
    ] {
        let place = Place {
            run: RunDir::fresh(&place.at(&format!("run of {what} {purpose:?}"))).unwrap(),
            dir: tempfile::tempdir().unwrap(),
        };
        place.run.create("").unwrap();
        let model = Path::new(config.model_name_or_path.as_deref().unwrap());
        let files = ModelFiles::read(model).unwrap();
        let hashed =
            |resumes| Models::hashed(&place.run, config, purpose, (model, &files), resumes, &StopSignal::new());
        let models = hashed(false).unwrap();
        let record = place.start(config, &models, "train", 0, &[]);
        assert_eq!(names(&record.reference), ["config.json", "model.safetensors"], "{what}");
        assert!(hashed(true).is_ok());
        let mut changed = record.clone();
        changed.reference[1].sha256 = "another".to_owned();
        fs::write(place.run.record(), changed.to_bytes().unwrap()).unwrap();
        let error = hashed(true).err().unwrap().to_string();
        assert!(error.contains(&format!("the {what} has changed since the run began")), "{error}");
        assert!(error.contains("other/model.safetensors") && hashed(false).is_ok(), "{error}");
    }
    // A run without a KL term has no reference model; a reference model that is updated is in the checkpoint.
    let without = Config { beta: 0.0, ..reference.clone() };
    assert!(place.hashed(&without, Purpose::Grpo, false).unwrap().reference.is_empty());
    let moves = Config { sync_ref_model: true, ..reference };
    assert!(place.hashed(&moves, Purpose::Grpo, true).unwrap().reference.is_empty());
    assert_eq!(place.hashed(&moves, Purpose::Grpo, false).unwrap().reference.len(), 2);
}

#[test]
fn changed_files_of_rewards_are_named() {
    let place = place();
    let (script, model) = (place.at("score.py"), place.at("other"));
    fs::write(&script, "one").unwrap();
    let spec = |text: String| rewards::RewardSpec::from(text.as_str());
    let python = spec(format!("python:{}:f", script.display()));
    let config = Config {
        reward_funcs: vec!["length:3".into(), python, spec(format!("model:{}", model.display()))],
        ..place.config()
    };
    let paths = |file: &Path| file.display().to_string();
    fs::write(model.join("chat_template.jinja"), "t").unwrap();
    let models = place.hashed(&config, Purpose::Grpo, false).unwrap();
    let [shape, weights, template] = ["config.json", "model.safetensors", "chat_template.jinja"];
    let all = [paths(&script), paths(&model.join(shape)), paths(&model.join(weights)), paths(&model.join(template))];
    assert_eq!(names(&models.rewards), all);
    assert_eq!((models.rewards[0].sha256.as_str(), models.changed_rewards.len()), (sha256(b"one").as_str(), 0));
    assert!(place.hashed(&config, Purpose::Sft, false).unwrap().rewards.is_empty(), "SFT has no rewards");
    assert_eq!(names(&place.start(&config, &models, "train", 0, &[]).rewards), all);
    fs::write(&script, "two").unwrap();
    fs::write(model.join(template), "u").unwrap();
    let changed = place.hashed(&config, Purpose::Grpo, true).unwrap().changed_rewards;
    assert!(changed.len() == 2 && changed[1].starts_with(&all[3]), "{changed:?}");
    fs::write(model.join(template), "t").unwrap();
    let changed = place.hashed(&config, Purpose::Grpo, true).unwrap().changed_rewards;
    let words = format!("{}: its SHA-256 is {}, but was {}", script.display(), sha256(b"two"), sha256(b"one"));
    assert_eq!(changed, [words]);
    let stop = StopSignal::new();
    stop.request();
    assert!(is_stopped(&reward_files(&config, &stop).unwrap_err()));
}

#[test]
fn a_run_of_another_command_is_not_resumed() {
    let place = place();
    assert!(check_command(&place.run, "sft").is_ok(), "older versions wrote no record");
    let config = place.config();
    place.start(&config, &place.hashed(&config, Purpose::Dpo, false).unwrap(), "dpo", 0, &[]);
    assert!(check_command(&place.run, "dpo").is_ok());
    let error = check_command(&place.run, "sft").unwrap_err();
    let root = place.run.root().display();
    let words = format!("{root} is a run of `lockstep dpo`: resume it with that command, not with `lockstep sft`");
    assert_eq!((is_bad_input(&error), error.to_string()), (true, words));
    let unnamed = RunRecord { kind: String::new(), ..RunRecord::read(&place.run.record()).unwrap() };
    fs::write(place.run.record(), unnamed.to_bytes().unwrap()).unwrap();
    assert!(check_command(&place.run, "sft").is_ok());
}

#[test]
fn the_record_has_the_isolation_of_rewards_that_run_programs() {
    let config = Config { reward_funcs: vec!["length:3".into(), "code:python".into()], ..Config::default() };
    let isolated = isolation(&config, "train");
    assert_eq!(isolated.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["code"]);
    assert!(!isolated[0].1.is_empty());
    assert!(isolation(&config, "sft").is_empty());
}

/// The warning of a resumed run about the build that trained it so far.
#[test]
fn a_resume_by_another_build_logs_one_warning_line() {
    let place = place();
    let config = place.config();
    let models = place.hashed(&config, Purpose::Sft, false).unwrap();
    let record = place.start(&config, &models, "sft", 0, &[]);
    let here = Build::current();
    assert_eq!((&record.build, &record.starts[0].build), (&Some(here.clone()), &Some(here.clone())));
    assert_eq!(other_build(&place.run), None, "the same build, though its commit is not known");
    let warning = |build: Option<Build>| {
        let record = RunRecord { build, ..record.clone() };
        fs::write(place.run.record(), record.to_bytes().unwrap()).unwrap();
        let line = other_build(&place.run).unwrap();
        assert!(!line.contains('\n') && line.contains(&here.to_string()), "{line}");
        line
    };
    assert!(warning(None).contains("does not name the build"), "a record of an older version");
    let version = Build { version: "0.0.1".to_owned(), ..here.clone() };
    assert!(warning(Some(version)).contains("by another build: 0.0.1 (commit unknown (no git)"));
    let known = Build { commit: Some("0123456789abcdef".to_owned()), ..here.clone() };
    assert!(warning(Some(known)).contains("trained the run so far: that was"));
    fs::remove_file(place.run.record()).unwrap();
    assert_eq!(other_build(&place.run), None, "a missing record has a warning of its own");
}
