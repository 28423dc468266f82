//! `lockstep queue`: shows the jobs of a distributed run.

use crate::output::{self, columns};
use crate::status;
use fleet::exchange::LearnerState;
use fleet::status::{JobFiles, Status, WorkerLine};
use fleet::{BatchId, GroupId, JobName, JobResult, Plan, Version, WorkerName};
use lockstep::error::{BadInput, OrBadInput};
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::path::{Path, PathBuf};

/// Shows the jobs of a distributed run: all jobs by state, or one in detail. Only reads the run's files.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run's directory.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    #[command(subcommand)]
    pub what: What,
}

#[derive(Debug, clap::Subcommand)]
pub enum What {
    /// Lists jobs by state: pending, processing (by a worker), complete (from a worker); then the batches whose results
    /// are all on disk (synced).
    Ls {
        /// Prints one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Shows one job: the version of its weights, the size of its payload, its results.
    Show {
        /// The job's name: 000123.0 is chunk 0 of group 123.
        #[arg(value_name = "JOB")]
        job: String,
        /// Prints one JSON document.
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let status = status::read(&args.run)?;
    match args.what {
        What::Ls { json } => list(&status, json),
        What::Show { job, json } => {
            let job = parse(&job)?;
            // Read after `status`, so that the result of a job that finishes in between is shown.
            let found = fleet::status::find(&args.run, job).or_bad_input()?;
            let places = places(&status, job);
            if places.is_empty() && found == JobFiles::default() {
                return Err(unknown(&args.run, &status, job));
            }
            let shown = Shown { job, places, version: version(&status, &found, job), found };
            if json { Ok(output::json(&shown.json())?) } else { Ok(output::text(&shown.text())?) }
        }
    }
}

fn list(status: &Status, json: bool) -> anyhow::Result<()> {
    let processing = || status.workers.iter().flat_map(|worker| worker.processing.iter().map(move |job| (worker, job)));
    let complete = || status.workers.iter().flat_map(|worker| worker.complete.iter().map(move |job| (worker, job)));
    if json {
        let doing = |(worker, job): (&WorkerLine, &JobName)| {
            let (alive, stage) = (worker.alive.is_some(), stage(worker, *job));
            json!({"job": job, "worker": worker.name, "alive": alive, "stage": stage})
        };
        let doing: Vec<_> = processing().map(doing).collect();
        let done: Vec<_> = complete().map(|(worker, job)| json!({"job": job, "worker": worker.name})).collect();
        return Ok(output::json(&json!({
            "pending": status.pending, "processing": doing, "complete": done, "synced": status.synced,
        }))?);
    }
    let row = |state: &str, job: String, who: String| [state.to_owned(), job, who];
    let mut rows: Vec<_> = status.pending.iter().map(|job| row("pending", job.to_string(), String::new())).collect();
    rows.extend(processing().map(|(worker, job)| {
        let does = match (worker.alive, stage(worker, *job)) {
            (None, _) => " (dead)".to_owned(),
            (_, Some(stage)) => format!(" ({stage})"),
            _ => String::new(),
        };
        row("processing", job.to_string(), format!("by {}{does}", worker.name))
    }));
    rows.extend(complete().map(|(worker, job)| row("complete", job.to_string(), format!("from {}", worker.name))));
    rows.extend(status.synced.iter().map(|batch| {
        let why = status.learner.as_ref().map_or("", |learner| why_synced(learner, *batch));
        row("synced", format!("batch {batch}"), why.to_owned())
    }));
    if rows.is_empty() { Ok(output::text("no jobs\n")?) } else { Ok(output::text(&columns(&rows))?) }
}

/// The reason why the file of a batch still exists.
fn why_synced(learner: &LearnerState, batch: BatchId) -> &'static str {
    match (batch.cmp(&learner.batch), learner.ended) {
        (Ordering::Less, false) => "trained on, not yet in a checkpoint",
        (Ordering::Less, true) => "trained on, but the run ended before the next checkpoint",
        (Ordering::Equal, true) => "the run ended in the middle of the batch's steps",
        _ => "",
    }
}

/// The stage that a worker reports, if the worker is alive and processes the job.
fn stage(worker: &WorkerLine, job: JobName) -> Option<&str> {
    let (_, stage) = worker.status.as_ref()?.jobs.iter().find(|(now, _)| *now == job)?;
    worker.alive.is_some().then_some(stage)
}

/// Parses a job's name. The error for an incomplete name suggests the full one.
fn parse(text: &str) -> anyhow::Result<JobName> {
    text.parse().map_err(|why| match nearly(text) {
        Some(job) => BadInput::new(format!("{why}; did you mean {job}?")),
        None => BadInput::new(why),
    })
}

/// The job that is probably meant by a name without leading zeros or without a chunk: `123`, `123.0`.
fn nearly(text: &str) -> Option<JobName> {
    let text = text.trim();
    let (group, chunk) = text.split_once('.').unwrap_or((text, "0"));
    Some(JobName { group: GroupId(group.parse().ok()?), chunk: chunk.parse().ok()? })
}

/// The error for a job that is not in any file, with the likely reason.
fn unknown(run: &Path, status: &Status, job: JobName) -> anyhow::Error {
    let run = run.display();
    let why = match &status.learner {
        Some(learner) => {
            let (batch, now) = (learner.batch_of(job.group), learner.batch);
            if batch >= BatchId(learner.batches) {
                let last = learner.batches.saturating_mul(learner.groups).saturating_sub(1);
                format!("the last group of the run is {last:06}")
            } else if batch < now {
                format!("its batch, {batch}, was trained on and is in a checkpoint, so its files were deleted")
            } else {
                format!("it belongs to batch {batch} and is not in the queue; the run is at batch {now}")
            }
        }
        None => "no file contains it".to_owned(),
    };
    BadInput::new(format!("{run} has no job {job}: {why}; `lockstep queue {run} ls` lists its jobs"))
}

/// A state of the job, with its worker.
#[derive(serde::Serialize)]
struct Place {
    state: &'static str,
    worker: Option<WorkerName>,
    stage: Option<String>,
}

/// The states of a job: more than one if the job was offered again.
fn places(status: &Status, job: JobName) -> Vec<Place> {
    let mut places = Vec::new();
    if status.pending.contains(&job) {
        places.push(Place { state: "pending", worker: None, stage: None });
    }
    for worker in &status.workers {
        let name = Some(worker.name.clone());
        if worker.processing.contains(&job) {
            let stage = stage(worker, job).map(str::to_owned);
            places.push(Place { state: "processing", worker: name.clone(), stage });
        }
        if worker.complete.contains(&job) {
            places.push(Place { state: "complete", worker: name, stage: None });
        }
    }
    places
}

/// The version of the weights that sample the job, which the job's number determines.
fn version(status: &Status, found: &JobFiles, job: JobName) -> Option<Version> {
    let plan = |learner: &LearnerState| {
        let plan = Plan::new(learner.batches, learner.groups.max(1), learner.max_staleness);
        Plan { continued: learner.continued, ..plan }.version_of(job)
    };
    found.job.as_ref().map(|(job, _)| job.version).or_else(|| status.learner.as_ref().map(plan))
}

/// All information about a job.
struct Shown {
    job: JobName,
    places: Vec<Place>,
    version: Option<Version>,
    found: JobFiles,
}

impl Shown {
    fn json(&self) -> Value {
        let Shown { job, places, version, found } = self;
        let offered = found.job.as_ref().map(|(job, _)| job);
        let lineage = offered.map(|job| job.lineage).or(found.results.first().map(|result| result.lineage));
        let result = |result: &JobResult| {
            json!({
                "worker": result.worker,
                "lineage": result.lineage,
                "fingerprint": format!("{:016x}", result.answer.fingerprint),
                "more": result.answer.more,
                "bytes": result.bytes.len(),
            })
        };
        json!({
            "job": job,
            "states": places,
            "synced": found.synced,
            "version": version,
            "lineage": lineage,
            "profile": offered.map(|job| &job.profile),
            "payload_bytes": offered.map(|job| job.payload.len()),
            "results": found.results.iter().map(result).collect::<Vec<_>>(),
            "unreadable": found.unreadable,
        })
    }

