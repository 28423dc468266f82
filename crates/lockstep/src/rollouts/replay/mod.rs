//! Rollouts from a file instead of from the model: for conformance, debugging, offline comparison.
//!
//! A file has one JSON object per line: `prompt_ids`, `completion_ids`, `rewards` (a number, or one for each reward
//! function; null where it did not judge), and, where known, `logprobs`, `ref_logprobs`, `mask` (the tokens that the model
//! sampled), `truncated`, `reward_names`. A line is a completion, or a group: then all but `prompt_ids` and `reward_names`
//! are lists with one element per completion. Groups lie in the order in which they are trained on, `num_generations`
//! completions each. `record_rollouts = true` writes such a file.
//!
//! All of it is read and checked before the run begins. It knows no reward: the file's scores are taken as they are.

mod line;

pub use line::{Line, Recorded};

use crate::bad_input;
use crate::config::{Config, Known};
use crate::data::prompts::Prompt;
use crate::data::questions::context;
use crate::error::{BadInput, OrBadInput};
use crate::models::{Policy, Words};
use crate::rollouts::Rollouts;
use crate::rollouts::judge::Judged;
use kernels::Context;
use model::tokenizer::Tokenizer;
use model::{PromptCompletion, Scorer};
use rewards::Content;
use rollout::{Completion, FinishReason};
use serde_json::Map;
use sha2::{Digest, Sha256};
use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;
use train::RewardMatrix;

/// The version of weights that are not known: recorded log-probabilities are never compared with the trainer's.
const NO_VERSION: u64 = u64::MAX;

/// A prompt and its completions.
struct Group {
    prompt: Arc<Prompt>,
    completions: Vec<Recorded>,
}

/// A rollout file in memory.
pub struct Replay {
    groups: Vec<Group>,
    /// Names of the reward functions.
    pub reward_names: Vec<String>,
    /// SHA-256 of the file.
    pub hash: String,
}

/// What a file must fit.
pub struct Limits {
    /// Completions of a group.
    pub num_generations: usize,
    /// The most tokens of a completion.
    pub max_completion_length: usize,
    /// The most tokens of prompt and completion.
    pub context: usize,
}

impl Limits {
    /// Those of a run.
    pub fn of(config: &Config, words: &Words) -> Limits {
        Limits {
            num_generations: config.num_generations,
            max_completion_length: config.max_completion_length,
            context: context(config, words),
        }
    }
}

impl Replay {
    /// What the memory of a run on it depends on.
    pub fn known(&self) -> Known {
        Known { longest_prompt: self.longest(), sequences: 0, ref_logps: self.has_ref_logps() }
    }

    /// Reads and checks a file; what is wrong with it is a [`BadInput`] that names file and line.
    pub fn load(path: &Path, words: &Words, limits: &Limits) -> anyhow::Result<Replay> {
        let file = path.display();
        let bytes = std::fs::read(path).map_err(|e| BadInput::new(format!("cannot read the rollouts {file}: {e}")))?;
        let hash = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut replay = Replay { groups: Vec::new(), reward_names: Vec::new(), hash };
        let mut functions = None;
        let mut lines = 0;
        for (i, text) in bytes.lines().enumerate() {
            let place = || format!("{file}, line {}", i + 1);
            let text = text.or_bad_input_in(place())?;
            if text.trim().is_empty() {
                continue;
            }
            lines = i + 1;
            let line =
                Line::parse(&text, words.config.vocab_size).map_err(|e| BadInput::new(format!("{}: {e}", place())))?;
            line.check(limits, &mut functions, &mut replay.reward_names)
                .map_err(|e| BadInput::new(format!("{}: {e}", place())))?;
            replay
                .add(line, limits.num_generations, &words.tokenizer)
                .map_err(|e| BadInput::new(format!("{}: {e}", place())))?;
        }
        let Some(last) = replay.groups.last() else { bad_input!("{file} is empty: it has no rollout") };
        if last.completions.len() < limits.num_generations {
            bad_input!(
                "{file}, line {lines}: the last group has {} completions, but num_generations is {}",
                last.completions.len(),
                limits.num_generations
            );
        }
        if replay.reward_names.is_empty() {
            replay.reward_names = match functions.unwrap_or(1) {
                1 => vec!["reward".to_owned()],
                n => (0..n).map(|k| format!("reward_{k}")).collect(),
            };
        }
        Ok(replay)
    }

    /// Adds a line to the group that it belongs to.
    fn add(&mut self, line: Line, size: usize, tokenizer: &Tokenizer) -> Result<(), String> {
        let completions = line.completions.len();
        if completions > 1 && completions != size {
            return Err(format!(
                "the group has {completions} completions, but num_generations is {size}: set num_generations = {completions}"
            ));
        }
        match self.groups.last_mut().filter(|open| open.completions.len() < size) {
            Some(open) if *open.prompt.ids == *line.prompt && completions == 1 => {
                open.completions.extend(line.completions);
            }
            Some(open) => {
                return Err(format!(
                    "another prompt begins, but the group before has {} completions and num_generations is {size}",
                    open.completions.len()
                ));
            }
            None => {
                let text = tokenizer.decode(&line.prompt, false).map_err(|e| e.to_string())?;
                let (row, ids) = (self.groups.len(), line.prompt.into());
                let prompt = Arc::new(Prompt { row, ids, content: Content::Text(text), columns: Map::new() });
                self.groups.push(Group { prompt, completions: line.completions });
            }
        }
        Ok(())
    }

