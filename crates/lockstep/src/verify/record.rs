//! The recorded groups of a run, for use in its replay. They supply the scores of rewards that are not called again,
//! and each group is compared as soon as the replay trains on it.

use super::groups::{self, LeftOut};
use super::report::{Difference, NotVerifiable};
use crate::rollouts::ScoredGroup;
use crate::rollouts::collector::{Begun, Collect, CollectRequest, Collected, Collector, Observer, PlaceCollector};
use crate::rollouts::wire::file::GroupFile;
use crate::rollouts::wire::{Group, column_beyond, groups_of_answers};
use anyhow::Context as _;
use model::{AdaptedWeights, GroupId};
use rollout::RolloutGroup;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use telemetry::{Event, EventKind, Sink};

/// The recorded groups, and the results of comparing them.
pub struct Record {
    file: GroupFile,
    /// The position of each group in the file.
    places: BTreeMap<GroupId, usize>,
    /// Groups that were generated ahead, and that only a checkpoint has so far.
    ahead: BTreeMap<GroupId, Group>,
    /// Names of rewards that are not called again.
    pub not_asked: Vec<String>,
    /// Whether this build trained the run. Another build may word errors differently, and write columns that this build
    /// does not know.
    same_build: bool,
    /// The place of the last group that was compared. A replay trains on groups in the order of the record.
    last: Option<usize>,
    /// Groups whose tokens the replay has generated completely itself.
    sampled: BTreeSet<GroupId>,
    /// Groups of the current interval that were compared.
    pub compared: BTreeSet<GroupId>,
    /// Counts of equal groups, of their tokens, and of equal groups that came with a checkpoint.
    pub equal: (u64, u64, u64),
    /// The first difference that was found.
    pub difference: Option<Difference>,
}

/// A record that is shared by the sink, the collector and the verification.
#[derive(Clone)]
pub struct SharedRecord(Arc<Mutex<Record>>);

impl Record {
    /// A record of the groups in `file`. Its `difference` is a group that occurs twice or for no step, or an entry of
    /// the index that does not match its group.
    pub fn new(file: GroupFile, not_asked: Vec<String>, same_build: bool) -> Record {
        let of_index = if same_build { wrong_index(&file) } else { None };
        let difference = of_index.or_else(|| misplaced(&file));
        let places = file.index().iter().enumerate().map(|(place, entry)| (entry.group, place)).collect();
        Record {
            file,
            places,
            ahead: BTreeMap::new(),
            not_asked,
            same_build,
            last: None,
            sampled: BTreeSet::new(),
            compared: BTreeSet::new(),
            equal: (0, 0, 0),
            difference,
        }
    }

