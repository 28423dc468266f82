//! The activations of a generation and the results of its head, which the engine keeps and the first update on its
//! tokens uses.

use crate::net::{HeadColumns, RowStore};
use crate::weights::Version;
use crate::{GroupId, ModelConfig, Prompt};
use kernels::Memory;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// In a list of rows, marks a token whose row was not kept.
pub const NO_ROW: u32 = u32::MAX;

/// The kept activations, shared between the engine that fills them and the trainer that reads them.
#[derive(Clone)]
pub struct RolloutActivations(Arc<Mutex<KeptRollout>>);

impl RolloutActivations {
    /// Allocates `capacity` rows (tokens), for steps of up to `step_rows` rows. `whole` is the largest number of rows
    /// of a generation. If it exceeds `capacity`, some groups are not kept, and room for their rows in a step is
    /// reserved.
    pub fn new(
        memory: &Memory,
        model: &ModelConfig,
        capacity: usize,
        step_rows: usize,
        whole: usize,
    ) -> RolloutActivations {
        let store = RowStore::new(memory, model, capacity);
        let reserved = if capacity < whole { step_rows } else { 0 };
        let kept = KeptRollout { store, used: 0, reserved, cleared: 0, version: None, groups: BTreeMap::new() };
        RolloutActivations(Arc::new(Mutex::new(kept)))
    }

    /// Locks the rows for the engine or the trainer.
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
    /// The number of rows to leave free when a group begins, since a step also computes rows of groups that are not
    /// kept.
    pub reserved: usize,
    /// How often the rows were dropped: generations so far.
    cleared: u64,
    /// The weights that computed the rows; `None` if there are none yet.
    version: Option<Version>,
    groups: BTreeMap<GroupId, KeptGroup>,
}

/// The kept rows and head results of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptGroup {
    /// The prompt of the group.
    pub prompt: Arc<Prompt>,
    /// The temperature at which the completions were sampled.
    pub temperature: f64,
    /// For each token of the prompt, its row in the store.
    pub prompt_rows: Vec<u32>,
    /// The completions of the group.
    pub completions: Vec<KeptCompletion>,
}

/// The kept rows and head results of a completion.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeptCompletion {
    /// The token ids of the completion.
    pub ids: Vec<u32>,
    /// For each token except the last one, which is never computed, its row in the store.
    pub rows: Vec<u32>,
    /// The results of the head for each token. The log-sum-exp of a token that was not sampled is NaN.
    pub head: HeadColumns,
}

impl KeptGroup {
    /// A group that has no rows yet.
    pub fn begun(prompt: &Arc<Prompt>, temperature: f64, completions: usize) -> KeptGroup {
        let prompt_rows = vec![NO_ROW; prompt.ids.len()];
        let completions = vec![KeptCompletion::default(); completions];
        KeptGroup { prompt: prompt.clone(), temperature, prompt_rows, completions }
    }
}

/// The kept rows and head results of one sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeptSequence<'a> {
    prompt_rows: &'a [u32],
    completion: &'a KeptCompletion,
    /// The number of the completion's tokens that belong to the sequence.
    len: usize,
}

impl KeptSequence<'_> {
    /// The row of the token at this position.
    pub fn row(&self, position: usize) -> u32 {
        match position.checked_sub(self.prompt_rows.len()) {
            None => self.prompt_rows[position],
            Some(at) => self.completion.rows[at],
        }
    }

    /// Appends the results of the head for the tokens of the completion.
    pub fn append_to(&self, columns: &mut HeadColumns) {
        let HeadColumns { logps, lse, entropies } = &self.completion.head;
        columns.logps.extend_from_slice(&logps[..self.len]);
        columns.lse.extend_from_slice(&lse[..self.len]);
        columns.entropies.extend_from_slice(&entropies[..self.len]);
    }
}

impl KeptRollout {
    /// Drops all rows, at the start of a generation.
    pub fn clear(&mut self) {
        (self.used, self.version) = (0, None);
        self.groups.clear();
        self.cleared += 1;
    }

    /// The number of the generation to which the rows belong: it grows when they are [dropped](Self::clear).
    pub fn generation(&self) -> u64 {
        self.cleared
    }

