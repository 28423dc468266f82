//! The state of a training run between two optimizer steps: everything that the next step depends on, except weights
//! and moments.
//!
//! Floating-point numbers are stored as their bits, so that infinities and NaN are also read back exactly.

use crate::data::SamplerState;
use crate::error::BadInput;
use crate::run::alarms::AlarmState;
use crate::run::bits64::{self, Bits64};
use model::Updates;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use telemetry::Step;

/// The format version of written files.
const FORMAT: u32 = 3;

/// The oldest readable format. Format 2 has the current generation batch inside `task`; format 3 has it in a separate
/// file.
const OLDEST: u32 = 2;

/// The state's file name in a checkpoint.
pub const FILE: &str = "run_state.json";

/// The first bytes of the file. 16 hexadecimal digits follow: the checksum of the remaining text as a separate JSON
/// object.
const CHECKSUM: &str = "{\"xxh3\":\"";

/// The only field that all versions of the file have.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// Everything that a run carries from step to step, except weights and moments.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunState {
    /// Version of the file format.
    pub format: u32,
    /// Optimizer steps done so far.
    pub step: Step,
    /// Version number of the weights.
    pub weights_version: Updates,
    /// Instruction set of the run.
    pub isa: String,
    /// The formula of the matmul kernels so far. Checkpoints of older versions lack it.
    #[serde(default)]
    pub arithmetic: Option<String>,
    /// SHA-256 of the training data.
    pub data_hash: String,
    /// The position of the sampler of dataset rows.
    pub sampler: SamplerState,
    /// The counters of the policy's trainer.
    pub trainer: train::TrainerState,
    /// The training task's own state, which only the task reads and writes.
    pub task: Value,
    /// Tokens seen so far (TRL's `num_tokens`).
    pub num_tokens: u64,
    /// Sums of metrics since the last logged step.
    pub unlogged: MetricSums,
    /// The best evaluation of a run so far.
    pub best: Option<Best>,
    /// How many evaluations in a row did not improve on the best.
    pub evaluations_without_improvement: u32,
    /// True if an evaluation is due after this step and was cancelled.
    #[serde(default)]
    pub evaluation_due: bool,
    /// The alarms so far, and the state that later alarms depend on.
    #[serde(default)]
    pub alarms: AlarmState,
    /// The length in bytes of every append-only file at this step, to which a resumed run truncates the files.
    pub log_bytes: BTreeMap<String, u64>,
}

/// The best evaluation of a run so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The step after which it ran.
    pub step: Step,
    /// The value of the metric, stored as its bits.
    #[serde(with = "bits64")]
    pub metric: f64,
}

/// Sums of metrics over optimizer steps, for logged means.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MetricSums(BTreeMap<String, (Bits64, u64)>);

impl MetricSums {
    /// Adds a value to the metric `name`.
    pub fn add(&mut self, name: &str, value: f64) {
        let sum = self.0.entry(name.to_owned()).or_insert((Bits64(0.0), 0));
        sum.0.0 += value;
        sum.1 += 1;
    }
    /// Sets a metric that is not a mean, such as an epoch or a total.
    pub fn set(&mut self, name: &str, value: f64) {
        self.0.insert(name.to_owned(), (Bits64(value), 1));
    }
    /// Takes the means by name, and resets the sums.
    pub fn take_means(&mut self) -> BTreeMap<String, f64> {
        std::mem::take(&mut self.0).into_iter().map(|(name, (sum, count))| (name, sum.0 / count as f64)).collect()
    }
}

impl RunState {
    /// The format number of the files that this version writes.
    pub const FORMAT: u32 = FORMAT;

    /// Writes the state to the checkpoint directory `dir`, with a leading checksum.
    pub fn write(&self, dir: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string(self)?;
        let checksum = model::io::checksum(text.as_bytes());
        Ok(disk::write(dir.join(FILE), format!("{CHECKSUM}{checksum}\",{}", &text[1..]))?)
    }

    /// Reads the state from the checkpoint directory `dir`.
    pub fn read(dir: &Path) -> anyhow::Result<RunState> {
        let path = dir.join(FILE);
        let bytes = disk::read(&path, disk::most::STATE)
            .map_err(|e| BadInput::new(format!("{}: {e}; is {} a checkpoint?", path.display(), dir.display())))?;
        let damaged = |e: &dyn std::fmt::Display| BadInput::new(format!("{} is damaged: {e}", path.display()));
        if let Some((checksum, rest)) =
            bytes.strip_prefix(CHECKSUM.as_bytes()).and_then(|rest| rest.split_at_checked(16))
            && model::io::checksum(&[b"{", rest.get(2..).unwrap_or_default()].concat()).as_bytes() != checksum
        {
            return Err(damaged(&"its checksum (XXH3) does not match"));
        }
        let Format { format } = serde_json::from_slice(&bytes).map_err(|e| damaged(&e))?;
        if !(OLDEST..=FORMAT).contains(&format) {
            let fix = if format < FORMAT {
                "finish the run with the version that began it, or start a new one from the model in the checkpoint"
            } else {
                "use a newer one"
            };
            return Err(BadInput::new(format!(
                "{} has format {format}; this program reads formats {OLDEST} to {FORMAT}: {fix}",
                path.display()
            )));
        }
        serde_json::from_slice(&bytes).map_err(|e| damaged(&e))
    }
}

