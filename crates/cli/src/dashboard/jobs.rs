//! Jobs that the page may start: runs of `lockstep bench levels`. One job runs at a time, in a child process, and only
//! if the user who started the page allows it.

use dashboard::{Jobs, Refusal};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The maximum number of steps per level that the page may request.
const MOST_STEPS: u64 = 200;
/// The number of bytes of a failed job's standard error that are shown.
const SHOWN_ERROR_BYTES: u64 = 4000;

/// The jobs that the page may start.
#[derive(Clone, Debug)]
pub(super) struct Runnable {
    /// Path of the `lockstep` program.
    pub program: PathBuf,
    /// The algorithms to choose from: objects with `id`, `name`, `says`, `levels` and `named`; each level is an object
    /// with `id`, `name`, `stage`, `idea`, `code`, and each entry of `named` has `id`, `says`, `level`.
    pub algorithms: Vec<Value>,
    /// Named sets of hyperparameters: objects with `id`, `name`, `algorithm`, `shape`, `levels`, `says`.
    pub presets: Vec<Value>,
    /// Names of the model sizes to choose from.
    pub shapes: Vec<String>,
    /// Whether jobs may be started; otherwise the page only shows the command.
    pub allowed: bool,
}

/// The running job, or the last one.
#[derive(Debug)]
pub(super) struct LevelJobs {
    runnable: Runnable,
    job: Mutex<Option<Job>>,
}

#[derive(Debug)]
struct Job {
    number: u64,
    asked: Value,
    child: Child,
    output: Arc<Mutex<Output>>,
}

/// The output of a job so far.
#[derive(Debug, Default)]
struct Output {
    /// Parsed lines of `lockstep bench levels --events`.
    events: Vec<Value>,
    /// The state of the job (running, done, failed or stopped), and the reason for it.
    end: Option<(&'static str, String)>,
    is_stopped: bool,
}

impl LevelJobs {
    /// Manages the jobs that `runnable` allows.
    pub(super) fn new(runnable: Runnable) -> LevelJobs {
        LevelJobs { runnable, job: Mutex::default() }
    }
}

impl Jobs for LevelJobs {
    fn state(&self) -> Value {
        let job = lock(&self.job).as_ref().map(|job| {
            let output = lock(&job.output);
            let (state, why) = output.end.clone().unwrap_or(("running", String::new()));
            let events = output.events.len();
            json!({ "number": job.number, "asked": job.asked, "state": state, "why": why, "events": events })
        });
        let Runnable { algorithms, presets, shapes, allowed, .. } = &self.runnable;
        json!({
            "allowed": allowed, "algorithms": algorithms, "presets": presets, "shapes": shapes, "job": job,
            "most_steps": MOST_STEPS,
        })
    }

    fn events(&self, number: u64, from: usize) -> Option<(Vec<Value>, &'static str)> {
        let job = lock(&self.job);
        let job = job.as_ref().filter(|job| job.number == number)?;
        let output = lock(&job.output);
        let state = output.end.as_ref().map_or("running", |(state, _)| state);
        Some((output.events.get(from..).unwrap_or_default().to_vec(), state))
    }

    /// Starts the requested job: `{"algorithm": …, "shape": …, "levels": [ids], "steps": n}`, or with a `preset`
    /// instead of the algorithm.
    fn start(&self, asked: &Value) -> Result<Value, Refusal> {
        let runnable = &self.runnable;
        if !runnable.allowed {
            return Err(Refusal::NotAllowed);
        }
        let arguments = arguments(runnable, asked).map_err(Refusal::Bad)?;
        let mut job = lock(&self.job);
        if job.as_ref().is_some_and(|job| lock(&job.output).end.is_none()) {
            return Err(Refusal::Busy);
        }
        let mut command = Command::new(&runnable.program);
        command.args(&arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| Refusal::Bad(format!("cannot start {}: {error}", runnable.program.display())))?;
        let number = job.as_ref().map_or(1, |job| job.number + 1);
        let output = Arc::new(Mutex::new(Output::default()));
        listen(&mut child, output.clone());
        *job = Some(Job { number, asked: asked.clone(), child, output });
        drop(job);
        Ok(self.state())
    }

