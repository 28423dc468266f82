//! What the learner of a distributed run checks of its workers' answers, while the weights that made them are there:
//! whether a job gives them (`trust = "audit"`), and whether these weights give their log-probabilities
//! (`audit_stale`).

use super::workers::{Arrived, Workers};
use super::{RolloutPipeline, stages};
use crate::config::{Config, Trust};
use crate::error::OrBadInput;
use crate::rollouts::audit::{Remaker, difference};
use crate::rollouts::collector::Collected;
use crate::rollouts::jobs::GroupAnswer;
use crate::rollouts::samples;
use crate::run::training::TrainingRun;
use fleet::{JobName, WorkerName};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

/// Which answers are checked, and what came of it since the start.
pub(super) struct Auditor {
    /// Shares of the groups.
    remade: f64,
    rescored: f64,
    /// Nobody knows before which groups these are: whoever does would lie in the others.
    pick: RandomState,
    /// Rewards that give the same score whenever they are asked.
    asked_again: BTreeSet<String>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    groups: usize,
    tokens: usize,
    mismatches: usize,
    expelled: usize,
}

impl Auditor {
    /// As the configuration says.
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

    /// Whether it needs the weights that made an answer.
    pub fn is_on(&self) -> bool {
        self.remade > 0.0 || self.rescored > 0.0
    }

    fn picks(&self, share: f64, number: u64) -> bool {
        // 53 random bits are a number below 1.
        ((self.pick.hash_one(number) >> 11) as f64) < share * (1u64 << 53) as f64
    }

    /// What is logged.
    pub fn metrics(&self) -> Vec<(&'static str, f64)> {
        let Counts { groups, tokens, mismatches, expelled } = self.counts;
        let all = [
            (self.remade, "groups_audited", groups),
            (self.remade, "workers_expelled", expelled),
            (self.rescored, "logp_audited_tokens", tokens),
            (self.rescored, "logp_mismatch_tokens", mismatches),
        ];
        all.into_iter().filter(|(share, ..)| *share > 0.0).map(|(_, name, count)| (name, count as f64)).collect()
    }
}

impl Workers {
    /// Does a share of a batch's jobs again. The first worker whose answer is another is expelled, and its groups from
    /// this batch on are made again; whether there was one.
    pub(super) fn expels_a_liar(&mut self, run: &TrainingRun, batch: u64, arrived: &Arrived) -> anyhow::Result<bool> {
        let Some((worker, what)) = self.find_liar(run, batch, arrived)? else { return Ok(false) };
        let why = format!("worker {worker} is expelled: {what}");
        run.log.warn(&format!("{why}; what nobody has learned from of its groups is made again"));
        self.auditor.counts.expelled += 1;
        if let Some(fleet) = &mut self.fleet {
            fleet.expel(&worker, batch, &what)?;
        }
        Ok(true)
    }

    fn find_liar(
        &mut self,
        run: &TrainingRun,
        batch: u64,
        (pending, results): &Arrived,
    ) -> anyhow::Result<Option<(WorkerName, String)>> {
        let Workers { assembler, engine, fleet, auditor, .. } = self;
        let fleet = fleet.as_ref().filter(|fleet| fleet.can_remake(batch));
        let weights = fleet.and_then(|fleet| fleet.weights_of(batch));
        let (Some(engine), Some(pending), Some(weights)) = (engine, pending, weights) else { return Ok(None) };
        if auditor.remade == 0.0 {
            return Ok(None);
        }
        let (mut jobs, mut given) = (Vec::new(), Vec::new());
        for result in results {
            let JobName::Rollout { number, .. } = result.job else { continue };
            let Some(job) = pending.jobs.iter().find(|job| job.number == number) else { continue };
            match GroupAnswer::from_bytes(&result.bytes, job) {
                Ok(answer) if auditor.picks(auditor.remade, number) => {
                    jobs.push(job.clone());
                    given.push((&result.worker, answer, job));
                }
                Ok(_) => {}
                Err(error) => {
                    let what = format!("its answer to the job of group {number} cannot be read: {error}");
                    return Ok(Some((result.worker.clone(), what)));
                }
            }
        }
        if jobs.is_empty() {
            return Ok(None);
        }
        let _span = run.log.stages.span("audit");
        let (rewards, tokenizer, stop) = (&mut assembler.rewards[..], &*assembler.tokenizer, &assembler.stop);
        let asked = |name: &str| auditor.asked_again.contains(name);
        let remade = Remaker { engine, rewards, tokenizer, stop }.remake(weights.view(), &jobs, asked)?;
        auditor.counts.groups += jobs.len();
        Ok(given.into_iter().find_map(|(worker, answer, job)| {
            let found = difference(&answer, &job.rewards, remade.get(&job.number)?)?;
            Some((worker.clone(), format!("group {}, {found}", job.number)))
        }))
    }
}

impl RolloutPipeline {
    /// Computes the log-probabilities of a share of the batch again, with the older weights that sampled it.
    pub(super) fn score_again(
        &self,
        run: &TrainingRun,
        workers: &mut Workers,
        batch: u64,
        collected: &Collected,
        makers: &[(u64, WorkerName)],
    ) -> anyhow::Result<()> {
        let Workers { fleet: Some(fleet), auditor, .. } = workers else { return Ok(()) };
        let is_stale = fleet.plan().version(batch, 0) != batch;
        let (Some(weights), Some(scorer)) = (fleet.weights_of(batch).filter(|_| is_stale), &self.scorer) else {
            return Ok(());
        };
        let mut samples = samples::of_rollouts(&collected.scored.rollouts);
        samples.retain(|sample| auditor.picks(auditor.rescored, sample.group));
        if samples.is_empty() {
            return Ok(());
        }
        let _span = run.log.stages.span("audit");
        let sequences: Vec<_> = samples.iter().map(|sample| sample.sequence()).collect();
        let temperature = self.sampling.common().temperature;
        let scores = stages::lock(scorer).score(&run.learner.ctx, weights.view(), &sequences, temperature)?;
        for (sample, scores) in samples.iter().zip(scores) {
            let recorded = sample.columns.sampler_logps().unwrap_or_default();
            let pairs = recorded.iter().zip(&scores.logps).zip(&sample.mask).enumerate();
            let sampled = pairs.filter(|(_, (_, sampled))| **sampled).map(|(token, (pair, _))| (token, pair));
            let (mut tokens, mut first) = (0, None);
            for (token, (given, computed)) in sampled {
                tokens += 1;
                if given.to_bits() != computed.to_bits() {
                    auditor.counts.mismatches += 1;
                    first = first.or(Some((token, *given, *computed)));
                }
            }
            auditor.counts.tokens += tokens;
            if let Some((token, given, computed)) = first {
                let maker = makers.iter().find(|(number, _)| *number == sample.group);
                let maker = maker.map_or("somebody".to_owned(), |(_, worker)| format!("worker {worker}"));
                run.log.warn(&format!(
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
