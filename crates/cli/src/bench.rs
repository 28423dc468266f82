//! `lockstep bench`: parses the command line and runs the requested benchmark.

use crate::bench_flags::{AlgorithmsFlags, GroupFlags, LevelsFlags, ShapeFlag};
use crate::options::{device, threads};
use crate::output;
use kernels::{Context, Device};
use lockstep::context;
use lockstep_bench::{self as bench, Report, Shape, Subject};

/// Measures the engine against the limits of this machine.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockstep bench gemm                     the matmuls of a linear layer, GFLOP/s and share of the peak
  lockstep bench step --shape 7m          a whole GRPO step, its stages, its roofline
  lockstep bench rollout --completions 8  a group of eight completions of a shared prompt
  lockstep bench levels --shape 7m        the same step at each level of optimization
  lockstep bench levels --algorithm ppo --shape tiny --steps 10
Compare only figures of one run: speed differs between machines, and from day to day.")]
pub struct Args {
    /// The benchmark to run.
    #[command(subcommand)]
    pub what: What,
}

/// Options of every benchmark.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// The size of the model (random weights).
    #[arg(long, value_enum, default_value = "7m")]
    pub shape: ShapeFlag,
    /// The dtype of matmuls.
    #[arg(long, value_parser = ["f32", "bf16"], default_value = "f32")]
    pub dtype: String,
    /// The device: cpu, cuda, cuda:1, …; LOCKSTEP_DEVICE or the CPU if not given.
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    pub device: Option<Device>,
    /// Threads; LOCKSTEP_THREADS or all cores if not given.
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// Options of `bench rollout`.
#[derive(Clone, Debug, clap::Args)]
pub struct RolloutArgs {
    /// The model, its dtype and the device.
    #[command(flatten)]
    pub common: Common,
    /// The prompt and the completions.
    #[command(flatten)]
    pub group: GroupFlags,
}

/// Options of `bench step`.
#[derive(Clone, Debug, clap::Args)]
pub struct StepArgs {
    /// The model, its dtype and the device.
    #[command(flatten)]
    pub common: Common,
    /// Completions per step, in groups of eight; the default depends on --shape.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub completions: Option<u32>,
    /// Tokens per completion; the default depends on --shape.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub new_tokens: Option<u32>,
    /// Number of timed steps, after one warm-up step.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
}

impl StepArgs {
    /// The number of completions in a step, and the number of tokens per completion.
    fn sizes(&self, shape: Subject) -> (usize, usize) {
        let (completions, tokens) = shape.step();
        let of = |flag: Option<u32>, own: usize| flag.map_or(own, |n| n as usize);
        (of(self.completions, completions), of(self.new_tokens, tokens))
    }
}

/// Options of `bench train`.
#[derive(Clone, Debug, clap::Args)]
pub struct TrainArgs {
    /// The model, its dtype and the device.
    #[command(flatten)]
    pub common: Common,
    /// Number of timed updates of each case, after one warm-up update.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
}

/// The benchmarks.
#[derive(Debug, clap::Subcommand)]
pub enum What {
    /// Matmuls: forward pass, gradient of the input, gradient of the weight.
    Gemm(Common),
    /// Decode steps at several batch sizes, including sampling, compared with the machine's memory bandwidth.
    Rollout(RolloutArgs),
    /// Forward and backward pass of a micro-batch, and the time saved by sharing a group's prompt.
    Train(TrainArgs),
    /// A whole GRPO step, compared with its roofline.
    Step(StepArgs),
    /// Memory of a training step, by part, and of computing log-probabilities.
    Memory(Common),
    /// Checks that sampler and trainer compute equal bits, for several batch sizes, thread counts and chunk sizes.
    Parity(Common),
    /// GRPO or PPO steps at increasing levels of optimization, each adding one idea; checks that their bits are equal.
    Levels(LevelsFlags),
    /// Each optimization on and off: fused sampling and softmax, transfers, cache, packing, KL.
    Ablation(Common),
    /// Prints the config.json of a model size for `lockstep init`, so that other programs can run the same weights.
    Shape(Common),
    /// Trains on the demo's task with every algorithm: held-out accuracy by tokens and by seconds, mean ± std over
    /// seeds.
    Algorithms(AlgorithmsFlags),
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let report = |common: &Common, run: &dyn Fn(&Context, Subject) -> anyhow::Result<Report>| -> anyhow::Result<()> {
        let subject = Subject { shape: common.shape.into(), dtype: common.dtype.as_str().into() };
        let report = run(&context(common.device, common.threads, subject.dtype)?, subject)?;
        let text = if common.json { serde_json::to_string_pretty(&report.json())? + "\n" } else { report.text(140) };
        Ok(output::exact(&text)?)
    };
    match &args.what {
        What::Gemm(common) => report(common, &|ctx, subject| bench::gemm::run(ctx, subject.dtype.dtype(), 0.3)),
        What::Rollout(args) => report(&args.common, &|ctx, shape| {
            if args.group.completions.is_empty() {
                bench::rollout::run(ctx, shape, 24)
            } else {
                bench::group::run(ctx, shape, &(&args.group).into())
            }
        }),
        What::Train(args) => report(&args.common, &|ctx, shape| bench::train::run(ctx, shape, args.repeats as usize)),
        What::Step(args) => {
            report(&args.common, &|ctx, shape| bench::step::run(ctx, shape, args.sizes(shape), args.repeats as usize))
        }
        What::Memory(common) => report(common, &bench::memory::run),
        What::Parity(common) => report(common, &bench::parity::run),
        What::Levels(flags) => levels(flags),
        What::Ablation(common) => report(common, &bench::ablation::run),
        What::Shape(common) => Ok(output::exact(&format!("{}\n", Shape::from(common.shape).config_json()))?),
        What::Algorithms(args) => {
            let results = bench::algorithms::run(&args.options()?)?;
            if args.json { Ok(output::json(&results)?) } else { Ok(()) }
        }
    }
}

