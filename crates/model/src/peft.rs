//! Reads and writes LoRA adapters in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! A field of `adapter_config.json` that asks for an unsupported feature is an error; it is never ignored.

use crate::io::{
    ADAPTER_WEIGHTS as WEIGHTS, BASE_SHA256, ModelFiles, SaveOptions, check_listed, load_tensors, load_weights,
    read_metadata, save_model, save_tensors_with, without_bom, write_json,
};
use crate::weights::{
    AdaptedWeights, Adapter, AdapterFiles, AdapterFilesMut, HeldWeights, LoraConfig, TargetModules, Weights,
};
use crate::{Error, FileDType, Head, Result};
use kernels::Memory;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Name of the configuration file of a PEFT adapter directory.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";

/// Whether the directory contains a PEFT adapter rather than a full model.
pub fn is_adapter(dir: &Path) -> bool {
    dir.join(ADAPTER_CONFIG).exists() && !dir.join("config.json").exists()
}

/// The base model that an adapter belongs to.
#[derive(Clone, Copy, Debug)]
pub struct BaseModel<'a> {
    /// Path or Hugging Face Hub id of the base model.
    pub name: &'a str,
    /// SHA-256 of the base model's weights, if it is known.
    pub sha256: Option<&'a str>,
}

impl<'a> From<&'a str> for BaseModel<'a> {
    fn from(name: &'a str) -> Self {
        BaseModel { name, sha256: None }
    }
}

/// The hash of the base model's weights that was saved with the adapter in `dir`; none if it was not saved.
pub fn base_sha256(dir: &Path) -> Result<Option<String>> {
    read_metadata(&dir.join(WEIGHTS), BASE_SHA256)
}

/// Ignored fields of `adapter_config.json`: they do not affect the computation, or only refine a feature that another
/// field must enable.
const ABOUT: &[&str] = &[
    "auto_mapping",
    "ensure_weight_tying",
    "inference_mode",
    "init_lora_weights",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
];
/// Fields of `adapter_config.json` that this module reads.
const READ: &[&str] = &[
    "base_model_name_or_path",
    "lora_alpha",
    "lora_dropout",
    "modules_to_save",
    "peft_type",
    "r",
    "target_modules",
    "task_type",
    "use_rslora",
];
/// Other fields of `adapter_config.json`, each with the string value that disables its feature. Null, false and empty
/// values enable nothing in any field.
const NEUTRAL: &[(&str, &str)] = &[("bias", "none")];

/// PEFT's names for the head of a sequence-classification model. PEFT lists both in `modules_to_save`.
const SCORE_HEADS: [&str; 2] = ["classifier", "score"];

/// A parsed `adapter_config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterConfig {
    /// Rank, alpha, dropout and target modules of the adapter.
    pub lora: LoraConfig,
    /// The base model: a path or a Hub id.
    pub base: Option<String>,
    /// Whether the adapter comes with a score head, as the adapter of a reward model does.
    pub scores: bool,
}

/// Reads `adapter_config.json` in `dir`.
pub fn load_adapter_config(dir: &Path) -> Result<AdapterConfig> {
    check_listed(dir, |name| name == ADAPTER_CONFIG)?;
    let path = dir.join(ADAPTER_CONFIG);
    let text = disk::read(&path, disk::most::STATE).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::file(&path, "no such file; expected the directory of a PEFT adapter"),
        _ => Error::io(&path, e),
    })?;
    let json: Value =
        serde_json::from_slice(without_bom(&text)).map_err(|e| Error::file(&path, format!("not JSON: {e}")))?;
    let Some(json) = json.as_object() else { return Err(Error::file(&path, "expected a JSON object")) };
    parse(json).map_err(|message| Error::file(&path, message))
}

