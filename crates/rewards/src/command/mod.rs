//! `command`: a reward that a program in any language computes. The program keeps running, and answers each batch with
//! one line.
//!
//! A batch is one line of JSON on the program's standard input, with the argument names of TRL's reward functions:
//! `{"prompts": […], "completions": […], "completion_ids": […], "trainer_state": {"global_step": n, "request": k},
//! "<column>": […], …}`. A prompt or completion is a string or a list of chat messages. The program answers with one
//! line on its standard output: `{"rewards": [number or null or bool, …]}` (a number may be replaced by the scores of
//! the completion's steps: docs/rewards.md). The answer may also have `"request": k`, the number of the request, which
//! is then checked; `"extra": {"<column>": […]}` for the completions table; and `"metrics": {"<name>": number}`. An
//! answer `{"error": "message"}` reports an error. If the program fails, the last lines of its standard error are
//! shown.
//!
//! The whole batch gets `None`, never 0, and a [`Problem`] holds the reason, if the batch takes longer than
//! `timeout_s`, if the program crashes, or if the answer is invalid or has the wrong number of scores. After a crash, a
//! timeout or a line that is not JSON, the program is restarted for the next batch, at most `max_restarts` times
//! without a successful batch in between. The next failure is fatal, and is reported for every later batch. The program
//! runs in its own process group, which is killed when the reward is dropped.
//!
//! By default a batch contains all completions of a generation batch, so that the program can compare completions with
//! each other. With `by_group = true` a batch is one group (the completions of one prompt). A group is sent as soon as
//! its last completion has ended, while other groups are still being generated, which helps slow programs that score
//! each group separately. Groups are sent in the order in which they end; `timeout_s` and the rules above apply to each
//! group, and a metric is the mean over groups ([`Scores::from_groups`]). The program is trusted: it is *not*
//! sandboxed.

mod process;
#[cfg(all(test, unix))]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Deserialize;

use self::process::{Process, Silence};
use crate::program::{absolute_words, explain, split_line};
use crate::protocol::{self, Failure};
use crate::{Error, Problem, ProblemKind, Result, Reward, RewardBatch, Scores};

/// The options of [`CommandReward`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandOptions {
    /// The program and its arguments: a list, or one string that is split at white space outside of quotes ('…' and
    /// "…").
    pub command: Words,
    /// Seconds that one batch may take.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: f64,
    /// The maximum number of restarts without a successful batch in between.
    #[serde(default = "default_max_restarts")]
    pub max_restarts: u32,
    /// Whether a batch is one group, scored while other groups are still being generated.
    #[serde(default)]
    pub by_group: bool,
}

pub(crate) fn default_timeout_s() -> f64 {
    60.0
}

pub(crate) fn default_max_restarts() -> u32 {
    3
}

/// A command as one string or as a list of words.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Words {
    /// `"python3 my_reward.py --strict"`
    Line(String),
    /// `["python3", "my_reward.py", "--strict"]`
    List(Vec<String>),
}

impl From<&str> for Words {
    fn from(line: &str) -> Self {
        Words::Line(line.to_owned())
    }
}

impl Words {
    /// Splits the command into a list of words. An unclosed quote or an empty command is an error.
    pub(crate) fn split(self) -> Result<Vec<String>> {
        let words = match self {
            Words::List(words) => words,
            Words::Line(line) => {
                split_line(&line).ok_or_else(|| Error::options("command", format!("unclosed quote in `{line}`")))?
            }
        };
        match words.first() {
            Some(program) if !program.is_empty() => Ok(words),
            _ => Err(Error::options("command", "the command must name a program")),
        }
    }
}

/// The protocol that is used over a program's standard input and output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Dialect {
    /// The protocol of reward programs, described in the header of `command`.
    Command,
    /// The protocol of the Python adapter ([`crate::python`]). Batches are sent with the dataset's columns in a
    /// separate object, and the adapter's first line reports that it is ready.
    Python,
}

/// A reward that an external program computes. The documentation of `command` describes its protocol.
#[derive(Debug)]
pub struct CommandReward {
    name: String,
    words: Vec<String>,
    dialect: Dialect,
    timeout: Duration,
    max_restarts: u32,
    by_group: bool,
    /// The running program; `None` after a failure, until the next batch.
    process: Option<Process>,
    restarts_in_a_row: u32,
    /// Number of requests so far.
    requests: u64,
    /// Whether the program repeats the request number in its answers.
    numbered: bool,
    /// The reason why the program is not restarted again; `None` while it may be restarted.
    given_up: Option<String>,
    stop: Arc<AtomicBool>,
}

