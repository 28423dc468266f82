//! `lockstep eval`: evaluates a model on a dataset.

use crate::options::{FlagKeys, RewardArgs, device, utf8};
use crate::output;
use crate::signals::{Promise, stop_on_signals};
use kernels::Device;
use lockstep::config::{Config, EvalSampling, Layers, Purpose, Resolved};
use lockstep::directory::{find_model, prompt_time};
use lockstep::evaluation::{Evaluator, Outcome};
use lockstep::files::{Input, OutFile};
use lockstep::weights::locate_model;
use lockstep::{Policy, bad_input, context};
use model::chat::PromptTime;
use rewards::Content;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;
use telemetry::{Align, Console, ConsoleOptions, Table};

/// How many characters of the first prompt are printed.
const SHOWN: usize = 600;

/// Evaluates a model: on the evaluation data of a run's configuration, as the run does, or on a file.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A run's directory, one of its checkpoints, or a TOML configuration file: evaluates with that configuration.
    #[arg(value_name = "RUN|CONFIG.toml")]
    pub source: Option<PathBuf>,
    /// The model: a Hugging Face directory, a Hub id, or a PEFT adapter directory; the run's model if not given.
    #[arg(long, value_name = "DIR")]
    pub model: Option<String>,
    /// The PEFT directory of a LoRA adapter for the model.
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// Allows an adapter that was trained on other base weights.
    #[arg(long)]
    pub other_base: bool,
    /// The dataset, JSONL or Parquet, instead of the configuration's dataset; repeat NAME=FILE for several datasets.
    #[arg(long, value_name = "[NAME=]FILE")]
    pub dataset: Vec<String>,
    /// A preset of columns, system prompt and reward: gsm8k or prompt_answer (task).
    #[arg(long, value_name = "TASK")]
    pub task: Option<String>,
    #[command(flatten)]
    pub rewards: RewardArgs,
    /// Completions per prompt; if more than one, they are sampled (num_generations_eval). Without a configuration: 1,
    /// greedy.
    #[arg(long, value_name = "N")]
    pub n: Option<usize>,
    /// The sampling temperature; 0: greedy.
    #[arg(long, value_name = "T")]
    pub temperature: Option<f64>,
    /// The values of k for pass@k (eval_pass_at_k). Without a configuration: 1 and N.
    #[arg(long, value_name = "K,…", value_delimiter = ',')]
    pub pass_at_k: Vec<usize>,
    /// Evaluates only the first N rows (eval_max_samples).
    #[arg(long, value_name = "N")]
    pub max_samples: Option<usize>,
    /// Maximum number of tokens per completion.
    #[arg(long, value_name = "N")]
    pub max_completion_length: Option<usize>,
    /// The dtype of matmuls.
    #[arg(long, value_parser = ["f32", "bf16"])]
    pub dtype: Option<String>,
    /// The seed.
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Sets any other key (prompt_column, system_prompt, …); may be repeated, and the last one wins.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Writes each completion with the columns of its row and its scores as JSON lines.
    #[arg(long, alias = "output", value_name = "FILE.jsonl")]
    pub out: Option<PathBuf>,
    /// Allows --out to overwrite an existing file.
    #[arg(long, requires = "out")]
    pub overwrite: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    pub json: bool,
    /// The device: cpu, cuda, cuda:1, … (device).
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    pub device: Option<Device>,
    /// Threads; all cores if not given.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let Resolved { config, notes, .. } = configuration(&args)?;
    for note in &notes {
        output::note(format_args!("note: {note}"));
    }
    let ctx = context(config.device, config.threads, config.dtype)?;
    let (model, below) = locate_model(config.model_name_or_path.as_deref().unwrap_or_default())?;
    let adapter = match (&below, &args.adapter) {
        (Some(own), Some(_)) => {
            bad_input!("--adapter cannot be used: the model {} is itself an adapter", own.display())
        }
        (own, given) => own.as_deref().or(given.as_deref()),
    };
    let out = out_file(&args, &config, &model, adapter)?;
    let promise = Promise::Ends("the evaluation stops, without a result");
    let console = Console::new(ConsoleOptions::default())?;
    let stop = stop_on_signals(&console, promise)?;
    // A chat template may print the date; a run's prompts have the date on which the run was first started.
    let run = args.source.as_deref().filter(|source| source.is_dir()).map(find_model).transpose()?;
    let time = run.and_then(|(run, _)| prompt_time(&run)).unwrap_or_else(PromptTime::now);
    let mut evaluator = Evaluator::new(&ctx, config.clone(), (&model, time), &output::sinks(&console), stop)?;
    let policy = if config.allow_other_base {
        Policy::load_with_other(&ctx, &model, adapter, config.dtype)?
    } else {
        Policy::load_with(&ctx, &model, adapter, config.dtype, output::warn)?
    };
    let adapter = adapter.map(|dir| dir.display().to_string());
    let settings = Settings { config: &config, model: model.display().to_string(), adapter, evaluator: &evaluator };
    if !args.json {
        output::note(settings.text(&policy)?.trim_end());
    }
    let mut report = settings.json();
    let start = Instant::now();
    let outcomes = evaluator.evaluate(&policy, config.eval_sampling)?;
    let seconds = start.elapsed().as_secs_f64();
    for outcome in &outcomes {
        let warnings = outcome.problems.iter().map(ToString::to_string).chain(outcome.unscored.clone());
        warnings.for_each(|warning| output::note(format_args!("warning: {warning}")));
    }
    if let Some(out) = &out {
        out.write(lines(&outcomes).as_bytes())?;
    }
    let metrics = outcomes.iter().flat_map(|outcome| outcome.metrics.iter().cloned());
    let metrics: Vec<_> = metrics.chain([("eval_runtime".to_owned(), seconds)]).collect();
    let printed = if args.json {
        report.extend(metrics.into_iter().map(|(name, value)| (name, json!(value))));
        report.insert("rewards".into(), outcomes.iter().flat_map(summaries).map(|s| s.json()).collect());
        output::json(&report)
    } else {
        let mut table = Table::new([("metric", Align::Left), ("value", Align::Right)]);
        for (name, value) in metrics {
            table.row([name, format!("{value:.4}")]);
        }
        output::text(&format!("{}{}\n", table.render(100), rewards_table(&outcomes).render(100)))
    };
    outcomes.iter().try_for_each(all_scored)?;
    let mut all = outcomes.iter().flat_map(|outcome| &outcome.metrics);
    match all.find(|(_, value)| !value.is_finite()) {
        Some((name, value)) => anyhow::bail!("{name} is {value}: the sum of the scores overflows"),
        None => Ok(printed?),
    }
}

