//! The two lines of JSON that a reward program and we exchange. Knows no process.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::steps::CompletionReward;
use crate::{Content, RewardBatch, Scores};

#[derive(Serialize)]
struct Request<'a> {
    prompts: &'a [Content],
    completions: &'a [Content],
    completion_ids: &'a [Vec<u32>],
    trainer_state: TrainerState,
    #[serde(flatten)]
    columns: BTreeMap<&'a str, &'a [Value]>,
}

#[derive(Serialize)]
struct TrainerState {
    global_step: u64,
}

/// Names that a column cannot have, because the request uses them.
const RESERVED: [&str; 3] = ["prompts", "completions", "trainer_state"];
/// Columns that are not sent, because the request says them already (as in TRL).
const LEFT_OUT: [&str; 3] = ["prompt", "completion", "completion_ids"];

/// The line (with its line feed) that asks for a batch's scores.
pub(super) fn request(batch: &RewardBatch<'_>) -> Result<Vec<u8>, String> {
    if let Some(name) = RESERVED.iter().find(|&&name| batch.columns.contains_key(name)) {
        return Err(format!("the dataset's column `{name}` has a name that reward programs get for something else"));
    }
    let columns = batch.columns.iter().filter(|(name, _)| !LEFT_OUT.contains(&name.as_str()));
    let request = Request {
        prompts: batch.prompts,
        completions: batch.completions,
        completion_ids: batch.completion_ids,
        trainer_state: TrainerState { global_step: batch.step },
        columns: columns.map(|(name, values)| (name.as_str(), values.as_slice())).collect(),
    };
    let mut line = serde_json::to_vec(&request).map_err(|e| e.to_string())?;
    line.push(b'\n');
    Ok(line)
}

/// A line that a program answered.
#[derive(Debug, Deserialize)]
pub(super) struct Answer {
    rewards: Option<Vec<Value>>,
    error: Option<String>,
    #[serde(default)]
    extra: BTreeMap<String, Vec<Value>>,
    #[serde(default)]
    metrics: BTreeMap<String, f64>,
}

/// Parses an answer's line; the error shows its beginning.
pub(super) fn answer(line: &[u8]) -> Result<Answer, String> {
    serde_json::from_slice(line).map_err(|e| {
        let text = String::from_utf8_lossy(&line[..line.len().min(200)]).trim_end().to_owned();
        let hint = if ["NaN", "Infinity"].iter().any(|word| text.contains(word)) {
            " (JSON has no NaN or Infinity: answer null for a completion without a score)"
        } else {
            ""
        };
        format!("its answer is not a line of JSON such as {{\"rewards\": [1.0, null]}}: {e}{hint}; it begins: {text}")
    })
}

/// The scores of an answer to a batch of completions of so many tokens.
pub(super) fn scores(answer: Answer, tokens: &[usize]) -> Result<Scores, String> {
    let rows = tokens.len();
    if let Some(error) = answer.error {
        return Err(format!("it answered with an error: {error}"));
    }
    let rewards = answer.rewards.ok_or("its answer has neither `rewards` nor `error`")?;
    if rewards.len() != rows {
        return Err(format!("it answered {} scores for {rows} completions", rewards.len()));
    }
    let (mut values, mut steps) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    for (row, (value, &tokens)) in rewards.iter().zip(tokens).enumerate() {
        let reward = CompletionReward::read(value, tokens).map_err(|error| format!("score {row} {error}"))?;
        values.push(reward.value);
        steps.push(reward.steps);
    }
    if steps.iter().all(Option::is_none) {
        steps.clear();
    }
    if let Some((name, column)) = answer.extra.iter().find(|(_, column)| column.len() != rows) {
        return Err(format!("its extra column `{name}` has {} values for {rows} completions", column.len()));
    }
    Ok(Scores {
        values,
        steps,
        problems: Vec::new(),
        extra: answer.extra.into_iter().collect(),
        metrics: answer.metrics.into_iter().collect(),
    })
}

#[cfg(test)]
mod foreign {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use testing::foreign;

    fn valid() -> Value {
        json!({"rewards": [[0.5, null], null, [{"end": 3, "score": 1}, {"token": 1, "score": 2}]], "error": null,
            "extra": {"why": ["a", 2, null]}, "metrics": {"m": 0.5}})
    }

    fn read(line: &[u8]) -> Result<Scores, String> {
        answer(line).and_then(|answer| scores(answer, &[2; 3]))
    }

    proptest! {
        #![proptest_config(foreign::few())]

        /// An answer that is taken has a score or none for each completion, and no score that is not a number.
        #[test]
        fn answers(value in foreign::json(valid())) {
            prop_assert!(read(valid().to_string().as_bytes()).is_ok());
            if let Ok(scores) = read(value.to_string().as_bytes()) {
                prop_assert!(scores.values.len() == 3 && scores.values.iter().flatten().all(|score| score.is_finite()));
            }
        }
        #[test]
        fn answers_as_text(line in foreign::bytes(valid().to_string().into_bytes())) {
            let _ = read(&line);
        }
    }
}
