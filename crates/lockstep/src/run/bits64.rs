//! An f64 as its 64 bits, in checkpoints: JSON would lose NaN and infinities.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number that is kept as its bits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bits64(#[serde(with = "crate::run::bits64")] pub(crate) f64);

pub fn serialize<S: Serializer>(x: &f64, s: S) -> Result<S::Ok, S::Error> {
    x.to_bits().serialize(s)
}

pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    u64::deserialize(d).map(f64::from_bits)
}
