//! The configuration of a run that an older version wrote: it lacks newer keys. A key whose default changes prompts
//! then has the value that older versions acted on, so that the run continues with the prompts it began with.

use super::resolved::Resolved;
use std::path::Path;

/// If `path` is the `config.toml` of a run, sets the keys that `table` lacks to the values of older versions.
pub(super) fn complete(resolved: &mut Resolved, table: &toml::Table, path: &Path) {
    let is_of_run = path.file_name().is_some_and(|name| name == "config.toml")
        && path.parent().is_some_and(|run| run.join("record.json").is_file());
    if is_of_run && !table.contains_key("template_columns") {
        resolved.config.template_columns = Vec::new();
    }
}
