//! Where a run's time and memory go: measured in every step, looked at a few seconds at a time, and kept as
//! `profile.json`.
//!
//! A rule (`rules.rs`) that holds in two windows in a row, or over the whole run, is a finding: an event with what was
//! measured and what usually helps. Findings depend on time and on the machine, so nothing that is compared bit for bit
//! has any of them.

mod measured;
mod rules;

pub use measured::Measured;

use super::RunDir;
use kernels::{Context, DType};
use measured::OsCounters;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use telemetry::record::MeasuredCeilings;
use telemetry::{Ceilings, Finding, RunRecord, StepTotals};

/// The file's name in a run's directory.
pub const FILE: &str = "profile.json";
/// A window has at least so many steps and seconds, or so many seconds alone.
const WINDOW: (u64, f64, f64) = (3, 5.0, 30.0);
/// A rule holds in so many windows in a row before it is said.
const PATIENCE: u32 = 2;
/// A run that takes less says nothing about the machine.
const WORTH_JUDGING_S: f64 = 10.0;
/// The machine's ceilings are measured for so long, once, when that is a small part of the run.
const CEILINGS_TIME: Duration = Duration::from_millis(400);
const CEILINGS_AFTER_S: f64 = 60.0;

/// What was measured of a run since its last start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProfileRecord {
    /// The version of this file's form.
    pub version: u32,
    /// All steps but the first, which warms up.
    pub measured: Measured,
    /// In the order in which they were found.
    pub findings: Vec<Finding>,
}

impl ProfileRecord {
    /// Changes when a reader must.
    const VERSION: u32 = 1;

    /// Reads the file of a run's directory; none if there is none that can be read.
    pub fn read(root: &Path) -> Option<ProfileRecord> {
        serde_json::from_slice(&fs::read(root.join(FILE)).ok()?).ok()
    }
}

/// Measures a run.
pub struct Profile {
    record: ProfileRecord,
    dir: RunDir,
    path: PathBuf,
    window: Measured,
    /// By rule: windows in a row in which it held.
    held: BTreeMap<&'static str, u32>,
    os: OsCounters,
    began: Instant,
    warm: bool,
    /// What matmuls compute in.
    dtype: DType,
    /// The run is made to be measured.
    asked_for: bool,
}

impl Profile {
    /// Profiles the run in `dir`, from the next step on. A run that `asked_for` it gets findings however short it is.
    pub fn new(dir: &RunDir, dtype: DType, asked_for: bool) -> Profile {
        Profile {
            record: ProfileRecord { version: ProfileRecord::VERSION, ..ProfileRecord::default() },
            dir: dir.clone(),
            path: dir.root().join(FILE),
            window: Measured::default(),
            held: BTreeMap::new(),
            os: OsCounters::now(),
            began: Instant::now(),
            warm: false,
            dtype,
            asked_for,
        }
    }

    /// What was measured so far.
    pub fn record(&self) -> &ProfileRecord {
        &self.record
    }

    /// What making a step's batch measured.
    pub fn take(&mut self, batch: &Measured) {
        self.window.add(batch);
    }

    /// Step `step` took `seconds` without evaluations, with these totals and metrics. Returns what is found now.
    pub fn end_step(
        &mut self,
        step: u64,
        seconds: f64,
        totals: &StepTotals,
        values: &BTreeMap<String, f64>,
        ctx: &Context,
    ) -> Vec<Finding> {
        self.window.add_step(step, seconds, totals, values);
        let (steps, short, long) = WINDOW;
        let is_full = self.window.steps >= steps && self.window.seconds >= short || self.window.seconds >= long;
        if !self.warm {
            // The first step makes buffers, starts programs and reads files.
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
            self.look_up_ceilings(ctx, self.began.elapsed().as_secs_f64() > CEILINGS_AFTER_S);
        }
        self.record.measured.add(&window);
        window.ceilings = self.record.measured.ceilings;
        window.resident = self.record.measured.resident.clone();
        let mut found = Vec::new();
        for rule in rules::ALL {
            let evidence = (rule.holds)(&window);
            let held = self.held.entry(rule.id).or_default();
            *held = if evidence.is_some() { *held + 1 } else { 0 };
            if *held >= PATIENCE {
                found.extend(evidence.and_then(|evidence| self.record.found(rule, evidence, window.span())));
            }
        }
        self.write();
        found
    }

    /// The run has ended: what holds over all of it and was not said yet.
    pub fn finish(&mut self, ctx: &Context) -> Vec<Finding> {
        self.window.os(&self.os, ctx);
        let last = self.begin_window();
        self.record.measured.add(&last);
        let is_long = self.record.measured.seconds >= WORTH_JUDGING_S;
        if self.record.measured.steps == 0 || !(is_long || self.asked_for) {
            return Vec::new();
        }
        if self.record.measured.ceilings.is_none() {
            self.look_up_ceilings(ctx, true);
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

    /// The ceilings that the run's record has of this instruction set, dtype and threads; without any they are
    /// measured, if `measures`, and recorded. A machine that cannot be measured has none.
    fn look_up_ceilings(&mut self, ctx: &Context, measures: bool) {
        let mut record = RunRecord::read(&self.dir.record()).ok();
        let (isa, dtype, threads) = (ctx.describe(), format!("{:?}", self.dtype).to_lowercase(), ctx.threads());
        let is_same = |c: &&MeasuredCeilings| (&*c.isa, &*c.dtype, c.threads) == (isa, &*dtype, threads);
        let mut ceilings = record.as_ref().and_then(|record| record.ceilings.as_ref()).filter(is_same).cloned();
        if ceilings.is_none()
            && measures
            && let Ok(measured) = kernels::ceilings::measure(ctx, CEILINGS_TIME)
        {
            let measured = measured.of_dtype(self.dtype);
            let measured = MeasuredCeilings {
                time_s: telemetry::system::since_1970().as_secs(),
                isa: isa.to_owned(),
                dtype,
                threads,
                flops_per_s: measured.flops_per_s,
                read_bytes_per_s: measured.read_bytes_per_s,
            };
            // No run ends because its record cannot be written once more.
            if let Some(record) = &mut record {
                record.ceilings = Some(measured.clone());
                let _ = record.to_bytes().map(|bytes| self.dir.write(&self.dir.record(), &bytes));
            }
            ceilings = Some(measured);
        }
        self.record.measured.ceilings =
            ceilings.map(|c| Ceilings { flops_per_s: Some(c.flops_per_s), bytes_per_s: Some(c.read_bytes_per_s) });
    }

    /// No run ends because its profile cannot be written.
    fn write(&self) {
        let temporary = self.path.with_extension("json.tmp");
        let written = serde_json::to_vec_pretty(&self.record).map_err(std::io::Error::from);
        let _ =
            written.and_then(|bytes| fs::write(&temporary, bytes)).and_then(|()| fs::rename(&temporary, &self.path));
    }
}

impl ProfileRecord {
    /// A rule holds: its finding, the first time.
    fn found(&mut self, rule: &rules::Rule, evidence: String, steps: (u64, u64)) -> Option<Finding> {
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
