//! A preference pair as text.

use rewards::Content;

/// A pair as the data says it.
#[derive(Clone, Debug, PartialEq)]
pub struct Preference {
    /// The prompt.
    pub prompt: Content,
    /// The better answer.
    pub chosen: Content,
    /// The worse answer.
    pub rejected: Content,
    /// How much better it is.
    pub margin: Option<f32>,
}
