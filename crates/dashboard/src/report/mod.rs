//! A self-contained report of one training run, or of two side by side: learning progress, time by stage, and findings.
//!
//! [`Report::read`] reads a run's files; `markdown` and `html` write the report. All numbers are taken from the files.

mod html;
mod markdown;
mod time;

pub use html::html;
pub use markdown::{markdown, time};

use crate::groups::{self, Wanted};
use crate::run::RunFiles;
use crate::verdict::Verdict;
use lockstep::directory::ProfileRecord;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use telemetry::Step;
use telemetry::table::short_number;

/// The metrics that are shown as curves, if a run has them.
const CURVES: [&str; 10] = [
    "reward",
    "loss",
    "eval_reward",
    "rewards/accuracies",
    "kl",
    "entropy",
    "completions/mean_length",
    "completions/clipped_ratio",
    "grad_norm",
    "step_time",
];
/// Maximum number of points of a curve.
const POINTS: usize = 300;
/// The number of groups whose completions are shown; `CHARACTERS` limits the text of each.
const SAMPLES: usize = 3;
const CHARACTERS: usize = 600;

/// The contents of a report of one training run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The name of the run's directory.
    pub name: String,
    /// The verdict on the run, in one sentence.
    pub verdict: Verdict,
    /// Facts about the run (model, data, …): name and value.
    pub facts: Vec<(&'static str, String)>,
    /// The configuration keys of the run with their values as text, without the run's directory.
    pub keys: BTreeMap<String, String>,
    /// Metrics over the optimizer steps.
    pub curves: Vec<Curve>,
    /// Time by stage; `None` for runs of older versions, which do not record it.
    pub profile: Option<ProfileRecord>,
    /// The alarms, one line each.
    pub alarms: Vec<String>,
    /// Samples of completions from the last steps, if the run records completions.
    pub samples: Vec<Sample>,
}

/// One metric over the optimizer steps.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The name of the metric.
    pub name: &'static str,
    /// Pairs of step and value. If the run has more steps than points, each value is a mean over several steps.
    pub points: Vec<(Step, f64)>,
}

impl Curve {
    fn first_and_last(&self) -> Option<(f64, f64)> {
        Some((self.points.first()?.1, self.points.last()?.1))
    }
}

/// A prompt with the best and the worst of its completions.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The optimizer step that trained on the group.
    pub step: Step,
    /// The prompt.
    pub prompt: String,
    /// Reward and text of the best completion.
    pub best: (f64, String),
    /// Reward and text of the worst completion.
    pub worst: (f64, String),
}

impl Report {
    /// Reads the training run in the directory `root`.
    pub fn read(root: &Path) -> anyhow::Result<Report> {
        let mut run = RunFiles::new(root.to_owned());
        run.refresh();
        if !root.join("config.toml").is_file() {
            anyhow::bail!("{} is not a run's directory: config.toml is missing", root.display());
        }
        if let Some(why) = run.unreadable() {
            anyhow::bail!(why);
        }
        let name = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        let name = name.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let curves = CURVES.iter().filter_map(|&name| curve(&run, name)).collect();
        let samples = samples(&mut run);
        let (verdict, facts) = (run.verdict(), facts(&run));
        let alarms = run.alarms(&verdict).iter().filter_map(alarm).collect();
        let config = run.config();
        let keys = config.values.iter().filter(|(key, _)| *key != "output_dir");
        let keys = keys.map(|(key, value)| (key.clone(), text(value))).collect();
        Ok(Report { name, verdict, facts, keys, curves, profile: ProfileRecord::read(root), alarms, samples })
    }
}

fn curve(run: &RunFiles, name: &'static str) -> Option<Curve> {
    let values: Vec<(Step, f64)> = run.series().values(name).filter(|(_, x)| x.is_finite()).collect();
    let width = values.len().div_ceil(POINTS).max(1);
    let mean = |part: &[(Step, f64)]| (part[0].0, part.iter().map(|(_, x)| x).sum::<f64>() / part.len() as f64);
    let points: Vec<_> = values.chunks(width).map(mean).collect();
    (!points.is_empty()).then_some(Curve { name, points })
}

/// A configuration's value as text.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        // Small numbers are written as in a configuration file.
        Value::Number(x) if x.is_f64() && x.as_f64().is_some_and(|x| x != 0.0 && x.abs() < 1e-3) => {
            format!("{:e}", x.as_f64().unwrap_or_default())
        }
        other => other.to_string(),
    }
}

/// The facts of a run that are not configuration keys.
const OF_RUN: [&str; 4] = ["command", "state", "steps", "machine"];

