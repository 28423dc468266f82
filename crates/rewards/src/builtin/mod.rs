//! The built-in rewards. Each has its own file, and a row in the table [`BUILTIN`].

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{Error, Result, Reward, RewardBatch, Scores};
use grader::Graded;

mod answer;
mod boxed;
#[cfg(target_os = "linux")]
mod code;
#[cfg(test)]
mod corpus;
mod countdown;
mod exact_match;
mod format;
mod formulas;
mod grader;
mod gsm8k;
mod gsm8k_staged;
mod keyword;
mod length;
mod markup;
mod math;
mod multiple_choice;
mod number;
mod rational;
mod repetition;
pub(crate) mod think_answer;
mod unique_chars;
mod units;

/// All built-in rewards, in the order of the documentation.
pub(crate) const BUILTIN: &[Kind] = &[
    Kind::of::<Graded<gsm8k::Gsm8k, 1>>(),
    Kind::of::<Graded<gsm8k_staged::Staged, 1>>(),
    Kind::of::<Graded<math::Math, 1>>(),
    Kind::of::<Graded<multiple_choice::MultipleChoice, 1>>(),
    Kind::of::<Graded<countdown::Countdown, 2>>(),
    #[cfg(target_os = "linux")]
    Kind::of::<code::Code>(),
    Kind::of::<think_answer::ThinkAnswer>(),
    Kind::of::<format::Format>(),
    Kind::of::<keyword::Keyword>(),
    Kind::of::<length::Length>(),
    Kind::of::<repetition::Repetition>(),
    Kind::of::<unique_chars::UniqueChars>(),
    Kind::of::<Graded<exact_match::ExactMatch, 1>>(),
];

/// A built-in reward, which is built from its options alone. It scores each completion separately.
pub(crate) trait Builtin: Sized + Send + 'static {
    /// The name of this kind of reward in a configuration.
    const KIND: &'static str;
    /// The option that the text after the colon of the short form sets; `None` if the short form has no colon.
    const MAIN_OPTION: Option<&'static str> = None;
    /// The options of the reward's table, in addition to `kind` and `name`.
    type Options: DeserializeOwned;

    /// Converts the text after the colon of the short form to the value of the main option.
    fn main_value(text: &str) -> Value {
        text.into()
    }

    fn build(options: Self::Options) -> Result<Self>;

    /// See [`Reward::required_columns`].
    fn required_columns(&self) -> Vec<String> {
        Vec::new()
    }

    /// See [`Reward::reads_ids`].
    fn reads_ids(&self) -> bool {
        false
    }

    /// See [`Reward::stop_with`].
    fn stop_with(&mut self, _stop: Arc<AtomicBool>) {}

    /// See [`Reward::score`]. Problems carry the reward's `name`.
    fn score(&mut self, name: &str, batch: &RewardBatch<'_>) -> Scores;
}

/// A built-in reward with the name under which its scores are logged.
pub(crate) struct Named<B> {
    name: String,
    reward: B,
}

impl<B: Builtin> Named<B> {
    pub fn build(name: String, options: B::Options) -> Result<Named<B>> {
        Ok(Named { name, reward: B::build(options)? })
    }
}

impl<B: Builtin> Reward for Named<B> {
    fn name(&self) -> &str {
        &self.name
    }

    fn required_columns(&self) -> Vec<String> {
        self.reward.required_columns()
    }

    fn reads_ids(&self) -> bool {
        self.reward.reads_ids()
    }

    fn scores_by_group(&self) -> bool {
        true
    }

    fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        self.reward.stop_with(stop);
    }

    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        self.reward.score(&self.name, batch)
    }
}

/// A function that builds a reward from its name and its options.
type Build = fn(String, Map<String, Value>) -> Result<Box<dyn Reward>>;

/// A kind of built-in reward: a row of [`BUILTIN`].
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub name: &'static str,
    pub main_option: Option<&'static str>,
    pub main_value: fn(&str) -> Value,
    pub build: Build,
}

impl Kind {
    const fn of<R: Builtin>() -> Kind {
        Kind {
            name: R::KIND,
            main_option: R::MAIN_OPTION,
            main_value: R::main_value,
            build: |name, options| Ok(Box::new(Named::<R>::build(name, parse(R::KIND, options)?)?)),
        }
    }
}

/// Parses the options of a kind of reward. The errors are those of serde, which name the known options.
pub(crate) fn parse<T: DeserializeOwned>(kind: &str, options: Map<String, Value>) -> Result<T> {
    serde_json::from_value(Value::Object(options)).map_err(|e| Error::options(kind, e.to_string()))
}

#[cfg(test)]
mod tests {
    use crate::{Columns, Content, NO_ANSWER, RewardBatch, build};
    use serde_json::{Value, json};