    fn stop(&self) {
        if let Some(job) = lock(&self.job).as_mut() {
            lock(&job.output).is_stopped = true;
            // An error means that the child has already exited.
            let _ = job.child.kill();
        }
    }
}

impl Drop for LevelJobs {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The command line of a job. All its words come from `runnable`; no string from the request is passed on.
fn arguments(runnable: &Runnable, asked: &Value) -> Result<Vec<String>, String> {
    let shape = asked["shape"].as_str().unwrap_or_default();
    let Some(shape) = runnable.shapes.iter().find(|known| *known == shape) else {
        return Err(format!("shape: unknown shape `{shape}`; available: {}", runnable.shapes.join(", ")));
    };
    let steps = asked["steps"].as_u64().filter(|steps| (1..=MOST_STEPS).contains(steps));
    let Some(steps) = steps else { return Err(format!("steps must be a number from 1 to {MOST_STEPS}")) };
    let preset = named("preset", &runnable.presets, &asked["preset"])?;
    let algorithm = preset.map_or(&asked["algorithm"], |preset| &preset["algorithm"]);
    let Some(algorithm) = named("algorithm", &runnable.algorithms, algorithm)? else {
        return Err("algorithm is missing".into());
    };
    let Some(levels) = asked["levels"].as_array().filter(|levels| !levels.is_empty()) else {
        return Err("levels must have at least one entry".into());
    };
    let known = algorithm["levels"].as_array().map_or(&[][..], Vec::as_slice);
    let levels = levels.iter().map(|level| Ok(named("levels", known, level)?.map(id)));
    let levels: Vec<&str> =
        levels.collect::<Result<Option<_>, String>>()?.ok_or("levels: every entry must be a string")?;
    let what = match preset {
        Some(preset) => ["--preset", id(preset)],
        None => ["--algorithm", id(algorithm)],
    };
    let (levels, steps) = (levels.join(","), steps.to_string());
    let words = ["bench", "levels", "--events", "--shape", shape, "--steps", &steps, "--levels", &levels];
    Ok(words.iter().chain(&what).map(|word| (*word).to_owned()).collect())
}

fn id(known: &Value) -> &str {
    known["id"].as_str().unwrap_or_default()
}

/// The entry of `all` that the request names; `None` if the request does not name any.
fn named<'a>(what: &str, all: &'a [Value], asked: &Value) -> Result<Option<&'a Value>, String> {
    if asked.is_null() {
        return Ok(None);
    }
    match all.iter().find(|known| known["id"].is_string() && known["id"] == *asked) {
        Some(known) => Ok(Some(known)),
        None => {
            let ids: Vec<&str> = all.iter().map(id).collect();
            Err(format!("{what}: unknown name {asked}; available: {}", ids.join(", ")))
        }
    }
}

