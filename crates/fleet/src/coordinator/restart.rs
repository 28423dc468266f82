//! Starts a coordinator for a new run, or from a checkpoint and the batch files that survived.

use super::{Coordinator, JobState, Phase, Rules, Saved, SyncedBatch};
use crate::ids::{BatchId, Version};
use crate::job::Lineage;
use crate::plan::Plan;
use std::collections::BTreeMap;

impl Coordinator {
    /// The coordinator of a new run, at version 0. It offers jobs only after [`super::Event::Recovered`].
    pub fn start(plan: Plan, origin: Lineage) -> Result<Coordinator, String> {
        let version = Version(0);
        let lineages = BTreeMap::from([(version, origin)]);
        let saved = Saved { version, in_batch: false, lineages, frontier: BTreeMap::new() };
        Coordinator::resume(plan, saved, BTreeMap::new())
    }

    /// The coordinator of a run that resumes from a checkpoint and the batch files on disk. Before
    /// [`super::Event::Recovered`] the caller must report which workers exist, which jobs they have, and which results
    /// survived.
    pub fn resume(plan: Plan, saved: Saved, files: BTreeMap<BatchId, SyncedBatch>) -> Result<Coordinator, String> {
        Coordinator::with_rules(plan, saved, files, Rules::ALL)
    }

    pub(crate) fn with_rules(
        plan: Plan,
        saved: Saved,
        files: BTreeMap<BatchId, SyncedBatch>,
        rules: Rules,
    ) -> Result<Coordinator, String> {
        plan.check()?;
        let version = saved.version;
        if !saved.lineages.contains_key(&version) {
            return Err(format!("the checkpoint of version {version} lacks the lineage of its own weights"));
        }
        let mut coordinator = Coordinator {
            plan,
            rules,
            batch: version.batch(),
            phase: Phase::Starting,
            // Older versions of this program also saved the lineages of versions that were not published yet.
            lineages: saved.lineages.into_iter().filter(|(of, _)| *of <= version).collect(),
            synced: Default::default(),
            replayed: version.batch(),
            first: if saved.in_batch { version.batch().next().version() } else { version },
            jobs: BTreeMap::new(),
            workers: BTreeMap::new(),
            expelled: Default::default(),
        };
        let mut answers = saved.frontier;
        let mut batch = version.batch();
        while let Some(file) = files.get(&batch).filter(|_| rules.replay) {
            coordinator.synced.insert(batch);
            batch = batch.next();
            coordinator.replayed = batch;
            answers.extend(file);
        }
        for (job, answer) in answers {
            coordinator.jobs.insert(job, JobState { answer: Some(answer), ..JobState::default() });
        }
        Ok(coordinator)
    }
}
