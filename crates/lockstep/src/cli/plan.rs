//! `lockstep plan`.

use super::options::ConfigArgs;
use crate::bad_input;
use crate::config::Purpose;
use crate::data::locate::{HubKind, locate};
use crate::error::paragraph;
use crate::memory_plan::{self, mib};
use crate::policy::Words;
use serde_json::json;
use std::io::Write;

/// Says what memory a run will take, by part, before it starts.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let shown = args.config.resolve(Purpose::Show)?;
    // A configuration that could be trained is checked as training does; an unfinished one may still be planned.
    let complete = shown.config.dataset_name.is_some() && !shown.config.reward_funcs.is_empty();
    let config = if complete { args.config.resolve(Purpose::Grpo)?.config } else { shown.config };
    let Some(model) = &config.model_name_or_path else {
        bad_input!("no model: give --model DIR, or model_name_or_path in the configuration");
    };
    let words = Words::load(&locate(model, HubKind::Model)?)?;
    let longest_prompt = memory_plan::longest_prompt(&config, &words)?;
    let plan = memory_plan::plan(&config, &words, longest_prompt)?;
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
            "longest_prompt": longest_prompt,
        });
        writeln!(out, "{object}")?;
        return Ok(());
    }
    write!(out, "{}", plan.table().render(110))?;
    let measured =
        if config.dataset_name.is_some() { "the longest" } else { "the longest possible (no data is given)" };
    writeln!(out, "prompts of {longest_prompt} tokens ({measured}), completions of {}", config.max_completion_length)?;
    match (fits, available) {
        (Err(why), _) => writeln!(out, "does not fit: {}", paragraph(&why))?,
        (Ok(()), Some(available)) => writeln!(out, "fits: {} MiB are available", mib(available))?,
        (Ok(()), None) => {}
    }
    Ok(())
}
