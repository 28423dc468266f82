//! The command line of `lockstep`. Each command has a file with its arguments, `Args`, and a function `run`.

// All output goes through `output`, so that a terminal never interprets escape sequences in untrusted text.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod bench_flags;
mod board;
mod build;
mod config;
mod dashboard;
mod demo;
mod distributed;
mod doctor;
mod eval;
mod examples;
mod fork;
mod generate;
mod init;
mod merge;
mod new_directory;
mod options;
mod output;
mod outputs;
mod plan;
mod program;
mod queue;
mod ranks;
mod report;
mod rollouts;
mod score;
mod score_rewards;
mod serve;
mod session;
mod signals;
mod status;
mod time_spent;
mod train;
mod verify;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use lockstep::config::Purpose;
use lockstep::error::{BadInput, is_bad_input, paragraph};
use lockstep::is_stopped;
use options::{CONSOLE, RunArgs};
use std::ffi::OsString;

/// Reinforcement-learning post-training for language models: rollout and training in one engine.
#[derive(Debug, Parser)]
#[command(name = "lockstep", version = build::TEXT.as_str(), after_help = AFTER_HELP, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Start here:
  lockstep demo
      trains a small model from scratch; no files, no network
  lockstep train --model DIR --dataset FILE --reward gsm8k
      GRPO on your model
  lockstep config show
      every key with its value and the value's source
  lockstep config explain num_generations
      what a key means, its default and TRL's

Exit codes: 0 done, 1 failed, 2 bad usage, configuration or input, 4 the
learner expelled this worker, 128 + n stopped by signal n (130 Ctrl-C, 143
SIGTERM, 129 SIGHUP, 138 SIGUSR1).
Environment: LOCKSTEP_DEVICE (cpu, cuda, cuda:1, …: if neither --device nor a
configuration sets it), LOCKSTEP_THREADS, LOCKSTEP_ISA (portable, avx2, avx512,
amx), LOCKSTEP_LIBCUDA, LOCKSTEP_NVRTC, LOCKSTEP_CUBINS, LOCKSTEP_KERNEL_CACHE
(docs/cuda.md), LOCKSTEP_LOG (error, warn, info, debug), LOCKSTEP_REPORT_TOKEN
(docs/runs.md), LOCKSTEP_API_KEY (docs/serve.md), NO_COLOR, and
LOCKSTEP_<KEY> for every key of a configuration, in the commands that read one
(the others refuse it).";

#[derive(Debug, Subcommand)]
enum Command {
    #[command(after_help = examples::DEMO)]
    Demo(demo::Args),
    #[command(after_help = examples::TRAIN)]
    Train(train::Args),
    #[command(after_help = examples::LEARNER)]
    Learner(distributed::LearnerArgs),
    #[command(after_help = examples::WORKER)]
    Worker(distributed::WorkerArgs),
    /// Supervised fine-tuning on prompts with completions; the loss is on the completion only.
    #[command(after_help = examples::SFT)]
    Sft(RunArgs),
    /// Trains a reward model on pairs of a chosen and a rejected answer (Bradley–Terry).
    #[command(after_help = examples::REWARD)]
    Reward(RunArgs),
    /// Direct preference optimization: trains a model on pairs of a chosen and a rejected answer, without a reward.
    #[command(after_help = examples::DPO)]
    Dpo(RunArgs),
    #[command(after_help = examples::GENERATE)]
    Generate(generate::Args),
    #[command(after_help = examples::SCORE)]
    Score(score::Args),
    #[command(after_help = examples::SCORE_REWARDS)]
    ScoreRewards(score_rewards::Args),
    #[command(after_help = examples::ROLLOUTS)]
    Rollouts(rollouts::Args),
    #[command(after_help = examples::VERIFY)]
    Verify(verify::Args),
    #[command(after_help = examples::FORK)]
    Fork(fork::Args),
    #[command(after_help = examples::DASHBOARD)]
    Dashboard(dashboard::Args),
    #[command(after_help = examples::REPORT)]
    Report(report::ReportArgs),
    #[command(after_help = examples::PROFILE)]
    Profile(report::ProfileArgs),
    #[command(after_help = examples::OUTPUTS)]
    Outputs(outputs::Args),
    #[command(after_help = examples::BOARD)]
    Board(board::Args),
    #[command(after_help = examples::STATUS)]
    Status(status::Args),
    #[command(after_help = examples::QUEUE)]
    Queue(queue::Args),
    /// A rank other than 0 of a run with --ranks; started by rank 0.
    #[command(hide = true)]
    Rank,
    #[command(after_help = examples::EVAL)]
    Eval(eval::Args),
    #[command(after_help = examples::SERVE)]
    Serve(serve::Args),
    #[command(after_help = examples::INIT)]
    Init(init::Args),
    #[command(after_help = examples::MERGE)]
    Merge(merge::Args),
    #[command(after_help = examples::PLAN)]
    Plan(plan::Args),
    Config(config::Args),
    Doctor(doctor::Args),
    Bench(bench::Args),
}

pub use build::build;
pub use dashboard::page_of;
pub use ranks::serve_launch;

