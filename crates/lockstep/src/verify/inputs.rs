//! The verified run: its record, and which of its files still exist.

use super::report::{Difference, Interval, Report, missing};
use super::{Choice, VerifyOptions};
use crate::algorithms::Reference;
use crate::config::{ComputeDType, Config, Layers, Purpose, Resolved, Strategy, keys, settings_of_weights, undo};
use crate::data::DatasetSpec;
use crate::error::OrBadInput;
use crate::models::{ModelSource, hashes, hashes_of_reference, locate, prompt_hashes, separate_reference};
use crate::rollouts::wire::file::GroupFile;
use crate::run::state::RunState;
use crate::run::{self, RunDir, checkpoint};
use kernels::Context;
use model::chat::PromptTime;
use model::hub::HubKind;
use model::io::dtype_of_files;
use model::peft::is_adapter;
use model::{FileDType, Head};
use rewards::RewardSpec;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use telemetry::build::Build;
use telemetry::record::{FileHash, Start};
use telemetry::{RunRecord, Step};

/// A recorded run, opened for reading.
pub struct RecordedRun {
    pub dir: RunDir,
    pub record: RunRecord,
    pub resolved: Resolved,
    pub ctx: Context,
    /// Complete checkpoints by step, the oldest first.
    pub checkpoints: Vec<(Step, PathBuf)>,
}

impl RecordedRun {
    /// Opens the run in `root`. Writes nothing.
    pub fn open(root: &Path, options: &VerifyOptions<'_>) -> anyhow::Result<RecordedRun> {
        let dir = RunDir::open(root)?;
        let Ok(record) = RunRecord::read(&dir.record()) else {
            return missing(format!(
                "{} is missing or damaged: the sources of the run are unknown",
                dir.record().display()
            ));
        };
        if record.kind != Purpose::Grpo.command() {
            return missing(format!(
                "{} is a run of `lockstep {}`: only runs of `lockstep train` record the groups that they learn from",
                dir.root().display(),
                record.kind
            ));
        }
        let mut resolved =
            Layers { purpose: Purpose::Grpo, file: Some(dir.config()), ..Layers::default() }.resolve()?;
        let config = &mut resolved.config;
        let place = |path: &Path| std::path::absolute(path).map(|path| path.display().to_string());
        if let Some(model) = &options.model {
            config.model_name_or_path = Some(place(model)?);
        }
        if let Some(dataset) = &options.dataset {
            config.dataset_name = Some(place(dataset)?);
        }
        config.threads = options.threads.or(config.threads);
        let ctx = run::context(config.device, config.threads, config.dtype)?;
        let here = ctx.arithmetic(config.dtype.dtype());
        if !record.arithmetic.is_empty() && record.arithmetic != here {
            return missing(format!(
                "the run's matmuls are {} on {}, but here they would be {here} on {}, with different bits. Set \
                 LOCKSTEP_ISA={} if this machine has it",
                record.arithmetic,
                record.isa,
                ctx.describe(),
                record.isa
            ));
        }
        let checkpoints = checkpoint::all(&dir);
        Ok(RecordedRun { dir, record, resolved, ctx, checkpoints })
    }

    /// The run's configuration.
    pub fn config(&self) -> &Config {
        &self.resolved.config
    }

    /// The configuration for the replay of an interval, without evaluations, checkpoints and logs, on which no bit of
    /// the weights depends.
    pub fn replay_config(&self, interval: Interval) -> anyhow::Result<Resolved> {
        let mut resolved = self.resolved_of(interval)?;
        let config = &mut resolved.config;
        config.record_rollouts = true;
        config.record_updates = false;
        (config.eval_strategy, config.save_strategy) = (Strategy::No, Strategy::No);
        (config.eval_on_start, config.load_best_model_at_end) = (false, false);
        (config.log_completions, config.tensorboard) = (false, false);
        (config.eval_dataset_name, config.early_stopping_patience) = (None, None);
        (config.metric_for_best_model, config.save_total_limit) = (None, None);
        config.eval_datasets.clear();
        Ok(resolved)
    }

    /// The configuration of the run in the steps of an interval.
    pub fn resolved_of(&self, interval: Interval) -> anyhow::Result<Resolved> {
        let mut resolved = self.resolved.clone();
        match self.config_of(interval) {
            Ok(config) => {
                resolved.config = config;
                Ok(resolved)
            }
            Err(why) => missing(format!("{interval}: {why}")),
        }
    }

    /// Whether two intervals had the same values of all keys that affect bits, and rendered prompts with the same time.
    pub fn same_inputs(&self, a: Interval, b: Interval) -> bool {
        let settings = |interval| self.config_of(interval).ok().map(|config| settings_of_weights(&config));
        settings(a) == settings(b) && self.prompt_time(a.to) == self.prompt_time(b.to)
    }