/// The output file of `--out`, which must differ from all input files.
fn out_file(args: &Args, config: &Config, model: &Path, adapter: Option<&Path>) -> anyhow::Result<Option<OutFile>> {
    let Some(out) = &args.out else { return Ok(None) };
    let sets = config.eval_datasets.values().filter_map(Value::as_str);
    let data = config.eval_dataset_name.as_deref().into_iter().chain(sets).map(Path::new);
    let source = |path| if Path::is_dir(path) { Input::Kept(path) } else { Input::Data(path) };
    let models = std::iter::once(model).chain(adapter).map(Input::Kept);
    let inputs: Vec<_> = models.chain(data.map(Input::Data)).chain(args.source.as_deref().map(source)).collect();
    OutFile::new("--out", out, args.overwrite, &inputs).map(Some)
}

/// An error if a reward failed and scored no completion, or if no reward scored any completion.
fn all_scored(outcome: &Outcome) -> anyhow::Result<()> {
    let failed: Vec<&str> = outcome.problems.iter().map(|problem| problem.reward.as_str()).collect();
    match first_unscored(&outcome.rollouts.scored(), &failed) {
        Some(name) if outcome.name.is_empty() => anyhow::bail!("reward `{name}` scored no completion"),
        Some(name) => anyhow::bail!("reward `{name}` scored no completion of {}", outcome.name),
        None => Ok(()),
    }
}

/// The first reward among `failed` that scored no completion; or the first of all rewards, if no reward scored any
/// completion.
fn first_unscored<'a>(scored: &'a [(String, usize)], failed: &[&str]) -> Option<&'a str> {
    let nobody = scored.iter().all(|(_, n)| *n == 0);
    let found = scored.iter().find(|(name, n)| *n == 0 && (nobody || failed.contains(&name.as_str())))?;
    Some(&found.0)
}

