//! What there is to say about a key beside its name, type and default: the [`Row`] of the table.

use super::methods::{ALL, Methods};
use serde_json::{Value as Json, json};
use std::fmt;

/// Whether a resumed run may have another value than the run began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnResume {
    /// A resumed run may have another value: no bit of the result depends on it.
    Free,
    /// It may have another value, with a warning: from there on it differs from a run that was never stopped.
    Warn,
    /// It may not have another value: the saved state would not fit, or would mean something else.
    Fixed,
}

/// What TRL has for a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trl {
    /// Nothing.
    Nothing,
    /// A field of TRL's configurations.
    Field {
        /// TRL's name, where that is not the key's.
        name: Option<&'static str>,
        /// TRL's default as TOML, for the methods where that is not the key's.
        defaults: &'static [(Methods, &'static str)],
    },
    /// Something that is no field of its present configurations, in words.
    Other(&'static str),
}

/// The numbers that a key may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    low: f64,
    low_is_in: bool,
    high: f64,
    high_is_in: bool,
}

/// More completions, sequences or repetitions than any run has: a typo, whose products and lists would not
/// fit in memory before anything could say so.
pub(super) const MANY: f64 = (1 << 20) as f64;
/// More tokens than any run has.
pub(super) const LONG: f64 = (1u64 << 31) as f64;

/// `low` and more.
pub(super) const fn at_least(low: f64) -> Range {
    Range { low, low_is_in: true, high: f64::INFINITY, high_is_in: false }
}

/// More than `low`.
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

    /// Adds its limits to the JSON Schema of a number.
    pub(super) fn restrict(&self, number: &mut serde_json::Map<String, Json>) {
        // An integer type has a limit of its own, and writes integers.
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

/// The rest of a row: begun with [`TRL`] or [`OURS`], everything that is not said is as in these.
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

/// A key of TRL's, with its name and its defaults; all methods read it; a resumed run may not change it.
pub(super) const TRL: Row = Row {
    trl: Trl::Field { name: None, defaults: &[] },
    read_by: ALL,
    range: None,
    on_resume: OnResume::Fixed,
    needs: None,
    is_name: false,
    instead: &[],
};

/// A key that TRL does not have; the rest as in [`TRL`].
pub(super) const OURS: Row = Row { trl: Trl::Nothing, ..TRL };

impl Row {
    /// TRL's name for it.
    pub(super) const fn trl_name(self, name: &'static str) -> Row {
        let Trl::Field { defaults, .. } = self.trl else { panic!("a key that TRL has begins with TRL") };
        Row { trl: Trl::Field { name: Some(name), defaults }, ..self }
    }

    /// TRL's defaults, as TOML, where they are others than here.
    pub(super) const fn trl_defaults(self, defaults: &'static [(Methods, &'static str)]) -> Row {
        let Trl::Field { name, .. } = self.trl else { panic!("a key that TRL has begins with TRL") };
        Row { trl: Trl::Field { name, defaults }, ..self }
    }

    /// What TRL has, where it is no field of its configurations.
    pub(super) const fn trl_has(self, words: &'static str) -> Row {
        Row { trl: Trl::Other(words), ..self }
    }

    /// The methods that read it; for others it is reported as unused.
    pub(super) const fn read_by(self, methods: Methods) -> Row {
        Row { read_by: methods, ..self }
    }

    pub(super) const fn range(self, range: Range) -> Row {
        Row { range: Some(range), ..self }
    }

    pub(super) const fn on_resume(self, on_resume: OnResume) -> Row {
        Row { on_resume, ..self }
    }

    /// The key acts only where another key has this value (as TOML); otherwise it is reported as unused.
    pub(super) const fn needs(self, key: &'static str, value: &'static str) -> Row {
        Row { needs: Some((key, value)), ..self }
    }

    /// The value names a path, or something else where there is no such path: a Hub id, or what a caller has in memory.
    pub(super) const fn name(self) -> Row {
        Row { is_name: true, ..self }
    }

    /// The key that methods which do not read it have in its place.
    pub(super) const fn instead(self, keys: &'static [(Methods, &'static str)]) -> Row {
        Row { instead: keys, ..self }
    }
}
