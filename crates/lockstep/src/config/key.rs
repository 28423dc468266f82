//! What there is to say about a key beside its name, type and default: the [`Row`] of the table.

use super::methods::{ALL, Methods, each};
use super::{Algorithm, Config, Purpose};
use serde_json::{Value as Json, json};
use std::fmt;

/// Whether a resumed run may have another value than the run began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnResume {
    /// It may: no bit of the result depends on it.
    Free,
    /// It may, with a warning: from there on the run differs from one that was never stopped.
    Warn,
    /// It may not: the saved state would not fit, or would mean something else.
    Fixed,
}

/// What TRL has for a key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trl {
    /// Nothing.
    Nothing,
    /// A field of its configurations.
    Field {
        /// Its name, where that is not the key's.
        name: Option<&'static str>,
        /// Its default as TOML, for the methods where that is not the key's.
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
/// The same of tokens.
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
    fn restrict(&self, number: &mut serde_json::Map<String, Json>) {
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

    /// It acts only where another key has this value (as TOML); otherwise it is reported as unused.
    pub(super) const fn needs(self, key: &'static str, value: &'static str) -> Row {
        Row { needs: Some((key, value)), ..self }
    }

    /// It names a path, or something else where there is no such path: a Hub id, or what a program has in memory.
    pub(super) const fn name(self) -> Row {
        Row { is_name: true, ..self }
    }

    /// The key that methods which do not read it have in its place.
    pub(super) const fn instead(self, keys: &'static [(Methods, &'static str)]) -> Row {
        Row { instead: keys, ..self }
    }
}

/// Gives a key of a configuration a default.
pub(super) type SetDefault = fn(&mut Config);

/// A key of the table.
pub struct Key {
    /// As configurations spell it.
    pub name: &'static str,
    /// The heading that it is shown under.
    pub section: &'static str,
    pub(super) doc: &'static str,
    pub(super) row: Row,
    pub(super) type_name: fn() -> String,
    pub(super) type_schema: fn() -> Json,
    pub(super) read: fn(&mut Config, &toml::Value) -> Result<(), String>,
    pub(super) read_text: fn(&mut Config, &str) -> Result<(), String>,
    pub(super) write: fn(&Config) -> Option<toml::Value>,
    /// Methods whose default is another than that of [`Config::default`], and what gives it to a configuration.
    pub(super) defaults: &'static [(Methods, SetDefault)],
}

impl Key {
    /// Its value in `config` as TOML, `None` where it is not set.
    pub fn value(&self, config: &Config) -> Option<toml::Value> {
        (self.write)(config)
    }

    /// Whether the bits of weights depend on its value. Files count by their contents, which others hash.
    pub(crate) fn decides_bits(&self) -> bool {
        self.row.on_resume != OnResume::Free
            && !self.row.is_name
            && self.name != "replay"
            && !["Evaluation", "Checkpoints", "Logging"].contains(&self.section)
    }

    /// Its value in `config` as TOML's text, or `none`.
    pub(super) fn value_text(&self, config: &Config) -> String {
        self.value(config).map_or_else(|| "none".to_owned(), |v| super::show::toml_on_one_line(&v))
    }

    /// Gives it the default that it has in `method`; whether that is another than the table's.
    pub(super) fn set_default(&self, config: &mut Config, method: Methods) -> bool {
        let own = self.defaults.iter().find(|(methods, _)| methods.contain(method));
        own.inspect(|(_, set)| set(config)).is_some()
    }

    /// The text of its default in `method`.
    pub(super) fn default_text(&self, method: Methods) -> String {
        let mut config = Config::default();
        self.set_default(&mut config, method);
        self.value_text(&config)
    }

