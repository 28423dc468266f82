//! `lockstep plan`.

use crate::options::{ConfigArgs, LogArgs};
use lockstep::config::{Config, Purpose};
use lockstep::{MemoryPlan, error};
use serde_json::json;
use std::io::Write;
use telemetry::table::{Align, Table};
use telemetry::{ConsoleSink, Sinks};

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

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let (purpose, config) = configuration(&args)?;
    let sinks = Sinks::new();
    sinks.add(ConsoleSink::new(LogArgs::default().open()?));
    let plan = lockstep::plan(purpose, &config, &sinks)?;
    let available = MemoryPlan::available_bytes();
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
    write!(out, "{}", table(&plan).render(110))?;
    let of = if config.dataset_name.is_some() || config.replay.is_some() {
        "the longest of the data"
    } else {
        "the longest possible: no data is given"
    };
    writeln!(out, "prompts of {} tokens, completions of {} ({of})", plan.longest.prompt, plan.longest.completion)?;
    match (fits, available) {
        (Err(why), _) => writeln!(out, "does not fit: {}", error::paragraph(&why))?,
        (Ok(()), Some(available)) => writeln!(out, "fits: {} MiB are available", mib(available))?,
        (Ok(()), None) => {}
    }
    Ok(())
}

/// What is planned, and by which command.
fn configuration(args: &Args) -> anyhow::Result<(Purpose, Config)> {
    let purpose = match args.command {
        Command::Train => {
            let shown = args.config.resolve(Purpose::Show)?.config;
            // A configuration that could be trained is checked as training does; an unfinished one may still be
            // planned.
            let complete = shown.replay.is_some() || (shown.dataset_name.is_some() && !shown.reward_funcs.is_empty());
            if !complete {
                return Ok((Purpose::Show, shown));
            }
            Purpose::Grpo
        }
        Command::Sft => Purpose::Sft,
        Command::Reward => Purpose::Reward,
        Command::Dpo => Purpose::Dpo,
    };
    Ok((purpose, args.config.resolve(purpose)?.config))
}

/// The parts and their sum.
fn table(plan: &MemoryPlan) -> Table {
    let columns = [("part", Align::Left), ("MiB", Align::Right), ("lowered by", Align::Left)];
    let mut table = Table::new(columns);
    for part in &plan.parts {
        table.row([part.name.as_str(), &mib(part.bytes), part.lowered_by]);
    }
    table.row(["predicted peak", &mib(plan.total), ""]);
    table
}

/// Bytes as MiB with one decimal.
fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}
