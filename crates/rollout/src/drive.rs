//! One engine loop shared by several owners: a collection, the jobs of a worker, the sessions of a server. Each owner
//! submits requests at any time and gets their outcomes; the engine batches the requests of all owners.
//!
//! A call advances the engine by one step and then returns to the caller. Between two steps the caller may stream the
//! [drawn](Drive::drawn) tokens, resume paused completions, cancel requests, and switch weights.

use crate::request::{Drawn, Request, RequestId, RolloutGroup, SequenceId};
use crate::scheduler::Finished;
use crate::{Engine, Error, Models, Result};
use model::ModelView;
use std::borrow::BorrowMut;

/// Drives an engine for owners of type `O`. Requests that were submitted to the engine directly are also computed, but
/// their results stay in the engine.
pub struct Drive<O, E = Engine> {
    engine: E,
    /// Requests that have not ended, in the order of their submission.
    open: Vec<Open<O>>,
    /// Completions that were reported as paused and have not been resumed.
    paused: Vec<SequenceId>,
}

struct Open<O> {
    request: RequestId,
    owner: O,
    pauses: bool,
}

/// The outcome of a request in a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome<O> {
    /// All completions of the request have ended.
    Ended {
        /// The owner of the request.
        owner: O,
        /// The request.
        request: RequestId,
        /// The completions.
        group: RolloutGroup,
        /// The number of the prompt's tokens that were in the prefix cache when the request began.
        cached_tokens: usize,
    },
    /// A completion of a request with [`pause_on_stop`](Request::pause_on_stop) has stopped. It waits for
    /// [`extend`](Drive::extend) or [`finish`](Drive::finish).
    Paused {
        /// The owner of the request.
        owner: O,
        /// The request.
        request: RequestId,
        /// The completion.
        sequence: SequenceId,
    },
}

impl<O: Clone, E: BorrowMut<Engine>> Drive<O, E> {
    /// A drive without requests.
    pub fn new(engine: E) -> Drive<O, E> {
        Drive { engine, open: Vec::new(), paused: Vec::new() }
    }

    /// The engine.
    pub fn engine(&mut self) -> &mut Engine {
        self.engine.borrow_mut()
    }

    /// Accepts a request of `owner`.
    pub fn submit(&mut self, owner: O, request: Request) -> Result<RequestId> {
        let pauses = request.pause_on_stop;
        let request = self.engine.borrow_mut().submit(request)?;
        self.open.push(Open { request, owner, pauses });
        Ok(request)
    }

    /// Removes a request in any state. Returns false if it has already ended.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        self.open.retain(|open| open.request != request);
        self.engine.borrow_mut().cancel(request)
    }

    /// Removes all requests whose owners satisfy `is_one`.
    pub fn cancel_of(&mut self, is_one: impl Fn(&O) -> bool) {
        let Drive { engine, open, .. } = self;
        for cancelled in open.extract_if(.., |open| is_one(&open.owner)) {
            engine.borrow_mut().cancel(cancelled.request);
        }
    }

    /// Whether no sequence is running or waiting. Paused sequences do not count.
    pub fn is_idle(&self) -> bool {
        self.engine.borrow().is_idle()
    }

    /// Runs one step of the engine, with one base model, and for each sequence the adapter that its request names. If
    /// the step fails, no token was drawn; a request that names missing weights can then be cancelled.
    pub fn step<'a>(&mut self, models: impl Into<Models<'a>>) -> Result<Vec<Outcome<O>>> {
        let Drive { engine, open, paused } = self;
        let engine = engine.borrow_mut();
        engine.check_stopped()?;
        let is_own = |request| open.iter().any(|open| open.request == request);
        let mut outcomes = Vec::new();
        for Finished { request, group, cached_tokens } in engine.advance(models.into(), is_own)? {
            if let Some(place) = open.iter().position(|open| open.request == request) {
                let Open { owner, .. } = open.remove(place);
                outcomes.push(Outcome::Ended { owner, request, group, cached_tokens });
            }
        }
        if open.iter().any(|open| open.pauses) {
            let now = engine.paused_requests();
            paused.retain(|sequence| now.iter().any(|(other, _)| other == sequence));
            for (sequence, request) in now {
                let Some(open) = open.iter().find(|open| open.request == request) else { continue };
                if !paused.contains(&sequence) {
                    paused.push(sequence);
                    outcomes.push(Outcome::Paused { owner: open.owner.clone(), request, sequence });
                }
            }
        }
        Ok(outcomes)
    }

    /// The tokens that the last step drew, for all requests of the engine.
    pub fn drawn(&self) -> &[Drawn] {
        self.engine.borrow().drawn()
    }

    /// Appends `tokens`, which the model did not sample, to a paused completion, and resumes it. Returns false if the
    /// completion is not paused.
    pub fn extend(&mut self, sequence: SequenceId, tokens: &[u32]) -> bool {
        self.paused.retain(|paused| *paused != sequence);
        self.engine.borrow_mut().extend(sequence, tokens)
    }

    /// Ends a paused completion. Returns false if the completion is not paused.
    pub fn finish(&mut self, sequence: SequenceId) -> bool {
        self.paused.retain(|paused| *paused != sequence);
        self.engine.borrow_mut().finish(sequence)
    }
}

impl<E: BorrowMut<Engine>> Drive<usize, E> {
    /// Submits these requests to a drive without other requests, with their indices as owners, and runs steps until all
    /// have ended. Returns the groups in the order of the requests, and passes each one to `on_end` as soon as it has
    /// ended. Requests that pause are rejected.
    fn run(
        &mut self,
        models: Models<'_>,
        requests: Vec<Request>,
        mut on_end: impl FnMut(&RolloutGroup),
    ) -> Result<Vec<RolloutGroup>> {
        let mut groups: Vec<Option<RolloutGroup>> = requests.iter().map(|_| None).collect();
        for (place, request) in requests.into_iter().enumerate() {
            if request.pause_on_stop {
                return Err(Error::Pauses);
            }
            self.submit(place, request)?;
        }
        while groups.iter().any(Option::is_none) {
            let outcomes = self.step(models)?;
            if outcomes.is_empty() && self.is_idle() {
                break;
            }
            for outcome in outcomes {
                if let Outcome::Ended { owner, group, .. } = outcome {
                    on_end(&group);
                    groups[owner] = Some(group);
                }
            }
        }
        Ok(groups.into_iter().flatten().collect())
    }
}

impl Engine {
    /// Generates the completions of these requests. Returns one group per request, in order.
    pub fn generate<'a>(
        &mut self,
        model: impl Into<ModelView<'a>>,
        requests: Vec<Request>,
    ) -> Result<Vec<RolloutGroup>> {
        self.generate_with(model, requests, |_| {})
    }

    /// As [`generate`](Self::generate), but passes each group to a callback as soon as its last completion has ended.
    /// If the call fails, its requests are cancelled. Other requests of the engine are also computed, and are not
    /// affected.
    pub fn generate_with<'a>(
        &mut self,
        model: impl Into<ModelView<'a>>,
        requests: Vec<Request>,
        on_end: impl FnMut(&RolloutGroup),
    ) -> Result<Vec<RolloutGroup>> {
        let mut drive = Drive::new(self);
        let groups = drive.run(model.into().into(), requests, on_end);
        if groups.is_err() {
            drive.cancel_of(|_| true);
        }
        groups
    }
}
