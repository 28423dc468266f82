//! A group as stored in files and messages: a prompt, its completions, and their data.

use crate::rollouts::groups::TokenScores;
use crate::rollouts::lineage::Lineage;
use model::{Columns, GroupId, Updates};
use rewards::Content;
use rollout::FinishReason;
use serde_json::{Map, Value};
use telemetry::Step;
use train::Advantage;

/// A prompt with its completions. Unknown fields are `None` or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// The group.
    pub group: GroupId,
    /// The first optimizer step that trained on the group.
    pub step: Option<Step>,
    /// Token ids of the prompt.
    pub prompt_ids: Vec<u32>,
    /// The index of the prompt's row in the dataset.
    pub prompt_id: Option<u64>,
    /// The text or messages of the prompt, as reward functions read them.
    pub prompt: Option<Content>,
    /// The prompt's index among the distinct prompts of its batch. Groups that share a prompt object have the same
    /// index.
    pub prompt_in_batch: Option<u64>,
    /// Values for each prompt token except the first.
    pub prompt_columns: Columns,
    /// The other columns of the prompt's row in the dataset.
    pub dataset: Map<String, Value>,
    /// The sampling parameters, named by their configuration keys.
    pub sampling: Map<String, Value>,
    /// The lineage of the weights that sampled the group.
    pub lineage: Option<Lineage>,
    /// Names of the reward functions.
    pub reward_names: Vec<String>,
    /// The weight of each reward function.
    pub reward_weights: Vec<f64>,
    /// The reasons why completions have no score, as JSON objects with `reward`, `kind`, `message`, `rows`, `fatal`,
    /// `example` (or null), and `completions`, the indices of these completions in the group.
    pub problems: Vec<Value>,
    /// The completions of the prompt.
    pub completions: Vec<Completion>,
}

/// A completion of a [`Group`]. Lists with values of tokens have one element per token.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The index of the completion's episode in the group.
    pub generation: usize,
    /// Token ids of the completion.
    pub ids: Vec<u32>,
    /// Whether the model sampled each token.
    pub sampled: Vec<bool>,
    /// Whether the loss may use each token.
    pub loss_mask: Vec<bool>,
    /// The version of the weights that sampled each token.
    pub versions: Vec<Updates>,
    /// Other values for each token: `sampler_logps`, `entropies`, `ref_logps`, ….
    pub columns: Columns,
    /// The finish reason.
    pub finish_reason: Option<FinishReason>,
    /// The completion's advantage.
    pub advantage: Option<Advantage>,
    /// One reward per reward function; `None` without a score.
    pub rewards: Vec<Option<f64>>,
    /// Process rewards: for each reward function, the last token of each step with its score. Empty if there are none.
    pub steps: Vec<Option<TokenScores>>,
    /// The text or message that reward functions read.
    pub content: Option<Content>,
    /// Columns that reward functions add to the completions table.
    pub extra: Map<String, Value>,
    /// The fork, if another completion of the group begins with the same tokens.
    pub fork: Option<Fork>,
}

/// Marks a completion that begins with the same tokens as another completion of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The index of the other completion in the group.
    pub parent: usize,
    /// The number of tokens that both completions begin with.
    pub at: usize,
}

impl Completion {
    /// A completion with these token ids, all sampled by the model. All other fields are empty.
    pub fn new(generation: usize, ids: Vec<u32>) -> Completion {
        let tokens = ids.len();
        Completion {
            generation,
            ids,
            sampled: vec![true; tokens],
            loss_mask: vec![true; tokens],
            versions: Vec::new(),
            columns: Columns::default(),
            finish_reason: None,
            advantage: None,
            rewards: Vec::new(),
            steps: Vec::new(),
            content: None,
            extra: Map::new(),
            fork: None,
        }
    }
}

impl Group {
    /// The number of tokens in all completions of the group.
    pub fn tokens(&self) -> usize {
        self.completions.iter().map(|c| c.ids.len()).sum()
    }

    /// The total (weighted) rewards of the completions with a score.
    pub fn totals(&self) -> impl Iterator<Item = f64> {
        self.completions.iter().filter_map(|c| total(&c.rewards, &self.reward_weights))
    }
}

/// The weighted sum of a completion's scores, if it has any.
pub(super) fn total(rewards: &[Option<f64>], weights: &[f64]) -> Option<f64> {
    let scored = rewards.iter().zip(weights).filter_map(|(r, w)| r.map(|r| r * w));
    rewards.iter().any(Option::is_some).then(|| scored.sum())
}
