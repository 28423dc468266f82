//! Compares the files of two checkpoints of the same step, or of a final model and its checkpoint, and returns the
//! first bit that differs.

use super::groups::{self, LeftOut};
use super::report::{Difference, f32_bits, f64_bits};
use crate::rollouts::wire::{Group, WrittenAnswer, column_beyond, groups_of_begun, heads_of_begun, written_answers};
use crate::run::checkpoint::is_of_model;
use crate::run::state::lineage_of;
use anyhow::Context as _;
use model::io::{FILE_LIST, is_listed};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use telemetry::Step;

/// The fields of `run_state.json` on which the next step depends. The others concern logs and evaluations.
pub(super) const STATE: [&str; 8] =
    ["step", "weights_version", "arithmetic", "data_hash", "sampler", "trainer", "num_tokens", "task"];

/// Files of a checkpoint that are not compared here: they are checked elsewhere, or describe only processes.
const NOT_COMPARED: [&str; 2] = [FILE_LIST, "fleet.json"];

/// The state of the Python package's trainer, which the package adds to a complete checkpoint. The engine does not read
/// it, and a replay has no such trainer.
const OF_TRAINER: &str = "trainer_state.json";

/// Files that people add to a model, and that no program reads as part of it.
pub(super) const ADDED: [&str; 6] = ["README.md", "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE", ".gitattributes"];

/// The run whose files are compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfRun<'a> {
    /// Rewards that are not called again.
    pub not_asked: &'a [String],
    /// Whether this build trained the run. An older build lacks values that this build writes.
    pub same_build: bool,
}

/// The first difference between the recorded checkpoint of a step and the replay's.
pub fn difference(recorded: &Path, remade: &Path, step: Step, of: OfRun<'_>) -> anyhow::Result<Option<Difference>> {
    let (mut names, in_recorded, in_remade) = (BTreeSet::new(), names(recorded)?, names(remade)?);
    names.extend(in_recorded.union(&in_remade).cloned());
    // Older versions did not copy files in subdirectories of the model.
    let is_in_folder = |name: &str| name.contains('/') && is_listed(name);
    // PPO's value model is in a subdirectory, so its own subdirectories are one level deeper.
    let is_in_subfolder =
        |name: &str| is_in_folder(name) || name.split_once('/').is_some_and(|(_, name)| is_in_folder(name));
    let left_out = |name: &String| is_in_subfolder(name) && !in_recorded.contains(name);
    let compared = |name: &String| {
        !NOT_COMPARED.contains(&&**name) && (name != OF_TRAINER || in_remade.contains(name)) && !left_out(name)
    };
    // Weights come first, because all other differences follow from them.
    let mut names: Vec<String> = names.into_iter().filter(compared).collect();
    names.sort_by_key(|name| (rank(name), name.clone()));
    for name in names {
        let place = recorded.join(&name).display().to_string();
        let (a, b) = (in_recorded.contains(&name), in_remade.contains(&name));
        let found = if a && b {
            file(&name, &recorded.join(&name), &remade.join(&name), of).with_context(|| place.clone())?
        } else {
            Some(only_in_one(a, b))
        };
        if let Some(found) = found {
            let within = found.place.map_or_else(|| place.clone(), |within| format!("{place}, {within}"));
            return Ok(Some(Difference { step: Some(step), place: Some(within), ..found }));
        }
    }
    Ok(None)
}

/// The first difference between the final model in `result` and a checkpoint's model. The result must have exactly the
/// files of the model, since a program that loads it may prefer another file; only text files that users add (`ADDED`)
/// are ignored.
pub fn result_difference(result: &Path, checkpoint: &Path, step: Step) -> anyhow::Result<Option<Difference>> {
    let (in_result, in_checkpoint) = (names(result)?, names(checkpoint)?);
    let model_files = in_checkpoint.iter().filter(|name| is_of_model(name));
    let names: BTreeSet<&String> = in_result.iter().chain(model_files).collect();
    let is_added = |name: &str| ADDED.contains(&name) && !in_checkpoint.contains(name);
    let mut names: Vec<&String> =
        names.into_iter().filter(|name| !NOT_COMPARED.contains(&&***name) && !is_added(name)).collect();
    names.sort_by_key(|name| (rank(name), *name));
    for name in names {
        let place = result.join(name).display().to_string();
        // Files that older versions copied with the model are compared as bytes.
        let kind = if is_of_model(name) { name } else { "" };
        let found = match (in_result.contains(name), in_checkpoint.contains(name)) {
            (true, true) => file(kind, &result.join(name), &checkpoint.join(name), OfRun::default())
                .with_context(|| place.clone())?,
            (a, b) => Some(only_in_one(a, b)),
        };
        if let Some(found) = found {
            let within = found.place.map_or_else(|| place.clone(), |within| format!("{place}, {within}"));
            return Ok(Some(Difference { step: Some(step), place: Some(within), ..found }));
        }
    }
    Ok(None)
}

