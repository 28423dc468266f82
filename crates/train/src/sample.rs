//! The trainer's input: sequences with columns of values for each token, or pairs of responses to compare.

use model::columns::{RETURNS, VALUES};
use model::{Columns, Prompt, PromptCompletion};
use std::sync::Arc;

/// How much better than expected a completion was.
#[derive(Clone, Debug, PartialEq)]
pub enum Advantage {
    /// One number for every token of the completion.
    Sequence(f32),
    /// One number per completion token.
    Tokens(Vec<f32>),
}

impl Advantage {
    /// The advantage, of the same form, of a completion that is neither better nor worse.
    pub fn zero(&self) -> Advantage {
        match self {
            Advantage::Sequence(_) => Advantage::Sequence(0.0),
            Advantage::Tokens(each) => Advantage::Tokens(vec![0.0; each.len()]),
        }
    }

    /// Whether it is 0 of every token.
    pub fn is_zero(&self) -> bool {
        match self {
            Advantage::Sequence(a) => *a == 0.0,
            Advantage::Tokens(a) => a.iter().all(|&a| a == 0.0),
        }
    }

    /// The advantage of completion token `t`.
    pub fn at(&self, t: usize) -> f32 {
        match self {
            Advantage::Sequence(a) => *a,
            Advantage::Tokens(a) => a[t],
        }
    }

    /// One number for it: the mean over tokens, where each has its own (0 of none).
    pub fn mean(&self) -> f64 {
        match self {
            Advantage::Sequence(a) => f64::from(*a),
            Advantage::Tokens(a) => a.iter().map(|&a| f64::from(a)).sum::<f64>() / a.len().max(1) as f64,
        }
    }
}

/// One sequence to learn from. Lists have one element per completion token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The group that it was sampled in, by its number in the run; samples of a group lie behind one another. 0 of
    /// supervised samples.
    pub group: u64,
    /// The prompt. Consecutive samples of one prompt, the same by identity, share its computation.
    pub prompt: Arc<Prompt>,
    /// Completion ids, sampled or inserted (tools).
    pub completion: Vec<u32>,
    /// Which completion tokens the loss may use: those that the model sampled.
    pub mask: Vec<bool>,
    /// The weight version that each token (and its KV entry) was sampled with. Empty for supervised samples.
    pub versions: Vec<u64>,
    /// The completion ended because of its length, not because the model ended it.
    pub truncated: bool,
    /// Ignored by supervised training.
    pub advantage: Advantage,
    /// What is known of each token: by its sampler, a reference model, a value model.
    pub columns: Columns,
}

impl Sample {
    /// A sample for supervised training: the loss is on every completion token.
    pub fn supervised(prompt: Arc<Prompt>, completion: Vec<u32>) -> Sample {
        let mask = vec![true; completion.len()];
        Sample {
            group: 0,
            prompt,
            completion,
            mask,
            versions: Vec::new(),
            truncated: false,
            advantage: Advantage::Sequence(0.0),
            columns: Columns::default(),
        }
    }

    /// What is scored of it.
    pub fn sequence(&self) -> PromptCompletion<'_> {
        PromptCompletion { prompt: &self.prompt.ids, completion: &self.completion }
    }

    /// Whether weights of this version sampled every token.
    pub(crate) fn is_of_version(&self, version: u64) -> bool {
        !self.versions.is_empty() && self.versions.iter().all(|&v| v == version)
    }

    /// log π_old of each token; none of supervised samples.
    pub fn old_logps(&self) -> &[f32] {
        self.columns.old_logps().unwrap_or_default()
    }

    /// The values at rollout and the returns of the states in which the tokens were chosen (PPO).
    pub(crate) fn values_and_returns(&self) -> Option<(&[f32], &[f32])> {
        self.columns.f32(VALUES).zip(self.columns.f32(RETURNS))
    }
}

/// A response to a prompt, of a pair.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Response {
    /// Token ids; at least one.
    pub ids: Vec<u32>,
    /// What is known of each token: the reference's log-probabilities (DPO).
    pub columns: Columns,
}

impl From<Vec<u32>> for Response {
    fn from(ids: Vec<u32>) -> Response {
        Response { ids, columns: Columns::default() }
    }
}

/// Two responses to a prompt, of which one is preferred.
#[derive(Clone, Debug, PartialEq)]
pub struct PreferencePair {
    /// The prompt, which both share.
    pub prompt: Arc<Prompt>,
    /// The preferred response.
    pub chosen: Response,
    /// The answer that was not preferred.
    pub rejected: Response,
    /// How much better the chosen one is, where the data says so (reward models).
    pub margin: f32,
}

/// What a loss takes.
#[derive(Clone, Copy, Debug)]
pub enum Samples<'a> {
    /// Sequences, each by itself.
    Sequences(&'a [Sample]),
    /// Pairs.
    Pairs(&'a [PreferencePair]),
}

impl Samples<'_> {
    /// Sequences, or pairs.
    pub fn len(&self) -> usize {
        match self {
            Samples::Sequences(samples) => samples.len(),
            Samples::Pairs(pairs) => pairs.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> From<&'a [Sample]> for Samples<'a> {
    fn from(samples: &'a [Sample]) -> Self {
        Samples::Sequences(samples)
    }
}

impl<'a> From<&'a Vec<Sample>> for Samples<'a> {
    fn from(samples: &'a Vec<Sample>) -> Self {
        Samples::Sequences(samples)
    }
}

impl<'a> From<&'a [PreferencePair]> for Samples<'a> {
    fn from(pairs: &'a [PreferencePair]) -> Self {
        Samples::Pairs(pairs)
    }
}

impl<'a> From<&'a Vec<PreferencePair>> for Samples<'a> {
    fn from(pairs: &'a Vec<PreferencePair>) -> Self {
        Samples::Pairs(pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advantage_per_token_is_shown_as_its_mean() {
        assert_eq!(Advantage::Sequence(1.5).mean(), 1.5);
        assert_eq!(Advantage::Tokens(vec![1.0, -2.0, 4.0, 3.0]).mean(), 1.5);
        assert_eq!(Advantage::Tokens(vec![]).mean(), 0.0);
    }
}