impl CommandReward {
    /// Starts the program. Returns an error if the program is missing, is not executable, or ends at once.
    pub fn new(name: String, options: CommandOptions) -> Result<Self> {
        Self::start(name, options, Dialect::Command, Arc::default())
    }

    /// Starts a program that speaks the protocol `dialect`.
    pub(crate) fn start(
        name: String,
        options: CommandOptions,
        dialect: Dialect,
        stop: Arc<AtomicBool>,
    ) -> Result<Self> {
        if !(options.timeout_s.is_finite() && options.timeout_s > 0.0 && options.timeout_s < 1e9) {
            return Err(Error::options("command", "`timeout_s` must be a positive number of seconds"));
        }
        let mut reward = CommandReward {
            name,
            words: options.command.split()?,
            dialect,
            timeout: Duration::from_secs_f64(options.timeout_s),
            max_restarts: options.max_restarts,
            by_group: options.by_group,
            process: None,
            restarts_in_a_row: 0,
            requests: 0,
            numbered: false,
            given_up: None,
            stop,
        };
        let failed = |words: &[String], message| Error::Program { program: words[0].clone(), message };
        let mut process = Process::start(&reward.words).map_err(|e| failed(&reward.words, explain(&e)))?;
        match dialect {
            Dialect::Python => reward.greet(&mut process).map_err(|(_, message)| failed(&reward.words, message))?,
            // An interpreter starts even if its script is missing, but then exits quickly.
            Dialect::Command if process.exited_within(Duration::from_millis(250)) => {
                return Err(failed(&reward.words, process.epitaph()));
            }
            Dialect::Command => {}
        }
        reward.process = Some(process);
        Ok(reward)
    }

    /// Waits for the ready line of the Python adapter.
    fn greet(&mut self, process: &mut Process) -> std::result::Result<(), Failure> {
        #[derive(Deserialize)]
        struct Greeting {
            by_group: Option<bool>,
            error: Option<String>,
        }
        let line = process.line_until(Instant::now() + self.timeout, &self.stop);
        let line = line.map_err(|silence| match silence {
            Silence::TimedOut => {
                let waited = self.timeout.as_secs_f64();
                let message = format!("the import took longer than timeout_s = {waited}; the interpreter was killed");
                (ProblemKind::TimedOut, process.with_stderr(message))
            }
            other => self.silent(process, other, self.timeout),
        })?;
        match serde_json::from_slice(&line) {
            Ok(Greeting { error: Some(error), .. }) => Err((ProblemKind::Failed, error)),
            Ok(Greeting { by_group: Some(by_group), .. }) => {
                self.by_group |= by_group;
                Ok(())
            }
            _ => {
                Err((ProblemKind::BadAnswer, process.with_stderr("the program is not a Python interpreter".to_owned())))
            }
        }
    }

    /// Starts the program again.
    fn restarted(&mut self) -> std::result::Result<Process, Failure> {
        self.restarts_in_a_row += 1;
        let started = Process::start(&self.words);
        let mut process = started.map_err(|e| (ProblemKind::Crashed, format!("cannot restart: {}", explain(&e))))?;
        if self.dialect == Dialect::Python {
            self.greet(&mut process)?;
        }
        Ok(process)
    }

    /// The failure for a program that sent no line.
    fn silent(&self, process: &mut Process, silence: Silence, waited: Duration) -> Failure {
        use ProblemKind::{BadAnswer, Crashed, Failed, TimedOut};
        match silence {
            Silence::TimedOut => {
                let message = format!("no answer within {} s; the program was killed", waited.as_secs_f64());
                (TimedOut, process.with_stderr(message))
            }
            Silence::TooLong => (BadAnswer, process.with_stderr("the answer is longer than 256 MiB".to_owned())),
            Silence::Stopped => (Failed, "the scores are not needed any more".to_owned()),
            Silence::Ended => (Crashed, process.epitaph()),
        }
    }

