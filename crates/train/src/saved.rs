//! A generation batch as a checkpoint keeps it. Floating-point values are kept as their bits, so that reading gives
//! what was written, infinities and NaN included.

use crate::{Advantage, Sample};
use model::{Columns, Prompt};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A generation batch and the place in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedBatch {
    /// Optimizer steps taken on it, of `num_iterations` × its optimizer batches.
    pub used: u64,
    /// Each prompt once.
    prompts: Vec<Vec<u32>>,
    samples: Vec<SavedSample>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SavedSample {
    /// Its place in the list.
    prompt: usize,
    group: u64,
    completion: Vec<u32>,
    mask: Vec<bool>,
    versions: Vec<u64>,
    truncated: bool,
    advantage: SavedAdvantage,
    columns: Columns,
}

/// As bits.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SavedAdvantage {
    Sequence(u32),
    Tokens(Vec<u32>),
}

impl SavedBatch {
    /// Saves these samples.
    pub fn new(samples: &[Sample], used: u64) -> SavedBatch {
        let mut prompts: Vec<&Arc<Prompt>> = Vec::new();
        let mut saved = Vec::with_capacity(samples.len());
        for sample in samples {
            let known = prompts.iter().rposition(|known| Arc::ptr_eq(known, &sample.prompt));
            let prompt = known.unwrap_or_else(|| {
                prompts.push(&sample.prompt);
                prompts.len() - 1
            });
            saved.push(SavedSample::new(sample, prompt));
        }
        SavedBatch { used, prompts: prompts.into_iter().map(|p| p.ids.clone()).collect(), samples: saved }
    }

    /// The samples again, prompts shared as they were; `None` if one names a prompt that is not there.
    pub fn samples(self) -> Option<Vec<Sample>> {
        let prompts: Vec<Arc<Prompt>> = self.prompts.into_iter().map(Prompt::new).collect();
        let restore = |saved: SavedSample| prompts.get(saved.prompt).map(|prompt| saved.restore(prompt.clone()));
        self.samples.into_iter().map(restore).collect()
    }
}

impl SavedSample {
    fn new(sample: &Sample, prompt: usize) -> SavedSample {
        SavedSample {
            prompt,
            group: sample.group,
            completion: sample.completion.clone(),
            mask: sample.mask.clone(),
            versions: sample.versions.clone(),
            truncated: sample.truncated,
            advantage: match &sample.advantage {
                Advantage::Sequence(a) => SavedAdvantage::Sequence(a.to_bits()),
                Advantage::Tokens(a) => SavedAdvantage::Tokens(a.iter().map(|a| a.to_bits()).collect()),
            },
            columns: sample.columns.clone(),
        }
    }

    fn restore(self, prompt: Arc<Prompt>) -> Sample {
        Sample {
            prompt,
            group: self.group,
            completion: self.completion,
            mask: self.mask,
            versions: self.versions,
            truncated: self.truncated,
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
    use model::columns::{REF_LOGPS, SAMPLER_LOGPS, VALUES};

    #[test]
    fn samples_come_back_bit_for_bit() {
        let prompt = Prompt::new([1, 2, 3]);
        let sample = Sample {
            group: 1 << 40,
            prompt: prompt.clone(),
            completion: vec![4, 5],
            mask: vec![true, false],
            versions: vec![7, 8],
            truncated: true,
            advantage: Advantage::Tokens(vec![0.5, f32::MIN_POSITIVE / 2.0]),
            columns: Columns::of([(SAMPLER_LOGPS, vec![-0.1, f32::NEG_INFINITY]), (VALUES, vec![0.1, -0.0])]),
        };
        // The same ids, but another prompt.
        let mut other = Sample { advantage: Advantage::Sequence(-1.25), ..sample.clone() };
        other.prompt = Prompt::new([1, 2, 3]);
        other.columns.set(REF_LOGPS, vec![f32::NAN, -0.0]);
        let batch = SavedBatch::new(&[sample.clone(), sample.clone(), other.clone()], 3);
        let back: SavedBatch = serde_json::from_str(&serde_json::to_string(&batch).unwrap()).unwrap();
        assert_eq!(back.used, 3);
        let samples = back.samples().unwrap();
        assert_eq!(samples[..2], [sample.clone(), sample]);
        assert!(Arc::ptr_eq(&samples[0].prompt, &samples[1].prompt));
        assert!(!Arc::ptr_eq(&samples[0].prompt, &samples[2].prompt));
        assert_eq!(samples[2].advantage, other.advantage);
        assert_eq!(samples[2].columns.ref_logps().unwrap()[0].to_bits(), f32::NAN.to_bits());

        let broken = SavedBatch { prompts: vec![], ..batch };
        assert!(broken.samples().is_none());
    }
}
