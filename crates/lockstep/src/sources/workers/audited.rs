//! The audit of a batch: while the weights of an answer are still in memory, the learner can regenerate the job's group
//! (`trust = "audit"`) and recompute its log-probabilities (`audit_stale`).

use super::learner::Arrived;
use super::source::WorkerSource;
use super::{Link, by_group};
use crate::rollouts::audit::{Remaker, difference};
use crate::rollouts::collector::Collected;
use crate::rollouts::function::lock;
use crate::rollouts::jobs::GroupJob;
use crate::rollouts::samples;
use crate::sources::{Now, Watch};
use fleet::{BatchId, JobResult, Version, WorkerName};
use model::net::Scores;
use model::{GroupId, HeldWeights, Updates};
use std::collections::BTreeMap;

impl WorkerSource {
    /// Repeats a share of a batch's jobs. The first worker whose answer differs is expelled, and its groups from this
    /// batch on are regenerated. Returns whether a worker was expelled.
    pub(super) fn expels_a_liar(
        &mut self,
        batch: BatchId,
        arrived: &Arrived,
        watch: &Watch<'_>,
    ) -> anyhow::Result<bool> {
        let Some((worker, what)) = self.find_liar(arrived, watch)? else { return Ok(false) };
        self.fleet()?.expel(&worker, batch, &what, watch.warn)?;
        Ok(true)
    }

    fn find_liar(
        &mut self,
        (pending, results): &Arrived,
        watch: &Watch<'_>,
    ) -> anyhow::Result<Option<(WorkerName, String)>> {
        let WorkerSource { assembler, engine, fleet, auditor, .. } = self;
        let (Some(engine), Some(pending), Some(fleet)) = (engine, pending, fleet.as_ref()) else { return Ok(None) };
        if auditor.remade == 0.0 {
            return Ok(None);
        }
        // Jobs by the version of their weights and by chunk, so that each list has at most one job of a group.
        let mut wanted: BTreeMap<(Version, usize), Vec<(&WorkerName, Link)>> = BTreeMap::new();
        for (group, results) in by_group(results) {
            let Some(whole) = pending.jobs.iter().find(|job| job.group == group) else { continue };
            let can_remake = |result: &JobResult| {
                fleet.can_remake(result.job) && fleet.weights_of(fleet.plan().version_of(result.job)).is_some()
            };
            if auditor.picks(auditor.remade, group) && results.iter().any(|result| can_remake(result)) {
                auditor.counts.groups.insert(group);
            }
            for (place, result) in results.iter().enumerate() {
                let mut chain = fleet.chain(whole, &results[..=place])?;
                let link = chain.pop().filter(|_| auditor.picks(auditor.remade, group) && can_remake(result));
                let version = fleet.plan().version_of(result.job);
                wanted.entry((version, place)).or_default().extend(link.map(|link| (&result.worker, link)));
            }
        }
        let _span = watch.stages.span("audit");
        let (rewards, tokenizer, stop) = (&mut assembler.rewards[..], &*assembler.tokenizer, &assembler.stop);
        let mut remaker = Remaker { engine, rewards, tokenizer, stop };
        for ((version, _), given) in wanted {
            let Some(weights) = fleet.weights_of(version) else { continue };
            let jobs: Vec<GroupJob> = given.iter().map(|(_, link)| link.job.clone()).collect();
            let remade = remaker.remake(weights.view(), &jobs, |name: &str| auditor.asked_again.contains(name))?;
            for (worker, Link { job, answer, .. }) in given {
                let found = remade.get(&job.group).and_then(|remade| difference(&answer, &job.rewards, remade));
                if let Some(found) = found {
                    return Ok(Some((worker.clone(), format!("group {}, {found}", job.group))));
                }
            }
        }
        Ok(None)
    }

    /// Recomputes the log-probabilities of a share of the batch with the older weights that sampled it.
    pub(super) fn score_again(
        &mut self,
        batch: BatchId,
        collected: &Collected,
        makers: &[(GroupId, WorkerName)],
        now: &Now<'_>,
    ) -> anyhow::Result<()> {
        let WorkerSource { fleet: Some(fleet), auditor, scorer, spec, .. } = self else { return Ok(()) };
        let plan = fleet.plan();
        let versions =
            (0..=plan.last_chunk()).map(|chunk| plan.version(batch, chunk)).filter(|&v| v != batch.version());
        let weights = versions.filter_map(|version| fleet.weights_of(version));
        // Weights by number of updates, which the tokens record.
        let weights: BTreeMap<Updates, &HeldWeights> =
            weights.map(|held| (held.view().version().trained(), held)).collect();
        let Some(scorer) = scorer.as_ref().filter(|_| !weights.is_empty()) else { return Ok(()) };
        let mut samples = samples::from_rollouts(&collected.scored.rollouts);
        samples.retain(|sample| auditor.picks(auditor.rescored, sample.group));
        if samples.is_empty() {
            return Ok(());
        }
        let _span = now.watch.stages.span("audit");
        let sequences: Vec<_> = samples.iter().map(|sample| sample.sequence()).collect();
        let temperature = spec.sampling.common().temperature;
        let score = |(&updates, held): (&Updates, &&HeldWeights)| -> anyhow::Result<(Updates, Vec<Scores>)> {
            let mut scorer = lock(scorer);
            Ok((updates, scorer.score(now.ctx, held.view(), &sequences, temperature)?))
        };
        let scores: BTreeMap<Updates, Vec<Scores>> = weights.iter().map(score).collect::<anyhow::Result<_>>()?;
        for (place, sample) in samples.iter().enumerate() {
            let recorded = sample.columns.sampler_logps().unwrap_or_default();
            let (mut tokens, mut first) = (0, None);
            for (token, given) in recorded.iter().enumerate().filter(|(token, _)| sample.loss_mask[*token]) {
                let Some(scores) = scores.get(&sample.versions[token]) else { continue };
                let computed = &scores[place].logps[token];
                tokens += 1;
                if given.to_bits() != computed.to_bits() {
                    auditor.counts.mismatches += 1;
                    first = first.or(Some((token, *given, *computed)));
                }
            }
            auditor.counts.tokens += tokens;
            if let Some((token, given, computed)) = first {
                let chunk = spec.config.partial_rollout_tokens.map_or(0, |tokens| token / tokens);
                let mut group_makers = makers.iter().filter(|(group, _)| *group == sample.group);
                let maker = group_makers.clone().nth(chunk).or_else(|| group_makers.next_back());
                let maker = maker.map_or("somebody".to_owned(), |(_, worker)| format!("worker {worker}"));
                (now.watch.warn)(&format!(
                    "group {}, token {token}: {maker} recorded the log-probability {given} ({:#010x}), but the weights \
                     that it names give {computed} ({:#010x})",
                    sample.group,
                    given.to_bits(),
                    computed.to_bits()
                ));
            }
        }
        Ok(())
    }
}
