//! A group as it is written: a prompt, its completions and what is known of them.

use crate::rollouts::groups::TokenScores;
use crate::rollouts::lineage::Lineage;
use model::Columns;
use rewards::Content;
use rollout::FinishReason;
use serde_json::{Map, Value};
use train::Advantage;

/// A group. What is not known is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Its number in the run.
    pub id: u64,
    /// The first optimizer step on it.
    pub step: Option<u64>,
    /// Token ids.
    pub prompt_ids: Vec<u32>,
    /// The dataset's row.
    pub prompt_id: Option<u64>,
    /// The prompt as rewards saw it.
    pub prompt: Option<Content>,
    /// Which of a batch's distinct prompts it is: groups whose prompt is one by identity have one number.
    pub prompt_in_batch: Option<u64>,
    /// What is known of the prompt's tokens but the first.
    pub prompt_columns: Columns,
    /// The other columns of the dataset's row.
    pub dataset: Map<String, Value>,
    /// How tokens were drawn, by the names of the configuration's keys.
    pub sampling: Map<String, Value>,
    /// What the weights come from that sampled it.
    pub lineage: Option<Lineage>,
    /// The reward functions.
    pub reward_names: Vec<String>,
    /// The weight of each.
    pub reward_weights: Vec<f64>,
    /// Why completions have no score: objects with `reward`, `kind`, `message`, `rows`, `fatal`, `example` (or null),
    /// and `completions`, the places in the group of those that have none for this reason.
    pub problems: Vec<Value>,
    /// The completions.
    pub completions: Vec<Completion>,
}

/// A completion of a [`Group`]. Lists have one element per token.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Which of the group's episodes it is of.
    pub generation: usize,
    /// Token ids.
    pub ids: Vec<u32>,
    /// Whether the model sampled the token.
    pub sampled: Vec<bool>,
    /// Whether the loss may use it.
    pub mask: Vec<bool>,
    /// The version of the weights that each token was sampled with.
    pub versions: Vec<u64>,
    /// `sampler_logps`, `entropies`, `ref_logps`, ….
    pub columns: Columns,
    /// Why it ended.
    pub finish_reason: Option<FinishReason>,
    /// What it is learned with.
    pub advantage: Option<Advantage>,
    /// One per reward function; `None` where it gave no score.
    pub rewards: Vec<Option<f64>>,
    /// One per reward function, or empty: the last token of each step, and its score.
    pub steps: Vec<Option<TokenScores>>,
    /// As rewards saw it.
    pub content: Option<Content>,
    /// What rewards add to the completions table.
    pub extra: Map<String, Value>,
    /// Where it parts from another completion of its group.
    pub fork: Option<Fork>,
}

/// A completion that begins as another one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The other's place among the group's completions.
    pub parent: usize,
    /// How many tokens of its completion are the other's.
    pub at: usize,
}

impl Completion {
    /// A completion of these ids, which the model sampled, and of which nothing else is known.
    pub fn new(generation: usize, ids: Vec<u32>) -> Completion {
        let tokens = ids.len();
        Completion {
            generation,
            ids,
            sampled: vec![true; tokens],
            mask: vec![true; tokens],
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
    /// Tokens of all completions.
    pub fn tokens(&self) -> usize {
        self.completions.iter().map(|c| c.ids.len()).sum()
    }

    /// The weighted rewards of the completions that have one.
    pub fn totals(&self) -> impl Iterator<Item = f64> {
        let of = |c: &Completion| {
            let scored = c.rewards.iter().zip(&self.reward_weights).filter_map(|(r, w)| r.map(|r| r * w));
            c.rewards.iter().any(Option::is_some).then(|| scored.sum())
        };
        self.completions.iter().filter_map(of)
    }
}
