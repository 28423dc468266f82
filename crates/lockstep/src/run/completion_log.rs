//! Reports sample completions as table rows with TRL's columns.

use super::learner::Learner;
use super::log::RunLog;
use crate::config::Config;
use crate::rollouts::Rollouts;
use serde_json::{Map, Value};
use telemetry::CompletionRows;
use train::{Advantage, Advantages};

/// The completions of `learner`'s next step, as table rows, and how many of them the console shows. `None` if no
/// completions are logged at this step.
pub fn rows(
    config: &Config,
    learner: &Learner,
    log: &RunLog,
    rollouts: &Rollouts,
    advantages: &Advantages,
) -> anyhow::Result<Option<(CompletionRows, usize)>> {
    let step = learner.step.next();
    let last = step.left_of(learner.schedule.total_steps) == 0;
    if !config.log_completions || !log.reporter.logs_at(step, last) {
        return Ok(None);
    }
    let mut prompts = Vec::new();
    for group in &rollouts.groups {
        let prompt = serde_json::to_value(&group.prompt.content)?;
        prompts.extend(std::iter::repeat_n(prompt, group.completions.len()));
    }
    let column = |k: usize| rollouts.completions().map(|c| c.rewards[k]).collect();
    let rows = CompletionRows {
        step,
        prompts,
        completions: rollouts.completions().map(|c| serde_json::to_value(&c.content)).collect::<Result<_, _>>()?,
        rewards: rollouts.reward_names.iter().enumerate().map(|(k, name)| (name.clone(), column(k))).collect(),
        extra: extra_columns(|| rollouts.completions().map(|c| &c.extra)),
        advantages: advantages.advantages.iter().map(Advantage::mean).collect(),
    };
    let prints = step.is_multiple_of(config.log_completions_steps.unwrap_or(config.logging_steps)) || last;
    let shown = if prints { config.num_completions_to_print.unwrap_or(rows.prompts.len()) } else { 0 };
    Ok(Some((rows, shown)))
}

/// The columns that rewards add, in order of appearance; null where a completion has no value.
fn extra_columns<'a, I>(completions: impl Fn() -> I) -> Vec<(String, Vec<Value>)>
where
    I: Iterator<Item = &'a Map<String, Value>>,
{
    let mut columns: Vec<(String, Vec<Value>)> = Vec::new();
    for name in completions().flat_map(Map::keys) {
        if columns.iter().all(|(known, _)| known != name) {
            let value = |extra: &Map<String, Value>| extra.get(name).cloned().unwrap_or(Value::Null);
            columns.push((name.clone(), completions().map(value).collect()));
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_column_has_one_value_per_completion() {
        let of = |value: Value| value.as_object().cloned().unwrap_or_default();
        let all = [of(json!({"b": 1})), of(json!({})), of(json!({"a": "x", "b": 2}))];
        let column = |name: &str, values: Value| (name.to_owned(), values.as_array().unwrap().clone());
        let expected = vec![column("b", json!([1, null, 2])), column("a", json!([null, null, "x"]))];
        assert_eq!(extra_columns(|| all.iter()), expected);
        assert_eq!(extra_columns(|| all[1..2].iter()), []);
    }
}
