//! The profile of a training run: where its time and memory go. The profile is measured in every step, evaluated in
//! windows of a few seconds, and stored as `profile.json`.
//!
//! If a rule (`rules.rs`) holds in two windows in a row, or over the whole run, it is reported as a finding: an event
//! with the evidence and the usual remedy. Findings depend on time and machine, so they are kept out of everything that
//! is compared bit for bit.

mod ceilings;
mod measured;
mod rules;

pub use measured::Measured;

use super::RunDir;
use ceilings::{Cores, Quiet, ThisMachine};
use kernels::{Context, DType};
use measured::OsCounters;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use telemetry::record::MeasuredCeilings;
use telemetry::{Ceilings, Finding, RunRecord, Step, StepTotals};

/// The profile's file name in a run's directory.
pub const FILE: &str = "profile.json";
/// A window ends after at least 3 steps and 5 seconds, or after 30 seconds, whichever comes first.
const WINDOW: (u64, f64, f64) = (3, 5.0, 30.0);
/// A rule is reported after it holds in this many windows in a row.
const MIN_WINDOWS: u32 = 2;
/// A run shorter than this many seconds reports no findings at its end, because its timings are too noisy.
const WORTH_JUDGING_S: f64 = 10.0;
/// How long the machine's peak speeds are measured. The measurement starts only after [`CEILINGS_AFTER_S`] seconds, so
/// that it is a small part of the run.
const CEILINGS_TIME: Duration = Duration::from_millis(400);
const CEILINGS_AFTER_S: f64 = 60.0;

/// All measurements of a run since its last start, as stored in `profile.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProfileRecord {
    /// Version of the file format.
    pub version: u32,
    /// Measurements of all steps except the first, which is slow due to warm-up.
    pub measured: Measured,
    /// Findings in the order in which they were reported.
    pub findings: Vec<Finding>,
}

impl ProfileRecord {
    /// The current version, which changes with incompatible changes of the file.
    const VERSION: u32 = 1;

    /// Reads the profile in the run directory `root`; `None` if it is missing or unreadable.
    pub fn read(root: &Path) -> Option<ProfileRecord> {
        serde_json::from_slice(&disk::read(root.join(FILE), disk::most::STATE).ok()?).ok()
    }

    /// The findings, each with the most seconds that it could save over all measured steps: the largest gain first,
    /// unknown gains last.
    fn by_gain(&self) -> Vec<(&Finding, Option<f64>)> {
        let gain = |finding: &Finding| {
            let rule = rules::ALL.iter().find(|rule| rule.id == finding.id)?;
            (rule.gain_s)(&self.measured).filter(|seconds| *seconds > 0.0)
        };
        let mut all: Vec<_> = self.findings.iter().map(|finding| (finding, gain(finding))).collect();
        // The sort is stable: findings without a number keep their order.
        all.sort_by(|(_, a), (_, b)| b.unwrap_or(0.0).total_cmp(&a.unwrap_or(0.0)));
        all
    }

    /// The findings, the costliest first, each with the most seconds per step that it could save, if known.
    pub fn gains_per_step(&self) -> Vec<(&Finding, Option<f64>)> {
        let steps = self.measured.steps.max(1) as f64;
        self.by_gain().into_iter().map(|(finding, gain_s)| (finding, gain_s.map(|seconds| seconds / steps))).collect()
    }
}

/// Measures a run and reports findings about it.
pub struct Profile {
    record: ProfileRecord,
    dir: RunDir,
    path: PathBuf,
    window: Measured,
    /// For each rule, the number of windows in a row in which it held.
    held: BTreeMap<&'static str, u32>,
    os: OsCounters,
    quiet: Quiet,
    began: Instant,
    warm: bool,
    /// The dtype that matmuls compute in.
    dtype: DType,
    /// True if the user asked for a profile (`lockstep profile`).
    asked_for: bool,
}

impl Profile {
    /// Profiles the run in `dir`, from its next step on. If the user `asked_for` a profile, even a very short run gets
    /// findings.
    pub fn new(dir: &RunDir, dtype: DType, asked_for: bool) -> Profile {
        Profile::on(Box::new(ThisMachine), dir, dtype, asked_for)
    }

    /// Like `new`, on a machine with these cores.
    fn on(cores: Box<dyn Cores>, dir: &RunDir, dtype: DType, asked_for: bool) -> Profile {
        Profile {
            record: ProfileRecord { version: ProfileRecord::VERSION, ..ProfileRecord::default() },
            dir: dir.clone(),
            path: dir.root().join(FILE),
            window: Measured::default(),
            held: BTreeMap::new(),
            os: OsCounters::now(),
            quiet: Quiet::new(cores),
            began: Instant::now(),
            warm: false,
            dtype,
            asked_for,
        }
    }

    /// All measurements so far.
    pub fn record(&self) -> &ProfileRecord {
        &self.record
    }

    /// Adds the measurements from making a step's batch.
    pub fn take(&mut self, batch: &Measured) {
        self.window.add(batch);
    }

    /// Ends step `step`, which took `seconds` without evaluations. Returns the new findings.
    pub fn end_step(
        &mut self,
        step: Step,
        seconds: f64,
        totals: &StepTotals,
        values: &BTreeMap<String, f64>,
        ctx: &Context,
    ) -> Vec<Finding> {
        self.window.add_step(step, seconds, totals, values);
        if self.record.measured.ceilings.is_none() {
            let counted = self.quiet.step();
            self.set_ceilings(counted);
        }
        let (steps, short, long) = WINDOW;
        let is_full = self.window.steps >= steps && self.window.seconds >= short || self.window.seconds >= long;
        if !self.warm {
            // The first step allocates buffers, starts processes and reads files.
            self.warm = true;
            self.begin_window();
            return Vec::new();
        }
        if is_full { self.end_window(ctx) } else { Vec::new() }
    }

