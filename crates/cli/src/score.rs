//! `lockstep score`: prints log-probabilities of given token ids.

use crate::options::{device, threads, utf8};
use crate::output;
use anyhow::Context as _;
use kernels::Device;
use lockstep::StopSignal;
use lockstep::bad_input;
use lockstep::config::ComputeDType;
use lockstep::context;
use lockstep::error::{BadInput, OrBadInput};
use lockstep::files::WHOLE_LINES;
use lockstep::weights::{HubKind, check_base, load_config, load_weights, locate};
use model::net::LEAST_TEMPERATURE;
use model::{ModelView, PromptCompletion, Scorer};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Prints log-probabilities of given token ids.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A Hugging Face model directory, or a Hub id.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// The PEFT directory of a LoRA adapter for the model.
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// Allows an adapter that was trained on other base weights.
    #[arg(long)]
    pub other_base: bool,
    /// Lines {"prompt_ids": […], "completion_ids": […]}; `-` for standard input.
    #[arg(long, value_name = "FILE.jsonl")]
    pub input: PathBuf,
    /// The dtype of weights and activations; sums are always f32.
    #[arg(long, value_parser = ["f32", "bf16"], default_value = "f32")]
    pub dtype: String,
    /// The temperature: logits are divided by T.
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    pub temperature: f64,
    /// The device: cpu, cuda, cuda:1, …; LOCKSTEP_DEVICE or the CPU if not given.
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    pub device: Option<Device>,
    /// Threads; all cores if not given.
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}

/// Maximum number of tokens per forward pass. Lines are computed and written in portions of about this size.
const MAX_TOKENS: usize = 4096;

/// One line of the input.
#[derive(Debug, serde::Deserialize)]
struct Line {
    prompt_ids: Vec<u32>,
    completion_ids: Vec<u32>,
}

/// One line of the output. The vectors have one element per token of the completion.
#[derive(Debug, serde::Serialize)]
struct Scored<'a> {
    logprobs: &'a [f32],
    entropies: &'a [f32],
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if !(args.temperature.is_finite() && args.temperature > 0.0) {
        bad_input!("--temperature {}: expected a number above 0", args.temperature);
    }
    if args.temperature < LEAST_TEMPERATURE {
        bad_input!("--temperature {:e}: expected at least {LEAST_TEMPERATURE:e}", args.temperature);
    }
    let ctx = context(args.device, args.threads, args.dtype.as_str().into())?;
    let model = locate(&utf8("--model", &args.model)?, HubKind::Model)?;
    let config = Arc::new(load_config(&model, ComputeDType::from(args.dtype.as_str()).dtype())?);
    // All lines are checked before the first is computed, so that a bad last line is reported at once.
    let (name, lines) = read(&args.input, config.vocab_size)?;
    let length = |line: &Line| line.prompt_ids.len() + line.completion_ids.len();
    let longest = lines.iter().enumerate().max_by_key(|(_, line)| length(line)).map(|(i, line)| (i + 1, length(line)));
    if let Some((line, tokens)) = longest.filter(|(_, tokens)| *tokens > config.max_position_embeddings) {
        output::note(format_args!(
            "warning: {name}, line {line}: {tokens} tokens exceed the model's context of {}: values beyond the context \
             are meaningless",
            config.max_position_embeddings
        ));
    }
    let weights = load_weights(&ctx, &model, &config)?;
    if let Some(dir) = args.adapter.as_deref().filter(|_| !args.other_base) {
        check_base(dir, &model, &StopSignal::new(), output::warn)?;
    }
    let load = |dir| model::peft::load_adapter(ctx.memory(), dir, &weights).or_bad_input();
    let adapter = args.adapter.as_deref().map(load).transpose()?;
    let view = ModelView::new(&weights, adapter.as_ref());

    let mut scorer = Scorer::new(ctx.memory(), MAX_TOKENS, true);
    let mut rest = lines.as_slice();
    while !rest.is_empty() {
        let (portion, after) = rest.split_at(portion(rest));
        rest = after;
        let pair = |l| -> PromptCompletion<'_> {
            let l: &Line = l;
            PromptCompletion { prompt: &l.prompt_ids, completion: &l.completion_ids }
        };
        let pairs: Vec<_> = portion.iter().map(pair).collect();
        let scores = scorer.score(&ctx, view, &pairs, args.temperature).with_context(|| name.clone())?;
        let mut text = String::new();
        for scores in &scores {
            if let Some(logp) = scores.logps.iter().find(|logp| !logp.is_finite()) {
                anyhow::bail!("{name}: the model's logits are not finite (a log-probability is {logp})");
            }
            text += &serde_json::to_string(&Scored { logprobs: &scores.logps, entropies: &scores.entropies })?;
            text.push('\n');
        }
        output::exact(&text)?;
    }
    Ok(())
}

