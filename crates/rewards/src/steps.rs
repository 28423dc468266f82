//! Process rewards: scores of single steps of a completion. The score of a step is placed at the step's last token.

use serde_json::Value;

/// The score of one step, or one token, of a completion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepScore {
    /// The position in the completion at which the step ends.
    pub end: StepEnd,
    /// The step's score.
    pub score: f64,
}

/// The end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEnd {
    /// The index of the step's last token in the completion, from 0.
    Token(usize),
    /// The number of characters (code points) of the completion up to the end of the step. 0 is valid only for a
    /// completion without text, whose only token may be EOS.
    Char(usize),
}

/// A reward's result for one completion: a score, or the scores of its steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CompletionReward {
    pub value: Option<f64>,
    pub steps: Option<Vec<StepScore>>,
}

impl CompletionReward {
    /// The score of a completion is the sum of its step scores. Without steps, the score is missing.
    fn from_steps(steps: Vec<StepScore>) -> Self {
        if steps.is_empty() {
            return CompletionReward::default();
        }
        let sum = steps.iter().fold(0.0, |sum, step| sum + step.score);
        CompletionReward { value: Some(sum), steps: Some(steps) }
    }

    /// Parses a JSON number, bool or null; or a list of steps `{"end": characters, "score": number}` or `{"token":
    /// index, "score": number}`; or a list with one number for each of the completion's `tokens`. A null never counts
    /// as 0: a step with the score null is ignored, and a list without scored steps gives no score.
    pub fn read(value: &Value, tokens: usize) -> Result<Self, String> {
        let one = |value| Ok(CompletionReward { value, steps: None });
        match value {
            Value::Null => one(None),
            Value::Bool(yes) => one(Some(f64::from(u8::from(*yes)))),
            Value::Number(_) => one(Some(number(value)?)),
            // Callers check that such a value is finite.
            Value::String(_) if as_number(value).is_some() => one(as_number(value)),
            Value::Array(items) if items.iter().all(Value::is_object) => {
                items.iter().filter_map(|item| step(item).transpose()).collect::<Result<_, _>>().map(Self::from_steps)
            }
            Value::Array(items) if items.len() != tokens => Err(format!(
                "expected one number per token ({tokens}), or a list of {STEP}, got {} numbers",
                items.len()
            )),
            Value::Array(items) => {
                let given = items.iter().enumerate().filter(|(_, item)| !item.is_null());
                let step = |(token, item)| Ok(StepScore { end: StepEnd::Token(token), score: number(item)? });
                given.map(step).collect::<Result<_, String>>().map(Self::from_steps)
            }
            other => Err(format!("expected a number, null or a list of steps, got {other}")),
        }
    }
}

const STEP: &str = "{\"end\": characters, \"score\": number} or {\"token\": index, \"score\": number}";

/// Parses a JSON number, or a string for a number that JSON lacks: NaN and infinities.
pub(crate) fn as_number(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some("NaN") => Some(f64::NAN),
        Some("Infinity") => Some(f64::INFINITY),
        Some("-Infinity") => Some(f64::NEG_INFINITY),
        _ => value.as_f64(),
    }
}

fn number(value: &Value) -> Result<f64, String> {
    match as_number(value) {
        Some(number) if number.is_finite() => Ok(number),
        Some(number) => Err(format!("expected a finite number, got {number}")),
        None => Err(format!("expected a number, got {value}")),
    }
}

/// Parses a step of a list. `None` if the step's score is null.
fn step(item: &Value) -> Result<Option<StepScore>, String> {
    let place = |key: &str| item.get(key).map(|place| place.as_u64().map(|place| place as usize));
    let end = match (place("end"), place("token")) {
        (Some(Some(end)), None) => StepEnd::Char(end),
        (None, Some(Some(token))) => StepEnd::Token(token),
        _ => return Err(format!("invalid step {item}: expected {STEP}")),
    };
    let score = item.get("score").ok_or_else(|| format!("invalid step {item}: expected {STEP}"))?;
    if let Some(other) =
        item.as_object().and_then(|i| i.keys().find(|key| !["end", "token", "score"].contains(&&***key)))
    {
        return Err(format!("unknown key `{other}` in a step: expected {STEP}"));
    }
    if score.is_null() {
        return Ok(None);
    }
    Ok(Some(StepScore { end, score: number(score)? }))
}

