//! Writes TensorBoard event files: a scalar for each metric, histograms, the first completions of a step as text, and
//! the run's hyperparameters.
//!
//! A file is a sequence of TFRecords: length (u64), masked crc32c of the length, data, masked crc32c of the data, all
//! little-endian. The data is a protobuf `Event` with these fields: 1 wall_time (double), 2 step (int64), 3
//! file_version (string), 5 summary. A `Summary` has the repeated field 1 `Value` (`summary.rs`). Formats:
//! tensorflow/core/lib/io/record_writer.h and tensorflow/core/util/event.proto. Scalars are stored as f32;
//! metrics.jsonl has the f64 values. This file does not interpret the numbers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Sink;
use super::appended::Appended;
use crate::system::host;
use crate::system::since_1970;
use crate::{Error, Event, EventKind, Result, Step};

mod summary;

pub use summary::HParam;
use summary::{bytes, double, integer};

/// The sink that writes a TensorBoard event file.
#[derive(Debug)]
pub struct TensorBoardSink {
    file: Appended,
    writes: bool,
    hparams: Vec<(String, HParam)>,
}

impl TensorBoardSink {
    /// Opens the event file in `directory` for appending, the last by name if there are several. A missing file or
    /// directory is created; a new file begins with the run's hyperparameters. An incomplete last record is removed.
    pub fn open(directory: &Path, hparams: Vec<(String, HParam)>) -> Result<Self> {
        disk::create_dir_all(directory).map_err(Error::io("create", directory))?;
        let path = match existing(directory)? {
            Some(path) => path,
            None => {
                let (host, pid) = (host(), std::process::id());
                directory.join(format!("events.out.tfevents.{:010}.{host}.{pid}.0", since_1970().as_secs_f64() as u64))
            }
        };
        let file = Appended::open(path, whole_records)?;
        let mut sink = TensorBoardSink { file, writes: true, hparams };
        sink.begin()?;
        Ok(sink)
    }

    /// With `false`, the sink appends nothing. A resume still truncates the file, and checkpoints still store its
    /// length.
    pub fn writing(self, writes: bool) -> Self {
        TensorBoardSink { writes, ..self }
    }

    /// Writes the first records of an empty file: the version of the format, and the hyperparameters.
    fn begin(&mut self) -> Result<()> {
        if self.file.len() > 0 {
            return Ok(());
        }
        let mut event = Vec::new();
        double(&mut event, 1, since_1970().as_secs_f64());
        bytes(&mut event, 3, b"brain.Event:2");
        self.file.append(&record(&event))?;
        if self.hparams.is_empty() {
            Ok(())
        } else {
            self.append(since_1970().as_secs_f64(), Step::START, &summary::hparams(&self.hparams))
        }
    }

    fn append(&mut self, time_s: f64, step: Step, entry: &[u8]) -> Result<()> {
        let mut summary = Vec::new();
        bytes(&mut summary, 1, entry);
        let mut event = Vec::new();
        double(&mut event, 1, time_s);
        integer(&mut event, 2, step.0);
        bytes(&mut event, 5, &summary);
        self.file.append(&record(&event))
    }
}

impl Sink for TensorBoardSink {
    fn receive(&mut self, event: &Event) -> Result<()> {
        if !self.writes {
            return Ok(());
        }
        let time_s = event.time_s;
        match &event.kind {
            EventKind::Metrics { step, values } => values
                .iter()
                .try_for_each(|(name, value)| self.append(time_s, *step, &summary::scalar(&tag(name), *value))),
            EventKind::Distributions { step, values } => values
                .iter()
                .filter_map(|(name, values)| summary::histogram(&format!("distribution/{name}"), values))
                .try_for_each(|entry| self.append(time_s, *step, &entry)),
            EventKind::Completions { rows, .. } => {
                self.append(time_s, rows.step, &summary::text("completions", &summary::completions(rows)))
            }
            _ => Ok(()),
        }
    }

    fn check(&mut self) -> Result<Option<String>> {
        self.file.check()
    }

