//! `lockstep eval`.

use crate::signals::stop_on_signals;
use anyhow::anyhow;
use lockstep::config::{Config, Layers, Purpose};
use lockstep::error::BadInput;
use lockstep::{Evaluator, HubKind, Outcome, Policy, context, locate, write_atomically};
use rewards::Problem;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;
use telemetry::{Align, Console, ConsoleOptions, Table};

/// Scores a model on a task.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A Hugging Face model directory, or a Hub id.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// A low-rank adapter of it: a PEFT directory.
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// The task: gsm8k or prompt_answer.
    #[arg(long, value_name = "TASK", default_value = "gsm8k")]
    pub task: String,
    /// JSONL or Parquet.
    #[arg(long, value_name = "FILE")]
    pub dataset: PathBuf,
    /// Completions of each prompt; with more than one, pass@k too. One is greedy unless --temperature is given.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub n: usize,
    /// The sampling temperature; not given: greedy with --n 1, else 1.
    #[arg(long, value_name = "T")]
    pub temperature: Option<f64>,
    /// The first rows only.
    #[arg(long, value_name = "N")]
    pub max_samples: Option<usize>,
    /// The most tokens of a completion.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub max_completion_length: usize,
    /// What products compute in.
    #[arg(long, value_parser = ["f32", "bf16"], default_value = "f32")]
    pub dtype: String,
    /// The seed.
    #[arg(long, value_name = "S", default_value_t = 42)]
    pub seed: u64,
    /// Sets any other key (prompt_column, system_prompt, …).
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Writes each prompt, completion and score as JSON lines.
    #[arg(long, value_name = "FILE.jsonl")]
    pub output: Option<PathBuf>,
    /// The result as JSON on standard output.
    #[arg(long)]
    pub json: bool,
    /// Threads; all cores if not given.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = configuration(&args)?;
    if let Some(path) = &args.output {
        // Found out before the evaluation, not after it.
        let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if path.is_dir() || !directory.is_dir() {
            return Err(BadInput::new(format!("--output {}: not a file in a directory that exists", path.display())));
        }
    }
    let ctx = context(args.threads)?;
    let model = locate(&args.model.to_string_lossy(), HubKind::Model)?;
    let sampling = config.eval_sampling;
    let stop = stop_on_signals(&Console::new(ConsoleOptions::default())?, "the evaluation stops, without a result")?;
    let mut evaluator = Evaluator::new(&ctx, config, &model, stop)?;
    let policy = Policy::load_with(&ctx, &model, args.adapter.as_deref(), args.dtype.as_str().into())?;
    let start = Instant::now();
    let outcome = evaluator.evaluate(&policy, sampling)?;
    for problem in &outcome.problems {
        eprintln!("warning: {problem}");
    }
    if let Some(path) = &args.output {
        write_atomically(path, lines(&outcome, &policy)?.as_bytes())?;
    }
    let completions = outcome.rollouts.completions().count();
    let judged = outcome.rollouts.judged();
    let mut metrics = outcome.metrics;
    metrics.push(("eval_runtime".into(), start.elapsed().as_secs_f64()));
    if args.json {
        let mut map: serde_json::Map<String, Value> = metrics.into_iter().map(|(n, v)| (n, json!(v))).collect();
        let of = |(name, n): &(String, usize)| (name.clone(), json!([n, completions]));
        map.insert("judged".to_owned(), Value::Object(judged.iter().map(of).collect()));
        println!("{}", Value::Object(map));
        return all_judged(&judged, &outcome.problems);
    }
    let mut table = Table::new([("metric", Align::Left), ("value", Align::Right)]);
    table.row(["prompts".to_owned(), evaluator.prompts().count().to_string()]);
    for (name, value) in metrics {
        table.row([name, format!("{value:.4}")]);
    }
    for (name, n) in &judged {
        table.row([format!("judged by {name}"), format!("{n}/{completions}")]);
    }
    println!("{}", table.render(100));
    all_judged(&judged, &outcome.problems)
}

/// An error where a reward judged nothing, unless it left that to others: no figure above speaks of it.
fn all_judged(judged: &[(String, usize)], problems: &[Problem]) -> anyhow::Result<()> {
    let nobody = judged.iter().all(|(_, n)| *n == 0);
    let failed = |name: &str| nobody || problems.iter().any(|problem| problem.reward == name);
    match judged.iter().find(|(name, n)| *n == 0 && failed(name)) {
        Some((name, _)) => Err(anyhow!("reward `{name}` judged no completion")),
        None => Ok(()),
    }
}

/// The flags as a configuration: what evaluation during training would have.
fn configuration(args: &Args) -> anyhow::Result<Config> {
    let greedy = args.temperature.map_or(args.n == 1, |t| t == 0.0);
    let mut set = vec![
        ("model_name_or_path".to_owned(), args.model.display().to_string()),
        ("task".to_owned(), args.task.clone()),
        ("eval_dataset_name".to_owned(), args.dataset.display().to_string()),
        ("num_generations_eval".to_owned(), args.n.to_string()),
        ("eval_sampling".to_owned(), if greedy { "greedy" } else { "sampled" }.to_owned()),
        ("max_completion_length".to_owned(), args.max_completion_length.to_string()),
        ("seed".to_owned(), args.seed.to_string()),
    ];
    if let Some(temperature) = args.temperature.filter(|t| *t != 0.0) {
        set.push(("temperature".to_owned(), temperature.to_string()));
    }
    if args.n > 1 {
        set.push(("eval_pass_at_k".to_owned(), format!("[1, {}]", args.n)));
    }
    set.extend(args.max_samples.map(|n| ("eval_max_samples".to_owned(), n.to_string())));
    for pair in &args.set {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(BadInput::new(format!("--set {pair}: expected KEY=VALUE")));
        };
        set.push((key.trim().to_owned(), value.trim().to_owned()));
    }
    Ok(Layers { purpose: Purpose::Show, set, ..Layers::default() }.resolve()?.config)
}

/// Prompt, completion and reward of each completion, as JSON lines.
fn lines(outcome: &Outcome, policy: &Policy) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut rewards = outcome.rollouts.rewards().totals().into_iter();
    for group in &outcome.rollouts.groups {
        for (scored, reward) in group.completions.iter().zip(&mut rewards) {
            let line = json!({
                "prompt": group.prompt.content,
                "completion": policy.tokenizer.decode(&scored.completion.ids, true)?,
                "reward": reward,
            });
            text.push_str(&line.to_string());
            text.push('\n');
        }
    }
    Ok(text)
}
