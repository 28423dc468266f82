//! The end of a key's row, after name, type and default: a [`Row`] has TRL's counterpart, the methods that read the
//! key, and its range.

use super::methods::{ALL, Methods};
use serde_json::{Value as Json, json};
use std::fmt;

/// Whether a resumed run may change the value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnResume {
    /// The value may change: the result's bits do not depend on it.
    Free,
    /// The value may change, with a warning: the run then differs from one that was never stopped.
    Warn,
    /// The value may not change: the saved state would not fit, or would have a different meaning.
    Fixed,
}

/// TRL's counterpart of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trl {
    /// TRL does not have the key.
    Nothing,
    /// A field of TRL's configuration classes.
    Field {
        /// TRL's name of the field, if it differs from the key's.
        name: Option<&'static str>,
        /// TRL's default as TOML, for the methods in which it differs from this project's.
        defaults: &'static [(Methods, &'static str)],
    },
    /// Something that is not a field of TRL's current configuration classes, described in words.
    Other(&'static str),
}

/// The range of numbers that a key accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    low: f64,
    low_is_in: bool,
    high: f64,
    high_is_in: bool,
}

/// The upper bound for counts of completions, sequences or repetitions. A larger value is a typo, and its allocations
/// would fail before any check could report it.
pub(super) const MAX_COUNT: f64 = (1 << 20) as f64;
/// The upper bound for counts of tokens.
pub(super) const LONG: f64 = (1u64 << 31) as f64;

/// The range of numbers ≥ `low`.
pub(super) const fn at_least(low: f64) -> Range {
    Range { low, low_is_in: true, high: f64::INFINITY, high_is_in: false }
}

/// The range of numbers > `low`.
pub(super) const fn above(low: f64) -> Range {
    Range { low, low_is_in: false, high: f64::INFINITY, high_is_in: false }
}

impl Range {
    pub(super) const fn at_most(self, high: f64) -> Range {
        Range { high, high_is_in: true, ..self }
    }

    pub(super) const fn below(self, high: f64) -> Range {
        Range { high, high_is_in: false, ..self }
    }

    pub(super) fn contains(&self, x: f64) -> bool {
        let above = if self.low_is_in { x >= self.low } else { x > self.low };
        let below = if self.high_is_in { x <= self.high } else { x < self.high };
        above && below
    }

    /// Adds the bounds of the range to the JSON Schema of a number.
    pub(super) fn restrict(&self, number: &mut serde_json::Map<String, Json>) {
        // The schema of an integer type already has a lower bound, and its bounds are written as integers.
        let limit = |x: f64| match number.get("type").and_then(Json::as_str) {
            Some("integer") => json!(x as i64),
            _ => json!(x),
        };
        let low = (if self.low_is_in { "minimum" } else { "exclusiveMinimum" }, limit(self.low));
        let high = (if self.high_is_in { "maximum" } else { "exclusiveMaximum" }, limit(self.high));
        number.insert(low.0.to_owned(), low.1);
        if self.high.is_finite() {
            number.insert(high.0.to_owned(), high.1);
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", if self.low_is_in { "at least" } else { "above" }, self.low)?;
        match (self.high.is_finite(), self.high_is_in) {
            (false, _) => Ok(()),
            (true, true) => write!(f, " and at most {}", self.high),
            (true, false) => write!(f, " and below {}", self.high),
        }
    }
}

/// The last part of a key's row. A row starts from [`TRL`] or [`OURS`], and its methods set the differences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(super) trl: Trl,
    pub(super) read_by: Methods,
    pub(super) range: Option<Range>,
    pub(super) on_resume: OnResume,
    pub(super) needs: Option<(&'static str, &'static str)>,
    pub(super) is_name: bool,
    pub(super) instead: &'static [(Methods, &'static str)],
}

/// A key of TRL's with its name and defaults. All methods read it, and a resumed run may not change it.
pub(super) const TRL: Row = Row {
    trl: Trl::Field { name: None, defaults: &[] },
    read_by: ALL,
    range: None,
    on_resume: OnResume::Fixed,
    needs: None,
    is_name: false,
    instead: &[],
};

/// A key that TRL does not have; otherwise as [`TRL`].
pub(super) const OURS: Row = Row { trl: Trl::Nothing, ..TRL };

impl Row {
    /// Sets TRL's name for the key.
    pub(super) const fn trl_name(self, name: &'static str) -> Row {
        let Trl::Field { defaults, .. } = self.trl else { panic!("a row with TRL's name must begin with TRL") };
        Row { trl: Trl::Field { name: Some(name), defaults }, ..self }
    }

    /// Sets TRL's defaults, as TOML, for the methods in which they differ from this project's.
    pub(super) const fn trl_defaults(self, defaults: &'static [(Methods, &'static str)]) -> Row {
        let Trl::Field { name, .. } = self.trl else { panic!("a row with TRL's defaults must begin with TRL") };
        Row { trl: Trl::Field { name, defaults }, ..self }
    }

    /// Describes TRL's counterpart if it is not a field of its configuration classes.
    pub(super) const fn trl_has(self, words: &'static str) -> Row {
        Row { trl: Trl::Other(words), ..self }
    }

    /// Sets the methods that read the key; in runs of other methods the key is reported as unused.
    pub(super) const fn read_by(self, methods: Methods) -> Row {
        Row { read_by: methods, ..self }
    }

    pub(super) const fn range(self, range: Range) -> Row {
        Row { range: Some(range), ..self }
    }

    pub(super) const fn on_resume(self, on_resume: OnResume) -> Row {
        Row { on_resume, ..self }
    }

    /// The key has an effect only if another key has this value (as TOML); otherwise it is reported as unused.
    pub(super) const fn needs(self, key: &'static str, value: &'static str) -> Row {
        Row { needs: Some((key, value)), ..self }
    }

    /// The value is a path, or, if no such path exists, another name: a Hub id, or an object of the calling program.
    pub(super) const fn name(self) -> Row {
        Row { is_name: true, ..self }
    }

    /// Names the replacements of this key in methods that do not read it.
    pub(super) const fn instead(self, keys: &'static [(Methods, &'static str)]) -> Row {
        Row { instead: keys, ..self }
    }
}
