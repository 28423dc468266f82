//! The types of key values: reading them from TOML or from the text of a flag, writing them as TOML, and naming them.

use super::methods::Algorithm;
use super::save_dtype::SaveDType;
use kernels::Device;
use rewards::RewardSpec;
use rollout::Speculative;
use serde_json::{Map, Value as Json, json};
use std::path::PathBuf;
use std::str::FromStr;
use toml::Value;
use train::advantages::process::ProcessRewards;
use train::loss::dpo::DpoLoss;
use train::loss::sampling::CorrectionMode;
use train::{
    ImportanceSamplingLevel, KlEstimator, LossType, MomentsDType, MultiObjectiveAggregation, OptimizerKind,
    ScaleRewards,
};

/// A type that the value of a key can have.
pub(super) trait KeyValue: Sized {
    /// The name of the type, as the documentation of keys prints it.
    fn type_name() -> String;
    fn schema() -> Json;
    /// Reads a TOML value; the error names the expected values.
    fn read(value: &Value) -> Result<Self, String>;
    /// Reads the text of a flag or of an environment variable: a TOML value, or plain text if the type allows it.
    fn read_text(text: &str) -> Result<Self, String> {
        Self::read(&toml_of_text(text))
    }
    /// Writes the value as TOML; `None` if it is not set.
    fn write(&self) -> Option<Value>;
}

/// Parses `text` as a TOML value; if that fails, the value is the text itself.
pub(super) fn toml_of_text(text: &str) -> Value {
    // Python writes True and False; TOML and JSON write them in lower case.
    let spelled = match text {
        "True" => "true",
        "False" => "false",
        other => other,
    };
    match format!("value = {spelled}").parse::<toml::Table>() {
        Ok(mut table) if table.len() == 1 => table.remove("value").unwrap_or_else(|| Value::String(text.to_owned())),
        _ => Value::String(text.to_owned()),
    }
}

pub(super) fn expected(what: &str, got: &Value) -> String {
    let got = got.to_string();
    format!("expected {what}, got {}", got.trim())
}

/// Whether the value is an integer too large for TOML: a long string of digits, or a float.
fn is_large_integer(value: &Value) -> bool {
    match value {
        Value::String(digits) => digits.len() > 18 && digits.bytes().all(|byte| byte.is_ascii_digit()),
        Value::Float(x) => x.fract() == 0.0 && x.is_finite(),
        _ => false,
    }
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl KeyValue for $type {
            fn type_name() -> String {
                "integer".to_owned()
            }
            fn schema() -> Json {
                json!({"type": "integer", "minimum": <$type>::MIN})
            }
            fn read(value: &Value) -> Result<Self, String> {
                match value {
                    Value::Integer(n) => <$type>::try_from(*n).map_err(|_| expected("an integer in range", value)),
                    // Python users write 1e3 for an integer.
                    Value::Float(x) if x.fract() == 0.0 && x.abs() < 9e15 => {
                        <$type>::try_from(*x as i64).map_err(|_| expected("an integer in range", value))
                    }
                    _ if is_large_integer(value) => {
                        Err(expected("an integer up to 9223372036854775807 (2^63 - 1)", value))
                    }
                    _ => Err(expected("an integer", value)),
                }
            }
            fn write(&self) -> Option<Value> {
                Some(Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX)))
            }
        }
    )*};
}
integers!(u64, usize, i64);

impl KeyValue for f64 {
    fn type_name() -> String {
        "number".to_owned()
    }
    fn schema() -> Json {
        json!({"type": "number"})
    }
    fn read(value: &Value) -> Result<Self, String> {
        let x = match value {
            Value::Integer(n) => *n as f64,
            Value::Float(x) => *x,
            _ => return Err(expected("a number", value)),
        };
        if x.is_finite() { Ok(x) } else { Err(expected("a finite number", value)) }
    }
    fn write(&self) -> Option<Value> {
        Some(Value::Float(*self))
    }
}

impl KeyValue for bool {
    fn type_name() -> String {
        "true or false".to_owned()
    }
    fn schema() -> Json {
        json!({"type": "boolean"})
    }
    fn read(value: &Value) -> Result<Self, String> {
        value.as_bool().ok_or_else(|| expected("true or false", value))
    }
    fn write(&self) -> Option<Value> {
        Some(Value::Boolean(*self))
    }
}

impl KeyValue for String {
    fn type_name() -> String {
        "text".to_owned()
    }
    fn schema() -> Json {
        json!({"type": "string"})
    }
    fn read(value: &Value) -> Result<Self, String> {
        value.as_str().map(str::to_owned).ok_or_else(|| expected("a string in quotes", value))
    }
    fn read_text(text: &str) -> Result<Self, String> {
        // `--set run_name=3` sets the string "3". A value in quotes is a TOML string.
        match toml_of_text(text) {
            Value::String(inner) => Ok(inner),
            _ => Ok(text.to_owned()),
        }
    }
    fn write(&self) -> Option<Value> {
        Some(Value::String(self.clone()))
    }
}

