//! Reads the generation batch in a run_state.json of format 2, which only older versions write.
//!
//! (Rollouts that those versions recorded are JSON lines, which [`replay`](super::replay) reads.)

use model::{Columns, FinishReason, GroupId, Prompt, Updates};
use serde::Deserialize;
use std::sync::Arc;
use train::{Advantage, Sample};

/// A generation batch, and how far it has been used.
#[derive(Debug, Deserialize)]
pub struct SavedBatch {
    /// Optimizer steps that have been taken on the batch.
    pub used: u64,
    /// The token ids of each distinct prompt.
    prompts: Vec<Vec<u32>>,
    samples: Vec<SavedSample>,
}

#[derive(Debug, Deserialize)]
struct SavedSample {
    /// The index of the sample's prompt in the list of prompts.
    prompt: usize,
    group: GroupId,
    completion: Vec<u32>,
    #[serde(rename = "mask")]
    loss_mask: Vec<bool>,
    versions: Vec<Updates>,
    truncated: bool,
    advantage: SavedAdvantage,
    columns: Columns,
}

/// An advantage, with the bits of each f32.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SavedAdvantage {
    Sequence(u32),
    Tokens(Vec<u32>),
}

impl SavedBatch {
    /// The samples; samples with the same prompt share it. `None` if a sample refers to a missing prompt.
    pub fn samples(self) -> Option<Vec<Sample>> {
        let prompts: Vec<Arc<Prompt>> = self.prompts.into_iter().map(Prompt::new).collect();
        let restore = |saved: SavedSample| prompts.get(saved.prompt).map(|prompt| saved.restore(prompt.clone()));
        self.samples.into_iter().map(restore).collect()
    }
}

impl SavedSample {
    fn restore(self, prompt: Arc<Prompt>) -> Sample {
        Sample {
            prompt,
            group: self.group,
            completion: self.completion,
            loss_mask: self.loss_mask,
            versions: self.versions,
            finish_reason: FinishReason::from_truncated(self.truncated),
            advantage: match self.advantage {
                SavedAdvantage::Sequence(a) => Advantage::Sequence(f32::from_bits(a)),
                SavedAdvantage::Tokens(a) => Advantage::Tokens(a.into_iter().map(f32::from_bits).collect()),
            },
            columns: self.columns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::columns::SAMPLER_LOGPS;
    use serde_json::json;

    /// Revision 63ed136 wrote this JSON; golden tests also resume whole checkpoints of that revision.
    #[test]
    fn samples_of_format_2_are_read_with_their_bits() {
        let sample = |prompt: usize, advantage| {
            json!({"prompt": prompt, "group": 1u64 << 40, "completion": [4, 5], "mask": [true, false],
                "versions": [7, 8], "truncated": true, "advantage": advantage,
                "columns": {"sampler_logps": {"width": 1, "values": {"f32": [0xbf00_0000u32, 0xff80_0000u32]}}}})
        };
        let tokens = json!({"tokens": [0x3f00_0000, 0x0040_0000]});
        let saved = |prompts| {
            json!({"used": 3, "prompts": prompts,
                "samples": [sample(0, json!({"sequence": 0x7fc0_1234})), sample(1, tokens.clone()),
                    sample(1, tokens.clone())]})
        };
        let batch: SavedBatch = serde_json::from_value(saved(json!([[1, 2], [1, 2]]))).unwrap();
        assert_eq!(batch.used, 3);
        let samples = batch.samples().unwrap();
        assert!(matches!(samples[0].advantage, Advantage::Sequence(a) if a.to_bits() == 0x7fc0_1234));
        assert_eq!(samples[1].advantage, Advantage::Tokens(vec![0.5, f32::MIN_POSITIVE / 2.0]));
        assert_eq!(samples[1].columns, Columns::of([(SAMPLER_LOGPS, vec![-0.5, f32::NEG_INFINITY])]));
        assert_eq!(
            (&samples[1].versions[..], samples[1].truncated(), samples[1].group),
            (&[7, 8].map(Updates)[..], true, GroupId(1 << 40))
        );
        assert!(Arc::ptr_eq(&samples[1].prompt, &samples[2].prompt));
        assert!(!Arc::ptr_eq(&samples[0].prompt, &samples[1].prompt));
        let broken: SavedBatch = serde_json::from_value(saved(json!([[1, 2]]))).unwrap();
        assert!(broken.samples().is_none(), "a prompt is missing");
    }
}
