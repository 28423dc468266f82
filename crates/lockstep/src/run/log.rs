//! The log of a training run: metrics, alarms, stage timers, progress, and the user's callbacks.

use super::alarms::Alarms;
use super::data_position::DataPosition;
use super::device_meter;
use super::inputs::{Callbacks, Follow, RunEvent};
use super::learner::{Learner, Update, not_finite};
use super::profile::Profile;
use super::reporter::Reporter;
use super::reward_notes::RewardNotes;
use crate::rollouts::evaluate::find;
use kernels::mean::over;
use std::collections::BTreeMap;
use std::time::Instant;
use telemetry::{Alarm, EventKind, Finding, Sinks, Stages, Step};

/// Everything that a training run reports.
pub struct RunLog {
    /// Collects metrics and sends events to the sinks.
    pub reporter: Reporter,
    /// Detectors of signs that a run is going wrong.
    pub alarms: Alarms,
    /// Timers of the run's stages.
    pub stages: Stages,
    /// Measures where time and memory go.
    pub profile: Profile,
    /// The user's callbacks.
    pub callbacks: Callbacks,
    /// Notes about rewards that progress lines show.
    pub notes: RewardNotes,
    /// The run's label in the progress display.
    label: &'static str,
    /// The metrics of the last logged step.
    last_logged: Vec<(String, f64)>,
    /// The start of the step, moved forward by the time of evaluations since then.
    step_started: StepClock,
    /// The end of the last evaluation.
    evaluated: Instant,
}

/// A reading of the clock and of the process's CPU time.
#[derive(Clone, Copy)]
pub struct StepClock {
    at: Instant,
    /// CPU seconds of all threads of the process since its start.
    cpu_s: f64,
}

impl StepClock {
    /// Reads both clocks.
    pub fn now() -> StepClock {
        StepClock { at: Instant::now(), cpu_s: telemetry::system::cpu_s() }
    }

    /// Excludes the span from `start` to `end` from the time measured since this reading.
    fn skip(&mut self, start: StepClock, end: StepClock) {
        self.at += end.at - start.at;
        self.cpu_s += end.cpu_s - start.cpu_s;
    }
}

/// Stages whose seconds are logged as metrics: the stage's path and the metric's name.
const TIMED: [(&str, &str); 4] = [
    ("reference", "ref_time_s"),
    ("rollout/prefill", "prefill_time_s"),
    ("rollout/decode", "decode_time_s"),
    ("rollout/sampling", "sampling_time_s"),
];