/// The configuration: the run's, overridden by the environment, then by the flags.
fn configuration(args: &Args) -> anyhow::Result<Resolved> {
    let (file, model) = match &args.source {
        Some(path) => source(path)?,
        None => (None, None),
    };
    // Without a configuration, decoding is greedy.
    let base = Config { eval_sampling: EvalSampling::Greedy, num_generations_eval: Some(1), ..Config::default() };
    let config = file.is_none().then_some(base);
    let mut flags = FlagKeys::default();
    flags.implied("model_name_or_path", model.filter(|_| args.model.is_none()));
    flags.given("--model", "model_name_or_path", args.model.clone());
    flags.given("--task", "task", args.task.clone());
    args.rewards.give(&mut flags)?;
    if !args.dataset.is_empty() {
        let (unnamed, named) = datasets(&args.dataset)?;
        flags.given("--dataset", "eval_dataset_name", Some(unnamed.unwrap_or_else(|| "none".to_owned())));
        flags.given("--dataset", "eval_datasets", Some(format!("{{{}}}", named.join(", "))));
    }
    flags.given("--other-base", "allow_other_base", args.other_base.then(|| "true".to_owned()));
    flags.given("--n", "num_generations_eval", args.n.map(|n| n.to_string()));
    let several = args.n.is_some_and(|n| n > 1);
    match args.temperature {
        Some(0.0) => flags.given("--temperature 0", "eval_sampling", Some("greedy".to_owned())),
        Some(t) => {
            flags.given("--temperature", "eval_sampling", Some("sampled".to_owned()));
            flags.given("--temperature", "temperature", Some(t.to_string()));
        }
        None => flags.implied("eval_sampling", several.then(|| "sampled".to_owned())),
    }
    if !args.pass_at_k.is_empty() {
        flags.given("--pass-at-k", "eval_pass_at_k", Some(format!("{:?}", args.pass_at_k)));
    } else if let (None, true, Some(n)) = (&file, several, args.n) {
        flags.implied("eval_pass_at_k", Some(format!("[1, {n}]")));
    }
    flags.given("--max-samples", "eval_max_samples", args.max_samples.map(|n| n.to_string()));
    flags.given("--max-completion-length", "max_completion_length", args.max_completion_length.map(|n| n.to_string()));
    flags.given("--dtype", "dtype", args.dtype.clone());
    flags.given("--seed", "seed", args.seed.map(|n| n.to_string()));
    flags.given("--device", "device", args.device.map(|device| device.name().to_owned()));
    flags.given("--threads", "threads", args.threads.map(|n| n.to_string()));
    let set = flags.and_set(&args.set)?;
    Layers { purpose: Purpose::Eval, config, file, set, ..Layers::default() }.with_environment()?.resolve()
}

/// Returns the configuration file of `path`. If `path` is a training run, also returns its final model, or else the
/// model in its newest checkpoint.
fn source(path: &Path) -> anyhow::Result<(Option<PathBuf>, Option<String>)> {
    if !path.is_dir() {
        return Ok((Some(path.to_owned()), None));
    }
    let (run, model) = find_model(path)?;
    Ok((Some(run.config()), Some(utf8("RUN", &model)?)))
}

/// Splits `--dataset` values into one unnamed file, and `name = "file"` entries for named files.
fn datasets(given: &[String]) -> anyhow::Result<(Option<String>, Vec<String>)> {
    let (mut unnamed, mut named) = (None, Vec::new());
    for text in given {
        match text.split_once('=') {
            // A file name may contain `=`.
            Some((name, file)) if !Path::new(text).exists() => {
                let name = format!("{} = ", json!(name.trim()));
                if named.iter().any(|set: &String| set.starts_with(&name)) {
                    bad_input!("--dataset {text}: the name is used twice; each dataset needs a different name");
                }
                named.push(format!("{name}{}", json!(file.trim())));
            }
            _ if unnamed.is_some() => {
                bad_input!("--dataset {text}: several datasets need names: --dataset NAME=FILE")
            }
            _ => unnamed = Some(text.clone()),
        }
    }
    Ok((unnamed, named))
}

/// Prints the settings of an evaluation.
struct Settings<'a> {
    config: &'a Config,
    model: String,
    adapter: Option<String>,
    evaluator: &'a Evaluator,
}

