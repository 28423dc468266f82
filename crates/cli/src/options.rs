//! Flags that several commands share.

use clap::ValueEnum;
use kernels::Device;
use lockstep::bad_input;
use lockstep::config::{Layers, Purpose, Resolved};
use lockstep::error::BadInput;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use telemetry::{Console, ConsoleOptions, Level, LogFormat};

/// The layers of a configuration: the file, then the environment, then flags and `--set`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ConfigArgs {
    /// A TOML configuration file (`lockstep config show` prints one).
    #[arg(value_name = "CONFIG.toml")]
    pub file: Option<PathBuf>,
    /// Sets a key, overriding file and environment; may be repeated, and the last value wins. If the key also has a
    /// flag, give only one of the two.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Keys that dedicated flags set.
    #[arg(skip)]
    pub more: FlagKeys,
    /// The model: a Hugging Face directory (model_name_or_path).
    #[arg(long, value_name = "DIR")]
    pub model: Option<String>,
    /// The training data: a JSONL or Parquet file (dataset_name).
    #[arg(long, value_name = "FILE")]
    pub dataset: Option<String>,
    /// A preset of columns, system prompt and reward: gsm8k, prompt_answer, or gsm8k_solutions for pairs (task).
    #[arg(long, value_name = "TASK")]
    pub task: Option<String>,
    /// The run's directory (output_dir).
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The seed of all random numbers (seed).
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
    /// Optimizer steps (max_steps).
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// Steps to record in trace.json, such as 3-5 (trace_steps).
    #[arg(long, value_name = "STEPS")]
    pub trace_steps: Option<String>,
    /// The device: cpu, cuda, cuda:1, … (device).
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    pub device: Option<Device>,
    /// Threads (threads).
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// The flag of commands that use rewards.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct RewardArgs {
    /// A reward: gsm8k, format:REGEX, command:./reward.py, …; may be repeated (reward_funcs).
    #[arg(long, value_name = "REWARD")]
    pub reward: Vec<String>,
}

impl RewardArgs {
    pub fn give(&self, flags: &mut FlagKeys) -> anyhow::Result<()> {
        let list = serde_json::to_string(&self.reward)?;
        flags.given("--reward", "reward_funcs", (!self.reward.is_empty()).then_some(list));
        Ok(())
    }
}

/// Parses a number of threads; the kernels check the maximum.
pub fn threads(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or_else(|| "expected a number of threads, 1 or more".to_owned())
}

/// Parses the name of a device.
pub fn device(name: &str) -> Result<Device, String> {
    Device::from_name(name).map_err(|error| error.to_string())
}

impl ConfigArgs {
    /// The layers of the configuration, later ones overriding earlier ones.
    pub fn layers(&self, purpose: Purpose) -> anyhow::Result<Layers> {
        let mut flags = self.more.clone();
        flags.given("--model", "model_name_or_path", self.model.clone());
        flags.given("--dataset", "dataset_name", self.dataset.clone());
        flags.given("--task", "task", self.task.clone());
        flags.given("--out", "output_dir", self.out.as_deref().map(|path| utf8("--out", path)).transpose()?);
        flags.given("--seed", "seed", self.seed.map(|n| n.to_string()));
        flags.given("--steps", "max_steps", self.steps.map(|n| n.to_string()));
        flags.given("--trace-steps", "trace_steps", self.trace_steps.clone());
        flags.given("--device", "device", self.device.map(|device| device.name().to_owned()));
        flags.given("--threads", "threads", self.threads.map(|n| n.to_string()));
        let set = flags.and_set(&self.set)?;
        Layers { purpose, file: self.file.clone(), set, ..Layers::default() }.with_environment()
    }

    /// The resolved configuration.
    pub fn resolve(&self, purpose: Purpose) -> anyhow::Result<Resolved> {
        self.layers(purpose)?.resolve()
    }
}

