//! A preference pair as text, before it is encoded.

use rewards::Content;

/// A preference pair as the dataset has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Preference {
    /// The prompt.
    pub prompt: Content,
    /// The better answer.
    pub chosen: Content,
    /// The worse answer.
    pub rejected: Content,
    /// How much better the chosen answer is, if the data says it.
    pub margin: Option<f32>,
}
