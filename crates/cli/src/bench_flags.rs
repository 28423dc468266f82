//! The flags of `lockstep bench`, and the benchmark options that they set.

use crate::options::{LogArgs, threads};
use crate::signals::{Promise, stop_on_signals};
use lockstep::bad_input;
use lockstep_bench::addition::workspace::SFT_STEPS;
use lockstep_bench::levels::{self, Algorithm, Preset};
use lockstep_bench::{Shape, algorithms, group};
use std::path::PathBuf;

/// Flags of `bench levels`.
#[derive(Clone, Debug, clap::Args)]
pub struct LevelsFlags {
    /// The algorithm; grpo by default.
    #[arg(long, value_parser = ["grpo", "ppo"], conflicts_with = "preset")]
    pub algorithm: Option<String>,
    /// A named set of algorithm, model size and hyperparameters. ppo-document: PPO as in examples/ppo_preset.toml (8
    /// completions of 128 tokens, learning rate 3e-4, γ 0.99, λ 0.95, ε 0.2), at four named levels: baseline (none),
    /// basic (threads), advanced (fused) and optimal (bf16). A step at level baseline takes many minutes.
    #[arg(long, value_name = "NAME", value_parser = levels::PRESETS.map(|preset| preset.id))]
    pub preset: Option<String>,
    /// The size of the model (random weights); by default the preset's size, or 7m.
    #[arg(long, value_enum)]
    pub shape: Option<ShapeFlag>,
    /// The levels to run, in this order; by default the preset's levels, or all. Each level adds one optimization to
    /// the level before: none, cache (KV cache), vectors, threads, batching, fused (lm head), shared (prompt; GRPO
    /// only), bf16.
    #[arg(long, value_name = "LEVEL,…", value_delimiter = ',')]
    pub levels: Vec<String>,
    /// Training steps per level.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Threads at level `threads` and above; LOCKSTEP_THREADS or all cores if not given.
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// Prints the final table as JSON.
    #[arg(long, conflicts_with = "events")]
    pub json: bool,
    /// Prints one JSON line per event (start, level, step, end) as it happens.
    #[arg(long)]
    pub events: bool,
}

impl LevelsFlags {
    /// Converts these flags to the benchmark's options.
    pub fn options(&self) -> anyhow::Result<levels::LevelsOptions> {
        let preset = self.preset.as_deref().and_then(Preset::find);
        let algorithm = match (&preset, self.algorithm.as_deref()) {
            (Some(preset), _) => preset.algorithm,
            (None, Some("ppo")) => Algorithm::Ppo,
            (None, _) => Algorithm::Grpo,
        };
        let mut all = Vec::new();
        for id in &self.levels {
            let Some(level) = algorithm.level(id) else {
                let ids: Vec<&str> = algorithm.levels().iter().map(|level| level.id).collect();
                bad_input!("--levels: {} has no level `{id}`; available: {}", algorithm.name(), ids.join(", "));
            };
            all.push(level);
        }
        if all.is_empty() {
            all = preset.map_or(algorithm.levels().to_vec(), |preset| preset.levels());
        }
        let shape = self.shape.map(Shape::from).or(preset.map(|preset| preset.shape)).unwrap_or(Shape::M7);
        let settings = preset.map_or(algorithm.settings(), |preset| preset.settings);
        Ok(levels::LevelsOptions { shape, settings, levels: all, steps: self.steps as usize, threads: self.threads })
    }
}

/// Flags of `bench rollout` that describe the prompt and the completions.
#[derive(Clone, Debug, clap::Args)]
pub struct GroupFlags {
    /// Times completions of one shared prompt, in groups of N (1,8,64: several sizes), instead of single decode steps.
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    pub completions: Vec<usize>,
    /// A Hugging Face directory with the weights, instead of random weights of --shape.
    #[arg(long, value_name = "DIR", requires = "completions")]
    pub model: Option<PathBuf>,
    /// Number of random token ids in the prompt.
    #[arg(long, value_name = "N", default_value_t = 512, requires = "completions")]
    pub prompt_length: usize,
    /// A file with the prompt: a JSON array of token ids.
    #[arg(long, value_name = "FILE", requires = "completions", conflicts_with = "prompt_length")]
    pub prompt_ids: Option<PathBuf>,
    /// Tokens per completion.
    #[arg(long, value_name = "N", default_value_t = 128, requires = "completions")]
    pub new_tokens: usize,
    /// The sampling temperature; 0: greedy.
    #[arg(long, value_name = "T", default_value_t = 0.0, requires = "completions")]
    pub temperature: f64,
    /// Number of timed rollouts of each group size, after one warm-up rollout.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "completions")]
    pub repeats: usize,
}