fn parse(json: &Map<String, Value>) -> std::result::Result<AdapterConfig, String> {
    match json.get("peft_type").and_then(Value::as_str) {
        Some("LORA") => {}
        _ => {
            return Err(format!(
                "`peft_type` is {}; only LORA is supported",
                json.get("peft_type").unwrap_or(&Value::Null)
            ));
        }
    }
    for (key, value) in json.iter().filter(|(key, _)| !READ.contains(&key.as_str()) && !ABOUT.contains(&key.as_str())) {
        let nothing = match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            Value::String(text) => NEUTRAL.contains(&(key, text)),
            _ => false,
        };
        if !nothing {
            return Err(format!("`{key}` = {value} is not supported; plain LoRA adapters leave it unset"));
        }
    }
    // Most initialisations change only A and B; these also change the base model's weights.
    if let Some(way) = json.get("init_lora_weights").and_then(Value::as_str)
        && ["pissa", "olora", "corda", "loftq", "lora_ga"].iter().any(|w| way.to_lowercase().starts_with(w))
    {
        return Err(format!(
            "`init_lora_weights` = \"{way}\" changes the base model's weights: convert the adapter to a plain one \
             with PEFT"
        ));
    }
    let number = |key: &str| json.get(key).ok_or_else(|| format!("`{key}` is missing"));
    let wrong = |key: &str, what: &str, value: &Value| format!("`{key}` = {value}: expected {what}");
    let r = number("r")?;
    let alpha = number("lora_alpha")?;
    let target_modules = match number("target_modules")? {
        Value::String(all) if all.eq_ignore_ascii_case("all-linear") => TargetModules::AllLinear,
        Value::String(pattern) => TargetModules::Regex(pattern.clone()),
        value @ Value::Array(list) => {
            let names = list.iter().map(|n| n.as_str().map(str::to_owned));
            let names: Option<Vec<String>> = names.collect();
            let mut names = names.ok_or_else(|| wrong("target_modules", "a list of names", value))?;
            names.sort();
            TargetModules::Names(names)
        }
        value => return Err(wrong("target_modules", "a list of names, or a regular expression", value)),
    };
    let saved = match json.get("modules_to_save") {
        None | Some(Value::Null) => Vec::new(),
        Some(value) => value.as_array().ok_or_else(|| wrong("modules_to_save", "a list of names", value))?.clone(),
    };
    if let Some(other) = saved.iter().find(|m| !m.as_str().is_some_and(|m| SCORE_HEADS.contains(&m))) {
        return Err(format!(
            "`modules_to_save` has {other}; with an adapter only the score head of a reward model can be trained"
        ));
    }
    let text = |key: &str| json.get(key).and_then(Value::as_str);
    let base = text("base_model_name_or_path").filter(|name| !name.is_empty()).map(str::to_owned);
    let scores = !saved.is_empty() || text("task_type") == Some("SEQ_CLS");
    let lora = LoraConfig {
        r: r.as_u64().filter(|&r| r > 0).ok_or_else(|| wrong("r", "a positive integer", r))? as usize,
        alpha: alpha.as_f64().ok_or_else(|| wrong("lora_alpha", "a number", alpha))?,
        dropout: match json.get("lora_dropout") {
            None | Some(Value::Null) => 0.0,
            Some(p) => p.as_f64().ok_or_else(|| wrong("lora_dropout", "a number", p))?,
        },
        use_rslora: json.get("use_rslora").and_then(Value::as_bool).unwrap_or(false),
        target_modules,
    };
    Ok(AdapterConfig { lora, base, scores })
}

/// Loads the adapter of the PEFT directory `dir` for the base model `base`. On `Device::Meta` the adapter's weights are
/// not read.
pub fn load_adapter(memory: &Memory, dir: &Path, base: &Weights) -> Result<Adapter> {
    let AdapterConfig { lora, scores, .. } = load_adapter_config(dir)?;
    // PEFT's name of the field is `target_modules`; this crate's errors name `lora_target_modules`.
    let bad = |message: String| Error::file(dir.join(ADAPTER_CONFIG), message.replace("lora_target", "target"));
    match (scores, base.config.head) {
        (true, Head::Lm) => {
            return Err(bad("belongs to a reward model (SEQ_CLS), but the model is a language model".into()));
        }
        (false, Head::Score(_)) => {
            return Err(bad("belongs to a language model: it has no score head, which a reward model needs".into()));
        }
        _ => {}
    }
    let mut adapter = Adapter::zeros(memory, base, &lora).map_err(|e| bad(e.to_string()))?;
    if memory.has_values() {
        read_adapter(dir, &mut adapter)?;
    }
    Ok(adapter)
}

