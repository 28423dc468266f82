//! A generation batch as a checkpoint keeps it. Floating-point values are kept as their bits, so that reading gives what was
//! written, infinities and NaN included.

use serde::{Deserialize, Serialize};
use std::sync::Arc;
use train::{Advantage, Sample, StateValues};

/// A generation batch and the place in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Buffer {
    /// Optimizer steps taken on this batch, of `num_iterations` × its optimizer batches.
    pub used: u64,
    samples: Vec<SavedSample>,
}

impl Buffer {
    /// Saves these samples.
    pub fn new(samples: &[Sample], used: u64) -> Buffer {
        Buffer { used, samples: samples.iter().map(SavedSample::from).collect() }
    }
    /// The samples again; equal prompts are shared as they were.
    pub fn samples(&self) -> Vec<Sample> {
        let mut previous: Option<Arc<[u32]>> = None;
        let restore = |saved: &SavedSample| {
            let prompt = match &previous {
                Some(p) if **p == *saved.prompt => p.clone(),
                _ => Arc::from(saved.prompt.as_slice()),
            };
            previous = Some(prompt.clone());
            saved.restore(prompt)
        };
        self.samples.iter().map(restore).collect()
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SavedSample {
    prompt: Vec<u32>,
    completion: Vec<u32>,
    mask: Vec<bool>,
    sampler_logps: Vec<u32>,
    #[serde(default)]
    old_logps: Option<Vec<u32>>,
    ref_logps: Option<Vec<u32>>,
    versions: Vec<u64>,
    advantage: Vec<u32>,
    advantage_per_token: bool,
    #[serde(default)]
    values: Option<SavedValues>,
    truncated: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SavedValues {
    old: Vec<u32>,
    returns: Vec<u32>,
}

fn to_bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn from_bits(bits: &[u32]) -> Vec<f32> {
    bits.iter().map(|&x| f32::from_bits(x)).collect()
}

impl From<&Sample> for SavedSample {
    fn from(s: &Sample) -> Self {
        let (advantage, advantage_per_token) = match &s.advantage {
            Advantage::Sequence(a) => (to_bits(&[*a]), false),
            Advantage::Tokens(a) => (to_bits(a), true),
        };
        SavedSample {
            prompt: s.prompt.to_vec(),
            completion: s.completion.clone(),
            mask: s.mask.clone(),
            sampler_logps: to_bits(&s.sampler_logps),
            old_logps: s.old_logps.as_deref().map(to_bits),
            ref_logps: s.ref_logps.as_deref().map(to_bits),
            versions: s.versions.clone(),
            advantage,
            advantage_per_token,
            values: s.values.as_ref().map(|v| SavedValues { old: to_bits(&v.old), returns: to_bits(&v.returns) }),
            truncated: s.truncated,
        }
    }
}

impl SavedSample {
    fn restore(&self, prompt: Arc<[u32]>) -> Sample {
        let advantage = from_bits(&self.advantage);
        Sample {
            prompt,
            completion: self.completion.clone(),
            mask: self.mask.clone(),
            sampler_logps: from_bits(&self.sampler_logps),
            old_logps: self.old_logps.as_deref().map(from_bits),
            ref_logps: self.ref_logps.as_deref().map(from_bits),
            versions: self.versions.clone(),
            advantage: match self.advantage_per_token {
                true => Advantage::Tokens(advantage),
                false => Advantage::Sequence(advantage[0]),
            },
            values: self
                .values
                .as_ref()
                .map(|v| StateValues { old: from_bits(&v.old), returns: from_bits(&v.returns) }),
            truncated: self.truncated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_come_back_bit_for_bit() {
        let prompt: Arc<[u32]> = Arc::from([1u32, 2, 3].as_slice());
        let sample = Sample {
            prompt: prompt.clone(),
            completion: vec![4, 5],
            mask: vec![true, false],
            sampler_logps: vec![-0.1, f32::NEG_INFINITY],
            old_logps: Some(vec![-0.2, f32::NAN]),
            ref_logps: Some(vec![f32::NAN, -0.0]),
            versions: vec![7, 8],
            advantage: Advantage::Tokens(vec![0.5, f32::MIN_POSITIVE / 2.0]),
            values: Some(StateValues { old: vec![0.1, -0.0], returns: vec![1.5, f32::MIN_POSITIVE / 4.0] }),
            truncated: true,
        };
        let other = Sample { advantage: Advantage::Sequence(-1.25), ref_logps: None, values: None, ..sample.clone() };
        let buffer = Buffer::new(&[sample.clone(), other.clone()], 3);
        let text = serde_json::to_string(&buffer).unwrap();
        let back: Buffer = serde_json::from_str(&text).unwrap();
        let samples = back.samples();
        assert_eq!(back.used, 3);
        assert!(Arc::ptr_eq(&samples[0].prompt, &samples[1].prompt));
        let bits = |x: &[f32]| to_bits(x);
        assert_eq!(bits(&samples[0].sampler_logps), bits(&sample.sampler_logps));
        assert_eq!(bits(samples[0].old_logps()), bits(sample.old_logps()));
        assert_eq!(bits(samples[0].ref_logps.as_ref().unwrap()), bits(sample.ref_logps.as_ref().unwrap()));
        assert_eq!((&samples[0].advantage, &samples[1].advantage), (&sample.advantage, &other.advantage));
        assert_eq!((&samples[0].values, &samples[1].values), (&sample.values, &None));
        assert_eq!(samples[0].versions, [7, 8]);
    }
}
