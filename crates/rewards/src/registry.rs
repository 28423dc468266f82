//! Builds a reward from its name or table in a configuration.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::builtin::{self, BUILTIN, Kind, parse};
use crate::command::{self, CommandReward};
use crate::http::{self, HttpReward};
use crate::{Error, Result, Reward, python};

/// The kinds of rewards that are not in [`BUILTIN`], each with its main option: a program, a Python function, a
/// service, a reward model.
const OTHERS: [(&str, &str); 4] = [("command", "command"), ("python", "python"), ("http", "url"), ("model", "model")];

/// The kind of a reward that Rust code passes to its training run. It is not listed to users, since a configuration
/// file cannot contain such a reward.
const FUNCTION: (&str, &str) = ("function", "function");

/// The fixed columns of the completions table. Rewards must not have these names.
pub const TABLE_COLUMNS: [&str; 4] = ["step", "prompt", "completion", "advantage"];

/// The maximum number of bytes of a program's arguments that become part of a reward's name.
const TAG_BYTES: usize = 40;

/// A reward as written in a configuration: `"gsm8k"`, `"format:REGEX"`, `"command:./my_reward.py --fast"`, or a table
/// `{ kind = "format", name = "tags", pattern = "…" }`. The text after the colon is the kind's main option.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RewardSpec {
    /// The short form, `kind` or `kind:argument`.
    Short(String),
    /// A table with `kind`, an optional `name`, and the kind's options.
    Table(Map<String, Value>),
}

impl From<&str> for RewardSpec {
    fn from(text: &str) -> Self {
        RewardSpec::Short(text.to_owned())
    }
}

impl RewardSpec {
    /// The directory or Hub id, if this is a reward model (`"model:DIR"`, or a table with `model`). [`build`] does not
    /// load reward models, since that may need the Hub and takes memory; the caller builds a [`crate::RewardModel`].
    pub fn model(&self) -> Result<Option<String>> {
        let (kind, _, mut options) = self.parts()?;
        if kind != "model" {
            return Ok(None);
        }
        match (options.remove("model"), options.keys().next()) {
            (_, Some(other)) => {
                Err(Error::options("model", format!("unknown option `{other}`; the only option is `model`")))
            }
            (Some(Value::String(model)), None) if !model.is_empty() => Ok(Some(model)),
            _ => Err(Error::options("model", "the directory of the reward model is missing, as in \"model:DIR\"")),
        }
    }

    /// The name, if this is a Rust function (`"function:NAME"`). The caller must then provide the reward itself.
    pub fn function(&self) -> Result<Option<String>> {
        let (kind, _, mut options) = self.parts()?;
        match (kind.as_str(), options.remove("function")) {
            ("function", Some(Value::String(name))) if !name.is_empty() => Ok(Some(name)),
            ("function", _) => {
                Err(Error::options("function", "the name of the function is missing, as in \"function:NAME\""))
            }
            _ => Ok(None),
        }
    }

    /// Replaces each path by the result of `absolute`: the directory of a reward model; a program given by its path,
    /// and its script; a Python file and its interpreter. Other arguments of a program are not changed. [`build`]
    /// reports invalid options later.
    pub fn map_paths<E>(
        &mut self,
        absolute: impl Fn(&str) -> std::result::Result<String, E>,
    ) -> std::result::Result<(), E> {
        let Ok((kind, _, options)) = self.parts() else { return Ok(()) };
        let mapped: Vec<(&str, Value)> = match (kind.as_str(), options.get("model")) {
            ("model", Some(Value::String(model))) => vec![("model", absolute(model)?.into())],
            ("command", _) => match parse::<command::CommandOptions>(&kind, options) {
                Ok(options) => {
                    command::map_paths(options.command, absolute)?.map(|path| ("command", path)).into_iter().collect()
                }
                Err(_) => Vec::new(),
            },
            ("python", _) => match parse(&kind, options) {
                Ok(options) => python::map_paths(options, absolute)?,
                Err(_) => Vec::new(),
            },
            _ => Vec::new(),
        };
        for (key, value) in mapped {
            // For these kinds, the main option has the same name as the kind.
            match (&mut *self, value) {
                (RewardSpec::Table(table), value) => drop(table.insert(key.to_owned(), value)),
                (RewardSpec::Short(text), Value::String(path)) => *text = format!("{kind}:{path}"),
                (RewardSpec::Short(_), words) => {
                    let table = [("kind".to_owned(), Value::String(kind.clone())), (key.to_owned(), words)];
                    *self = RewardSpec::Table(table.into_iter().collect());
                }
            }
        }
        Ok(())
    }