/// Configuration keys that a command's dedicated flags set.
#[derive(Clone, Debug, Default)]
pub struct FlagKeys {
    set: Vec<(String, String)>,
    /// The flags that were given, with their keys. Values that are only implied by another flag are not listed: `--set`
    /// may override them.
    flags: Vec<(&'static str, String)>,
}

impl FlagKeys {
    /// Sets `key` to the value of `flag`, if `flag` was given.
    pub fn given(&mut self, flag: &'static str, key: &str, value: Option<String>) {
        if value.is_some() {
            self.flags.push((flag, key.to_owned()));
        }
        self.implied(key, value);
    }

    /// Sets `key` to a value that follows from other flags, if there is one.
    pub fn implied(&mut self, key: &str, value: Option<String>) {
        self.set.extend(value.map(|value| (key.to_owned(), value)));
    }

    /// Merges these keys with those of `--set KEY=VALUE`; the last `--set` of a key wins. Different values from a key's
    /// flag and from `--set` are an error: neither is more specific, and their order on the command line is unknown
    /// here.
    pub fn and_set(mut self, pairs: &[String]) -> anyhow::Result<Vec<(String, String)>> {
        for pair in pairs {
            let (key, value) = pair.split_once('=').ok_or_else(|| {
                BadInput::new(format!("--set {pair}: expected KEY=VALUE, for example --set num_generations=4"))
            })?;
            let (key, value) = (key.trim(), value.trim());
            let by_flag = self.flags.iter().find(|(_, own)| own == key);
            let own = self.set.iter().find(|(own, _)| own == key);
            if let (Some((flag, _)), Some((_, own))) = (by_flag, own)
                && own != value
            {
                bad_input!("`{key}` has two values: {own} from {flag} and {value} from --set; remove one of them");
            }
            self.set.push((key.to_owned(), value.to_owned()));
        }
        Ok(self.set)
    }
}

/// A path as a string; an error if the path is not UTF-8, since a lossy conversion would name a different file.
pub fn utf8(flag: &str, path: &Path) -> anyhow::Result<String> {
    let refuse = || BadInput::new(format!("{flag} {}: the path must be UTF-8; rename it", path.display()));
    path.to_str().map(str::to_owned).ok_or_else(refuse)
}

/// The arguments of every command that trains.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Resumes a run: its directory, one of its checkpoints (later checkpoints are set aside), or `latest` for the run
    /// in the output directory.
    #[arg(long, value_name = "RUN|CHECKPOINT|latest")]
    pub resume: Option<String>,
    /// Divides generation and the passes of each optimizer step among N processes of this machine, a power of two,
    /// which share its threads and one copy of the weights. The results have the bits of one process with the same
    /// gradient_shares, which is N unless it is set. Not needed if torchrun, accelerate, mpirun or srun starts the N
    /// processes. docs/ranks.md
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Serves a page about the run while it trains, at port 7860 or --dashboard=PORT.
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "7860")]
    pub dashboard: Option<u16>,
    #[command(flatten)]
    pub log: RunLogArgs,
}

/// Where a distributed run stores its weights.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SharingArgs {
    /// A directory for the weights of a distributed run, such as /dev/shm; required where processes cannot access each
    /// other's /proc.
    #[arg(long, value_name = "DIR")]
    pub weights_dir: Option<PathBuf>,
}

/// The console output of a training run.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct RunLogArgs {
    #[command(flatten)]
    pub format: LogArgs,
    /// Prints a table of all metrics after each evaluation, and a table of all stages at the end of the run.
    #[arg(long)]
    pub verbose: bool,
}

impl RunLogArgs {
    /// Opens the console of this process.
    pub fn open(&self) -> anyhow::Result<Console> {
        open(ConsoleOptions { verbose: self.verbose, ..self.format.options()? })
    }

    /// The flags that open the same console in another process.
    pub fn flags(&self) -> Vec<String> {
        let format = self.format.log_format.to_possible_value().map(|value| value.get_name().to_owned());
        let verbose = self.verbose.then(|| "--verbose".to_owned());
        ["--log-format".to_owned(), format.unwrap_or_default()].into_iter().chain(verbose).collect()
    }
}

