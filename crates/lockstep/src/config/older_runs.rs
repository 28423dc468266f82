//! The configuration of a run that an older version wrote: it lacks newer keys. A key whose default changes prompts
//! or results then has the value that older versions acted on, so that the run continues as it began.

use super::resolved::Resolved;
use super::save_dtype::SaveDType;
use std::path::Path;

/// If `path` is the `config.toml` of a run, sets the keys that `table` lacks to the values of older versions.
pub(super) fn complete(resolved: &mut Resolved, table: &toml::Table, path: &Path) {
    let is_of_run = path.file_name().is_some_and(|name| name == "config.toml")
        && path.parent().is_some_and(|run| run.join("record.json").is_file());
    if is_of_run && !table.contains_key("template_columns") {
        resolved.config.template_columns = Vec::new();
    }
    if is_of_run && !table.contains_key("save_dtype") {
        // The dtype that kept every bit. (Of the run's own file: the configuration does not have its values yet.)
        let is_bf16 = table.get("dtype").and_then(toml::Value::as_str).is_some_and(|dtype| dtype.starts_with("b"));
        let adapts = table.get("use_peft").and_then(toml::Value::as_bool).unwrap_or(false);
        resolved.config.save_dtype = if is_bf16 && !adapts { SaveDType::Bf16 } else { SaveDType::F32 };
    }
}
