//! The progress of one phase of a run: the units done, and the estimated time left.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::{Console, LogFormat};
use crate::{Level, Record, visible};

/// The minimum time between two progress lines without a terminal. A final line is always written.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The minimum width of a bar.
const LEAST_BAR: usize = 8;

/// The progress of one phase: a bar on a terminal, elsewhere a plain line from time to time. Dropping this value ends
/// the progress.
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
    /// The number of units that the last log line reported, if any.
    printed: Option<u64>,
}

impl Progress {
    pub(super) fn new(console: Console, label: &str, total: u64, start: u64) -> Self {
        let bar = console.inner.terminal.then(|| {
            let bar = console.inner.bars.add(ProgressBar::new(total));
            let style =
                ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {msg}").expect("the template is valid");
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
            printed: None,
        }
    }

    /// Sets the number of units done. `note` is shown after the number, for example `reward 0.53, 812 tok/s`.
    pub fn set(&mut self, done: u64, note: &str) {
        self.done = done;
        let left = self.remaining_s().map(|left| format!("{} left", duration(left))).unwrap_or_default();
        let joined =
            |parts: [&str; 2]| parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
        let message = joined([note, &left]);
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            // The time precedes the note, because text that does not fit is truncated at its end.
            let counts = format!("{} {}/{}", self.label, self.total, self.total).chars().count();
            let room = self.console.width().saturating_sub(counts + LEAST_BAR + 3);
            bar.set_message(cut(&visible(&joined([&left, note])), room));
        } else if self.printed != Some(done) && (self.last_line.elapsed() >= LINE_EVERY || done >= self.total) {
            self.last_line = Instant::now();
            self.line(&message);
        }
    }

    /// Estimated seconds until the end, at the speed so far. `None` before the first unit is done, and after the end.
    pub fn remaining_s(&self) -> Option<f64> {
        self.left_at(self.done)
    }

    /// Estimated seconds until the end, counted from the time when `done` units are done, at the speed so far.
    pub(super) fn left_at(&self, done: u64) -> Option<f64> {
        let left = self.total.saturating_sub(done);
        let done = done.saturating_sub(self.start);
        (done > 0 && left > 0).then(|| self.started.elapsed().as_secs_f64() / done as f64 * left as f64)
    }

    /// Records that another log line has already reported `done` units.
    pub(super) fn printed(&mut self, done: u64) {
        (self.printed, self.last_line) = (Some(done), Instant::now());
    }

    fn line(&self, message: &str) {
        let mut fields = Record::new();
        if self.console.inner.format == LogFormat::Json {
            fields.set("label", &*self.label).set("done", self.done).set("total", self.total);
            if let Some(left) = self.remaining_s() {
                fields.set("remaining_s", left);
            }
        }
        let note = if message.is_empty() { String::new() } else { format!(", {message}") };
        self.console.log(Level::Info, &format!("{} {}/{}{note}", self.label, self.done, self.total), &fields);
    }

    /// Whether this progress has this label and total.
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
        let seconds = self.started.elapsed().as_secs_f64();
        let text = format!("{} {}/{} in {}", self.label, self.done, self.total, duration(seconds));
        let mut fields = Record::new();
        fields.set("label", &*self.label).set("done", self.done).set("total", self.total).set("seconds", seconds);
        self.console.report(Level::Debug, &text, &text, &fields);
    }
}