impl From<&GroupFlags> for group::GroupOptions {
    fn from(args: &GroupFlags) -> Self {
        let GroupFlags { completions, model, prompt_length, prompt_ids, new_tokens, temperature, repeats } =
            args.clone();
        Self { completions, model, prompt_length, prompt_ids, new_tokens, temperature, repeats }
    }
}

/// Trains on the demo's task with every algorithm: held-out accuracy by tokens and by seconds, mean ± std over seeds.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  lockstep bench algorithms --out runs/algorithms          all, three seeds
  lockstep bench algorithms --table kl --out runs/kl       SFT, GRPO with and without KL
  lockstep bench algorithms --table staleness --out runs/k  GRPO with max_staleness 0 to 4
  lockstep bench algorithms --only grpo,dapo --seeds 1 --steps 100

Writes results.json, table.md, curves.csv and curves.svg into the directory.
If started again in the same directory, it runs only the missing parts.")]
pub struct AlgorithmsFlags {
    /// The comparison to run.
    #[arg(long, value_enum, default_value = "algorithms")]
    pub table: WhichFlag,
    /// The seeds. Each seed has its own data, model and SFT run.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,3")]
    pub seeds: Vec<u64>,
    /// Optimizer steps of each run; each step learns from 256 completions.
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
    /// Steps of supervised fine-tuning before RL.
    #[arg(long, value_name = "N", default_value_t = SFT_STEPS, value_parser = clap::value_parser!(u64).range(1..))]
    pub sft_steps: u64,
    /// Runs only these rows of the table.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub only: Vec<String>,
    /// The directory of the runs.
    #[arg(long, value_name = "DIR", default_value = "runs/bench-algorithms")]
    pub out: PathBuf,
    /// Threads; LOCKSTEP_THREADS or all cores if not given.
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub log: LogArgs,
}

impl AlgorithmsFlags {
    /// Converts these flags to the benchmark's options.
    pub fn options(&self) -> anyhow::Result<algorithms::AlgorithmsOptions> {
        let AlgorithmsFlags { table, seeds, steps, sft_steps, only, out, threads, json, log } = self.clone();
        let (table, console) = (table.into(), log.open()?);
        let stop = stop_on_signals(&console, Promise::Stops("the current run and the benchmark stop"))?;
        Ok(algorithms::AlgorithmsOptions { table, seeds, steps, sft_steps, only, out, threads, json, console, stop })
    }
}

/// The command-line names of [`algorithms::Which`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WhichFlag {
    /// Every algorithm.
    Algorithms,
    /// The model after SFT, and GRPO with and without KL.
    Kl,
    /// GRPO with increasing max_staleness.
    Staleness,
}

impl From<WhichFlag> for algorithms::Which {
    fn from(which: WhichFlag) -> Self {
        match which {
            WhichFlag::Algorithms => Self::Algorithms,
            WhichFlag::Kl => Self::Kl,
            WhichFlag::Staleness => Self::Staleness,
        }
    }
}

/// The command-line names of [`Shape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ShapeFlag {
    /// For tests and the emulator: hidden size 32, 2 layers, vocabulary 64.
    Tiny,
    /// 4 million parameters: hidden size 256, 4 layers with 8 heads, vocabulary 512.
    #[value(name = "4m")]
    M4,
    /// 7 million parameters: hidden size 256, 6 layers, vocabulary 4,096.
    #[value(name = "7m")]
    M7,
    /// 92 million parameters: hidden size 640, 12 layers, vocabulary 32,768.
    #[value(name = "92m")]
    M92,
    /// Qwen2.5-0.5B: hidden size 896, 24 layers, vocabulary 151,936, tied embeddings.
    #[value(name = "0.5b")]
    B05,
}

impl From<ShapeFlag> for Shape {
    fn from(shape: ShapeFlag) -> Self {
        match shape {
            ShapeFlag::Tiny => Shape::Tiny,
            ShapeFlag::M4 => Shape::M4,
            ShapeFlag::M7 => Shape::M7,
            ShapeFlag::M92 => Shape::M92,
            ShapeFlag::B05 => Shape::B05,
        }
    }
}
