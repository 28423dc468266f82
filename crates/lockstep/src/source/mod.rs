//! From names to files: paths as they are, Hub ids through the local cache and the Hub. Knows nothing of what is in them
//! but what an adapter's directory looks like.

mod hub;
mod locate;

pub use hub::HubKind;
pub(crate) use locate::files;
pub use locate::locate;

use std::path::Path;

/// The endings of data files.
pub(crate) const DATA_ENDINGS: [&str; 3] = ["jsonl", "json", "parquet"];

/// Whether a directory is an adapter's: PEFT's files, and no model beside them.
pub fn is_adapter(dir: &Path) -> bool {
    dir.join(model::peft::ADAPTER_CONFIG).exists() && !dir.join("config.json").exists()
}