    /// Refuses a run whose completions came from user code (a rollout function), since they cannot be regenerated here.
    pub fn check_source(&self) -> anyhow::Result<()> {
        let Some((_, path)) = self.checkpoints.last() else { return Ok(()) };
        let task = RunState::read(path)?.task;
        let has_function = [task.get("has_program"), task.pointer("/pipeline/has_program")];
        if has_function.into_iter().flatten().any(|value| value == true) {
            missing(
                "the completions come from a function of the user's program (rollout_func), which is not available \
                 here",
            )
        } else {
            Ok(())
        }
    }

    /// The groups that the run recorded.
    pub fn groups(&self) -> anyhow::Result<GroupFile> {
        let path = self.dir.rollouts();
        match GroupFile::open_by_records(&path) {
            Ok(file) if !file.index().is_empty() => Ok(file),
            Err(error) if error.kind() != ErrorKind::NotFound => missing(format!("it is damaged: {error}")),
            _ => missing(format!(
                "{} is missing or empty: a run with record_rollouts = true writes its groups there",
                path.display()
            )),
        }
    }

    /// The names of two kinds of rewards: rewards that are called again, and rewards whose scores come from the record.
    pub fn rewards(&self) -> anyhow::Result<(Vec<String>, Vec<String>)> {
        let specs = &self.config().reward_funcs;
        let named = rewards::names(specs)?.into_iter().zip(specs);
        let (asked, recorded): (Vec<_>, Vec<_>) =
            named.partition(|(_, spec): &(_, &RewardSpec)| spec.is_deterministic());
        let names = |list: Vec<(String, _)>| list.into_iter().map(|(name, _)| name).collect();
        Ok((names(asked), names(recorded)))
    }

    /// Refuses a run if a file of a reward is missing. The file's name is part of the lineage, and without the file it
    /// would look like an ordinary argument.
    pub fn check_reward_files(&self) -> anyhow::Result<()> {
        match self.record.rewards.iter().find(|file| !Path::new(&file.name).exists()) {
            Some(file) => missing(format!(
                "{}, a file of a reward, is missing: the reward is not called, but the file's hash is part of the \
                 lineage. Restore it (SHA-256 {})",
                file.name, file.sha256
            )),
            None => Ok(()),
        }
    }

    /// Compares the hashes of the run's original files with its record.
    pub fn hashes(&self, options: &VerifyOptions<'_>, report: &mut Report) -> anyhow::Result<()> {
        let source = ModelSource::of(self.config(), Head::Lm)?;
        let mut found = hashes(&source.dir, &options.stop, |_| true)?;
        if let Some(adapter) = &source.adapter {
            found.extend(hashes(adapter, &options.stop, |_| true)?);
        }
        // Records of older versions may list fewer files.
        let is_same = self.is_of_same_build();
        let all = |recorded: &[FileHash], found: &[FileHash]| {
            if is_same { filled(recorded, found) } else { recorded.to_vec() }
        };
        compare(&source.dir, &all(&self.record.model, &found), &found, report);
        if let Some(dir) = self.reference()? {
            let found = hashes_of_reference(&dir, &options.stop)?;
            compare(&dir, &all(&self.record.reference, &found), &found, report);
        }
        let prompt_files = self.record.prompt_files.as_deref();
        match prompt_files.or(is_same.then_some(&[][..])) {
            Some(recorded) => compare_prompt_files(&source.dir, recorded, &prompt_hashes(&source.dir)?, report),
            // The replay still compares the prompts' tokens.
            None => (options.say)(&format!(
                "{} is from an older version, which recorded no hashes of chat templates and tokenizer settings, so \
                 changes to them go unnoticed",
                self.dir.record().display()
            )),
        }
        match (&self.config().replay, DatasetSpec::train(self.config())) {
            (None, Some(spec)) => {
                let sha256 = DatasetSpec { stop: options.stop.clone(), ..spec }.load()?.hash;
                let name = self.record.data.first().map(|file| file.name.clone()).unwrap_or_default();
                let place = self.config().dataset_name.clone().unwrap_or_default();
                let found = [FileHash { name, sha256, bytes: None }];
                compare(Path::new(&place), &all(&self.record.data, &found), &found, report);
            }
            _ => report.not_verified.push("the hash of the replayed file".into()),
        }
        self.settings(report);
        Ok(())
    }

    /// The directory of a separate reference or teacher model.
    fn reference(&self) -> anyhow::Result<Option<PathBuf>> {
        let name = match self.config().reference() {
            Some(Reference::Teacher { name, .. }) => Some(name),
            Some(Reference::Policy) => separate_reference(self.config()),
            None => None,
        };
        name.map(|name| locate(name, HubKind::Model)).transpose()
    }

