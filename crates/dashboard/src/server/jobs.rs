//! HTTP routes for benchmark jobs: list the jobs that can be started, start and stop one, read its output.

use super::{Shared, answer, missing, number, words};
use crate::jobs::Refusal;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

pub(super) async fn state(State(site): Shared) -> Response {
    answer(&site.jobs.state())
}

pub(super) async fn start(State(site): Shared, body: Bytes) -> Response {
    let asked: Value = match serde_json::from_slice(&body) {
        Ok(asked) => asked,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("the job is no JSON: {error}")).into_response(),
    };
    match site.jobs.start(&asked) {
        Ok(state) => answer(&state),
        Err(Refusal::Bad(why)) => (StatusCode::BAD_REQUEST, why).into_response(),
        Err(Refusal::Busy) => (StatusCode::CONFLICT, "another job is running: stop it first").into_response(),
        Err(Refusal::NotAllowed) => {
            (StatusCode::FORBIDDEN, "this page may run nothing: start it with --allow-run").into_response()
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
