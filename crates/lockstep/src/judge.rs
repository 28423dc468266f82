//! Completions to scores: asks every reward about a batch.

use crate::data::prompts::Prompt;
use model::tokenizer::Tokenizer;
use rewards::{Columns, Content, Problem, Reward, RewardBatch, Scores};
use rollout::Completion;
use serde_json::Value;
use std::sync::Arc;
use train::RewardMatrix;

/// A judged batch.
#[derive(Clone, Debug)]
pub struct Judged {
    /// One row per completion, one column per reward.
    pub matrix: RewardMatrix,
    /// The prompt of each completion.
    pub prompts: Vec<Content>,
    /// The completions as rewards saw them.
    pub completions: Vec<Content>,
    /// What kept rewards from judging.
    pub problems: Vec<Problem>,
    /// Numbers that rewards want logged.
    pub metrics: Vec<(String, f64)>,
    /// Columns that rewards add to the completions table.
    pub extra: Vec<(String, Vec<Value>)>,
}

impl Default for Judged {
    /// Of nothing.
    fn default() -> Self {
        let matrix = RewardMatrix { rewards: Vec::new(), names: Vec::new(), weights: Vec::new() };
        Judged {
            matrix,
            prompts: Vec::new(),
            completions: Vec::new(),
            problems: Vec::new(),
            metrics: Vec::new(),
            extra: Vec::new(),
        }
    }
}

impl Judged {
    /// That completions have no score at all though no reward said why: every reward gave null. TRL warns of it too.
    pub fn unscored(&self) -> Option<String> {
        let rows = self.matrix.rewards.iter().filter(|row| row.iter().all(Option::is_none)).count();
        (rows > 0 && self.problems.is_empty()).then(|| {
            format!(
                "no reward gave a score for {rows} of {} completions: they teach nothing",
                self.matrix.rewards.len()
            )
        })
    }
}

/// Scores completions that lie group by group, as `questions` does.
pub fn judge(
    rewards: &mut [Box<dyn Reward>],
    weights: &[f64],
    tokenizer: &Tokenizer,
    questions: &[Arc<Prompt>],
    completions: &[Completion],
    step: u64,
) -> anyhow::Result<Judged> {
    let group = completions.len() / questions.len().max(1);
    let of = |i: usize| &questions[i / group];
    let ids: Vec<Vec<u32>> = completions.iter().map(|c| c.ids.clone()).collect();
    let mut texts = Vec::with_capacity(ids.len());
    for (i, ids) in ids.iter().enumerate() {
        let text = tokenizer.decode(ids, true)?;
        texts.push(match of(i).content {
            Content::Text(_) => Content::Text(text),
            Content::Messages(_) => Content::assistant(text),
        });
    }
    let prompts: Vec<Content> = (0..ids.len()).map(|i| of(i).content.clone()).collect();
    let mut columns = Columns::new();
    for name in questions.iter().flat_map(|q| q.columns.keys()) {
        if !columns.contains_key(name) {
            let value = |i| of(i).columns.get(name).cloned().unwrap_or(Value::Null);
            columns.insert(name.clone(), (0..ids.len()).map(value).collect());
        }
    }
    let batch = RewardBatch { prompts: &prompts, completions: &texts, completion_ids: &ids, columns: &columns, step };
    let mut rows = vec![Vec::with_capacity(rewards.len()); ids.len()];
    let (mut problems, mut metrics, mut extra) = (Vec::new(), Vec::new(), Vec::new());
    for reward in rewards.iter_mut() {
        let scores = reward.score(&batch);
        let scores = finite(reward.name(), scores);
        rows.iter_mut().zip(scores.values).for_each(|(row, value)| row.push(value));
        problems.extend(scores.problems);
        metrics.extend(scores.metrics);
        extra.extend(scores.extra);
    }
    let names = rewards.iter().map(|r| r.name().to_owned()).collect();
    let matrix = RewardMatrix { rewards: rows, names, weights: weights.to_vec() };
    Ok(Judged { matrix, prompts, completions: texts, problems, metrics, extra })
}

/// Scores that are not finite numbers are none, and it is said: in a mean they would spoil every other score.
fn finite(name: &str, mut scores: Scores) -> Scores {
    let mut bad = Vec::new();
    for value in &mut scores.values {
        if let Some(number) = value.filter(|x| !x.is_finite()) {
            bad.push(number);
            *value = None;
        }
    }
    if let Some(first) = bad.first() {
        let message = format!("it gave {first}, which is not a finite number");
        scores.problems.push(Problem { reward: name.to_owned(), rows: bad.len(), message });
    }
    scores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finite_is_no_score_and_is_said() {
        let given = Scores::new(vec![Some(1.0), Some(f64::NAN), None, Some(f64::INFINITY), Some(-2.5)]);
        let Scores { values, problems, .. } = finite("odd", given);
        assert_eq!(values, [Some(1.0), None, None, None, Some(-2.5)]);
        assert_eq!(problems.len(), 1);
        let said = problems[0].to_string();
        assert!(said.contains("`odd`") && said.contains("2 completions") && said.contains("NaN"), "{said}");
        let good = Scores::new(vec![Some(0.0), None]);
        assert_eq!(finite("good", good.clone()), good);
    }
}
