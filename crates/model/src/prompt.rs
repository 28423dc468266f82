//! Prompts as token ids, shared between sequences.

use std::collections::HashSet;
use std::sync::Arc;

/// A prompt. Sequences with the same `Arc` share the prompt's computation; token ids are not compared.
///
/// The tokens are at positions 0, 1, 2, …. Other positions, or attachments such as images, would become further fields
/// of this struct.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Prompt {
    /// Token ids of the prompt.
    pub ids: Vec<u32>,
}

impl Prompt {
    /// A prompt with these token ids.
    pub fn new(ids: impl Into<Vec<u32>>) -> Arc<Prompt> {
        Arc::new(Prompt { ids: ids.into() })
    }
}

/// Replaces equal prompts by one shared [`Prompt`], for datasets in which several rows have the same prompt.
#[derive(Debug, Default)]
pub struct PromptSet(HashSet<Arc<Prompt>>);

impl PromptSet {
    /// Returns an earlier prompt equal to `prompt`, or else `prompt` itself.
    pub fn share(&mut self, prompt: Arc<Prompt>) -> Arc<Prompt> {
        if let Some(known) = self.0.get(&prompt) {
            return known.clone();
        }
        self.0.insert(prompt.clone());
        prompt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_set_shares_equal_prompts() {
        let mut set = PromptSet::default();
        let [a, b, c] = [vec![1, 2], vec![1], vec![1, 2]].map(|ids| set.share(Prompt::new(ids)));
        assert!(Arc::ptr_eq(&a, &c) && !Arc::ptr_eq(&a, &b));
        assert!(!Arc::ptr_eq(&a, &Prompt::new([1, 2])));
    }
}
