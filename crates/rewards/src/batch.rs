//! The input and the output of any reward: a batch of completions, and their scores with the problems that occurred.

use std::collections::BTreeMap;

use model::Step;
use model::chat::Content;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::StepScore;

/// The other columns of the dataset, by name, with one value per completion. A prompt's value is repeated for the
/// completions of its group.
pub type Columns = BTreeMap<String, Vec<Value>>;

/// The name of the metric for the share of completions in which a reward found no answer at all. Every grader reports
/// this metric, and other rewards may.
pub const NO_ANSWER: &str = "no_answer";

/// A batch of completions that a reward scores in one call. All lists have [`RewardBatch::len`] entries in the same
/// order.
#[derive(Clone, Copy, Debug)]
pub struct RewardBatch<'a> {
    /// The prompt of each completion; a group's prompt is repeated for each of its completions.
    pub prompts: &'a [Content],
    /// The completions to score.
    pub completions: &'a [Content],
    /// The token ids of each completion.
    pub completion_ids: &'a [Vec<u32>],
    /// The other columns of the dataset, with one value for each completion.
    pub columns: &'a Columns,
    /// For each completion, the index (from 0) of the dataset row that its prompt came from.
    pub rows: &'a [usize],
    /// The training step, which reward programs receive as `trainer_state.global_step`.
    pub step: Step,
}

impl RewardBatch<'_> {
    /// Number of completions in the batch.
    pub fn len(&self) -> usize {
        self.completions.len()
    }

    /// Whether the batch has no completions.
    pub fn is_empty(&self) -> bool {
        self.completions.is_empty()
    }

    /// The values of a dataset column. If the column is missing, the result is a problem that names the existing
    /// columns and affects every completion.
    pub(crate) fn column(&self, reward: &str, column: &str) -> Result<&[Value], Problem> {
        match self.columns.get(column) {
            Some(values) if values.len() == self.len() => Ok(values),
            Some(values) => {
                let message = format!(
                    "column `{column}` must have one value per completion: got {} values for {}",
                    values.len(),
                    completions(self.len())
                );
                Err(Problem::new(reward, self.len(), message).with_kind(ProblemKind::BadData))
            }
            None => {
                let present = self.columns.keys().map(|c| format!("`{c}`")).collect::<Vec<_>>().join(", ");
                let message = format!("the dataset has no column `{column}`; it has {present}");
                Err(Problem::new(reward, self.len(), message).with_kind(ProblemKind::BadData))
            }
        }
    }
}

/// A grader's result for one completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    pub score: f64,
    /// Whether an answer was found in the completion, right or wrong.
    pub answered: bool,
}

impl Verdict {
    /// The verdict on an answer: 1 if it is right, 0 if it is wrong or missing.
    pub fn of<T>(answer: Option<T>, right: impl FnOnce(T) -> bool) -> Verdict {
        let answered = answer.is_some();
        Verdict { score: f64::from(u8::from(answer.is_some_and(right))), answered }
    }
}

/// The kind of failure of a [`Problem`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemKind {
    /// The reward did not return within its time limit.
    TimedOut,
    /// The reward's program or service ended, or refused the request.
    Crashed,
    /// The answer of the reward is not a valid list of scores.
    BadAnswer,
    /// The reward failed too often and is not called again.
    GivenUp,
    /// The dataset row lacks the value that the completion is compared with.
    BadData,
    /// A score is NaN or infinite.
    NotFinite,
    /// Any other failure.
    #[default]
    Failed,
}

/// A failure that left some completions without a score. It is shown to the user and counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Name of the reward that failed.
    pub reward: String,
    /// The kind of failure.
    pub kind: ProblemKind,
    /// The number of completions without a score because of this problem.
    pub rows: usize,
    /// The message for the user. It may have several lines: the last lines of the program's standard error.
    pub message: String,
    /// The first affected row or answer as an example, if that adds information to the message.
    pub example: Option<String>,
    /// Whether the reward cannot score later batches either.
    pub fatal: bool,
    /// The indices in the batch of the completions without a score because of this problem; empty if unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub completions: Vec<usize>,
}

impl Problem {
    /// A problem that left `rows` completions without a score, explained by `message`.
    pub fn new(reward: impl Into<String>, rows: usize, message: impl Into<String>) -> Self {
        let (reward, message) = (reward.into(), message.into());
        Problem {
            reward,
            kind: ProblemKind::default(),
            rows,
            message,
            example: None,
            fatal: false,
            completions: Vec::new(),
        }
    }