/// The difference that only one of the two directories has a file.
fn only_in_one(recorded: bool, remade: bool) -> Difference {
    let has = |there: bool| if there { "the file" } else { "none" }.to_owned();
    Difference { kind: "file".into(), recorded: has(recorded), remade: has(remade), ..Difference::default() }
}

/// The files of a directory and its subdirectories, such as PPO's value model, by relative path.
fn names(dir: &Path) -> anyhow::Result<BTreeSet<String>> {
    let (mut names, mut open) = (BTreeSet::new(), vec![PathBuf::new()]);
    while let Some(below) = open.pop() {
        let place = dir.join(&below);
        for entry in disk::read_dir(&place).with_context(|| place.display().to_string())? {
            let path = below.join(entry.file_name());
            if entry.is_dir() {
                open.push(path);
            } else {
                names.insert(path.to_string_lossy().into_owned());
            }
        }
    }
    Ok(names)
}

/// The position of a file in the order of comparison, with weights first.
fn rank(name: &str) -> u8 {
    let is_tensors = name.ends_with(".safetensors");
    match name {
        _ if is_tensors && (name.starts_with("model") || name.starts_with("adapter")) => 0,
        _ if is_tensors => 1,
        "run_state.json" => 3,
        _ => 2,
    }
}

fn file(name: &str, a: &Path, b: &Path, of: OfRun<'_>) -> anyhow::Result<Option<Difference>> {
    Ok(match name {
        "run_state.json" => state(&json(a)?, &json(b)?, of.same_build),
        "frontier.bin" => frontier(&disk::read(a, disk::most::GROUPS)?, &disk::read(b, disk::most::GROUPS)?, of)?,
        "frontier.begun.bin" => begun(&disk::read(a, disk::most::GROUPS)?, &disk::read(b, disk::most::GROUPS)?, of)?,
        "generation_batch.bin" => {
            let (a, b) = (disk::read(a, disk::most::GROUPS)?, disk::read(b, disk::most::GROUPS)?);
            match groups_difference(&Group::read_all(&a)?, &Group::read_all(&b)?, of) {
                None => unknown_column(&a, &b, of)?,
                found => found,
            }
        }
        "adapter_config.json" => {
            // The base model may have been moved; the adapter's file has its hash.
            let without_path = |path| -> anyhow::Result<Value> {
                let mut json = json(path)?;
                json.as_object_mut().and_then(|json| json.remove("base_model_name_or_path"));
                Ok(json)
            };
            values("", &without_path(a)?, &without_path(b)?)
        }
        _ if name.ends_with(".safetensors") => tensors(a, b)?,
        _ => bytes(&disk::read(a, disk::most::GROUPS)?, &disk::read(b, disk::most::GROUPS)?),
    })
}

fn json(path: &Path) -> anyhow::Result<Value> {
    Ok(serde_json::from_slice(&disk::read(path, disk::most::GROUPS)?)?)
}

fn bytes(a: &[u8], b: &[u8]) -> Option<Difference> {
    let at = a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()));
    let byte = |bytes: &[u8]| bytes.get(at).map_or_else(|| "the end".to_owned(), |byte| format!("0x{byte:02x}"));
    (a != b).then(|| Difference {
        kind: "byte".into(),
        place: Some(format!("byte {at}")),
        recorded: byte(a),
        remade: byte(b),
        ..Difference::default()
    })
}

fn groups_difference(a: &[Group], b: &[Group], of: OfRun<'_>) -> Option<Difference> {
    // Scores that were not recomputed come from the record on both sides.
    let left_out = LeftOut { rewards: &[], words: !of.same_build };
    let found = a.iter().zip(b).find_map(|(a, b)| groups::difference(a, b, left_out));
    found.or_else(|| unequal("number of groups", &a.len(), &b.len()))
}

fn unequal<T: PartialEq + Debug>(kind: &str, recorded: &T, remade: &T) -> Option<Difference> {
    (recorded != remade).then(|| Difference {
        kind: kind.to_owned(),
        recorded: format!("{recorded:?}"),
        remade: format!("{remade:?}"),
        ..Difference::default()
    })
}

/// A column of the recorded groups that this build does not know, and therefore did not recompute.
fn unknown_column(a: &[u8], b: &[u8], of: OfRun<'_>) -> anyhow::Result<Option<Difference>> {
    let beyond = column_beyond(a, b)?.filter(|_| of.same_build);
    Ok(beyond.map(|(record, column)| Difference {
        kind: "column".into(),
        place: Some(format!("record {record}")),
        recorded: format!("`{column}`"),
        remade: "none".into(),
        ..Difference::default()
    }))
}

