//! Generation divided among the ranks of a run: each rank generates some of the groups, with its own engine and part of
//! the threads, and with the weights that all ranks read in shared memory.
//!
//! A group's bits depend only on its job: prompt, group number, sampling parameters and version of the weights. So the
//! division changes no bit. Where possible, a rank generates the groups for which it also computes the gradient (see
//! [`train::OtherRanks`]). Rank 0 sends jobs, generates its own groups meanwhile, and receives the others with their
//! columns.

mod protocol;
mod server;

pub use protocol::Division;
pub use server::RankEngine;

use super::jobs::{GroupAnswer, GroupJob};
use crate::data::prompts::Prompt;
use anyhow::{Context as _, bail};
use model::kept::RolloutActivations;
use model::{AdaptedWeights, ModelView, Updates};
use protocol::{Reply, Request, add_text, bytes, numbers};
use ranks::Message;
use rewards::Content;
use rollout::{Counters, Drive, Engine, Outcome, RolloutGroup, SamplingParams, Speculative};
use serde_json::Map;
use std::sync::Arc;
use std::time::Duration;
use telemetry::Step;
use train::OtherRanks;

/// How long rank 0 sleeps while it waits for other ranks.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// The engines of the other ranks, as rank 0 sees them.
pub struct DividedEngine {
    ranks: OtherRanks,
    /// The number of groups of an optimizer step.
    groups_per_step: usize,
    /// The number of calls so far.
    calls: u64,
    /// The last generation whose activations are kept.
    kept: Option<u64>,
    /// The number of tokens that other ranks generated so far.
    tokens: u64,
    /// The counts of their engines in the last call.
    counters: Counters,
    /// For each rank, the completions of others since its last call; none without speculative decoding.
    texts: Option<Vec<Vec<u32>>>,
}

/// Lets other ranks read the published weights: for the next generation, or until the gradient is complete.
pub fn share(ranks: &OtherRanks, weights: &AdaptedWeights) -> anyhow::Result<()> {
    let published = weights.published_at().context("the weights must be published before ranks read them")?;
    Ok(ranks.share_weights(published, weights.shared_base.as_deref())?)
}

/// The work of another rank in a call.
#[derive(Default)]
struct Part {
    /// For each job, the index of its request.
    places: Vec<usize>,
    jobs: Vec<GroupJob>,
    is_done: bool,
}

impl DividedEngine {
    /// Builds an engine on each other rank, of the same sizes and with the same drafts as that of rank 0.
    pub fn new(ranks: OtherRanks, engine: &Engine, division: &Division) -> anyhow::Result<DividedEngine> {
        // A launcher may start the ranks in other directories.
        let tokenizer = std::path::absolute(&division.tokenizer)?;
        let (groups_per_step, division) = (division.groups_per_step, Division { tokenizer, ..division.clone() });
        let (sizes, drafts) = (engine.config().clone(), engine.drafts());
        let drafted = sizes.speculative != Speculative::Off;
        let request = Request::Build { sizes, division, drafts: drafts.len() };
        let request = Message::json(&request, numbers(&drafts))?;
        for rank in 1..ranks.world_size() {
            ranks.send(rank, request.clone())?;
        }
        for rank in 1..ranks.world_size() {
            let reply = loop {
                match ranks.try_receive(rank)? {
                    Some(reply) => break reply,
                    None => std::thread::sleep(POLL_INTERVAL),
                }
            };
            let Reply::Ready = reply.value()? else { bail!("rank {rank} sent an unexpected reply: {}", reply.text) };
        }
        let texts = drafted.then(|| vec![Vec::new(); ranks.world_size()]);
        let counters = Counters::default();
        Ok(DividedEngine { ranks, groups_per_step, calls: 0, kept: None, tokens: 0, counters, texts })
    }

    /// The number of tokens that other ranks generated so far.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The counts of the engines of other ranks in the last call.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The other ranks.
    pub fn ranks(&self) -> &OtherRanks {
        &self.ranks
    }