    /// The same problem with the indices of the affected completions in the batch.
    pub fn at(self, completions: Vec<usize>) -> Self {
        Problem { completions, ..self }
    }

    /// The same problem with a different [`ProblemKind`].
    pub fn with_kind(self, kind: ProblemKind) -> Self {
        Problem { kind, ..self }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "reward `{}` gave no score for {}: {}", self.reward, completions(self.rows), self.message)?;
        self.example.as_ref().map_or(Ok(()), |example| write!(f, ", for example {example}"))
    }
}

/// The text "1 completion" or "N completions".
pub(crate) fn completions(n: usize) -> String {
    format!("{n} completion{}", if n == 1 { "" } else { "s" })
}

/// The result of a reward for a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// The score of each completion, which must be finite; `None` for no score. A completion without a score is
    /// excluded from the mean and from the baseline.
    pub values: Vec<Option<f64>>,
    /// For each completion, the scores of its steps, which sum to the completion's value in `values`; `None` for no
    /// step scores. Empty if no completion has step scores.
    pub steps: Vec<Option<Vec<StepScore>>>,
    /// The failures that left completions without a score.
    pub problems: Vec<Problem>,
    /// Extra columns for the completions table (TRL's `log_extra`): column name → one value for each completion.
    pub extra: Vec<(String, Vec<Value>)>,
    /// Extra scalar metrics (TRL's `log_metric`), by name.
    pub metrics: Vec<(String, f64)>,
    /// The number of scored completions whose program timed out.
    pub timed_out: usize,
}

impl Scores {
    /// Scores without steps, problems, extra columns or metrics.
    pub fn new(values: Vec<Option<f64>>) -> Self {
        Scores { values, ..Scores::default() }
    }

    /// The scores of a grader's verdicts, with the metric `no_answer`: the share of graded completions without an
    /// answer.
    pub(crate) fn from_verdicts(verdicts: Vec<Option<Verdict>>) -> Self {
        let graded = verdicts.iter().flatten().count();
        let unanswered = verdicts.iter().flatten().filter(|verdict| !verdict.answered).count();
        let mut scores = Scores::new(verdicts.iter().map(|verdict| verdict.map(|verdict| verdict.score)).collect());
        if graded > 0 {
            scores.metrics.push((NO_ANSWER.to_owned(), unanswered as f64 / graded as f64));
        }
        scores
    }

    /// Leaves all `rows` completions without a score, because of `problem`.
    pub fn failed(rows: usize, problem: Problem) -> Self {
        Scores { values: vec![None; rows], problems: vec![problem], ..Scores::default() }
    }

    /// Fills in problems that list no completions: each gets all completions without a score that no other problem
    /// lists.
    pub(crate) fn with_places(mut self) -> Self {
        let named = |place: &usize| self.problems.iter().any(|problem| problem.completions.contains(place));
        let without_score = self.values.iter().enumerate().filter(|(_, value)| value.is_none());
        let left: Vec<usize> = without_score.map(|(place, _)| place).filter(|place| !named(place)).collect();
        for problem in self.problems.iter_mut().filter(|problem| problem.completions.is_empty()) {
            problem.completions.clone_from(&left);
        }
        self
    }

    /// Joins the scores of groups in their order, as if one call had scored all groups. Values and extra columns are
    /// concatenated (with null for a column that a group lacks), problems with equal messages are merged, and each
    /// metric is the mean over the groups that report it.
    pub fn from_groups(groups: impl IntoIterator<Item = Scores>) -> Self {
        let mut all = Scores::default();
        // For each metric, the number of groups that report it.
        let mut counts: Vec<f64> = Vec::new();
        for group in groups.into_iter().map(Scores::with_places) {
            let (before, rows) = (all.values.len(), group.values.len());
            all.timed_out += group.timed_out;
            all.values.extend(group.values);
            if !group.steps.is_empty() {
                all.steps.resize(before, None);
                all.steps.extend(group.steps);
            }
            for (name, values) in group.extra {
                let at = place(&mut all.extra, name);
                all.extra[at].1.resize(before, Value::Null);
                all.extra[at].1.extend(values);
            }
            all.extra.iter_mut().for_each(|(_, values)| values.resize(before + rows, Value::Null));
            for mut problem in group.problems {
                problem.completions.iter_mut().for_each(|place| *place += before);
                let same = |p: &&mut Problem| p.reward == problem.reward && p.message == problem.message;
                match all.problems.iter_mut().find(same) {
                    Some(same) => {
                        same.rows += problem.rows;
                        same.fatal |= problem.fatal;
                        same.completions.extend(problem.completions);
                    }
                    None => all.problems.push(problem),
                }
            }
            for (name, value) in group.metrics {
                let at = place(&mut all.metrics, name);
                counts.resize(all.metrics.len(), 0.0);
                all.metrics[at].1 += value;
                counts[at] += 1.0;
            }
        }
        if !all.steps.is_empty() {
            all.steps.resize(all.values.len(), None);
        }
        all.metrics.iter_mut().zip(counts).for_each(|((_, sum), count)| *sum /= count);
        all
    }
}

