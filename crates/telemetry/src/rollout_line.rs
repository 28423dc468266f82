//! Reads and writes a rollout as a line of JSON: a prompt with one completion, or with all completions of its group.
//! This file checks types and lengths; it does not depend on how the lines are used.

use serde_json::{Map, Value, json};

use crate::Step;

/// The keys that have one element per completion in a line with a whole group.
const PER_COMPLETION: [&str; 8] =
    ["completion_ids", "rewards", "logprobs", "ref_logprobs", "mask", "truncated", "versions", "problems"];

/// The largest number accepted as a log-probability. It is slightly above 0, because programs that write rollout files
/// may round.
const MAX_LOGP: f64 = 1e-3;

/// A completion read from a file. Its lists have one element per token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedCompletion {
    /// Token ids of the completion.
    pub ids: Vec<u32>,
    /// Log-probability of each token under the policy that sampled the token, if given.
    pub logps: Option<Vec<f32>>,
    /// Log-probability of each token under the reference model, if given.
    pub ref_logps: Option<Vec<f32>>,
    /// Whether the model sampled each token; `None` if the model sampled all of them.
    pub sampled: Option<Vec<bool>>,
    /// Whether the completion was truncated at the length limit, if given.
    pub truncated: Option<bool>,
    /// The version of the weights that sampled each token; empty if not given.
    pub versions: Vec<u64>,
    /// The score from each reward function; `None` where the function gave none.
    pub rewards: Vec<Option<f64>>,
    /// For each reward function that scores steps of the completion: the last token and the score of each step. Empty
    /// if no function scores steps. Not part of the JSON lines.
    pub steps: Vec<Option<Vec<(usize, f64)>>>,
    /// The reasons why rewards gave no score, as JSON objects that this file does not interpret.
    pub problems: Vec<Value>,
}

/// A line of a rollout file: a prompt with one completion, or with all completions of its group.
#[derive(Clone, Debug, PartialEq)]
pub struct RolloutLine {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// The completions in the line, at least one.
    pub completions: Vec<RecordedCompletion>,
    /// Names of the reward functions, if given.
    pub reward_names: Option<Vec<String>>,
    /// Lineage of the weights that sampled the completions, if given.
    pub lineage: Option<String>,
}

impl RolloutLine {
    /// The allowed keys of a line. Keys from `step` on are for people and other programs; of these, a recorded replay
    /// reads only `lineage` and `problems`.
    pub const KEYS: [&str; 25] = [
        "prompt_ids",
        "completion_ids",
        "rewards",
        "reward_names",
        "logprobs",
        "ref_logprobs",
        "mask",
        "truncated",
        "versions",
        "step",
        "group",
        "generation",
        "prompt_id",
        "prompt",
        "completion",
        "columns",
        "lineage",
        "sampling",
        "problems",
        "advantages",
        "loss_mask",
        "step_scores",
        "extra",
        "fork",
        "tokens",
    ];

    /// Parses a line with [`KEYS`](Self::KEYS). Token ids must be below `vocabulary`. An error names the invalid key.
    pub fn read(object: &Map<String, Value>, vocabulary: usize) -> Result<RolloutLine, String> {
        let lacks = ["prompt_ids", "completion_ids", "rewards"].into_iter().find(|key| !object.contains_key(*key));
        if let Some(key) = lacks {
            return Err(format!("`{key}` is missing"));
        }
        let prompt = ids(&object["prompt_ids"], "prompt_ids", vocabulary)?;
        if prompt.is_empty() {
            return Err("`prompt_ids` must have at least one token, such as BOS".to_owned());
        }
        let reward_names = match object.get("reward_names") {
            None | Some(Value::Null) => None,
            Some(names) => Some(list(names, "reward_names", |v| v.as_str().map(str::to_owned), "a string")?),
        };
        let group = object["completion_ids"].get(0).is_some_and(Value::is_array);
        let completions = if group {
            split(object)?.iter().map(|one| RecordedCompletion::read(one, vocabulary)).collect::<Result<_, _>>()?
        } else {
            vec![RecordedCompletion::read(object, vocabulary)?]
        };
        let lineage = match object.get("lineage") {
            None | Some(Value::Null) => None,
            Some(Value::String(lineage)) => Some(lineage.clone()),
            Some(other) => return Err(format!("`lineage`: expected a string, got {other}")),
        };
        Ok(RolloutLine { prompt, completions, reward_names, lineage })
    }
}

