//! The trainer's input: samples (a prompt and a completion, with values per token), or preference pairs (two responses
//! to a prompt).

use kernels::mean::mean;
use model::columns::{RETURNS, VALUES};
use model::{Columns, FinishReason, GroupId, Prompt, PromptCompletion, Updates};
use std::sync::Arc;

/// The advantage of a completion: how much better it was than expected.
#[derive(Clone, Debug, PartialEq)]
pub enum Advantage {
    /// The same number for every token of the completion.
    Sequence(f32),
    /// One number per completion token.
    Tokens(Vec<f32>),
}

impl Advantage {
    /// Zero advantages of the same form, for a completion that is neither better nor worse than expected.
    pub fn zero(&self) -> Advantage {
        match self {
            Advantage::Sequence(_) => Advantage::Sequence(0.0),
            Advantage::Tokens(each) => Advantage::Tokens(vec![0.0; each.len()]),
        }
    }

    /// Whether the advantage of every token is 0.
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

    /// A single number for the completion: its advantage, or the mean if each token has its own; `None` without tokens.
    pub fn mean(&self) -> Option<f64> {
        match self {
            Advantage::Sequence(a) => Some(f64::from(*a)),
            Advantage::Tokens(a) => mean(a.iter().map(|&a| f64::from(a))),
        }
    }
}

/// One sequence to train on: a prompt and a completion. Lists have one element per completion token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The group in which it was sampled. The samples of a group are consecutive. 0 for supervised samples.
    pub group: GroupId,
    /// The prompt. Consecutive samples with the same prompt (the same `Arc`) share its computation.
    pub prompt: Arc<Prompt>,
    /// Token ids of the completion, sampled by the model or inserted (tool output).
    pub completion: Vec<u32>,
    /// The completion tokens that the loss may use: those that the model sampled.
    pub loss_mask: Vec<bool>,
    /// The version of the weights with which each token (and its KV-cache entry) was sampled. Empty for supervised
    /// samples.
    pub versions: Vec<Updates>,
    /// The reason why the completion ended.
    pub finish_reason: FinishReason,
    /// The advantage; supervised training does not use it.
    pub advantage: Advantage,
    /// Further values per token: from the sampler, a reference model, or a value model.
    pub columns: Columns,
}

impl Sample {
    /// A sample for supervised training: the loss uses every completion token.
    pub fn supervised(prompt: Arc<Prompt>, completion: Vec<u32>) -> Sample {
        let loss_mask = vec![true; completion.len()];
        Sample {
            group: GroupId(0),
            prompt,
            completion,
            loss_mask,
            versions: Vec::new(),
            finish_reason: FinishReason::Stop,
            advantage: Advantage::Sequence(0.0),
            columns: Columns::default(),
        }
    }

    /// Prompt and completion as token ids.
    pub fn sequence(&self) -> PromptCompletion<'_> {
        PromptCompletion { prompt: &self.prompt.ids, completion: &self.completion }
    }

    /// Whether the completion reached the length limit before the model ended it.
    pub fn truncated(&self) -> bool {
        self.finish_reason == FinishReason::Length
    }

    /// Whether every token was sampled with weights of this version.
    pub(crate) fn is_of_version(&self, version: Updates) -> bool {
        !self.versions.is_empty() && self.versions.iter().all(|&v| v == version)
    }

    /// Log-probability of each token under the old policy; empty for supervised samples.
    pub fn old_logps(&self) -> &[f32] {
        self.columns.old_logps().unwrap_or_default()
    }

    /// PPO's value estimates at rollout and returns, for the state in which each token was chosen.
    pub(crate) fn values_and_returns(&self) -> Option<(&[f32], &[f32])> {
        self.columns.f32(VALUES).zip(self.columns.f32(RETURNS))
    }
}

/// One response of a preference pair.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Response {
    /// Token ids of the response; at least one.
    pub ids: Vec<u32>,
    /// Further values per token: log-probabilities under the reference model (DPO).
    pub columns: Columns,
}

