//! A reward that is a Rust function in the user's code: `reward_funcs = ["function:NAME"]`.

use crate::{Content, Problem, Reward, RewardBatch, Scores};
use serde_json::Value;
use std::borrow::Cow;

/// The input of a reward function: a completion with its prompt and dataset row.
pub struct RewardInput<'a> {
    batch: &'a RewardBatch<'a>,
    row: usize,
}

impl RewardInput<'_> {
    /// The prompt as in the dataset: text or chat messages.
    pub fn prompt(&self) -> &Content {
        &self.batch.prompts[self.row]
    }

    /// The completion; in a conversation, the assistant's message.
    pub fn completion(&self) -> &Content {
        &self.batch.completions[self.row]
    }

    /// The prompt as text.
    pub fn prompt_text(&self) -> Cow<'_, str> {
        self.prompt().text()
    }

    /// The completion as text.
    pub fn completion_text(&self) -> Cow<'_, str> {
        self.completion().text()
    }

    /// The completion's token ids.
    pub fn completion_ids(&self) -> &[u32] {
        &self.batch.completion_ids[self.row]
    }

    /// The index of the completion's row in the dataset, from 0.
    pub fn row(&self) -> usize {
        self.batch.rows[self.row]
    }

    /// The value of the row in the dataset column `name`.
    pub fn column(&self, name: &str) -> Option<&Value> {
        self.batch.columns.get(name)?.get(self.row)
    }
}

type ScoreFunction = Box<dyn FnMut(&RewardInput<'_>) -> Option<f64> + Send>;

/// A reward that calls a closure once for each completion.
pub struct FunctionReward {
    name: String,
    score: ScoreFunction,
}

impl FunctionReward {
    /// Creates a reward from a closure that returns the score of a completion, or `None` for no score.
    pub fn new(
        name: impl Into<String>,
        score: impl FnMut(&RewardInput<'_>) -> Option<f64> + Send + 'static,
    ) -> FunctionReward {
        FunctionReward { name: name.into(), score: Box::new(score) }
    }
}

impl Reward for FunctionReward {
    fn name(&self) -> &str {
        &self.name
    }

    fn scores_by_group(&self) -> bool {
        true
    }

    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        let score = |row| (self.score)(&RewardInput { batch, row });
        let mut scores = Scores::new((0..batch.len()).map(score).collect());
        let unscored = scores.values.iter().filter(|value| value.is_none()).count();
        if unscored > 0 {
            scores.problems.push(Problem::new(&self.name, unscored, "the function gave no score"));
        }
        scores
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Columns;

    #[test]
    fn completions_that_a_function_does_not_score_are_reported() {
        let mut reward = FunctionReward::new("even", |input: &RewardInput<'_>| {
            let n: f64 = input.completion_text().parse().ok()?;
            Some(f64::from(u8::from(n % 2.0 == 0.0)))
        });
        let mut score = |completions: [&str; 3]| {
            let completions = completions.map(Content::from);
            let (prompts, ids, columns) = (completions.clone(), vec![vec![]; 3], Columns::new());
            reward.score(&RewardBatch {
                prompts: &prompts,
                completions: &completions,
                completion_ids: &ids,
                columns: &columns,
                rows: &[0, 1, 2],
                step: model::Step(0),
            })
        };
        let all = score(["1", "2", "4"]);
        assert_eq!((all.values, all.problems.len()), (vec![Some(0.0), Some(1.0), Some(1.0)], 0));
        let one = score(["one", "2", "4"]);
        assert_eq!(one.problems.iter().map(|problem| problem.rows).collect::<Vec<_>>(), [1]);
        let some = score(["one", "2", "two"]);
        assert_eq!(some.values, [None, Some(1.0), None]);
        let [problem] = &some.problems[..] else { panic!("{:?}", some.problems) };
        assert_eq!((problem.rows, &problem.message[..]), (2, "the function gave no score"));
    }

    #[test]
    fn a_function_receives_the_data_of_its_own_row() {
        let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let log = seen.clone();
        let mut reward = FunctionReward::new("own", move |input: &RewardInput<'_>| {
            let (a, none) = (input.column("a").cloned(), input.column("b").is_none());
            let texts = format!("{} {}", input.prompt_text(), input.completion_text());
            let same =
                input.prompt().text() == input.prompt_text() && input.completion().text() == input.completion_text();
            log.lock().unwrap().push((texts, input.completion_ids().to_vec(), input.row(), a, none && same));
            Some(0.5)
        });
        assert!(reward.name() == "own" && reward.scores_by_group());
        let scores = reward.score(&RewardBatch {
            prompts: &["p".into(), "q".into()],
            completions: &["c".into(), "d".into()],
            completion_ids: &[vec![1], vec![2, 3]],
            columns: &Columns::from([("a".to_owned(), vec![4.into(), 5.into()])]),
            rows: &[6, 7],
            step: model::Step(0),
        });
        assert_eq!(scores, Scores::new(vec![Some(0.5); 2]));
        let expected = [
            ("p c".to_owned(), vec![1], 6, Some(Value::from(4)), true),
            ("q d".to_owned(), vec![2, 3], 7, Some(Value::from(5)), true),
        ];
        assert_eq!(*seen.lock().unwrap(), expected);
    }
}