    /// Groups.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether there are none (loading refuses that).
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Tokens of the longest prompt.
    pub fn longest(&self) -> usize {
        self.groups.iter().map(|g| g.prompt.ids.len()).max().unwrap_or(0)
    }

    /// Whether log-probabilities must be computed.
    pub fn lacks_logps(&self) -> bool {
        self.groups.iter().flat_map(|g| &g.completions).any(|c| c.logps.is_none())
    }

    /// Whether every completion brings its reference log-probabilities.
    pub fn has_ref_logps(&self) -> bool {
        self.groups.iter().flat_map(|g| &g.completions).all(|c| c.ref_logps.is_some())
    }

    /// The groups `picked`, as if the policy had just written them. Log-probabilities that the file lacks are those of the
    /// policy as it is, so that the ratio is 1 at their first use.
    pub fn rollouts(
        &self,
        picked: &[usize],
        ctx: &Context,
        policy: &Policy,
        scorer: &mut Scorer,
        temperature: f64,
        weights: &[f64],
    ) -> anyhow::Result<Rollouts> {
        let groups: Vec<&Group> = picked.iter().map(|&i| &self.groups[i]).collect();
        let recorded = || groups.iter().flat_map(|g| g.completions.iter().map(move |c| (&g.prompt, c)));
        let unscored: Vec<PromptCompletion<'_>> = recorded()
            .filter(|(_, c)| c.logps.is_none())
            .map(|(prompt, c)| PromptCompletion { prompt: &prompt.ids, completion: &c.ids })
            .collect();
        let mut computed = scorer.score(ctx, &policy.weights, &unscored, temperature)?.into_iter();

        let mut rollouts = Rollouts::default();
        let mut matrix =
            RewardMatrix { rewards: Vec::new(), names: self.reward_names.clone(), weights: weights.to_vec() };
        for (i, (prompt, c)) in recorded().enumerate() {
            let tokens = c.ids.len();
            let (logps, versions) = match &c.logps {
                Some(logps) => (logps.clone(), vec![NO_VERSION; tokens]),
                None => (computed.next().map_or(Vec::new(), |s| s.logps), vec![policy.weights.version(); tokens]),
            };
            // As TRL: a completion that does not end in an id that ends completions was cut.
            let cut = || c.ids.last().is_none_or(|id| !policy.eos_ids.contains(id));
            let size = groups[0].completions.len();
            rollouts.completions.push(Completion {
                request: i / size,
                generation: i % size,
                ids: c.ids.clone(),
                logps,
                mask: c.mask.clone().unwrap_or_else(|| vec![true; tokens]),
                versions,
                finish_reason: if c.truncated.unwrap_or_else(cut) { FinishReason::Length } else { FinishReason::Stop },
            });
            rollouts.ref_logps.push(c.ref_logps.clone());
            rollouts.judged.prompts.push(prompt.content.clone());
            rollouts.judged.completions.push(Content::Text(policy.tokenizer.decode(&c.ids, true)?));
            matrix.rewards.push(c.rewards.clone());
        }
        rollouts.prompts = groups.iter().map(|g| g.prompt.clone()).collect();
        rollouts.judged = Judged { matrix, ..rollouts.judged };
        Ok(rollouts)
    }
}

impl Line {
    /// Whether it agrees with the configuration and with the lines before.
    fn check(&self, limits: &Limits, functions: &mut Option<usize>, names: &mut Vec<String>) -> Result<(), String> {
        for c in &self.completions {
            if c.ids.len() > limits.max_completion_length {
                return Err(format!(
                    "a completion has {} tokens, more than max_completion_length = {}: raise it",
                    c.ids.len(),
                    limits.max_completion_length
                ));
            }
            let length = self.prompt.len() + c.ids.len();
            if length > limits.context {
                return Err(format!("prompt and completion have {length} tokens, the context has {}", limits.context));
            }
            let expected = *functions.get_or_insert(c.rewards.len());
            if c.rewards.len() != expected {
                return Err(format!("`rewards` has {} numbers, the lines before have {expected}", c.rewards.len()));
            }
        }
        let Some(own) = &self.reward_names else { return Ok(()) };
        if Some(own.len()) != *functions {
            return Err(format!("`reward_names` has {} names for {} rewards", own.len(), functions.unwrap_or(0)));
        }
        if names.is_empty() {
            *names = own.clone();
        }
        if own != names {
            return Err(format!("`reward_names` is {own:?}, in the lines before {names:?}"));
        }
        Ok(())
    }
}