    fn text(&self) -> String {
        let Shown { job, places, version, found } = self;
        let mut rows = Vec::new();
        let mut row = |name: &str, value: String| rows.push([name.to_owned(), value]);
        row("job", format!("{job}: group {}, chunk {}", job.group, job.chunk));
        for Place { state, worker, stage } in places {
            let by = if *state == "complete" { "from" } else { "by" };
            let worker = worker.as_ref().map_or(String::new(), |worker| format!(" {by} {worker}"));
            let stage = stage.as_ref().map_or(String::new(), |stage| format!(" ({stage})"));
            row("state", format!("{state}{worker}{stage}"));
        }
        if let Some(batch) = found.synced {
            row("state", format!("synced in batch {batch}"));
        }
        if let Some(version) = version {
            row("version", version.to_string());
        }
        if let Some((job, _)) = &found.job {
            row("lineage", job.lineage.to_string());
            row("profile", job.profile.clone());
            row("payload", format!("{} bytes", job.payload.len()));
        } else if let Some(result) = found.results.first() {
            row("lineage", result.lineage.to_string());
        }
        for result in &found.results {
            let more = if result.answer.more { ", another chunk follows" } else { "" };
            let (fingerprint, bytes) = (result.answer.fingerprint, result.bytes.len());
            row("result", format!("from {}: fingerprint {fingerprint:016x}, {bytes} bytes{more}", result.worker));
        }
        found.unreadable.iter().for_each(|why| row("unreadable", why.clone()));
        columns(&rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abbreviated_job_name_gets_a_suggestion() {
        for (text, job) in
            [("7", Some("000007.0")), (" 7.2 ", Some("000007.2")), ("eval-3", None), ("x", None), ("7.x", None)]
        {
            assert_eq!(nearly(text).map(|job| job.to_string()).as_deref(), job, "{text}");
        }
        assert!(!parse("x").unwrap_err().to_string().contains("did you mean"));
    }
}