impl KeyValue for PathBuf {
    fn type_name() -> String {
        "path".to_owned()
    }
    fn schema() -> Json {
        json!({"type": "string"})
    }
    fn read(value: &Value) -> Result<Self, String> {
        value.as_str().filter(|p| !p.is_empty()).map(PathBuf::from).ok_or_else(|| expected("a path in quotes", value))
    }
    fn read_text(text: &str) -> Result<Self, String> {
        String::read_text(text).map(PathBuf::from)
    }
    fn write(&self) -> Option<Value> {
        Some(Value::String(self.to_string_lossy().into_owned()))
    }
}

impl<T: KeyValue> KeyValue for Option<T> {
    fn type_name() -> String {
        format!("{} or \"none\"", T::type_name())
    }
    fn schema() -> Json {
        json!({"anyOf": [T::schema(), {"const": "none"}]})
    }
    fn read(value: &Value) -> Result<Self, String> {
        if value.as_str().is_some_and(is_none) { Ok(None) } else { T::read(value).map(Some) }
    }
    fn read_text(text: &str) -> Result<Self, String> {
        if is_none(text) { Ok(None) } else { T::read_text(text).map(Some) }
    }
    fn write(&self) -> Option<Value> {
        self.as_ref().and_then(T::write)
    }
}

/// TOML does not have null, so these words mean an unset value.
fn is_none(text: &str) -> bool {
    matches!(text, "none" | "None" | "null")
}

impl<T: KeyValue> KeyValue for Vec<T> {
    fn type_name() -> String {
        format!("list of {}", T::type_name())
    }
    fn schema() -> Json {
        json!({"anyOf": [{"type": "array", "items": T::schema()}, T::schema()]})
    }
    fn read(value: &Value) -> Result<Self, String> {
        match value {
            Value::Array(items) => items.iter().map(T::read).collect(),
            one => Ok(vec![T::read(one)?]),
        }
    }
    fn read_text(text: &str) -> Result<Self, String> {
        match toml_of_text(text) {
            list @ Value::Array(_) => Self::read(&list),
            table @ Value::Table(_) => Self::read(&table),
            _ if text.is_empty() => Ok(Vec::new()),
            _ => Ok(vec![T::read_text(text)?]),
        }
    }
    fn write(&self) -> Option<Value> {
        Some(Value::Array(self.iter().filter_map(T::write).collect()))
    }
}

impl KeyValue for Map<String, Json> {
    fn type_name() -> String {
        "table".to_owned()
    }
    fn schema() -> Json {
        json!({"type": "object"})
    }
    fn read(value: &Value) -> Result<Self, String> {
        match serde_json::to_value(value) {
            Ok(Json::Object(map)) if value.is_table() => Ok(map),
            _ => Err(expected("a table such as { key = \"value\" }", value)),
        }
    }
    fn write(&self) -> Option<Value> {
        Value::try_from(self).ok()
    }
}

impl KeyValue for RewardSpec {
    fn type_name() -> String {
        "reward (\"name\", \"name:argument\" or a table)".to_owned()
    }
    fn schema() -> Json {
        json!({"anyOf": [{"type": "string"}, {"type": "object", "required": ["kind"]}]})
    }
    fn read(value: &Value) -> Result<Self, String> {
        match value {
            Value::String(text) if !text.is_empty() => Ok(RewardSpec::Short(text.clone())),
            Value::Table(_) => Map::read(value).map(RewardSpec::Table),
            _ => Err(expected("a reward's name or a table with its `kind`", value)),
        }
    }
    fn write(&self) -> Option<Value> {
        Value::try_from(self).ok()
    }
}

impl KeyValue for Device {
    fn type_name() -> String {
        "cpu | cuda | cuda:N | cpu-checked | cuda-emulated".to_owned()
    }
    fn schema() -> Json {
        json!({"type": "string", "pattern": "^(cpu|cuda|cuda:([0-9]|1[0-5])|cpu-checked|cuda-emulated)$"})
    }
    fn read(value: &Value) -> Result<Self, String> {
        let name = value.as_str().ok_or_else(|| expected("a device's name in quotes", value))?;
        Device::from_name(name).map_err(|error| format!("{name}: {error}"))
    }
    fn write(&self) -> Option<Value> {
        Some(Value::String(self.name().to_owned()))
    }
}

