//! The supported model families, one file each: the `model_type`, how `config.json` is read, and how the model differs
//! from Llama. A new family needs a file here and an entry in [`FAMILIES`].

mod gemma3;
mod llama;
mod mistral;
mod olmo2;
mod olmo3;
mod qwen2;
mod qwen3;
mod smollm3;
#[cfg(test)]
mod tests;

use crate::config::Fields;
use crate::{Error, Family, ModelConfig, Result};
use serde_json::Value;
use std::path::Path;

/// All supported model families.
pub const FAMILIES: [&Family; 8] = [
    &llama::FAMILY,
    &mistral::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &smollm3::FAMILY,
    &olmo2::FAMILY,
    &olmo3::FAMILY,
    &gemma3::FAMILY,
];

impl ModelConfig {
    /// Reads a `config.json`.
    pub fn load(path: &Path) -> Result<ModelConfig> {
        ModelConfig::from_bytes(path, &disk::read(path, disk::most::STATE).map_err(|e| Error::io(path, e))?)
    }

    /// Parses the configuration from the bytes of the file `path`.
    pub(crate) fn from_bytes(path: &Path, bytes: &[u8]) -> Result<ModelConfig> {
        let text = std::str::from_utf8(bytes).map_err(|e| Error::file(path, format!("not UTF-8: {e}")))?;
        let text = text.trim_start_matches('\u{feff}');
        ModelConfig::parse(text).map_err(|e| match e {
            Error::NotJson(_) | Error::Config { .. } => {
                Error::file(path, e.to_string().trim_start_matches("config.json: "))
            }
            e => e,
        })
    }
    /// Parses the text of a `config.json`.
    pub fn parse(json: &str) -> Result<ModelConfig> {
        let raw: Value = serde_json::from_str(json).map_err(|e| Error::NotJson(format!("not JSON: {e}")))?;
        let Value::Object(raw) = raw else { return Err(Error::NotJson("expected a JSON object".into())) };
        let f = Fields { map: &raw, prefix: "" };
        let supported = || FAMILIES.map(|family| family.model_type).join(", ");
        let Some(model_type) = f.text("model_type")? else {
            return Err(f.error("model_type", format!("missing; supported: {}", supported())));
        };
        let Some(family) = FAMILIES.into_iter().find(|family| family.model_type == model_type) else {
            // For example "gemma3", whose text model is supported as gemma3_text.
            if f.get("vision_config").is_some() {
                let supported = supported();
                let message =
                    format!("models of text and images (vision_config) are not supported; supported: {supported}");
                return Err(f.error("model_type", message));
            }
            return Err(f.error("model_type", format!("not supported; supported: {}", supported())));
        };
        (family.read)(&f, family)
    }
}
