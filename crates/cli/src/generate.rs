//! `lockstep generate`: completes a prompt.

use crate::options::{device, threads, utf8};
use crate::output;
use kernels::Device;
use lockstep::bad_input;
use lockstep::error::OrBadInput;
use lockstep::weights::{HubKind, locate};
use lockstep::{Policy, context};
use model::net::LEAST_TEMPERATURE;
use model::{Chat, GroupId, Prompt, TextStream, Tokenizer};
use rollout::{Engine, EngineConfig, Request, SamplingParams, Speculative};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

/// Maximum number of sequences in a batch.
const MAX_NUM_SEQS: usize = 64;
/// Maximum of --n, since all completions stay in memory until the last one has ended.
const MAX_COMPLETIONS: usize = 1 << 16;

/// Completes a prompt.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A Hugging Face model directory, or a Hub id.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// The dtype of matmuls.
    #[arg(long, value_parser = ["f32", "bf16"], default_value = "f32")]
    pub dtype: String,
    /// The PEFT directory of a LoRA adapter for the model.
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// Allows an adapter that was trained on other base weights.
    #[arg(long)]
    pub other_base: bool,
    /// The prompt. If the model has a chat template, the prompt is one user message, unless --raw is given.
    #[arg(long, value_name = "TEXT")]
    pub prompt: String,
    /// A system message before the prompt.
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Uses the prompt unchanged, without the chat template.
    #[arg(long)]
    pub raw: bool,
    /// Number of completions.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub n: usize,
    /// Maximum number of tokens per completion.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_new_tokens: usize,
    /// The sampling temperature; 0: greedy.
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    pub temperature: f64,
    /// Top-p: samples from the most likely tokens with a total probability of P.
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f64,
    /// Top-k: samples from the K most likely tokens; 0 disables it.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// Min-p: drops tokens that are less likely than P times the most likely token.
    #[arg(long, value_name = "P")]
    pub min_p: Option<f64>,
    /// Repetition penalty: > 1 makes tokens that already occurred less likely.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub repetition_penalty: f64,
    /// A string that ends a completion, which includes the string; may be repeated.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// auto: speculative decoding; drafts tokens from the text so far and verifies them in one pass. The completions
    /// are the same.
    #[arg(long, value_name = "auto|off", value_parser = ["auto", "off"], default_value = "off")]
    pub speculative: String,
    /// The seed.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Prints one JSON object per completion: text, token ids, log-probabilities, finish reason.
    #[arg(long)]
    pub json: bool,
    /// The device: cpu, cuda, cuda:1, …; LOCKSTEP_DEVICE or the CPU if not given.
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    pub device: Option<Device>,
    /// Threads; all cores if not given.
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    check(&args)?;
    let ctx = context(args.device, args.threads, args.dtype.as_str().into())?;
    let model = locate(&utf8("--model", &args.model)?, HubKind::Model)?;
    let (adapter, dtype) = (args.adapter.as_deref(), args.dtype.as_str().into());
    let policy = if args.other_base {
        Policy::load_with_other(&ctx, &model, adapter, dtype)?
    } else {
        Policy::load_with(&ctx, &model, adapter, dtype, output::warn)?
    };
    let ids = encode(&args, &policy)?;
    let context = policy.config().max_position_embeddings;
    if ids.is_empty() {
        bad_input!("--prompt must have at least one token, got none");
    }
    if ids.len() >= context {
        bad_input!("the prompt has {} tokens, which fill the model's context of {context} tokens", ids.len());
    }
    let max_model_len = context.min(ids.len().saturating_add(args.max_new_tokens));
    if max_model_len - ids.len() < args.max_new_tokens {
        output::note(format_args!(
            "note: the model's context of {context} tokens has room for only {} new tokens",
            context - ids.len()
        ));
    }
    let max_num_seqs = args.n.min(MAX_NUM_SEQS);
    let speculative = if args.speculative == "off" { Speculative::Off } else { Speculative::Auto };
    let sizes = EngineConfig { speculative, ..EngineConfig::new(max_num_seqs, max_model_len) };
    let mut engine = Engine::new(&ctx, policy.config(), sizes)?;
    engine.set_detokenizer(policy.tokenizer.clone());
    let request = Request::new(GroupId(0), Prompt::new(ids), args.n, Arc::new(sampling(&args, &policy)));
    if args.n == 1 && !args.json {
        return stream(engine, &policy, request);
    }
    let prompt = request.prompt.clone();
    for completion in engine.generate(&policy.weights, vec![request])?.remove(0).completions {
        check_finite(completion.logps(), &policy)?;
        let text = text(&policy, &prompt.ids, &completion.ids)?;
        let reason = completion.finish_reason.name();
        if args.json {
            let object = Generated {
                index: completion.generation,
                text,
                prompt_ids: &prompt.ids,
                completion_ids: &completion.ids,
                logprobs: completion.logps(),
                finish_reason: reason,
            };
            output::json(&object)?;
        } else {
            output::exact(&format!("── {} of {} ({reason}) ──\n{text}\n", completion.generation + 1, args.n))?;
        }
    }
    Ok(())
}

