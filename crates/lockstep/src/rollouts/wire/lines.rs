//! Converts a group to JSON lines, for people, other programs, and replays.

use super::group::{Completion, Group};
use model::columns::{REF_LOGPS, SAMPLER_LOGPS, Values};
use rollout::FinishReason;
use serde_json::{Map, Value, json};
use telemetry::{RecordedCompletion, RolloutLine, number};
use train::Advantage;

impl Group {
    /// One JSON line per completion, with the keys of [`RolloutLine`]. `--replay` accepts such lines. The text of a
    /// completion is included only if the group has it.
    pub fn lines(&self) -> Vec<Map<String, Value>> {
        self.completions.iter().enumerate().map(|(place, c)| self.line(place, c)).collect()
    }

    fn line(&self, place: usize, c: &Completion) -> Map<String, Value> {
        let mut line = self.recorded(place, c).line(self.step, &self.prompt_ids, &self.reward_names);
        let mut put = |key: &str, value: Value| {
            if !value.is_null() {
                line.insert(key.to_owned(), value);
            }
        };
        put("group", json!(self.group));
        put("generation", json!(c.generation));
        put("prompt_id", json!(self.prompt_id));
        put("prompt", json!(self.prompt));
        put("completion", json!(c.content));
        put("columns", object(&self.dataset));
        put("lineage", json!(self.lineage));
        put("sampling", object(&self.sampling));
        put(
            "advantages",
            match &c.advantage {
                None => Value::Null,
                Some(Advantage::Sequence(one)) => number(*one),
                Some(Advantage::Tokens(each)) => each.iter().map(|&a| number(a)).collect(),
            },
        );
        put("loss_mask", if c.loss_mask == c.sampled { Value::Null } else { json!(c.loss_mask) });
        put("step_scores", if c.steps.is_empty() { Value::Null } else { json!(c.steps) });
        put("extra", object(&c.extra));
        put("fork", c.fork.map_or(Value::Null, |fork| json!({"parent": fork.parent, "at": fork.at})));
        let mut tokens = Map::new();
        for (name, column) in c.columns.iter().filter(|(name, _)| ![SAMPLER_LOGPS, REF_LOGPS].contains(name)) {
            let values: Vec<Value> = match &column.values {
                Values::F32(values) => values.iter().map(|&x| number(x)).collect(),
                Values::U32(values) => values.iter().map(|&id| json!(id)).collect(),
            };
            let rows = || values.chunks_exact(column.width.max(1)).map(|row| json!(row)).collect();
            tokens.insert(name.to_owned(), if column.width == 1 { json!(values) } else { rows() });
        }
        put("tokens", object(&tokens));
        line
    }

    /// The fields of the group that a replay reads.
    pub fn replayed(self) -> RolloutLine {
        RolloutLine {
            completions: self.completions.iter().enumerate().map(|(place, c)| self.recorded(place, c)).collect(),
            prompt: self.prompt_ids,
            reward_names: (!self.reward_names.is_empty()).then_some(self.reward_names),
            lineage: self.lineage.map(|lineage| lineage.to_string()),
        }
    }

    fn recorded(&self, place: usize, c: &Completion) -> RecordedCompletion {
        RecordedCompletion {
            ids: c.ids.clone(),
            logps: c.columns.sampler_logps().map(<[f32]>::to_vec),
            ref_logps: c.columns.ref_logps().map(<[f32]>::to_vec),
            sampled: c.sampled.contains(&false).then(|| c.sampled.clone()),
            truncated: c.finish_reason.map(|reason| reason == FinishReason::Length),
            versions: c.versions.iter().map(|version| version.0).collect(),
            rewards: c.rewards.clone(),
            steps: c.steps.clone(),
            problems: self.problems.iter().filter_map(|problem| problem_of(problem, place)).collect(),
        }
    }
}

/// The part of a problem that concerns the completion at index `place`; `None` if the completion is not concerned.
fn problem_of(problem: &Value, place: usize) -> Option<Value> {
    let Some(completions) = problem["completions"].as_array() else { return Some(problem.clone()) };
    let mut own = problem.as_object()?.clone();
    own.retain(|key, value| !["completions", "rows"].contains(&&**key) && !value.is_null());
    completions.contains(&json!(place)).then_some(Value::Object(own))
}

fn object(map: &Map<String, Value>) -> Value {
    if map.is_empty() { Value::Null } else { Value::Object(map.clone()) }
}
