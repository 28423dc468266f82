//! A preference pair as text, before it is encoded.

use rewards::Content;

/// A preference pair as the dataset has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Preference {
    /// The prompt, which both answers follow.
    pub prompt: Content,
    /// The better answer to the prompt.
    pub chosen: Content,
    /// The worse answer to the prompt.
    pub rejected: Content,
    /// How much better the chosen answer is, if the data has a margin.
    pub margin: Option<f32>,
}
