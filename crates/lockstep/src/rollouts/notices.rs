//! Notices before completions are generated and scored: sampling settings that are not used, and tags that reward
//! functions look for but cannot see.

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

/// Files of reward functions that are longer are not searched for tags.
const LONGEST_FILE: u64 = 1 << 20;
/// The end of a prompt in which a tag is looked for, in tokens.
const END_TOKENS: usize = 16;
/// Names of tags that reward functions often look for. They are used for a function whose source is not known here.
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

/// A sentence about settings of the model's `generation_config.json` that have another value here, since only the
/// configuration decides how tokens are sampled.
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
        format!("not used from the model's generation_config.json: {}; the keys of the run decide", unused.join(", "))
    }))
}

/// Sentences about tags that reward functions look for and that completions lack: special tokens, which are not shown
/// to reward functions, and tags with which the prompts already end.
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
                "reward `{name}` {} {}, special tokens of the tokenizer, without which completions are decoded: set \
                 skip_special_tokens = false to show them",
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
                "reward `{name}` looks for {tag}, with which {count} of {} prompts end already: a completion begins \
                 after it and lacks it{fix}",
                ends.len()
            ));
        }
    }
    Ok(sentences)
}

/// Special tokens that the text of a completion lacks, except those that only begin, end or fill a text.
fn hidden_tags(assets: &ModelAssets) -> Vec<String> {
    let tokenizer = &assets.tokenizer;
    let named: BTreeSet<&str> = tokenizer.special().named().map(|(_, token)| token).collect();
    let others = tokenizer.special_ids().into_iter().filter(|id| !assets.eos_ids.contains(id));
    let tags = others.filter_map(|id| tokenizer.token(id)).filter(|token| token.chars().count() > 1);
    tags.filter(|token| !named.contains(token.as_str())).collect()
}

/// The end of a prompt as text, without white space after it.
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
    /// False for a function whose source is not known here.
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
        // A pattern may escape the signs of a tag.
        self.texts.iter().any(|text| text.contains(tag) || text.replace('\\', "").contains(tag))
    }
}

#[cfg(test)]
mod tests;
