//! Writes the TensorBoard event file of an existing run from its other files, with the same events that a run with
//! `tensorboard = true` writes while it trains.
//!
//! Metrics come from `metrics.jsonl`, and histograms from the recorded rollouts. Example texts come from the
//! completions tables, or else from the recorded rollouts. The run's own files are not changed.

use super::reporter::{finite, hparams};
use super::run_dir::RunDir;
use crate::bad_input;
use crate::config::{Layers, Purpose};
use crate::data::rows;
use crate::error::OrBadInput;
use crate::rollouts::pieces::TokenTexts;
use crate::rollouts::wire::Group;
use crate::rollouts::wire::file::GroupFile;
use crate::stop::StopSignal;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use telemetry::{CompletionRows, Event, EventKind, Sink, Step, TensorBoardSink};
use train::Advantage;

/// The number of completions shown per step.
const SHOWN: usize = 8;

/// Writes the TensorBoard event file of `run` into `directory`, which must not have one. Returns the number of events.
pub fn write_board(run: &RunDir, directory: &Path) -> anyhow::Result<usize> {
    if let Some(other) = event_file(directory) {
        bad_input!(
            "{} already exists and is not overwritten: delete it, or choose another directory (--out)",
            other.display()
        );
    }
    let lines = telemetry::metrics::read(&run.metrics()).or_bad_input()?;
    if lines.is_empty() {
        bad_input!("{}: nothing has been logged yet", run.metrics().display());
    }
    let config = Layers { purpose: Purpose::Show, file: Some(run.config()), ..Layers::default() }.resolve()?.config;
    let mut sink = TensorBoardSink::open(directory, hparams(&config))?;
    let (mut times, mut events) = (BTreeMap::new(), 0);
    let mut receive = |time_s: f64, kind: EventKind| {
        events += 1;
        sink.receive(&Event { time_s, ..Event::from(kind) })
    };
    for line in &lines {
        let (Some(step), false) = (line.0.get("step").and_then(Value::as_u64).map(Step), line.0.contains_key("alarm"))
        else {
            continue;
        };
        // Older versions recorded no times.
        let time_s = line.number("time_s").unwrap_or(0.0);
        times.insert(step, time_s);
        let own = line.0.iter().filter(|(name, _)| !["step", "time_s"].contains(&name.as_str()));
        // A non-finite number is null in the file.
        let values = own.map(|(name, value)| (name.clone(), value.as_f64().unwrap_or(f64::NAN))).collect();
        receive(time_s, EventKind::Metrics { step, values })?;
    }
    let time_of = |step: Step| times.range(step..).next().or(times.iter().next_back()).map_or(0.0, |(_, time)| *time);
    let tables = tables(&run.completions())?;
    let has_tables = !tables.is_empty();
    for path in tables {
        if let Some(rows) = table(&path)? {
            receive(time_of(rows.step), EventKind::Completions { rows, shown: 0 })?;
        }
    }
    if run.rollouts().is_file() {
        let file = GroupFile::open(&run.rollouts()).or_bad_input_in(run.rollouts().display())?;
        let texts = if has_tables { None } else { TokenTexts::open(&run.model()).ok() };
        let mut steps: BTreeMap<Step, Vec<usize>> = BTreeMap::new();
        for (place, entry) in file.index().iter().enumerate() {
            steps.entry(entry.step.unwrap_or_default()).or_default().push(place);
        }
        for (step, places) in steps {
            let groups = places.iter().map(|&place| file.read(place)).collect::<Result<Vec<_>, _>>();
            let groups = groups.or_bad_input_in(run.rollouts().display())?;
            receive(time_of(step), EventKind::Distributions { step, values: distributions(&groups) })?;
            if let Some(texts) = &texts {
                let rows = completions(step, &groups, texts)?;
                receive(time_of(step), EventKind::Completions { rows, shown: 0 })?;
            }
        }
    }
    sink.finish()?;
    Ok(events)
}

