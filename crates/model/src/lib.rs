//! A decoder-only transformer as Hugging Face directories describe it: configuration, weight files, tokenizer, chat
//! template, forward and backward. It knows no prompt, no reward and no optimizer.

mod error;

pub mod config;

pub use config::{Family, FileDType, ModelConfig};
pub use error::{Error, Result};