/// Truncates a text to `room` characters; a truncated text ends with an ellipsis.
fn cut(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let kept: String = text.chars().take(room.saturating_sub(1)).collect();
    kept.trim_end().to_owned() + "…"
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

#[cfg(test)]
mod tests {
    use super::super::ConsoleOptions;
    use super::*;
    use std::sync::{Arc, Mutex};

    type Memory = Arc<Mutex<Vec<u8>>>;

    const HOUR: Duration = Duration::from_secs(3600);

    fn console(format: LogFormat, terminal: bool) -> (Console, Memory) {
        let memory = Memory::default();
        let options = ConsoleOptions { format, ..ConsoleOptions::default() };
        (Console::with(options, terminal, false, Some(Arc::clone(&memory))).unwrap(), memory)
    }

    /// Returns the lines so far, without their times, and clears them.
    fn printed(memory: &Memory) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *memory.lock().unwrap())).unwrap();
        text.lines().map(|line| line.split_once("s] ").unwrap().1.to_owned()).collect()
    }

    fn before(time: Duration) -> Instant {
        Instant::now().checked_sub(time).expect("the clock reaches back this far")
    }

    #[test]
    fn a_progress_line_is_written_every_ten_seconds_and_at_the_end() {
        let (console, memory) = console(LogFormat::Plain, false);
        let mut progress = Progress::new(console, "grpo", 300, 100);
        progress.set(150, "too soon");
        assert!(printed(&memory).is_empty());
        (progress.last_line, progress.started) = (before(LINE_EVERY), before(100 * HOUR));
        progress.set(200, "reward 0.50");
        assert_eq!(printed(&memory), ["grpo 200/300, reward 0.50, 100 h 00 min left"]);
        progress.set(201, "too soon again");
        (progress.last_line, progress.started) = (before(LINE_EVERY), before(101 * HOUR));
        progress.set(201, "");
        assert_eq!(printed(&memory), ["grpo 201/300, 99 h 00 min left"]);
        progress.printed(300);
        progress.last_line = before(LINE_EVERY);
        progress.set(300, "a line of the table shows it");
        assert!(printed(&memory).is_empty());
        progress.printed(299);
        progress.set(300, "");
        assert_eq!(printed(&memory), ["grpo 300/300"]);
        progress.last_line = before(LINE_EVERY);
        progress.printed(250);
        progress.set(260, "another line was printed just now");
        assert!(printed(&memory).is_empty());
    }

    #[test]
    fn json_progress_lines_have_the_numbers_as_fields() {
        let (console, memory) = console(LogFormat::Json, false);
        Progress::new(console, "grpo", 9, 0).set(9, "reward 1");
        let text = String::from_utf8(memory.lock().unwrap().clone()).unwrap();
        let (_, line) = text.split_once(',').unwrap();
        assert_eq!(
            line,
            "\"level\":\"info\",\"message\":\"grpo 9/9, reward 1\",\"label\":\"grpo\",\"done\":9,\"total\":9}\n"
        );
    }

    #[test]
    fn the_time_left_is_estimated_from_the_speed_since_the_start() {
        let mut progress = Progress::new(console(LogFormat::Plain, false).0, "grpo", 300, 100);
        progress.started = before(Duration::from_secs(100));
        for done in [0, 50, 100, 300, 350] {
            assert_eq!(progress.left_at(done), None, "{done}");
        }
        for (done, seconds) in [(101, 19_900.0), (150, 300.0), (200, 100.0), (299, 100.0 / 199.0)] {
            let left = progress.left_at(done).unwrap();
            assert!((seconds..1.2 * seconds).contains(&left), "{done}: {left}");
        }
        assert_eq!(progress.remaining_s(), None);
        progress.set(150, "");
        assert!((300.0..360.0).contains(&progress.remaining_s().unwrap()));
        assert!(progress.is_of("grpo", 300) && !progress.is_of("grpo", 299) && !progress.is_of("sft", 300));
    }

    #[test]
    fn progress_on_a_terminal_is_a_bar_without_lines() {
        let (console, memory) = console(LogFormat::Plain, true);
        let mut progress = Progress::new(console, "gr\u{7}po", 300, 100);
        let bar = progress.bar.clone().unwrap();
        assert_eq!((bar.position(), bar.length(), bar.prefix()), (100, Some(300), "gr\\u{7}po".to_owned()));
        progress.set(300, "\u{1b}note");
        assert_eq!((bar.position(), bar.message()), (300, "\\u{1b}note".to_owned()));
        assert!(printed(&memory).is_empty() && !bar.is_finished());
        drop(progress);
        assert!(bar.is_finished());
    }

    #[test]
    fn a_note_too_long_for_the_bar_is_truncated_at_its_end() {
        for (room, expected) in [(9, "é 3 s lef"), (8, "é 3 s l…"), (3, "é…"), (2, "é…"), (1, "…"), (0, "…")]
        {
            assert_eq!(cut("é 3 s lef", room), expected, "{room}");
        }
        let mut progress = Progress::new(console(LogFormat::Plain, true).0, "grpo", 300, 100);
        progress.started = before(100 * HOUR);
        progress.set(200, &"reward 0.500 · ".repeat(20));
        let message = progress.bar.as_ref().unwrap().message();
        assert!(message.starts_with("100 h 00 min left, reward 0.500 · ") && message.ends_with('…'), "{message}");
        let whole = "grpo 300/300".len() + 3 + LEAST_BAR + message.chars().count();
        assert!((progress.console.width() - 3..=progress.console.width()).contains(&whole), "{whole}");
    }

    #[test]
    fn durations_change_units_and_counts_take_plurals() {
        let table = [
            (-0.5, "0.00 s"),
            (9.94, "9.94 s"),
            (9.95, "10 s"),
            (59.4, "59 s"),
            (59.5, "1 min 00 s"),
            (61.0, "1 min 01 s"),
            (3599.4, "59 min 59 s"),
            (3599.6, "1 h 00 min"),
            (3660.0, "1 h 01 min"),
            (90_000.0, "25 h 00 min"),
        ];
        for (seconds, words) in table {
            assert_eq!(duration(seconds), words);
        }
        assert_eq!([0, 1, 2].map(|n| counted(n, "step")), ["0 steps", "1 step", "2 steps"]);
    }
}