impl From<Vec<u32>> for Response {
    fn from(ids: Vec<u32>) -> Response {
        Response { ids, columns: Columns::default() }
    }
}

/// A preference pair: two responses to a prompt, one of which is preferred.
#[derive(Clone, Debug, PartialEq)]
pub struct PreferencePair {
    /// The prompt of both responses.
    pub prompt: Arc<Prompt>,
    /// The preferred response.
    pub chosen: Response,
    /// The response that was not preferred.
    pub rejected: Response,
    /// How much better the chosen response is, if the data contains this (reward models); otherwise 0.
    pub margin: f32,
}

/// The input of a loss.
#[derive(Clone, Copy, Debug)]
pub enum Samples<'a> {
    /// Separate samples.
    Sequences(&'a [Sample]),
    /// Preference pairs.
    Pairs(&'a [PreferencePair]),
}

impl Samples<'_> {
    /// Number of samples or pairs.
    pub fn len(&self) -> usize {
        match self {
            Samples::Sequences(samples) => samples.len(),
            Samples::Pairs(pairs) => pairs.len(),
        }
    }

    /// Whether there are neither samples nor pairs.
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
    fn the_mean_of_token_advantages_represents_a_completion() {
        assert_eq!(Advantage::Sequence(1.5).mean(), Some(1.5));
        assert_eq!(Advantage::Tokens(vec![1.0, -2.0, 4.0, 3.0]).mean(), Some(1.5));
        assert_eq!(Advantage::Tokens(vec![]).mean(), None);
    }

    #[test]
    fn advantages_are_per_completion_or_per_token() {
        let (one, each) = (Advantage::Sequence(1.5), Advantage::Tokens(vec![0.0, -2.0]));
        assert_eq!((one.zero(), each.zero()), (Advantage::Sequence(0.0), Advantage::Tokens(vec![0.0; 2])));
        assert!(!one.is_zero() && !each.is_zero() && one.zero().is_zero() && each.zero().is_zero());
        assert!(Advantage::Tokens(vec![]).is_zero() && !Advantage::Sequence(f32::NAN).is_zero());
        assert_eq!((one.at(7), each.at(0), each.at(1)), (1.5, 0.0, -2.0));
    }

    #[test]
    fn a_sample_returns_its_versions_and_columns() {
        let mut sample = Sample::supervised(Prompt::new([1, 2]), vec![3, 4, 5]);
        let sequence = sample.sequence();
        assert_eq!((sequence.prompt, sequence.completion), (&[1, 2][..], &[3, 4, 5][..]));
        assert_eq!((sample.group, sample.truncated(), &sample.loss_mask[..]), (GroupId(0), false, &[true; 3][..]));
        assert!(
            !sample.is_of_version(Updates(0)) && sample.old_logps().is_empty() && sample.values_and_returns().is_none()
        );
        for (versions, expected) in [([7, 7, 7], true), ([7, 7, 6], false), ([6, 7, 7], false)] {
            sample.versions = versions.map(Updates).to_vec();
            assert_eq!(sample.is_of_version(Updates(7)), expected);
        }
        sample.columns.set(VALUES, vec![1.0; 3]);
        assert!(sample.values_and_returns().is_none());
        sample.columns.set(RETURNS, vec![2.0; 3]);
        assert_eq!(sample.values_and_returns(), Some((&[1.0; 3][..], &[2.0; 3][..])));
        let samples = [sample.clone(), sample];
        let (some, none): (Samples<'_>, Samples<'_>) = (samples[..].into(), samples[..0].into());
        assert_eq!((some.len(), some.is_empty(), none.is_empty()), (2, false, true));
        let response: Response = vec![3].into();
        let pairs = vec![PreferencePair {
            prompt: Prompt::new([1]),
            chosen: response.clone(),
            rejected: response,
            margin: 0.0,
        }];
        assert_eq!((Samples::from(&pairs).len(), Samples::from(&pairs[..0]).is_empty()), (1, true));
    }
}
