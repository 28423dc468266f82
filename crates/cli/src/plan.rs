//! `lockstep plan`: predicts the memory of a training run.

use crate::options::{ConfigArgs, LogArgs, RewardArgs};
use crate::output;
use crate::program::EndedWith;
use kernels::Device;
use lockstep::config::{Config, Purpose};
use lockstep::error::OrBadInput;
use lockstep::planning::{Available, MemoryPlan, PlannedRun};
use lockstep::ranks::check_world_size;
use lockstep::{context, error};
use serde_json::json;
use telemetry::table::{Align, Table};
use telemetry::{ConsoleSink, Sinks};

/// A configuration, and the command for which it is planned.
#[derive(Debug, clap::Args)]
pub struct Planned {
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub rewards: RewardArgs,
    /// The command that the configuration is for.
    #[arg(long = "for", value_name = "COMMAND", default_value = "train")]
    pub command: Command,
}

/// Exit code if the run does not fit.
const DOES_NOT_FIT: u8 = 1;

/// Predicts the memory of a run, by part, before it starts. Exit code: 0 if the run fits, or if the available memory is
/// unknown; 1 if it does not fit.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub planned: Planned,
    /// Plans the learner of a distributed run. A learner has max_staleness + 1 slots, one per version of the weights
    /// that workers may read, and generates nothing. Each worker maps the same slots and has its own engine.
    #[arg(long)]
    pub distributed: bool,
    /// Plans a run with this many ranks, whose memory is listed by rank.
    #[arg(long, value_name = "N", default_value_t = 1, hide_default_value = true, conflicts_with = "distributed")]
    pub ranks: usize,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// A command that runs a configuration.
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

impl Command {
    /// The purpose that this command passes when it reads the configuration.
    pub fn purpose(self) -> Purpose {
        match self {
            Command::Train => Purpose::Grpo,
            Command::Sft => Purpose::Sft,
            Command::Reward => Purpose::Reward,
            Command::Dpo => Purpose::Dpo,
        }
    }
}

pub(crate) fn run(mut args: Args) -> anyhow::Result<()> {
    args.planned.rewards.give(&mut args.planned.config.more)?;
    let (purpose, mut config) = configuration(&args.planned)?;
    let ranks = check_world_size(args.ranks, "--ranks")?;
    config.gradient_shares = config.gradient_shares.max(ranks);
    let sinks = Sinks::new();
    sinks.add(ConsoleSink::new(LogArgs::default().open()?));
    let device = config.device.map_or_else(Device::from_env, Ok).or_bad_input()?;
    // A run may be planned on a machine that lacks the run's device.
    let opened = device.is_cuda().then(|| context(Some(device), config.threads, config.dtype));
    let available = match &opened {
        Some(Ok(ctx)) => Available::of(ctx),
        _ => Available::on_host(),
    };
    let run = PlannedRun { purpose, config: &config, distributed: args.distributed, ranks, device };
    let (plan, fits) = run.check(&available, &sinks)?;
    // The exit code reports whether the run fits even if the plan cannot be printed.
    let fits_here = fits.is_ok();
    let ended = |printed: Result<(), output::NotPrinted>| {
        let printed = printed.or_else(|error| if error.is_closed() { Ok(()) } else { Err(error) });
        if fits_here {
            return printed.or_bad_input();
        }
        if let Err(error) = printed {
            output::note(format_args!("error: {error}"));
        }
        Err(EndedWith(DOES_NOT_FIT).into())
    };
    if args.json {
        let mut object = json!({
            "parts": plan.parts,
            "total_bytes": plan.total,
            "needed_bytes": plan.needed(),
            "available_bytes": available.host,
            "limit_bytes": available.limit.as_ref().map(|limit| limit.bytes),
            "limited_by": available.limit.as_ref().map(|limit| &limit.source),
            "refusal": fits.as_ref().err().map(error::paragraph),
            "fits": fits.is_ok(),
            "longest_prompt": plan.longest.prompt,
            "longest_completion": plan.longest.completion,
        });
        if args.planned.command == Command::Train {
            object["skips_zero_gradients"] = json!(config.computes_every_group().is_none());
        }
        if let Some(total) = plan.device_total {
            object["device"] = json!({
                "name": device.name(), "total_bytes": total, "available_bytes": available.device,
            });
        }
        return ended(output::json(&object));
    }
    let mut text = table(&plan).render(110);
    let of = if config.dataset_name.is_some() || config.replay.is_some() {
        "the longest in the data"
    } else {
        "the longest possible, since there is no dataset"
    };
    let longest = plan.longest;
    if args.planned.command == Command::Train {
        text += &format!("{}\n", config.skipping());
    }
    text += &format!("prompts of {} tokens, completions of {} ({of})\n", longest.prompt, longest.completion);
    let limit = available.limit.as_ref().map_or(String::new(), |limit| format!(" (limited to {limit})"));
    let here = available.host.map(|bytes| format!("{} MiB are available{limit}", mib(bytes)));
    let there = available.device.map(|bytes| format!("{} MiB of {}", mib(bytes), device.name()));
    let all: Vec<String> = here.into_iter().chain(there).collect();
    match fits {
        Err(why) => text += &format!("does not fit: {}\n", error::paragraph(&why)),
        Ok(()) if all.is_empty() => {}
        Ok(()) => text += &format!("fits: {}\n", all.join(", ")),
    }
    if let Some(Err(why)) = opened {
        text += &format!("cannot read the memory of {} here: {}\n", device.name(), error::paragraph(&why));
    }
    ended(output::text(&text))
}

