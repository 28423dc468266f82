//! `code`: a reward that runs the program in a completion on the tests of its dataset row, in isolation.
//!
//! The crate `sandbox` parses the tests and runs the programs. This file passes the columns of a batch to it and
//! converts its verdicts to scores: 1 if every test passes, or with `partial` the share of tests that pass. A program
//! that does not compile scores 0. A program that could not be judged has no score.
//!
//! Programs never run without isolation: if isolation is unavailable, building the reward fails.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sandbox::{Judge, Options, Submission, Tests};
use serde_json::Value;

use super::Builtin;
use crate::{Error, Problem, Result, RewardBatch, Scores};

/// The `code` reward.
pub(crate) struct Code {
    judge: Judge,
}

impl Builtin for Code {
    const KIND: &'static str = "code";
    const MAIN_OPTION: Option<&'static str> = Some("language");
    type Options = Options;

    fn build(options: Options) -> Result<Self> {
        let judge = Judge::new(options).map_err(|error| Error::options(Self::KIND, error.to_string()))?;
        Ok(Code { judge })
    }

    fn required_columns(&self) -> Vec<String> {
        vec![self.judge.column().to_owned()]
    }

    fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        self.judge.stop_with(stop);
    }

    fn score(&mut self, name: &str, batch: &RewardBatch<'_>) -> Scores {
        if let Err(problem) = batch.column(name, self.judge.column()) {
            return Scores::failed(batch.len(), problem);
        }
        let tests: Vec<Option<Tests>> =
            (0..batch.len()).map(|i| self.judge.tests(|name| batch.columns.get(name)?.get(i))).collect();
        let texts: Vec<(Cow<'_, str>, Cow<'_, str>)> =
            batch.completions.iter().zip(batch.prompts).map(|(text, prompt)| (text.text(), prompt.text())).collect();
        let tested = tests
            .iter()
            .zip(&texts)
            .filter_map(|(tests, (text, prompt))| tests.as_ref().map(|tests| Submission { text, prompt, tests }));
        let tested: Vec<Submission<'_>> = tested.collect();
        let untested = batch.len() - tested.len();
        let mut verdicts = self.judge.judge(&tested).into_iter();
        let mut scores = Scores::new(Vec::with_capacity(batch.len()));
        let mut failures = Vec::with_capacity(batch.len());
        let mut errors = Vec::new();
        for tests in &tests {
            let (value, failure) = match tests.as_ref().and_then(|_| verdicts.next()) {
                Some(Ok(verdict)) => {
                    scores.timed_out += usize::from(verdict.timed_out);
                    (Some(self.judge.score(&verdict)), verdict.failure.into())
                }
                Some(Err(error)) => {
                    errors.push(error);
                    (None, Value::Null)
                }
                None => (None, Value::Null),
            };
            scores.values.push(value);
            failures.push(failure);
        }
        if untested > 0 {
            let message = format!(
                "column `{}` must have tests such as [{{\"input\": \"1\", \"output\": \"2\"}}], \
                 [\"assert f(1) == 2\"], or a `check(candidate)` and a column `entry_point`",
                self.judge.column()
            );
            scores.problems.push(Problem::new(name, untested, message));
        }
        if let Some(error) = errors.first() {
            let message = format!("cannot score the program: {error}");
            scores.problems.push(Problem::new(name, errors.len(), message));
        }
        let peak = self.judge.peak_bytes();
        if peak > 0 {
            scores.metrics.push(("peak_memory_mb".to_owned(), peak as f64 / f64::from(1 << 20)));
        }
        scores.extra.push(("failure".to_owned(), failures));
        scores
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the conversion of verdicts to scores. The isolation of programs is tested in the crate `sandbox`.

    use super::super::Named;
    use super::*;
    use crate::{Columns, Content, Reward};
    use serde_json::json;
    use testing::installed;

    fn code(options: Value) -> Named<Code> {
        Named::build("code".into(), serde_json::from_value(options).unwrap()).unwrap()
    }

    /// Scores each program on its own tests.
    fn scored(reward: &mut Named<Code>, rows: &[(&str, Value)]) -> Scores {
        let texts: Vec<Content> = rows.iter().map(|(program, _)| (*program).into()).collect();
        reward.score(&RewardBatch {
            prompts: &vec!["q".into(); rows.len()],
            completions: &texts,
            completion_ids: &vec![vec![]; rows.len()],
            columns: &Columns::from([("tests".to_owned(), rows.iter().map(|(_, tests)| tests.clone()).collect())]),
            rows: &[],
            step: model::Step(0),
        })
    }

    fn doubled() -> Value {
        json!([{"input": "4\n", "output": "8\n"}, {"input": "-3\n", "output": "-6"}])
    }

    fn shell() -> Option<Named<Code>> {
        installed(&["bwrap"]).then(|| code(json!({"language": "shell"})))
    }

    const UNTESTED: &str = "column `tests` must have tests such as [{\"input\": \"1\", \"output\": \"2\"}], \
                            [\"assert f(1) == 2\"], or a `check(candidate)` and a column `entry_point`";

    /// A row without a score does not shift the prompts, columns and failures of other rows.
    #[test]
    fn verdicts_are_converted_to_scores_of_their_rows() {
        let Some(mut reward) = shell() else { return };
        let (right, half) = ("read n; echo $((2 * n))", "read n; echo $((n + 4))");
        let rows =
            [(half, doubled()), ("exit 3", Value::Null), (right, doubled()), (right, json!(["assert f(1) == 2"]))];
        let scores = scored(&mut reward, &rows);
        assert_eq!(scores.values, [Some(0.0), None, Some(1.0), None]);
        let failures = vec![json!("test 2: wrong output"), Value::Null, json!(""), Value::Null];
        assert_eq!((scores.extra, scores.timed_out), (vec![("failure".to_owned(), failures)], 0));
        let refused = "cannot score the program: column `tests` has assertions, which run only for \"python\" and \
                       \"ocaml\"";
        assert_eq!(scores.problems, [Problem::new("code", 1, UNTESTED), Problem::new("code", 1, refused)]);
        let mut partial = code(json!({"language": "shell", "partial": true, "timeout_s": 60.0}));
        assert_eq!(scored(&mut partial, &[(half, doubled())]).values, [Some(0.5)]);
        let scores = scored(&mut code(json!({"language": "shell", "timeout_s": 1.0})), &[("sleep 100", doubled())]);
        assert_eq!((scores.values, scores.timed_out), (vec![Some(0.0)], 1));
    }

    #[test]
    fn rows_without_valid_tests_get_no_score() {
        if !installed(&["bwrap", "python3"]) {
            return;
        }
        let mut reward = code(json!({"language": "python"}));
        for tests in
            [json!(null), json!([]), json!("no json"), json!([{"input": 1}]), json!({"inputs": ["1"], "outputs": []})]
        {
            let scores = scored(&mut reward, &[("print(1)", tests.clone())]);
            assert_eq!(scores.values, [None], "{tests}");
            assert_eq!(scores.problems, [Problem::new("code", 1, UNTESTED)], "{tests}");
        }
    }

    /// In HumanEval, a completion continues the code of its prompt.
    #[test]
    fn a_program_runs_with_the_prompt_and_columns_of_its_row() {
        if !installed(&["bwrap", "python3"]) {
            return;
        }
        let check = "def check(candidate):\n    assert candidate(2) == 4";
        let columns = [("test", [Value::Null, check.into()]), ("entry_point", ["g".into(), "f".into()])];
        let scores = code(json!({"language": "python", "column": "test", "timeout_s": 60.0})).score(&RewardBatch {
            prompts: &["def g(x):\n".into(), "def f(x):\n".into()],
            completions: &["    return 1\n".into(), "    return 2 * x\n".into()],
            completion_ids: &[vec![], vec![]],
            columns: &Columns::from(columns.map(|(name, values)| (name.to_owned(), values.to_vec()))),
            rows: &[],
            step: model::Step(0),
        });
        assert_eq!(scores.values, [None, Some(1.0)], "{:?} {:?}", scores.extra, scores.problems);
    }

    /// A program killed by a stop gets no score, not the score 0.
    #[test]
    fn a_stop_ends_programs_without_a_score() {
        let Some(mut reward) = shell() else { return };
        reward.stop_with(Arc::new(AtomicBool::new(true)));
        let rows = [("sleep 100", doubled()), ("sleep 100", Value::Null), ("sleep 100", doubled())];
        let scores = scored(&mut reward, &rows);
        assert_eq!((&scores.values[..], scores.timed_out), (&[None; 3][..], 0));
        assert_eq!(scores.extra, [("failure".to_owned(), vec![Value::Null; 3])]);
        let stopped = "cannot score the program: its score is not needed any more";
        assert_eq!(scores.problems, [Problem::new("code", 1, UNTESTED), Problem::new("code", 2, stopped)]);
        let completions = vec![Content::from("sleep 100"); 3];
        let missing = reward.score(&RewardBatch {
            prompts: &completions,
            completions: &completions,
            completion_ids: &[const { vec![] }; 3],
            columns: &Columns::new(),
            rows: &[],
            step: model::Step(0),
        });
        assert_eq!((missing.values, missing.problems[0].rows), (vec![None; 3], 3));
    }

    #[test]
    fn the_peak_memory_of_programs_is_a_metric() {
        if !installed(&["bwrap", "python3"]) {
            return;
        }
        let mut reward = code(json!({"language": "python", "timeout_s": 60.0}));
        let source = "import time\nx = b'x' * (100 << 20)\ntime.sleep(1)\nprint(8)";
        let scores = scored(&mut reward, &[(source, json!([{"input": "", "output": "8"}]))]);
        assert_eq!(scores.values, [Some(1.0)], "{:?}", scores.extra);
        let [(name, peak)] = &scores.metrics[..] else { panic!("{:?}", scores.metrics) };
        assert!(name == "peak_memory_mb" && (100.0..200.0).contains(peak), "{name} {peak}");
        assert!(scored(&mut reward, &[(source, Value::Null)]).metrics.is_empty(), "nothing ran");
    }

    #[test]
    fn invalid_code_options_are_errors() {
        let build = |options: Value| {
            let options = options.as_object().unwrap().clone();
            let built = super::super::parse("code", options).and_then(Code::build);
            built.map(|_| ()).map_err(|error| error.to_string())
        };
        for (options, expected) in [
            (
                json!({"language": "shell", "colum": "t"}),
                "unknown field `colum`, expected one of `language`, `column`, `partial`, `staged`, `strict`, \
                 `timeout_s`, `compile_timeout_s`, `memory_mb`, `processes`, `output_bytes`, `unsafe_no_sandbox`, \
                 `isolation`, `bwrap`, `workers`",
            ),
            (json!({"partial": true}), "missing field `language`"),
            (json!({"language": "shell", "column": 3}), "invalid type: integer `3`, expected a string"),
            (json!({"language": "shell", "workers": 0}), "`workers`, `memory_mb` and `processes` must be at least 1"),
        ] {
            assert_eq!(build(options), Err(format!("reward `code`: {expected}")));
        }
        let of = |options: Value| serde_json::from_value::<Options>(options).unwrap().isolation();
        assert_eq!(of(json!({"language": "shell", "isolation": "bubblewrap", "bwrap": "/no/such/bwrap"})), None);
        let Some(reward) = shell() else { return };
        assert!(of(json!({"language": "shell"})).is_some_and(|isolation| isolation.contains("seccomp, memory ")));
        assert_eq!((reward.name(), reward.scores_by_group(), reward.reads_ids()), ("code", true, false));
        assert_eq!(reward.required_columns(), ["tests"]);
        assert_eq!(code(json!({"language": "shell", "column": "t"})).required_columns(), ["t"]);
    }
}