/// Checks that all steps end within a completion with `tokens` tokens and this text. Returns a message for the first
/// step that does not.
pub(crate) fn misplaced(steps: &[StepScore], tokens: usize, text: &str) -> Option<String> {
    steps.iter().find_map(|step| match step.end {
        StepEnd::Token(token) if token >= tokens => {
            Some(format!("a step ends at token {token}, but the completion has {tokens} tokens (counted from 0)"))
        }
        StepEnd::Char(end) => {
            let chars = text.chars().count();
            // A completion without text ends at character 0.
            (end > chars || (end == 0 && chars > 0)).then(|| {
                format!("a step ends at character {end}, but the completion has {chars} characters (counted from 1)")
            })
        }
        StepEnd::Token(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(end: StepEnd, score: f64) -> StepScore {
        StepScore { end, score }
    }

    #[test]
    fn scores_are_numbers_or_lists_of_steps() {
        let read = |value: Value| CompletionReward::read(&value, 3).unwrap();
        assert_eq!(read(json!(null)), CompletionReward::default());
        assert_eq!(read(json!(true)), CompletionReward { value: Some(1.0), steps: None });
        assert_eq!(read(json!(2.5)), CompletionReward { value: Some(2.5), steps: None });
        assert_eq!(read(json!("-Infinity")), CompletionReward { value: Some(f64::NEG_INFINITY), steps: None });
        assert!(read(json!("NaN")).value.is_some_and(f64::is_nan));
        let (char, token) = (StepEnd::Char, StepEnd::Token);
        let mixed = read(json!([{"end": 4, "score": 0.5}, {"token": 2, "score": -2}]));
        let expected = vec![at(char(4), 0.5), at(token(2), -2.0)];
        assert_eq!(mixed, CompletionReward { value: Some(-1.5), steps: Some(expected) });
        let dense = read(json!([1, null, 0.25]));
        assert_eq!(
            dense,
            CompletionReward { value: Some(1.25), steps: Some(vec![at(token(0), 1.0), at(token(2), 0.25)]) }
        );
    }

    /// A completion without a scored step gets no score, not the score 0.
    #[test]
    fn a_list_without_scored_steps_gives_no_score() {
        let none = CompletionReward::default();
        let step = |end, score| CompletionReward { value: Some(score), steps: Some(vec![at(end, score)]) };
        let (char, token) = (StepEnd::Char, StepEnd::Token);
        let mut wrong = Vec::new();
        for (value, tokens, expected) in [
            (json!(null), 0, &none),
            (json!(null), 3, &none),
            (json!([]), 0, &none),
            (json!([]), 1, &none),
            (json!([]), 3, &none),
            (json!([null]), 1, &none),
            (json!([null, null]), 2, &none),
            (json!([null, null, null]), 3, &none),
            (json!([{"end": 1, "score": null}]), 3, &none),
            (json!([{"end": 0, "score": null}]), 1, &none),
            (json!([{"token": 0, "score": null}, {"end": 2, "score": null}]), 3, &none),
            (json!([0, null]), 2, &step(token(0), 0.0)),
            (json!([null, 0]), 2, &step(token(1), 0.0)),
            (json!([null, 0.0, null]), 3, &step(token(1), 0.0)),
            (json!([0]), 1, &step(token(0), 0.0)),
            (json!([{"end": 1, "score": 0}]), 3, &step(char(1), 0.0)),
            (json!([{"end": 1, "score": null}, {"end": 2, "score": 0.5}]), 3, &step(char(2), 0.5)),
            (json!([{"end": 0, "score": 0.5}]), 1, &step(char(0), 0.5)),
            (json!([{"end": 0, "score": 0.5}]), 0, &step(char(0), 0.5)),
            (json!([{"token": 0, "score": -1}]), 0, &step(token(0), -1.0)),
            (json!(0), 3, &CompletionReward { value: Some(0.0), steps: None }),
            (json!(false), 3, &CompletionReward { value: Some(0.0), steps: None }),
        ] {
            let found = CompletionReward::read(&value, tokens);
            if found.as_ref() != Ok(expected) {
                wrong.push(format!("{value} for {tokens} tokens: {found:?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn invalid_steps_are_errors() {
        for (value, words) in [
            (json!([1, 2]), "one number per token (3)"),
            (json!([{"end": "0", "score": 1}]), "expected {\"end\""),
            (json!([{"end": 1, "token": 1, "score": 1}]), "expected"),
            (json!([{"end": 1}]), "expected"),
            (json!([{"end": 1, "score": 1, "scor": 2}]), "`scor`"),
            (json!([{"token": 1, "score": "x"}]), "\"x\""),
            (json!([1, "x", 2]), "\"x\""),
            (json!([1, "NaN", 2]), "a finite number, got NaN"),
            (json!("x"), "a number, null or a list of steps"),
        ] {
            let error = CompletionReward::read(&value, 3).unwrap_err();
            assert!(error.contains(words), "{value}: {error}");
        }
        assert_eq!(misplaced(&[at(StepEnd::Token(2), 1.0), at(StepEnd::Char(2), 1.0)], 3, "äö"), None);
        assert!(misplaced(&[at(StepEnd::Token(3), 1.0)], 3, "").unwrap().contains("token 3"));
        assert!(
            misplaced(&[at(StepEnd::Char(3), 1.0)], 9, "äö")
                .unwrap()
                .contains("character 3, but the completion has 2 characters")
        );
    }

    #[test]
    fn a_step_must_end_within_its_completion() {
        let (char, token) = (StepEnd::Char, StepEnd::Token);
        for (end, expected) in [
            (token(0), None),
            (token(2), None),
            (token(3), Some("a step ends at token 3, but the completion has 3 tokens (counted from 0)")),
            // A step that ends before the first character affects only the score of its completion.
            (char(0), Some("a step ends at character 0, but the completion has 2 characters (counted from 1)")),
            (char(1), None),
            (char(2), None),
            (char(3), Some("a step ends at character 3, but the completion has 2 characters (counted from 1)")),
        ] {
            assert_eq!(misplaced(&[at(token(1), 1.0), at(end, 1.0)], 3, "äö").as_deref(), expected, "{end:?}");
        }
        assert_eq!(misplaced(&[], 0, ""), None);
        assert_eq!(misplaced(&[at(char(0), 1.0)], 1, ""), None, "the end of a completion without text");
        assert_eq!(
            misplaced(&[at(char(1), 1.0)], 1, "").as_deref(),
            Some("a step ends at character 1, but the completion has 0 characters (counted from 1)")
        );
        let read = |value: Value| CompletionReward::read(&value, 2);
        let one = |end| CompletionReward { value: Some(0.5), steps: Some(vec![at(end, 0.5)]) };
        assert_eq!(read(json!([{"end": 1, "score": 0.5}])), Ok(one(char(1))));
        assert_eq!(read(json!([{"token": 0, "score": 0.5}])), Ok(one(token(0))));
        assert_eq!(read(json!([null, 0.5])), Ok(one(token(1))));
        assert_eq!(read(json!(false)), Ok(CompletionReward { value: Some(0.0), steps: None }));
        for (value, expected) in [
            (json!([1]), format!("expected one number per token (2), or a list of {STEP}, got 1 numbers")),
            (json!([1, 2, 3]), format!("expected one number per token (2), or a list of {STEP}, got 3 numbers")),
            (json!([1, "Infinity"]), "expected a finite number, got inf".to_owned()),
            (json!([1, true]), "expected a number, got true".to_owned()),
            (json!([{"end": -1, "score": 1}]), format!("invalid step {{\"end\":-1,\"score\":1}}: expected {STEP}")),
            (
                json!([{"token": 1.5, "score": 1}]),
                format!("invalid step {{\"token\":1.5,\"score\":1}}: expected {STEP}"),
            ),
            (json!([{"score": 1}]), format!("invalid step {{\"score\":1}}: expected {STEP}")),
            (json!([{"token": 1}]), format!("invalid step {{\"token\":1}}: expected {STEP}")),
            (json!([{"token": 1, "score": 1, "x": 1}]), format!("unknown key `x` in a step: expected {STEP}")),
            (json!({"token": 1}), "expected a number, null or a list of steps, got {\"token\":1}".to_owned()),
        ] {
            assert_eq!(read(value.clone()), Err(expected), "{value}");
        }
    }
}
