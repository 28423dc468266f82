//! The console output of a training run: lines, tables and progress on a terminal, in a log file, or as JSON.
//!
//! Lines and progress bars go to standard error; [`Console::print`] (results, tables) writes to standard output. On a
//! terminal, progress is a bar that stays below the log lines; elsewhere it is a plain line from time to time. Lines
//! are coloured only on a terminal; a nonempty `NO_COLOR` and `TERM=dumb` disable colour. `LOCKSTEP_LOG` (error, warn,
//! info, debug) sets the level. Each process has its own log file, with lines of every level. If a write to the console
//! fails (a closed pipe or terminal, output redirected to a full disk), the run continues.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use indicatif::{MultiProgress, ProgressDrawTarget};
use serde_json::Value;

mod evaluation;
mod paint;
mod progress;
mod step_table;
mod terminal;

pub use self::paint::{Painted, Tone};
pub use self::progress::{Progress, counted, duration};
pub use self::step_table::brief;
use super::Sink;
use crate::{Alarm, Error, Event, EventKind, Level, Record, Result, Step, table, visible, visible_json};

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Plain,
    /// One JSON object per line: `time_s` (since 1970), `level`, `message`, and the fields. Tables, alarms and findings
    /// become fields, with the names and values of `metrics.jsonl` and `profile.json`; `message` is a single line for
    /// people.
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "plain" => Ok(LogFormat::Plain),
            "json" => Ok(LogFormat::Json),
            other => Err(format!("unknown log format `{other}`, expected plain or json")),
        }
    }
}

/// The options of a console.
#[derive(Clone, Debug, Default)]
pub struct ConsoleOptions {
    /// The format of lines, plain or JSON.
    pub format: LogFormat,
    /// The least important level that is shown (see [`Level::from_env`]).
    pub level: Level,
    /// The log file of this process, to which lines of every level are appended without colour.
    pub log_file: Option<PathBuf>,
    /// Whether the tables of evaluations and of stages are shown. The log file always gets them.
    pub verbose: bool,
    /// Whether the console prints nothing at any level. The log file still gets its lines.
    pub silent: bool,
    /// Receives the warnings and errors that a silent console does not print.
    pub warnings: Option<Listener>,
}

/// A function that receives messages.
#[derive(Clone)]
pub struct Listener(Arc<dyn Fn(&str) + Send + Sync>);

impl Listener {
    /// A listener that calls `function`.
    pub fn new(function: impl Fn(&str) + Send + Sync + 'static) -> Listener {
        Listener(Arc::new(function))
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listener")
    }
}

/// The console of a process. A clone is another handle to the same console.
#[derive(Clone, Debug)]
pub struct Console {
    inner: Arc<Inner>,
}

struct Inner {
    format: LogFormat,
    level: Level,
    colour: bool,
    verbose: bool,
    silent: bool,
    warnings: Option<Listener>,
    bars: MultiProgress,
    /// Whether progress bars are drawn: only if standard error is a terminal and the format is plain.
    terminal: bool,
    start: Instant,
    file: Mutex<LogFile>,
    /// In tests, a buffer that receives the output instead of the standard streams.
    capture: Option<Arc<Mutex<Vec<u8>>>>,
}

/// The log file, or the lines that wait until the file is opened.
enum LogFile {
    Open(File),
    /// Lines that were logged before the directory of the log file existed.
    Early(Vec<u8>),
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            LogFile::Open(file) => file.write(bytes),
            LogFile::Early(printed) => printed.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Console").field("format", &self.format).field("level", &self.level).finish_non_exhaustive()
    }
}

/// Whether the console uses colour, given the values of `NO_COLOR` (`no_color`) and `TERM` (`name`).
fn uses_colour(terminal: bool, no_color: Option<&OsStr>, name: Option<&OsStr>) -> bool {
    terminal && no_color.is_none_or(OsStr::is_empty) && name.is_none_or(|name| name != "dumb")
}