    /// Generates the completions of these requests with the current weights, which must be
    /// [shared](share). `engine` is rank 0's; if it keeps activations, they are `activations`, and other ranks
    /// keep those of their groups. Like [`Engine::generate_with`].
    pub fn generate_with(
        &mut self,
        engine: &mut Engine,
        model: ModelView<'_>,
        requests: Vec<rollout::Request>,
        activations: Option<&RolloutActivations>,
        mut on_end: impl FnMut(&RolloutGroup),
    ) -> anyhow::Result<Vec<RolloutGroup>> {
        self.calls += 1;
        self.counters = Counters::default();
        let keeps = activations.map(|activations| activations.lock().generation());
        if keeps.is_some() && keeps != self.kept {
            self.ranks.forget_kept();
            self.kept = keeps;
        }
        let mut parts: Vec<Part> = (1..self.ranks.world_size()).map(|_| Part::default()).collect();
        let mut groups: Vec<Option<RolloutGroup>> = requests.iter().map(|_| None).collect();
        let (all, mut drive) = (requests.len(), Drive::new(&mut *engine));
        let updates = model.version().trained();
        let mut own = Vec::new();
        for (place, request) in requests.into_iter().enumerate() {
            match rank_of(place, all, self.groups_per_step, self.ranks.world_size()) {
                0 => own.push((place, request)),
                rank => {
                    parts[rank - 1].places.push(place);
                    parts[rank - 1].jobs.push(job(request, updates));
                }
            }
        }
        for (rank, part) in (1..).zip(&mut parts) {
            part.is_done = part.jobs.is_empty();
            if !part.is_done {
                let jobs: Vec<Vec<u8>> = part.jobs.iter().map(GroupJob::to_bytes).collect();
                let texts = self.texts.as_mut().map_or(Vec::new(), |texts| std::mem::take(&mut texts[rank]));
                let texts: Vec<u8> = texts.iter().flat_map(|id| id.to_le_bytes()).collect();
                let lengths = jobs.iter().map(Vec::len).collect();
                let request = Request::Generate { number: self.calls, jobs: lengths, texts: texts.len(), keeps };
                self.ranks.send(rank, Message::json(&request, numbers(&[jobs.concat(), texts].concat()))?)?;
            }
        }
        let mut take = |place: usize, group: RolloutGroup| {
            on_end(&group);
            groups[place] = Some(group);
        };
        let generated = own.into_iter().try_for_each(|(place, request)| drive.submit(place, request).map(drop));
        let generated = generated.map_err(anyhow::Error::from).and_then(|()| {
            loop {
                // Without own sequences, a step only checks whether the run is stopped.
                for outcome in drive.step(model)? {
                    if let Outcome::Ended { owner, group, .. } = outcome {
                        take(owner, group);
                    }
                }
                let received = self.receive(&mut parts, &mut take)?;
                if drive.is_idle() {
                    match parts.iter().all(|part| part.is_done) {
                        true => return Ok(()),
                        false if !received => std::thread::sleep(POLL_INTERVAL),
                        false => {}
                    }
                }
            }
        });
        if generated.is_err() {
            drive.cancel_of(|_| true);
        }
        generated?;
        let groups: Option<Vec<_>> = groups.into_iter().collect();
        let groups = groups.context("a rank has not generated all of its groups")?;
        self.share_texts(engine, &groups);
        Ok(groups)
    }

    /// With speculative decoding, lets each rank draft from the completions of the others.
    fn share_texts(&mut self, engine: &mut Engine, groups: &[RolloutGroup]) {
        let Some(texts) = &mut self.texts else { return };
        for (place, group) in groups.iter().enumerate() {
            let from = rank_of(place, groups.len(), self.groups_per_step, texts.len());
            let completions = || group.completions.iter().map(|completion| &completion.ids[..]);
            if from != 0 {
                engine.remember(&group.prompt.ids, completions());
            }
            for (_, text) in texts.iter_mut().enumerate().skip(1).filter(|(rank, _)| *rank != from) {
                add_text(text, &group.prompt.ids, completions());
            }
        }
    }

