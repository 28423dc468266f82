//! What a run trains or reads: model directories with their weights, tokenizers and chat templates, by path or Hub id.

mod policy;
mod value_model;

pub use policy::{
    ModelSource, Policy, load_assets, load_config, load_scorer, load_weights, trained_weights,
};
pub use value_model::{value_model_shape, value_model_shape_of};