impl Console {
    /// A console on standard error. Bars are drawn only on a terminal. Colour is used only on a terminal, if `NO_COLOR`
    /// is unset or empty and `TERM` is not `dumb`.
    pub fn new(options: ConsoleOptions) -> Result<Self> {
        let terminal = !options.silent && options.format == LogFormat::Plain && std::io::stderr().is_terminal();
        let [no_color, name] = ["NO_COLOR", "TERM"].map(std::env::var_os);
        let colour = uses_colour(terminal, no_color.as_deref(), name.as_deref());
        Self::with(options, terminal, colour, None)
    }

    fn with(
        options: ConsoleOptions,
        terminal: bool,
        colour: bool,
        capture: Option<Arc<Mutex<Vec<u8>>>>,
    ) -> Result<Self> {
        let is_drawn = terminal && capture.is_none();
        let target = if is_drawn { terminal::target() } else { ProgressDrawTarget::hidden() };
        let inner = Inner {
            format: options.format,
            level: options.level,
            colour,
            verbose: options.verbose,
            silent: options.silent,
            warnings: options.warnings,
            bars: MultiProgress::with_draw_target(target),
            terminal,
            start: Instant::now(),
            file: Mutex::new(LogFile::Early(Vec::new())),
            capture,
        };
        let console = Console { inner: Arc::new(inner) };
        if let Some(path) = options.log_file {
            console.set_log_file(path)?;
        }
        Ok(console)
    }

    /// The format of the console.
    pub fn format(&self) -> LogFormat {
        self.inner.format
    }

    /// The width of the terminal in characters; 100 without a terminal.
    pub fn width(&self) -> usize {
        let size = console::Term::stderr().size_checked();
        size.map_or(100, |(_, columns)| usize::from(columns)).clamp(40, 200)
    }

    /// Logs a line: a message and named values.
    pub fn log(&self, level: Level, message: &str, fields: &Record) {
        self.say(level, &message.into(), fields)
    }

    fn say(&self, level: Level, message: &Painted, fields: &Record) {
        let line = |colour| self.line(level, message, fields, colour);
        let _ = writeln!(self.file(), "{}", line(false));
        if let (true, true, Some(Listener(receive))) = (self.inner.silent, level <= Level::Warn, &self.inner.warnings) {
            receive(&message.to_string());
        }
        if level <= self.inner.level {
            self.write(&(line(self.inner.colour) + "\n"), false);
        }
    }

    /// Logs the error that ends the program. The console shows the error without a time; in the log file it is a line
    /// like any other.
    pub fn fatal(&self, message: &str) {
        let line = self.line(Level::Error, &message.into(), &Record::new(), false);
        let _ = writeln!(self.file(), "{line}");
        let shown = if self.inner.format == LogFormat::Json { line } else { format!("error: {}", visible(message)) };
        self.write(&(shown + "\n"), false);
    }

    fn line(&self, level: Level, message: &Painted, fields: &Record, colour: bool) -> String {
        let now_s = crate::system::since_1970().as_secs_f64();
        let elapsed = self.inner.start.elapsed().as_secs_f64();
        match self.inner.format {
            LogFormat::Json => json_line(now_s, level, &message.to_string(), fields),
            LogFormat::Plain => plain_line(elapsed, level, message, fields, colour),
        }
    }

    /// Logs a message at level info, without fields.
    pub fn info(&self, message: &str) {
        self.log(Level::Info, message, &Record::new());
    }

    /// Logs a message at level warn, without fields.
    pub fn warn(&self, message: &str) {
        self.log(Level::Warn, message, &Record::new());
    }

    /// Logs a message with values: `text` in the plain format, and `message` with `fields` in the JSON format.
    pub fn report(&self, level: Level, text: impl Into<Painted>, message: &str, fields: &Record) {
        match self.inner.format {
            LogFormat::Plain => self.say(level, &text.into(), &Record::new()),
            LogFormat::Json => self.log(level, message, fields),
        }
    }

    /// [Prints](Self::print) a table: `text` in the plain format, and in the JSON format a line of level info with
    /// `message` and the table's values as fields.
    pub fn table(&self, text: &str, message: &str, fields: &Record) {
        match self.inner.format {
            LogFormat::Plain => self.print(text),
            LogFormat::Json => self.log(Level::Info, message, fields),
        }
    }

