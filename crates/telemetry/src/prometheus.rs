//! Metrics of training runs in the Prometheus text format, version 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).
//!
//! A metric of a run becomes a gauge or counter `lockstep_…` with the label `run`. A part of the metric's name that the
//! run chooses becomes a label: `rewards/math/mean` is exported as `lockstep_rewards_mean{run="a",name="math"}`. A
//! metric that is not in the registry ([`crate::outputs`]) also gets its full name as the label `metric`, so that two
//! metrics stay distinct even if they differ only in characters that Prometheus does not allow. This file neither reads
//! files nor serves requests.

use crate::Step;
use crate::outputs::{self, Metric};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The media type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The states that a run may have.
const STATES: [&str; 3] = ["running", "finished", "stopped"];

/// Metrics that only increase during training. A resume from an older checkpoint resets them, which Prometheus allows
/// for counters.
const COUNTERS: [&str; 3] = ["num_tokens", "skipped_steps", "async/groups_remade"];

/// The exported data of a run.
#[derive(Clone, Debug, Default)]
pub struct RunMetrics {
    /// The run's id, exported as the label `run` of all its values.
    pub run: String,
    /// The run's name, if it has one.
    pub name: Option<String>,
    /// The state of the run: running, finished or stopped.
    pub state: &'static str,
    /// The number of optimizer steps done.
    pub step: Step,
    /// The planned number of optimizer steps, if known.
    pub total_steps: Option<u64>,
    /// The active alarms: id, subject and weight.
    pub alarms: Vec<(String, String, String)>,
    /// The latest value of each metric.
    pub metrics: Vec<(String, f64)>,
}

/// All samples of one metric name, with the metric's help text and type.
struct Family {
    help: String,
    kind: &'static str,
    /// The values by label text.
    samples: BTreeMap<String, f64>,
}

/// All families, by name.
#[derive(Default)]
struct Families(BTreeMap<String, Family>);

impl Families {
    fn add(&mut self, name: &str, kind: &'static str, help: &str, labels: &[(&str, &str)], value: f64) {
        let family = self.0.entry(name.to_owned());
        let family = family.or_insert_with(|| Family { help: help.to_owned(), kind, samples: BTreeMap::new() });
        let labels: Vec<String> = labels.iter().map(|(label, text)| format!("{label}=\"{}\"", escaped(text))).collect();
        family.samples.insert(labels.join(","), value);
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, Family { help, kind, samples }) in &self.0 {
            let help = help.replace('\\', "\\\\").replace('\n', "\\n");
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{{{labels}}} {}", number(*value));
            }
        }
        text
    }
}

/// The response to a scrape: the metrics of all runs.
pub fn exposition(runs: &[RunMetrics]) -> String {
    let mut all = Families::default();
    for run in runs {
        let own = [("run", run.run.as_str())];
        let name = [own[0], ("name", run.name.as_deref().unwrap_or_default())];
        all.add("lockstep_run_info", "gauge", "The run's name; always 1.", &name, 1.0);
        for state in STATES {
            let value = f64::from(u8::from(run.state == state));
            let help = "Whether the run is in this state: 1 or 0.";
            all.add("lockstep_run_state", "gauge", help, &[own[0], ("state", state)], value);
        }
        all.add("lockstep_run_steps_total", "counter", "Optimizer steps done.", &own, run.step.0 as f64);
        if let Some(total) = run.total_steps {
            all.add("lockstep_run_planned_steps", "gauge", "Planned number of optimizer steps.", &own, total as f64);
        }
        let help = "Active alarms, without notes.";
        all.add("lockstep_run_alarms", "gauge", help, &own, run.alarms.len() as f64);
        for (id, subject, weight) in &run.alarms {
            let labels = [own[0], ("alarm", id.as_str()), ("subject", subject.as_str()), ("weight", weight.as_str())];
            all.add("lockstep_run_alarm", "gauge", "An active alarm (docs/alarms.md); always 1.", &labels, 1.0);
        }
        for (name, value) in &run.metrics {
            add_metric(&mut all, &run.run, name, *value);
        }
    }
    all.text()
}

/// A value that a server counts or measures.
#[derive(Clone, Copy, Debug)]
pub struct ServerMetric {
    /// The exported name.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Whether the value only increases while the server runs.
    pub is_counter: bool,
    /// The value.
    pub value: f64,
}

/// The response to a scrape of a server.
pub fn exposition_of_server(metrics: &[ServerMetric]) -> String {
    let mut all = Families::default();
    for metric in metrics {
        all.add(metric.name, if metric.is_counter { "counter" } else { "gauge" }, metric.help, &[], metric.value);
    }
    all.text()
}

fn add_metric(all: &mut Families, run: &str, name: &str, value: f64) {
    let Some(metric) = outputs::metric(name) else {
        let help = "A metric defined by user code.";
        all.add(&sanitised(name), "gauge", help, &[("run", run), ("metric", name)], value);
        return;
    };
    let is_counter = COUNTERS.contains(&metric.name);
    let (kind, ending) = if is_counter { ("counter", "_total") } else { ("gauge", "") };
    let (set, _) = outputs::evaluated(name);
    // The name of the evaluation set becomes a label.
    let own = if set.is_empty() { name.to_owned() } else { name.replacen(&format!("eval_{set}_"), "eval_", 1) };
    let parts = chosen(metric.name, &own);
    let mut labels = vec![("run", run)];
    labels.extend((!set.is_empty()).then_some(("set", set)));
    labels.extend(parts.iter().map(|(label, part)| (*label, part.as_str())));
    all.add(&(sanitised(&fixed(metric.name)) + ending), kind, &help(metric), &labels, value);
}

fn help(metric: &Metric) -> String {
    let unit = if metric.unit.is_empty() { String::new() } else { format!(" Unit: {}.", metric.unit) };
    metric.meaning.replace('`', "") + &unit
}

/// A pattern without the `<…>` parts, which a run chooses.
fn fixed(pattern: &str) -> String {
    let mut text = String::new();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('<') {
        text += before;
        rest = after.split_once('>').map_or("", |(_, after)| after);
    }
    text + rest
}

/// The parts of `name` that match the pattern's placeholders `<…>`, each with the placeholder's name.
fn chosen<'a>(pattern: &'a str, name: &str) -> Vec<(&'a str, String)> {
    let Some((before, rest)) = pattern.split_once('<') else { return Vec::new() };
    let Some((word, after)) = rest.split_once('>') else { return Vec::new() };
    let Some(rest) = name.strip_prefix(before) else { return Vec::new() };
    let mut ends = rest.char_indices().map(|(at, c)| at + c.len_utf8());
    // Splits at the same position as the registry does: a placeholder matches the shortest text with which the rest
    // matches too.
    let end = ends.find(|&end| outputs::matches(after, &rest[end..])).unwrap_or(rest.len());
    let mut parts = vec![(word, rest[..end].to_owned())];
    parts.extend(chosen(after, &rest[end..]));
    parts
}

/// `lockstep_` and the name, in which each sequence of characters that Prometheus does not allow is replaced by `_`.
fn sanitised(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.fold("lockstep".to_owned(), |text, word| text + "_" + word)
}

/// The escaped value of a label, without quotes.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn number(value: f64) -> String {
    match value {
        _ if value.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "+Inf".to_owned(),
        f64::NEG_INFINITY => "-Inf".to_owned(),
        // The shortest decimal number that parses to the same f64.
        _ => format!("{value:?}"),
    }
}

#[cfg(test)]
mod tests;