/// One line of `--json` output. `lockstep score` reads the same format.
#[derive(serde::Serialize)]
struct Generated<'a> {
    index: usize,
    text: String,
    prompt_ids: &'a [u32],
    completion_ids: &'a [u32],
    logprobs: &'a [f32],
    finish_reason: &'static str,
}

fn check(args: &Args) -> anyhow::Result<()> {
    for (flag, value, most) in [("--n", args.n, MAX_COMPLETIONS), ("--max-new-tokens", args.max_new_tokens, usize::MAX)]
    {
        if value == 0 {
            bad_input!("{flag} 0: expected 1 or more");
        }
        if value > most {
            bad_input!("{flag} {value}: expected at most {most}");
        }
    }
    if args.stop.iter().any(String::is_empty) {
        bad_input!("--stop must not be empty: an empty string would end every completion");
    }
    let ranges = [
        ("--temperature", args.temperature, 0.0..=f64::MAX, "0 (greedy) or more"),
        ("--top-p", args.top_p, f64::MIN_POSITIVE..=1.0, "a number above 0, up to 1"),
        ("--min-p", args.min_p.unwrap_or(0.0), 0.0..=1.0, "a number from 0 to 1"),
        ("--repetition-penalty", args.repetition_penalty, f64::MIN_POSITIVE..=f64::MAX, "a number above 0"),
    ];
    if args.temperature > 0.0 && args.temperature < LEAST_TEMPERATURE {
        bad_input!("--temperature {:e}: expected 0 (greedy), or {LEAST_TEMPERATURE:e} or more", args.temperature);
    }
    for (flag, value, range, expected) in ranges {
        if !range.contains(&value) {
            bad_input!("{flag} {value}: expected {expected}");
        }
    }
    Ok(())
}

fn sampling(args: &Args, policy: &Policy) -> SamplingParams {
    SamplingParams {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p.unwrap_or(0.0),
        repetition_penalty: args.repetition_penalty,
        max_new_tokens: args.max_new_tokens,
        stop_ids: policy.eos_ids.clone(),
        stop_strings: args.stop.clone(),
        seed: args.seed,
        ..SamplingParams::default()
    }
}

/// The token ids of the prompt: rendered as a conversation if the model has a chat template, else the plain text.
fn encode(args: &Args, policy: &Policy) -> anyhow::Result<Vec<u32>> {
    let Some(template) = policy.chat.as_ref().filter(|_| !args.raw) else {
        if args.system.is_some() {
            bad_input!("--system requires a chat template, and {} has none", args.model.display());
        }
        return policy.tokenizer.encode(&args.prompt).or_bad_input_in("--prompt");
    };
    let system = args.system.iter().map(|text| json!({"role": "system", "content": text}));
    let messages: Vec<_> = system.chain([json!({"role": "user", "content": args.prompt})]).collect();
    let chat = Chat { messages: &messages, add_generation_prompt: true, ..Chat::default() };
    // The template's output already has the special tokens.
    template.render(&chat).and_then(|text| policy.tokenizer.encode_rendered(&text)).or_bad_input_in("--prompt")
}