    /// Outputs a table of details. A [verbose](ConsoleOptions::verbose) console [prints](Self::table) the table; any
    /// other console logs it at level debug. In the JSON format, it is output like any other table.
    pub fn details(&self, text: &str, message: &str, fields: &Record) {
        match self.inner.format {
            LogFormat::Plain if !self.inner.verbose => self.log(Level::Debug, text.trim_end(), &Record::new()),
            _ => self.table(text, message, fields),
        }
    }

    /// Prints a block of text to standard output and to the log file, at any level. In the JSON format the text is
    /// logged at level info instead: standard error and the log file then have one object per line, and standard output
    /// stays empty.
    pub fn print(&self, text: &str) {
        if self.inner.format == LogFormat::Json {
            return self.info(text.trim_end());
        }
        let text = format!("{}\n", visible(text.trim_end_matches('\n')));
        let _ = self.file().write_all(text.as_bytes());
        self.write(&text, true);
    }

    /// Opens this process's log file for appending, once the run's directory exists. Lines that were logged earlier are
    /// written first.
    pub fn set_log_file(&self, path: PathBuf) -> Result<()> {
        let mut file = disk::Options::new().create().append().open(&path).map_err(Error::io("open", &path))?;
        let mut log = self.file();
        if let LogFile::Early(printed) = &*log {
            file.write_all(printed).map_err(Error::io("write", &path))?;
        }
        *log = LogFile::Open(file);
        Ok(())
    }

    /// Shows progress over `total` units, of which `start` are already done, for example after a resume.
    pub fn progress(&self, label: &str, total: u64, start: u64) -> Progress {
        Progress::new(self.clone(), label, total, start)
    }

    fn file(&self) -> MutexGuard<'_, LogFile> {
        self.inner.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the progress bars, writes to standard output or standard error, and draws the bars again.
    fn write(&self, text: &str, to_stdout: bool) {
        if self.inner.silent {
            return;
        }
        self.inner.bars.suspend(|| {
            // A failed write to the console must not end the run.
            let _ = match &self.inner.capture {
                Some(capture) => capture.lock().unwrap_or_else(PoisonError::into_inner).write_all(text.as_bytes()),
                None if to_stdout => {
                    let mut out = std::io::stdout().lock();
                    out.write_all(text.as_bytes()).and_then(|()| out.flush())
                }
                None => std::io::stderr().lock().write_all(text.as_bytes()),
            };
        });
    }
}

/// A sink that shows messages, completions and progress on a console.
#[derive(Debug)]
pub struct ConsoleSink {
    console: Console,
    progress: Option<Progress>,
    step_table: step_table::StepTable,
    evaluations: evaluation::Evaluations,
}

impl ConsoleSink {
    /// A sink that shows events on `console`.
    pub fn new(console: Console) -> Self {
        ConsoleSink { console, progress: None, step_table: Default::default(), evaluations: Default::default() }
    }

    /// Shows the metrics of a step: a row of a table in the plain format, numbers in the JSON format. An evaluation is
    /// one line, with its details in a separate table.
    fn metrics(&mut self, step: Step, values: &[(String, f64)]) {
        let is_evaluation = values.iter().any(|(name, _)| name.starts_with("eval_"));
        if self.console.format() == LogFormat::Json {
            let mut fields = Record::new();
            fields.set("step", step);
            for (name, value) in values {
                fields.set(name, *value);
            }
            let what = if is_evaluation { "evaluation after step" } else { "step" };
            return self.console.log(Level::Info, &format!("{what} {step}"), &fields);
        }
        if is_evaluation {
            self.console.info(&self.evaluations.line(step, values));
            let table = self.evaluations.table(step, values, self.console.width());
            let level = if self.console.inner.verbose { Level::Info } else { Level::Debug };
            return self.console.log(level, &table, &Record::new());
        }
        // The progress bar of a training run counts steps.
        let left = self.progress.as_ref().and_then(|progress| progress.left_at(step.0));
        // The time at the beginning of each line takes 12 columns.
        let room = if self.console.inner.terminal { self.console.width().saturating_sub(12) } else { usize::MAX };
        let mut lines = self.step_table.lines(step, values, left, room);
        let row = lines.pop().unwrap_or_default();
        for names in lines {
            self.console.info(&names);
        }
        self.console.say(Level::Info, &Painted::new(Tone::Dim, row), &Record::new());
        self.progress.iter_mut().for_each(|progress| progress.printed(step.0));
    }
}

