//! The value of the key `rollout_activations`: the memory in which activations of the rollout are kept for the update.

use super::values::{KeyValue, expected};
use serde_json::{Value as Json, json};
use std::fmt;
use std::str::FromStr;
use toml::Value;

/// How many activations of a generation are kept for the first update on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RolloutActivations {
    /// As many as fit into half of the memory that the run leaves free.
    #[default]
    Auto,
    /// None: the update computes its forward pass.
    Off,
    /// As many as fit into this many bytes.
    Bytes(u64),
}

/// The units of a size, with their bytes.
const UNITS: [(&str, u64); 7] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

impl RolloutActivations {
    /// The largest size. A larger one would not be exact as a number in JSON.
    const MAX_BYTES: u64 = 1 << 53;
}

impl FromStr for RolloutActivations {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected auto, off or a size such as 2GB or 512MiB, got \"{text}\"");
        match text {
            "auto" => return Ok(RolloutActivations::Auto),
            "off" => return Ok(RolloutActivations::Off),
            _ => {}
        }
        let (number, unit) =
            UNITS.iter().find_map(|&(name, bytes)| Some((text.strip_suffix(name)?, bytes))).ok_or_else(expected)?;
        let number: f64 = number.trim_end().parse().map_err(|_| expected())?;
        let bytes = number * unit as f64;
        if !(0.0..=RolloutActivations::MAX_BYTES as f64).contains(&bytes) {
            return Err(expected());
        }
        Ok(RolloutActivations::Bytes(bytes.round() as u64))
    }
}

impl fmt::Display for RolloutActivations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RolloutActivations::Auto => f.write_str("auto"),
            RolloutActivations::Off => f.write_str("off"),
            RolloutActivations::Bytes(bytes) => {
                // The largest unit that gives a whole number; "B" always does.
                let exact = UNITS.iter().filter(|(_, unit)| bytes % unit == 0).max_by_key(|(_, unit)| *unit);
                let (name, unit) = exact.unwrap_or(&("B", 1));
                write!(f, "{}{name}", bytes / unit)
            }
        }
    }
}

impl KeyValue for RolloutActivations {
    fn type_name() -> String {
        "auto | off | size".to_owned()
    }
    fn schema() -> Json {
        json!({"type": "string"})
    }
    fn read(value: &Value) -> Result<Self, String> {
        value.as_str().ok_or_else(|| expected("auto, off or a size such as \"2GB\"", value))?.parse()
    }
    fn write(&self) -> Option<Value> {
        Some(Value::String(self.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes, written) in [
            ("2GB", 2_000_000_000, "2GB"),
            ("1.5 GiB", 3 << 29, "1536MiB"),
            ("512MiB", 512 << 20, "512MiB"),
            ("0B", 0, "0GiB"),
            ("7 kB", 7000, "7kB"),
            ("123B", 123, "123B"),
        ] {
            let read: RolloutActivations = text.parse().unwrap();
            assert_eq!((read, read.to_string()), (RolloutActivations::Bytes(bytes), written.to_owned()), "{text}");
            assert_eq!(written.parse(), Ok(read), "{text}");
        }
        for text in ["auto", "off"] {
            assert_eq!(text.parse::<RolloutActivations>().unwrap().to_string(), text);
        }
        for text in ["", "on", "2", "GB", "-1GB", "nanGB", "1e30GB", "2 TB", "2gb"] {
            let why = text.parse::<RolloutActivations>().unwrap_err();
            assert!(why.starts_with("expected auto, off or a size") && why.ends_with(&format!("\"{text}\"")), "{why}");
        }
    }
}
