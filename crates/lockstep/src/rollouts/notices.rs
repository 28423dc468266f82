//! Notices before completions are generated: sampling settings that are ignored, and tags that reward functions look
//! for but cannot see.

use crate::config::Config;
use crate::data::prompts::Prompt;
use model::io::ModelFiles;
use model::tokenizer::generation_settings;
use model::{ModelAssets, Tokenizer};
use rewards::RewardSpec;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

/// Larger source files of reward functions are not searched for tags.
const LONGEST_FILE: u64 = 1 << 20;
/// How many tokens at the end of a prompt are searched for a tag.
const END_TOKENS: usize = 16;
/// Tags that reward functions often look for, used for a function whose source is unknown.
const USUAL: [&str; 12] = [
    "think",
    "thinking",
    "thought",
    "reasoning",
    "answer",
    "solution",
    "tool_call",
    "tool_response",
    "search",
    "result",
    "code",
    "final",
];

/// A sentence about settings in the model's `generation_config.json` that differ from the run's: only the configuration
/// decides how tokens are sampled.
pub fn other_sampling(config: &Config, files: &ModelFiles) -> model::Result<Option<String>> {
    let own = |name: &str| match name {
        "temperature" => Some(config.temperature),
        "top_p" => Some(config.top_p),
        "top_k" => Some(config.top_k as f64),
        "min_p" => Some(config.min_p.unwrap_or(0.0)),
        "repetition_penalty" => Some(config.repetition_penalty),
        _ => None,
    };
    let differs = |(name, value): &(&str, serde_json::Value)| value.as_f64().is_none() || value.as_f64() != own(name);
    let unused = generation_settings(files)?.into_iter().filter(differs);
    let unused: Vec<String> = unused.map(|(name, value)| format!("{name} = {value}")).collect();
    Ok((!unused.is_empty()).then(|| {
        format!("ignored in the model's generation_config.json: {}; the run's own keys apply", unused.join(", "))
    }))
}

/// Sentences about tags that reward functions look for but completions lack: special tokens, which reward functions do
/// not see, and tags at the end of the prompts.
pub fn unseen_tags<'a>(
    config: &Config,
    assets: &ModelAssets,
    prompts: impl Iterator<Item = &'a Arc<Prompt>>,
) -> anyhow::Result<Vec<String>> {
    let tokenizer = &assets.tokenizer;
    let special = if config.skip_special_tokens { hidden_tags(assets) } else { Vec::new() };
    let ends: Vec<String> = prompts.map(|prompt| end_of(tokenizer, &prompt.tokens.ids)).collect::<Result<_, _>>()?;
    let mut sentences = Vec::new();
    for (spec, name) in config.reward_funcs.iter().zip(rewards::names(&config.reward_funcs)?) {
        let looks = Looks::of(spec);
        let hidden: Vec<&str> = special.iter().map(String::as_str).filter(|tag| looks.has(tag)).collect();
        if !hidden.is_empty() {
            sentences.push(format!(
                "reward `{name}` {} {}, special tokens that are removed from completions: set skip_special_tokens = \
                 false to keep them",
                if looks.is_known { "looks for" } else { "does not see" },
                hidden.join(", ")
            ));
        }
        let tags: BTreeSet<String> = ends.iter().filter_map(|end| last_tag(end)).map(str::to_owned).collect();
        for tag in tags.iter().filter(|tag| looks.is_known && looks.has(tag)) {
            let count = ends.iter().filter(|end| last_tag(end) == Some(tag)).count();
            let fix = match spec.kind().as_deref() {
                Ok("think_answer") if !tag.starts_with("</") => {
                    ": set think_in_prompt = true in the reward's table ({ kind = \"think_answer\", … })"
                }
                _ => "",
            };
            sentences.push(format!(
                "reward `{name}` looks for {tag}, but {count} of {} prompts already end with it, so the completion \
                 does not contain it{fix}",
                ends.len()
            ));
        }
    }
    Ok(sentences)
}

/// Special tokens that are removed from completions, except start, end and padding tokens.
fn hidden_tags(assets: &ModelAssets) -> Vec<String> {
    let tokenizer = &assets.tokenizer;
    let named: BTreeSet<&str> = tokenizer.special().named().map(|(_, token)| token).collect();
    let others = tokenizer.special_ids().into_iter().filter(|id| !assets.eos_ids.contains(id));
    let tags = others.filter_map(|id| tokenizer.token(id)).filter(|token| token.chars().count() > 1);
    tags.filter(|token| !named.contains(token.as_str())).collect()
}

/// The text at the end of a prompt, without trailing white space.
fn end_of(tokenizer: &Tokenizer, ids: &[u32]) -> model::Result<String> {
    let text = tokenizer.decode(&ids[ids.len().saturating_sub(END_TOKENS)..], false)?;
    Ok(text.trim_end().to_owned())
}

/// The tag, such as `<think>` or `</think>`, with which a text ends.
fn last_tag(text: &str) -> Option<&str> {
    let tag = &text[text.rfind('<')?..];
    let name = tag.strip_prefix('<')?.strip_suffix('>')?;
    let name = name.strip_prefix('/').unwrap_or(name);
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
    is_name.then_some(tag)
}

/// The strings in which a reward function may name the tags that it looks for.
struct Looks {
    texts: Vec<String>,
    /// False for a function whose source is unknown.
    is_known: bool,
}

impl Looks {
    fn of(spec: &RewardSpec) -> Looks {
        let mut texts = spec.texts();
        let files = std::cell::RefCell::new(Vec::new());
        let read = |path: &str| -> Result<String, Infallible> {
            let is_short = std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= LONGEST_FILE);
            if is_short && Path::new(path).is_file() {
                files.borrow_mut().extend(disk::read_to_string(path, disk::most::STATE).ok());
            }
            Ok(path.to_owned())
        };
        spec.clone().map_paths(read).unwrap_or_else(|never| match never {});
        texts.extend(files.into_inner());
        let is_known = !matches!(spec.kind().as_deref(), Ok("function" | "http"));
        Looks { texts, is_known }
    }

    fn has(&self, tag: &str) -> bool {
        if !self.is_known {
            return USUAL.contains(&tag.trim_start_matches('<').trim_start_matches('/').trim_end_matches('>'));
        }
        // A pattern may escape the brackets of a tag.
        self.texts.iter().any(|text| text.contains(tag) || text.replace('\\', "").contains(tag))
    }
}

#[cfg(test)]
mod tests;