/// Prints the completion while it is generated.
fn stream(mut engine: Engine, policy: &Policy, request: Request) -> anyhow::Result<()> {
    let tokenizer = &policy.tokenizer;
    let mut text = begun(tokenizer, &request.prompt.ids)?;
    engine.submit(request)?;
    while !engine.is_idle() {
        engine.step(&policy.weights)?;
        check_finite(engine.drawn().iter().map(|drawn| &drawn.logp), policy)?;
        for drawn in engine.drawn() {
            output::exact(&text.push(tokenizer, drawn.id)?)?;
        }
    }
    Ok(output::exact(&format!("{}\n", text.finish(tokenizer)?))?)
}

/// An error if the model's logits are NaN or infinite: the sampled tokens are then meaningless.
fn check_finite<'a>(logps: impl IntoIterator<Item = &'a f32>, policy: &Policy) -> anyhow::Result<()> {
    match logps.into_iter().find(|logp| !logp.is_finite()) {
        Some(logp) => anyhow::bail!(
            "the model's logits are not finite (a token's log-probability is {logp}): {}",
            policy.why_not_finite()
        ),
        None => Ok(()),
    }
}

/// Returns a decoder that has read the prompt, since the text of a token can depend on the previous token (leading
/// spaces).
fn begun(tokenizer: &Tokenizer, prompt: &[u32]) -> anyhow::Result<TextStream> {
    let mut stream = TextStream::new(true);
    prompt.iter().try_for_each(|&id| stream.push(tokenizer, id).map(drop))?;
    Ok(stream)
}

/// The text of the completion `ids` that follows the prompt.
fn text(policy: &Policy, prompt: &[u32], ids: &[u32]) -> anyhow::Result<String> {
    let mut stream = begun(&policy.tokenizer, prompt)?;
    let mut text = String::new();
    for &id in ids {
        text += &stream.push(&policy.tokenizer, id)?;
    }
    Ok(text + &stream.finish(&policy.tokenizer)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let checked = |words: &[&str]| {
            let all = ["generate", "--model", "m", "--prompt", "p"];
            check(&Line::parse_from(all.iter().chain(words)).args).map_err(|error| error.to_string())
        };
        let smallest = format!("--top-p={}", f64::MIN_POSITIVE);
        for good in [
            &[][..],
            &["--n", "65536", "--max-new-tokens", "1"],
            &["--temperature", "0", "--top-p", "1", "--min-p", "1", "--repetition-penalty", "0.5"],
            &["--min-p", "0", &smallest, "--stop", "x"],
        ] {
            assert_eq!(checked(good), Ok(()), "{good:?}");
        }
        for (bad, why) in [
            (&["--n", "0"], "--n 0: expected 1 or more"),
            (&["--n", "65537"], "--n 65537: expected at most 65536"),
            (&["--max-new-tokens", "0"], "--max-new-tokens 0: expected 1 or more"),
            (&["--temperature=-0.5", "--raw"], "--temperature -0.5: expected 0 (greedy) or more"),
            (&["--temperature", "NaN"], "--temperature NaN: expected 0 (greedy) or more"),
            (&["--temperature", "inf"], "--temperature inf: expected 0 (greedy) or more"),
            (&["--temperature", "1e-45"], "--temperature 1e-45: expected 0 (greedy), or 1e-20 or more"),
            (&["--top-p", "0"], "--top-p 0: expected a number above 0, up to 1"),
            (&["--top-p", "1.5"], "--top-p 1.5: expected a number above 0, up to 1"),
            (&["--min-p", "1.5"], "--min-p 1.5: expected a number from 0 to 1"),
            (&["--min-p=-1", "--raw"], "--min-p -1: expected a number from 0 to 1"),
            (&["--repetition-penalty", "0"], "--repetition-penalty 0: expected a number above 0"),
        ] {
            assert_eq!(checked(bad), Err(why.to_owned()));
        }
        assert!(checked(&["--stop", "a", "--stop", ""]).unwrap_err().starts_with("--stop must not be empty"));
    }
}