/// [`main`] for a program that is started by the command line `program`, for example by a Python interpreter. Child
/// processes are started with the same command line.
pub fn main_of(program: Vec<OsString>, arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let _ = program::PROGRAM.set(program);
    main(arguments)
}

/// Parses the arguments (the first is the program's name), runs the command, reports an error, and returns the exit
/// code.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    build().announce();
    let cli = match parse(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // clap prints help and version on standard output. Its errors quote arguments, which may contain escape
            // sequences.
            let plain = error.render().to_string();
            if error.use_stderr() && telemetry::visible(&plain) != plain {
                output::note(plain.trim_end());
            } else if let Err(e) = error.print()
                && !error.use_stderr()
                && e.kind() != std::io::ErrorKind::BrokenPipe
            {
                return 1;
            }
            return if error.use_stderr() { 2 } else { 0 };
        }
    };
    // Ranks that have joined end with rank 0, also if its arguments or environment are refused.
    let entered = match &cli.command {
        Command::Train(args) => ranks::enter(&args.run, args.distributed),
        Command::Sft(args) | Command::Reward(args) | Command::Dpo(args) => ranks::enter(args, false),
        _ => Ok(()),
    };
    let entered = entered.and_then(|()| check_environment(&cli.command));
    let result = entered.and_then(|()| match cli.command {
        Command::Demo(args) => demo::run(args),
        Command::Train(args) => train::run(args),
        Command::Learner(args) => distributed::learner(args),
        Command::Worker(args) => distributed::worker(args),
        Command::Sft(args) => session::run(Purpose::Sft, &args),
        Command::Reward(args) => session::run(Purpose::Reward, &args),
        Command::Dpo(args) => session::run(Purpose::Dpo, &args),
        Command::Generate(args) => generate::run(args),
        Command::Score(args) => score::run(args),
        Command::ScoreRewards(args) => score_rewards::run(args),
        Command::Rollouts(args) => rollouts::run(args),
        Command::Dashboard(args) => dashboard::run(args),
        Command::Report(args) => report::report(args),
        Command::Profile(args) => report::profile(args),
        Command::Outputs(args) => outputs::run(args),
        Command::Board(args) => board::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Fork(args) => fork::run(args),
        Command::Status(args) => status::run(args),
        Command::Queue(args) => queue::run(args),
        Command::Rank => ranks::serve_parent(),
        Command::Eval(args) => eval::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Init(args) => init::run(args),
        Command::Merge(args) => merge::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Config(args) => config::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Bench(args) => bench::run(args),
    });
    let code = match result {
        Ok(()) => 0,
        // A closed pipe is not a failure: `lockstep … | head`.
        Err(error) if output::is_closed(&error) => 0,
        Err(error) if is_stopped(&error) => signals::exit_code(),
        Err(error) if error.is::<program::EndedWith>() => {
            error.downcast_ref().map_or(1, |program::EndedWith(code)| *code)
        }
        Err(error) => {
            let text = paragraph(&error);
            match CONSOLE.get() {
                Some(console) => console.fatal(&text),
                None => output::note(format_args!("error: {text}")),
            }
            match () {
                () if error.is::<lockstep::workers::Expelled>() => fleet::supervisor::EXPELLED,
                () if is_bad_input(&error) => 2,
                () => 1,
            }
        }
    };
    ranks::leave(code);
    code
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = with_negative_numbers(Cli::command());
    let matches = command.try_get_matches_from_mut(arguments)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Lets flags take negative numbers: an error about `--n -1` then names `--n` instead of an unknown flag `-1`.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let valued = |arg: clap::Arg| if arg.get_action().takes_values() { arg.allow_negative_numbers(true) } else { arg };
    command.mut_args(valued).mut_subcommands(with_negative_numbers)
}

/// An error for an environment variable that the command would ignore.
fn check_environment(command: &Command) -> anyhow::Result<()> {
    telemetry::Level::from_env().map_err(BadInput::new)?;
    let name = match command {
        Command::Demo(_) => "demo",
        Command::Generate(_) => "generate",
        Command::Score(_) => "score",
        Command::Serve(_) => "serve",
        Command::Rollouts(_) => "rollouts",
        Command::Dashboard(_) => "dashboard",
        Command::Report(_) => "report",
        Command::Outputs(_) => "outputs",
        Command::Board(_) => "board",
        Command::Verify(_) => "verify",
        Command::Fork(_) => "fork",
        Command::Status(_) => "status",
        Command::Queue(_) => "queue",
        Command::Init(_) => "init",
        Command::Merge(_) => "merge",
        Command::Doctor(_) => "doctor",
        Command::Bench(_) => "bench",
        // Commands with a configuration also read keys from the environment. Workers and ranks do not, but may inherit
        // such variables from the process that starts them.
        Command::Learner(_) | Command::Worker(_) | Command::Rank => return Ok(()),
        Command::Train(_) | Command::Sft(_) | Command::Reward(_) | Command::Dpo(_) | Command::Eval(_) => return Ok(()),
        Command::Profile(_) | Command::Plan(_) | Command::Config(_) | Command::ScoreRewards(_) => return Ok(()),
    };
    lockstep::config::refuse_environment(name)
}