impl KeyValue for OptimizerName {
    fn type_name() -> String {
        OptimizerKind::names().collect::<Vec<_>>().join(" | ")
    }
    fn schema() -> Json {
        json!({"type": "string", "enum": OptimizerKind::names().collect::<Vec<_>>()})
    }
    fn read(value: &Value) -> Result<Self, String> {
        value.as_str().ok_or_else(|| expected("an optimizer's name in quotes", value))?.parse()
    }
    fn write(&self) -> Option<Value> {
        Some(Value::String(self.0.to_owned()))
    }
}

/// Implements `KeyValue` for enumerations, from the word of each variant in configurations.
macro_rules! words {
    ($($type:ty { $($word:literal => $variant:path),* $(,)? })*) => {$(
        words!($type = &[$(($word, $variant)),*]);
    )*};
    ($type:ty = $names:expr) => {
        impl KeyValue for $type {
            fn type_name() -> String {
                $names.iter().map(|name| name.0).collect::<Vec<_>>().join(" | ")
            }
            fn schema() -> Json {
                json!({"enum": $names.iter().map(|name| name.0).collect::<Vec<_>>()})
            }
            fn read(value: &Value) -> Result<Self, String> {
                let name = $names.iter().find(|name| value.as_str() == Some(name.0));
                let expected = || expected(&format!("one of {}", Self::type_name().replace(" |", ",")), value);
                name.map(|name| name.1).ok_or_else(expected)
            }
            fn write(&self) -> Option<Value> {
                $names.iter().find(|name| name.1 == *self).map(|name| Value::String(name.0.to_owned()))
            }
        }
    };
}

words!(LossType = LossType::NAMES);
words!(Algorithm = Algorithm::NAMES);
words! {
    CorrectionMode {
        "token_truncate" => CorrectionMode::TokenTruncate, "token_mask" => CorrectionMode::TokenMask,
        "sequence_truncate" => CorrectionMode::SequenceTruncate, "sequence_mask" => CorrectionMode::SequenceMask,
    }
    ImportanceSamplingLevel {
        "token" => ImportanceSamplingLevel::Token, "sequence" => ImportanceSamplingLevel::Sequence,
    }
    ScaleRewards { "group" => ScaleRewards::Group, "batch" => ScaleRewards::Batch, "none" => ScaleRewards::None }
    DpoLoss {
        "sigmoid" => DpoLoss::Sigmoid, "hinge" => DpoLoss::Hinge, "ipo" => DpoLoss::Ipo,
        "exo_pair" => DpoLoss::ExoPair, "nca_pair" => DpoLoss::NcaPair, "robust" => DpoLoss::Robust,
        "bco_pair" => DpoLoss::BcoPair, "sppo_hard" => DpoLoss::SppoHard, "apo_zero" => DpoLoss::ApoZero,
        "apo_down" => DpoLoss::ApoDown, "discopop" => DpoLoss::Discopop, "sigmoid_norm" => DpoLoss::SigmoidNorm,
    }
    Strategy { "no" => Strategy::No, "steps" => Strategy::Steps, "epoch" => Strategy::Epoch }
    Trust { "workers" => Trust::Workers, "audit" => Trust::Audit }
    RefAdapter { "none" => RefAdapter::None, "initial" => RefAdapter::Initial }
    RewardErrors { "stop" => RewardErrors::Stop, "continue" => RewardErrors::Continue }
    SftLoss { "nll" => SftLoss::Nll, "dft" => SftLoss::Dft }
    EvalSampling { "sampled" => EvalSampling::Sampled, "greedy" => EvalSampling::Greedy }
    Speculative { "auto" => Speculative::Auto, "off" => Speculative::Off }
    KlEstimator { "k1" => KlEstimator::K1, "k3" => KlEstimator::K3 }
    MomentsDType { "f32" => MomentsDType::F32, "bf16" => MomentsDType::Bf16 }
    SaveDType {
        "auto" => SaveDType::Auto, "f32" => SaveDType::F32, "bf16" => SaveDType::Bf16, "f16" => SaveDType::F16,
        "float32" => SaveDType::F32, "bfloat16" => SaveDType::Bf16, "float16" => SaveDType::F16,
    }
    ComputeDType {
        "f32" => ComputeDType::F32, "bf16" => ComputeDType::Bf16,
        "float32" => ComputeDType::F32, "bfloat16" => ComputeDType::Bf16,
    }
    MultiObjectiveAggregation {
        "sum_then_normalize" => MultiObjectiveAggregation::SumThenNormalize,
        "normalize_then_sum" => MultiObjectiveAggregation::NormalizeThenSum,
    }
    ProcessRewards { "sum" => ProcessRewards::Sum, "per_step" => ProcessRewards::PerStep }
    Task {
        "gsm8k" => Task::Gsm8k, "prompt_answer" => Task::PromptAnswer, "gsm8k_solutions" => Task::Gsm8kSolutions,
    }
}

