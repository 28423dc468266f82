//! `lockstep bench rollout --completions`: times the generation of one group (completions that share a prompt),
//! including the sampler, from the request to the last token.
//!
//! `bench/peers` compares these times with those of other engines, with the same weights and prompt. Completions never
//! end early.

use super::report::column;
use super::{Machine, Report, Subject, Workload, median};
use kernels::Context;
use lockstep::bad_input;
use lockstep::error::{BadInput, OrBadInput};
use lockstep::weights::{load_config, load_weights};
use model::{ModelConfig, Prompt, Weights};
use rollout::Engine;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The prompt and the completions.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// The group sizes to time, for example 1, 8 and 64. Without any, decode steps of separate prompts are timed
    /// instead.
    pub completions: Vec<usize>,
    /// A Hugging Face model directory; if not set, random weights of the shape are used.
    pub model: Option<PathBuf>,
    /// Number of tokens of the prompt, whose token ids are random.
    pub prompt_length: usize,
    /// A file with the prompt as a JSON array of token ids, instead of a random prompt.
    pub prompt_ids: Option<PathBuf>,
    /// Tokens of each completion.
    pub new_tokens: usize,
    /// The sampling temperature; 0 is greedy.
    pub temperature: f64,
    /// Timed repetitions for each group size, after an untimed repetition that allocates memory.
    pub repeats: usize,
}

/// Times the generation of a group of each size.
pub fn run(ctx: &Context, shape: Subject, args: &GroupOptions) -> anyhow::Result<Report> {
    check(args)?;
    let weights = match &args.model {
        Some(dir) => load_weights(ctx, dir, &Arc::new(load_config(dir, shape.dtype.dtype())?))?,
        None => shape.weights(ctx)?,
    };
    let prompt = prompt(args, &weights.config)?;
    let machine = Machine::measure(ctx)?.with_dtype(shape.dtype.dtype());
    let columns = [
        column("completions", "completions", 0),
        column("prompt_tokens", "prompt", 0),
        column("new_tokens", "new tokens", 0),
        column("rollout_s", "rollout s", 3),
        column("decode_s", "decode s", 3),
        column("tokens_per_s", "tokens/s", 1),
        column("decode_tokens_per_s", "decode tokens/s", 1),
    ];
    let mut report = Report::new("rollout", machine, &columns);
    for &completions in &args.completions {
        let workload = Workload {
            prompts: 1,
            prompt_tokens: prompt.ids.len(),
            generations: completions,
            new_tokens: args.new_tokens,
            temperature: args.temperature,
            max_num_seqs: completions,
            ..Workload::grpo(1, 1)
        };
        let mut engine = workload.engine(ctx, &weights.config)?;
        let warm = Workload { new_tokens: args.new_tokens.min(2), ..workload.clone() };
        rollout(&mut engine, &weights, &warm, &prompt)?;
        let mut runs = Vec::new();
        for _ in 0..args.repeats {
            runs.push(rollout(&mut engine, &weights, &workload, &prompt)?);
        }
        let of = |f: fn(&(f64, f64)) -> f64| median(&runs.iter().map(f).collect::<Vec<_>>());
        let (whole, decode) = (of(|r| r.0), of(|r| r.1));
        let rate = |tokens: usize, s: f64| if s > 0.0 { json!(tokens as f64 / s) } else { json!(null) };
        report.row([
            json!(completions),
            json!(prompt.ids.len()),
            json!(args.new_tokens),
            json!(whole),
            json!(decode),
            rate(completions * args.new_tokens, whole),
            rate(completions * (args.new_tokens - 1), decode),
        ]);
    }
    let model = args.model.as_ref().map_or(shape.shape.name().to_owned(), |dir| dir.display().to_string());
    report.note(format!(
        "{model}, {}, one prompt shared by the completions of a row, temperature {}; decode excludes the first token \
         of each completion; medians of {} repetitions",
        shape.dtype.name(),
        args.temperature,
        args.repeats
    ));
    Ok(report)
}

fn check(args: &GroupOptions) -> anyhow::Result<()> {
    let counts =
        [("--prompt-length", args.prompt_length), ("--new-tokens", args.new_tokens), ("--repeats", args.repeats)];
    let sizes = args.completions.iter().map(|&n| ("--completions", n));
    if let Some((flag, _)) = counts.into_iter().chain(sizes).find(|&(_, n)| n == 0) {
        bad_input!("{flag} 0: the value must be at least 1");
    }
    if !(args.temperature.is_finite() && args.temperature >= 0.0) {
        bad_input!("--temperature must be a number of at least 0, got {}", args.temperature);
    }
    Ok(())
}

fn prompt(args: &GroupOptions, config: &ModelConfig) -> anyhow::Result<Arc<Prompt>> {
    let prompt = match &args.prompt_ids {
        Some(file) => read(file)?,
        None => {
            let workload = Workload { prompts: 1, prompt_tokens: args.prompt_length, ..Workload::grpo(1, 1) };
            workload.random_prompts(config, 3).remove(0)
        }
    };
    let ids = &prompt.ids;
    if ids.is_empty() {
        bad_input!("--prompt-ids: the prompt must have at least one token, got an empty array");
    }
    if let Some(id) = ids.iter().find(|&&id| id as usize >= config.vocab_size) {
        bad_input!("--prompt-ids: token {id} is outside the model's vocabulary of {} tokens", config.vocab_size);
    }
    if ids.len() + args.new_tokens > config.max_position_embeddings {
        bad_input!(
            "{} prompt tokens plus --new-tokens {} must not exceed the model's context of {} tokens",
            ids.len(),
            args.new_tokens,
            config.max_position_embeddings
        );
    }
    Ok(prompt)
}

fn read(file: &Path) -> anyhow::Result<Arc<Prompt>> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|e| BadInput::new(format!("cannot read {name}: {e}")))?;
    let ids: Vec<u32> =
        serde_json::from_str(&text).or_bad_input_in(format!("{name}: expected an array of token ids"))?;
    Ok(Prompt::new(ids))
}

/// Generates a group. Returns the total seconds, and the seconds of the steps after each completion's first token.
fn rollout(
    engine: &mut Engine,
    weights: &Weights,
    workload: &Workload,
    prompt: &Arc<Prompt>,
) -> anyhow::Result<(f64, f64)> {
    let start = Instant::now();
    for request in workload.requests(std::slice::from_ref(prompt), 3) {
        engine.submit(request)?;
    }
    let (mut ends, mut tokens) = (Vec::new(), 0);
    while !engine.is_idle() {
        tokens += engine.step(weights)?.iter().flat_map(|group| &group.completions).map(|c| c.ids.len()).sum::<usize>();
        ends.push(start.elapsed().as_secs_f64());
    }
    anyhow::ensure!(
        tokens == workload.generated_tokens(),
        "got {tokens} tokens, expected {}",
        workload.generated_tokens()
    );
    // Each step after the prefill adds one token to every completion, so the last `new_tokens` steps generate all
    // tokens.
    let first = ends.len() - workload.new_tokens;
    Ok((ends[ends.len() - 1], ends[ends.len() - 1] - ends[first]))
}
