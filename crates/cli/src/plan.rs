//! `lockstep plan`.

use crate::options::{ConfigArgs, LogArgs};
use lockstep::bad_input;
use lockstep::config::{Config, Purpose};
use lockstep::error::paragraph;
use lockstep::models::{Found, Words};
use lockstep::run::memory_plan::{self, MemoryPlan, mib};
use lockstep::trainers::{dpo, reward, sft};
use model::Head;
use serde_json::json;
use std::io::Write;
use telemetry::{Console, ConsoleSink, Sinks};

/// Says what memory a run will take, by part, before it starts.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The command that will run it.
    #[arg(long = "for", value_name = "COMMAND", default_value = "train")]
    pub command: Command,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// What runs a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Command {
    /// `lockstep train`
    Train,
    /// `lockstep sft`
    Sft,
    /// `lockstep reward`
    Reward,
    /// `lockstep dpo`
    Dpo,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let (plan, config) = match args.command {
        Command::Train => training(&args)?,
        Command::Sft => supervised(&args)?,
        Command::Reward => of_pairs(&args)?,
        Command::Dpo => preference(&args)?,
    };
    let available = memory_plan::available_bytes();
    let fits = plan.check(available, &config);
    let mut out = std::io::stdout().lock();
    if args.json {
        let object = json!({
            "parts": plan.parts,
            "total_bytes": plan.total,
            "needed_bytes": plan.needed(),
            "available_bytes": available,
            "fits": fits.is_ok(),
            "longest_prompt": plan.longest.prompt,
            "longest_completion": plan.longest.completion,
        });
        writeln!(out, "{object}")?;
        return Ok(());
    }
    write!(out, "{}", plan.table().render(110))?;
    let of = if config.dataset_name.is_some() || config.replay.is_some() {
        "the longest of the data"
    } else {
        "the longest possible: no data is given"
    };
    writeln!(out, "prompts of {} tokens, completions of {} ({of})", plan.longest.prompt, plan.longest.completion)?;
    match (fits, available) {
        (Err(why), _) => writeln!(out, "does not fit: {}", paragraph(&why))?,
        (Ok(()), Some(available)) => writeln!(out, "fits: {} MiB are available", mib(available))?,
        (Ok(()), None) => {}
    }
    Ok(())
}

fn training(args: &Args) -> anyhow::Result<(MemoryPlan, Config)> {
    let shown = args.config.resolve(Purpose::Show)?;
    // A configuration that could be trained is checked as training does; an unfinished one may still be planned.
    let c = &shown.config;
    let complete = c.replay.is_some() || (c.dataset_name.is_some() && !c.reward_funcs.is_empty());
    let config = if complete { args.config.resolve(Purpose::Grpo)?.config } else { shown.config };
    let words = words(&config)?;
    let known = memory_plan::known(&config, &words)?;
    let plan = memory_plan::plan(&config, &words, known)?;
    Ok((plan, config))
}

fn supervised(args: &Args) -> anyhow::Result<(MemoryPlan, Config)> {
    let resolved = args.config.resolve(Purpose::Sft)?;
    let words = words(&resolved.config)?;
    let plan = sft::plan(&resolved.config, &words, &sinks()?)?;
    Ok((plan, resolved.config))
}

fn of_pairs(args: &Args) -> anyhow::Result<(MemoryPlan, Config)> {
    let config = args.config.resolve(Purpose::Reward)?.config;
    let words = Words::load_scorer(&Found::of(&config, Head::Score(1))?.dir)?.computing_in(config.dtype)?;
    let plan = reward::plan(&config, &words, &sinks()?)?;
    Ok((plan, config))
}

fn preference(args: &Args) -> anyhow::Result<(MemoryPlan, Config)> {
    let resolved = args.config.resolve(Purpose::Dpo)?;
    let words = words(&resolved.config)?;
    let plan = dpo::plan(&resolved.config, &words, &sinks()?)?;
    Ok((plan, resolved.config))
}

/// What planning says on the way.
fn sinks() -> anyhow::Result<Sinks> {
    let sinks = Sinks::new();
    sinks.add(ConsoleSink::new(Console::new(LogArgs::default().console()?)?));
    Ok(sinks)
}

fn words(config: &Config) -> anyhow::Result<Words> {
    match &config.model_name_or_path {
        Some(_) => Words::load(&Found::of(config, Head::Lm)?.dir)?.computing_in(config.dtype),
        None => bad_input!("no model: give --model DIR, or model_name_or_path in the configuration"),
    }
}
