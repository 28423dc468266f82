//! What a sequence continues from.

use std::collections::HashSet;
use std::sync::Arc;

/// A prompt. It is shared by identity: what has the same `Arc` is computed once, and nobody compares ids to find that
/// out.
///
/// Its tokens stand at positions 0, 1, 2, …; prompts with other positions, or with attachments (images), get fields
/// here.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Prompt {
    /// Token ids.
    pub ids: Vec<u32>,
}

impl Prompt {
    /// A prompt of these ids.
    pub fn new(ids: impl Into<Vec<u32>>) -> Arc<Prompt> {
        Arc::new(Prompt { ids: ids.into() })
    }
}

/// Makes one [`Prompt`] of all that are equal, for datasets whose rows repeat a prompt.
#[derive(Debug, Default)]
pub struct PromptSet(HashSet<Arc<Prompt>>);

impl PromptSet {
    /// `prompt`, or the one that was its equal before it.
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
    fn equal_prompts_of_a_set_are_one() {
        let mut set = PromptSet::default();
        let [a, b, c] = [vec![1, 2], vec![1], vec![1, 2]].map(|ids| set.share(Prompt::new(ids)));
        assert!(Arc::ptr_eq(&a, &c) && !Arc::ptr_eq(&a, &b));
        assert!(!Arc::ptr_eq(&a, &Prompt::new([1, 2])));
    }
}
