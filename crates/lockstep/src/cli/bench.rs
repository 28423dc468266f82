//! `lockstep bench`.

use crate::bench::{self, Report, Shape};
use crate::session::context;
use std::io::Write;

/// Measures the engine beside what this machine can do at most.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockstep bench gemm                     the products of a linear layer, GFLOP/s and share of the peak
  lockstep bench step --shape 7m          a whole GRPO step, its stages, its roofline
  lockstep bench levels --shape 7m        the same step, from naive to everything on
Quote ratios from one run: machines differ, and so do their days.")]
pub struct Args {
    /// What is measured.
    #[command(subcommand)]
    pub what: What,
}

/// How it runs.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// The size of the model (random weights).
    #[arg(long, value_enum, default_value = "7m")]
    pub shape: Shape,
    /// Threads; LOCKSTEP_THREADS or all cores if not given.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// The benchmarks.
#[derive(Debug, clap::Subcommand)]
pub enum What {
    /// Matrix products: forward, input gradient, weight gradient.
    Gemm(Common),
    /// Decode steps by batch size, sampler included, against the machine's memory reads.
    Rollout(Common),
    /// Forward and backward of a micro-batch; what a shared prompt saves.
    Train(Common),
    /// A whole GRPO step against its roofline.
    Step(Common),
    /// What a step holds in memory, by part.
    Memory(Common),
    /// Sampler against trainer, bit by bit, over batches, threads, sharing, chunks.
    Parity(Common),
    /// Speed against completions, length and threads.
    Scaling(Common),
    /// The same step at four levels: baseline, basic, advanced, optimal.
    Levels(Common),
    /// Prints the config.json of a size, for `lockstep init`: the same weights for other programs.
    Shape(Common),
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let (What::Gemm(common)
    | What::Rollout(common)
    | What::Train(common)
    | What::Step(common)
    | What::Memory(common)
    | What::Parity(common)
    | What::Scaling(common)
    | What::Levels(common)
    | What::Shape(common)) = &args.what;
    let shape = common.shape;
    if matches!(args.what, What::Shape(_)) {
        return Ok(writeln!(std::io::stdout().lock(), "{}", shape.config_json())?);
    }
    let ctx = context(common.threads)?;
    let report: Report = match &args.what {
        What::Gemm(_) => bench::gemm::run(&ctx, 0.3)?,
        What::Rollout(_) => bench::rollout::run(&ctx, shape, 24)?,
        What::Train(_) => bench::train::run(&ctx, shape, 3)?,
        What::Step(_) => bench::step::run(&ctx, &[shape], 3)?,
        What::Memory(_) => bench::memory::run(&ctx, shape)?,
        What::Parity(_) => bench::parity::run(&ctx, shape)?,
        What::Scaling(_) => bench::scaling::run(&ctx, shape, 256, 4096)?,
        What::Levels(_) => bench::levels::run(&ctx, shape)?,
        What::Shape(_) => unreachable!("printed above"),
    };
    let text = if common.json { serde_json::to_string_pretty(&report.json())? + "\n" } else { report.text(140) };
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}
