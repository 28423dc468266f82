//! HTTP routes for jobs: list the possible jobs, start and stop a job, read its output. This crate does not start
//! programs: the caller may pass an implementation of [`Jobs`].

use super::{Shared, answer, missing, number, words};
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Starts jobs for the page, one at a time.
pub trait Jobs: Send + Sync {
    /// The possible jobs and the state of the last job: an object with `allowed`, `algorithms`, `presets`, `shapes`,
    /// `most_steps` and `job`.
    fn state(&self) -> Value;

    /// The output lines of job `number` starting at index `from`, and its state; `None` if it is no longer the last
    /// job.
    fn events(&self, number: u64, from: usize) -> Option<(Vec<Value>, &'static str)>;

    /// Starts the requested job: `{"algorithm": …, "shape": …, "levels": [ids], "steps": n}`, or with a `preset`
    /// instead of the algorithm. Returns the new state.
    fn start(&self, asked: &Value) -> Result<Value, Refusal>;

    /// Stops the running job. Its results so far are kept.
    fn stop(&self);
}

/// The reason why a job was not started.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The page may not start jobs.
    NotAllowed,
    /// Another job is running.
    Busy,
    /// The request does not describe a valid job. The string has the reason.
    Bad(String),
}

/// The jobs of a page that cannot start any.
pub(super) struct NoJobs;

impl Jobs for NoJobs {
    fn state(&self) -> Value {
        json!({ "allowed": false, "algorithms": [], "presets": [], "shapes": [], "job": null })
    }

    fn events(&self, _: u64, _: usize) -> Option<(Vec<Value>, &'static str)> {
        None
    }

    fn start(&self, _: &Value) -> Result<Value, Refusal> {
        Err(Refusal::NotAllowed)
    }

    fn stop(&self) {}
}

pub(super) async fn state(State(site): Shared) -> Response {
    answer(&site.jobs.state())
}

pub(super) async fn start(State(site): Shared, body: Bytes) -> Response {
    let asked: Value = match serde_json::from_slice(&body) {
        Ok(asked) => asked,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("the job must be JSON: {error}")).into_response(),
    };
    match site.jobs.start(&asked) {
        Ok(state) => answer(&state),
        Err(Refusal::Bad(why)) => (StatusCode::BAD_REQUEST, why).into_response(),
        Err(Refusal::Busy) => (StatusCode::CONFLICT, "another job is running: stop it first").into_response(),
        Err(Refusal::NotAllowed) => {
            (StatusCode::FORBIDDEN, "this page is not allowed to start measurements: start it with --allow-run")
                .into_response()
        }
    }
}

pub(super) async fn stop(State(site): Shared) -> Response {
    site.jobs.stop();
    answer(&site.jobs.state())
}

pub(super) async fn events(State(site): Shared, Path(job): Path<u64>, uri: Uri) -> Response {
    match site.jobs.events(job, number(&words(&uri), "from", 0)) {
        Some((events, state)) => answer(&json!({ "events": events, "state": state })),
        None => missing(),
    }
}