/// The format of a command's output.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct LogArgs {
    /// Plain lines, or one JSON object per line.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub log_format: LogFormatArg,
}

/// The command-line names of [`LogFormat`].
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum LogFormatArg {
    /// Lines for people.
    #[default]
    Plain,
    /// JSON for programs.
    Json,
}

/// The console that shows the error that ends the program; empty in commands without a console.
pub static CONSOLE: OnceLock<Console> = OnceLock::new();

fn open(options: ConsoleOptions) -> anyhow::Result<Console> {
    let console = Console::new(options)?;
    Ok(CONSOLE.get_or_init(|| console).clone())
}

impl LogArgs {
    /// Opens the console of this process.
    pub fn open(&self) -> anyhow::Result<Console> {
        open(self.options()?)
    }

    /// The console's options; the log level comes from `LOCKSTEP_LOG`.
    fn options(&self) -> anyhow::Result<ConsoleOptions> {
        let format = match self.log_format {
            LogFormatArg::Plain => LogFormat::Plain,
            LogFormatArg::Json => LogFormat::Json,
        };
        Ok(ConsoleOptions { format, level: Level::from_env().map_err(BadInput::new)?, ..ConsoleOptions::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(flags: FlagKeys, set: &[&str]) -> Result<Vec<(String, String)>, String> {
        let set: Vec<String> = set.iter().map(|pair| (*pair).to_owned()).collect();
        flags.and_set(&set).map_err(|error| error.to_string())
    }

    #[test]
    fn a_key_with_different_values_from_its_flag_and_set_is_refused() {
        let flags = || {
            let mut flags = FlagKeys::default();
            flags.given("--seed", "seed", Some("3".to_owned()));
            flags.given("--steps", "max_steps", None);
            flags.implied("eval_sampling", Some("sampled".to_owned()));
            flags.implied("nothing", None);
            flags
        };
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let own = [pair("seed", "3"), pair("eval_sampling", "sampled")];
        assert_eq!(joined(flags(), &[]).unwrap(), own);
        let all = [&own[..], &[pair("seed", "3"), pair("a", "b=c"), pair("a", "")]].concat();
        assert_eq!(joined(flags(), &["seed=3", " a = b=c ", "a="]).unwrap(), all);
        let why = joined(flags(), &["seed=4"]).unwrap_err();
        assert_eq!(why, "`seed` has two values: 3 from --seed and 4 from --set; remove one of them");
        assert!(
            joined(flags(), &["eval_sampling=greedy", "max_steps=9"]).is_ok(),
            "--set must override an implied value"
        );
        let why = joined(flags(), &["seed"]).unwrap_err();
        assert_eq!(why, "--set seed: expected KEY=VALUE, for example --set num_generations=4");
    }

    #[test]
    fn console_flags_open_an_equal_console() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            log: RunLogArgs,
        }
        for words in ["--log-format plain", "--log-format json --verbose"] {
            let log = <Line as clap::Parser>::parse_from(["train"].into_iter().chain(words.split(' '))).log;
            assert_eq!(log.flags().join(" "), words);
        }
    }

    #[test]
    fn threads_devices_and_paths_are_checked() {
        assert_eq!((threads("1"), threads("64")), (Ok(1), Ok(64)));
        for bad in ["0", "-1", "", "two", "1.5"] {
            assert_eq!(threads(bad), Err("expected a number of threads, 1 or more".to_owned()), "{bad}");
        }
        assert_eq!((device("cpu"), device("cuda:1")), (Ok(Device::Cpu), Ok(Device::Cuda(1))));
        assert!(device("gpu").is_err());
        use std::os::unix::ffi::OsStrExt;
        assert_eq!(utf8("--out", Path::new("a/é")).unwrap(), "a/é");
        let why = utf8("--out", Path::new(std::ffi::OsStr::from_bytes(b"\xff"))).unwrap_err().to_string();
        assert_eq!(why, "--out \u{fffd}: the path must be UTF-8; rename it");
    }
}