/// The metrics of speculative decoding in one step, from the step's counts; empty without draft tokens. The names are
/// vLLM's where vLLM has such a metric.
fn speculation(counts: &BTreeMap<String, f64>) -> Vec<(&'static str, f64)> {
    let count = |name: &str| counts.get(name).copied().unwrap_or(0.0);
    let drafted = count("drafted_tokens");
    if drafted == 0.0 {
        return Vec::new();
    }
    let per_forward = over(count("decoded_tokens"), count("decode_passes") as u64);
    let metrics = [
        ("rollout/spec_decode_draft_acceptance_rate", Some(count("accepted_tokens") / drafted)),
        ("rollout/spec_decode_tokens_per_forward", per_forward),
        ("rollout/spec_decode_saved_time_s", Some(count("draft_saved_s"))),
    ];
    metrics.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

impl RunLog {
    /// A log of a run that the progress display shows as `label`.
    pub fn new(
        stages: Stages,
        reporter: Reporter,
        alarms: Alarms,
        profile: Profile,
        callbacks: Callbacks,
        label: &'static str,
    ) -> RunLog {
        RunLog {
            reporter,
            alarms,
            stages,
            profile,
            callbacks,
            notes: RewardNotes::default(),
            label,
            last_logged: Vec::new(),
            step_started: StepClock::now(),
            evaluated: Instant::now(),
        }
    }

    /// The receivers of events.
    pub fn sinks(&self) -> &Sinks {
        self.reporter.sinks()
    }

    /// Sends a warning to the sinks.
    pub fn warn(&self, message: &str) {
        self.sinks().warn(message);
    }

    /// Adds a value to the metric `name`, whose mean is logged at the next logging step.
    pub fn add(&mut self, name: &str, value: f64) {
        self.reporter.add(name, value);
    }

    /// The metrics of the last logged step.
    pub fn last_logged(&self) -> &[(String, f64)] {
        &self.last_logged
    }

    /// Adds the metrics of one optimizer step of the policy.
    pub fn add_update(&mut self, Update { metrics, seconds }: &Update) {
        if metrics.skipped {
            self.alarms.not_finite("policy", not_finite(metrics));
        }
        if !metrics.learns() {
            self.alarms.all_masked(metrics.sequences);
        }
        for (name, value) in metrics.entries() {
            self.add(name, value);
        }
        self.add("update_time_s", *seconds);
        self.add("forward_time_s", metrics.forward_time_s);
        self.add("backward_time_s", metrics.backward_time_s);
        self.add("optimizer_time_s", metrics.optimizer_time_s);
        // The speed of an update without tokens is missing, not 0.
        if metrics.computed_tokens > 0 {
            self.add("update_tokens_per_s", metrics.computed_tokens as f64 / seconds);
            if let Some(rows) = metrics.kept_rows {
                self.add("rollout_activations_share", rows as f64 / metrics.computed_tokens as f64);
            }
        }
    }

    /// Ends the current step of `learner`, and logs its metrics if logging is due. The progress line shows the metrics
    /// in `shown`.
    pub fn end_step(&mut self, learner: &Learner, data: &DataPosition, shown: &[&str]) -> anyhow::Result<()> {
        let step = learner.step;
        let (began, now) = (self.step_started, StepClock::now());
        let seconds = (now.at - began.at).as_secs_f64();
        self.add("step_time", seconds);
        // The span begins at the end of the last evaluation, so that the evaluation is left out.
        let start = began.at.max(self.evaluated);
        self.stages.record_around("step", start, start.elapsed().as_secs_f64());
        self.step_started = now;
        let (totals, logging) = (self.stages.take_step(), self.stages.span("log"));
        self.reporter.set("epoch", data.epoch(step));
        self.reporter.set("num_tokens", data.num_tokens as f64);
        self.stages.begin_step(step.next());
        device_meter::report(&mut self.reporter, &totals.stages, &learner.ctx);
        for (path, name) in TIMED {
            if let Some(stage) = totals.stages.iter().find(|stage| stage.path == path) {
                self.add(name, stage.seconds);
            }
        }
        for (name, value) in speculation(&totals.counts) {
            self.add(name, value);
        }
        self.add("cpu_time_s", now.cpu_s - began.cpu_s);
        let values = self.reporter.take_step_values();
        let alarms = self.alarms.end_step(step, &values);
        self.emit_alarms(step, alarms)?;
        let findings = self.profile.end_step(step, seconds, &totals, &values, &learner.ctx);
        self.emit_findings(step, findings)?;
        self.reporter.end_step(step)?;
        logging.end();
        let calling = self.stages.span("callbacks");
        self.callbacks.step(step, &learner.policy);
        let is_due = self.reporter.logs_at(step, learner.is_done());
        let logs = self.callbacks.follows(Follow::Log, is_due);
        calling.end();
        self.log_now(learner, shown, logs)
    }

    /// Reports the end of an epoch to the callbacks, and logs the pending metrics if a callback asks for it.
    pub fn end_epoch(&mut self, learner: &Learner, shown: &[&str]) -> anyhow::Result<()> {
        let calling = self.stages.span("callbacks");
        self.callbacks.event(&RunEvent::Epoch(learner.step), &learner.policy);
        let logs = self.callbacks.follows(Follow::Log, false);
        calling.end();
        self.log_now(learner, shown, logs)
    }

    /// Logs the means of the metrics since the last log, if `logs` is true and there are any.
    pub fn log_now(&mut self, learner: &Learner, shown: &[&str], logs: bool) -> anyhow::Result<()> {
        let (step, logging) = (learner.step, self.stages.span("log"));
        let logged = if logs { self.reporter.log_now(step)? } else { None };
        if let Some(means) = &logged {
            let value = |name: &str| find(means, name).filter(|v| v.is_finite());
            let part = |name: &&str| value(name).map(|v| telemetry::brief(name, v));
            let remark = self.notes.text();
            if let Some(remark) = remark.as_ref().filter(|_| self.notes.is_news()) {
                self.sinks().info(remark);
            }
            let parts = shown.iter().filter_map(part).chain(remark);
            self.progress(learner, parts.collect::<Vec<_>>().join(" · "))?;
        }
        logging.end();
        let _span = self.stages.span("callbacks");
        if let Some(means) = logged {
            self.callbacks.log(step, &means, &learner.policy);
            self.last_logged = means;
        }
        Ok(())
    }

    /// Logs the metrics of an evaluation.
    pub fn evaluation(&mut self, learner: &Learner, metrics: &[(String, f64)]) -> anyhow::Result<()> {
        let step = learner.step;
        let logging = self.stages.span("log");
        self.reporter.metrics(step, metrics.to_vec())?;
        logging.end();
        let _span = self.stages.span("callbacks");
        self.callbacks.log(step, metrics, &learner.policy);
        Ok(())
    }

    /// Reports alarms that were raised or cleared after `step`.
    pub fn emit_alarms(&self, step: Step, alarms: Vec<Alarm>) -> anyhow::Result<()> {
        let emit = |alarm| self.sinks().emit(EventKind::Alarm { step, alarm });
        Ok(alarms.into_iter().try_for_each(emit)?)
    }

    /// Reports the profile's findings (signs of wasted time) after `step`.
    pub fn emit_findings(&self, step: Step, findings: Vec<Finding>) -> anyhow::Result<()> {
        let emit = |finding| self.sinks().emit(EventKind::Finding { step, finding });
        Ok(findings.into_iter().try_for_each(emit)?)
    }

    /// Excludes the wall-clock and CPU time since `start`, in which the run evaluated, from the current step.
    pub fn leave_out_since(&mut self, start: StepClock) {
        let end = StepClock::now();
        self.step_started.skip(start, end);
        self.evaluated = end.at;
    }

    /// Reports the progress of the run, with a note.
    pub fn progress(&self, learner: &Learner, note: String) -> anyhow::Result<()> {
        Ok(self.sinks().emit(self.progress_event(learner, note))?)
    }

    /// The event that [`progress`](Self::progress) reports.
    pub fn progress_event(&self, learner: &Learner, note: String) -> EventKind {
        let (label, done, total) = (self.label.to_owned(), learner.step.0, learner.schedule.total_steps);
        EventKind::Progress { label, done, total, note }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn an_evaluation_is_in_neither_time_of_a_step() {
        let zero = Instant::now();
        let clock = |seconds, cpu_s| StepClock { at: zero + Duration::from_secs(seconds), cpu_s };
        let mut began = clock(10, 15.0);
        began.skip(clock(12, 18.0), clock(15, 23.5));
        assert_eq!((began.at, began.cpu_s), (zero + Duration::from_secs(13), 20.5));
    }

    #[test]
    fn speculative_decoding_metrics_follow_from_the_counts() {
        let counts =
            |all: &[(&str, f64)]| all.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect::<BTreeMap<_, _>>();
        assert_eq!(speculation(&counts(&[("decoded_tokens", 8.0), ("decode_passes", 4.0)])), []);
        let drafted =
            [("drafted_tokens", 8.0), ("accepted_tokens", 2.0), ("decoded_tokens", 9.0), ("draft_saved_s", 0.5)];
        let found = |passes: f64| speculation(&counts(&[&drafted[..], &[("decode_passes", passes)]].concat()));
        let expected = |per_forward| {
            [
                ("rollout/spec_decode_draft_acceptance_rate", 0.25),
                ("rollout/spec_decode_tokens_per_forward", per_forward),
                ("rollout/spec_decode_saved_time_s", 0.5),
            ]
        };
        let [rate, _, saved] = expected(0.0);
        assert_eq!(
            (found(3.0), found(0.0)),
            (expected(3.0).to_vec(), vec![rate, saved]),
            "without a pass, the mean is missing"
        );
    }
}
