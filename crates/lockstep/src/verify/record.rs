//! The groups that a run recorded, beside the run that makes them again: gives the scores that are not asked again, and
//! compares each group as soon as the replay learns from it.

use super::groups;
use super::report::{Difference, NotVerifiable};
use crate::rollouts::ScoredGroup;
use crate::rollouts::collector::{Begun, Collect, CollectRequest, Collected, Collector, Observer, PlaceCollector};
use crate::rollouts::wire::file::GroupFile;
use crate::rollouts::wire::{Group, groups_of_answers};
use model::AdaptedWeights;
use rollout::RolloutGroup;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use telemetry::{Event, EventKind, Sink};

/// What was recorded, and what of it was found right.
pub struct Record {
    file: GroupFile,
    /// The place of each group in the file.
    places: BTreeMap<u64, usize>,
    /// Groups that were made ahead, and are only in a checkpoint so far.
    ahead: BTreeMap<u64, Group>,
    /// The rewards that are not asked again.
    pub not_asked: Vec<String>,
    /// Groups that the replay has sampled, from their first token on.
    sampled: BTreeSet<u64>,
    /// The groups that were compared, of the interval.
    pub compared: BTreeSet<u64>,
    /// How many groups and tokens were equal, and how many groups of these came with a checkpoint.
    pub equal: (u64, u64, u64),
    /// The first bit that differs.
    pub difference: Option<Difference>,
}

/// A record that sink, collector and verification share.
#[derive(Clone)]
pub struct SharedRecord(Arc<Mutex<Record>>);

impl Record {
    /// The groups of `file`.
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

    /// The groups made ahead that a checkpoint has, for the scores of those that the run never learned from.
    pub fn add_ahead(&mut self, frontier: &Path) -> anyhow::Result<()> {
        if let Ok(bytes) = std::fs::read(frontier) {
            self.ahead.extend(groups_of_answers(&bytes)?.into_iter().map(|group| (group.id, group)));
        }
        Ok(())
    }

    fn group(&self, id: u64) -> anyhow::Result<Option<Group>> {
        match self.places.get(&id) {
            Some(&place) => Ok(Some(self.file.read(place)?)),
            None => Ok(self.ahead.get(&id).cloned()),
        }
    }

    /// Numbers of the groups that were recorded for steps after `from`, up to `to`.
    pub fn of_steps(&self, from: u64, to: u64) -> BTreeSet<u64> {
        let inside = |step: Option<u64>| step.is_some_and(|step| from < step && step <= to);
        self.file.index().iter().filter(|entry| inside(entry.step)).map(|entry| entry.group).collect()
    }

    /// The last step of which it has groups.
    pub fn last_step(&self) -> Option<u64> {
        self.file.index().iter().filter_map(|entry| entry.step).max()
    }

    /// Gives `group` the scores that are not asked again.
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

    /// A group that the replay learns from.
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
    /// Shares it.
    pub fn new(record: Record) -> SharedRecord {
        SharedRecord(Arc::new(Mutex::new(record)))
    }

    /// The record, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the scores of the record into what a collector gives.
    pub fn place(&self) -> PlaceCollector {
        let record = self.clone();
        Box::new(move |collector| Box::new(WithRecord { collector, record }))
    }
}

impl Sink for SharedRecord {
    fn receive(&mut self, event: &Event) -> telemetry::Result<()> {
        let EventKind::Rollout { record } = &event.kind else { return Ok(()) };
        let (remade, _) = Group::read(record).expect("a record that was just written");
        self.lock().compare(&remade);
        Ok(())
    }
}

/// Generates, and has some of the scores from a record.
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
