//! What a run trains or reads: model directories with their weights, tokenizers and chat templates, by path or Hub id.

mod base;
mod builder;
mod policy;
mod teacher;
mod value_model;

pub use base::check_base;
pub(crate) use base::{compare_base, hashes, of_weights};
pub use builder::{Builder, Counted, Longest, Work};
pub use policy::{
    ModelSource, Policy, Snapshot, WriteFiles, load_assets, load_config, load_scorer, load_weights, locate_model,
    trained_weights,
};
pub use teacher::teacher;
pub use value_model::value_model_shape;

use crate::config::Config;
use crate::error::{BadInput, OrBadInput};
use model::hub::HubKind;
use std::path::PathBuf;

/// The path that `name` stands for: itself if it exists, else a Hub id's snapshot, fetched where it is not yet cached.
pub fn locate(name: &str, kind: HubKind) -> anyhow::Result<PathBuf> {
    model::hub::locate(name, kind).map_err(|error| match error {
        // A full disk, say.
        model::Error::Io { .. } => error.into(),
        wrong => BadInput::new(wrong.to_string()),
    })
}

/// Where `ref_model` is; none where it is not set.
pub fn locate_ref_model(config: &Config) -> anyhow::Result<Option<PathBuf>> {
    config.ref_model.as_ref().map(|name| locate(name, HubKind::Model)).transpose().or_bad_input_in("`ref_model`")
}
