//! The common code of graders, which compare a completion with `N` columns of its dataset row. Usually `N` is 1: the
//! answer.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Builtin;
use super::answer::thought_before;
use crate::batch::Verdict;
use crate::{Problem, ProblemKind, Result, RewardBatch, Scores};

/// A reward that compares a completion with cells of its dataset row.
pub(crate) trait Grader<const N: usize>: Sized + Send + 'static {
    /// The name of this kind of reward in a configuration.
    const KIND: &'static str;
    /// The option that the text after the colon of the short form sets; `None` if the short form has no colon.
    const MAIN_OPTION: Option<&'static str> = Some("column");
    /// Whether a completion with thoughts is graded by the text after the thoughts.
    const SKIPS_THOUGHTS: bool = true;
    /// The options of the reward's table, in addition to `kind` and `name`.
    type Options: DeserializeOwned;

    fn build(options: Self::Options) -> Result<Self>;

    /// The names of the dataset columns that are compared.
    fn columns(&self) -> [&str; N];

    /// Grades a completion, given the cells of its row. `None` if the cells are invalid.
    fn grade(&self, cells: [&Value; N], completion: &str) -> Option<Verdict>;

    /// Explains why cells are invalid, and shows them if that helps.
    fn unread(&self, cells: [&Value; N]) -> (String, Option<String>);

    /// The scores of a batch, for a reward with the name `name`.
    fn score(&self, name: &str, batch: &RewardBatch<'_>) -> Scores {
        score_rows(self, name, batch, |cells, completion| {
            // The text after the thoughts of a completion is searched first. If it has no answer, the whole completion
            // is searched.
            let after = thought_before(completion).filter(|_| Self::SKIPS_THOUGHTS);
            let after = after.map(|answer| self.grade(cells, answer));
            match after {
                Some(verdict) if verdict.is_none_or(|verdict| verdict.answered) => verdict,
                _ => self.grade(cells, completion),
            }
        })
    }
}

/// The scores from `grade`, with one problem for all invalid rows, whose example is the first of these rows.
pub(super) fn score_rows<G: Grader<N>, const N: usize>(
    grader: &G,
    name: &str,
    batch: &RewardBatch<'_>,
    mut grade: impl FnMut([&Value; N], &str) -> Option<Verdict>,
) -> Scores {
    let mut columns: [&[Value]; N] = [&[]; N];
    for (values, column) in columns.iter_mut().zip(grader.columns()) {
        match batch.column(name, column) {
            Ok(found) => *values = found,
            Err(problem) => return Scores::failed(batch.len(), problem),
        }
    }
    let cells = |row: usize| columns.map(|values| &values[row]);
    let completions = batch.completions.iter().enumerate();
    let verdicts = completions.map(|(row, completion)| grade(cells(row), &completion.text())).collect();
    let mut scores = Scores::from_verdicts(verdicts);
    if let Some(first) = scores.values.iter().position(Option::is_none) {
        let rows = scores.values.iter().filter(|value| value.is_none()).count();
        let (message, example) = grader.unread(cells(first));
        let problem = Problem::new(name, rows, message).with_kind(ProblemKind::BadData);
        scores.problems.push(Problem { example, ..problem });
    }
    scores
}

/// A grader as a built-in reward.
#[derive(Debug)]
pub(crate) struct Graded<G, const N: usize>(G);

impl<G: Grader<N>, const N: usize> Builtin for Graded<G, N> {
    const KIND: &'static str = G::KIND;
    const MAIN_OPTION: Option<&'static str> = G::MAIN_OPTION;
    type Options = G::Options;

    fn build(options: G::Options) -> Result<Self> {
        G::build(options).map(Graded)
    }

    fn required_columns(&self) -> Vec<String> {
        self.0.columns().map(str::to_owned).to_vec()
    }

    fn score(&mut self, name: &str, batch: &RewardBatch<'_>) -> Scores {
        self.0.score(name, batch)
    }
}

/// The scores of completions, for tests, given the dataset columns.
#[cfg(test)]
pub(super) fn scores<G: Grader<N>, const N: usize>(
    grader: &G,
    completions: &[&str],
    columns: [(&str, Vec<Value>); N],
) -> Scores {
    let texts: Vec<crate::Content> = completions.iter().map(|&text| text.into()).collect();
    let batch = RewardBatch {
        prompts: &texts,
        completions: &texts,
        completion_ids: &vec![vec![]; texts.len()],
        columns: &crate::Columns::from(columns.map(|(name, values)| (name.to_owned(), values))),
        rows: &[],
        step: model::Step(0),
    };
    grader.score(G::KIND, &batch)
}