/// The TensorBoard event file in `directory`, if there is one.
fn event_file(directory: &Path) -> Option<PathBuf> {
    let mut paths = disk::read_dir(directory).ok()?.into_iter().map(|entry| entry.path());
    paths.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains("tfevents")))
}

/// The paths of the completions tables in `directory`, by step.
fn tables(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let paths = disk::read_dir(directory).into_iter().flatten().map(|entry| entry.path());
    let is_table = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("completions_"))
            && path.extension().is_some_and(|kind| kind == "parquet" || kind == "jsonl")
    };
    let mut tables: Vec<PathBuf> = paths.filter(is_table).collect();
    tables.sort();
    Ok(tables)
}

/// The first rows of a completions table. Numeric columns, except the known ones, are read as rewards.
fn table(path: &Path) -> anyhow::Result<Option<CompletionRows>> {
    let content = disk::read(path, disk::most::GROUPS).or_bad_input_in(path.display())?;
    let rows: Vec<Map<String, Value>> =
        rows::read(path, &content, SHOWN, &StopSignal::default())?.into_iter().map(|(_, row)| row).collect();
    let Some(first) = rows.first() else { return Ok(None) };
    let column = |name: &str| rows.iter().map(|row| row.get(name).cloned().unwrap_or_default()).collect::<Vec<_>>();
    let known = ["step", "prompt", "completion", "advantage"];
    let is_number = |name: &&String| {
        !known.contains(&name.as_str()) && column(name).iter().all(|cell| cell.is_number() || cell.is_null())
    };
    let rewards = first.keys().filter(is_number);
    let rewards = rewards.map(|name| (name.clone(), column(name).iter().map(Value::as_f64).collect())).collect();
    Ok(Some(CompletionRows {
        step: first.get("step").and_then(Value::as_u64).map(Step).unwrap_or_default(),
        prompts: column("prompt"),
        completions: column("completion"),
        rewards,
        extra: Vec::new(),
        advantages: column("advantage").iter().map(Value::as_f64).collect(),
    }))
}

/// The first completions of `groups`, decoded to text, as rows of a table.
fn completions(step: Step, groups: &[Group], texts: &TokenTexts) -> anyhow::Result<CompletionRows> {
    let mut rows = CompletionRows { step, ..CompletionRows::default() };
    let names = groups.first().map(|group| group.reward_names.clone()).unwrap_or_default();
    rows.rewards = names.into_iter().map(|name| (name, Vec::new())).collect();
    let all = groups.iter().flat_map(|group| group.completions.iter().map(move |c| (group, c)));
    for (group, completion) in all.take(SHOWN) {
        rows.prompts.push(serde_json::to_value(&group.prompt)?);
        rows.completions.push(texts.pieces(&completion.ids)?.concat().into());
        for (k, (_, scores)) in rows.rewards.iter_mut().enumerate() {
            scores.push(completion.rewards.get(k).copied().flatten());
        }
        rows.advantages.push(completion.advantage.as_ref().and_then(Advantage::mean));
    }
    Ok(rows)
}

/// The values in a step's histograms: rewards, lengths, advantages, log-probabilities and entropies of `groups`.
fn distributions(groups: &[Group]) -> Vec<(String, Vec<f64>)> {
    let all = || groups.iter().flat_map(|group| &group.completions);
    let tokens = |name: &'static str| {
        all().filter_map(move |c| c.columns.f32(name)).flatten().map(|&x| f64::from(x)).collect::<Vec<f64>>()
    };
    finite([
        ("reward", groups.iter().flat_map(Group::totals).collect()),
        ("length", all().map(|c| c.ids.len() as f64).collect()),
        ("advantage", all().filter_map(|c| c.advantage.as_ref()?.mean()).collect()),
        ("logprob", tokens(model::columns::SAMPLER_LOGPS)),
        ("entropy", tokens(model::columns::ENTROPIES)),
    ])
}

#[cfg(test)]
mod tests;