    /// Describes how this reward isolates the programs in completions, if it runs any. Each call checks the isolation
    /// again.
    pub fn isolation(&self) -> Option<String> {
        #[cfg(target_os = "linux")]
        if let Ok((kind, _, options)) = self.parts()
            && kind == "code"
        {
            return parse::<sandbox::Options>(&kind, options).ok()?.isolation();
        }
        None
    }

    /// Whether this is a built-in grader of text, which gives the same score at any time on any machine. Programs,
    /// services, models and functions need not be deterministic, and neither is a reward that runs code of completions,
    /// since that code may time out.
    pub fn is_deterministic(&self) -> bool {
        self.parts().is_ok_and(|(kind, _, _)| kind != "code" && builtin(&kind).is_some())
    }

    /// The strings of the configuration that contain the tags that this reward looks for in completions: patterns,
    /// words, or the tags themselves. The files of programs are not read.
    pub fn texts(&self) -> Vec<String> {
        fn collect(value: Value, texts: &mut Vec<String>) {
            match value {
                Value::String(text) => texts.push(text),
                Value::Array(list) => list.into_iter().for_each(|value| collect(value, texts)),
                Value::Object(fields) => fields.into_iter().for_each(|(_, value)| collect(value, texts)),
                Value::Null | Value::Bool(_) | Value::Number(_) => {}
            }
        }
        let Ok((kind, _, options)) = self.parts() else { return Vec::new() };
        let mut texts = match kind.as_str() {
            "think_answer" => parse(&kind, options.clone()).map_or(Vec::new(), builtin::think_answer::tags),
            _ => Vec::new(),
        };
        options.into_iter().for_each(|(_, value)| collect(value, &mut texts));
        texts
    }

    /// The kind of this reward, such as `format`.
    pub fn kind(&self) -> Result<String> {
        Ok(self.parts()?.0)
    }

    /// The kind, the name if it is set, and the options.
    fn parts(&self) -> Result<(String, Option<String>, Map<String, Value>)> {
        match self {
            // A service needs only an address.
            RewardSpec::Short(text) if ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme)) => {
                let url = [("url".to_owned(), Value::String(text.clone()))];
                Ok(("http".to_owned(), None, url.into_iter().collect()))
            }
            RewardSpec::Short(text) => {
                let (kind, argument) = text.split_once(':').map_or((text.as_str(), None), |(k, a)| (k, Some(a)));
                let kind = kind.trim();
                let mut options = Map::new();
                if let Some(argument) = argument {
                    let (main, value) =
                        match (builtin(kind), OTHERS.iter().chain([&FUNCTION]).find(|(name, _)| *name == kind)) {
                            (Some(builtin), _) => (builtin.main_option, (builtin.main_value)(argument)),
                            (None, Some((_, main))) => (Some(*main), argument.into()),
                            (None, None) => return Err(unknown(kind)),
                        };
                    let main = main.ok_or_else(|| {
                        Error::options(kind, format!("this kind takes no text after the colon, got `{argument}`"))
                    })?;
                    options.insert(main.to_owned(), value);
                }
                Ok((kind.to_owned(), None, options))
            }
            RewardSpec::Table(table) => {
                let mut options = table.clone();
                let mut text = |key: &str| match options.shift_remove(key) {
                    None => Ok(None),
                    Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
                    Some(other) => Err(Error::options("?", format!("`{key}` must be a nonempty string, got {other}"))),
                };
                let name = text("name")?;
                let kind = text("kind")?.ok_or_else(|| {
                    Error::options("?", format!("the table of a reward must have a `kind`: {}", known()))
                })?;
                Ok((kind, name, options))
            }
        }
    }
}

