//! The JSON that is exchanged with rewards outside of this process: requests and answers. Independent of processes and
//! networks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::batch::completions;
use crate::steps::{CompletionReward, as_number};
use crate::{Columns, Content, ProblemKind, RewardBatch, Scores};

/// Why a batch has no scores: the kind of failure and a message.
pub(crate) type Failure = (ProblemKind, String);

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

/// Names that a dataset column must not have, because the request uses them.
const RESERVED: [&str; 3] = ["prompts", "completions", "trainer_state"];
/// Dataset columns that are not sent, because the request already contains their contents (as in TRL).
const LEFT_OUT: [&str; 3] = ["prompt", "completion", "completion_ids"];

/// The request line (with its line feed) for a batch, with the dataset's columns beside TRL's names.
pub(crate) fn request(batch: &RewardBatch<'_>) -> Result<Vec<u8>, Failure> {
    if let Some(name) = RESERVED.iter().find(|&&name| batch.columns.contains_key(name)) {
        let message = format!("the dataset's column `{name}` has a name that reward programs get for something else");
        return Err((ProblemKind::BadData, message));
    }
    let columns = batch.columns.iter().filter(|(name, _)| !LEFT_OUT.contains(&name.as_str()));
    let request = Request {
        prompts: batch.prompts,
        completions: batch.completions,
        completion_ids: batch.completion_ids,
        trainer_state: TrainerState { global_step: batch.step },
        columns: columns.map(|(name, values)| (name.as_str(), values.as_slice())).collect(),
    };
    line(&request)
}

/// The request line for the Python adapter. It has the columns in an object of their own; the adapter makes the
/// functions' keyword arguments.
pub(crate) fn batch_line(batch: &RewardBatch<'_>) -> Result<Vec<u8>, Failure> {
    let RewardBatch { prompts, completions, completion_ids, columns, rows, step } = *batch;
    line(&Batch { prompts, completions, completion_ids, columns, rows, step })
}

#[derive(Serialize)]
struct Batch<'a> {
    prompts: &'a [Content],
    completions: &'a [Content],
    completion_ids: &'a [Vec<u32>],
    columns: &'a Columns,
    rows: &'a [usize],
    step: u64,
}

fn line(value: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let mut line = serde_json::to_vec(value).map_err(|e| (ProblemKind::BadData, e.to_string()))?;
    line.push(b'\n');
    Ok(line)
}

/// A parsed answer of a reward program or service.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    rewards: Option<Vec<Value>>,
    error: Option<String>,
    #[serde(default)]
    extra: BTreeMap<String, Vec<Value>>,
    #[serde(default)]
    metrics: BTreeMap<String, Value>,
}

/// Parses an answer line; the error message shows the beginning of the line.
pub(crate) fn answer(line: &[u8]) -> Result<Answer, Failure> {
    serde_json::from_slice(line).map_err(|e| {
        let text = String::from_utf8_lossy(&line[..line.len().min(200)]).trim_end().to_owned();
        let hint = if ["NaN", "Infinity"].iter().any(|word| text.contains(word)) {
            " (JSON has no NaN or Infinity: answer null for a completion without a score)"
        } else {
            ""
        };
        let message = format!(
            "its answer is not a line of JSON such as {{\"rewards\": [1.0, null]}}: {e}{hint}; it begins: {text}"
        );
        (ProblemKind::BadAnswer, message)
    })
}

/// Makes [`Scores`] from an answer. `tokens` has the number of tokens of each completion of the batch.
pub(crate) fn scores(answer: Answer, tokens: &[usize]) -> Result<Scores, Failure> {
    match answer.error {
        Some(error) => Err((ProblemKind::Failed, error)),
        None => read(answer, tokens).map_err(|message| (ProblemKind::BadAnswer, message)),
    }
}

fn read(answer: Answer, tokens: &[usize]) -> Result<Scores, String> {
    let rows = tokens.len();
    let rewards = answer.rewards.ok_or("its answer has neither `rewards` nor `error`")?;
    if rewards.len() != rows {
        return Err(format!("`rewards` of its answer has the length {}, for {}", rewards.len(), completions(rows)));
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
        return Err(format!("its extra column `{name}` has the length {}, for {}", column.len(), completions(rows)));
    }
    let metric = |(name, value): (String, Value)| match as_number(&value) {
        Some(number) => Ok((name, number)),
        None => Err(format!("its metric `{name}` is {value}, which is not a number")),
    };
    Ok(Scores {
        values,
        steps,
        extra: answer.extra.into_iter().collect(),
        metrics: answer.metrics.into_iter().map(metric).collect::<Result<_, _>>()?,
        ..Scores::default()
    })
}

impl Scores {
    /// Reads an answer to a batch: `{"rewards": […], "extra": {…}, "metrics": {…}}`, as reward programs write it
    /// (docs/rewards.md).
    pub fn read(text: &str, batch: &RewardBatch<'_>) -> Result<Scores, String> {
        let tokens: Vec<usize> = batch.completion_ids.iter().map(Vec::len).collect();
        answer(text.as_bytes()).and_then(|answer| scores(answer, &tokens)).map_err(|(_, message)| message)
    }
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

    fn read(line: &[u8]) -> Result<Scores, Failure> {
        answer(line).and_then(|answer| scores(answer, &[2; 3]))
    }

    proptest! {
        #![proptest_config(foreign::few())]

        /// An accepted answer has a finite score, or none, for each completion.
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
