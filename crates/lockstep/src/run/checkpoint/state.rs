//! The state of a run between two optimizer steps: all that the next step depends on, beside weights and moments.
//!
//! Floating-point values are kept as their bits, so that reading gives what was written, infinities and NaN included.

use crate::data::SamplerState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use train::{Advantage, Sample, StateValues};

/// Version of the file; a higher one is refused.
const FORMAT: u32 = 1;

/// All that a run carries from step to step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunState {
    /// Version of this file.
    pub format: u32,
    /// Optimizer steps done.
    pub step: u64,
    /// Version of the weights.
    pub weights_version: u64,
    /// Instruction set that the bits so far come from.
    pub isa: String,
    /// Hash of the training data.
    pub data_hash: String,
    /// Where the sampler of rows stands.
    pub sampler: SamplerState,
    /// The next rollout number: half of every sample's random stream (0 in supervised fine-tuning).
    pub rollout_number: u64,
    /// The generation batch in use, and how far (none in supervised fine-tuning).
    pub buffer: Option<Buffer>,
    /// What PPO has beside the policy (none in other runs).
    #[serde(default)]
    pub critic: Option<CriticState>,
    /// The trainer's counters.
    pub trainer: train::TrainerState,
    /// Tokens seen so far (TRL's `num_tokens`).
    pub num_tokens: u64,
    /// Metrics summed since the last logged step.
    pub unlogged: MetricSums,
    /// Best evaluation so far.
    pub best: Option<Best>,
    /// Evaluations in a row without improvement.
    pub evaluations_without_improvement: u32,
    /// Bytes of every append-only file at this step; resume truncates to them.
    pub log_bytes: BTreeMap<String, u64>,
}

/// The state of PPO beside the policy's; the value model's weights and moments are files of their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CriticState {
    /// Counters of the value model's trainer.
    pub trainer: train::TrainerState,
    /// The weight of the divergence from the reference, as bits.
    #[serde(with = "bits64")]
    pub kl_coef: f64,
}

/// The best evaluation so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The step it was measured after.
    pub step: u64,
    /// The metric, as bits.
    #[serde(with = "bits64")]
    pub metric: f64,
}

/// Sums of metrics over optimizer steps, for the mean that is logged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MetricSums(BTreeMap<String, (Bits64, u64)>);

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Bits64(#[serde(with = "bits64")] f64);

impl MetricSums {
    /// Adds a value.
    pub fn add(&mut self, name: &str, value: f64) {
        let sum = self.0.entry(name.to_owned()).or_insert((Bits64(0.0), 0));
        sum.0.0 += value;
        sum.1 += 1;
    }
    /// Sets a value that is no mean (an epoch, a total).
    pub fn set(&mut self, name: &str, value: f64) {
        self.0.insert(name.to_owned(), (Bits64(value), 1));
    }
    /// The means, by name; the sums start again from nothing.
    pub fn take_means(&mut self) -> BTreeMap<String, f64> {
        std::mem::take(&mut self.0).into_iter().map(|(name, (sum, count))| (name, sum.0 / count as f64)).collect()
    }
}

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

/// An f64 as its 64 bits.
mod bits64 {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(x: &f64, s: S) -> Result<S::Ok, S::Error> {
        x.to_bits().serialize(s)
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
        u64::deserialize(d).map(f64::from_bits)
    }
}

impl RunState {
    /// The number that `format` has in files of this version.
    pub const FORMAT: u32 = FORMAT;

    /// Writes it into the checkpoint directory `dir`.
    pub fn write(&self, dir: &Path) -> anyhow::Result<()> {
        Ok(std::fs::write(dir.join("run_state.json"), serde_json::to_vec(self)?)?)
    }

    /// Reads it from the checkpoint directory `dir`.
    pub fn read(dir: &Path) -> anyhow::Result<RunState> {
        let path = dir.join("run_state.json");
        let bytes = std::fs::read(&path).map_err(|e| {
            crate::error::BadInput::new(format!("{}: {e}; is {} a checkpoint?", path.display(), dir.display()))
        })?;
        let state: RunState = serde_json::from_slice(&bytes)
            .map_err(|e| crate::error::BadInput::new(format!("{} is damaged: {e}", path.display())))?;
        if state.format > FORMAT {
            let found = state.format;
            return Err(crate::error::BadInput::new(format!(
                "{} has format {found}; this program reads up to {FORMAT}: use a newer one",
                path.display()
            )));
        }
        Ok(state)
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

    #[test]
    fn metric_sums_survive_and_average() {
        let mut sums = MetricSums::default();
        sums.add("loss", 0.1);
        sums.add("loss", 0.2);
        let text = serde_json::to_string(&sums).unwrap();
        let mut back: MetricSums = serde_json::from_str(&text).unwrap();
        assert_eq!(back.take_means()["loss"].to_bits(), ((0.1f64 + 0.2) / 2.0).to_bits());
        assert!(back.take_means().is_empty());
    }
}