    /// What it needs to act (`key = value`), where `config` has something else.
    pub(super) fn unmet_need(&self, config: &Config) -> Option<String> {
        let (name, needed) = self.row.needs?;
        let value = Config::key(name)?.value(config)?;
        let met = value.as_str().map_or_else(|| value.to_string() == needed, |text| text == needed);
        let quote = if value.is_str() { "\"" } else { "" };
        (!met).then(|| format!("{name} = {quote}{needed}{quote}"))
    }

    /// What is wrong with its value in `config`, on its own.
    pub(super) fn out_of_range(&self, config: &Config) -> Option<String> {
        let range = self.row.range?;
        let number = match self.value(config)? {
            toml::Value::Integer(n) => n as f64,
            toml::Value::Float(x) => x,
            _ => return None,
        };
        if range.contains(number) {
            return None;
        }
        let unset = if (self.type_name)().contains("\"none\"") { "; \"none\" leaves it unset" } else { "" };
        Some(format!("`{}` must be {range}, but is {number}{unset}", self.name))
    }

    /// Its default, and those of methods that have another.
    pub fn defaults_text(&self) -> String {
        let unset = |text: String| if text == "none" { "not set".to_owned() } else { text };
        let default = self.value_text(&Config::default());
        let of = |(method, name): (Methods, &str)| {
            let own = self.default_text(method);
            (own != default).then(|| format!("{name}: {}", unset(own)))
        };
        let others: Vec<String> = each().filter_map(of).collect();
        let others = if others.is_empty() { String::new() } else { format!(" ({})", others.join(", ")) };
        unset(default) + &others
    }

    /// What TRL has for it.
    pub fn trl_text(&self) -> String {
        let (name, defaults) = match self.row.trl {
            Trl::Nothing => return "no such key".to_owned(),
            Trl::Other(words) => return words.to_owned(),
            Trl::Field { name, defaults } => (name, defaults),
        };
        let name = name.map_or(String::new(), |name| format!("{name}, "));
        let of = |(methods, default): &(Methods, &str)| match *methods {
            ALL => format!("default {default}"),
            methods => format!("default {default} in {methods}"),
        };
        match defaults {
            [] => format!("{name}the same default"),
            defaults => name + &defaults.iter().map(of).collect::<Vec<_>>().join(", "),
        }
    }

    /// TRL's name for it, where that is another.
    pub fn trl_name(&self) -> Option<&'static str> {
        if let Trl::Field { name, .. } = self.row.trl { name } else { None }
    }

    /// Whether the runs of a command, of `train` those of an algorithm, read it.
    pub fn is_read_by(&self, purpose: Purpose, algorithm: Algorithm) -> bool {
        self.row.read_by.contain(Methods::of(purpose, algorithm))
    }

    /// What it means, on one line.
    pub fn meaning(&self) -> String {
        self.doc.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Its type and range in words.
    pub fn type_text(&self) -> String {
        let name = (self.type_name)();
        self.row.range.map_or(name.clone(), |range| format!("{name}, {range}"))
    }

    /// The commands, and algorithms of `train`, that read it.
    pub fn read_by(&self) -> String {
        self.row.read_by.to_string()
    }

    /// Whether a resumed run may have another value.
    pub fn on_resume(&self) -> OnResume {
        self.row.on_resume
    }

    /// The key, and its value as TOML, without which it changes nothing.
    pub fn needs(&self) -> Option<(&'static str, &'static str)> {
        self.row.needs
    }

    /// Whether it can hold `value`; the error says what was expected.
    pub fn check(&self, value: &toml::Value) -> Result<(), String> {
        (self.read)(&mut Config::default(), value)
    }

    /// The JSON Schema of its values.
    pub fn schema(&self) -> Json {
        let mut schema = (self.type_schema)();
        if let Some(range) = self.row.range {
            // Of `T or "none"`, T is the first.
            let optional = schema.get("anyOf").is_some();
            let number = if optional { &mut schema["anyOf"][0] } else { &mut schema };
            if let Json::Object(number) = number {
                range.restrict(number);
            }
        }
        schema
    }
}