    /// Compares the settings that the record repeats from the configuration.
    fn settings(&self, report: &mut Report) {
        let config = self.config();
        let all = [
            ("seed", self.record.seed.to_string(), config.seed.to_string()),
            ("dtype", self.record.dtype.clone(), config.dtype.name().to_owned()),
        ];
        let differs = all.into_iter().find(|(_, recorded, configured)| recorded != configured);
        if let (None, Some((kind, recorded, remade))) = (&report.difference, differs) {
            let place = Some(self.dir.record().display().to_string());
            report.difference =
                Some(Difference { kind: kind.into(), place, recorded, remade, ..Difference::default() });
        }
    }

    /// The intervals that can be replayed, because a state exists at their start and end. All other intervals are
    /// reported as not verified.
    pub fn intervals(&self, report: &mut Report) -> Vec<Interval> {
        let ends = self.checkpoints.iter().map(|(step, _)| *step);
        let begins = std::iter::once(Step::START).chain(ends.clone());
        let (mut intervals, mut refused) = (Vec::new(), Vec::new());
        for (from, to) in begins.zip(ends).filter(|(from, to)| from < to) {
            let interval = Interval { from, to };
            match self.config_of(interval) {
                Ok(_) => intervals.push(interval),
                Err(why) => refused.push(format!("{interval}: {why}")),
            }
        }
        report.not_verified.extend(refused);
        intervals
    }

    /// The starts of the run up to the start that took `step`.
    pub fn starts_of(&self, step: Step) -> &[Start] {
        let starts = &self.record.starts;
        // A resume from an older checkpoint repeated the later steps.
        &starts[..starts.iter().rposition(|start| start.step < step).map_or(0, |own| own + 1)]
    }

    /// The time with which the prompts of `step` were rendered.
    pub fn prompt_time(&self, step: Step) -> Option<PromptTime> {
        let start = self.starts_of(step).last().or(self.record.starts.first())?;
        Some(PromptTime(start.time_of_prompts_s()))
    }

    /// Whether this build trained the whole run.
    pub fn is_of_same_build(&self) -> bool {
        self.other_build().is_none()
    }

    /// The steps, up to `step`, where a later start changed keys that affect bits. A replay can cross such a step only
    /// at a checkpoint.
    pub fn changes(&self, step: Step) -> BTreeSet<Step> {
        changes(self.starts_of(step)).map(|(step, _)| step).collect()
    }

    /// The builds that trained the run, unless all are known to be this build.
    pub fn other_build(&self) -> Option<String> {
        let here = Build::current();
        let known = |build: &Option<Build>| {
            build.as_ref().map_or("a build that its record does not name".to_owned(), |b| b.to_string())
        };
        let is_same = |build: &Option<Build>| build.as_ref().is_some_and(|b| b.is_same(&here).unwrap_or(b == &here));
        let mut others: Vec<String> =
            self.record.starts.iter().map(|start| &start.build).filter(|b| !is_same(b)).map(known).collect();
        others.dedup();
        (!others.is_empty()).then(|| format!("the run was trained by {}; this is {here}", others.join(", then by ")))
    }

    /// The configuration of an interval's steps: `config.toml`, with the changes of later starts undone. If the
    /// configuration is unknown, the error gives the reason.
    fn config_of(&self, interval: Interval) -> Result<Config, String> {
        // The numbers of the starts that took the first and the last step of the interval.
        let [first, later] = [interval.from.next(), interval.to].map(|step| self.starts_of(step).len());
        let starts = &self.record.starts;
        if let Some((step, _)) = changes(&starts[..later]).find(|(_, start)| *start >= first) {
            return Err(format!("the configuration was changed after step {step}, whose checkpoint no longer exists"));
        }
        let mut config = self.config().clone();
        undo(&mut config, &lines(&starts[later..]))?;
        Ok(config)
    }

    /// The dtype to which the final model was rounded from the checkpoint; `None` for a copy.
    pub fn result_rounds_to(&self, checkpoint: &Path) -> anyhow::Result<Option<FileDType>> {
        let (config, adapts) = (&self.resolved.config, is_adapter(checkpoint));
        let name = config.model_name_or_path.as_deref().unwrap_or_default();
        let began = locate(name, HubKind::Model)?;
        let loaded = (!adapts || is_adapter(&began)).then(|| dtype_of_files(&began)).transpose().or_bad_input()?;
        let dtype = config.save_dtype.file_dtype(config.dtype == ComputeDType::Bf16, adapts, loaded);
        Ok((dtype != dtype_of_files(checkpoint).or_bad_input()?).then_some(dtype))
    }

    /// The step of the checkpoint whose model is the final model.
    pub fn step_of_result(&self) -> anyhow::Result<Option<Step>> {
        let Some((last, path)) = self.checkpoints.last().filter(|_| self.dir.model().is_dir()) else {
            return Ok(None);
        };
        let best = RunState::read(path)?.best.filter(|_| self.config().load_best_model_at_end);
        Ok(Some(best.map_or(*last, |best| best.step)))
    }
}