/// Splits the line of a group into one line for each completion.
fn split(object: &Map<String, Value>) -> Result<Vec<Map<String, Value>>, String> {
    let count = object["completion_ids"].as_array().map_or(0, Vec::len);
    let mut lines = vec![Map::new(); count];
    for key in PER_COMPLETION {
        // A null value is treated as missing, except for `rewards`, which a line must have.
        let Some(value) = object.get(key).filter(|v| !v.is_null() || key == "rewards") else { continue };
        let Some(items) = value.as_array().filter(|items| items.len() == count) else {
            let got = value.as_array().map_or("a value that is not a list".to_owned(), |items| items.len().to_string());
            return Err(format!("`{key}` must have one element for each of the {count} completions, got {got}"));
        };
        lines.iter_mut().zip(items).for_each(|(line, item)| {
            line.insert(key.to_owned(), item.clone());
        });
    }
    Ok(lines)
}

impl RecordedCompletion {
    fn read(object: &Map<String, Value>, vocabulary: usize) -> Result<RecordedCompletion, String> {
        let get = |key: &str| object.get(key).filter(|v| !v.is_null());
        let completion = ids(&object["completion_ids"], "completion_ids", vocabulary)?;
        let per_token = |key: &str| -> Result<Option<Vec<f32>>, String> {
            let Some(value) = get(key) else { return Ok(None) };
            let what = "a log-probability (a number, at most 0)";
            let read = |v: &Value| v.as_f64().filter(|&x| x <= MAX_LOGP).map(|x| x as f32);
            let values = list(value, key, read, what)?;
            same_length(key, values.len(), completion.len())?;
            Ok(Some(values))
        };
        let sampled = match get("mask") {
            None => None,
            // Programs often write masks as 0 and 1, so these are accepted as booleans, too.
            Some(value) => {
                let read = |v: &Value| v.as_bool().or_else(|| v.as_u64().filter(|&n| n < 2).map(|n| n == 1));
                let sampled = list(value, "mask", read, "true or false")?;
                same_length("mask", sampled.len(), completion.len())?;
                Some(sampled)
            }
        };
        let versions = get("versions").map(|value| versions(value, completion.len())).transpose()?.unwrap_or_default();
        let truncated = match get("truncated") {
            None => None,
            Some(value) => Some(value.as_bool().ok_or(format!("`truncated`: expected true or false, got {value}"))?),
        };
        let reward = |v: &Value| if v.is_null() { Some(None) } else { v.as_f64().map(Some) };
        let rewards = match &object["rewards"] {
            Value::Array(_) => list(&object["rewards"], "rewards", reward, "a number or null")?,
            one => {
                vec![reward(one).ok_or(format!("`rewards`: expected a number, null or a list of numbers, got {one}"))?]
            }
        };
        if rewards.is_empty() {
            return Err("`rewards` must not be empty: expected a number, or one for each reward function".to_owned());
        }
        let (logps, ref_logps) = (per_token("logprobs")?, per_token("ref_logprobs")?);
        let problems = match get("problems") {
            None => Vec::new(),
            Some(value) => list(value, "problems", |v| v.is_object().then(|| v.clone()), "an object")?,
        };
        let steps = Vec::new();
        Ok(RecordedCompletion {
            ids: completion,
            logps,
            ref_logps,
            sampled,
            truncated,
            versions,
            rewards,
            steps,
            problems,
        })
    }

    /// The completion as a JSON line. [`RolloutLine::read`] restores the same bits from it. `step` is the first
    /// optimizer step that trains on the completion.
    pub fn line(&self, step: Option<Step>, prompt: &[u32], reward_names: &[String]) -> Map<String, Value> {
        let mut line = Map::new();
        let mut put = |key: &str, value: Value| line.insert(key.to_owned(), value);
        let logps = |logps: &[f32]| -> Value { logps.iter().map(|&x| number(x)).collect() };
        step.map(|step| put("step", json!(step)));
        put("prompt_ids", json!(prompt));
        put("completion_ids", json!(self.ids));
        put("rewards", json!(self.rewards));
        put("reward_names", json!(reward_names));
        self.logps.as_deref().map(|l| put("logprobs", logps(l)));
        self.ref_logps.as_deref().map(|l| put("ref_logprobs", logps(l)));
        self.sampled.as_ref().map(|sampled| put("mask", json!(sampled)));
        self.truncated.map(|truncated| put("truncated", json!(truncated)));
        if !self.versions.is_empty() {
            let spans = self.versions.chunk_by(|a, b| a == b).map(|span| json!([span[0], span.len()]));
            put("versions", spans.collect());
        }
        if !self.problems.is_empty() {
            put("problems", json!(self.problems));
        }
        line
    }
}

