//! `lockstep verify`: checks a training run against its records.

use crate::options::{LogArgs, threads};
use crate::output;
use crate::program::EndedWith;
use crate::signals::{Promise, stop_on_signals};
use lockstep::error::OrBadInput;
use lockstep::is_stopped;
use lockstep::replay::{Choice, Interval, Report, VerifyOptions, verify};
use std::path::PathBuf;
use telemetry::{Step, counted};

/// Proves that a run matches its record: resamples tokens, recomputes rewards and updates, and compares every bit
/// (requires record_rollouts = true). docs/verify.md
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's directory.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Verifies at least N steps, in random intervals between checkpoints.
    #[arg(long, value_name = "N", default_value_t = 5, conflicts_with = "all")]
    pub steps: u64,
    /// Verifies all steps up to the last checkpoint.
    #[arg(long)]
    pub all: bool,
    /// The seed for choosing steps.
    #[arg(long, value_name = "SEED", default_value_t = 0, conflicts_with = "all")]
    pub seed: u64,
    /// Threads; they do not affect the bits.
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// The model's directory, if it was moved.
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// The training data file, if it was moved.
    #[arg(long, value_name = "FILE")]
    pub dataset: Option<PathBuf>,
    /// Prints the result as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Exit code if the run differs from its record.
const DIFFERS: u8 = 1;
/// Exit code if the run cannot be verified.
const NOT_VERIFIED: u8 = 2;

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let console = LogArgs::default().open()?;
    let stop = stop_on_signals(&console, Promise::Ends("the verification stops"))?;
    let say = |text: &str| {
        if !args.json {
            console.info(text);
        }
    };
    let options = VerifyOptions {
        choice: if args.all { Choice::All } else { Choice::Random { steps: args.steps, seed: args.seed } },
        threads: args.threads,
        model: args.model,
        dataset: args.dataset,
        stop,
        say: &say,
    };
    // An error that stops the verification is not a difference, and has its own exit code.
    let report = match verify(&args.run, &options) {
        Err(error) if !is_stopped(&error) => Err(error).or_bad_input()?,
        result => result?,
    };
    let code = match () {
        () if report.difference.is_some() => DIFFERS,
        // With random steps, at least one must be proven; with --all, none may be missing.
        () if report.proven.is_empty() || args.all && !report.not_verified.is_empty() => NOT_VERIFIED,
        () => 0,
    };
    let printed = if args.json { output::json(&report) } else { output::text(&lines(&report, code)) };
    match printed {
        // The exit code reports the outcome even if the report cannot be printed.
        Err(error) if !error.is_closed() && code == 0 => Err(error).or_bad_input(),
        Err(error) if !error.is_closed() => {
            output::note(format_args!("error: {error}"));
            Err(EndedWith(code).into())
        }
        _ if code == 0 => Ok(()),
        _ => Err(EndedWith(code).into()),
    }
}

fn lines(report: &Report, code: u8) -> String {
    let mut text = String::new();
    let steps: u64 = report.proven.iter().map(Interval::steps).sum();
    for interval in &report.proven {
        let begin = match interval.from {
            Step::START => "the initial model".to_owned(),
            step => format!("the checkpoint of step {step}"),
        };
        text += &format!("equal  {interval}, replayed from {begin}\n");
    }
    if report.groups > 0 {
        let of = match report.groups_of_checkpoints {
            0 => String::new(),
            n => format!("; {n} of them were partly sampled before their interval and come from its checkpoint"),
        };
        text += &format!("equal  {} tokens and log-probabilities of {}{of}\n", report.tokens, groups(report.groups));
    }
    let named = |names: &[String], what: &str| match names {
        [] => String::new(),
        names => format!("scores {what}: {}\n", names.join(", ")),
    };
    text += &named(&report.rewards_asked, "recomputed");
    text += &named(&report.rewards_recorded, "copied from the record, not proven");
    if !report.hashes.is_empty() {
        text += &format!("equal  SHA-256 of {}\n", report.hashes.join(", "));
    }
    if let Some(step) = report.result {
        text += &format!("equal  the result, and the checkpoint of step {step}\n");
    }
    if let Some(what) = &report.other_build {
        text += &format!("another build  {what}\n");
    }
    for what in &report.not_verified {
        text += &format!("not verified  {what}\n");
    }
    text += &match &report.difference {
        Some(difference) => format!("DIFFERS  {difference}\n"),
        None if code == 0 => format!("proven: {}\n", counted(steps as usize, "step")),
        None => "not proven\n".to_owned(),
    };
    text
}

fn groups(n: u64) -> String {
    counted(n as usize, "group")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep::replay::Difference;

    #[test]
    fn a_report_lists_proven_and_unverified_steps() {
        assert_eq!(lines(&Report::default(), NOT_VERIFIED), "not proven\n");
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut report = Report {
            proven: vec![Interval { from: Step(0), to: Step(2) }, Interval { from: Step(5), to: Step(6) }],
            groups: 1,
            tokens: 40,
            rewards_asked: names(&["a", "b"]),
            rewards_recorded: names(&["c"]),
            hashes: names(&["model", "data"]),
            result: Some(Step(6)),
            not_verified: names(&["step 9: gone"]),
            ..Report::default()
        };
        let equal = "equal  steps 1 to 2, replayed from the initial model\n\
                     equal  step 6, replayed from the checkpoint of step 5\n";
        let rest = "scores recomputed: a, b\nscores copied from the record, not proven: c\n\
                    equal  SHA-256 of model, data\nequal  the result, and the checkpoint of step 6\n\
                    not verified  step 9: gone\n";
        let tokens = "equal  40 tokens and log-probabilities of 1 group\n";
        assert_eq!(lines(&report, 0), format!("{equal}{tokens}{rest}proven: 3 steps\n"));
        (report.groups, report.groups_of_checkpoints) = (3, 2);
        let tokens = "equal  40 tokens and log-probabilities of 3 groups; 2 of them were partly sampled before their \
                      interval and come from its checkpoint\n";
        assert_eq!(lines(&report, NOT_VERIFIED), format!("{equal}{tokens}{rest}not proven\n"));
        let difference = Difference { step: Some(Step(2)), kind: "token".to_owned(), ..Difference::default() };
        report = Report { difference: Some(difference), ..Report::default() };
        assert_eq!(lines(&report, DIFFERS), "DIFFERS  step 2: token: recorded , remade \n");
    }
}