    fn checkpoint(&mut self, lengths: &mut BTreeMap<String, u64>) -> Result<()> {
        self.file.checkpoint("tensorboard", lengths)
    }

    fn resume(&mut self, _step: Step, lengths: &BTreeMap<String, u64>) -> Result<Option<String>> {
        let note = self.file.resume("tensorboard", lengths, whole_records)?;
        self.begin()?;
        Ok(note)
    }
}

/// The tag of a metric, as in transformers: `eval/…` for the metrics of evaluations, `train/…` for all others.
fn tag(name: &str) -> String {
    name.strip_prefix("eval_").map_or_else(|| format!("train/{name}"), |name| format!("eval/{name}"))
}

/// The path of the last event file in a directory, by name. (Names begin with the time of creation.)
fn existing(directory: &Path) -> Result<Option<PathBuf>> {
    let mut last: Option<PathBuf> = None;
    for entry in disk::read_dir(directory).map_err(Error::io("list", directory))? {
        let path = entry.path();
        let is_events = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("events.out.tfevents."));
        if is_events && last.as_ref().is_none_or(|last| *last < path) {
            last = Some(path);
        }
    }
    Ok(last)
}

// TFRecord.

/// `data` as a TFRecord, with its length and checksums.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut out = Vec::with_capacity(data.len() + 16);
    out.extend_from_slice(&length);
    out.extend_from_slice(&masked_crc(&length).to_le_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(&masked_crc(data).to_le_bytes());
    out
}

/// The length in bytes of the valid records at the beginning of a file.
fn whole_records(file: &[u8]) -> usize {
    records(file).last().map_or(0, |(end, _)| end)
}

/// The valid records at the beginning of a file: the offset of each record's end, and the record's data. A record is
/// valid if it is complete and its checksums are right.
fn records(file: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let take = |from: usize, n: usize| file.get(from..from.checked_add(n)?);
        let length = take(at, 8)?;
        let n = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
        let data = take(at + 12, n)?;
        let crc = |from: usize| Some(u32::from_le_bytes(take(from, 4)?.try_into().ok()?));
        if crc(at + 8)? != masked_crc(length) || crc(at + 12 + n)? != masked_crc(data) {
            return None;
        }
        at += 16 + n;
        Some((at, data))
    })
}

