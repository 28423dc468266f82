//! The JSON format of requests to rewards outside of this process, and of their answers, independent of the transport.

use std::collections::BTreeMap;

use model::Step;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::batch::completions;
use crate::steps::{CompletionReward, as_number};
use crate::{Columns, Content, Problem, ProblemKind, RewardBatch, Scores};

/// The reason why a batch has no scores: the kind of failure and a message.
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
    global_step: Step,
    /// The number of this request, which the answer may repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<u64>,
}

/// Names that a dataset column must not have, because they are keys of the request.
const RESERVED: [&str; 3] = ["prompts", "completions", "trainer_state"];
/// Dataset columns that are not sent, because the request already has their content (as in TRL).
const LEFT_OUT: [&str; 3] = ["prompt", "completion", "completion_ids"];

/// The request line for a batch, with a line feed. The dataset's columns are keys next to TRL's names.
pub(crate) fn request(batch: &RewardBatch<'_>, number: Option<u64>) -> Result<Vec<u8>, Failure> {
    if let Some(name) = RESERVED.iter().find(|&&name| batch.columns.contains_key(name)) {
        let message =
            format!("the dataset must not have a column `{name}`: reward programs receive other data under this name");
        return Err((ProblemKind::BadData, message));
    }
    let columns = batch.columns.iter().filter(|(name, _)| !LEFT_OUT.contains(&name.as_str()));
    let request = Request {
        prompts: batch.prompts,
        completions: batch.completions,
        completion_ids: batch.completion_ids,
        trainer_state: TrainerState { global_step: batch.step, request: number },
        columns: columns.map(|(name, values)| (name.as_str(), values.as_slice())).collect(),
    };
    line(&request)
}

/// The request line for the Python adapter. The columns are in a separate object, which the adapter converts to keyword
/// arguments of the function.
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
    step: Step,
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
    pub error: Option<String>,
    /// The number of the answered request, if the program repeats that number.
    pub request: Option<u64>,
    #[serde(default)]
    extra: BTreeMap<String, Vec<Value>>,
    #[serde(default)]
    metrics: BTreeMap<String, Value>,
}

/// Parses an answer. The error message shows the first 200 bytes of the answer.
pub(crate) fn answer(line: &[u8]) -> Result<Answer, Failure> {
    serde_json::from_slice(line).map_err(|e| {
        let text = String::from_utf8_lossy(&line[..line.len().min(200)]).trim_end().to_owned();
        let hint = if ["NaN", "Infinity"].iter().any(|word| text.contains(word)) {
            " (JSON has no NaN or Infinity: write null for a completion without a score)"
        } else {
            ""
        };
        let message = format!(
            "the answer is not a line of JSON such as {{\"rewards\": [1.0, null]}}: {e}{hint}; it begins: {text}"
        );
        (ProblemKind::BadAnswer, message)
    })
}

/// Converts an answer of the reward `name` to [`Scores`]. `tokens` has the number of tokens of each completion.
pub(crate) fn scores(name: &str, answer: Answer, tokens: &[usize]) -> Result<Scores, Failure> {
    match answer.error {
        Some(error) => Err((ProblemKind::Failed, error)),
        None => read(name, answer, tokens).map_err(|message| (ProblemKind::BadAnswer, message)),
    }
}

fn read(reward: &str, answer: Answer, tokens: &[usize]) -> Result<Scores, String> {
    let rows = tokens.len();
    let rewards = answer.rewards.ok_or("the answer must have `rewards` or `error`")?;
    if rewards.len() != rows {
        return Err(format!(
            "`rewards` must have one score per completion: got {} scores for {}",
            rewards.len(),
            completions(rows)
        ));
    }
    let (mut values, mut steps) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    // An invalid value affects only the score of its completion.
    let mut unread: Vec<(usize, String)> = Vec::new();
    for (row, (value, &tokens)) in rewards.iter().zip(tokens).enumerate() {
        let read = CompletionReward::read(value, tokens).unwrap_or_else(|error| {
            unread.push((row, format!("score {row}: {error}")));
            CompletionReward::default()
        });
        values.push(read.value);
        steps.push(read.steps);
    }
    let problem = unread.first().map(|(_, message)| {
        let places = unread.iter().map(|(row, _)| *row).collect();
        Problem::new(reward, unread.len(), message.clone()).with_kind(ProblemKind::BadAnswer).at(places)
    });
    if steps.iter().all(Option::is_none) {
        steps.clear();
    }
    if let Some((name, column)) = answer.extra.iter().find(|(_, column)| column.len() != rows) {
        return Err(format!(
            "extra column `{name}` must have one value per completion: got {} values for {}",
            column.len(),
            completions(rows)
        ));
    }
    // A null metric means that nothing was measured.
    let metrics = answer.metrics.into_iter().filter(|(_, value)| !value.is_null());
    let metric = |(name, value): (String, Value)| match as_number(&value) {
        Some(number) => Ok((name, number)),
        None => Err(format!("metric `{name}` must be a number, got {value}")),
    };
    Ok(Scores {
        values,
        steps,
        problems: problem.into_iter().collect(),
        extra: answer.extra.into_iter().collect(),
        metrics: metrics.map(metric).collect::<Result<_, _>>()?,
        ..Scores::default()
    })
}