    /// Takes the groups that have arrived from other ranks. Returns whether there were messages.
    fn receive(&mut self, parts: &mut [Part], take: &mut impl FnMut(usize, RolloutGroup)) -> anyhow::Result<bool> {
        let mut received = false;
        for (rank, part) in (1..).zip(parts) {
            while !part.is_done
                && let Some(reply) = self.ranks.try_receive(rank)?
            {
                received = true;
                match reply.value()? {
                    // Replies to a cancelled call may arrive first.
                    Reply::Group { number, .. } | Reply::Done { number, .. } if number != self.calls => {}
                    Reply::Group { bytes: length, kept, .. } => {
                        let answer = &bytes(&reply.numbers, &[length])?[0];
                        let (place, before, group) =
                            part.group(answer).with_context(|| format!("the answer of rank {rank}"))?;
                        if kept {
                            self.ranks.note_kept(rank, group.group);
                        }
                        let tokens = group.completions.iter().map(|c| c.ids.len()).sum::<usize>();
                        self.tokens += tokens.saturating_sub(before) as u64;
                        take(place, group);
                    }
                    Reply::Done { counters, .. } => {
                        part.is_done = true;
                        self.counters.add_counts(&counters);
                    }
                    Reply::Ready => bail!("rank {rank} sent an unexpected reply: {}", reply.text),
                }
            }
        }
        Ok(received)
    }
}

impl Part {
    /// The group in an answer, the index of its request, and the number of tokens that were generated before.
    fn group(&self, answer: &[u8]) -> anyhow::Result<(usize, usize, RolloutGroup)> {
        let group = GroupAnswer::group_of(answer)?;
        let found = self.jobs.iter().zip(&self.places).find(|(job, _)| job.group == group);
        let (job, &place) = found.context("it belongs to another job")?;
        let before = job.so_far.iter().map(|c| c.ids.len()).sum();
        Ok((place, before, GroupAnswer::from_bytes(answer, job)?.group))
    }
}

/// The rank that generates the group at index `place` of `all`: if optimizer steps have the same number of groups for
/// each rank, the one that computes the gradient of the group; else equal parts are consecutive groups.
fn rank_of(place: usize, all: usize, groups_per_step: usize, ranks: usize) -> usize {
    let is_of_steps = groups_per_step.is_multiple_of(ranks) && all.is_multiple_of(groups_per_step);
    let part = if is_of_steps { groups_per_step } else { all };
    place % part * ranks / part
}

/// The job of a request. Rewards, which read the rest of the row, are rank 0's.
fn job(request: rollout::Request, updates: Updates) -> GroupJob {
    let rollout::Request { group, prompt, num_generations, sampling, so_far, until, .. } = request;
    GroupJob {
        group,
        prompt: Prompt { row: 0, tokens: prompt, content: Content::Text(String::new()), columns: Map::new() },
        num_generations,
        sampling: Arc::try_unwrap(sampling).unwrap_or_else(|shared| SamplingParams::clone(&shared)),
        updates,
        step: Step::START,
        rewards: Vec::new(),
        so_far,
        until,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As ⌊⌊i·S/n⌋·R/S⌋ with S = R, the smallest number of shares (`train::trainer::shares`).
    #[test]
    fn a_group_is_generated_where_its_gradient_is_computed() {
        let ranks =
            |all, per_step, ranks| (0..all).map(|place| rank_of(place, all, per_step, ranks)).collect::<Vec<_>>();
        assert_eq!(ranks(8, 4, 2), [0, 0, 1, 1, 0, 0, 1, 1]);
        assert_eq!(ranks(8, 8, 4), [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!(ranks(6, 2, 2), [0, 1, 0, 1, 0, 1]);
        // The groups of a step that ranks cannot divide evenly, and groups that belong to no step.
        assert_eq!(ranks(3, 3, 2), [0, 0, 1]);
        assert_eq!(ranks(4, 1, 4), [0, 1, 2, 3]);
        assert_eq!(ranks(5, 4, 2), [0, 0, 0, 1, 1]);
        assert_eq!(ranks(1, 4, 4), [0]);
        assert!(ranks(0, 4, 4).is_empty());
    }
}
