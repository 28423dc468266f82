//! A registry of all outputs of a training run: its metrics, with their meaning, unit, healthy values and remedies, and
//! the files in its directory. docs/outputs.md is generated from this registry, and the dashboard explains its charts
//! with it.
//!
//! The registry only describes metrics; it does not compute them. In a name, `<…>` stands for a part that the run
//! chooses: `rewards/<name>/mean` describes the mean of each reward.

mod files;
mod metrics;
mod more;

pub use files::{FILES, RunFile};
pub use metrics::SECTIONS;

/// The description of a metric that runs log.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The metric's key in metrics.jsonl; `<…>` stands for a name that the run chooses.
    pub name: &'static str,
    /// The unit of the value; empty for a ratio or a share.
    pub unit: &'static str,
    /// The meaning of the metric.
    pub meaning: &'static str,
    /// Healthy values; empty if none are known.
    pub healthy: &'static str,
    /// The usual remedy for other values.
    pub remedy: &'static str,
}

const fn row(name: &'static str, unit: &'static str, meaning: &'static str) -> Metric {
    Metric { name, unit, meaning, healthy: "", remedy: "" }
}

/// A group of metrics on one subject.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// The subject of the metrics.
    pub title: &'static str,
    /// The runs that have these metrics.
    pub of: &'static str,
    /// The metrics, in the order in which they are shown.
    pub metrics: &'static [Metric],
}

impl Metric {
    const fn healthy(self, healthy: &'static str) -> Metric {
        Metric { healthy, ..self }
    }

    const fn remedy(self, remedy: &'static str) -> Metric {
        Metric { remedy, ..self }
    }

    /// Whether `name` is the name of this metric, or fits its pattern with `<…>`.
    pub fn is(&self, name: &str) -> bool {
        matches(self.name, name)
    }
}

/// The description of the metric that a run logs as `name`. A metric of an evaluation set has the description of the
/// metric with the same name in the section on evaluations.
pub fn metric(name: &str) -> Option<&'static Metric> {
    listed(name).or_else(|| match evaluated(name) {
        ("", _) => None,
        (_, set_metric) => listed(&format!("eval_{set_metric}")),
    })
}

fn listed(name: &str) -> Option<&'static Metric> {
    SECTIONS.iter().flat_map(|section| section.metrics).find(|metric| metric.is(name))
}

/// Splits the name of an evaluation metric into the name of the evaluation set (empty if there is only one set) and the
/// name of the metric. A metric of user code counts as a metric of the only set.
pub fn evaluated(name: &str) -> (&str, &str) {
    let Some(own) = name.strip_prefix("eval_") else { return ("", name) };
    if listed(name).is_some() {
        return ("", own);
    }
    // In `eval_<set>_reward`, the set's name may contain `_`.
    let mut ends = own.match_indices('_').filter(|&(at, _)| at > 0);
    let found = ends.find(|&(at, _)| listed(&format!("eval_{}", &own[at + 1..])).is_some());
    found.map_or(("", own), |(at, _)| (&own[..at], &own[at + 1..]))
}

/// The entry for the file at `path` in a run's directory, or for the directory that contains the file.
pub fn file(path: &str) -> Option<&'static RunFile> {
    let is = |file: &&RunFile| match file.path.strip_suffix('/') {
        Some(directory) => matches(directory, path) || matches(&format!("{directory}/<…>"), path),
        None => matches(file.path, path),
    };
    FILES.iter().find(is)
}

