//! The learner's audit of its workers in a distributed run. While the weights that made an answer are still in memory,
//! the learner can generate the job's group again (`trust = "audit"`) and can recompute its log-probabilities
//! (`audit_stale`).

use super::source::{Arrived, WorkerSource};
use super::{Link, by_group};
use crate::config::{Config, Trust};
use crate::error::OrBadInput;
use crate::rollouts::audit::{Remaker, difference};
use crate::rollouts::collector::Collected;
use crate::rollouts::function::lock;
use crate::rollouts::jobs::GroupJob;
use crate::rollouts::samples;
use crate::sources::{Now, Watch};
use fleet::{BatchId, JobResult, Version, WorkerName};
use model::net::Scores;
use model::{GroupId, HeldWeights, Updates};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};

/// Chooses which answers are audited, and counts the results since the learner started.
pub(super) struct Auditor {
    /// The share of groups that are generated again, from 0 to 1; below it, the share whose log-probabilities are
    /// recomputed.
    remade: f64,
    rescored: f64,
    /// Random keys that choose the groups. A worker must not be able to predict the choice, or it could lie about the
    /// other groups.
    pick: RandomState,
    /// Names of the deterministic rewards, whose scores can be compared when they are called again.
    asked_again: BTreeSet<String>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    /// Audited groups. It is a set because the parts of a group may be audited at different times: for a checkpoint,
    /// and when the batch has arrived.
    groups: BTreeSet<GroupId>,
    tokens: usize,
    mismatches: usize,
}

impl Auditor {
    /// An auditor with the shares of the configuration.
    pub fn new(config: &Config) -> anyhow::Result<Auditor> {
        let names = rewards::names(&config.reward_funcs).or_bad_input()?;
        let pairs = names.into_iter().zip(&config.reward_funcs);
        Ok(Auditor {
            remade: if config.trust == Trust::Audit { config.audit_share } else { 0.0 },
            rescored: if config.max_staleness > 0 { config.audit_stale } else { 0.0 },
            pick: RandomState::new(),
            asked_again: pairs.filter(|(_, spec)| spec.is_deterministic()).map(|(name, _)| name).collect(),
            counts: Counts::default(),
        })
    }

    /// Whether auditing needs the older weights that made an answer.
    pub fn is_on(&self) -> bool {
        self.remade > 0.0 || self.rescored > 0.0
    }

    fn picks(&self, share: f64, group: GroupId) -> bool {
        // 53 random bits are a number below 1.
        ((self.pick.hash_one(group) >> 11) as f64) < share * (1u64 << 53) as f64
    }

    /// The metrics that are logged, without their prefix. `expelled` counts the workers that were expelled, also for
    /// answers that cannot be read.
    pub fn metrics(&self, expelled: usize) -> Vec<(&'static str, f64)> {
        let Counts { groups, tokens, mismatches } = &self.counts;
        let all = [
            (self.remade, "groups_audited", groups.len()),
            (self.remade, "workers_expelled", expelled),
            (self.rescored, "logp_audited_tokens", *tokens),
            (self.rescored, "logp_mismatch_tokens", *mismatches),
        ];
        all.into_iter().filter(|(share, ..)| *share > 0.0).map(|(_, name, count)| (name, count as f64)).collect()
    }
}

impl WorkerSource {
    /// Does a share of a batch's jobs again. The first worker whose answer differs is expelled, and its groups from
    /// this batch on are generated again. Returns whether a worker was expelled.
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
        // By the version of their weights and the chunk: of a group one at once.
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

    /// Recomputes the log-probabilities of a share of the batch, with the older weights that sampled it.
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
        // By the updates that they have had, as tokens name them.
        let weights: BTreeMap<Updates, &HeldWeights> =
            weights.map(|held| (held.view().version().trained(), held)).collect();
        let Some(scorer) = scorer.as_ref().filter(|_| !weights.is_empty()) else { return Ok(()) };
        let mut samples = samples::of_rollouts(&collected.scored.rollouts);
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
                let mut of_group = makers.iter().filter(|(group, _)| *group == sample.group);
                let maker = of_group.clone().nth(chunk).or_else(|| of_group.next_back());
                let maker = maker.map_or("somebody".to_owned(), |(_, worker)| format!("worker {worker}"));
                (now.watch.warn)(&format!(
                    "group {}, token {token}: {maker} recorded the log-probability {given} ({:#010x}), and the weights \
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

#[cfg(test)]
mod tests {
    use super::*;

    fn auditor(change: impl FnOnce(&mut Config)) -> Auditor {
        let mut config =
            Config { reward_funcs: vec!["unique_chars".into(), "command:./r".into()], ..Config::default() };
        (config.audit_share, config.audit_stale) = (0.25, 0.5);
        change(&mut config);
        Auditor::new(&config).unwrap()
    }

    #[test]
    fn the_shares_are_those_of_the_configuration() {
        let of = |change: fn(&mut Config)| {
            let auditor = auditor(change);
            (auditor.remade, auditor.rescored, auditor.is_on())
        };
        assert_eq!(of(|_| {}), (0.0, 0.0, false));
        assert_eq!(of(|c| c.trust = Trust::Audit), (0.25, 0.0, true));
        assert_eq!(of(|c| c.max_staleness = 1), (0.0, 0.5, true));
        assert_eq!(of(|c| (c.trust, c.max_staleness) = (Trust::Audit, 1)), (0.25, 0.5, true));
        assert_eq!(of(|c| (c.max_staleness, c.audit_stale) = (1, 0.0)), (0.0, 0.0, false));
        assert_eq!(auditor(|_| {}).asked_again, ["unique_chars".to_owned()].into());
    }

    #[test]
    fn a_share_of_the_groups_is_picked() {
        let auditor = auditor(|_| {});
        let picked =
            |share: f64| (0..4000).map(GroupId).filter(|&group| auditor.picks(share, group)).collect::<BTreeSet<_>>();
        assert_eq!((picked(0.0).len(), picked(1.0).len()), (0, 4000));
        let (quarter, half) = (picked(0.25), picked(0.5));
        // Some twenty standard deviations on each side.
        assert!((450..1550).contains(&quarter.len()) && (1400..2600).contains(&half.len()));
        assert!(quarter.is_subset(&half) && quarter == picked(0.25), "the choice is the same each time");
    }
}