/// How many of the next lines are computed together: at least one, plus all lines that share its prompt.
fn portion(lines: &[Line]) -> usize {
    let mut tokens = 0;
    for (i, line) in lines.iter().enumerate() {
        tokens += line.prompt_ids.len() + line.completion_ids.len();
        if i > 0 && tokens > MAX_TOKENS && line.prompt_ids != lines[i - 1].prompt_ids {
            return i;
        }
    }
    lines.len()
}

/// Reads the input; returns its name and its lines, after checking all token ids against the vocabulary size.
fn read(path: &Path, vocabulary: usize) -> anyhow::Result<(String, Vec<Line>)> {
    let (name, reader): (_, Box<dyn BufRead>) = if path == Path::new("-") {
        ("standard input".to_owned(), Box::new(std::io::stdin().lock()))
    } else {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|e| BadInput::new(format!("cannot read {name}: {e}")))?;
        (name, Box::new(BufReader::new(file)))
    };
    let mut lines = Vec::new();
    for (i, text) in reader.lines().enumerate() {
        let place = format!("{name}, line {}", i + 1);
        let text = text.or_bad_input_in(&place)?;
        let line: Line = serde_json::from_str(&text).map_err(|e| {
            let expected = r#"expected {"prompt_ids": [...], "completion_ids": [...]} with token ids"#;
            let whole = if e.is_eof() { WHOLE_LINES } else { "" };
            BadInput::new(format!("{place}: {e}{whole}; {expected}"))
        })?;
        if line.prompt_ids.is_empty() {
            bad_input!("{place}: prompt_ids must have at least one token, such as the BOS token");
        }
        let ids = [("prompt_ids", &line.prompt_ids), ("completion_ids", &line.completion_ids)];
        for (key, ids) in ids {
            if let Some(at) = ids.iter().position(|&id| id as usize >= vocabulary) {
                bad_input!("{place}: {key}[{at}] = {} must be below the vocabulary size {vocabulary}", ids[at]);
            }
        }
        lines.push(line);
    }
    Ok((name, lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(prompt: usize, of: u32, completion: usize) -> Line {
        Line { prompt_ids: vec![of; prompt], completion_ids: vec![1; completion] }
    }

    #[test]
    fn a_portion_ends_at_its_token_limit_but_never_within_a_prompt() {
        assert_eq!(portion(&[line(9000, 1, 9000)]), 1, "a line above the limit");
        let full = || vec![line(2000, 1, 48), line(2000, 2, 48)];
        assert_eq!(portion(&full()), 2, "exactly the limit");
        let with = |more: Vec<Line>| portion(&full().into_iter().chain(more).collect::<Vec<_>>());
        assert_eq!(with(vec![line(1, 3, 0)]), 2, "one token above the limit");
        assert_eq!(with(vec![line(2000, 2, 48), line(1, 3, 0)]), 3, "a line with the same prompt is included");
    }

    #[test]
    fn token_ids_outside_the_vocabulary_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ids.jsonl");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            super::read(&path, 10).map_err(|error| error.to_string().replace(&*path.to_string_lossy(), "FILE"))
        };
        let good = r#"{"prompt_ids": [9], "completion_ids": [0, 9]}"#;
        let (name, lines) = read(&format!("{good}\n{good}\n")).unwrap();
        assert_eq!((name, lines.len(), &lines[1].completion_ids), (path.display().to_string(), 2, &vec![0, 9]));
        for (bad, why) in [
            (
                r#"{"prompt_ids": [10], "completion_ids": []}"#,
                "prompt_ids[0] = 10 must be below the vocabulary size 10",
            ),
            (
                r#"{"prompt_ids": [1], "completion_ids": [1, 12, 11]}"#,
                "completion_ids[1] = 12 must be below the vocabulary size 10",
            ),
            (
                r#"{"prompt_ids": [], "completion_ids": [1]}"#,
                "prompt_ids must have at least one token, such as the BOS token",
            ),
        ] {
            assert_eq!(read(&format!("{good}\n{bad}\n")).unwrap_err(), format!("FILE, line 2: {why}"));
        }
        let why = read("{}\n").unwrap_err();
        assert!(why.starts_with("FILE, line 1: missing field `prompt_ids`"), "{why}");
        assert!(super::read(Path::new("/no/such"), 1).unwrap_err().to_string().starts_with("cannot read /no/such: "));
    }
}