/// Reads the weights of the PEFT directory `dir` into `adapter`.
pub fn read_adapter(dir: &Path, adapter: &mut Adapter) -> Result<()> {
    if !dir.join(WEIGHTS).exists() {
        return Err(Error::file(dir, format!("no {WEIGHTS} found (other adapter formats are not supported)")));
    }
    load_tensors(&dir.join(WEIGHTS), &mut AdapterFilesMut(&mut adapter.params))
}

/// Writes an adapter, with its score head if it has one, as a directory that PEFT and this crate can load. `base` is
/// the model to which the adapter belongs.
pub fn save_adapter<'a>(dir: &Path, adapter: &Adapter, base: impl Into<BaseModel<'a>>) -> Result<()> {
    save_adapter_in(dir, adapter, base, FileDType::F32)
}

/// [`save_adapter`] with a choice of dtype. f32 keeps every bit.
fn save_adapter_in<'a>(dir: &Path, adapter: &Adapter, base: impl Into<BaseModel<'a>>, dtype: FileDType) -> Result<()> {
    let (lora, base) = (&adapter.lora, base.into());
    disk::create_dir_all(dir).map_err(|e| Error::io(dir, e))?;
    let (task_type, modules_to_save) = match adapter.config.head {
        Head::Lm => ("CAUSAL_LM", Value::Null),
        Head::Score(_) => ("SEQ_CLS", json!(["score"])),
    };
    let config = json!({
        "peft_type": "LORA",
        "task_type": task_type,
        "base_model_name_or_path": base.name,
        "inference_mode": true,
        "r": lora.r,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "use_rslora": lora.use_rslora,
        // Write names, because PEFT would apply a pattern to every module of the model and so select additional
        // modules.
        "target_modules": lora.names(&adapter.config),
        "bias": "none",
        "fan_in_fan_out": false,
        "init_lora_weights": true,
        "modules_to_save": modules_to_save,
        "rank_pattern": {},
        "alpha_pattern": {},
    });
    let metadata: Vec<_> = base.sha256.iter().map(|sha256| (BASE_SHA256, *sha256)).collect();
    save_tensors_with(&dir.join(WEIGHTS), &AdapterFiles(&adapter.params), dtype, &metadata)?;
    write_json(&dir.join(ADAPTER_CONFIG), &config)
}

impl HeldWeights {
    /// Saves the model as a directory that this crate and transformers can load. A model with an adapter saves the
    /// adapter alone, as PEFT does. The tokenizer files are `copied` from the model's directory. Weights are saved in
    /// the dtype that the model computes in, which keeps every bit.
    pub fn save(&self, dir: &Path, base: BaseModel<'_>, copied: &ModelFiles) -> Result<()> {
        self.save_in(self.exact_dtype(), dir, base, copied)
    }

    /// The smallest dtype that keeps every bit of the weights that [`save`](Self::save) writes.
    pub fn exact_dtype(&self) -> FileDType {
        match self.adapter {
            Some(_) => FileDType::F32,
            None => SaveOptions::exact(&self.base.config).dtype,
        }
    }

    /// Like [`save`](Self::save), but weights are rounded to the given dtype.
    pub fn save_in(&self, dtype: FileDType, dir: &Path, base: BaseModel<'_>, copied: &ModelFiles) -> Result<()> {
        if let Some(adapter) = &self.adapter {
            save_adapter_in(dir, adapter, base, dtype)?;
            return copied.write_tokenizer(dir);
        }
        let options = SaveOptions { dtype, ..SaveOptions::default() };
        save_model(dir, &self.base.config, &*self.base, Some(copied), options)
    }
}

impl AdaptedWeights {
    /// Reads back the weights that [`HeldWeights::save`] wrote to `dir`: the adapter's weights if the model has an
    /// adapter, else the model's.
    pub fn restore(&mut self, dir: &Path) -> Result<()> {
        let config = self.config().clone();
        match &mut self.adapter {
            Some(adapter) => adapter.overwrite(|adapter| read_adapter(dir, adapter)),
            None => self.base.overwrite(|weights| load_weights(dir, &config, weights)),
        }
    }
}

#[cfg(test)]
mod tests;
