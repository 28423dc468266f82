//! Stores an f64 as its 64 bits in checkpoints, because JSON has no NaN and infinities.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An f64 that is serialized as the integer with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bits64(#[serde(with = "crate::run::bits64")] pub(crate) f64);

pub fn serialize<S: Serializer>(x: &f64, s: S) -> Result<S::Ok, S::Error> {
    x.to_bits().serialize(s)
}

pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    u64::deserialize(d).map(f64::from_bits)
}