/// Reads the output of the child process until it exits.
fn listen(child: &mut Child, output: Arc<Mutex<Output>>) {
    let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else { return };
    let errors = std::thread::spawn(move || {
        let mut printed = Vec::new();
        // A read error only truncates the message.
        let _ = err.take(SHOWN_ERROR_BYTES).read_to_end(&mut printed);
        String::from_utf8_lossy(&printed).into_owned()
    });
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if let Ok(event) = serde_json::from_str(&line) {
                lock(&output).events.push(event);
            }
        }
        let printed = errors.join().unwrap_or_default();
        let mut output = lock(&output);
        let is_complete = output.events.last().is_some_and(|event| event["event"] == "end");
        output.end = Some(match (is_complete, output.is_stopped) {
            (true, _) => ("done", String::new()),
            (false, true) => ("stopped", String::new()),
            (false, false) => ("failed", printed.trim().to_owned()),
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(script: &str, allowed: bool) -> (tempfile::TempDir, LevelJobs) {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        testing::write_program(&program, format!("#!/bin/sh\n{script}\n"));
        let algorithms = vec![
            json!({ "id": "grpo", "levels": [{ "id": "none" }, { "id": "cache" }, { "id": "shared" }] }),
            json!({ "id": "ppo", "levels": [{ "id": "none" }, { "id": "cache" }] }),
        ];
        let presets = vec![json!({ "id": "document", "algorithm": "ppo" })];
        let runnable = Runnable { program, algorithms, presets, shapes: vec!["tiny".into()], allowed };
        (dir, LevelJobs::new(runnable))
    }

    fn ended(jobs: &LevelJobs) -> Value {
        testing::wait_for("the job ends", || {
            let job = jobs.state()["job"].clone();
            (job["state"] != "running").then_some(job)
        })
    }

    fn asked() -> Value {
        json!({ "algorithm": "grpo", "shape": "tiny", "levels": ["none", "cache"], "steps": 2 })
    }

    #[test]
    fn a_job_runs_only_listed_words_and_stores_its_output() {
        let (_dir, jobs) =
            jobs(r#"echo "{\"event\":\"start\",\"words\":\"$*\"}"; echo no json; echo '{"event":"end"}'"#, true);
        jobs.start(&asked()).unwrap();
        assert_eq!(ended(&jobs)["state"], "done");
        let (events, state) = jobs.events(1, 0).unwrap();
        assert_eq!((events.len(), state), (2, "done"));
        let words = "bench levels --events --shape tiny --steps 2 --levels none,cache --algorithm grpo";
        assert_eq!(events[0]["words"], words);
        assert_eq!(jobs.events(1, 1).unwrap().0.len(), 1);
        assert!(jobs.events(2, 0).is_none());
        for (key, wrong, says) in [
            ("shape", json!("../x"), "shape"),
            ("shape", json!(null), "shape"),
            ("levels", json!(["none", "--help"]), "--help"),
            ("levels", json!(["none", null]), "levels"),
            ("levels", json!([]), "at least one"),
            ("steps", json!(0), "steps"),
            ("steps", json!(201), "steps"),
            ("algorithm", json!("--help"), "--help"),
            ("algorithm", json!(null), "algorithm is missing"),
            ("preset", json!("--out"), "--out"),
        ] {
            let mut asked = asked();
            asked[key] = wrong;
            let Err(Refusal::Bad(why)) = jobs.start(&asked) else { panic!("{asked}") };
            assert!(why.contains(says), "{why}");
        }
        let Err(Refusal::Bad(why)) = jobs.start(&json!(null)) else { panic!() };
        assert!(why.contains("shape"), "{why}");
    }

    /// A preset determines the algorithm, and so the available levels.
    #[test]
    fn a_preset_allows_the_levels_of_its_algorithm() {
        let (_dir, jobs) = jobs(r#"echo "{\"event\":\"end\",\"words\":\"$*\"}""#, true);
        let mut asked = asked();
        asked["preset"] = json!("document");
        jobs.start(&asked).unwrap();
        assert_eq!(ended(&jobs)["state"], "done");
        let words = "bench levels --events --shape tiny --steps 2 --levels none,cache --preset document";
        assert_eq!(jobs.events(1, 0).unwrap().0[0]["words"], words);
        asked["levels"] = json!(["shared"]);
        let Err(Refusal::Bad(why)) = jobs.start(&asked) else { panic!() };
        assert!(why.contains("shared") && why.contains("none, cache"), "{why}");
    }

    #[test]
    fn one_job_runs_at_a_time_and_can_be_stopped() {
        let (_dir, jobs) = jobs(r#"echo '{"event":"start"}'; exec sleep 60"#, true);
        jobs.start(&asked()).unwrap();
        assert_eq!(jobs.start(&asked()), Err(Refusal::Busy));
        jobs.stop();
        assert_eq!(ended(&jobs)["state"], "stopped");
        assert_eq!(jobs.start(&asked()).unwrap()["job"]["number"], 2);
    }

    #[test]
    fn a_failed_job_reports_its_error_and_no_job_starts_without_permission() {
        let (_dir, jobs) = jobs("echo 'error: no memory' >&2; exit 1", true);
        jobs.start(&asked()).unwrap();
        let job = ended(&jobs);
        assert_eq!((&job["state"], &job["why"]), (&json!("failed"), &json!("error: no memory")));
        let (_dir, jobs) = self::jobs("true", false);
        assert_eq!(jobs.start(&asked()), Err(Refusal::NotAllowed));
    }
}
