//! Decoder-only transformers that load from Hugging Face model directories: configuration, weight files, tokenizer,
//! chat template, forward pass and backward pass. Rewards, losses and optimizers are in other crates.

mod assets;
mod error;

pub mod batch;
pub mod chat;
pub mod columns;
pub mod config;
pub mod families;
mod finish;
pub mod hub;
mod ids;
pub mod init;
pub mod io;
pub mod kept;
pub mod kv;
mod nearest;
pub mod net;
pub mod packing;
pub mod peft;
mod prompt;
pub mod scoring;
mod stop;
pub mod tokenizer;
pub mod weights;

pub use assets::ModelAssets;
pub use batch::{Batch, BatchTensors, Capacity, GroupSegment};
pub use chat::{Chat, ChatTemplate};
pub use columns::Columns;
pub use config::{Family, FileDType, Head, ModelConfig};
pub use error::{Error, Result};
pub use finish::FinishReason;
pub use ids::{GroupId, Step, Updates};
pub use kv::KvCache;
pub use nearest::{did_you_mean, nearest};
pub use packing::{MicroBatch, PromptCompletion, PromptGroup};
pub use prompt::{Prompt, PromptSet};
pub use scoring::Scorer;
pub use stop::StopCheck;
pub use tokenizer::{SpecialTokens, TextStream, Tokenizer};
pub use weights::{
    AdaptedWeights, Adapter, Adapters, Grads, HeldWeights, LoraConfig, ModelView, NextParams, Params, Published,
    SharedSlot, Sharing, TargetModules, Trainable, WeightSlots, Weights,
};
