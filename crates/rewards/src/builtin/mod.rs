//! The built-in rewards. Each has a file, and a row in the table [`BUILTIN`].

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{Error, Result, Reward};
use grader::Graded;

mod answer;
mod boxed;
#[cfg(target_os = "linux")]
pub(crate) mod code;
mod countdown;
mod exact_match;
mod format;
mod grader;
mod gsm8k;
mod gsm8k_staged;
mod keyword;
mod length;
mod math;
mod multiple_choice;
mod number;
mod rational;
mod repetition;
mod think_answer;
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

/// A built-in reward, built from its name and options alone.
pub(crate) trait Builtin: Reward + Sized + 'static {
    /// The name of this kind of reward in a configuration.
    const KIND: &'static str;
    /// The option that is set by the text after the colon of the short form; `None` if there is no short form with a
    /// colon.
    const MAIN_OPTION: Option<&'static str> = None;
    /// The options that the reward's table may have beside `kind` and `name`.
    type Options: DeserializeOwned;

    /// Converts the text after the colon of the short form to the value of the main option.
    fn main_value(text: &str) -> Value {
        text.into()
    }

    /// Builds the reward with the name `name`, under which its scores are logged.
    fn build(name: String, options: Self::Options) -> Result<Self>;
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
            build: |name, options| Ok(Box::new(R::build(name, parse(R::KIND, options)?)?)),
        }
    }
}

/// Parses the options of a kind of reward. Errors are serde's, which name the known options.
pub(crate) fn parse<T: DeserializeOwned>(kind: &str, options: Map<String, Value>) -> Result<T> {
    serde_json::from_value(Value::Object(options)).map_err(|e| Error::options(kind, e.to_string()))
}

#[cfg(test)]
mod tests {
    use crate::{Columns, Content, NO_ANSWER, RewardBatch, build};
    use serde_json::{Value, json};

    /// Each grader scores the right answer, a wrong one, none, and an answer for a row that it cannot read.
    #[test]
    fn completions_without_an_answer_are_counted_apart_from_wrong_ones() {
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
                    step: 0,
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
            assert!(share(&mut reward, &rows[4..]).1.is_empty(), "{spec}: nothing was scored");
        }
    }
}