    /// Sends a batch to the program and reads its answer.
    fn ask(&mut self, batch: &RewardBatch<'_>) -> std::result::Result<Scores, Failure> {
        self.requests += 1;
        let number = self.requests;
        let request = match self.dialect {
            Dialect::Command => protocol::request(batch, Some(number))?,
            Dialect::Python => protocol::batch_line(batch)?,
        };
        let mut process = match self.process.take() {
            Some(process) => process,
            None => self.restarted()?,
        };
        // The pipe of the Python adapter carries only answers, so the adapter needs no request numbers.
        let line = if process.has_unread_line(self.numbered || self.dialect == Dialect::Python) {
            let message = "the program printed a line that is not an answer; print debugging output to standard error";
            Err((ProblemKind::BadAnswer, message.to_owned()))
        } else {
            process.send(request);
            let line = process.line_until(Instant::now() + self.timeout, &self.stop);
            line.map_err(|silence| self.silent(&mut process, silence, self.timeout))
        };
        // After a failure it would be unknown which batch the next line answers. Therefore the failed process is
        // dropped, and the program is restarted for the next batch.
        let with_stderr = |(kind, message), process: &Process| (kind, process.with_stderr(message));
        let answer = protocol::answer(&line?).map_err(|failure| with_stderr(failure, &process))?;
        if let Some(other) = answer.request.filter(|&other| other != number) {
            let why = "the program printed an extra line";
            let message = format!("expected the answer to request {number}, got the answer to request {other}: {why}");
            return Err(with_stderr((ProblemKind::BadAnswer, message), &process));
        }
        if self.numbered && answer.request.is_none() && answer.error.is_none() {
            let message = "the answer has no `request`, unlike earlier answers, so it may be an extra line";
            return Err(with_stderr((ProblemKind::BadAnswer, message.to_owned()), &process));
        }
        self.numbered |= answer.request.is_some();
        // An error that the program itself reports needs no restart: the program is still running.
        let tokens: Vec<usize> = batch.completion_ids.iter().map(Vec::len).collect();
        let scores = protocol::scores(&self.name, answer, &tokens).map_err(|(kind, message)| {
            let is_reported = self.dialect == Dialect::Command && kind == ProblemKind::Failed;
            let message = if is_reported { format!("the program reported an error: {message}") } else { message };
            with_stderr((kind, message), &process)
        });
        let scores = scores.map(|mut scores| {
            let message = |problem: &mut Problem| problem.message = process.with_stderr(problem.message.clone());
            scores.problems.iter_mut().for_each(message);
            scores
        });
        self.process = Some(process);
        self.restarts_in_a_row = if scores.is_ok() { 0 } else { self.restarts_in_a_row };
        scores
    }
}

impl Reward for CommandReward {
    fn name(&self) -> &str {
        &self.name
    }

    fn scores_by_group(&self) -> bool {
        self.by_group
    }

    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        if batch.is_empty() {
            return Scores::default();
        }
        let outcome = match &self.given_up {
            Some(cause) => Err((ProblemKind::GivenUp, cause.clone())),
            None => self.ask(batch),
        };
        outcome.unwrap_or_else(|(mut kind, mut message)| {
            let restarts = self.restarts_in_a_row;
            let stopped = self.stop.load(Ordering::Relaxed);
            if self.given_up.is_none() && self.process.is_none() && restarts >= self.max_restarts && !stopped {
                message = format!("not restarted after {restarts} restarts without a successful batch: {message}");
                kind = ProblemKind::GivenUp;
                self.given_up = Some(message.clone());
            }
            let problem = Problem::new(&self.name, batch.len(), message).with_kind(kind);
            Scores::failed(batch.len(), Problem { fatal: self.given_up.is_some(), ..problem })
        })
    }

    fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        self.stop = stop;
    }
}

/// Replaces the paths of a command's program (if given by a path) and script by the results of `absolute`. The result
/// is one string if the words can be written as one. `None` if the command is invalid.
pub(crate) fn map_paths<E>(
    command: Words,
    absolute: impl Fn(&str) -> std::result::Result<String, E>,
) -> std::result::Result<Option<serde_json::Value>, E> {
    let Ok(mut words) = command.split() else { return Ok(None) };
    absolute_words(&mut words, absolute)?;
    let line = words.join(" ");
    Ok(Some(if split_line(&line).as_ref() == Some(&words) { line.into() } else { words.into() }))
}

/// The name of a command, and its arguments. Both `python3 path/my_reward.py x` and `./my_reward.sh x` have the name
/// `my_reward` and the argument `x`.
pub(crate) fn label(command: Words) -> Result<(String, String)> {
    let words = command.split()?;
    let path = |word: &String| std::path::PathBuf::from(word);
    let mut arguments = words.iter().enumerate().skip(1).take_while(|(_, word)| !word.starts_with('-'));
    let script = arguments.find(|(_, word)| path(word).is_file()).map_or(0, |(place, _)| place);
    let stem = path(&words[script]).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    Ok((stem.unwrap_or_else(|| "command".to_owned()), words[script + 1..].join(" ")))
}
