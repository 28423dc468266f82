//! The HTTP route `/metrics`: all runs in Prometheus' text format.

use super::Shared;
use crate::run::RunFiles;
use crate::runs::lock;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use telemetry::prometheus::{CONTENT_TYPE, RunMetrics, exposition};

pub(super) async fn metrics(State(site): Shared) -> Response {
    let runs = site.runs.all().into_iter();
    let runs: Vec<RunMetrics> = runs.map(|(id, run)| exported(id, &mut lock(&run))).collect();
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], exposition(&runs)).into_response()
}

/// The exported metrics of a run.
fn exported(id: String, run: &mut RunFiles) -> RunMetrics {
    run.refresh();
    let state = run.state();
    let verdict = run.verdict_as(state != "running");
    let (step, total_steps) = run.progress();
    let has_learned = verdict.has_learned();
    let weight = |alarm: &telemetry::Alarm| serde_json::to_value(alarm.weight(has_learned)).unwrap_or_default();
    let alarm = |alarm: telemetry::Alarm| {
        let weight = weight(&alarm).as_str().unwrap_or_default().to_owned();
        (alarm.id, alarm.subject, weight)
    };
    let series = run.series();
    let latest = |key: &str| Some((key.to_owned(), series.values(key).last()?.1));
    RunMetrics {
        run: id,
        name: run.config().name().map(str::to_owned),
        state,
        step,
        total_steps,
        alarms: run.active_alarms(&verdict).into_iter().map(alarm).collect(),
        metrics: series.keys().filter_map(latest).collect(),
    }
}