    /// Whether the rows of a group that has ended are kept.
    pub fn has(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    /// Whether rows computed with the weights of `version` may be added to the rows so far.
    pub fn accepts(&mut self, version: Version) -> bool {
        *self.version.get_or_insert(version) == version
    }

    /// Adds a group that has ended. If rows of a sequence are missing, [`find`](Self::find) does not return the
    /// sequence.
    pub fn insert(&mut self, group: GroupId, rows: KeptGroup) {
        self.groups.insert(group, rows);
    }

    /// The rows and head results of a sequence of group `group`, if the weights of `version` computed and sampled all
    /// of its tokens at this temperature. The completion is found by its tokens, so the result always belongs to them.
    pub fn find(
        &self,
        (version, temperature): (Version, f64),
        group: GroupId,
        prompt: &[u32],
        completion: &[u32],
    ) -> Option<KeptSequence<'_>> {
        let group = self.groups.get(&group).filter(|_| self.version == Some(version))?;
        let is_kept = |rows: &[u32]| rows.iter().all(|&row| row != NO_ROW);
        if group.prompt.ids != prompt || group.temperature != temperature || !is_kept(&group.prompt_rows) {
            return None;
        }
        let len = completion.len();
        let is_whole = |of: &&KeptCompletion| {
            let rows = of.rows.get(..len.saturating_sub(1));
            let lse = of.head.lse.get(..len);
            of.ids.starts_with(completion)
                && rows.is_some_and(is_kept)
                && lse.is_some_and(|lse| lse.iter().all(|lse| !lse.is_nan()))
        };
        let completion = group.completions.iter().find(is_whole)?;
        Some(KeptSequence { prompt_rows: &group.prompt_rows, completion, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Updates;
    use kernels::{Context, Isa};

    #[test]
    fn a_sequence_is_found_by_weights_temperature_group_and_tokens() {
        let json = r#"{"model_type": "llama", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
            "num_attention_heads": 2, "vocab_size": 10}"#;
        let config = ModelConfig::parse(json).unwrap();
        let activations = RolloutActivations::new(Context::cpu(Isa::best(), 1).memory(), &config, 8, 4, 8);
        let version = |base| Version { base: Updates(base), adapter: None };
        let mut kept = activations.lock();
        assert!(kept.accepts(version(1)) && kept.accepts(version(1)) && !kept.accepts(version(2)));
        let of = |ids: &[u32], rows: &[u32]| {
            let column = |first: f32| (0..ids.len()).map(|at| first + at as f32).collect::<Vec<_>>();
            let head = HeadColumns { logps: column(-9.0), lse: column(2.0), entropies: column(0.5) };
            KeptCompletion { ids: ids.to_vec(), rows: rows.to_vec(), head }
        };
        let mut completions = vec![of(&[7, 8], &[2]), of(&[7, 9, 9], &[3, NO_ROW]), of(&[5], &[]), of(&[6, 6], &[4])];
        completions[3].head.lse[1] = f32::NAN;
        let prompt = Prompt::new([1, 2]);
        let whole = KeptGroup { prompt, temperature: 0.5, prompt_rows: vec![0, 1], completions };
        kept.insert(GroupId(4), whole.clone());
        kept.insert(GroupId(6), KeptGroup { temperature: 0.25, ..whole.clone() });
        kept.insert(GroupId(5), KeptGroup { prompt_rows: vec![0, NO_ROW], ..whole });
        let find = |version_: u64, group, prompt: &[u32], completion: &[u32]| {
            let found = kept.find((version(version_), 0.5), GroupId(group), prompt, completion);
            found.map(|s| (0..2 + completion.len() - 1).map(|at| s.row(at)).collect::<Vec<_>>())
        };
        assert_eq!(find(1, 4, &[1, 2], &[7, 8]), Some(vec![0, 1, 2]));
        assert_eq!(find(1, 4, &[1, 2], &[5]), Some(vec![0, 1]));
        // A truncated completion has the rows of its first tokens.
        assert_eq!(find(1, 4, &[1, 2], &[7, 9]), Some(vec![0, 1, 3]));
        for (why, found) in [
            ("a row is missing", find(1, 4, &[1, 2], &[7, 9, 9])),
            ("other weights", find(2, 4, &[1, 2], &[7, 8])),
            ("another group", find(1, 3, &[1, 2], &[7, 8])),
            ("another prompt", find(1, 4, &[1, 3], &[7, 8])),
            ("other tokens", find(1, 4, &[1, 2], &[7, 7])),
            ("a row of the prompt is missing", find(1, 5, &[1, 2], &[7, 8])),
            ("another temperature", find(1, 6, &[1, 2], &[7, 8])),
            ("a token was not sampled", find(1, 4, &[1, 2], &[6, 6])),
        ] {
            assert_eq!(found, None, "{why}");
        }
        let mut columns = HeadColumns::default();
        for ids in [&[7, 9][..], &[5]] {
            kept.find((version(1), 0.5), GroupId(4), &[1, 2], ids).unwrap().append_to(&mut columns);
        }
        assert_eq!((columns.logps, columns.lse), (vec![-9.0, -8.0, -9.0], vec![2.0, 3.0, 2.0]));
        assert_eq!(columns.entropies, [0.5, 1.5, 0.5]);
        kept.clear();
        assert!(kept.accepts(version(2)) && kept.find((version(2), 0.5), GroupId(4), &[1, 2], &[5]).is_none());
    }
}