    /// Each grader scores a right answer, a wrong answer, a completion without an answer, and an invalid row.
    #[test]
    fn no_answer_counts_completions_without_an_answer() {
        for (spec, answers, texts) in [
            (json!("gsm8k"), [json!("#### 5"), json!("none")], ["#### 5", "6", "five"]),
            (json!({"kind": "gsm8k", "strict": true}), [json!("5"), json!("")], ["#### 5", "\\boxed{6}", "5"]),
            (json!("math"), [json!("\\frac12"), json!(null)], ["$0.5$", "it is 7", "what?"]),
            (json!("multiple_choice"), [json!("B"), json!("Z")], ["B", "(C)", "neither"]),
            (
                json!({"kind": "exact_match", "extract": "Answer: (.*)"}),
                [json!("x"), json!([])],
                ["Answer: x", "Answer: y", "x"],
            ),
            (
                json!("gsm8k_staged"),
                [json!("5"), json!("none")],
                ["<SOLUTION>5</SOLUTION>", "<SOLUTION>9</SOLUTION>", "5"],
            ),
            (json!("countdown"), [json!([2, 3]), json!("x")], ["2 + 3", "<answer>2 * 3</answer>", "no idea"]),
        ] {
            let mut reward = build(&serde_json::from_value(spec.clone()).unwrap(), "r".into()).unwrap();
            let share = |reward: &mut Box<dyn crate::Reward>, rows: &[(&str, &Value)]| {
                let completions: Vec<Content> = rows.iter().map(|(text, _)| (*text).into()).collect();
                let answers: Vec<Value> = rows.iter().map(|(_, answer)| (*answer).clone()).collect();
                let targets = vec![json!(5); rows.len()];
                let columns = [("answer", answers.clone()), ("nums", answers), ("target", targets)];
                let scores = reward.score(&RewardBatch {
                    prompts: &completions,
                    completions: &completions,
                    completion_ids: &vec![vec![]; rows.len()],
                    columns: &Columns::from(columns.map(|(name, values)| (name.to_owned(), values))),
                    rows: &[],
                    step: model::Step(0),
                });
                (scores.values, scores.metrics)
            };
            let [right, unread] = &answers;
            let [good, wrong, none] = texts;
            let rows = [(good, right), (wrong, right), (none, right), (none, right), (none, unread)];
            let (values, metrics) = share(&mut reward, &rows);
            assert_eq!(metrics, [(NO_ANSWER.to_owned(), 0.5)], "{spec}: {values:?}");
            assert!(values[0] > values[1] && values[1] >= values[2] && values[4].is_none(), "{spec}: {values:?}");
            assert_eq!(share(&mut reward, &rows[..2]).1, [(NO_ANSWER.to_owned(), 0.0)], "{spec}");
            assert!(
                share(&mut reward, &rows[4..]).1.is_empty(),
                "{spec}: a batch without scores must not report `no_answer`"
            );
        }
    }

    /// Tests the properties that the trainer reads before it calls a reward.
    #[test]
    fn rewards_declare_their_columns_and_score_by_group() {
        for (spec, columns, reads_ids) in [
            (json!("gsm8k"), &["answer"][..], false),
            (json!("gsm8k:a"), &["a"], false),
            (json!("gsm8k_staged:a"), &["a"], false),
            (json!("math:a"), &["a"], false),
            (json!("multiple_choice:a"), &["a"], false),
            (json!("exact_match:a"), &["a"], false),
            (json!("countdown"), &["nums", "target"], false),
            (json!({"kind": "countdown", "numbers": "a", "target": "b"}), &["a", "b"], false),
            (json!("think_answer"), &[], false),
            (json!("format:x"), &[], false),
            (json!("keyword:x"), &[], false),
            (json!("length:3"), &[], true),
            (json!({"kind": "length", "target": 3, "unit": "chars"}), &[], false),
            (json!("repetition:2"), &[], false),
            (json!({"kind": "repetition", "unit": "tokens"}), &[], true),
            (json!("unique_chars"), &[], false),
        ] {
            let reward = build(&serde_json::from_value(spec.clone()).unwrap(), "own".into()).unwrap();
            assert_eq!((reward.name(), reward.scores_by_group()), ("own", true), "{spec}");
            let required = reward.required_columns();
            assert!(required.iter().eq(columns), "{spec}: {required:?}");
            assert_eq!(reward.reads_ids(), reads_ids, "{spec}");
        }
        for kind in ["countdown", "think_answer", "unique_chars"] {
            let spec = serde_json::from_value(json!(format!("{kind}:x"))).unwrap();
            let refusal = build(&spec, "r".into()).err().unwrap().to_string();
            assert_eq!(refusal, format!("reward `{kind}`: this kind takes no text after the colon, got `x`"));
        }
    }

    /// All invalid rows are counted in one problem, whose example is the first of these rows.
    #[test]
    fn invalid_rows_are_reported_as_one_problem() {
        for (kind, message, example) in [
            ("gsm8k", "no number in column `answer`", Some("in \"x\"")),
            ("multiple_choice", "no choice of 4 in column `answer`", Some("in \"x\"")),
            ("math", "no answer in column `answer`", None),
        ] {
            let mut reward = build(&kind.into(), "own".into()).unwrap();
            let unread = if kind == "math" { ["", "", " "] } else { ["x", "y", "z"] };
            let answers = ["5", unread[0], "B", unread[1], unread[2]];
            let good = if kind == "multiple_choice" { "B" } else { "5" };
            let answers = answers.map(|text| Value::from(if ["5", "B"].contains(&text) { good } else { text }));
            let completions: Vec<Content> = ["so: B", "B", "so: 5", "5", "5"].map(Content::from).into();
            let scores = reward.score(&RewardBatch {
                prompts: &completions,
                completions: &completions,
                completion_ids: &[const { vec![] }; 5],
                columns: &Columns::from([("answer".to_owned(), answers.to_vec())]),
                rows: &[],
                step: model::Step(0),
            });
            let (b, five) = (f64::from(u8::from(good == "B")), f64::from(u8::from(good == "5")));
            assert_eq!(scores.values, [Some(b), None, Some(five), None, None], "{kind}");
            let expected = crate::Problem {
                example: example.map(str::to_owned),
                kind: crate::ProblemKind::BadData,
                ..crate::Problem::new("own", 3, message)
            };
            assert_eq!(scores.problems, [expected], "{kind}");
        }
    }
}