/// The configuration changes recorded in `starts`.
fn lines(starts: &[Start]) -> Vec<&str> {
    starts.iter().flat_map(|start| start.changed.iter().map(String::as_str)).collect()
}

/// The starts that changed keys which affect bits: the step from which the change applies, and the index of the start.
/// If a later start begins at an earlier step, the change applies from that step.
fn changes(starts: &[Start]) -> impl Iterator<Item = (Step, usize)> {
    let changed = starts.iter().enumerate().filter(|(_, start)| start.changed.iter().any(|line| decides_bits(line)));
    changed.map(|(place, _)| (starts[place..].iter().map(|start| start.step).min().unwrap_or_default(), place))
}

fn decides_bits(change: &str) -> bool {
    let name = change.split(' ').next().unwrap_or_default();
    keys().iter().any(|key| key.name == name && key.decides_bits())
}

fn compare(place: &Path, recorded: &[FileHash], found: &[FileHash], report: &mut Report) {
    for file in found {
        // An adapter and its base may both have a file of this name.
        let mut same_name = recorded.iter().filter(|old| old.name == file.name).peekable();
        let Some(old) = same_name.peek().copied() else { continue };
        let length = |of: &FileHash| of.bytes.map_or_else(|| "none".to_owned(), |bytes| format!("{bytes} bytes"));
        let has_length = |old: &FileHash| old.bytes.is_none() || file.bytes.is_none() || old.bytes == file.bytes;
        let (kind, recorded, remade) = match same_name.find(|old| old.sha256 == file.sha256) {
            Some(old) if has_length(old) => {
                report.hashes.push(file.name.clone());
                continue;
            }
            Some(old) => ("length", length(old), length(file)),
            None => ("hash", old.sha256.clone(), file.sha256.clone()),
        };
        let place = if place.is_dir() { place.join(&file.name) } else { place.to_owned() };
        report.difference.get_or_insert_with(|| Difference {
            kind: kind.into(),
            place: Some(place.display().to_string()),
            recorded,
            remade,
            ..Difference::default()
        });
    }
    for old in recorded.iter().filter(|old| !found.iter().any(|file| file.name == old.name)) {
        report.not_verified.push(format!("{} is not in {}: its hash", old.name, place.display()));
    }
}

/// Like [`compare`], for files that affect prompts: added and missing files count as differences.
fn compare_prompt_files(place: &Path, recorded: &[FileHash], found: &[FileHash], report: &mut Report) {
    compare(place, &filled(recorded, found), &filled(found, recorded), report);
}

/// `files`, with an additional entry without a hash for each file that only `others` have.
fn filled(files: &[FileHash], others: &[FileHash]) -> Vec<FileHash> {
    let none = |file: &FileHash| FileHash { name: file.name.clone(), bytes: None, sha256: "no such file".into() };
    let lacks = |file: &&FileHash| !files.iter().any(|own| own.name == file.name);
    files.iter().cloned().chain(others.iter().filter(lacks).map(none)).collect()
}

/// Selects intervals by `choice`, and keeps their order.
pub fn choose(mut all: Vec<Interval>, choice: Choice) -> Vec<Interval> {
    let Choice::Random { steps, seed } = choice else { return all };
    // SplitMix64, so that the seed determines the intervals.
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let (mut chosen, mut covered) = (Vec::new(), 0);
    while covered < steps && !all.is_empty() {
        let interval = all.swap_remove((next() % all.len() as u64) as usize);
        covered += interval.steps();
        chosen.push(interval);
    }
    chosen.sort_by_key(|interval| interval.from);
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_drawn_by_the_seed_until_there_are_enough_steps() {
        let all: Vec<Interval> = (0..10).map(|i| Interval { from: Step(3 * i), to: Step(3 * i + 3) }).collect();
        let drawn = |steps, seed| choose(all.clone(), Choice::Random { steps, seed });
        assert_eq!(drawn(5, 1), drawn(5, 1));
        assert_eq!((drawn(5, 1).len(), drawn(1, 4).len(), drawn(0, 4).len()), (2, 1, 0));
        assert_eq!(drawn(30, 9), all, "the order is kept");
        assert_eq!(drawn(31, 9), all);
        assert_eq!(choose(all.clone(), Choice::All), all);
        let first: std::collections::BTreeSet<u64> = (0..200).map(|seed| drawn(1, seed)[0].from.0).collect();
        assert_eq!(first.len(), 10, "every interval is first for some seed");
        let texts = [Interval { from: Step(3), to: Step(4) }, Interval { from: Step(3), to: Step(6) }]
            .map(|interval| interval.to_string());
        assert_eq!(texts, ["step 4", "steps 4 to 6"]);
    }
}