/// The planned configuration, and the purpose of its command.
fn configuration(args: &Planned) -> anyhow::Result<(Purpose, Config)> {
    let purpose = match args.command {
        Command::Train => {
            let shown = args.config.resolve(Purpose::Show)?.config;
            // A complete configuration is checked as in training; an incomplete one can be planned, too.
            let complete = shown.replay.is_some() || (shown.dataset_name.is_some() && !shown.reward_funcs.is_empty());
            if !complete {
                return Ok((Purpose::Show, shown));
            }
            Purpose::Grpo
        }
        command => command.purpose(),
    };
    Ok((purpose, args.config.resolve(purpose)?.config))
}

/// A table of the parts and their sum.
fn table(plan: &MemoryPlan) -> Table {
    let columns = [("part", Align::Left), ("MiB", Align::Right), ("lowered by", Align::Left)];
    let mut table = Table::new(columns);
    for part in &plan.parts {
        let name = if plan.device_total.is_some() && part.on.is_none() { "host: " } else { "" };
        table.row([&format!("{name}{}", part.name), &mib(part.bytes), &part.lowered_by]);
    }
    match plan.device_total.zip(plan.parts.iter().find_map(|part| part.on)) {
        Some((bytes, device)) => {
            table.row([&format!("predicted peak of {device}"), &mib(bytes), ""]);
            table.row(["predicted peak of the host", &mib(plan.total), ""]);
        }
        None => {
            table.row(["predicted peak", &mib(plan.total), ""]);
        }
    }
    table
}

/// Formats bytes as MiB with one decimal.
fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
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

    fn planned(words: &[&str]) -> Planned {
        let mut planned = Line::parse_from(["plan"].iter().chain(words)).args.planned;
        planned.rewards.give(&mut planned.config.more).unwrap();
        planned
    }

    /// A complete configuration is checked as in training; an incomplete one is planned without these checks.
    #[test]
    fn a_configuration_is_complete_with_data_and_a_reward_or_with_a_replay() {
        let purpose = |words: &[&str]| configuration(&planned(words)).map(|(purpose, _)| purpose);
        let model = ["--model", "m"];
        let with = |words: &[&str]| purpose(&[&model[..], words].concat()).unwrap();
        assert_eq!(with(&[]), Purpose::Show);
        assert_eq!(with(&["--dataset", "d"]), Purpose::Show);
        assert_eq!(with(&["--reward", "gsm8k"]), Purpose::Show);
        assert_eq!(with(&["--dataset", "d", "--reward", "gsm8k"]), Purpose::Grpo);
        assert_eq!(with(&["--set", "replay=r.bin"]), Purpose::Grpo);
        assert!(purpose(&["--dataset", "d", "--reward", "gsm8k"]).is_err(), "training needs a model");
        for (command, expected) in [("sft", Purpose::Sft), ("reward", Purpose::Reward), ("dpo", Purpose::Dpo)] {
            assert_eq!(with(&["--for", command, "--dataset", "d"]), expected);
        }
    }

    #[test]
    fn bytes_are_printed_in_mebibytes() {
        assert_eq!([0, 1 << 20, 3 << 19, 5 << 30].map(mib), ["0.0", "1.0", "1.5", "5120.0"]);
    }
}
