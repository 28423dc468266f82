//! The rows of offline training, and their record in a checkpoint.

use model::PromptCompletion;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use train::{PreferencePair, Sample, Samples};

/// A row of training data: one sequence, or a pair of sequences to compare.
pub trait Row: Clone + Sized {
    /// The number of sequences in a row.
    const SEQUENCES: usize;
    /// All sequences of `rows`, in order, for scoring.
    fn sequences(rows: &[Self]) -> Vec<PromptCompletion<'_>>;
    /// For each of the [`sequences`](Self::sequences), which of its tokens count in the loss.
    fn learned(rows: &[Self]) -> Vec<Vec<bool>>;
    /// The rows in the trainer's form.
    fn samples(rows: &[Self]) -> Samples<'_>;
}

impl Row for Sample {
    const SEQUENCES: usize = 1;

    fn sequences(rows: &[Sample]) -> Vec<PromptCompletion<'_>> {
        rows.iter().map(Sample::sequence).collect()
    }

    fn learned(rows: &[Sample]) -> Vec<Vec<bool>> {
        rows.iter().map(|row| [vec![false; row.prompt.ids.len()], row.loss_mask.clone()].concat()).collect()
    }

    fn samples(rows: &[Sample]) -> Samples<'_> {
        rows.into()
    }
}

impl Row for PreferencePair {
    const SEQUENCES: usize = 2;

    /// All sequences: for each pair the chosen response, then the rejected one.
    fn sequences(rows: &[PreferencePair]) -> Vec<PromptCompletion<'_>> {
        let mut out = Vec::with_capacity(2 * rows.len());
        for PreferencePair { prompt, chosen, rejected, .. } in rows {
            let prompt = &prompt.ids;
            out.extend([chosen, rejected].map(|response| PromptCompletion { prompt, completion: &response.ids }));
        }
        out
    }

    fn learned(rows: &[PreferencePair]) -> Vec<Vec<bool>> {
        let of = |s: &PromptCompletion<'_>| [vec![false; s.prompt.len()], vec![true; s.completion.len()]].concat();
        Self::sequences(rows).iter().map(of).collect()
    }

    fn samples(rows: &[PreferencePair]) -> Samples<'_> {
        rows.into()
    }
}

/// A checkpoint's record of the training rows. The next step does not depend on it; it shows whether a resumed run
/// learns the same tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RowsState {
    /// SHA-256 of the token ids of all training rows and of the mask of learned tokens.
    tokens: String,
}

impl RowsState {
    /// The record of these rows.
    pub(super) fn of<R: Row>(rows: &[R]) -> RowsState {
        let mut hash = Sha256::new();
        for (sequence, learned) in R::sequences(rows).iter().zip(R::learned(rows)) {
            let mut bytes = (learned.len() as u64).to_le_bytes().to_vec();
            for (id, learned) in sequence.prompt.iter().chain(sequence.completion).zip(learned) {
                bytes.extend(id.to_le_bytes());
                bytes.push(u8::from(learned));
            }
            hash.update(&bytes);
        }
        RowsState { tokens: hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect() }
    }

    /// A sentence for a resumed run whose rows have, or may have, different tokens than at its start. `state` is the
    /// checkpoint's value, which versions before 0.2 did not write.
    pub(super) fn differs_from(&self, state: Value, name: &str) -> anyhow::Result<Option<String>> {
        if state.is_null() {
            return Ok(Some(format!(
                "{name}: the checkpoint does not record the tokens of the rows. Versions before 0.2 encoded some rows \
                 differently (docs/versions.md); if yours are among them, the run continues with the new tokens"
            )));
        }
        let began: RowsState = serde_json::from_value(state)?;
        Ok((began != *self).then(|| {
            format!(
                "{name}: the tokens of the rows have changed since the run began: the tokenizer, the chat template or \
                 a key that affects them has changed. The run continues with the new tokens; restore the old files to \
                 keep the old tokens"
            )
        }))
    }
}