/// The lineage of the weights in a task's state. PPO nests the state of its pipeline.
pub fn lineage_of(task: &Value) -> Option<&Value> {
    task.get("lineage").or_else(|| task.pointer("/pipeline/lineage"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_sums_survive_and_average() {
        let mut sums = MetricSums::default();
        sums.add("loss", 0.1);
        sums.add("loss", 0.2);
        let text = serde_json::to_string(&sums).unwrap();
        let mut back: MetricSums = serde_json::from_str(&text).unwrap();
        assert_eq!(back.take_means()["loss"].to_bits(), ((0.1f64 + 0.2) / 2.0).to_bits());
        assert!(back.take_means().is_empty());
        // A value that is set is not summed.
        sums.set("epoch", 2.0);
        sums.set("epoch", 3.0);
        sums.add("loss", 0.6);
        let means = sums.take_means();
        assert_eq!((means["epoch"], means["loss"]), (3.0, (0.1 + 0.2 + 0.6) / 3.0));
    }
}

#[cfg(test)]
mod foreign {
    use super::*;
    use proptest::prelude::*;
    use testing::foreign;

    fn valid() -> Value {
        serde_json::json!({"format": FORMAT, "step": 2, "weights_version": 2, "isa": "avx2",
            "arithmetic": "f32", "data_hash": "00",
            "sampler": {"epoch": 0, "cursor": 4},
            "trainer": {"steps": 2, "skipped_in_a_row": 0, "skipped_total": 0, "entropy": null},
            "task": {"rollout_number": 3, "buffer": null}, "num_tokens": 9,
            "unlogged": {"loss": [4602678819172646912u64, 2]},
            "best": {"step": 2, "metric": 1}, "evaluations_without_improvement": 0,
            "alarms": {"streaks": {"kl_blow_up ": {"since": 1, "held": 1, "quiet": 0, "raised": false}}},
            "log_bytes": {"metrics.jsonl": 10}})
    }

    fn read(bytes: &[u8]) -> anyhow::Result<RunState> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("run_state.json"), bytes)?;
        RunState::read(dir.path())
    }

    #[test]
    fn an_unsupported_format_is_refused_with_a_fix() {
        for (format, fix) in [(OLDEST - 1, "the version that began it"), (FORMAT + 1, "use a newer one")] {
            let mut other = valid();
            other["format"] = format.into();
            let error = read(other.to_string().as_bytes()).unwrap_err().to_string();
            assert!(error.contains(&format!("has format {format}")) && error.contains(fix), "{error}");
        }
        for format in OLDEST..=FORMAT {
            let mut other = valid();
            other["format"] = format.into();
            assert_eq!(read(other.to_string().as_bytes()).unwrap().format, format);
        }
    }

    /// A change of any byte is detected. A file of an older version, without a checksum, is read.
    #[test]
    fn a_state_is_read_back_and_a_changed_byte_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let state = read(valid().to_string().as_bytes()).unwrap();
        state.write(dir.path()).unwrap();
        let path = dir.path().join(FILE);
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.starts_with(b"{\"xxh3\":\""));
        let again = RunState::read(dir.path()).unwrap();
        assert_eq!(serde_json::to_value(&again).unwrap(), serde_json::to_value(&state).unwrap());
        let damaged = format!("{} is damaged: ", path.display());
        let checksum = "its checksum (XXH3) does not match";
        for at in [CHECKSUM.len(), CHECKSUM.len() + 15, CHECKSUM.len() + 20, bytes.len() - 2, bytes.len() - 1] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            std::fs::write(&path, other).unwrap();
            assert_eq!(RunState::read(dir.path()).unwrap_err().to_string(), format!("{damaged}{checksum}"), "{at}");
        }
        std::fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
        assert!(RunState::read(dir.path()).unwrap_err().to_string().ends_with(checksum));
        for short in [&b"{"[..], b"", &bytes[..CHECKSUM.len() + 10]] {
            std::fs::write(&path, short).unwrap();
            assert!(RunState::read(dir.path()).unwrap_err().to_string().starts_with(&damaged));
        }
        std::fs::remove_file(&path).unwrap();
        let missing = RunState::read(dir.path()).unwrap_err().to_string();
        assert!(missing.starts_with(&format!("{}: ", path.display())), "{missing}");
        assert!(missing.ends_with(&format!("; is {} a checkpoint?", dir.path().display())), "{missing}");
    }

    proptest! {
        #![proptest_config(foreign::few())]

        #[test]
        fn damaged_states_do_not_panic(value in foreign::json(valid())) {
            prop_assert!(read(valid().to_string().as_bytes()).is_ok());
            if let Ok(mut state) = read(value.to_string().as_bytes()) {
                state.unlogged.take_means();
            }
        }
        #[test]
        fn damaged_texts_of_states_do_not_panic(bytes in foreign::bytes(valid().to_string().into_bytes())) {
            let _ = read(&bytes);
        }
    }
}
