//! `metrics.jsonl`: one JSON object for each logged step, appended and flushed.
//!
//! Keys keep the order in which they were set. Numbers are written with the fewest digits that read back to the same
//! bits; NaN and infinities are written as `null` (JSON has no other word for them), so every line is plain JSON.
//! Does not know what the metrics mean.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::appended::Appended;
use crate::{Error, Result};

/// The metrics of one step: keys in the order in which they were first set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record(pub Map<String, Value>);

impl Record {
    /// An empty record.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key (a number, text, bool, …). A float that is NaN or infinite becomes `null`.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> &mut Self {
        self.0.insert(key.into(), value.into());
        self
    }

    /// The value of a key as a number, if it is one.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.0.get(key).and_then(Value::as_f64)
    }
}

/// An open `metrics.jsonl`.
#[derive(Debug)]
pub struct MetricsLog {
    file: Appended,
}

impl MetricsLog {
    /// Opens `path` to append, creating it (not its directory) if needed. A last line without its line feed, which a
    /// kill in the middle of a write leaves, is cut off.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let whole = |bytes: &[u8]| bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
        Ok(MetricsLog { file: Appended::open(path.into(), whole)? })
    }

    /// Appends one line and hands it to the operating system.
    pub fn append(&mut self, record: &Record) -> Result<()> {
        let mut line = serde_json::to_vec(&record.0).map_err(|e| Error::format(self.file.path(), e.to_string()))?;
        line.push(b'\n');
        self.file.append(&line)
    }

    /// Length in bytes: what a checkpoint records.
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// True when nothing has been logged.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cuts the file back to `len` bytes (as a checkpoint recorded it), so that each step is logged once after a resume.
    pub fn truncate_to(&mut self, len: u64) -> Result<()> {
        self.file.truncate_to(len)
    }

    /// Waits until everything appended is on the disk.
    pub fn sync(&mut self) -> Result<()> {
        self.file.sync()
    }
}

/// Reads all whole lines of a `metrics.jsonl`.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
    let whole = text.rfind('\n').map_or("", |last| &text[..last]);
    whole
        .lines()
        .enumerate()
        .map(|(number, line)| {
            serde_json::from_str::<Map<String, Value>>(line)
                .map(Record)
                .map_err(|e| Error::format(path, format!("line {}: {e}", number + 1)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_order_and_bits_and_nan_is_null() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut log = MetricsLog::open(&path).unwrap();
        let mut record = Record::new();
        let odd: f64 = 0.1 + 0.2;
        record.set("step", 3).set("reward", odd).set("a", f64::NAN).set("kl", f64::INFINITY).set("tiny", 5e-324);
        log.append(&record).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "{\"step\":3,\"reward\":0.30000000000000004,\"a\":null,\"kl\":null,\"tiny\":5e-324}\n");
        let back = read(&path).unwrap();
        assert_eq!(back[0].number("reward").unwrap().to_bits(), odd.to_bits());
        assert_eq!(back[0].number("a"), None);
        assert_eq!(log.len(), text.len() as u64);
    }

    #[test]
    fn a_torn_line_is_dropped_and_resume_cuts_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut log = MetricsLog::open(&path).unwrap();
        let mut one = Record::new();
        one.set("step", 1);
        log.append(&one).unwrap();
        let at_checkpoint = log.len();
        one.set("step", 2);
        log.append(&one).unwrap();
        drop(log);
        let mut torn = std::fs::read(&path).unwrap();
        torn.extend_from_slice(b"{\"step\":3,\"rew");
        std::fs::write(&path, &torn).unwrap();
        assert_eq!(read(&path).unwrap().len(), 2);

        let mut log = MetricsLog::open(&path).unwrap();
        assert_eq!(read(&path).unwrap().len(), 2);
        assert!(log.truncate_to(10_000).is_err());
        log.truncate_to(at_checkpoint).unwrap();
        one.set("step", 22);
        log.append(&one).unwrap();
        let steps: Vec<_> = read(&path).unwrap().iter().map(|r| r.number("step").unwrap()).collect();
        assert_eq!(steps, [1.0, 22.0]);
        assert!(!log.is_empty());
        log.sync().unwrap();
    }
}
