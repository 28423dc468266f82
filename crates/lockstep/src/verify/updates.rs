//! Checks that `updates.bin` matches the recorded groups. The choice of its groups depends on timing. Its
//! log-probabilities are not recomputed, since no step depends on them.

use super::record::Record;
use super::report::Difference;
use crate::rollouts::wire::file::GroupFile;
use crate::rollouts::wire::{Completion, Group, NEW_LOGPS};
use model::Columns;
use std::collections::BTreeSet;
use std::io::{ErrorKind, Result};
use std::path::Path;
use telemetry::Step;

/// The first group in the file `updates` that occurs twice, or does not match the recorded group with its number. A
/// group matches if it has the same tokens, one log-probability per token, and nothing else. Groups of steps that were
/// not recorded are skipped.
pub fn difference(updates: &Path, record: &Record) -> Result<Option<Difference>> {
    let file = match GroupFile::open(updates) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let (mut before, steps) = (BTreeSet::new(), record.steps());
    for (place, entry) in file.index().iter().enumerate() {
        if entry.step.is_some_and(|step| step > Step::START && !steps.contains(&step)) {
            continue;
        }
        let recorded = match (file.read_record(place), record.group(entry.group)) {
            // A damaged group is reported when the groups are compared.
            (_, Err(_)) => continue,
            (Err(error), _) => error.to_string(),
            (Ok(_), Ok(None)) => "a group that was not recorded".to_owned(),
            (Ok((update, bytes)), Ok(Some(recorded_group))) => {
                let mut expected = Vec::new();
                expected_update(&update, recorded_group).write(&mut expected);
                match (expected == bytes, before.insert(entry.group)) {
                    (true, true) => continue,
                    (true, false) => "the group a second time".to_owned(),
                    (false, _) => "other tokens, another step, or other columns".to_owned(),
                }
            }
        };
        return Ok(Some(Difference {
            step: entry.step,
            group: Some(entry.group),
            kind: "update".into(),
            place: Some(format!("{}, record {place}", updates.display())),
            recorded,
            remade: "the group of rollouts.bin, once".into(),
            ..Difference::default()
        }));
    }
    Ok(None)
}

/// The record that a run writes for the group `recorded` after its step, with the log-probabilities of `update`.
fn expected_update(update: &Group, recorded: Group) -> Group {
    let completion = |(place, (given, c)): (usize, (&Completion, Completion))| {
        let mut completion = Completion::new(place, c.ids);
        completion.loss_mask = c.loss_mask;
        let tokens = completion.ids.len();
        let logps = given.columns.f32(NEW_LOGPS).filter(|logps| logps.len() == tokens);
        completion.columns = Columns::of([(NEW_LOGPS, logps.map_or_else(|| vec![0.0; tokens], <[f32]>::to_vec))]);
        completion
    };
    // A step may learn from a part of its last group.
    let pairs = update.completions.iter().zip(recorded.completions).enumerate();
    Group {
        group: recorded.group,
        step: recorded.step,
        prompt_ids: recorded.prompt_ids,
        completions: pairs.map(completion).collect(),
        ..Group::default()
    }
}
