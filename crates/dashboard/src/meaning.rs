//! Descriptions of metrics for the page: tooltips, and units of axes.

use serde_json::Value;

/// The description of a metric, which the page shows as a tooltip.
pub fn meaning(name: &str) -> Option<(String, Value)> {
    let metric = telemetry::outputs::metric(name)?;
    let parts = [("", metric.meaning), (" Unit: ", metric.unit), (" Healthy: ", metric.healthy)];
    let mut text: String = parts.iter().filter(|(_, part)| !part.is_empty()).flat_map(|(a, b)| [*a, *b]).collect();
    if !metric.remedy.is_empty() {
        text = format!("{text}. What helps if it is not: {}", metric.remedy);
    }
    Some((name.to_owned(), without_markdown(&text).into()))
}

/// The unit of a metric's values, such as `s`, `bytes` or `share`; `None` for values without a unit.
pub fn unit(name: &str) -> Option<(String, Value)> {
    let unit = telemetry::outputs::metric(name)?.unit;
    (!unit.is_empty()).then(|| (name.to_owned(), unit.into()))
}

/// Converts Markdown to plain text: `[text](address)` becomes `text`, and backticks are removed.
fn without_markdown(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, label, after)) = link(rest) {
        plain += before;
        plain += label;
        rest = after;
    }
    (plain + rest).replace('`', "")
}

/// Splits at the first link: the text before it, the link's text, and the text after it.
fn link(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_at_checked(text.find("](")?)?;
    let (before, label) = before.rsplit_once('[')?;
    Some((before, label, rest.split_once(')')?.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_taken_from_the_table_of_metrics() {
        let of = |name: &str| unit(name).map(|(_, unit)| unit);
        assert_eq!(of("peak_bytes"), Some("bytes".into()));
        assert_eq!(of("rewards/a/no_answer"), Some("share".into()));
        assert_eq!(of("eval_my_set_completions/mean_length"), Some("tokens".into()));
        assert_eq!((of("reward"), of("rewrad")), (None, None));
    }

    #[test]
    fn a_tooltip_has_no_markdown() {
        let text = "Seconds of `step_time`; see [profiling](profiling.md) and [more](a.md), a[0] (not a link).";
        let plain = "Seconds of step_time; see profiling and more, a[0] (not a link).";
        assert_eq!(without_markdown(text), plain);
        let all = telemetry::outputs::SECTIONS.iter().flat_map(|section| section.metrics);
        let texts: Vec<_> = all.filter_map(|metric| meaning(metric.name)).collect();
        assert!(texts.len() > 50 && texts.iter().all(|(_, text)| !text.as_str().unwrap().contains("](")));
    }
}