/// Compares batches generated ahead.
fn frontier(a: &[u8], b: &[u8], of: OfRun<'_>) -> anyhow::Result<Option<Difference>> {
    let answers = [written_answers(a)?, written_answers(b)?];
    let [groups_a, groups_b] = answers
        .each_ref()
        .map(|all| all.iter().flat_map(|answer: &WrittenAnswer| answer.groups.iter().cloned()).collect::<Vec<Group>>());
    let [all_a, all_b] = &answers;
    let found = groups_difference(&groups_a, &groups_b, of)
        .or_else(|| all_a.iter().zip(all_b).find_map(|(a, b)| answer(a, b, of)))
        .or_else(|| unequal("number of batches", &all_a.len(), &all_b.len()));
    match found {
        None => unknown_column(a, b, of),
        found => Ok(found),
    }
}

/// Compares the parts of an answer that concern all its groups. Results of rewards that are not called again come from
/// the record.
fn answer(a: &WrittenAnswer, b: &WrittenAnswer, of: OfRun<'_>) -> Option<Difference> {
    let names = b.groups.first().map_or(&[][..], |group| &group.reward_names);
    let asked_at = |place: usize| names.get(place).is_none_or(|name| !of.not_asked.contains(name));
    let timed_out = |answer: &WrittenAnswer| {
        let counts = answer.timed_out.iter().copied().enumerate();
        counts.filter(|(place, _)| asked_at(*place)).collect::<Vec<_>>()
    };
    let is_asked = |reward: &str| !of.not_asked.iter().any(|name| name == reward);
    let problems = |answer: &WrittenAnswer| -> Vec<Value> {
        let all = answer.problems.iter();
        all.filter(|problem| problem["reward"].as_str().is_none_or(is_asked)).cloned().collect()
    };
    let metrics = |answer: &WrittenAnswer| -> Vec<String> {
        let is_left_out =
            |metric: &str| of.not_asked.iter().any(|name| metric.starts_with(&format!("rewards/{name}/")));
        let all = answer.metrics.iter().filter(|(metric, _)| !is_left_out(metric));
        all.map(|(metric, value)| format!("{metric} = {}", f64_bits(*value))).collect()
    };
    unequal("number of the next group", &a.next_group, &b.next_group)
        .or_else(|| groups::problems(&problems(a), &problems(b), !of.same_build))
        .or_else(|| unequal("metrics of rewards", &metrics(a), &metrics(b)))
        .or_else(|| unequal("completions that ran out of time", &timed_out(a), &timed_out(b)))
}

/// Compares batches that are generated in chunks, without scores: an ended group may or may not have been scored.
/// Scores are compared when a step learns from the group.
fn begun(a: &[u8], b: &[u8], of: OfRun<'_>) -> anyhow::Result<Option<Difference>> {
    let found = groups_difference(&groups_of_begun(a)?, &groups_of_begun(b)?, of);
    let (heads_a, heads_b) = (heads_of_begun(a)?, heads_of_begun(b)?);
    Ok(found.or_else(|| unequal("step, first group and rows of the batches", &heads_a, &heads_b)))
}

fn state(a: &Value, b: &Value, same_build: bool) -> Option<Difference> {
    let older;
    let b = if same_build {
        b
    } else {
        older = as_far_as(a, b);
        &older
    };
    let task = |state: &Value| lineage_of(&state["task"]).cloned().unwrap_or_default();
    let (lineage_a, lineage_b) = (task(a), task(b));
    if lineage_a != lineage_b {
        return Some(Difference {
            kind: "lineage".into(),
            recorded: lineage_a.to_string(),
            remade: lineage_b.to_string(),
            ..Difference::default()
        });
    }
    STATE.iter().find_map(|name| values(name, &a[*name], &b[*name]))
}

/// The values of `b` that `a`, the state of an older version, also has.
fn as_far_as(a: &Value, b: &Value) -> Value {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let both = b.iter().filter_map(|(name, b)| Some((name.clone(), as_far_as(a.get(name)?, b))));
            Value::Object(both.collect())
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            Value::Array(a.iter().zip(b).map(|(a, b)| as_far_as(a, b)).collect())
        }
        (_, b) => b.clone(),
    }
}

