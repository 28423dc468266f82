//! The lineage of weights: a 16-byte hash of everything that determined them. Weights with the same version number and
//! the same lineage are equal.
//!
//! Before the first step, the lineage is the first 16 bytes of a SHA-256 over the model's files, the data, the settings
//! and the arithmetic version (which changes when this program's kernels compute different bits). Training on a
//! generation batch advances the lineage, because the next weights are a function of the weights before, the batch, and
//! the settings.

use model::Updates;
use model::columns::{ENTROPIES, TOP_IDS, TOP_LOGPS, Values};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use std::fmt;
use train::{Advantage, Sample};
use twox_hash::XxHash3_128;
use zerocopy::IntoBytes;

/// Columns of samples that training does not read; the batch's hash leaves them out.
const RECORDED_ALONE: [&str; 3] = [ENTROPIES, TOP_IDS, TOP_LOGPS];

/// Identifies the origin of weights, together with their version number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lineage(pub [u8; 16]);

impl Lineage {
    /// The first 16 bytes of the SHA-256 of these parts, each preceded by its length.
    pub fn of(parts: &[&[u8]]) -> Lineage {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Lineage(hash.finalize()[..16].try_into().expect("32 bytes"))
    }

    /// The lineage of the weights after training on a generation batch with this hash.
    pub fn advance(&self, batch: &[u8; 16]) -> Lineage {
        Lineage::of(&[&self.0, batch])
    }
}

impl fmt::Display for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::str::FromStr for Lineage {
    type Err = String;

    fn from_str(text: &str) -> Result<Lineage, String> {
        let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
        match digits {
            Some(digits) if digits.len() == 32 => {
                Ok(Lineage(std::array::from_fn(|i| digits[2 * i] << 4 | digits[2 * i + 1])))
            }
            _ => Err(format!("a lineage is 32 hexadecimal digits, not {text:?}")),
        }
    }
}

impl Serialize for Lineage {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lineage {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Lineage, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// XXH3 (128 bits) of everything that training reads from a generation batch, and of the lineage of the `settings`.
/// Columns are hashed in memory, without serialising.
pub fn batch_hash(settings: &Lineage, samples: &[Sample]) -> [u8; 16] {
    let mut hash = Columns(XxHash3_128::new());
    hash.bytes(&settings.0);
    for sample in samples {
        hash.number(sample.group.0);
        hash.bytes(sample.prompt.ids.as_bytes());
        hash.bytes(sample.completion.as_bytes());
        hash.bytes(sample.loss_mask.as_bytes());
        hash.versions(&sample.versions);
        hash.number(u64::from(sample.truncated()));
        match &sample.advantage {
            Advantage::Sequence(one) => hash.number(u64::from(one.to_bits())),
            Advantage::Tokens(each) => hash.bytes(each.as_bytes()),
        }
        for (name, column) in sample.columns.iter().filter(|(name, _)| !RECORDED_ALONE.contains(name)) {
            hash.bytes(name.as_bytes());
            hash.number(column.width as u64);
            match &column.values {
                Values::F32(values) => hash.bytes(values.as_bytes()),
                Values::U32(values) => hash.bytes(values.as_bytes()),
            }
        }
    }
    hash.0.finish_128().to_le_bytes()
}

/// A hash of values, each preceded by its length, so that different lists of values never have the same bytes.
struct Columns(XxHash3_128);

impl Columns {
    fn number(&mut self, number: u64) {
        self.0.write(&number.to_le_bytes());
    }

    /// Adds the same bytes as a list of 64-bit numbers.
    fn versions(&mut self, versions: &[Updates]) {
        self.number(8 * versions.len() as u64);
        for version in versions {
            self.number(version.0);
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.write(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::columns::{REF_LOGPS, SAMPLER_LOGPS};

    fn sample() -> Sample {
        Sample {
            group: model::GroupId(3),
            prompt: model::Prompt::new([1, 2, 3]),
            completion: vec![4, 5],
            loss_mask: vec![true, false],
            versions: [7, 8].map(Updates).to_vec(),
            finish_reason: model::FinishReason::Length,
            advantage: Advantage::Sequence(0.5),
            columns: model::Columns::of([(SAMPLER_LOGPS, vec![-0.1, -0.2])]),
        }
    }

    #[test]
    fn every_part_of_a_batch_changes_its_hash() {
        let settings = Lineage::of(&[b"settings"]);
        let of = |change: fn(&mut Sample)| {
            let mut sample = sample();
            change(&mut sample);
            batch_hash(&settings, &[sample])
        };
        let same = of(|_| {});
        assert_eq!(same, of(|_| {}));
        let changes: [fn(&mut Sample); 10] = [
            |s| s.group = model::GroupId(4),
            |s| s.prompt = model::Prompt::new([1, 2]),
            |s| s.completion[1] = 6,
            |s| s.loss_mask[1] = true,
            |s| s.versions[0] = Updates(8),
            |s| s.finish_reason = model::FinishReason::Stop,
            |s| s.advantage = Advantage::Sequence(-0.5),
            |s| s.advantage = Advantage::Tokens(vec![0.5, 0.5]),
            |s| s.columns.set(SAMPLER_LOGPS, vec![-0.1, -0.3]),
            |s| s.columns.set(REF_LOGPS, vec![-0.1, -0.2]),
        ];
        let found: std::collections::BTreeSet<_> = changes.into_iter().map(of).chain([same]).collect();
        assert_eq!(found.len(), 11);
        assert_ne!(batch_hash(&Lineage::of(&[b"others"]), &[sample()]), same);
        assert_eq!(
            of(|s| s.columns.set(ENTROPIES, vec![1.0, 2.0])),
            same,
            "columns that training does not read do not count"
        );
    }

    /// Checkpoints contain lineages, so these bytes must never change.
    #[test]
    fn a_lineage_is_the_first_16_bytes_of_a_sha_256() {
        // printf '\003\0\0\0\0\0\0\0abc' | sha256sum
        let start = Lineage::of(&[b"abc"]);
        assert_eq!(start.to_string(), "ce91dc5eec0139adf091900d225971d6");
        let next = start.advance(&batch_hash(&start, &[sample()]));
        assert_eq!(next.to_string(), "e5603b2c3c5720294020df0429be9ef9");
        assert_eq!("ce91dc5eec0139adf091900d225971d6".parse(), Ok(start));
        assert!("ce91dc5eec0139adf091900d225971d60".parse::<Lineage>().is_err() && "é".parse::<Lineage>().is_err());
        assert_ne!(Lineage::of(&[b"ab", b"c"]), Lineage::of(&[b"a", b"bc"]));
    }
}