impl Settings<'_> {
    /// The chat template; `None` if no prompt is a conversation, since it is then not used.
    fn template(&self) -> Option<&str> {
        let conversations = self.evaluator.prompts().any(|prompt| matches!(prompt, Content::Messages(_)));
        self.evaluator.template().filter(|_| conversations)
    }

    fn text(&self, policy: &Policy) -> anyhow::Result<String> {
        let c = self.config;
        let adapter = self.adapter.as_ref().map_or(String::new(), |dir| format!(" with the adapter {dir}"));
        let template = match (self.template(), self.evaluator.template()) {
            (Some(source), _) => format!("from the model, {} characters", source.chars().count()),
            (None, Some(_)) => "not used: the prompts are plain text".to_owned(),
            (None, None) => "none: the model does not have one; the prompts are plain text".to_owned(),
        };
        let sampling = match c.eval_sampling {
            EvalSampling::Greedy => "greedy".to_owned(),
            EvalSampling::Sampled => format!("sampled at temperature {}", c.temperature),
        };
        let first = policy.tokenizer.decode(self.evaluator.first_prompt(), false)?;
        let shown: String = first.chars().take(SHOWN).collect();
        let more = if shown.len() < first.len() { "…" } else { "" };
        Ok(format!(
            "model          {}{adapter}\n\
             prompts        {}\n\
             chat template  {template}\n\
             system prompt  {}\n\
             completions    {} per prompt, {sampling}, at most {} tokens\n\
             first prompt   {shown:?}{more}\n",
            self.model,
            self.evaluator.prompts().count(),
            c.system_prompt.as_ref().map_or_else(|| "none".to_owned(), |text| format!("{text:?}")),
            c.generations_eval(),
            c.max_completion_length
        ))
    }

    fn json(&self) -> Map<String, Value> {
        let c = self.config;
        let sampling = if c.eval_sampling == EvalSampling::Greedy { "greedy" } else { "sampled" };
        let object = json!({
            "model": self.model,
            "adapter": self.adapter,
            "prompts": self.evaluator.prompts().count(),
            "chat_template": self.template(),
            "system_prompt": c.system_prompt,
            "sampling": sampling,
            "num_generations": c.generations_eval(),
        });
        if let Value::Object(object) = object { object } else { Map::new() }
    }
}

/// The scores of one reward on one dataset.
struct Summary<'a> {
    set: &'a str,
    reward: String,
    weight: f64,
    /// The mean score; `None` if too few completions have a score.
    mean: Option<f64>,
    std: Option<f64>,
    scored: usize,
    of: usize,
}

fn summaries(outcome: &Outcome) -> impl Iterator<Item = Summary<'_>> {
    let rollouts = &outcome.rollouts;
    rollouts.scored().into_iter().zip(&rollouts.reward_weights).map(|((reward, scored), &weight)| Summary {
        set: &outcome.name,
        mean: outcome.metric(&format!("rewards/{reward}/mean")),
        std: outcome.metric(&format!("rewards/{reward}/std")),
        reward,
        weight,
        scored,
        of: rollouts.completions().count(),
    })
}

impl Summary<'_> {
    fn json(&self) -> Value {
        let Summary { set, reward, weight, mean, std, scored, of } = self;
        json!({"set": set, "reward": reward, "weight": weight, "mean": mean, "std": std, "judged": scored, "of": of})
    }
}

fn rewards_table(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new([
        ("set", Align::Left),
        ("reward", Align::Left),
        ("weight", Align::Right),
        ("mean", Align::Right),
        ("std", Align::Right),
        ("scored", Align::Right),
    ]);
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"));
    for s in outcomes.iter().flat_map(summaries) {
        let scored = format!("{}/{}", s.scored, s.of);
        let set = if s.set.is_empty() { "-" } else { s.set };
        table.row([set.into(), s.reward, s.weight.to_string(), number(s.mean), number(s.std), scored]);
    }
    table
}

/// The completions with their dataset columns and rewards as JSON lines, in the input format of `lockstep
/// score-rewards`.
fn lines(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let names = &outcome.rollouts.reward_names;
        let mut totals = outcome.rollouts.rewards().totals().into_iter();
        for group in &outcome.rollouts.groups {
            for (scored, total) in group.completions.iter().zip(&mut totals) {
                let rewards: Map<String, Value> =
                    names.iter().cloned().zip(scored.rewards.iter().map(|score| json!(score))).collect();
                let own = [
                    ("set", json!(outcome.name)),
                    ("prompt", json!(group.prompt.content)),
                    ("completion", json!(scored.content.text())),
                    ("completion_ids", json!(scored.completion.ids)),
                    ("finish_reason", json!(scored.completion.finish_reason.name())),
                    ("reward", json!(total)),
                    ("rewards", json!(rewards)),
                ];
                let mut line = group.prompt.columns.clone();
                line.extend(own.map(|(name, value)| (name.to_owned(), value)));
                text.push_str(&Value::Object(line).to_string());
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests;