/// The first value that differs between two JSON values; `at` is its path.
fn values(at: &str, a: &Value, b: &Value) -> Option<Difference> {
    let none = Value::Null;
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            let names: BTreeSet<&String> = x.keys().chain(y.keys()).collect();
            let of = |map: &Map<String, Value>, name: &str| map.get(name).cloned().unwrap_or_default();
            names.into_iter().find_map(|name| values(&format!("{at}.{name}"), &of(x, name), &of(y, name)))
        }
        (Value::Array(x), Value::Array(y)) => (0..x.len().max(y.len()))
            .find_map(|i| values(&format!("{at}[{i}]"), x.get(i).unwrap_or(&none), y.get(i).unwrap_or(&none))),
        _ => (a != b).then(|| Difference {
            kind: "state".into(),
            place: Some(at.trim_start_matches('.').to_owned()),
            recorded: a.to_string(),
            remade: b.to_string(),
            ..Difference::default()
        }),
    }
}

/// A safetensors file that is read in pieces.
struct Tensors {
    header: Map<String, Value>,
    file: BufReader<File>,
}

impl Tensors {
    fn open(path: &Path) -> anyhow::Result<Tensors> {
        let file = disk::open(path)?;
        let bytes = file.metadata()?.len();
        let mut file = BufReader::with_capacity(1 << 20, file);
        let mut length = [0; 8];
        file.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        anyhow::ensure!(length <= bytes.min(disk::most::STATE), "its header is longer than the file");
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header)?;
        Ok(Tensors { header: serde_json::from_slice(&header)?, file })
    }

    /// Name, type and end offset of each tensor, in byte order.
    fn layout(&self) -> Vec<(String, String, u64)> {
        let tensors = self.header.iter().filter(|(name, _)| *name != "__metadata__");
        let entry = |(name, of): (&String, &Value)| {
            let end = of["data_offsets"][1].as_u64().unwrap_or_default();
            (name.clone(), format!("{} {}", of["dtype"].as_str().unwrap_or_default(), of["shape"]), end)
        };
        let mut layout: Vec<_> = tensors.map(entry).collect();
        layout.sort_by_key(|(_, _, end)| *end);
        layout
    }
}

fn tensors(a: &Path, b: &Path) -> anyhow::Result<Option<Difference>> {
    let (mut a, mut b) = (Tensors::open(a)?, Tensors::open(b)?);
    let (layout, layout_b) = (a.layout(), b.layout());
    if let Some(at) = (0..layout.len().max(layout_b.len())).find(|&at| layout.get(at) != layout_b.get(at)) {
        let show = |layout: &[(String, String, u64)]| {
            layout.get(at).map_or_else(|| "none".to_owned(), |(name, of, _)| format!("{name} {of}"))
        };
        let (recorded, remade) = (show(&layout), show(&layout_b));
        return Ok(Some(Difference { kind: "tensor".into(), recorded, remade, ..Difference::default() }));
    }
    let (mut at, mut left, mut right) = (0u64, vec![0; 1 << 16], vec![0; 1 << 16]);
    for (name, of, end) in &layout {
        let begin = at;
        while at < *end {
            let n = (*end - at).min(left.len() as u64) as usize;
            a.file.read_exact(&mut left[..n])?;
            b.file.read_exact(&mut right[..n])?;
            if let Some(place) = left[..n].iter().zip(&right[..n]).position(|(a, b)| a != b) {
                let width = if of.starts_with("F32") {
                    4
                } else if of.starts_with("BF16") {
                    2
                } else {
                    1
                };
                let first = place / width * width;
                let value = |bytes: &[u8]| number(&bytes[first..(first + width).min(n)]);
                return Ok(Some(Difference {
                    kind: "weight".into(),
                    place: Some(format!("{name}, element {}", (at - begin) / width as u64 + (first / width) as u64)),
                    recorded: value(&left),
                    remade: value(&right),
                    ..Difference::default()
                }));
            }
            at += n as u64;
        }
    }
    let metadata = |tensors: &Tensors| tensors.header.get("__metadata__").cloned().unwrap_or_default();
    if let Some(found) = values("header", &metadata(&a), &metadata(&b)) {
        return Ok(Some(found));
    }
    // The headers decide where each tensor begins, and whether there are bytes after the last one.
    let header = |tensors: &mut Tensors| Value::Object(std::mem::take(&mut tensors.header));
    if let Some(found) = values("header", &header(&mut a), &header(&mut b)) {
        return Ok(Some(found));
    }
    let rest = |tensors: Tensors| tensors.file.bytes().take(1).collect::<std::io::Result<Vec<u8>>>();
    Ok(bytes(&rest(a)?, &rest(b)?).map(|found| Difference { place: Some("after the last tensor".into()), ..found }))
}

/// A number of 4 or 2 bytes as text, with its bits.
fn number(bytes: &[u8]) -> String {
    match *bytes {
        [a, b, c, d] => f32_bits(f32::from_le_bytes([a, b, c, d])),
        [a, b] => format!("{} (0x{:04x})", f32::from_le_bytes([0, 0, a, b]), u16::from_le_bytes([a, b])),
        _ => format!("{bytes:02x?}"),
    }
}

#[cfg(test)]
mod tests;