/// The dtype in which matmuls read weights and activations (`dtype`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ComputeDType {
    /// All weights and activations are f32.
    #[default]
    F32,
    /// Weights, attention keys and values, and the inputs of matmuls are bf16. Sums, the residual stream, master
    /// weights, gradients and optimizer moments are f32.
    Bf16,
}

impl ComputeDType {
    /// The corresponding dtype of the `kernels` crate.
    pub fn dtype(self) -> kernels::DType {
        match self {
            ComputeDType::F32 => kernels::DType::F32,
            ComputeDType::Bf16 => kernels::DType::Bf16,
        }
    }
    /// The name in configurations and records.
    pub fn name(self) -> &'static str {
        match self {
            ComputeDType::F32 => "f32",
            ComputeDType::Bf16 => "bf16",
        }
    }
}

/// Converts the text of a flag, which clap's `value_parser` has checked.
impl From<&str> for ComputeDType {
    fn from(text: &str) -> ComputeDType {
        if text == "bf16" { ComputeDType::Bf16 } else { ComputeDType::F32 }
    }
}

/// The name of an optimizer, spelled as in transformers if transformers has that optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptimizerName(&'static str);

impl OptimizerName {
    /// The name, as configurations spell it.
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

impl FromStr for OptimizerName {
    type Err = String;
    /// Accepts a known optimizer's name; the error lists all of them.
    fn from_str(name: &str) -> Result<Self, String> {
        let known = OptimizerKind::names().find(|known| *known == name);
        known.map(OptimizerName).ok_or_else(|| OptimizerKind::unknown(name))
    }
}

/// When a run evaluates or saves a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Never, except that a run stopped by a signal saves a checkpoint.
    #[default]
    No,
    /// Every N optimizer steps; another key sets N.
    Steps,
    /// At the end of each epoch of the dataset.
    Epoch,
}

/// Whether the learner of a distributed run checks its workers' results (`trust`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// The workers' results are used unchecked.
    #[default]
    Workers,
    /// The learner recomputes a share of the workers' results before it uses them.
    Audit,
}

/// The adapter of the reference model, in a run that trains an adapter (`ref_adapter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefAdapter {
    /// The reference model is the model without an adapter.
    #[default]
    None,
    /// The reference model has the adapter as it was at the start of the run.
    Initial,
}

/// The reaction of a run to a reward function that no longer returns scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RewardErrors {
    /// The run writes a checkpoint and ends.
    #[default]
    Stop,
    /// The run continues without that reward function's scores.
    Continue,
}

/// The loss of supervised fine-tuning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SftLoss {
    /// The negative log-likelihood of each token.
    Nll,
    /// Dynamic fine-tuning: each token's negative log-likelihood weighted by its probability.
    Dft,
}

/// How completions are sampled in evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvalSampling {
    /// With the sampling parameters of training.
    #[default]
    Sampled,
    /// Greedy: always the most likely token.
    Greedy,
}

/// A preset of columns, system prompt and reward for a known kind of dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Grade-school mathematics (GSM8K): columns `question` and `answer`; the answer's number follows `####`.
    Gsm8k,
    /// Columns `prompt` and `answer`; the completion must equal the answer exactly.
    PromptAnswer,
    /// Preference pairs of GSM8K's labelled solutions: a `question`, and solutions each marked as correct or not.
    Gsm8kSolutions,
}

/// Writes a TOML value on one line.
pub fn toml_on_one_line(value: &toml::Value) -> String {
    match value {
        // A table's Display may use several lines; inside an array it is inline.
        toml::Value::Table(table) => {
            let pairs: Vec<String> =
                table.iter().map(|(k, v)| format!("{} = {}", quoted_key(k), toml_on_one_line(v))).collect();
            if pairs.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", pairs.join(", ")) }
        }
        toml::Value::Array(items) => format!("[{}]", items.iter().map(toml_on_one_line).collect::<Vec<_>>().join(", ")),
        // Line breaks in a string are escaped.
        toml::Value::String(text) => json_string(text),
        // Small floats are written as 2e-5 instead of 0.00002. Both forms are read back to the same bits.
        toml::Value::Float(x) if *x != 0.0 && x.abs() < 1e-3 => format!("{x:e}"),
        other => other.to_string(),
    }
}

/// Quotes a string. JSON's escapes are valid in TOML, except that TOML also escapes the delete character.
fn json_string(text: &str) -> String {
    Json::String(text.to_owned()).to_string().replace('\u{7f}', "\\u007f")
}

fn quoted_key(key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if bare { key.to_owned() } else { json_string(key) }
}
