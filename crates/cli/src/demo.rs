//! `lockstep demo`: trains a small model from scratch, first on a careless teacher's answers, then with GRPO. The demo
//! needs no network and no files.
//!
//! The demo writes the files that a user would bring (a model directory, data files) into its directory, then calls the
//! functions behind `lockstep sft`, `lockstep train` and `lockstep eval`.

use crate::dashboard::beside;
use crate::options::{RunLogArgs, device, threads};
use crate::signals::{Promise, stop_on_signals};
use crate::time_spent::{self, Whose};
use kernels::Device;
use lockstep::Policy;
use lockstep::RunDir;
use lockstep::Stopped;
use lockstep::bad_input;
use lockstep::config::ComputeDType;
use lockstep::config::Purpose;
use lockstep::context;
use lockstep_bench::addition::workspace::{Examined, SFT_STEPS, Workspace};
use std::path::{Path, PathBuf};
use std::time::Instant;
use telemetry::{Align, Record, Table};

/// Trains a small model from scratch: supervised fine-tuning, then GRPO. Needs no network and no files.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The seed of all random numbers.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The run directory; must be empty or not exist.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Number of GRPO steps; 0 stops after supervised fine-tuning.
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub steps: u64,
    /// The device: cpu, cuda, cuda:1, …; LOCKSTEP_DEVICE or the CPU if not given.
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    pub device: Option<Device>,
    /// Threads; all cores if not given.
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// Serves a page about the demo while it trains, at port 7860 or --dashboard=PORT.
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "7860")]
    pub dashboard: Option<u16>,
    #[command(flatten)]
    pub log: RunLogArgs,
}

/// Keys that make GRPO record completions and the change of their log-probabilities in each step, for the dashboard.
/// They do not affect training.
const RECORDED: &[(&str, &str)] =
    &[("record_rollouts", "true"), ("record_entropies", "true"), ("max_rollouts_bytes", "67108864")];
/// Number of held-out completions that are shown before and after GRPO.
const SHOWN: usize = 8;

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let started = Instant::now();
    let console = args.log.open()?;
    let ctx = context(args.device, args.threads, ComputeDType::F32)?;
    let root = args.out.clone().unwrap_or_else(default_root);
    RunDir::fresh(&root)?;
    // The demo also writes a model and data files, which the check for a fresh run directory ignores.
    if disk::read_dir(&root).is_ok_and(|entries| !entries.is_empty()) {
        bad_input!("--out {}: the directory is not empty; choose a new one", root.display());
    }
    let stop = stop_on_signals(&console, Promise::Stops("the demo stops"))?;

    console.print(&format!(
        "Two-digit addition, one token per character. A model with random weights first imitates a careless teacher,\n\
         who drops the carries in half of the answers, so imitation cannot exceed that accuracy. Then GRPO rewards\n\
         correct answers.\n\
         Run directory: {}",
        root.display()
    ));
    if let Some(port) = args.dashboard {
        beside(&root, port, &console);
    }
    let workspace = Workspace { root: &root, seed: args.seed, ctx: &ctx, console: &console, stop: &stop };
    let base = workspace.make_inputs()?;
    let untaught = workspace.examine(&Policy::load(&ctx, &base, ComputeDType::F32)?)?;
    untaught.report(&console, "before", "SFT");

    let Some(taught) = workspace.run(&workspace.layers(Purpose::Sft, "sft", &base, SFT_STEPS, &[]))? else {
        return Err(Stopped.into());
    };
    let before = workspace.examine(&taught.policy)?;
    before.report(&console, "after", "SFT");

    let rewarded = match args.steps {
        0 => None,
        steps => {
            let taught_dir = taught.dir.model();
            let layers = workspace.layers(Purpose::Grpo, "grpo", &taught_dir, steps, RECORDED);
            let Some(rewarded) = workspace.run(&layers)? else { return Err(Stopped.into()) };
            let after = workspace.examine(&rewarded.policy)?;
            let table = show(&before, &after, &rewarded.policy)?;
            let mut fields = Record::new();
            fields.set("completions", table.to_json());
            console.table(&table.render(console.width()), "held-out completions before and after GRPO", &fields);
            Some((rewarded, after))
        }
    };
    let (model, next) = match &rewarded {
        Some((rewarded, _)) => (rewarded.dir.model(), String::new()),
        None => (taught.dir.model(), reward_it(&root, &taught.dir.model())),
    };
    for (name, finished) in [("SFT", &taught)].into_iter().chain(rewarded.as_ref().map(|(run, _)| ("GRPO", run))) {
        time_spent::print(&console, finished, Whose::Named(name), None);
    }
    untaught.report(&console, "before", "SFT");
    before.report(&console, "after", "SFT");
    if let Some((_, after)) = &rewarded {
        after.report(&console, "after", "GRPO");
    }
    console.print(&format!(
        "{:.0} s in total. Run directory: {}; trained model: {}\n\
         See it:            lockstep dashboard {}  (press T there for a tour)\n\
         Ask it:            lockstep generate --model {} --prompt 58+67= --temperature 0\n{next}\
         Your own model:    lockstep train --model DIR --dataset FILE.jsonl --reward gsm8k --out runs/mine",
        started.elapsed().as_secs_f64(),
        root.display(),
        model.display(),
        root.display(),
        model.display(),
    ));
    Ok(())
}

/// The command that trains the model with a reward after supervised fine-tuning.
fn reward_it(root: &Path, model: &Path) -> String {
    format!(
        "Reward it:         lockstep train --model {} --dataset {} --task prompt_answer --set max_completion_length=4 \
         --set max_steps=100 --set learning_rate=1e-4\n",
        model.display(),
        root.join("problems.jsonl").display(),
    )
}

fn default_root() -> PathBuf {
    PathBuf::from("runs").join(format!("demo-{}", telemetry::system::since_1970().as_secs()))
}

/// A table of held-out problems with the completions sampled before and after GRPO.
fn show(before: &Examined, after: &Examined, policy: &Policy) -> anyhow::Result<Table> {
    let mut table = Table::new([("held-out", Align::Left), ("after SFT", Align::Right), ("after GRPO", Align::Right)]);
    let stride = (before.prompts.len() / SHOWN).max(1);
    for i in (stride / 2..before.prompts.len()).step_by(stride).take(SHOWN) {
        let answer = |examined: &Examined| -> anyhow::Result<String> {
            let rollouts = &examined.sampled.rollouts;
            let Some(group) = rollouts.groups.get(i) else { return Ok(String::new()) };
            let text = policy.tokenizer.decode(&group.completions[0].completion.ids, true)?;
            let right = rollouts.totals(group).next().is_some_and(|r| r >= 1.0);
            Ok(if right { format!("{text} ✓") } else { format!("{text} ✗") })
        };
        table.row([before.prompts[i].clone(), answer(before)?, answer(after)?]);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demo_without_a_directory_writes_below_runs() {
        let now = || telemetry::system::since_1970().as_secs();
        let (before, name, after) = (now(), default_root(), now());
        let seconds = name.to_str().and_then(|name| name.strip_prefix("runs/demo-")).unwrap().parse::<u64>().unwrap();
        assert!((before..=after).contains(&seconds), "{before} {seconds} {after}");
    }
}