/// The names under which rewards are logged: the `name` of a reward if it is set, else the reward's kind, program or
/// function. Arguments are appended to equal names: `serve_a` and `serve_b` for `command:python3 serve.py a` and `… b`.
/// Names that are still equal, or are columns of the completions table, are an error.
pub fn names(specs: &[RewardSpec]) -> Result<Vec<String>> {
    let labels = specs.iter().map(RewardSpec::label).collect::<Result<Vec<_>>>()?;
    let plain = |label: &Label| label.given.as_ref().unwrap_or(&label.base).clone();
    let mut names: Vec<String> = labels.iter().map(plain).collect();
    for (i, label) in labels.iter().enumerate().filter(|(_, label)| label.given.is_none()) {
        if !label.tag.is_empty() && labels.iter().enumerate().any(|(j, other)| i != j && plain(other) == label.base) {
            names[i] = format!("{}_{}", label.base, label.tag);
        }
        if TABLE_COLUMNS.contains(&names[i].as_str()) {
            names[i] = format!("{}_{}", label.kind, names[i]);
        }
    }
    for (i, name) in names.iter().enumerate() {
        let problem = match TABLE_COLUMNS.contains(&name.as_str()) {
            true => format!("a reward must not have the name `{name}`, which is a column of the completions table"),
            false if names[..i].contains(name) => format!("two rewards have the name `{name}`"),
            false => continue,
        };
        let fix = match labels[i].kind.as_str() {
            "function" => "give the function another name".to_owned(),
            kind => format!("set another name, as in {{ kind = \"{kind}\", name = \"my_{name}\", … }}"),
        };
        return Err(Error::Name(format!("{problem}: {fix}")));
    }
    Ok(names)
}

/// The parts of a reward's name.
struct Label {
    kind: String,
    /// The `name` in the configuration.
    given: Option<String>,
    /// The reward's kind, program or function.
    base: String,
    /// The arguments, in characters that a name may contain.
    tag: String,
}

impl RewardSpec {
    fn label(&self) -> Result<Label> {
        let (kind, mut given, options) = self.parts()?;
        let (base, tag) = match kind.as_str() {
            "command" => command::label(parse::<command::CommandOptions>(&kind, options)?.command)?,
            "python" => python::label(&parse(&kind, options)?)?,
            "function" => {
                given = self.function()?;
                Default::default()
            }
            _ => {
                let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                (kind.clone(), options.values().map(text).collect::<Vec<_>>().join(" "))
            }
        };
        let words = tag.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '.'));
        let words = words.map(|word| word.trim_matches(['-', '.']));
        let tag = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_");
        Ok(Label { kind, given, base, tag: tag[..tag.len().min(TAG_BYTES)].to_owned() })
    }
}

/// Builds the reward that `spec` describes, with the name `name`. The program of a `command` reward is started here, so
/// that a missing program is an error.
pub fn build(spec: &RewardSpec, name: String) -> Result<Box<dyn Reward>> {
    build_until(spec, name, &Arc::default())
}

/// Like [`build`], but once `stop` is set it stops waiting for a program to start and returns an error.
pub fn build_until(spec: &RewardSpec, name: String, stop: &Arc<AtomicBool>) -> Result<Box<dyn Reward>> {
    let (kind, _, options) = spec.parts()?;
    match (builtin(&kind), kind.as_str()) {
        (Some(builtin), _) => (builtin.build)(name, options),
        (None, "command") => Ok(Box::new(CommandReward::new(name, parse(&kind, options)?)?)),
        (None, "python") => Ok(Box::new(python::build(name, parse(&kind, options)?, stop)?)),
        (None, http::KIND) => Ok(Box::new(HttpReward::new(name, parse(&kind, options)?)?)),
        (None, "model") => Err(Error::options("model", "load its files first, with the name from RewardSpec::model")),
        (None, "function") => Err(Error::options("function", "the calling code must pass the function to the run")),
        _ => Err(unknown(&kind)),
    }
}

fn builtin(kind: &str) -> Option<Kind> {
    BUILTIN.iter().find(|builtin| builtin.name == kind).copied()
}

/// The names of all kinds of rewards, in the order of the documentation.
fn kinds() -> impl Iterator<Item = &'static str> {
    BUILTIN.iter().map(|builtin| builtin.name).chain(OTHERS.map(|(name, _)| name))
}

fn known() -> String {
    kinds().collect::<Vec<_>>().join(", ")
}

fn unknown(name: &str) -> Error {
    let nearest = model::nearest(name, kinds()).map(str::to_owned);
    Error::Unknown { name: name.to_owned(), nearest, known: known() }
}

#[cfg(test)]
mod tests {
    mod specs;

    use super::*;

    fn error(spec: impl Into<RewardSpec>) -> String {
        match build(&spec.into(), "r".to_owned()) {
            Err(error) => error.to_string(),
            Ok(reward) => panic!("built {}", reward.name()),
        }
    }