    /// Adds the groups of a checkpoint that were generated ahead. They supply scores of groups that the run never
    /// trained on.
    pub fn add_ahead(&mut self, frontier: &Path) -> anyhow::Result<()> {
        let place = || frontier.display().to_string();
        let bytes = match disk::read(frontier, disk::most::GROUPS) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            bytes => bytes.with_context(place)?,
        };
        let groups = groups_of_answers(&bytes).with_context(place)?;
        self.ahead.extend(groups.into_iter().map(|group| (group.group, group)));
        Ok(())
    }

    /// The recorded group with this id, or else the group that was generated ahead.
    pub fn group(&self, id: GroupId) -> std::io::Result<Option<Group>> {
        match self.places.get(&id) {
            Some(&place) => Ok(Some(self.file.read(place)?)),
            None => Ok(self.ahead.get(&id).cloned()),
        }
    }

    /// The groups that were recorded for the steps after `from`, up to `to`.
    pub fn of_steps(&self, from: u64, to: u64) -> BTreeSet<GroupId> {
        let inside = |step: Option<u64>| step.is_some_and(|step| from < step && step <= to);
        self.file.index().iter().filter(|entry| inside(entry.step)).map(|entry| entry.group).collect()
    }

    /// The steps for which groups were recorded.
    pub fn steps(&self) -> BTreeSet<u64> {
        self.file.index().iter().filter_map(|entry| entry.step).collect()
    }

    /// The last step for which groups were recorded.
    pub fn last_step(&self) -> Option<u64> {
        self.steps().last().copied()
    }

    /// Gives `group` the recorded scores of rewards that are not called again.
    fn fill(&mut self, group: &mut ScoredGroup, names: &[String]) -> anyhow::Result<()> {
        if self.not_asked.is_empty() {
            return Ok(());
        }
        let Some(recorded) = self.group(group.group)? else {
            let id = group.group;
            return Err(NotVerifiable(format!(
                "group {id} was not recorded, and its scores by {} cannot be computed again",
                self.not_asked.join(", ")
            ))
            .into());
        };
        for (place, name) in names.iter().enumerate().filter(|(_, name)| self.not_asked.contains(name)) {
            let Some(of) = recorded.reward_names.iter().position(|recorded| recorded == name) else { continue };
            for (c, recorded) in group.completions.iter_mut().zip(&recorded.completions) {
                c.rewards[place] = recorded.rewards.get(of).copied().flatten();
                if let Some(steps) = recorded.steps.get(of).filter(|steps| steps.is_some()) {
                    c.steps.resize(names.len(), None);
                    c.steps[place].clone_from(steps);
                }
            }
        }
        self.fill_beside(group, &recorded, names);
        Ok(())
    }

    /// Adds to `group` the recorded errors and columns of rewards that are not called again.
    fn fill_beside(&self, group: &mut ScoredGroup, recorded: &Group, names: &[String]) {
        let mut own = std::mem::take(&mut group.problems);
        for name in names {
            if self.not_asked.contains(name) {
                let of_reward = recorded.problems.iter().filter(|problem| problem["reward"] == **name);
                group.problems.extend(of_reward.filter_map(|problem| serde_json::from_value(problem.clone()).ok()));
            } else {
                group.problems.extend(own.extract_if(.., |problem| problem.reward == *name));
            }
        }
        group.problems.append(&mut own);
        for (c, recorded) in group.completions.iter_mut().zip(&recorded.completions) {
            for (column, value) in &recorded.extra {
                c.extra.entry(column.clone()).or_insert_with(|| value.clone());
            }
        }
    }

    /// Compares a group that the replay trains on, and its record, with the recorded one.
    fn compare(&mut self, remade: &Group, record: &[u8]) {
        self.compared.insert(remade.group);
        if self.difference.is_some() {
            return;
        }
        let of_group = Difference { step: remade.step, group: Some(remade.group), ..Difference::default() };
        let found = match self.places.get(&remade.group) {
            None => Some(Difference {
                kind: "group".into(),
                recorded: "none".into(),
                remade: format!("{} completions", remade.completions.len()),
                ..of_group
            }),
            Some(&place) => self.compare_at(place, remade, record).unwrap_or_else(|error| {
                let (recorded, remade) = (error.to_string(), "a group".into());
                Some(Difference { kind: "record".into(), recorded, remade, ..of_group })
            }),
        };
        if found.is_none() {
            self.equal.0 += 1;
            self.equal.1 += remade.tokens() as u64;
            self.equal.2 += u64::from(!self.sampled.contains(&remade.group));
        }
        self.difference = found;
    }

    fn compare_at(&mut self, place: usize, remade: &Group, record: &[u8]) -> std::io::Result<Option<Difference>> {
        let (recorded, bytes) = self.file.read_record(place)?;
        let left_out = LeftOut { rewards: &self.not_asked, words: !self.same_build };
        if let Some(found) = groups::difference(&recorded, remade, left_out) {
            return Ok(Some(found));
        }
        let of_group = Difference { step: remade.step, group: Some(remade.group), ..Difference::default() };
        let beyond = column_beyond(&bytes, record).map_err(std::io::Error::other)?.filter(|_| self.same_build);
        if let Some((_, column)) = beyond {
            let (recorded, remade) = (format!("`{column}`"), "none".into());
            return Ok(Some(Difference { kind: "column".into(), recorded, remade, ..of_group }));
        }
        let last = self.last.replace(place).filter(|last| *last >= place);
        Ok(last.map(|last| Difference {
            kind: "order of the groups".into(),
            recorded: format!("record {place}"),
            remade: format!("behind record {last}"),
            ..of_group
        }))
    }
}