/// The masked checksum of TFRecord. The mask avoids computing a checksum of data that contains its own checksum.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The checksum CRC-32C (Castagnoli), with the reflected polynomial 0x82F63B78.
fn crc32c(data: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0u32; 256];
        let mut i = 0;
        while i < 256 {
            let mut crc = i as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
                bit += 1;
            }
            table[i] = crc;
            i += 1;
        }
        table
    };
    !data.iter().fold(!0, |crc, &byte| crc >> 8 ^ TABLE[((crc ^ u32::from(byte)) & 0xff) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_matches_the_check_values_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        // RFC 3720, B.4: 32 bytes of zeros.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    /// An independent protobuf parser, for tests: (field number, wire type, value or bytes) of each field.
    fn fields(mut data: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
        fn varint(data: &mut &[u8]) -> u64 {
            let mut value = 0;
            for shift in 0.. {
                let byte = data[0];
                *data = &data[1..];
                value |= u64::from(byte & 0x7f) << (7 * shift);
                if byte < 0x80 {
                    break;
                }
            }
            value
        }
        let mut out = Vec::new();
        while !data.is_empty() {
            let key = varint(&mut data);
            let n = match key & 7 {
                0 => {
                    out.push((key >> 3, 0, varint(&mut data).to_le_bytes().to_vec()));
                    continue;
                }
                1 => 8,
                2 => varint(&mut data) as usize,
                5 => 4,
                other => panic!("wire type {other}"),
            };
            out.push((key >> 3, key & 7, data[..n].to_vec()));
            data = &data[n..];
        }
        out
    }

    fn field(data: &[u8], number: u64) -> Vec<u8> {
        fields(data).into_iter().find(|(field, ..)| *field == number).unwrap_or_else(|| panic!("no field {number}")).2
    }

    /// Parses an event file: (step, tag, bytes of the summary value) of each event after the first.
    fn read(path: &Path) -> Vec<(u64, String, Vec<u8>)> {
        let file = std::fs::read(path).unwrap();
        let events: Vec<_> = records(&file).map(|(_, data)| data.to_vec()).collect();
        assert_eq!(field(&events[0], 3), b"brain.Event:2");
        events[1..]
            .iter()
            .map(|event| {
                assert!(f64::from_le_bytes(field(event, 1).try_into().unwrap()) > 1.6e9);
                let step = u64::from_le_bytes(field(event, 2).try_into().unwrap());
                let value = field(&field(event, 5), 1);
                (step, String::from_utf8(field(&value, 1)).unwrap(), value)
            })
            .collect()
    }

    fn logged(sink: &mut TensorBoardSink, step: u64, values: &[(&str, f64)]) {
        let values = values.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        sink.receive(&EventKind::Metrics { step: Step(step), values }.into()).unwrap();
    }

    #[test]
    fn scalars_are_written_with_step_and_tag() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = TensorBoardSink::open(&dir.path().join("tensorboard"), Vec::new()).unwrap();
        logged(&mut sink, 300, &[("reward", 0.25), ("é", f64::INFINITY)]);
        logged(
            &mut sink,
            301,
            &[
                ("kl", f64::NAN),
                ("eval_loss", 1.0),
                ("rewards/a/mean", 1.0),
                ("eval_rewards/a", 1.0),
                ("evaluated", 1.0),
            ],
        );
        let events = read(sink.file.path());
        assert_eq!((events[0].0, events[0].1.as_str()), (300, "train/reward"));
        assert_eq!(field(&events[0].2, 2), 0.25f32.to_le_bytes());
        assert_eq!((events[1].1.as_str(), field(&events[1].2, 2)), ("train/é", f32::INFINITY.to_le_bytes().to_vec()));
        assert_eq!(events[2].0, 301);
        assert!(f32::from_le_bytes(field(&events[2].2, 2).try_into().unwrap()).is_nan());
        let tags: Vec<&str> = events[2..].iter().map(|(_, tag, _)| tag.as_str()).collect();
        assert_eq!(tags, ["train/kl", "eval/loss", "train/rewards/a/mean", "eval/rewards/a", "train/evaluated"]);
        assert_eq!(sink.file.len(), std::fs::metadata(sink.file.path()).unwrap().len());
    }

    #[test]
    fn hyperparameters_texts_and_histograms_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let all = [("learning_rate", HParam::Number(0.5)), ("loss_type", HParam::Text("grpo".into()))];
        let all: Vec<_> = all.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let open = || TensorBoardSink::open(dir.path(), all.clone()).unwrap();
        let mut sink = open();
        let values = vec![("reward".to_owned(), vec![0.0, 1.0, 1.0, 3.0]), ("none".to_owned(), vec![])];
        sink.receive(&EventKind::Distributions { step: Step(4), values }.into()).unwrap();
        let rows = crate::CompletionRows {
            step: Step(4),
            prompts: vec!["a | b".into()],
            completions: vec!["<b>\nc".into()],
            rewards: vec![("r".into(), vec![Some(0.5)])],
            advantages: vec![Some(-1.0)],
            ..crate::CompletionRows::default()
        };
        sink.receive(&EventKind::Completions { rows, shown: 0 }.into()).unwrap();
        // Opening an existing file does not write the hyperparameters again.
        let events = read(open().file.path());
        let tags: Vec<&str> = events.iter().map(|(_, tag, _)| tag.as_str()).collect();
        assert_eq!(tags, ["_hparams_/session_start_info", "distribution/reward", "completions"]);
        let plugin = |value: &[u8]| field(&field(value, 9), 1);
        assert_eq!(field(&plugin(&events[0].2), 1), b"hparams");
        let session = field(&field(&plugin(&events[0].2), 2), 3);
        assert_eq!(field(&field(&session, 1), 1), b"learning_rate");
        let histo = field(&events[1].2, 5);
        let number = |n: u64| f64::from_le_bytes(field(&histo, n).try_into().unwrap());
        assert_eq!([1, 2, 3, 4, 5].map(number), [0.0, 3.0, 4.0, 5.0, 11.0]);
        let list = |n: u64| -> Vec<f64> {
            field(&histo, n).chunks(8).map(|x| f64::from_le_bytes(x.try_into().unwrap())).collect()
        };
        let (limits, counts) = (list(6), list(7));
        assert_eq!((limits.len(), limits[29], counts.iter().sum::<f64>()), (30, 3.0, 4.0));
        assert_eq!((counts[0], counts[10], counts[29]), (1.0, 2.0, 1.0));
        assert_eq!(field(&plugin(&events[2].2), 1), b"text");
        let text = String::from_utf8(field(&field(&events[2].2, 8), 8)).unwrap();
        assert!(text.ends_with("\n| a \\| b | &lt;b><br>c | 0.5 | -1.000 |"), "{text}");
    }

    #[test]
    fn the_last_event_file_by_name_is_continued() {
        let dir = tempfile::tempdir().unwrap();
        // The operating system lists files in any order. With 20 files, the last by name is unlikely to be listed first
        // or last.
        let file = |n: u32| dir.path().join(format!("events.out.tfevents.{:010}.b.1.0", (n * 7) % 20));
        let others = [dir.path().join("zzz"), dir.path().join("events.out.tfevents")];
        (0..20).map(file).chain(others).for_each(|file| std::fs::write(file, "").unwrap());
        let mut sink = TensorBoardSink::open(dir.path(), Vec::new()).unwrap();
        logged(&mut sink, 1, &[("a", 1.0)]);
        let written = |n: &u32| std::fs::metadata(file(*n)).unwrap().len() > 0;
        assert_eq!((0..20).filter(written).map(|n| (n * 7) % 20).collect::<Vec<_>>(), [19]);
        assert_eq!(read(sink.file.path()).len(), 1);
    }

    #[test]
    fn a_resume_truncates_and_continues_the_same_event_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = TensorBoardSink::open(dir.path(), Vec::new()).unwrap();
        logged(&mut sink, 1, &[("a", 1.0)]);
        let mut at_checkpoint = BTreeMap::new();
        sink.checkpoint(&mut at_checkpoint).unwrap();
        logged(&mut sink, 2, &[("a", 2.0)]);
        let path = sink.file.path().to_owned();
        drop(sink);
        // A file whose writer was killed in the middle of a record.
        let mut file = std::fs::read(&path).unwrap();
        file.extend_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0, 1]);
        std::fs::write(&path, &file).unwrap();
        let mut sink = TensorBoardSink::open(dir.path(), Vec::new()).unwrap();
        assert_eq!(sink.file.path(), path);
        assert_eq!(read(&path).len(), 2);
        sink.resume(Step(1), &at_checkpoint).unwrap();
        logged(&mut sink, 2, &[("b", 2.5)]);
        assert_eq!(read(&path).iter().map(|event| event.1.as_str()).collect::<Vec<_>>(), ["train/a", "train/b"]);
        let mut file = std::fs::read(&path).unwrap();
        *file.last_mut().unwrap() ^= 1;
        assert_eq!(records(&file).count(), 2, "the incomplete record must be removed");
        // A file shorter than at the checkpoint stays as it is, and a message is returned.
        assert!(sink.resume(Step(1), &BTreeMap::from([("tensorboard".to_owned(), 1 << 40)])).unwrap().is_some());
        assert_eq!(read(&path).len(), 2);
        // A sink that does not write leaves the file unchanged.
        let mut paused = TensorBoardSink::open(dir.path(), Vec::new()).unwrap().writing(false);
        assert_eq!(paused.resume(Step(1), &at_checkpoint).unwrap(), None);
        logged(&mut paused, 2, &[("c", 1.0)]);
        assert_eq!(read(&path).len(), 1);
        // A run that restarts at step 0 keeps the file and its version record.
        sink.resume(Step(0), &BTreeMap::new()).unwrap();
        assert!(read(&path).is_empty());
    }

    #[test]
    fn records_after_an_incomplete_or_corrupt_one_are_ignored() {
        let all = [&b"one"[..], b"", b"three".repeat(9).as_slice()].map(record);
        assert_eq!(all[0][..12], [3, 0, 0, 0, 0, 0, 0, 0, all[0][8], all[0][9], all[0][10], all[0][11]]);
        assert_eq!((&all[0][12..15], all[0].len(), all[1].len()), (&b"one"[..], 19, 16));
        let file = all.concat();
        let ends = [0, 19, 35, 35 + 61];
        for cut in 0..=file.len() {
            let whole = *ends.iter().rfind(|&&end| end <= cut).unwrap();
            assert_eq!(whole_records(&file[..cut]), whole, "cut at {cut}");
        }
        for flipped in 0..file.len() {
            let mut damaged = file.clone();
            damaged[flipped] ^= 1;
            let whole = *ends.iter().rfind(|&&end| end <= flipped).unwrap();
            assert_eq!(whole_records(&damaged), whole, "damaged at {flipped}");
        }
        let datas: Vec<&[u8]> = records(&file).map(|(_, data)| data).collect();
        assert_eq!(datas, [&b"one"[..], b"", &b"three".repeat(9)]);
        // TensorFlow masks a checksum by rotating it right by 15 and adding a constant.
        assert_eq!(masked_crc(b"123456789"), 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8));
        // A record length near u64::MAX is invalid, and must not overflow.
        let mut huge = [0xff; 8].to_vec();
        huge.extend(masked_crc(&[0xff; 8]).to_le_bytes());
        assert_eq!(whole_records(&[huge, vec![0; 64]].concat()), 0);
    }

    #[test]
    fn a_new_event_file_has_a_name_that_tensorboard_recognises() {
        let dir = tempfile::tempdir().unwrap();
        let before = since_1970().as_secs();
        let sink = TensorBoardSink::open(dir.path(), Vec::new()).unwrap();
        let name = sink.file.path().file_name().unwrap().to_str().unwrap().to_owned();
        let parts: Vec<&str> = name.split('.').collect();
        let (host, pid) = (host(), std::process::id().to_string());
        assert_eq!(
            (parts[..3].join("."), &parts[4..]),
            ("events.out.tfevents".into(), &[host.as_str(), pid.as_str(), "0"][..])
        );
        let time = parts[3].parse::<u64>().unwrap();
        assert!(parts[3].len() == 10 && (before..=since_1970().as_secs()).contains(&time), "{name}");
        // Without hyperparameters, the file has only the record with the version of the format.
        assert_eq!(records(&std::fs::read(sink.file.path()).unwrap()).count(), 1);
        let inside = dir.path().join(name).join("x");
        let error = TensorBoardSink::open(&inside, Vec::new()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot create {}: ", inside.display())), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn every_kind_of_event_fails_on_a_full_disk() {
        let hparams = vec![("a".to_owned(), HParam::Bool(true))];
        let mut sink = TensorBoardSink { file: Appended::broken(Path::new("events"), true), writes: true, hparams };
        let rows = crate::CompletionRows::default();
        for kind in [
            EventKind::Metrics { step: Step(1), values: vec![("a".into(), 1.0)] },
            EventKind::Distributions { step: Step(1), values: vec![("a".into(), vec![1.0])] },
            EventKind::Completions { rows, shown: 0 },
        ] {
            let error = sink.receive(&kind.into()).unwrap_err().to_string();
            assert_eq!(error, "cannot write events: No space left on device (os error 28)");
        }
        assert!(sink.begin().is_err() && sink.resume(Step(0), &BTreeMap::new()).is_err());
        sink.receive(&EventKind::Rollout { record: vec![1] }.into()).unwrap();
        let mut silent = sink.writing(false);
        silent.receive(&EventKind::Metrics { step: Step(1), values: vec![("a".into(), 1.0)] }.into()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut sink = TensorBoardSink::open(dir.path(), Vec::new()).unwrap();
        assert_eq!(sink.check().unwrap(), None);
        std::fs::remove_file(sink.file.path()).unwrap();
        assert!(sink.check().unwrap().unwrap().contains("was deleted"));
    }
}
