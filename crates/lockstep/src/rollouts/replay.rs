//! Replays recorded rollouts from a file instead of generating them: for conformance tests, debugging, and offline
//! comparison of losses.
//!
//! A file was written by `record_rollouts = true` ([`wire`](super::wire)), or has one JSON object per line:
//! `prompt_ids`, `completion_ids`, `rewards` (a number, or one for each reward function; null without a score), and, if
//! known, `logprobs`, `ref_logprobs`, `mask` (the tokens that the model sampled), `truncated`, `versions`,
//! `reward_names`, `problems`, `lineage`. A line is a completion or a group. In a group, all values but `prompt_ids`,
//! `reward_names` and `lineage` are lists with one element per completion. Groups are in the order of training, with
//! `num_generations` completions each.
//!
//! The whole file is read and checked before the run begins. No reward function is called; the scores come from the
//! file.

use crate::bad_input;
use crate::config::{Config, WorkloadBounds};
use crate::data::prompt_dataset::context;
use crate::data::prompts::Prompt;
use crate::data::rows::WHOLE_LINES;
use crate::error::{BadInput, OrBadInput};
use crate::models::Policy;
use crate::rollouts::lineage::Lineage;
use crate::rollouts::versions::{NO_VERSION, OF_ANOTHER_RUN};
use crate::rollouts::wire::{self, Group};
use crate::rollouts::{Rollouts, ScoredCompletion, ScoredGroup};
use kernels::Context;
use model::columns::{REF_LOGPS, SAMPLER_LOGPS};
use model::did_you_mean;
use model::tokenizer::Tokenizer;
use model::{Columns, GroupId, ModelAssets, PromptCompletion, PromptSet, Scorer, Updates};
use rewards::{Content, Problem};
use rollout::{Completion, FinishReason};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;
use telemetry::{RecordedCompletion, RolloutLine, counted};

/// A prompt and its recorded completions.
struct ReplayGroup {
    prompt: Arc<Prompt>,
    completions: Vec<RecordedCompletion>,
    problems: Vec<Problem>,
    lineage: Option<Lineage>,
}

/// A file of recorded rollouts, in memory.
pub struct Replay {
    groups: Vec<ReplayGroup>,
    prompts: PromptSet,
    /// Names of the reward functions.
    pub reward_names: Vec<String>,
    /// SHA-256 of the file, in hexadecimal.
    pub hash: String,
}

/// The limits that recorded rollouts must not exceed.
pub struct Limits {
    /// Completions of each group.
    pub num_generations: usize,
    /// The maximum number of tokens in a completion.
    pub max_completion_length: usize,
    /// The maximum number of tokens in prompt and completion together.
    pub context: usize,
}

impl Limits {
    /// The limits of a run.
    pub fn of(config: &Config, assets: &ModelAssets) -> Limits {
        Limits {
            num_generations: config.num_generations,
            max_completion_length: config.max_completion_length,
            context: context(config, assets),
        }
    }
}

impl Replay {
    /// The sizes that determine the memory of a run that replays this file.
    pub fn bounds(&self) -> WorkloadBounds {
        WorkloadBounds { longest_prompt: self.longest(), sequences: 0, ref_logps: self.has_ref_logps(), given: false }
    }