/// Whether `name` fits `pattern`, in which `<…>` stands for any nonempty text.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((before, rest)) = pattern.split_once('<') else { return pattern == name };
    let Some((_, after)) = rest.split_once('>') else { return false };
    let Some(rest) = name.strip_prefix(before) else { return false };
    let mut ends = rest.char_indices().map(|(at, c)| at + c.len_utf8());
    ends.any(|end| matches(after, &rest[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn metrics_are_found_by_the_names_that_runs_log() {
        let of = |name: &str| metric(name).map(|metric| metric.name);
        assert_eq!(of("reward"), Some("reward"));
        assert_eq!(of("rewards/math/mean"), Some("rewards/<name>/mean"));
        assert_eq!(of("rewards/a/b/mean"), Some("rewards/<name>/mean"));
        assert_eq!(of("rewards/margins"), Some("rewards/margins"));
        assert_eq!(of("eval_reward"), Some("eval_reward"));
        assert_eq!(of("eval_my_set_rewards/math/std"), Some("eval_rewards/<name>/std"));
        assert_eq!(of("eval_hard_pass@8"), Some("eval_pass@<k>"));
        assert_eq!(of("device/rollout/decode/time_s"), Some("device/<stage>/time_s"));
        assert_eq!(of("rewards//mean"), None, "`<name>` must not be empty");
        assert_eq!((of("rewrad"), of("eval_rewrad"), of("")), (None, None, None));
    }

    #[test]
    fn files_in_a_directory_have_the_entry_of_the_directory() {
        let of = |path: &str| file(path).map(|file| file.path);
        assert_eq!(of("config.toml"), Some("config.toml"));
        assert_eq!(of("checkpoints/step-000010/model.safetensors"), Some("checkpoints/step-<step>/"));
        assert_eq!(of("lockstep-0.log"), Some("lockstep-<process>.log"));
        assert_eq!(of("given-1b2c"), Some("given-<hash>/"));
        assert_eq!((of("model2/x"), of("completions/x.txt"), of("other")), (None, None, None));
    }

    #[test]
    fn every_metric_has_one_complete_entry() {
        let mut names = BTreeSet::new();
        for metric in SECTIONS.iter().flat_map(|section| section.metrics) {
            let Metric { name, meaning, healthy, remedy, .. } = metric;
            assert!(names.insert(*name), "duplicate metric {name}");
            assert!(!meaning.is_empty() && meaning.ends_with('.'), "{name}: {meaning:?}");
            assert!(remedy.is_empty() || !healthy.is_empty(), "{name} has a remedy but no healthy values");
        }
        let files: BTreeSet<&str> = FILES.iter().map(|file| file.path).collect();
        assert_eq!(files.len(), FILES.len());
    }

    /// `lockstep outputs METRIC` and the page show one meaning at a time, so a meaning must not refer to another row of
    /// the table.
    #[test]
    fn the_meaning_of_a_metric_stands_alone() {
        let metrics = SECTIONS.iter().flat_map(|section| section.metrics).map(|metric| (metric.name, metric.meaning));
        for (name, meaning) in metrics.chain(FILES.iter().map(|file| (file.path, file.meaning))) {
            let begins =
                ["Both", "Its ", "It ", "Of these", "They ", "The same", "As in", "The shortest.", "The longest."];
            let names_none = ["The mean ratio.", "The greatest ratio.", "The greatest distance.", "Where each lies."];
            assert!(!begins.iter().chain(&names_none).any(|begin| meaning.starts_with(begin)), "{name}: {meaning}");
            for word in [
                "longest of those.",
                "shortest of those.",
                "of those that ended",
                "for this",
                "these shares",
                "that part",
                "these prob",
                "in it;",
            ] {
                assert!(!meaning.contains(word), "{name}: {meaning}");
            }
        }
    }

    #[test]
    fn an_evaluation_metric_is_split_after_the_shortest_set_name() {
        let table = [
            ("reward", ("", "reward")),
            ("eval_reward", ("", "reward")),
            ("eval_", ("", "")),
            ("eval_set_reward", ("set", "reward")),
            ("eval_a_b_reward", ("a_b", "reward")),
            ("eval_my_set_rewards/math/std", ("my_set", "rewards/math/std")),
            ("eval__reward", ("", "_reward")),
            ("eval_my_own", ("", "my_own")),
        ];
        for (name, expected) in table {
            assert_eq!(evaluated(name), expected, "{name}");
        }
        assert_eq!(metric("eval_my_own").map(|metric| metric.name), None);
        assert_eq!(metric("set_reward").map(|metric| metric.name), None);
    }

    #[test]
    fn placeholders_in_patterns_match_any_nonempty_text() {
        for (pattern, name, fits) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a<x>", "a", false),
            ("a<x>", "aé", true),
            ("<x>b", "éb", true),
            ("<x>b", "b", false),
            ("a<x>b", "abb", true),
            ("a<x>b", "abbc", false),
            ("a<x>/<y>", "a1/2/3", true),
            ("a<x>/<y>", "a/2", false),
            ("a<x", "a1", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
        let of = |path: &str| file(path).map(|file| file.path);
        assert_eq!((of("model"), of("model/config.json")), (Some("model/"), Some("model/")));
        assert_eq!((of("fleet/a/b"), of("fleet/"), of("trace.json")), (Some("fleet/"), None, Some("trace.json")));
    }
}
