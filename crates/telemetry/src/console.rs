//! What a person sees while a run goes on.

use std::path::PathBuf;

use crate::{Record, Result};

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Plain,
    /// One JSON object for each line.
    Json,
}

/// How much is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Failures.
    Error,
    /// What a person should look at.
    Warn,
    /// The course of the run.
    #[default]
    Info,
    /// Details.
    Debug,
}

/// How a console is made.
#[derive(Clone, Debug, Default)]
pub struct ConsoleOptions {
    /// Plain or JSON.
    pub format: LogFormat,
    /// The least important level that is shown.
    pub level: Level,
    /// This process's log file, which gets every line (level debug and up, without colour).
    pub log_file: Option<PathBuf>,
}

/// The console; a clone is another handle to the same one.
#[derive(Clone, Debug)]
pub struct Console {}

impl Console {
    /// A console on standard error; colour and bars only if it is a terminal and `NO_COLOR` is unset or empty.
    pub fn new(_options: ConsoleOptions) -> Result<Self> {
        unimplemented!()
    }
    /// Says a line.
    pub fn log(&self, _level: Level, _message: &str, _fields: &Record) {
        unimplemented!()
    }
    /// `log` at level info without fields.
    pub fn info(&self, message: &str) {
        self.log(Level::Info, message, &Record::new());
    }
    /// `log` at level warn without fields.
    pub fn warn(&self, message: &str) {
        self.log(Level::Warn, message, &Record::new());
    }
    /// `log` at level error without fields.
    pub fn error(&self, message: &str) {
        self.log(Level::Error, message, &Record::new());
    }
    /// `log` at level debug without fields.
    pub fn debug(&self, message: &str) {
        self.log(Level::Debug, message, &Record::new());
    }
    /// A block of text (a table) on standard output, whatever the level.
    pub fn print(&self, _text: &str) {
        unimplemented!()
    }
    /// Adds this process's log file once the run directory exists.
    pub fn set_log_file(&self, _path: PathBuf) -> Result<()> {
        unimplemented!()
    }
    /// Progress over `total` units, `start` of them done already.
    pub fn progress(&self, _label: &str, _total: u64, _start: u64) -> Progress {
        unimplemented!()
    }
}

/// Progress of one phase: a bar on a terminal, a plain line now and then otherwise; it ends when dropped.
#[derive(Debug)]
pub struct Progress {}

impl Progress {
    /// `done` units are done; `note` is shown beside (for example `reward 0.53 · 812 tok/s`).
    pub fn set(&mut self, _done: u64, _note: &str) {
        unimplemented!()
    }
    /// Ends it.
    pub fn finish(self) {}
}
