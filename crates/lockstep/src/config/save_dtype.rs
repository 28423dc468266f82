//! The dtype of a run's result.

use model::FileDType;

/// The dtype of the weights in a run's result (`save_dtype`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SaveDType {
    /// The dtype of the files that the run began with.
    #[default]
    Auto,
    /// f32: every bit of the weights.
    F32,
    /// bf16, rounded.
    Bf16,
    /// f16, rounded.
    F16,
}

impl SaveDType {
    /// The dtype of the written files. `is_bf16`: whether the model computes in bf16. `adapts`: whether an adapter is
    /// trained. `loaded`: the dtype of the files that training began with; `None` for a new adapter.
    pub fn file_dtype(self, is_bf16: bool, adapts: bool, loaded: Option<FileDType>) -> FileDType {
        match self {
            SaveDType::F32 => FileDType::F32,
            SaveDType::Bf16 => FileDType::Bf16,
            SaveDType::F16 => FileDType::F16,
            // The model computes with bf16 weights, so it would not use more bits in the files.
            SaveDType::Auto if !adapts && is_bf16 => FileDType::Bf16,
            SaveDType::Auto => loaded.unwrap_or(FileDType::F32),
        }
    }
}

/// Converts the text of a flag, which clap's `value_parser` has checked.
impl From<&str> for SaveDType {
    fn from(text: &str) -> SaveDType {
        match text {
            "f32" => SaveDType::F32,
            "bf16" => SaveDType::Bf16,
            "f16" => SaveDType::F16,
            _ => SaveDType::Auto,
        }
    }
}
