//! The configuration of an older version's run lacks newer keys. If such a key's default would change prompts, the
//! reference model, rewards or results, the key gets the value that older versions used, so that the run continues as
//! it began.

use super::resolved::{Origin, Resolved};
use super::save_dtype::SaveDType;
use super::values::RefAdapter;
use std::path::Path;

/// If `path` is the `config.toml` of a run, sets the keys that `table` lacks to the values of older versions.
pub(super) fn complete(resolved: &mut Resolved, table: &toml::Table, path: &Path) {
    let is_of_run = path.file_name().is_some_and(|name| name == "config.toml")
        && path.parent().is_some_and(|run| run.join("record.json").is_file());
    if is_of_run && !table.contains_key("template_columns") {
        resolved.config.template_columns = Vec::new();
    }
    if is_of_run && !table.contains_key("ref_adapter") {
        // This marks the key as set, so that an adapter's directory does not set it.
        resolved.config.ref_adapter = RefAdapter::None;
        resolved.origins.insert("ref_adapter", Origin::File(path.to_owned()));
    }
    let rewards = table.get("reward_funcs").map(ToString::to_string).unwrap_or_default();
    if is_of_run && !table.contains_key("reward_model_end_token") && rewards.contains("model") {
        resolved.config.reward_model_end_token = true;
        resolved.origins.insert("reward_model_end_token", Origin::File(path.to_owned()));
    }
    if is_of_run && !table.contains_key("save_dtype") {
        // Older versions saved the dtype that keeps every bit. It follows from `table`, whose values are not merged
        // yet.
        let is_bf16 = table.get("dtype").and_then(toml::Value::as_str).is_some_and(|dtype| dtype.starts_with("b"));
        let adapts = table.get("use_peft").and_then(toml::Value::as_bool).unwrap_or(false);
        resolved.config.save_dtype = if is_bf16 && !adapts { SaveDType::Bf16 } else { SaveDType::F32 };
    }
}
