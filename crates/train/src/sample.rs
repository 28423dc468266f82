//! What the trainer is given: prompt and completion as ids, the sampler's record of each token, and advantages.

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

/// The states in which the tokens of a completion were chosen, one element per completion token.
#[derive(Clone, Debug, PartialEq)]
pub struct StateValues {
    /// Their values at rollout.
    pub old: Vec<f32>,
    /// Their returns, which the values are to come near.
    pub returns: Vec<f32>,
}

/// One completion to learn from. The vectors have one element per completion token.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Prompt ids. Consecutive samples with equal prompts share its computation.
    pub prompt: Arc<[u32]>,
    /// Completion ids, sampled or inserted (tools).
    pub completion: Vec<u32>,
    /// Which completion tokens the loss may use: those that the model sampled.
    pub mask: Vec<bool>,
    /// What the sampler recorded for each token. Empty for supervised samples.
    pub sampler_logps: Vec<f32>,
    /// log π_old of each token, where the sampler was not the old policy (another weight version, another engine); not set:
    /// what the sampler recorded.
    pub old_logps: Option<Vec<f32>>,
    /// log π_ref of each token, if `beta` ≠ 0.
    pub ref_logps: Option<Vec<f32>>,
    /// The weight version that each token (and its KV entry) was sampled with. Empty for supervised samples.
    pub versions: Vec<u64>,
    /// Ignored by supervised training.
    pub advantage: Advantage,
    /// What a value model learns from (PPO).
    pub values: Option<StateValues>,
    /// The completion ended because of its length, not because the model ended it.
    pub truncated: bool,
}

impl Sample {
    /// log π_old of each token.
    pub fn old_logps(&self) -> &[f32] {
        self.old_logps.as_deref().unwrap_or(&self.sampler_logps)
    }

    /// A sample for ranking: chosen and rejected answers alternate. Its score is that of the answer's last token. A row says
    /// what is thought of the text before a token, so the answer is followed by one more, which is not looked at. `margin`
    /// counts in the chosen one only.
    pub fn ranked(prompt: Arc<[u32]>, mut answer: Vec<u32>, margin: f32) -> Sample {
        answer.extend(answer.last().copied());
        let mask = (0..answer.len()).map(|t| t + 1 == answer.len()).collect();
        Sample { mask, advantage: Advantage::Sequence(margin), ..Sample::supervised(prompt, answer) }
    }

    /// A sample for supervised training: the loss is on every completion token.
    pub fn supervised(prompt: Arc<[u32]>, completion: Vec<u32>) -> Sample {
        let mask = vec![true; completion.len()];
        Sample {
            prompt,
            completion,
            mask,
            sampler_logps: Vec::new(),
            old_logps: None,
            ref_logps: None,
            versions: Vec::new(),
            advantage: Advantage::Sequence(0.0),
            values: None,
            truncated: false,
        }
    }
}