/// The index of `name` in the list. If the name is new, an entry is appended.
fn place<T: Default>(list: &mut Vec<(String, T)>, name: String) -> usize {
    list.iter().position(|(own, _)| *own == name).unwrap_or_else(|| {
        list.push((name, T::default()));
        list.len() - 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A problem that lists its completions keeps its list. The other problems get the remaining completions without a
    /// score.
    #[test]
    fn unlisted_completions_without_a_score_belong_to_problems_without_a_list() {
        let (named, unlisted) = (Problem::new("r", 1, "no number").at(vec![2]), Problem::new("r", 2, "it crashed"));
        let scores = Scores {
            problems: vec![named.clone(), unlisted.clone()],
            ..Scores::new(vec![None, Some(1.0), None, None])
        };
        assert_eq!(scores.with_places().problems, [named, unlisted.at(vec![0, 3])]);
    }

    #[test]
    fn scores_of_groups_are_joined_like_one_batch() {
        let problem = |rows, message: &str, example: &str| {
            let example = Some(example.to_owned()).filter(|e| !e.is_empty());
            Problem { example, ..Problem::new("r", rows, message) }
        };
        let first = Scores {
            values: vec![Some(1.0), None],
            problems: vec![problem(1, "no number", "in A")],
            extra: vec![("why".into(), vec!["a".into(), "b".into()])],
            metrics: vec![("m".into(), 1.0)],
            ..Scores::default()
        };
        let second = Scores {
            values: vec![None],
            problems: vec![Problem { fatal: true, ..problem(1, "no number", "in B") }, problem(1, "crashed", "")],
            extra: vec![("how".into(), vec!["c".into()])],
            metrics: vec![("n".into(), 5.0), ("m".into(), 2.0)],
            ..Scores::default()
        };
        let all = Scores::from_groups([first.clone(), second, Scores::new(vec![Some(4.0)])]);
        assert_eq!(all.values, [Some(1.0), None, None, Some(4.0)]);
        let both = Problem { fatal: true, ..problem(2, "no number", "in A") }.at(vec![1, 2]);
        assert_eq!(all.problems, [both, problem(1, "crashed", "").at(vec![2])]);
        let column = |values: [Option<&str>; 4]| values.map(|v| v.map_or(Value::Null, Value::from)).to_vec();
        let why = column([Some("a"), Some("b"), None, None]);
        assert_eq!(all.extra, [("why".into(), why), ("how".into(), column([None, None, Some("c"), None]))]);
        assert_eq!(all.metrics, [("m".into(), 1.5), ("n".into(), 5.0)]);
        assert_eq!(Scores::from_groups([first.clone()]), first.clone().with_places());
        assert!(all.steps.is_empty());
        let steps = Some(vec![StepScore { end: crate::StepEnd::Token(0), score: 4.0 }]);
        let stepped = Scores { steps: vec![steps.clone()], ..Scores::new(vec![Some(4.0)]) };
        let with_steps = Scores::from_groups([first.clone(), stepped, Scores::new(vec![None])]);
        assert_eq!(with_steps.steps, [None, None, steps, None]);
        assert!(all.problems[0].to_string().ends_with("for 2 completions: no number, for example in A"));
        assert!(all.problems[1].to_string().ends_with("for 1 completion: crashed"));
    }

    #[test]
    fn a_column_must_have_one_value_per_completion() {
        let columns = Columns::from([
            ("a".to_owned(), vec![1.into(), 2.into()]),
            ("b".to_owned(), vec![1.into()]),
            ("c".to_owned(), vec![Value::Null; 3]),
        ]);
        let (texts, ids): (Vec<Content>, _) = (vec!["x".into(), "y".into()], vec![vec![]; 2]);
        let batch = RewardBatch {
            prompts: &texts,
            completions: &texts,
            completion_ids: &ids,
            columns: &columns,
            rows: &[],
            step: model::Step(0),
        };
        assert_eq!((batch.len(), batch.is_empty(), batch.column("r", "a").unwrap().len()), (2, false, 2));
        assert!(RewardBatch { completions: &[], ..batch }.is_empty());
        for (column, message) in [
            ("b", "column `b` must have one value per completion: got 1 values for 2 completions"),
            ("c", "column `c` must have one value per completion: got 3 values for 2 completions"),
            ("d", "the dataset has no column `d`; it has `a`, `b`, `c`"),
        ] {
            let expected = Problem::new("r", 2, message).with_kind(ProblemKind::BadData);
            assert_eq!(batch.column("r", column), Err(expected));
        }
        let one = RewardBatch { completions: &texts[..1], ..batch };
        assert_eq!(
            one.column("r", "c").unwrap_err().message,
            "column `c` must have one value per completion: got 3 values for 1 completion"
        );
        assert_eq!([0, 1, 2].map(completions), ["0 completions", "1 completion", "2 completions"]);
    }

    #[test]
    fn wrong_answers_and_missing_answers_have_different_verdicts() {
        let verdict = |answer, right: bool| {
            let Verdict { score, answered } = Verdict::of::<u8>(answer, |given| (given == 5) == right);
            (score, answered)
        };
        assert_eq!((verdict(Some(5), true), verdict(Some(5), false)), ((1.0, true), (0.0, true)));
        assert_eq!((verdict(None, true), verdict(None, false)), ((0.0, false), (0.0, false)));
        let of = |answered| Some(Verdict { score: 0.5, answered });
        let scores = Scores::from_verdicts(vec![of(true), None, of(false), of(true), of(true)]);
        assert_eq!(scores.values, [Some(0.5), None, Some(0.5), Some(0.5), Some(0.5)]);
        assert_eq!(scores.metrics, [("no_answer".to_owned(), 0.25)]);
        assert!(Scores::from_verdicts(vec![None, None]).metrics.is_empty());
        let failed = Scores::failed(2, Problem::new("r", 2, "why"));
        assert_eq!((failed.values, failed.problems), (vec![None, None], vec![Problem::new("r", 2, "why")]));
    }

    /// The two groups have different sizes. The indices of the second group are shifted by the size of the first.
    #[test]
    fn counts_of_groups_are_summed_and_indices_are_shifted() {
        let problem = |reward: &str, message: &str| Problem::new(reward, 1, message);
        let steps = |score| Some(vec![StepScore { end: crate::StepEnd::Token(0), score }]);
        let group = |size: usize, timed_out: usize, problems: Vec<Problem>| Scores {
            timed_out,
            problems,
            ..Scores::new((0..size).map(|i| (i > 0).then_some(1.0)).collect())
        };
        let first = Scores { steps: vec![None, steps(1.0), None], ..group(3, 1, vec![problem("r", "a").at(vec![0])]) };
        let second = group(2, 2, vec![problem("s", "a").at(vec![0]), problem("r", "a")]);
        let third = Scores { steps: vec![steps(2.0)], ..group(1, 4, vec![problem("r", "b")]) };
        let all = Scores::from_groups([first, second, third]);
        assert_eq!((all.values.len(), all.timed_out), (6, 7));
        assert_eq!(all.steps, [None, steps(1.0), None, None, None, steps(2.0)]);
        let both = Problem { rows: 2, ..problem("r", "a") };
        // The second group's second problem lists no completion, since the first already lists the only one without a
        // score.
        let expected = [both.at(vec![0]), problem("s", "a").at(vec![3]), problem("r", "b").at(vec![5])];
        assert_eq!(all.problems, expected);
        let fatal = |one, two| {
            let problem = |fatal| Problem { fatal, ..problem("r", "a") };
            Scores::from_groups([group(1, 0, vec![problem(one)]), group(1, 0, vec![problem(two)])]).problems[0].fatal
        };
        assert_eq!([fatal(false, false), fatal(false, true), fatal(true, false)], [false, true, true]);
    }
}
