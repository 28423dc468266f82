//! The recorded groups of a run, for use in its replay. They supply the scores of rewards that are not called again,
//! and each group is compared as soon as the replay trains on it.

use super::groups;
use super::report::{Difference, NotVerifiable};
use crate::rollouts::ScoredGroup;
use crate::rollouts::collector::{Begun, Collect, CollectRequest, Collected, Collector, Observer, PlaceCollector};
use crate::rollouts::wire::file::GroupFile;
use crate::rollouts::wire::{Group, groups_of_answers};
use anyhow::Context as _;
use model::AdaptedWeights;
use rollout::RolloutGroup;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use telemetry::{Event, EventKind, Sink};

/// The recorded groups, and the results of comparing them.
pub struct Record {
    file: GroupFile,
    /// The position of each group in the file, by the group's number.
    places: BTreeMap<u64, usize>,
    /// Groups that were generated ahead, and that only a checkpoint has so far.
    ahead: BTreeMap<u64, Group>,
    /// Names of rewards that are not called again.
    pub not_asked: Vec<String>,
    /// Groups of which the replay has generated all tokens itself.
    sampled: BTreeSet<u64>,
    /// Groups of the current interval that were compared.
    pub compared: BTreeSet<u64>,
    /// Counts of equal groups, of their tokens, and of those equal groups that came with a checkpoint.
    pub equal: (u64, u64, u64),
    /// The first difference that was found.
    pub difference: Option<Difference>,
}

/// A record that is shared by the sink, the collector and the verification.
#[derive(Clone)]
pub struct SharedRecord(Arc<Mutex<Record>>);

impl Record {
    /// A record of the groups in `file`.
    pub fn new(file: GroupFile, not_asked: Vec<String>) -> Record {
        let places = file.index().iter().enumerate().map(|(place, entry)| (entry.group, place)).collect();
        Record {
            file,
            places,
            ahead: BTreeMap::new(),
            not_asked,
            sampled: BTreeSet::new(),
            compared: BTreeSet::new(),
            equal: (0, 0, 0),
            difference: None,
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
        self.ahead.extend(groups.into_iter().map(|group| (group.id, group)));
        Ok(())
    }

    fn group(&self, id: u64) -> anyhow::Result<Option<Group>> {
        match self.places.get(&id) {
            Some(&place) => Ok(Some(self.file.read(place)?)),
            None => Ok(self.ahead.get(&id).cloned()),
        }
    }

    /// The numbers of the groups that were recorded for the steps after `from`, up to `to`.
    pub fn of_steps(&self, from: u64, to: u64) -> BTreeSet<u64> {
        let inside = |step: Option<u64>| step.is_some_and(|step| from < step && step <= to);
        self.file.index().iter().filter(|entry| inside(entry.step)).map(|entry| entry.group).collect()
    }

    /// The last step for which groups were recorded.
    pub fn last_step(&self) -> Option<u64> {
        self.file.index().iter().filter_map(|entry| entry.step).max()
    }

    /// Gives `group` the recorded scores of rewards that are not called again.
    fn fill(&mut self, group: &mut ScoredGroup, names: &[String]) -> anyhow::Result<()> {
        if self.not_asked.is_empty() {
            return Ok(());
        }
        let Some(recorded) = self.group(group.id)? else {
            let id = group.id;
            return Err(NotVerifiable(format!(
                "group {id} was not recorded, and its scores by {} cannot be asked again",
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
        Ok(())
    }

    /// Compares a group that the replay trains on with the recorded one.
    fn compare(&mut self, remade: &Group) {
        self.compared.insert(remade.id);
        if self.difference.is_some() {
            return;
        }
        let found = match self.places.get(&remade.id) {
            None => Some(Difference {
                step: remade.step,
                group: Some(remade.id),
                kind: "group".into(),
                recorded: "none".into(),
                remade: format!("{} completions", remade.completions.len()),
                ..Difference::default()
            }),
            Some(&place) => match self.file.read(place) {
                Ok(recorded) => groups::difference(&recorded, remade, &self.not_asked),
                Err(error) => Some(Difference {
                    step: remade.step,
                    group: Some(remade.id),
                    kind: "record".into(),
                    recorded: error.to_string(),
                    remade: "a group".into(),
                    ..Difference::default()
                }),
            },
        };
        if found.is_none() {
            self.equal.0 += 1;
            self.equal.1 += remade.tokens() as u64;
            self.equal.2 += u64::from(!self.sampled.contains(&remade.id));
        }
        self.difference = found;
    }
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
        let remade = Group::read_all(record).expect("records that were just written");
        remade.iter().for_each(|group| self.lock().compare(group));
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
            // What has begun was drawn before, or came with a checkpoint.
            let mut record = self.record.lock();
            let has_begun: BTreeSet<u64> = begun.so_far.iter().map(|group| group.id).collect();
            record.sampled.extend(request.prompts.keys().filter(|number| !has_begun.contains(number)));
            record.sampled.extend(begun.beside.iter().filter(|other| other.so_far.is_empty()).map(|other| other.id));
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
