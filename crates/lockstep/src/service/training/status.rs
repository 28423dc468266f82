//! Counts and times of training, for the metrics of the server.

use super::Training;
use super::job::{Done, Pending};
use std::time::{Duration, Instant};

/// The work of the owner so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrainingCounts {
    /// The number of requests whose computation has begun.
    pub requests: u64,
    /// The number of passes that succeeded.
    pub passes: u64,
    /// The number of optimizer steps that were taken.
    pub steps: u64,
    /// The number of tokens in the sequences of computed micro-batches.
    pub tokens: u64,
    /// The sum of the times between the acceptance of a request and the beginning of its computation.
    pub waited: Duration,
    /// The time of training on the owner's thread.
    pub time: Duration,
}

/// The state of training.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrainingStatus {
    /// The number of sessions that have not ended.
    pub sessions: usize,
    /// The number of models in training.
    pub models: usize,
    /// The number of samplers' adapters in memory.
    pub sampler_adapters: usize,
    /// The number of requests that wait to be computed.
    pub waiting: usize,
    /// The number of bytes of requests that wait or are computed.
    pub bytes: usize,
    /// How long the request has waited that waits for the longest time.
    pub longest_wait: Duration,
    /// Counts so far.
    pub counts: TrainingCounts,
}

impl TrainingCounts {
    /// Counts a request whose computation begins.
    pub(super) fn begin(&mut self, pending: &Pending) {
        self.requests += 1;
        self.waited += pending.since.elapsed();
    }
}

impl Training {
    /// The state now.
    pub fn status(&self) -> TrainingStatus {
        let inner = self.lock();
        let waiting = || inner.models.values().flat_map(|entry| entry.queue.waiting());
        let oldest: Option<Instant> = waiting().map(|pending| pending.since).min();
        TrainingStatus {
            sessions: inner.sessions.values().filter(|session| session.closed.is_none()).count(),
            models: inner.models.values().filter(|entry| entry.info.is_some()).count(),
            sampler_adapters: inner.samplers.values().filter(|found| found.sampler.has_adapter()).count(),
            waiting: waiting().count(),
            bytes: inner.room.bytes(),
            longest_wait: oldest.map_or(Duration::ZERO, |since| since.elapsed()),
            counts: inner.counts,
        }
    }

    /// Counts a request that succeeded.
    pub(super) fn succeeded(&self, done: &Done) {
        let counts = &mut self.lock().counts;
        counts.passes += u64::from(matches!(done, Done::Passed(_)));
        counts.steps += u64::from(matches!(done, Done::Stepped { .. }));
    }

    /// Counts the tokens of computed micro-batches, and the time of training.
    pub(super) fn computed(&self, tokens: usize, time: Duration) {
        let counts = &mut self.lock().counts;
        counts.tokens += tokens as u64;
        counts.time += time;
    }
}