/// A group that the record has twice, or without the step that learned from it.
fn misplaced(file: &GroupFile) -> Option<Difference> {
    let mut first: BTreeMap<GroupId, usize> = BTreeMap::new();
    file.index().iter().enumerate().find_map(|(place, entry)| {
        let before = first.insert(entry.group, place);
        let of_group = Difference { step: entry.step, group: Some(entry.group), ..Difference::default() };
        if let Some(before) = before {
            let (recorded, remade) = (format!("records {before} and {place}"), "once".into());
            return Some(Difference { kind: "group".into(), recorded, remade, ..of_group });
        }
        entry.step.is_none_or(|step| step == 0).then(|| Difference {
            kind: "step".into(),
            recorded: entry.step.map_or_else(|| "none".into(), |step| step.to_string()),
            remade: "the step that learned from it".into(),
            ..of_group
        })
    })
}

/// An entry of the file's index that does not match the file's records.
fn wrong_index(file: &GroupFile) -> Option<Difference> {
    let (place, entry, of_record) = file.wrong_entry()?;
    let (recorded, remade) = (format!("{entry:?}"), format!("{of_record:?}"));
    Some(Difference {
        step: of_record.step,
        group: Some(of_record.group),
        kind: "index".into(),
        place: Some(format!("rollouts.idx, entry {place}")),
        recorded,
        remade,
        ..Difference::default()
    })
}

impl SharedRecord {
    /// Makes a record that can be shared.
    pub fn new(record: Record) -> SharedRecord {
        SharedRecord(Arc::new(Mutex::new(record)))
    }

    /// Locks the record.
    pub fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A collector that fills in the scores of the record.
    pub fn place(&self) -> PlaceCollector {
        let record = self.clone();
        Box::new(move |collector| Box::new(WithRecord { collector, record }))
    }
}

impl Sink for SharedRecord {
    fn receive(&mut self, event: &Event) -> telemetry::Result<()> {
        let EventKind::Rollout { record } = &event.kind else { return Ok(()) };
        let mut rest = &record[..];
        while !rest.is_empty() {
            let (group, behind) = Group::read(rest).expect("records that were just written");
            self.lock().compare(&group, &rest[..rest.len() - behind.len()]);
            rest = behind;
        }
        Ok(())
    }
}

/// A collector that generates completions, and takes the scores of some rewards from a record.
struct WithRecord {
    collector: Collector,
    record: SharedRecord,
}

impl Collect for WithRecord {
    fn collect(
        &mut self,
        weights: &AdaptedWeights,
        request: CollectRequest<'_>,
        observer: &Observer<'_>,
    ) -> anyhow::Result<Collected> {
        Ok(self.continue_with(weights, request, Begun::default(), observer)?.0)
    }

    fn continue_with(
        &mut self,
        weights: &AdaptedWeights,
        request: CollectRequest<'_>,
        begun: Begun,
        observer: &Observer<'_>,
    ) -> anyhow::Result<(Collected, Vec<RolloutGroup>)> {
        {
            // A group that has begun was drawn before, or came with a checkpoint.
            let mut record = self.record.lock();
            let has_begun: BTreeSet<GroupId> = begun.so_far.iter().map(|group| group.group).collect();
            record.sampled.extend(request.prompts.keys().filter(|group| !has_begun.contains(group)));
            record.sampled.extend(begun.beside.iter().filter(|other| other.so_far.is_empty()).map(|other| other.group));
        }
        let (mut collected, others) = self.collector.continue_with(weights, request, begun, observer)?;
        let rollouts = &mut collected.scored.rollouts;
        let mut record = self.record.lock();
        rollouts.groups.iter_mut().try_for_each(|group| record.fill(group, &rollouts.reward_names))?;
        Ok((collected, others))
    }
}

#[cfg(test)]
mod tests;
