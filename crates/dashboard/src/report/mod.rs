//! A run, or two side by side, on one page that needs nothing else: what it learned, where its time went, what was
//! found.
//!
//! [`Report::read`] reads a run's files; `markdown` and `html` write it. Numbers are those of the files.

mod html;
mod markdown;
mod time;

pub use html::html;
pub use markdown::{markdown, time};

use crate::groups::{self, Wanted};
use crate::run::RunFiles;
use crate::verdict::Verdict;
use lockstep::ProfileRecord;
use serde_json::Value;
use std::path::Path;
use telemetry::table::short_number;

/// Metrics whose course is shown, of those that a run has.
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
/// Points of a curve.
const POINTS: usize = 300;
/// Groups whose completions are shown, and characters of each.
const SAMPLES: usize = 3;
const CHARACTERS: usize = 600;

/// What is said of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The name of its directory.
    pub name: String,
    /// One sentence that says how it is.
    pub verdict: Verdict,
    /// What it was: name and value.
    pub facts: Vec<(&'static str, String)>,
    /// Metrics over the steps.
    pub curves: Vec<Curve>,
    /// Where its time went; runs of older versions do not say.
    pub profile: Option<ProfileRecord>,
    /// Alarms, each in a line.
    pub alarms: Vec<String>,
    /// Of its last steps, where completions are recorded.
    pub samples: Vec<Sample>,
}

/// A metric over the steps.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Its name.
    pub name: &'static str,
    /// Steps and values: means, where there are more steps than points.
    pub points: Vec<(u64, f64)>,
}

impl Curve {
    fn first_and_last(&self) -> Option<(f64, f64)> {
        Some((self.points.first()?.1, self.points.last()?.1))
    }
}

/// A prompt with the best and the worst of its completions.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The optimizer step that learned from it.
    pub step: u64,
    /// The prompt.
    pub prompt: String,
    /// Reward and text.
    pub best: (f64, String),
    /// Reward and text.
    pub worst: (f64, String),
}

impl Report {
    /// Reads the run in `root`.
    pub fn read(root: &Path) -> anyhow::Result<Report> {
        let mut run = RunFiles::new(root.to_owned());
        run.refresh();
        if !root.join("config.toml").is_file() {
            anyhow::bail!("{}: there is no config.toml: this is no run's directory", root.display());
        }
        let name = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        let name = name.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let curves = CURVES.iter().filter_map(|&name| curve(&run, name)).collect();
        let alarms = run.alarms().iter().filter_map(alarm).collect();
        let samples = samples(&mut run);
        let (verdict, facts) = (run.verdict(), facts(&run));
        Ok(Report { name, verdict, facts, curves, profile: ProfileRecord::read(root), alarms, samples })
    }
}

fn curve(run: &RunFiles, name: &'static str) -> Option<Curve> {
    let values: Vec<(u64, f64)> = run.series().values(name).filter(|(_, x)| x.is_finite()).collect();
    let width = values.len().div_ceil(POINTS).max(1);
    let mean = |part: &[(u64, f64)]| (part[0].0, part.iter().map(|(_, x)| x).sum::<f64>() / part.len() as f64);
    let points: Vec<_> = values.chunks(width).map(mean).collect();
    (points.len() > 1).then_some(Curve { name, points })
}

fn facts(run: &RunFiles) -> Vec<(&'static str, String)> {
    let (config, record) = (run.config(), run.json("record.json"));
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let of = |key: &str| config.get(key).map(text).unwrap_or_default();
    let (step, total) = run.progress();
    let steps = total.map_or_else(|| step.to_string(), |total| format!("{step} of {total}"));
    let machine = format!("{} threads, {}, {}", text(&record["threads"]), text(&record["isa"]), text(&record["dtype"]));
    // Of a run that generates.
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
    if alarm["until"].is_u64() || alarm["quiet"] == Value::Bool(true) {
        return None;
    }
    let (id, of, since) = (word("id"), word("subject"), alarm["since"].as_u64()?);
    let of = if of.is_empty() { of } else { format!(" ({of})") };
    Some(format!("{id}{of} since step {since}: {}. What helps: {}", word("evidence"), word("remedy")))
}

fn samples(run: &mut RunFiles) -> Vec<Sample> {
    let Some(file) = run.groups() else { return Vec::new() };
    let last = file.index().iter().filter_map(|entry| entry.step).max().unwrap_or(0);
    let wanted = Wanted { from: last, to: last, sort: "-spread".to_owned(), limit: SAMPLES, ..Wanted::default() };
    let listed = groups::list(&file, &wanted);
    let places = listed["groups"].as_array().into_iter().flatten().filter_map(|group| group["place"].as_u64());
    places.filter_map(|place| sample(&groups::group(&file, place as usize, None, None).ok()?)).collect()
}

fn sample(group: &Value) -> Option<Sample> {
    let weights: Vec<f64> = group["weights"].as_array()?.iter().filter_map(Value::as_f64).collect();
    let shown = |text: &str| -> String {
        let cut: String = text.chars().take(CHARACTERS).collect();
        if cut.len() < text.len() { cut + " …" } else { cut }
    };
    let scored = |completion: &Value| {
        let rewards = completion["rewards"].as_array()?;
        let of = rewards.iter().zip(&weights).filter_map(|(reward, weight)| Some(reward.as_f64()? * weight));
        Some((of.sum::<f64>(), shown(completion["text"].as_str()?)))
    };
    let mut all: Vec<(f64, String)> = group["completions"].as_array()?.iter().filter_map(scored).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let prompt = shown(&groups::plain(&group["prompt"]));
    Some(Sample { step: group["step"].as_u64()?, prompt, best: all.last()?.clone(), worst: all.first()?.clone() })
}

/// Each once, in the order of first appearance.
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

/// Three digits, for people.
fn number(x: f64) -> String {
    short_number(x, 1e6, 2)
}

#[cfg(test)]
mod tests;
