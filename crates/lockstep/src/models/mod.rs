//! The models that a run trains or reads: directories with weights, tokenizer and chat template, named by path or Hub
//! id.

mod base;
mod builder;
mod policy;
mod teacher;
mod value_model;

pub use base::check_base;
pub(crate) use base::{compare_base, hashes, hashes_of, of_weights, prompt_hashes};
pub use builder::{Builder, Counted, Longest, Work};
use policy::refuse_adapter;
pub use policy::{
    ModelSource, Policy, Snapshot, WriteFiles, load_assets, load_config, load_generator, load_scorer, load_weights,
    locate_model, trained_weights,
};
pub use teacher::teacher;
pub use value_model::value_model_shape;

use crate::config::Config;
use crate::error::{BadInput, OrBadInput};
use model::hub::HubKind;
use std::path::PathBuf;

/// The path of `name`: `name` itself if that path exists, else the Hub snapshot of that id, downloaded if not cached.
pub fn locate(name: &str, kind: HubKind) -> anyhow::Result<PathBuf> {
    model::hub::locate(name, kind).map_err(|error| match error {
        // For example a full disk, which is no bad input.
        model::Error::Io { .. } => error.into(),
        wrong => BadInput::new(wrong.to_string()),
    })
}

/// The path of `ref_model`; `None` if the key is not set. An adapter is refused.
pub fn locate_ref_model(config: &Config) -> anyhow::Result<Option<PathBuf>> {
    let found = |name: &String| -> anyhow::Result<PathBuf> {
        let dir = locate(name, HubKind::Model)?;
        refuse_adapter(&dir)?;
        Ok(dir)
    };
    config.ref_model.as_ref().map(found).transpose().or_bad_input_in("`ref_model`")
}

#[cfg(test)]
mod tests;
