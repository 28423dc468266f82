//! Methods of [`Key`], a key of the configuration: its value, default, type, documentation, and the condition
//! under which it has an effect.

use super::keys::{Config, Key};
use super::methods::{ALL, Algorithm, Methods, Purpose, each};
use super::row::{OnResume, Trl};
use super::values::toml_on_one_line;
use serde_json::Value as Json;

impl Key {
    /// The key's value in `config` as TOML, `None` where it is not set.
    pub fn value(&self, config: &Config) -> Option<toml::Value> {
        (self.write)(config)
    }

    /// Whether the trained weights' bits depend on the key's value. Keys that name files are excluded: the lineage
    /// hashes the files' contents instead.
    pub(crate) fn decides_bits(&self) -> bool {
        self.row.on_resume != OnResume::Free
            && !self.row.is_name
            && self.name != "replay"
            && !["Evaluation", "Checkpoints", "Logging"].contains(&self.section)
    }

    /// The key's value in `config` as TOML text, or `none`.
    pub(super) fn value_text(&self, config: &Config) -> String {
        self.value(config).map_or_else(|| "none".to_owned(), |v| toml_on_one_line(&v))
    }

    /// Sets the key to the default that `method` has for it. Returns whether `method` has a default of its own.
    pub(super) fn set_default(&self, config: &mut Config, method: Methods) -> bool {
        let own = self.defaults.iter().find(|(methods, _)| methods.contain(method));
        own.inspect(|(_, set)| set(config)).is_some()
    }

    /// The key's default in `method`, as text.
    pub(super) fn default_text(&self, method: Methods) -> String {
        let mut config = Config::default();
        self.set_default(&mut config, method);
        self.value_text(&config)
    }

    /// The condition `key = value` under which this key has an effect, if `config` does not meet it.
    pub(super) fn unmet_need(&self, config: &Config) -> Option<String> {
        let (name, needed) = self.row.needs?;
        let value = Config::key(name)?.value(config)?;
        let met = value.as_str().map_or_else(|| value.to_string() == needed, |text| text == needed);
        let quote = if value.is_str() { "\"" } else { "" };
        (!met).then(|| format!("{name} = {quote}{needed}{quote}"))
    }

    /// The error message if the key's value in `config` is outside its allowed range.
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

    /// The key's default as text, with the methods that have a different default.
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

    /// TRL's counterpart of this key, as text: name and default.
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

    /// TRL's name for this key, if it differs.
    pub fn trl_name(&self) -> Option<&'static str> {
        if let Trl::Field { name, .. } = self.row.trl { name } else { None }
    }

    /// Whether runs of the command `purpose` (for `train`: with `algorithm`) read this key.
    pub fn is_read_by(&self, purpose: Purpose, algorithm: Algorithm) -> bool {
        self.row.read_by.contain(Methods::of(purpose, algorithm))
    }

    /// The documentation of the key, on one line.
    pub fn meaning(&self) -> String {
        self.doc.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The type and range of the key's values, as text.
    pub fn type_text(&self) -> String {
        let name = (self.type_name)();
        self.row.range.map_or(name.clone(), |range| format!("{name}, {range}"))
    }

    /// The commands, and the algorithms of `train`, that read this key, as text.
    pub fn read_by(&self) -> String {
        self.row.read_by.to_string()
    }

    /// Whether a resumed run may change the value of this key.
    pub fn on_resume(&self) -> OnResume {
        self.row.on_resume
    }

    /// Another key and its value in TOML. This key has an effect only if the other key has this value.
    pub fn needs(&self) -> Option<(&'static str, &'static str)> {
        self.row.needs
    }

    /// Whether the key accepts `value`; the error names the expected values.
    pub fn check(&self, value: &toml::Value) -> Result<(), String> {
        (self.read)(&mut Config::default(), value)
    }

    /// The JSON Schema of the key's values.
    pub fn schema(&self) -> Json {
        let mut schema = (self.type_schema)();
        if let Some(range) = self.row.range {
            // In the schema of `T or "none"`, the first alternative is T.
            let optional = schema.get("anyOf").is_some();
            let number = if optional { &mut schema["anyOf"][0] } else { &mut schema };
            if let Json::Object(number) = number {
                range.restrict(number);
            }
        }
        schema
    }
}
