//! The activations of a generation, which the engine keeps and the first update on its tokens uses.

use crate::net::RowStore;
use crate::weights::Version;
use crate::{GroupId, ModelConfig, Prompt};
use kernels::Memory;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// In a list of rows: the row of this token was not kept.
pub const NO_ROW: u32 = u32::MAX;

/// The kept activations, shared between the engine that fills them and the trainer that reads them.
#[derive(Clone)]
pub struct RolloutActivations(Arc<Mutex<KeptRollout>>);

impl RolloutActivations {
    /// Room for `capacity` rows (tokens), computed in steps of up to `step_rows` rows. `whole` is the largest number of
    /// rows of a generation. If that is more, some groups are not kept, and there must be room for their rows in a
    /// step.
    pub fn new(
        memory: &Memory,
        model: &ModelConfig,
        capacity: usize,
        step_rows: usize,
        whole: usize,
    ) -> RolloutActivations {
        let store = RowStore::new(memory, model, capacity);
        let reserved = if capacity < whole { step_rows } else { 0 };
        let kept = KeptRollout { store, used: 0, reserved, version: None, groups: BTreeMap::new() };
        RolloutActivations(Arc::new(Mutex::new(kept)))
    }

    /// The rows, for the engine or the trainer.
    pub fn lock(&self) -> MutexGuard<'_, KeptRollout> {
        // A panic may have left rows half-written, but only complete groups are in the list.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The rows of one generation, and the groups whose rows are complete.
pub struct KeptRollout {
    /// The activations of all rows.
    pub store: RowStore,
    /// The number of rows of `store` in use: the next step's rows follow them.
    pub used: usize,
    /// The rows to leave free when a group begins, since a step also computes rows of groups that are not kept.
    pub reserved: usize,
    /// The weights that computed the rows; `None` if there are none yet.
    version: Option<Version>,
    groups: BTreeMap<GroupId, KeptGroup>,
}

/// The rows of a group's tokens in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptGroup {
    /// The prompt of the group.
    pub prompt: Arc<Prompt>,
    /// The row of each token of the prompt.
    pub prompt_rows: Vec<u32>,
    /// The tokens of each completion and the row of each token, without the last one, which is never computed.
    pub completions: Vec<(Vec<u32>, Vec<u32>)>,
}

impl KeptGroup {
    /// A group without a row so far.
    pub fn begun(prompt: &Arc<Prompt>, completions: usize) -> KeptGroup {
        let prompt_rows = vec![NO_ROW; prompt.ids.len()];
        KeptGroup { prompt: prompt.clone(), prompt_rows, completions: vec![Default::default(); completions] }
    }
}

/// The rows of one sequence in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptSequence<'a> {
    prompt: &'a [u32],
    completion: &'a [u32],
}

impl KeptSequence<'_> {
    /// The row of the token at this position.
    pub fn row(&self, position: usize) -> u32 {
        match position.checked_sub(self.prompt.len()) {
            None => self.prompt[position],
            Some(at) => self.completion[at],
        }
    }
}

impl KeptRollout {
    /// Forgets all rows, at the start of a generation.
    pub fn clear(&mut self) {
        (self.used, self.version) = (0, None);
        self.groups.clear();
    }

    /// Whether rows computed with the weights of `version` may join the rows so far.
    pub fn accepts(&mut self, version: Version) -> bool {
        *self.version.get_or_insert(version) == version
    }

    /// Adds a group that has ended. Its rows may be incomplete; then its sequences are not found.
    pub fn insert(&mut self, group: GroupId, rows: KeptGroup) {
        self.groups.insert(group, rows);
    }

    /// The rows of a sequence of group `group`, if the weights of `version` computed all of them. The tokens decide
    /// which completion it is, so the rows always belong to these tokens.
    pub fn find(
        &self,
        version: Version,
        group: GroupId,
        prompt: &[u32],
        completion: &[u32],
    ) -> Option<KeptSequence<'_>> {
        let group =
            self.groups.get(&group).filter(|group| self.version == Some(version) && group.prompt.ids == prompt)?;
        let computed = completion.len().saturating_sub(1);
        let is_kept = |rows: &[u32]| rows.iter().all(|&row| row != NO_ROW);
        let of = |(ids, rows): &&(Vec<u32>, Vec<u32>)| {
            ids.starts_with(completion) && rows.get(..computed).is_some_and(is_kept)
        };
        let (_, rows) = group.completions.iter().find(of)?;
        is_kept(&group.prompt_rows).then_some(KeptSequence { prompt: &group.prompt_rows, completion: rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Updates;
    use kernels::{Context, Isa};

    #[test]
    fn a_sequence_is_found_by_weights_group_and_tokens() {
        let json = r#"{"model_type": "llama", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
            "num_attention_heads": 2, "vocab_size": 10}"#;
        let config = ModelConfig::parse(json).unwrap();
        let activations = RolloutActivations::new(Context::cpu(Isa::best(), 1).memory(), &config, 8, 4, 8);
        let version = |base| Version { base: Updates(base), adapter: None };
        let mut kept = activations.lock();
        assert!(kept.accepts(version(1)) && kept.accepts(version(1)) && !kept.accepts(version(2)));
        let completions = vec![(vec![7, 8], vec![2]), (vec![7, 9, 9], vec![3, NO_ROW]), (vec![5], vec![])];
        let whole = KeptGroup { prompt: Prompt::new([1, 2]), prompt_rows: vec![0, 1], completions };
        kept.insert(GroupId(4), whole.clone());
        kept.insert(GroupId(5), KeptGroup { prompt_rows: vec![0, NO_ROW], ..whole });
        let find = |version_: u64, group, prompt: &[u32], completion: &[u32]| {
            let found = kept.find(version(version_), GroupId(group), prompt, completion);
            found.map(|s| (0..2 + completion.len() - 1).map(|at| s.row(at)).collect::<Vec<_>>())
        };
        assert_eq!(find(1, 4, &[1, 2], &[7, 8]), Some(vec![0, 1, 2]));
        assert_eq!(find(1, 4, &[1, 2], &[5]), Some(vec![0, 1]));
        // A completion that was cut off has the rows of its first tokens.
        assert_eq!(find(1, 4, &[1, 2], &[7, 9]), Some(vec![0, 1, 3]));
        for (why, found) in [
            ("a row is missing", find(1, 4, &[1, 2], &[7, 9, 9])),
            ("other weights", find(2, 4, &[1, 2], &[7, 8])),
            ("another group", find(1, 3, &[1, 2], &[7, 8])),
            ("another prompt", find(1, 4, &[1, 3], &[7, 8])),
            ("other tokens", find(1, 4, &[1, 2], &[7, 7])),
            ("a row of the prompt is missing", find(1, 5, &[1, 2], &[7, 8])),
        ] {
            assert_eq!(found, None, "{why}");
        }
        kept.clear();
        assert!(kept.accepts(version(2)) && kept.find(version(2), GroupId(4), &[1, 2], &[5]).is_none());
    }
}