impl Sink for ConsoleSink {
    fn receive(&mut self, event: &Event) -> Result<()> {
        match &event.kind {
            EventKind::Metrics { step, values } => self.metrics(*step, values),
            EventKind::Message { level, text, fields } => self.console.log(*level, text, fields),
            EventKind::Alarm { step, alarm } => {
                let level = if alarm.until.is_some() || alarm.quiet { Level::Info } else { Level::Warn };
                let fields = step_fields(*step, "alarm", serde_json::to_value(alarm).unwrap_or_default());
                self.console.report(level, painted(alarm), &alarm.headline(), &fields);
            }
            EventKind::Finding { step, finding } => {
                let fields = step_fields(*step, "finding", serde_json::to_value(finding).unwrap_or_default());
                self.console.report(Level::Info, finding.to_string(), &finding.headline(), &fields);
            }
            EventKind::Completions { rows, shown } if *shown > 0 => {
                let text = table::completions(rows, *shown, self.console.width());
                let fields = step_fields(rows.step, "completions", table::completions_json(rows, *shown));
                self.console.table(&text, &format!("completions of step {}", rows.step), &fields);
            }
            EventKind::Progress { label, done, total, note } => match &mut self.progress {
                Some(progress) if progress.is_of(label, *total) => progress.set(*done, note),
                // The old progress is dropped first: its bar must end before the new one is drawn.
                other => {
                    *other = None;
                    *other = Some(self.console.progress(label, *total, *done));
                }
            },
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.progress = None;
        Ok(())
    }
}

/// The text of an alarm. Its first line, the evidence, has the colour of the alarm's weight.
fn painted(alarm: &Alarm) -> Painted {
    let tone = match alarm.until {
        Some(_) => Tone::Plain,
        None => alarm.weight(false).into(),
    };
    let text = alarm.to_string();
    let first = text.find('\n').unwrap_or(text.len());
    let (first, rest) = text.split_at(first);
    let details = if tone == Tone::Dim { Tone::Dim } else { Tone::Plain };
    Painted::new(tone, first).and(details, rest)
}

fn step_fields(step: Step, name: &str, value: Value) -> Record {
    let mut fields = Record::new();
    fields.set("step", step).set(name, value);
    fields
}

fn json_line(now_s: f64, level: Level, message: &str, fields: &Record) -> String {
    let mut line = serde_json::Map::new();
    line.insert("time_s".to_owned(), ((now_s * 1e3).round() / 1e3).into());
    line.insert("level".to_owned(), level.name().into());
    line.insert("message".to_owned(), message.into());
    for (key, value) in &fields.0 {
        // Fields must not overwrite the keys that every line has.
        let key = if line.contains_key(key) { format!("field_{key}") } else { key.clone() };
        line.insert(key, value.clone());
    }
    visible_json(&Value::Object(line).to_string()).into_owned()
}

fn plain_line(elapsed_s: f64, level: Level, message: &Painted, fields: &Record, colour: bool) -> String {
    let (ansi, mark) = match level {
        Level::Error => ("31", "error: "),
        Level::Warn => ("33", "warning: "),
        Level::Info => ("", ""),
        Level::Debug => ("2", "debug: "),
    };
    let time = format!("[{elapsed_s:8.1}s]");
    let message = message.shown(mark, ansi, colour);
    let fields: String = fields.0.iter().map(|(key, value)| format!(" {key}={}", short(value))).collect();
    let fields = visible(&fields);
    if colour { format!("\u{1b}[2m{time}\u{1b}[0m {message}{fields}") } else { format!("{time} {message}{fields}") }
}

/// Formats a value for people; floats are rounded to four significant digits.
#[allow(clippy::disallowed_methods)] // printed only
fn short(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().unwrap_or(f64::NAN);
            let size = number.abs();
            if number == 0.0 {
                "0".to_owned()
            } else if (1e-3..1e4).contains(&size) {
                // The number of decimals that gives four significant digits.
                let digits = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
                let text = format!("{number:.digits$}");
                if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
            } else {
                format!("{number:.3e}")
            }
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