impl Scores {
    /// Parses an answer of the reward `name` to `batch`, in the format of reward programs: `{"rewards": […], "extra":
    /// {…}, "metrics": {…}}` (docs/rewards.md).
    pub fn read(name: &str, text: &str, batch: &RewardBatch<'_>) -> Result<Scores, String> {
        let tokens: Vec<usize> = batch.completion_ids.iter().map(Vec::len).collect();
        answer(text.as_bytes()).and_then(|answer| scores(name, answer, &tokens)).map_err(|(_, message)| message)
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
        answer(line).and_then(|answer| scores("r", answer, &[2; 3]))
    }

    proptest! {
        #![proptest_config(foreign::few())]

        /// An answer that is accepted has a finite score or no score for each completion.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StepEnd, StepScore};
    use serde_json::json;

    fn with_batch<T>(columns: &[(&str, Value)], ask: impl FnOnce(&RewardBatch<'_>) -> T) -> T {
        let columns: Columns =
            columns.iter().map(|(name, value)| ((*name).to_owned(), vec![value.clone(), Value::Null])).collect();
        ask(&RewardBatch {
            prompts: &["p".into(), "q".into()],
            completions: &["c".into(), "d".into()],
            completion_ids: &[vec![1, 2], vec![3]],
            columns: &columns,
            rows: &[7, 8],
            step: model::Step(9),
        })
    }

    #[test]
    fn a_request_is_one_line_of_json_with_the_dataset_columns() {
        let given = [
            ("answer", json!(5)),
            ("prompt", json!("left out")),
            ("completion", json!("left out")),
            ("completion_ids", json!([9])),
        ];
        let line = with_batch(&given, |batch| request(batch, None)).unwrap();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(line.last(), Some(&b'\n'));
        let expected = json!({
            "prompts": ["p", "q"], "completions": ["c", "d"], "completion_ids": [[1, 2], [3]],
            "trainer_state": {"global_step": 9}, "answer": [5, null],
        });
        assert_eq!(serde_json::from_slice::<Value>(&line).unwrap(), expected);
        let line = with_batch(&given[..2], batch_line).unwrap();
        assert_eq!(line.last(), Some(&b'\n'));
        let expected = json!({
            "prompts": ["p", "q"], "completions": ["c", "d"], "completion_ids": [[1, 2], [3]], "rows": [7, 8],
            "step": 9, "columns": {"answer": [5, null], "prompt": ["left out", null]},
        });
        assert_eq!(serde_json::from_slice::<Value>(&line).unwrap(), expected);
    }

    #[test]
    fn a_column_with_the_name_of_a_request_key_is_refused() {
        let all = ["prompts", "completions", "trainer_state"];
        for (columns, named) in [
            (&all[..1], "prompts"),
            (&all[1..2], "completions"),
            (&all[2..], "trainer_state"),
            (&all[..], "prompts"),
            (&all[1..], "completions"),
        ] {
            let columns: Vec<_> = columns.iter().map(|name| (*name, json!(1))).collect();
            let message = format!(
                "the dataset must not have a column `{named}`: reward programs receive other data under this name"
            );
            assert_eq!(with_batch(&columns, |batch| request(batch, None)), Err((ProblemKind::BadData, message)));
        }
    }

    fn read(answer: &str) -> Result<Scores, String> {
        with_batch(&[], |batch| Scores::read("r", answer, batch))
    }

    #[test]
    fn an_answer_has_a_reward_for_each_completion() {
        let steps = |end, score| Some(vec![StepScore { end, score }]);
        for (answer, expected) in [
            (json!({"rewards": [1, null]}), Scores::new(vec![Some(1.0), None])),
            (json!({"rewards": [true, false], "error": null}), Scores::new(vec![Some(1.0), Some(0.0)])),
            (
                json!({"rewards": [null, [0.5]]}),
                Scores { steps: vec![None, steps(StepEnd::Token(0), 0.5)], ..Scores::new(vec![None, Some(0.5)]) },
            ),
            (
                json!({"rewards": [[{"end": 1, "score": 2}], 3]}),
                Scores { steps: vec![steps(StepEnd::Char(1), 2.0), None], ..Scores::new(vec![Some(2.0), Some(3.0)]) },
            ),
            (
                json!({"rewards": [1, 2], "extra": {"b": [1, 2], "a": [null, "x"]}, "metrics": {"m": 0.5, "l": 2}}),
                Scores {
                    extra: vec![("a".into(), vec![Value::Null, "x".into()]), ("b".into(), vec![1.into(), 2.into()])],
                    metrics: vec![("l".into(), 2.0), ("m".into(), 0.5)],
                    ..Scores::new(vec![Some(1.0), Some(2.0)])
                },
            ),
            (
                json!({"rewards": [1, 2], "metrics": {"m": "Infinity"}}),
                Scores { metrics: vec![("m".into(), f64::INFINITY)], ..Scores::new(vec![Some(1.0), Some(2.0)]) },
            ),
            (
                json!({"rewards": [1, 2], "metrics": {"a": 1, "b": null}}),
                Scores { metrics: vec![("a".into(), 1.0)], ..Scores::new(vec![Some(1.0), Some(2.0)]) },
            ),
        ] {
            assert_eq!(read(&answer.to_string()), Ok(expected), "{answer}");
        }
        for (answer, expected) in [
            (json!({}), "the answer must have `rewards` or `error`"),
            (json!({"error": "no key"}), "no key"),
            (json!({"rewards": [1, 2], "error": "no key"}), "no key"),
            (json!({"rewards": [1]}), "`rewards` must have one score per completion: got 1 scores for 2 completions"),
            (
                json!({"rewards": [1, 2, 3]}),
                "`rewards` must have one score per completion: got 3 scores for 2 completions",
            ),
            (
                json!({"rewards": [1, 2], "extra": {"a": [1, 2], "b": [1]}}),
                "extra column `b` must have one value per completion: got 1 values for 2 completions",
            ),
            (
                json!({"rewards": [1, 2], "extra": {"a": [1], "b": [1, 2, 3]}}),
                "extra column `a` must have one value per completion: got 1 values for 2 completions",
            ),
            (json!({"rewards": [1, 2], "metrics": {"a": 1, "b": "x"}}), "metric `b` must be a number, got \"x\""),
        ] {
            assert_eq!(read(&answer.to_string()), Err(expected.to_owned()), "{answer}");
        }
        let kind = |text: &str| answer(text.as_bytes()).and_then(|answer| scores("r", answer, &[1])).unwrap_err().0;
        assert_eq!(kind("{\"error\": \"x\"}"), ProblemKind::Failed);
        assert_eq!((kind("{\"rewards\": []}"), kind("x")), (ProblemKind::BadAnswer, ProblemKind::BadAnswer));
    }

    /// An invalid score does not affect the scores of other completions.
    #[test]
    fn only_an_unreadable_score_is_missing() {
        let one = || StepScore { end: StepEnd::Char(1), score: 1.0 };
        let mut wrong = Vec::new();
        for (bad, words) in [
            (json!("x"), ": expected a number, null or a list of steps, got \"x\""),
            (json!({"end": 0, "score": 1}), ": expected a number, null or a list of steps, got {"),
            (json!([1, 2, 3]), "expected one number per token (1)"),
            (json!(["x"]), "expected a number, got \"x\""),
            (json!(["NaN"]), "expected a finite number, got NaN"),
            (json!([true]), "expected a number, got true"),
            (json!([{"end": -1, "score": 1}]), "invalid step"),
            (json!([{"end": 0.5, "score": 1}]), "invalid step"),
            (json!([{"end": 0}]), "invalid step"),
            (json!([{"score": 1}]), "invalid step"),
            (json!([{"end": 1, "token": 1, "score": 1}]), "invalid step"),
            (json!([{"end": 1, "score": "Infinity"}]), "expected a finite number, got inf"),
            (json!([{"end": 1, "score": 1, "x": 1}]), "unknown key `x`"),
        ] {
            let good = json!([{"end": 1, "score": 1}]);
            let Scores { values, steps, problems, .. } =
                read(&json!({"rewards": [good, bad]}).to_string()).unwrap_or_default();
            let [problem] = &problems[..] else {
                wrong.push(format!("{bad}: {problems:?}"));
                continue;
            };
            let is_right = values == [Some(1.0), None]
                && steps == [Some(vec![one()]), None]
                && (problem.kind, problem.rows, &problem.completions[..]) == (ProblemKind::BadAnswer, 1, &[1][..])
                && problem.message.starts_with("score 1: ")
                && problem.message.contains(words);
            if !is_right {
                wrong.push(format!("{bad}: {values:?} {steps:?} {problem:?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let both = read(&json!({"rewards": ["x", "y"]}).to_string()).unwrap();
        assert_eq!((both.values, both.problems[0].rows), (vec![None, None], 2));
    }

    #[test]
    fn two_hundred_bytes_of_text_that_is_not_json_are_shown() {
        let hint = "(JSON has no NaN or Infinity: write null for a completion without a score)";
        for (word, has_hint) in [("NaN", true), ("-Infinity", true), ("nan", false)] {
            let error_text = read(&format!("[{word}]")).unwrap_err();
            assert!(
                error_text.starts_with("the answer is not a line of JSON such as {\"rewards\": [1.0, null]}: "),
                "{error_text}"
            );
            assert_eq!(error_text.contains(hint), has_hint, "{error_text}");
            assert!(error_text.ends_with(&format!("; it begins: [{word}]")), "{error_text}");
        }
        for (bytes, shown) in [(199, 199), (200, 200), (201, 200)] {
            let error_text = read(&"x".repeat(bytes)).unwrap_err();
            assert!(error_text.ends_with(&format!("; it begins: {}", "x".repeat(shown))), "{error_text}");
        }
        assert!(read("x \n").unwrap_err().ends_with("; it begins: x"));
    }
}
