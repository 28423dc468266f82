//! `lockstep bench levels`: runs the same steps of GRPO or PPO at several levels of optimization, from none to all.
//! Each level is a separate training run, with the same initial weights, random numbers and reward.
//!
//! Every level is executed and timed. Consecutive levels are compared in each step: sampled tokens and their
//! log-probabilities, values from the value model, and the bits of the updated weights.

mod ladder;
pub(crate) mod naive;
mod settings;
#[cfg(test)]
mod tests;
mod training;

use crate::report::{Column, column};
use crate::{Machine, Report, Shape};
use anyhow::ensure;
pub use ladder::{Level, NamedLevel};
use lockstep::config::ComputeDType;
use serde_json::{Value, json};
pub use settings::{Algorithm, PRESETS, Ppo, Preset, Settings};
use std::time::Instant;
use training::{Run, Step, Updated};

/// The tolerance for loss and gradient norm between levels that train on the same tokens: relative, and absolute near
/// 0.
const TOLERANCE: (f64, f64) = (1e-3, 1e-6);

/// The options of `lockstep bench levels`.
#[derive(Clone, Debug)]
pub struct LevelsOptions {
    /// The size of the model.
    pub shape: Shape,
    /// The algorithm and its hyperparameters.
    pub settings: Settings,
    /// The levels to run, in this order.
    pub levels: Vec<Level>,
    /// Training steps of each level.
    pub steps: usize,
    /// Number of threads for levels that use several; if not set, all cores.
    pub threads: Option<usize>,
}

/// A callback that receives JSON events while the benchmark runs: its start, each level and each step.
pub type Listener<'a> = &'a mut dyn FnMut(&Value) -> anyhow::Result<()>;

