//! The progress of one phase of a run: how much is done, the speed, and the time left.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::{Console, LogFormat};
use crate::{Level, Record, visible};

/// Without a terminal, a line of progress is written at most this often, and one at the end.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The progress of one phase: a bar on a terminal, elsewhere a plain line from time to time. It ends when dropped.
#[derive(Debug)]
pub struct Progress {
    console: Console,
    bar: Option<ProgressBar>,
    label: String,
    total: u64,
    start: u64,
    done: u64,
    started: Instant,
    last_line: Instant,
    /// The units that a log line has reported last, if any.
    said: Option<u64>,
}

impl Progress {
    pub(super) fn new(console: Console, label: &str, total: u64, start: u64) -> Self {
        let bar = console.inner.terminal.then(|| {
            let bar = console.inner.bars.add(ProgressBar::new(total));
            let style =
                ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {msg}").expect("a valid template");
            bar.set_style(style.progress_chars("━╸ "));
            bar.set_prefix(visible(label).into_owned());
            bar.set_position(start);
            bar
        });
        let now = Instant::now();
        Progress {
            console,
            bar,
            label: label.to_owned(),
            total,
            start,
            done: start,
            started: now,
            last_line: now,
            said: None,
        }
    }

    /// Sets how many of the units are done; `note` is shown beside them (for example `reward 0.53, 812 tok/s`).
    pub fn set(&mut self, done: u64, note: &str) {
        self.done = done;
        let left = self.remaining_s().map(|left| format!("{} left", duration(left))).unwrap_or_default();
        let parts: Vec<&str> = [note, left.as_str()].into_iter().filter(|part| !part.is_empty()).collect();
        let message = parts.join(", ");
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(visible(&message).into_owned());
        } else if self.said != Some(done) && (self.last_line.elapsed() >= LINE_EVERY || done >= self.total) {
            self.last_line = Instant::now();
            self.line(&message);
        }
    }

    /// Estimated seconds until the end at the speed so far; `None` before anything is done and after the end.
    pub fn remaining_s(&self) -> Option<f64> {
        self.left_at(self.done)
    }

    /// Estimated seconds until the end from the moment at which `done` units are done, at the speed so far.
    pub(super) fn left_at(&self, done: u64) -> Option<f64> {
        let left = self.total.saturating_sub(done);
        let done = done.saturating_sub(self.start);
        (done > 0 && left > 0).then(|| self.started.elapsed().as_secs_f64() / done as f64 * left as f64)
    }

    /// Records that another log line has reported that `done` units are done.
    pub(super) fn said(&mut self, done: u64) {
        (self.said, self.last_line) = (Some(done), Instant::now());
    }

    fn line(&self, message: &str) {
        let mut fields = Record::new();
        if self.console.inner.format == LogFormat::Json {
            fields.set("done", self.done).set("total", self.total);
        }
        let note = if message.is_empty() { String::new() } else { format!(", {message}") };
        self.console.log(Level::Info, &format!("{} {}/{}{note}", self.label, self.done, self.total), &fields);
    }

    /// Whether this is the progress of the phase `label` over `total` units.
    pub(super) fn is_of(&self, label: &str, total: u64) -> bool {
        self.label == label && self.total == total
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
            self.console.inner.bars.remove(&bar);
        }
        let took = duration(self.started.elapsed().as_secs_f64());
        self.console.log(
            Level::Debug,
            &format!("{} {}/{} in {took}", self.label, self.done, self.total),
            &Record::new(),
        );
    }
}

/// A duration in words: `0.42 s`, `38 s`, `4 min 05 s`, `2 h 03 min`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        _ if seconds < 9.95 => format!("{:.2} s", seconds.max(0.0)),
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// A number with its noun in singular or plural: `1 step`, `2 steps`.
pub fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}