fn levels(flags: &LevelsFlags) -> anyhow::Result<()> {
    let mut hear =
        |event: &serde_json::Value| if flags.events { Ok(output::exact(&format!("{event}\n"))?) } else { Ok(()) };
    let report = bench::levels::run(&flags.options()?, &mut hear)?;
    match (flags.events, flags.json) {
        (true, _) => Ok(()),
        (false, true) => Ok(output::json(&report.json())?),
        (false, false) => Ok(output::exact(&report.text(140))?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use kernels::DType;
    use lockstep_bench::levels::{Algorithm, PRESETS};

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn what(words: &[&str]) -> What {
        Line::try_parse_from(["bench"].iter().chain(words)).map(|line| line.args.what).unwrap()
    }

    #[test]
    fn flags_override_the_step_sizes_of_a_shape() {
        let sizes = |words: &[&str]| {
            let What::Step(args) = what(&[&["step", "--shape", "tiny"], words].concat()) else { panic!("{words:?}") };
            let subject = Subject { shape: args.common.shape.into(), dtype: args.common.dtype.as_str().into() };
            assert_eq!(subject.dtype.dtype(), DType::F32);
            (args.sizes(subject), subject.step(), args.repeats)
        };
        let (given, own, repeats) = sizes(&[]);
        assert!(given == own && repeats == 3);
        assert_eq!(sizes(&["--completions", "24", "--new-tokens", "7"]).0, (24, 7));
        assert_eq!(sizes(&["--completions", "24"]).0, (24, own.1));
        assert_eq!(sizes(&["--new-tokens", "7"]).0, (own.0, 7));
    }

    #[test]
    fn levels_default_to_those_of_the_preset_or_the_algorithm() {
        let options = |words: &[&str]| {
            let What::Levels(flags) = what(&[&["levels"], words].concat()) else { panic!("{words:?}") };
            flags.options()
        };
        let ids =
            |words: &[&str]| -> Vec<&str> { options(words).unwrap().levels.iter().map(|level| level.id).collect() };
        let all = |algorithm: Algorithm| -> Vec<&str> { algorithm.levels().iter().map(|level| level.id).collect() };
        assert_eq!((ids(&[]), ids(&["--algorithm", "grpo"])), (all(Algorithm::Grpo), all(Algorithm::Grpo)));
        assert_eq!(ids(&["--algorithm", "ppo"]), all(Algorithm::Ppo));
        assert_eq!(ids(&["--levels", "cache,none"]), ["cache", "none"]);
        let [first, ..] = PRESETS;
        let preset = options(&["--preset", first.id]).unwrap();
        assert_eq!(
            preset.levels.iter().map(|level| level.id).collect::<Vec<_>>(),
            first.levels().iter().map(|level| level.id).collect::<Vec<_>>()
        );
        assert_eq!((preset.shape.name(), preset.steps, preset.threads), (first.shape.name(), 1, None));
        let given = options(&["--preset", first.id, "--shape", "tiny", "--steps", "5", "--threads", "2"]).unwrap();
        assert_eq!((given.shape.name(), given.steps, given.threads), ("tiny", 5, Some(2)));
        assert_eq!(options(&[]).unwrap().shape.name(), "7m");
        let Err(error) = options(&["--levels", "none,nothing"]) else { panic!("an unknown level was accepted") };
        assert!(error.to_string().contains("has no level `nothing`; available: none, cache, "), "{error}");
    }

    #[test]
    fn every_shape_flag_selects_the_shape_of_that_name() {
        for name in ["tiny", "4m", "7m", "92m", "0.5b"] {
            let What::Gemm(common) = what(&["gemm", "--shape", name]) else { panic!("{name}") };
            assert_eq!(Shape::from(common.shape).name(), name);
        }
    }
}