/// An f32 as JSON, with the fewest digits that give the same f32 when the number is parsed as f64 and rounded.
pub fn number(x: f32) -> Value {
    let short = x.to_string().parse::<f64>().ok().filter(|&d| (d as f32).to_bits() == x.to_bits());
    Value::from(short.unwrap_or(f64::from(x)))
}

/// Expands a list of `[version, tokens]`, where `tokens` is the number of tokens sampled with that version of the
/// weights, to one version per token.
fn versions(value: &Value, tokens: usize) -> Result<Vec<u64>, String> {
    let span = |v: &Value| match &v.as_array()?[..] {
        [version, tokens] => Some((version.as_u64()?, tokens.as_u64()?)),
        _ => None,
    };
    let spans = list(value, "versions", span, "[version, number of tokens]")?;
    let total = spans.iter().try_fold(0u64, |sum, (_, tokens)| sum.checked_add(*tokens)).unwrap_or(u64::MAX);
    same_length("versions", usize::try_from(total).unwrap_or(usize::MAX), tokens)?;
    Ok(spans.into_iter().flat_map(|(version, tokens)| std::iter::repeat_n(version, tokens as usize)).collect())
}

fn same_length(key: &str, len: usize, tokens: usize) -> Result<(), String> {
    if len == tokens {
        return Ok(());
    }
    Err(format!("`{key}` must have as many elements as `completion_ids` ({tokens}), got {len}"))
}

/// Parses a JSON list, with `read` for each element. Fails if `read` rejects an element.
fn list<T>(value: &Value, key: &str, read: impl Fn(&Value) -> Option<T>, what: &str) -> Result<Vec<T>, String> {
    let Some(items) = value.as_array() else { return Err(format!("`{key}`: expected a list, got {value}")) };
    let of = |(i, item): (usize, &Value)| read(item).ok_or(format!("{key}[{i}] = {item}: expected {what}"));
    items.iter().enumerate().map(of).collect()
}

