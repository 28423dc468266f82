//! The models that a run trains or reads: directories with weights, tokenizer and chat template, named by path or Hub
//! id.

mod base;
mod builder;
mod policy;
mod teacher;
mod value_model;

pub use base::check_base;
pub(crate) use base::{
    compare_base, hashes, hashes_of, hashes_of_reference, is_moved_adapter, prompt_hashes, weights_hash,
};
pub use builder::{Builder, Counted, Longest, Work};
pub use policy::{
    ModelSource, Policy, Snapshot, WriteFiles, load_assets, load_config, load_generator, load_scorer, load_weights,
    locate_model, trained_weights,
};
pub use teacher::teacher;
pub use value_model::value_model_shape;

use crate::config::{Config, RefAdapter};
use crate::error::{BadInput, OrBadInput};
use model::Head;
use model::hub::HubKind;
use model::peft::is_adapter;
use std::path::{Path, PathBuf};

/// The path of `name`: `name` itself if that path exists, else the Hub snapshot of that id, downloaded if not cached.
pub fn locate(name: &str, kind: HubKind) -> anyhow::Result<PathBuf> {
    model::hub::locate(name, kind).map_err(|error| match error {
        // A full disk, for example, is not bad input.
        model::Error::Io { .. } => error.into(),
        wrong => BadInput::new(wrong.to_string()),
    })
}

/// The source of the reference model: `ref_model`, which may be an adapter, or else the model of `source` with the
/// adapter that `ref_adapter` selects.
pub fn reference_source(config: &Config, source: &ModelSource) -> anyhow::Result<ModelSource> {
    if let Some(name) = &config.ref_model {
        return ModelSource::named(name, Head::Lm).or_bad_input_in("`ref_model`");
    }
    let adapter = source.adapter.clone().filter(|_| config.ref_adapter == RefAdapter::Initial);
    Ok(ModelSource { dir: source.dir.clone(), adapter })
}

/// The path or Hub id of a reference model whose files are not those of the run's base model: `ref_model`, or the
/// adapter from which training began.
pub fn separate_reference(config: &Config) -> Option<&str> {
    let initial = config
        .model_name_or_path
        .as_deref()
        .filter(|name| config.ref_adapter == RefAdapter::Initial && is_adapter(Path::new(name)));
    config.ref_model.as_deref().or(initial)
}

#[cfg(test)]
mod tests;