    fn table(value: Value) -> RewardSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn short_forms_and_tables_build_the_same_rewards() {
        for (spec, name, columns) in [
            (RewardSpec::from("gsm8k"), "gsm8k", vec!["answer"]),
            ("gsm8k:solution".into(), "gsm8k", vec!["solution"]),
            ("format:<b>(x:y)</b>".into(), "format", vec![]),
            ("length:20".into(), "length", vec![]),
            ("unique_chars".into(), "unique_chars", vec![]),
            ("exact_match".into(), "exact_match", vec!["answer"]),
            (table(serde_json::json!({"kind": "length", "name": "short", "max": 9, "unit": "chars"})), "short", vec![]),
        ] {
            let names = names(std::slice::from_ref(&spec)).unwrap();
            let reward = build(&spec, names[0].clone()).unwrap();
            assert_eq!(
                (reward.name(), reward.required_columns()),
                (name, columns.iter().map(|c| c.to_string()).collect())
            );
        }
    }

    #[test]
    fn equal_names_are_made_unique_by_arguments() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, "").unwrap();
            path.display().to_string()
        };
        let (serve, prompt) = (file("serve.py"), file("prompt.py"));
        let named = |specs: &[RewardSpec]| names(specs).map_err(|error| error.to_string());
        let of = |texts: &[&str]| named(&texts.iter().map(|&text| text.into()).collect::<Vec<_>>());
        let [a, b] = ["a", "b --fast"].map(|word| format!("command:python3 {serve} {word}"));
        let bare = format!("command:python3 {serve}");
        assert_eq!(of(&[&a, &b, "gsm8k"]).unwrap(), ["serve_a", "serve_b_fast", "gsm8k"]);
        assert_eq!(of(&[&bare, &a]).unwrap(), ["serve", "serve_a"]);
        assert_eq!(of(&["format:<b>.*</b>", "format:<i>", "length:20"]).unwrap(), ["format_b_b", "format_i", "length"]);
        assert_eq!(of(&["model:a/one", "model:a/two"]).unwrap(), ["model_a_one", "model_a_two"]);
        let short = |max: u32| table(serde_json::json!({"kind": "length", "max": max, "unit": "chars"}));
        assert_eq!(named(&[short(9), short(8)]).unwrap(), ["length_9_chars", "length_8_chars"]);
        let given = |name: &str| table(serde_json::json!({"kind": "length", "name": name, "max": 9}));
        assert_eq!(named(&[given("length"), "length:9".into()]).unwrap(), ["length", "length_9"]);
        for equal in [vec![given("x"), given("x")], vec![a.as_str().into(), a.as_str().into()]] {
            let message = named(&equal).unwrap_err();
            assert!(message.contains("two rewards have the name `") && message.contains("name = \"my_"), "{message}");
        }
        assert!(of(&["function:f", "function:f"]).unwrap_err().contains("another name"));
        // Columns of the completions table must not be names of rewards.
        assert_eq!(of(&[&format!("command:python3 {prompt}")]).unwrap(), ["command_prompt"]);
        assert!(of(&["function:step"]).unwrap_err().contains("`step`"));
        let message = named(&[given("advantage")]).unwrap_err();
        assert!(message.contains("`advantage`") && message.contains("my_advantage"), "{message}");
    }

    #[test]
    fn errors_name_known_rewards_and_the_nearest_name() {
        let message = error("gsm8");
        let known: Vec<_> =
            BUILTIN.iter().map(|kind| kind.name).chain(["command", "python", "http", "model"]).collect();
        let known = known.join(", ");
        assert!(message.contains("did you mean `gsm8k`?") && message.ends_with(&known), "{message}");
        assert!(error("Exact-Match").contains("`exact_match`"));
        let far = error("something_else_entirely");
        assert!(!far.contains("did you mean") && far.contains("known: gsm8k"), "{far}");
        assert!(error("unique_chars:3").contains("after the colon"));
        let misspelt = error(table(serde_json::json!({"kind": "format", "patern": "x"})));
        assert!(misspelt.contains("patern") && misspelt.contains("`pattern`"), "{misspelt}");
        assert!(error("format").contains("missing field `pattern`"));
        assert!(error("length:many").contains("length"));
        assert!(error(table(serde_json::json!({"name": "x"}))).contains("kind"));
        assert!(error(table(serde_json::json!({"kind": 3}))).contains("must be a nonempty string"));
        let missing = error("command:./no/such/program --x");
        assert!(missing.contains("./no/such/program") && missing.contains("no such program"), "{missing}");
        assert!(error("command:").contains("must name a program"));
        assert!(error("command:sh -c 'x").contains("quote"));
    }
}