    /// Reads and checks a file. The [`BadInput`] of invalid data names file and line.
    pub fn load(path: &Path, assets: &ModelAssets, limits: &Limits) -> anyhow::Result<Replay> {
        let file = path.display();
        let bytes = disk::read(path, disk::most::GROUPS)
            .map_err(|e| BadInput::new(format!("cannot read the rollouts {file}: {e}")))?;
        let hash = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut replay = Replay { groups: Vec::new(), prompts: PromptSet::default(), reward_names: Vec::new(), hash };
        let mut functions = None;
        let mut last_place = String::new();
        let mut add = |place: &str, line: Result<RolloutLine, String>| {
            last_place = format!("{file}, {place}");
            let added = line.and_then(|line| {
                check(&line, limits, &mut functions, &mut replay.reward_names)?;
                replay.add(line, limits.num_generations, &assets.tokenizer)
            });
            added.map_err(|e| BadInput::new(format!("{last_place}: {e}")))
        };
        let vocabulary = assets.config.vocab_size;
        if wire::is_records(&bytes) {
            for group in Group::read_all(&bytes).or_bad_input_in(&file)? {
                add(&format!("group {}", group.group), recorded_line(group, vocabulary))?;
            }
        } else {
            for (i, text) in bytes.lines().enumerate() {
                let text = text.or_bad_input_in(format!("{file}, line {}", i + 1))?;
                if !text.trim().is_empty() {
                    add(&format!("line {}", i + 1), parse(&text, vocabulary))?;
                }
            }
        }
        let Some(last) = replay.groups.last() else { bad_input!("{file} is empty: it has no rollouts") };
        if last.completions.len() < limits.num_generations {
            bad_input!(
                "{last_place}: the last group has {}, but num_generations is {}",
                counted(last.completions.len(), "completion"),
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

    /// Adds the completions of a line to the group being read, or begins a new group; `size` is `num_generations`.
    fn add(&mut self, line: RolloutLine, size: usize, tokenizer: &Tokenizer) -> Result<(), String> {
        let completions = line.completions.len();
        let lineage = line.lineage.as_deref().map(str::parse::<Lineage>).transpose()?;
        if completions > 1 && completions != size {
            return Err(format!(
                "the group has {completions} completions, but num_generations is {size}: set num_generations = \
                 {completions}"
            ));
        }
        match self.groups.last_mut().filter(|open| open.completions.len() < size) {
            Some(open) if open.prompt.tokens.ids == line.prompt && completions == 1 => {
                open.add(line.completions)?;
                // If lines of one group have different lineages, the group's lineage is unknown.
                open.lineage = open.lineage.filter(|own| Some(*own) == lineage);
            }
            Some(open) => {
                return Err(format!(
                    "a new prompt begins after a group of {}, but num_generations is {size}",
                    counted(open.completions.len(), "completion")
                ));
            }
            None => {
                let text = tokenizer.decode(&line.prompt, false).map_err(|e| e.to_string())?;
                let (row, tokens) = (self.groups.len(), self.prompts.share(model::Prompt::new(line.prompt)));
                let prompt = Arc::new(Prompt { row, tokens, content: Content::Text(text), columns: Map::new() });
                let mut group = ReplayGroup { prompt, completions: Vec::new(), problems: Vec::new(), lineage };
                group.add(line.completions)?;
                self.groups.push(group);
            }
        }
        Ok(())
    }

    /// The number of groups.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Tokens of the longest prompt.
    pub fn longest(&self) -> usize {
        self.groups.iter().map(|g| g.prompt.tokens.ids.len()).max().unwrap_or(0)
    }

    /// Whether every completion has the reference model's log-probabilities.
    pub fn has_ref_logps(&self) -> bool {
        self.groups.iter().flat_map(|g| &g.completions).all(|c| c.ref_logps.is_some())
    }

    /// The groups at the indices `picked`, as if the policy had just generated them, numbered from `first`. Missing
    /// log-probabilities are computed with the current policy, so that the importance ratio is 1 when the completions
    /// are first used.
    #[allow(clippy::too_many_arguments)]
    pub fn rollouts(
        &self,
        picked: &[usize],
        first: GroupId,
        ctx: &Context,
        policy: &Policy,
        scorer: &mut Scorer,
        temperature: f64,
        weights: &[f64],
    ) -> anyhow::Result<Rollouts> {
        let groups: Vec<&ReplayGroup> = picked.iter().map(|&i| &self.groups[i]).collect();
        let recorded = groups.iter().flat_map(|g| g.completions.iter().map(move |c| (&g.prompt, c)));
        let unscored: Vec<PromptCompletion<'_>> = recorded
            .filter(|(_, c)| c.logps.is_none())
            .map(|(prompt, c)| PromptCompletion { prompt: &prompt.tokens.ids, completion: &c.ids })
            .collect();
        let mut computed = scorer.score(ctx, &policy.weights, &unscored, temperature)?.into_iter();
        let mut scored = |(generation, recorded): (usize, &RecordedCompletion)| {
            let given = recorded.logps.clone().map(|logps| (logps, NO_VERSION));
            let (logps, version) = given
                .or_else(|| computed.next().map(|scores| (scores.logps, policy.weights.version())))
                .expect("computed above");
            scored_completion(recorded, generation, logps, version, policy)
        };
        let mut out = Vec::with_capacity(groups.len());
        for (number, group) in first.and_after().zip(groups) {
            let completions = group.completions.iter().enumerate().map(&mut scored).collect::<anyhow::Result<_>>()?;
            let (prompt, problems) = (group.prompt.clone(), group.problems.clone());
            out.push(ScoredGroup { group: number, prompt, completions, problems, lineage: group.lineage });
        }
        Ok(Rollouts { groups: out, reward_names: self.reward_names.clone(), reward_weights: weights.to_vec() })
    }
}

impl ReplayGroup {
    /// Adds completions. A problem shared by several completions is merged into one.
    fn add(&mut self, completions: Vec<RecordedCompletion>) -> Result<(), String> {
        for mut completion in completions {
            let place = self.completions.len();
            for value in std::mem::take(&mut completion.problems) {
                let problem = problem_at(value, place).map_err(|error| format!("`problems`: {error}"))?;
                let as_one = |known: &&mut Problem| {
                    let same = Problem { rows: 0, completions: Vec::new(), ..(**known).clone() };
                    same == Problem { rows: 0, completions: Vec::new(), ..problem.clone() }
                };
                match self.problems.iter_mut().find(as_one) {
                    Some(known) => {
                        known.completions.push(place);
                        known.rows += 1;
                    }
                    None => self.problems.push(problem),
                }
            }
            self.completions.push(completion);
        }
        Ok(())
    }
}

/// Reads a problem from a line's JSON, for the completion `place` of its group.
fn problem_at(mut value: Value, place: usize) -> Result<Problem, serde_json::Error> {
    if let Some(object) = value.as_object_mut() {
        object.insert("rows".to_owned(), json!(1));
        object.insert("completions".to_owned(), json!([place]));
        object.entry("fatal").or_insert(json!(false));
    }
    serde_json::from_value(value)
}

/// Converts a recorded completion to the engine's type. `version` is the version of the weights that computed `logps`.
fn scored_completion(
    recorded: &RecordedCompletion,
    generation: usize,
    logps: Vec<f32>,
    version: Updates,
    policy: &Policy,
) -> anyhow::Result<ScoredCompletion> {
    let tokens = recorded.ids.len();
    // As in TRL, a completion that does not end in an end-of-sequence id is treated as truncated.
    let cut = || recorded.ids.last().is_none_or(|id| !policy.eos_ids.contains(id));
    let mut columns = Columns::of([(SAMPLER_LOGPS, logps)]);
    recorded.ref_logps.iter().for_each(|given| columns.set(REF_LOGPS, given.clone()));
    Ok(ScoredCompletion {
        completion: Completion {
            generation,
            ids: recorded.ids.clone(),
            sampled: recorded.sampled.clone().unwrap_or_else(|| vec![true; tokens]),
            versions: if recorded.versions.is_empty() || recorded.logps.is_none() {
                vec![version; tokens]
            } else {
                recorded.versions.iter().map(|version| Updates(version | OF_ANOTHER_RUN)).collect()
            },
            columns,
            finish_reason: FinishReason::from_truncated(recorded.truncated.unwrap_or_else(cut)),
        },
        content: Content::Text(policy.tokenizer.completion(&recorded.ids)?),
        rewards: recorded.rewards.clone(),
        steps: recorded.steps.clone(),
        extra: Map::new(),
    })
}

/// Parses a JSON line.
fn parse(text: &str, vocabulary: usize) -> Result<RolloutLine, String> {
    let object: Map<String, Value> = match serde_json::from_str(text) {
        Ok(Value::Object(object)) => object,
        Ok(other) => return Err(format!("expected an object {{\"prompt_ids\": [...], ...}}, got {other}")),
        Err(e) => return Err(format!("broken JSON: {e}{}", if e.is_eof() { WHOLE_LINES } else { "" })),
    };
    if let Some(unknown) = object.keys().find(|key| !RolloutLine::KEYS.contains(&key.as_str())) {
        let (hint, keys) = (did_you_mean(unknown, RolloutLine::KEYS), RolloutLine::KEYS.join(", "));
        return Err(format!("unknown key `{unknown}`{hint} (keys are {keys})"));
    }
    RolloutLine::read(&object, vocabulary)
}

/// Converts a recorded group to a line.
fn recorded_line(group: Group, vocabulary: usize) -> Result<RolloutLine, String> {
    let completions = group.completions.iter().flat_map(|c| &c.ids);
    if let Some(id) = group.prompt_ids.iter().chain(completions).find(|&&id| id as usize >= vocabulary) {
        return Err(format!("token {id} is not in the model's vocabulary of {vocabulary}"));
    }
    if group.prompt_ids.is_empty() || group.completions.is_empty() || group.reward_names.is_empty() {
        return Err("the group has no prompt, no completion or no reward, so nothing can be learned from it".to_owned());
    }
    Ok(group.replayed())
}

/// Checks that a line fits the limits of the configuration and the lines before it.
fn check(
    line: &RolloutLine,
    limits: &Limits,
    functions: &mut Option<usize>,
    names: &mut Vec<String>,
) -> Result<(), String> {
    for c in &line.completions {
        if c.ids.len() > limits.max_completion_length {
            return Err(format!(
                "a completion has {} tokens, more than max_completion_length = {}: raise max_completion_length",
                c.ids.len(),
                limits.max_completion_length
            ));
        }
        let length = line.prompt.len() + c.ids.len();
        if length > limits.context {
            return Err(format!(
                "prompt and completion have {length} tokens, but only {} fit into the context",
                limits.context
            ));
        }
        let expected = *functions.get_or_insert(c.rewards.len());
        if c.rewards.len() != expected {
            return Err(format!("`rewards` has {} numbers, but earlier lines have {expected}", c.rewards.len()));
        }
    }
    let Some(own) = &line.reward_names else { return Ok(()) };
    if Some(own.len()) != *functions {
        return Err(format!("`reward_names` has {} names for {} rewards", own.len(), functions.unwrap_or(0)));
    }
    if names.is_empty() {
        *names = own.clone();
    }
    if own != names {
        return Err(format!("`reward_names` is {own:?}, but {names:?} in earlier lines"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    mod load;

    use super::*;
    use proptest::prelude::*;
    use testing::foreign;

    #[test]
    fn the_error_of_an_unreadable_line_names_the_fault() {
        let error = |text: &str| parse(text, 10).unwrap_err();
        assert!(error("{\"prompt_ids\": [1").contains("broken JSON"));
        assert!(error("[1]").contains("expected an object"));
        let misspelt = error(r#"{"prompt_ids": [1], "completion_ids": [1], "rewards": 1, "logprob": [0]}"#);
        assert!(misspelt.contains("did you mean `logprobs`?"), "{misspelt}");
    }

    const LINE: &str =
        r#"{"prompt_ids": [7, 8], "completion_ids": [[1], [3]], "rewards": [0.5, null], "mask": [[1], [0]]}"#;

    proptest! {
        #![proptest_config(foreign::few())]

        #[test]
        fn damaged_lines_do_not_panic(bytes in foreign::bytes(LINE.as_bytes().to_vec())) {
            prop_assert!(parse(LINE, 10).is_ok());
            let _ = parse(&String::from_utf8_lossy(&bytes), 10);
        }
    }
}