fn ids(value: &Value, key: &str, vocabulary: usize) -> Result<Vec<u32>, String> {
    let ids = list(value, key, |v| v.as_u64().and_then(|id| u32::try_from(id).ok()), "a token id")?;
    match ids.iter().position(|&id| id as usize >= vocabulary) {
        Some(at) => Err(format!("{key}[{at}] = {} is not in the model's vocabulary of {vocabulary}", ids[at])),
        None => Ok(ids),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RolloutLine, String> {
        RolloutLine::read(serde_json::from_str::<Value>(text).unwrap().as_object().unwrap(), 10)
    }

    fn broken(text: &str, words: &str) {
        let error = parse(text).unwrap_err();
        assert!(error.contains(words), "{text}: {error}");
    }

    #[test]
    fn a_completion_round_trips_bit_for_bit() {
        let awkward = [-0.0, -f32::MIN_POSITIVE / 2.0, -1.000_000_1, -103.972_08, f32::MIN, -1e-7];
        let recorded = RecordedCompletion {
            ids: vec![1, 2, 3, 4, 5, 6],
            logps: Some(awkward.to_vec()),
            ref_logps: Some(awkward.iter().rev().copied().collect()),
            sampled: Some(vec![true, false, true, true, true, true]),
            truncated: Some(true),
            versions: vec![3, 3, 3, 4, 4, u64::MAX],
            rewards: vec![Some(0.1 + 0.2), None],
            steps: vec![],
            problems: vec![json!({"reward": "b", "message": "no number"})],
        };
        let names = ["a".to_owned(), "b".to_owned()];
        let line = Value::Object(recorded.line(Some(Step(3)), &[7, 8], &names)).to_string();
        let read = parse(&line).unwrap();
        let bits = |logps: &Option<Vec<f32>>| logps.as_ref().unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&read.completions[0].logps), bits(&recorded.logps));
        assert_eq!(bits(&read.completions[0].ref_logps), bits(&recorded.ref_logps));
        assert_eq!(
            (read.prompt, read.completions, read.reward_names),
            (vec![7, 8], vec![recorded], Some(names.to_vec()))
        );
    }

    #[test]
    fn a_line_with_a_group_is_split_into_completions() {
        let group = r#"{"prompt_ids": [1], "completion_ids": [[2], [], [3, 4]], "rewards": [1, null, [0.5]],
            "logprobs": [[-1], [], [-2, -3]], "mask": [[1], [], [0, 1]], "truncated": [false, true, false]}"#;
        let line = parse(group).unwrap();
        assert_eq!(line.completions.len(), 3);
        assert_eq!(line.completions[1].rewards, [None]);
        assert_eq!(line.completions[1].truncated, Some(true));
        assert_eq!(line.completions[2].ids, [3, 4]);
        assert_eq!(line.completions[2].sampled, Some(vec![false, true]));
        let empty = parse(r#"{"prompt_ids": [1], "completion_ids": [], "rewards": 0}"#).unwrap();
        assert_eq!(
            empty.completions,
            [RecordedCompletion { rewards: vec![Some(0.0)], ..RecordedCompletion::default() }]
        );
    }

    #[test]
    fn errors_name_the_invalid_key() {
        broken(r#"{"prompt_ids": [1], "completion_ids": [1]}"#, "`rewards` is missing");
        broken(
            r#"{"prompt_ids": [], "completion_ids": [1], "rewards": 1}"#,
            "`prompt_ids` must have at least one token",
        );
        broken(r#"{"prompt_ids": [1, 10], "completion_ids": [1], "rewards": 1}"#, "prompt_ids[1] = 10");
        broken(r#"{"prompt_ids": [1], "completion_ids": [-1], "rewards": 1}"#, "completion_ids[0] = -1");
        broken(r#"{"prompt_ids": [1], "completion_ids": [1], "rewards": "x"}"#, "`rewards`");
        broken(r#"{"prompt_ids": [1], "completion_ids": [1], "rewards": []}"#, "`rewards` must not be empty");
        broken(r#"{"prompt_ids": [1], "completion_ids": [1], "rewards": 1, "logprobs": [0, 0]}"#, "(1), got 2");
        broken(r#"{"prompt_ids": [1], "completion_ids": [1], "rewards": 1, "logprobs": [0.5]}"#, "logprobs[0] = 0.5");
        broken(r#"{"prompt_ids": [1], "completion_ids": [1], "rewards": 1, "mask": [2]}"#, "mask[0] = 2");
        broken(r#"{"prompt_ids": [1], "completion_ids": [1], "rewards": 1, "versions": [1]}"#, "versions[0] = 1");
        broken(r#"{"prompt_ids": [1], "completion_ids": [1], "rewards": 1, "problems": ["x"]}"#, "problems[0] = \"x\"");
        broken(r#"{"prompt_ids": [1], "completion_ids": [1], "rewards": 1, "lineage": 1}"#, "`lineage`");
        let long =
            r#"{"prompt_ids": [1], "completion_ids": [1], "rewards": 1, "versions": [[1, 18446744073709551615]]}"#;
        broken(long, "(1), got 18446744073709551615");
        broken(r#"{"prompt_ids": [1], "completion_ids": [[1], [2]], "rewards": 1}"#, "each of the 2 completions");
        broken(r#"{"prompt_ids": [1], "completion_ids": [[1], 2], "rewards": [1, 2]}"#, "`completion_ids`");
        broken(
            r#"{"prompt_ids": [1], "completion_ids": [[1], [2]], "rewards": null}"#,
            "`rewards` must have one element",
        );
    }

    /// The error of a minimal line in which `fields` replace the valid fields.
    fn refused(fields: &str) -> String {
        let mut line = json!({"prompt_ids": [1], "completion_ids": [1, 2], "rewards": 1});
        let Value::Object(others) = serde_json::from_str(fields).unwrap() else { panic!("{fields}") };
        line.as_object_mut().unwrap().extend(others);
        match RolloutLine::read(line.as_object().unwrap(), 10) {
            Ok(line) => panic!("{fields} must be refused, got {line:?}"),
            Err(error) => error,
        }
    }

    #[test]
    fn errors_state_the_expected_value() {
        for (fields, error) in [
            (r#"{"prompt_ids": 1}"#, "`prompt_ids`: expected a list, got 1"),
            (r#"{"prompt_ids": ["a"]}"#, r#"prompt_ids[0] = "a": expected a token id"#),
            (r#"{"prompt_ids": [1, 10, 11]}"#, "prompt_ids[1] = 10 is not in the model's vocabulary of 10"),
            (r#"{"prompt_ids": []}"#, "`prompt_ids` must have at least one token, such as BOS"),
            (r#"{"completion_ids": [9, 4294967296]}"#, "completion_ids[1] = 4294967296: expected a token id"),
            (r#"{"completion_ids": [1.5]}"#, "completion_ids[0] = 1.5: expected a token id"),
            (r#"{"completion_ids": "ab"}"#, r#"`completion_ids`: expected a list, got "ab""#),
            (r#"{"reward_names": "a"}"#, r#"`reward_names`: expected a list, got "a""#),
            (r#"{"reward_names": ["a", 2]}"#, "reward_names[1] = 2: expected a string"),
            (r#"{"lineage": ["a"]}"#, r#"`lineage`: expected a string, got ["a"]"#),
            (r#"{"rewards": "x"}"#, r#"`rewards`: expected a number, null or a list of numbers, got "x""#),
            (r#"{"rewards": [1, "x"]}"#, r#"rewards[1] = "x": expected a number or null"#),
            (r#"{"rewards": []}"#, "`rewards` must not be empty: expected a number, or one for each reward function"),
            (r#"{"logprobs": [-1]}"#, "`logprobs` must have as many elements as `completion_ids` (2), got 1"),
            (r#"{"logprobs": -1}"#, "`logprobs`: expected a list, got -1"),
            (
                r#"{"ref_logprobs": [0.001, 0.0011]}"#,
                "ref_logprobs[1] = 0.0011: expected a log-probability (a number, at most 0)",
            ),
            (r#"{"mask": [0, 2]}"#, "mask[1] = 2: expected true or false"),
            (r#"{"mask": [0, 1, true]}"#, "`mask` must have as many elements as `completion_ids` (2), got 3"),
            (r#"{"truncated": 1}"#, "`truncated`: expected true or false, got 1"),
            (
                r#"{"versions": [[3, 1], [4, 2]]}"#,
                "`versions` must have as many elements as `completion_ids` (2), got 3",
            ),
            (r#"{"versions": [[3, 1]]}"#, "`versions` must have as many elements as `completion_ids` (2), got 1"),
            (r#"{"versions": [[3, 1, 1]]}"#, "versions[0] = [3,1,1]: expected [version, number of tokens]"),
            (r#"{"versions": [[3, -1]]}"#, "versions[0] = [3,-1]: expected [version, number of tokens]"),
            (
                r#"{"versions": [[1, 18446744073709551615], [2, 3]]}"#,
                "`versions` must have as many elements as `completion_ids` (2), got 18446744073709551615",
            ),
            (r#"{"problems": [{}, 1]}"#, "problems[1] = 1: expected an object"),
            (
                r#"{"completion_ids": [[1], [2]], "rewards": [1, 2], "logprobs": [[-1]]}"#,
                "`logprobs` must have one element for each of the 2 completions, got 1",
            ),
            (
                r#"{"completion_ids": [[1], [2]], "rewards": [1, 2], "mask": true}"#,
                "`mask` must have one element for each of the 2 completions, got a value that is not a list",
            ),
        ] {
            assert_eq!(refused(fields), error);
        }
        for key in ["prompt_ids", "completion_ids", "rewards"] {
            let mut line = json!({"prompt_ids": [1], "completion_ids": [1], "rewards": 1});
            line.as_object_mut().unwrap().remove(key);
            assert_eq!(parse(&line.to_string()), Err(format!("`{key}` is missing")));
        }
    }

    #[test]
    fn nulls_and_edge_values_are_accepted() {
        let line = parse(
            r#"{"prompt_ids": [9], "completion_ids": [9, 0], "rewards": [null, 2], "logprobs": [0.001, -1],
            "mask": [1, 0], "ref_logprobs": null, "truncated": null, "versions": [[7, 1], [8, 0], [9, 1]],
            "reward_names": null, "lineage": null, "problems": null, "step": 3}"#,
        )
        .unwrap();
        let completion = RecordedCompletion {
            ids: vec![9, 0],
            logps: Some(vec![0.001, -1.0]),
            sampled: Some(vec![true, false]),
            versions: vec![7, 9],
            rewards: vec![None, Some(2.0)],
            ..RecordedCompletion::default()
        };
        let expected =
            RolloutLine { prompt: vec![9], completions: vec![completion], reward_names: None, lineage: None };
        assert_eq!(line, expected);
        let group = parse(
            r#"{"prompt_ids": [1], "completion_ids": [[1], [2]], "rewards": [[1], 2], "logprobs": null, "lineage": "l",
            "reward_names": ["a"], "problems": [[{"x": 1}], []], "versions": [[[3, 1]], null]}"#,
        )
        .unwrap();
        assert_eq!((group.lineage.as_deref(), group.reward_names), (Some("l"), Some(vec!["a".to_owned()])));
        let of = |c: &RecordedCompletion| (c.ids[0], c.rewards[0], c.problems.len(), c.versions.clone());
        let found: Vec<_> = group.completions.iter().map(of).collect();
        assert_eq!(found, [(1, Some(1.0), 1, vec![3]), (2, Some(2.0), 0, vec![])]);
    }

    #[test]
    fn keys_of_a_line_are_known_and_ordered() {
        let plain = RecordedCompletion { ids: vec![1, 2], rewards: vec![Some(0.5), None], ..Default::default() };
        let text = |completion: &RecordedCompletion, step| {
            Value::Object(completion.line(step, &[7], &["a".into(), "b".into()])).to_string()
        };
        let rest = r#""prompt_ids":[7],"completion_ids":[1,2],"rewards":[0.5,null],"reward_names":["a","b"]"#;
        assert_eq!(text(&plain, None), format!("{{{rest}}}"));
        assert_eq!(text(&plain, Some(Step(3))), format!("{{\"step\":3,{rest}}}"));
        let full = RecordedCompletion {
            logps: Some(vec![-0.1, -2.0]),
            ref_logps: Some(vec![-1.0, -0.0]),
            sampled: Some(vec![true, false]),
            truncated: Some(false),
            versions: vec![3, 4],
            problems: vec![json!({"x": 1})],
            ..plain
        };
        let more = concat!(
            r#""logprobs":[-0.1,-2.0],"ref_logprobs":[-1.0,-0.0],"mask":[true,false],"truncated":false,"#,
            r#""versions":[[3,1],[4,1]],"problems":[{"x":1}]"#
        );
        assert_eq!(text(&full, None), format!("{{{rest},{more}}}"));
        for x in [0.1f32, -1e-45, f32::MAX, f32::MIN_POSITIVE] {
            assert_eq!(number(x).as_f64().map(|back| (back as f32).to_bits()), Some(x.to_bits()));
        }
        assert_eq!((number(0.1).to_string(), number(f32::NAN).to_string()), ("0.1".into(), "null".into()));
    }
}

#[cfg(test)]
mod foreign {
    use super::*;
    use proptest::prelude::*;
    use testing::foreign;

    fn valid() -> Value {
        serde_json::json!({"prompt_ids": [7, 8], "completion_ids": [[1, 2], [3]], "rewards": [[0.5, null], [1, 2]],
            "reward_names": ["a", "b"], "logprobs": [[-1.0, -2.5], [-0.5]], "truncated": [true, false], "step": 3})
    }

    fn read(value: &Value) -> Result<RolloutLine, String> {
        RolloutLine::read(value.as_object().ok_or("no object")?, 10)
    }

    proptest! {
        #![proptest_config(foreign::few())]

        #[test]
        fn lines(value in foreign::json(valid())) {
            prop_assert!(read(&valid()).is_ok());
            if let Ok(line) = read(&value) {
                let ids = line.completions.iter().flat_map(|c| &c.ids).chain(&line.prompt);
                prop_assert!(ids.into_iter().all(|&id| id < 10) && !line.completions.is_empty());
            }
        }
    }
}