    fn begin_window(&mut self) -> Measured {
        self.os = OsCounters::now();
        std::mem::take(&mut self.window)
    }

    fn end_window(&mut self, ctx: &Context) -> Vec<Finding> {
        self.window.os(&self.os, ctx);
        let mut window = self.begin_window();
        if self.record.measured.ceilings.is_none() {
            let known = self.known_ceilings(ctx);
            if known.is_none() && self.began.elapsed().as_secs_f64() > CEILINGS_AFTER_S {
                self.quiet.begin(|| measure(ctx, self.dtype));
            }
            self.set_ceilings(known);
        }
        self.record.measured.add(&window);
        window.ceilings = self.record.measured.ceilings;
        window.resident = self.record.measured.resident.clone();
        let mut found = Vec::new();
        for rule in rules::ALL {
            let evidence = (rule.holds)(&window);
            let held = self.held.entry(rule.id).or_default();
            *held = if evidence.is_some() { *held + 1 } else { 0 };
            if *held >= MIN_WINDOWS {
                found.extend(evidence.and_then(|evidence| self.record.found(rule, evidence, window.span())));
            }
        }
        self.write();
        found
    }

    /// Called at the end of the run. Returns the rules that hold over the whole run and were not reported before. If
    /// the machine's speed is still unknown and the call `may_wait`, the speed is measured.
    pub fn finish(&mut self, ctx: &Context, may_wait: bool) -> Vec<Finding> {
        self.window.os(&self.os, ctx);
        let last = self.begin_window();
        self.record.measured.add(&last);
        let is_long = self.record.measured.seconds >= WORTH_JUDGING_S;
        if self.record.measured.steps == 0 || !(is_long || self.asked_for) {
            return Vec::new();
        }
        if self.record.measured.ceilings.is_none() {
            let known = self.known_ceilings(ctx);
            let measures = known.is_none() && may_wait;
            let known = if measures { self.quiet.finish(|| measure(ctx, self.dtype)) } else { known };
            self.set_ceilings(known);
        }
        let whole = self.record.measured.clone();
        let found = rules::ALL.iter().filter_map(|rule| {
            let evidence = (rule.holds)(&whole)?;
            self.record.found(rule, evidence, whole.span())
        });
        let found = found.collect();
        self.write();
        found
    }

    /// The machine's peak speeds in the run's record, if it has them for this instruction set, dtype and number of
    /// threads, measured on a quiet machine.
    fn known_ceilings(&self, ctx: &Context) -> Option<MeasuredCeilings> {
        let known = RunRecord::read(&self.dir.record()).ok()?.ceilings?;
        let is_same =
            (&*known.isa, &*known.dtype, known.threads) == (ctx.describe(), &*name(self.dtype), ctx.threads());
        (is_same && known.load.is_some()).then_some(known)
    }

    /// Sets the machine's peak speeds, and adds them to the run's record if they are new. If the peak speeds are
    /// missing once they should have been measured, the profile records the reason.
    fn set_ceilings(&mut self, ceilings: Option<MeasuredCeilings>) {
        self.record.measured.without_ceilings = self.quiet.why_not.map(str::to_owned).filter(|_| ceilings.is_none());
        let Some(ceilings) = ceilings else { return };
        self.record.measured.ceilings =
            Some(Ceilings { flops_per_s: Some(ceilings.flops_per_s), bytes_per_s: Some(ceilings.read_bytes_per_s) });
        // A record that cannot be rewritten must not end the run.
        let record = RunRecord::read(&self.dir.record()).ok();
        if let Some(mut record) = record.filter(|record| record.ceilings.as_ref() != Some(&ceilings)) {
            record.ceilings = Some(ceilings);
            let _ = record.to_bytes().map(|bytes| self.dir.write(&self.dir.record(), &bytes));
        }
    }

    /// Writes the profile. Errors are ignored, so that they do not end the run.
    fn write(&self) {
        let temporary = self.path.with_extension("json.tmp");
        let written = serde_json::to_vec_pretty(&self.record).map_err(std::io::Error::from);
        let _ = written
            .and_then(|bytes| disk::write(&temporary, bytes))
            .and_then(|()| disk::rename(&temporary, &self.path));
    }
}

/// Measures the machine's peak speeds; `None` on failure.
fn measure(ctx: &Context, dtype: DType) -> Option<MeasuredCeilings> {
    let measured = kernels::ceilings::measure(ctx, CEILINGS_TIME).ok()?.for_dtype(dtype);
    Some(MeasuredCeilings {
        time_s: telemetry::system::since_1970().as_secs(),
        isa: ctx.describe().to_owned(),
        dtype: name(dtype),
        threads: ctx.threads(),
        flops_per_s: measured.flops_per_s,
        read_bytes_per_s: measured.read_bytes_per_s,
        load: None,
    })
}

/// The name of a dtype in the run's record.
fn name(dtype: DType) -> String {
    format!("{dtype:?}").to_lowercase()
}

impl ProfileRecord {
    /// The finding of a rule that holds, if it was not reported before.
    fn found(&mut self, rule: &rules::Rule, evidence: String, steps: (Step, Step)) -> Option<Finding> {
        if self.findings.iter().any(|known| known.id == rule.id) {
            return None;
        }
        let (says, remedy) = (rule.says.to_owned(), rule.remedy.to_owned());
        self.findings.push(Finding { id: rule.id.to_owned(), says, evidence, remedy, steps });
        self.findings.last().cloned()
    }
}

#[cfg(test)]
mod tests;