/// The differences between two runs: a row with the names of the runs, then one row per fact or configuration key that
/// differs.
fn differences(reports: &[Report]) -> Vec<Vec<String>> {
    let row = |name: &str, of: &dyn Fn(&Report) -> Option<String>| {
        let values: Vec<Option<String>> = reports.iter().map(of).collect();
        let differ = values.iter().any(|value| *value != values[0]);
        let cells = values.into_iter().map(|value| value.unwrap_or_else(|| "–".to_owned()));
        differ.then(|| std::iter::once(name.to_owned()).chain(cells).collect::<Vec<_>>())
    };
    let fact =
        |report: &Report, name: &str| report.facts.iter().find(|(own, _)| *own == name).map(|(_, value)| value.clone());
    let keys: BTreeSet<&String> = reports.iter().flat_map(|report| report.keys.keys()).collect();
    let mut rows = vec![std::iter::once("key".to_owned()).chain(reports.iter().map(|r| r.name.clone())).collect()];
    rows.extend(OF_RUN.iter().filter_map(|name| row(name, &|report| fact(report, name))));
    rows.extend(keys.into_iter().filter_map(|key| row(key, &|report| report.keys.get(key).cloned())));
    rows
}

fn facts(run: &RunFiles) -> Vec<(&'static str, String)> {
    let (config, record) = (run.config(), run.record());
    let of = |key: &str| config.values.get(key).map(text).unwrap_or_default();
    let (step, total) = run.progress();
    let steps = total.map_or_else(|| step.to_string(), |total| format!("{step} of {total}"));
    let machine = format!("{} threads, {}, {}", text(&record["threads"]), text(&record["isa"]), text(&record["dtype"]));
    // Facts that apply only to runs with generation.
    let online = |value: String| if record["kind"] == "train" { value } else { String::new() };
    let all = [
        ("command", text(&record["kind"])),
        ("state", run.state().to_owned()),
        ("steps", steps),
        ("model", of("model_name_or_path")),
        ("data", of("dataset_name")),
        ("algorithm", online(of("algorithm"))),
        ("completions of a prompt", online(of("num_generations"))),
        ("longest completion", online(of("max_completion_length"))),
        ("learning rate", of("learning_rate")),
        ("seed", of("seed")),
        ("machine", machine),
    ];
    all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

fn alarm(line: &Value) -> Option<String> {
    let alarm = &line["alarm"];
    let word = |key: &str| alarm[key].as_str().unwrap_or_default().to_owned();
    if alarm["until"].is_u64() || line["weight"] == "note" {
        return None;
    }
    let (id, of, since) = (word("id"), word("subject"), alarm["since"].as_u64()?);
    let of = if of.is_empty() { of } else { format!(" ({of})") };
    Some(format!("{id}{of} since step {since}: {}. What helps: {}", word("evidence"), word("remedy")))
}

fn samples(run: &mut RunFiles) -> Vec<Sample> {
    let Some(file) = run.groups() else { return Vec::new() };
    let texts = run.tokens();
    let last = file.index().iter().filter_map(|entry| entry.step).max().unwrap_or_default();
    let wanted = Wanted { from: last, to: last, sort: "-spread".to_owned(), limit: SAMPLES, ..Wanted::default() };
    let listed = groups::list(&file, &wanted, None);
    let places = listed["groups"].as_array().into_iter().flatten().filter_map(|group| group["place"].as_u64());
    places.filter_map(|place| sample(&groups::group(&file, place as usize, texts.as_deref(), None).ok()?)).collect()
}

fn sample(group: &Value) -> Option<Sample> {
    let weights: Vec<f64> = group["weights"].as_array()?.iter().filter_map(Value::as_f64).collect();
    let shown = |text: &str| -> String {
        let cut: String = text.chars().take(CHARACTERS).collect();
        if cut.len() < text.len() { cut + " …" } else { cut }
    };
    let scored = |completion: &Value| {
        let rewards = completion["rewards"].as_array()?;
        // Completions without a score are skipped: their total is not 0.
        rewards.iter().any(Value::is_number).then_some(())?;
        let of = rewards.iter().zip(&weights).filter_map(|(reward, weight)| Some(reward.as_f64()? * weight));
        // The completions of a run are recorded as tokens.
        let joined = |pieces: &Vec<Value>| pieces.iter().filter_map(Value::as_str).collect::<String>();
        let text = completion["text"].as_str().map(str::to_owned);
        Some((of.sum::<f64>(), shown(&text.or_else(|| completion["pieces"].as_array().map(joined))?)))
    };
    let mut all: Vec<(f64, String)> = group["completions"].as_array()?.iter().filter_map(scored).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let prompt = shown(&groups::plain(&group["prompt"]));
    Some(Sample {
        step: group["step"].as_u64().map(Step)?,
        prompt,
        best: all.last()?.clone(),
        worst: all.first()?.clone(),
    })
}

/// The text on one line.
fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The distinct names, in the order of first appearance.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all = Vec::new();
    names.for_each(|name| {
        if !all.contains(&name) {
            all.push(name)
        }
    });
    all
}

fn curve_names(reports: &[Report]) -> Vec<&str> {
    distinct(reports.iter().flat_map(|report| &report.curves).map(|curve| curve.name))
}

/// The number with three significant digits.
fn number(x: f64) -> String {
    short_number(x, 1e6, 2)
}

#[cfg(test)]
mod tests;