/// A stage of a step: its column in the table, its name, and a function that returns its seconds.
type Stage = (Column, &'static str, fn(&Step) -> f64);

/// All stages, for PPO. GRPO has only the first and the third.
const STAGES: [Stage; 4] = [
    (column("rollout_s", "rollout s", 3), "rollout", |step| step.rollout_s),
    (column("values_s", "values s", 3), "values", |step| step.values_s),
    (column("update_s", "update s", 3), "update", |step| step.update_s),
    (column("value_update_s", "value update s", 3), "value update", |step| step.value_update_s),
];

impl Settings {
    fn algorithm(&self) -> Algorithm {
        if self.ppo.is_some() { Algorithm::Ppo } else { Algorithm::Grpo }
    }

    fn stages(&self) -> Vec<Stage> {
        match self.algorithm() {
            Algorithm::Grpo => vec![STAGES[0], STAGES[2]],
            Algorithm::Ppo => STAGES.to_vec(),
        }
    }
}

/// Runs the levels one after another.
pub fn run(options: &LevelsOptions, hear: Listener<'_>) -> anyhow::Result<Report> {
    let LevelsOptions { shape, settings, .. } = options;
    let ctx = lockstep::context(None, options.threads, ComputeDType::F32)?;
    let machine = Machine::measure(&ctx)?;
    let what = format!(
        "{} on {}, {}, {} steps; the reward is the share of tokens from the lower half of the vocabulary",
        settings.algorithm().name(),
        shape.name(),
        settings.says(),
        options.steps
    );
    let list: Vec<Value> = options.levels.iter().map(Level::json).collect();
    let stages: Vec<Value> =
        settings.stages().iter().map(|(column, name, _)| json!({ "key": column.key, "name": name })).collect();
    hear(&json!({
        "event": "start", "algorithm": settings.algorithm().id(), "shape": shape.name(), "steps": options.steps,
        "levels": list, "stages": stages, "what": what, "machine": machine.json(),
    }))?;
    let mut runs: Vec<(Level, Vec<Step>)> = Vec::new();
    let (began, own, all) = (Instant::now(), telemetry::system::cpu_s(), telemetry::system::machine_cpu_s());
    for level in &options.levels {
        hear(&json!({ "event": "level", "level": level.id }))?;
        let before = runs.last();
        let mut run = Run::new(level, *shape, settings, options.threads)?;
        let mut steps: Vec<Step> = Vec::new();
        for i in 0..options.steps {
            let step = run.step(i as u64)?;
            let other = before.map(|(_, steps)| &steps[i]);
            let Updated { loss, grad_norm } = step.policy;
            let mut event = json!({
                "event": "step", "level": level.id, "step": i + 1, "reward": step.reward,
                "loss": loss, "grad_norm": grad_norm,
                "same_completions": other.map(|other| other.drawn == step.drawn),
                "same_weights": other.map(|other| other.weights == step.weights),
            });
            for (column, _, seconds) in settings.stages() {
                event[column.key] = json!(seconds(&step));
            }
            if let Some(Updated { loss, grad_norm }) = step.value {
                event["same_values"] = json!(other.map(|other| other.values == step.values));
                (event["value_loss"], event["value_grad_norm"]) = (json!(loss), json!(grad_norm));
            }
            hear(&event)?;
            steps.push(step);
        }
        if let Some((other, theirs)) = before {
            agree((other, &theirs[0]), (level, &steps[0]))?;
        }
        runs.push((*level, steps));
    }
    let mut report = table(machine, settings, &runs);
    for line in named_lines(settings.algorithm(), &runs) {
        report.note(line);
    }
    report.note(what);
    if let (Some(before), Some(after)) = (all, telemetry::system::machine_cpu_s()) {
        let others = (after - before - (telemetry::system::cpu_s() - own)).max(0.0) / began.elapsed().as_secs_f64();
        report.note(format!("other processes used {others:.2} cores during the benchmark"));
    }
    hear(&json!({ "event": "end", "report": report.json() }))?;
    Ok(report)
}

/// Compares the first steps of two levels. If both sampled the same tokens and computed the same values, their losses
/// and gradient norms must agree up to rounding; otherwise the result is an error.
fn agree((other, theirs): (&Level, &Step), (level, ours): (&Level, &Step)) -> anyhow::Result<()> {
    let (relative, absolute) = TOLERANCE;
    let differ = |a: f64, b: f64| (a - b).abs() > (relative * b.abs()).max(absolute);
    let differ = |a: Updated, b: Updated| differ(a.loss, b.loss) || differ(a.grad_norm, b.grad_norm);
    if theirs.drawn != ours.drawn || theirs.values != ours.values {
        return Ok(());
    }
    let value = theirs.value.zip(ours.value);
    for (what, theirs, ours) in
        [Some(("", theirs.policy, ours.policy)), value.map(|(a, b)| ("value ", a, b))].into_iter().flatten()
    {
        ensure!(
            !differ(theirs, ours),
            "{}: {what}loss {} and {what}gradient norm {} differ from those of {}, {} and {}, which sampled the same \
             tokens",
            level.id,
            ours.loss,
            ours.grad_norm,
            other.id,
            theirs.loss,
            theirs.grad_norm
        );
    }
    Ok(())
}

/// The step with the median duration. Its stages sum to its seconds.
fn median_step(steps: &[Step]) -> Option<&Step> {
    let mut sorted: Vec<&Step> = steps.iter().collect();
    sorted.sort_by(|a, b| a.seconds().total_cmp(&b.seconds()));
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}

/// Describes each named level of which at least one level was measured: one line with its time and optimizations.
fn named_lines(algorithm: Algorithm, runs: &[(Level, Vec<Step>)]) -> Vec<String> {
    let seconds = |steps: &[Step]| median_step(steps).map(Step::seconds);
    let first = runs.first().and_then(|(_, steps)| seconds(steps)).unwrap_or(f64::NAN);
    let line = |named: &NamedLevel| {
        let (level, steps) = runs.iter().rev().find(|(level, _)| level.stage == named.id)?;
        let step_s = seconds(steps)?;
        let is_whole = level.id == named.level.id;
        let has = if is_whole { named.says } else { &format!("Measured only up to: {}.", level.name) };
        let fast = first / step_s;
        Some(format!("{}: {step_s:.3} s per step, {fast:.1} × as fast as the first level. {has}", named.id))
    };
    algorithm.named().iter().filter_map(line).collect()
}

fn table(machine: Machine, settings: &Settings, runs: &[(Level, Vec<Step>)]) -> Report {
    let (stages, has_values) = (settings.stages(), settings.ppo.is_some());
    let mut columns = vec![column("level", "level", 0)];
    columns.extend(stages.iter().map(|(column, _, _)| *column));
    columns.extend([
        column("step_s", "step s", 3),
        column("speedup", "speedup over first", 1),
        column("gain", "over previous", 2),
        column("first_reward", "reward, first", 3),
        column("last_reward", "reward, last", 3),
        column("same_completions", "same tokens in step 1", 0),
    ]);
    columns.extend(has_values.then(|| column("same_values", "same values in step 1", 0)));
    columns.push(column("same_weights", "same weights after step 1", 0));
    let mut report = Report::new("levels", machine, &columns);
    let mut before: Option<&Vec<Step>> = None;
    for (level, steps) in runs {
        let Some(middle) = median_step(steps) else { continue };
        let step_s = middle.seconds();
        // Only step 1 is compared: weights that differ by rounding may lead to other tokens in later steps, which is
        // not an error.
        let same = |is_same: fn(&Step, &Step) -> bool| match before {
            None => Value::Null,
            Some(before) => json!(if is_same(&before[0], &steps[0]) { "yes" } else { "no" }),
        };
        let mut row = vec![json!(level.id)];
        row.extend(stages.iter().map(|(_, _, seconds)| json!(seconds(middle))));
        row.extend([
            json!(step_s),
            median_step(&runs[0].1).map_or(Value::Null, |first| json!(first.seconds() / step_s)),
            before
                .and_then(|before| median_step(before))
                .map_or(Value::Null, |before| json!(before.seconds() / step_s)),
            json!(steps.first().map(|step| step.reward)),
            json!(steps.last().map(|step| step.reward)),
            same(|a, b| a.drawn == b.drawn),
        ]);
        row.extend(has_values.then(|| same(|a, b| a.values == b.values)));
        row.push(same(|a, b| a.weights == b.weights));
        report.row(row);
        before = Some(steps);
    }
    report
}
