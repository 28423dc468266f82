//! Learning-rate schedules over optimizer steps, with the formulas of transformers' `get_scheduler`. A schedule is a
//! function of the step only; transformers' schedules that follow a metric are not supported.
//!
//! With s = steps done, w = warm-up steps, n = total steps, p = (s − w) / max(1, n − w), the learning rate is
//! multiplied by s / max(1, w) while s < w, then by
//! - constant, constant_with_warmup: 1 (plain `constant` ignores w, as transformers does),
//! - linear: max(0, (n − s) / max(1, n − w)),
//! - cosine: max(0, ½ (1 + cos(2π c p))) with c = num_cycles,
//! - cosine_with_restarts: max(0, ½ (1 + cos(π (c p mod 1)))), and 0 from p = 1 on,
//! - cosine_with_min_lr: max(0, m + (1 − m) ½ (1 + cos(2π c p))), where m is the minimum factor,
//! - cosine_warmup_with_min_lr: the same, shifted by one step, with a warm-up that does not begin at 0,
//! - polynomial: (e + (η − e) (1 − p)^power) / η, from η = the learning rate to e = lr_end,
//! - inverse_sqrt: 1 / √((s + t − w) / t) with t = timescale,
//! - warmup_stable_decay: 1, then a decay from 1 to min_lr_ratio in num_decay_steps.

use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// The shape of the schedule; the names are transformers' `lr_scheduler_type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Constant, without warm-up.
    Constant,
    /// Warm-up, then constant.
    ConstantWithWarmup,
    /// Warm-up, then linear decay to 0 at the last step.
    #[default]
    Linear,
    /// Warm-up, then decay along half a cosine to 0 at the last step.
    Cosine,
    /// Warm-up, then half cosines that restart at the peak learning rate.
    CosineWithRestarts,
    /// Warm-up, then decay along half a cosine to a minimum learning rate.
    CosineWithMinLr,
    /// As [`CosineWithMinLr`](Self::CosineWithMinLr), but the first step of the warm-up has a learning rate above 0.
    CosineWarmupWithMinLr,
    /// Warm-up, then decay along a power of the remaining steps.
    Polynomial,
    /// Warm-up, then decay with the inverse square root of the step.
    InverseSqrt,
    /// Warm-up, a constant learning rate, and decay in the last steps.
    WarmupStableDecay,
}

/// The curve of a warm-up or decay of `warmup_stable_decay`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ramp {
    /// A line.
    Linear,
    /// A cosine.
    Cosine,
    /// 1 minus a square root.
    OneMinusSqrt,
}

/// The arguments of a schedule: transformers' `lr_scheduler_kwargs`. Each kind uses only the arguments that
/// [`ScheduleKind::arguments`] lists.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduleArguments {
    /// Periods of the cosine, or number of restarts.
    pub num_cycles: f64,
    /// The minimum learning rate.
    pub min_lr: Option<f64>,
    /// The minimum learning rate as a fraction of the peak.
    pub min_lr_rate: f64,
    /// The first learning rate as a fraction of the peak.
    pub warmup_lr_rate: Option<f64>,
    /// The last learning rate.
    pub lr_end: f64,
    /// The power of the remaining steps.
    pub power: f64,
    /// The time scale of the inverse square root, in steps. Default: the warm-up steps, or 10,000 without warm-up.
    pub timescale: Option<f64>,
    /// The number of steps with a constant learning rate. Default: all remaining steps.
    pub num_stable_steps: Option<u64>,
    /// The number of decay steps.
    pub num_decay_steps: u64,
    /// The curve of the warm-up.
    pub warmup_type: Ramp,
    /// The curve of the decay.
    pub decay_type: Ramp,
    /// The first and last learning rate as a fraction of the peak.
    pub min_lr_ratio: f64,
}

impl ScheduleKind {
    /// The names of the arguments that a schedule of this kind reads.
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            ScheduleKind::Constant | ScheduleKind::ConstantWithWarmup | ScheduleKind::Linear => &[],
            ScheduleKind::Cosine | ScheduleKind::CosineWithRestarts => &["num_cycles"],
            ScheduleKind::CosineWithMinLr => &["num_cycles", "min_lr", "min_lr_rate"],
            ScheduleKind::CosineWarmupWithMinLr => &["num_cycles", "min_lr", "min_lr_rate", "warmup_lr_rate"],
            ScheduleKind::Polynomial => &["lr_end", "power"],
            ScheduleKind::InverseSqrt => &["timescale"],
            ScheduleKind::WarmupStableDecay => {
                &["num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles"]
            }
        }
    }
}

impl ScheduleArguments {
    /// The defaults of transformers.
    pub fn of(kind: ScheduleKind) -> ScheduleArguments {
        ScheduleArguments {
            num_cycles: if kind == ScheduleKind::CosineWithRestarts { 1.0 } else { 0.5 },
            min_lr: None,
            min_lr_rate: 0.0,
            warmup_lr_rate: None,
            lr_end: 1e-7,
            power: 1.0,
            timescale: None,
            num_stable_steps: None,
            num_decay_steps: 0,
            warmup_type: Ramp::Linear,
            decay_type: Ramp::Cosine,
            min_lr_ratio: 0.0,
        }
    }
}

/// A learning-rate schedule: the learning rate of every optimizer step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Shape of the schedule.
    pub kind: ScheduleKind,
    /// Arguments of the shape.
    pub arguments: ScheduleArguments,
    /// The peak learning rate, reached after warm-up.
    pub learning_rate: f64,
    /// Number of warm-up steps, during which the learning rate rises.
    pub warmup_steps: u64,
    /// Number of optimizer steps in the whole training run.
    pub total_steps: u64,
}

impl Schedule {
    /// The learning rate of the optimizer step that follows `done` steps.
    pub fn at(&self, done: u64) -> f64 {
        self.learning_rate * self.factor(done)
    }

    /// The learning rate after `done` steps as a fraction of the peak.
    pub fn factor(&self, done: u64) -> f64 {
        let (s, w, n) = (done as f64, self.warmup_steps as f64, self.total_steps as f64);
        let given = &self.arguments;
        if self.kind == ScheduleKind::Constant {
            return 1.0;
        }
        if done < self.warmup_steps {
            return self.warmup(s, w);
        }
        let progress = (s - w) / (n - w).max(1.0);
        match self.kind {
            ScheduleKind::Constant | ScheduleKind::ConstantWithWarmup => 1.0,
            ScheduleKind::Linear => ((n - s) / (n - w).max(1.0)).max(0.0),
            ScheduleKind::Cosine => cosine(given.num_cycles, progress).max(0.0),
            ScheduleKind::CosineWithRestarts if progress >= 1.0 => 0.0,
            ScheduleKind::CosineWithRestarts => {
                (0.5 * (1.0 + libm::cos(PI * (given.num_cycles * progress).rem_euclid(1.0)))).max(0.0)
            }
            ScheduleKind::CosineWithMinLr => between(self.least(), cosine(given.num_cycles, progress)).max(0.0),
            ScheduleKind::CosineWarmupWithMinLr => {
                let progress = (s - w + 1.0) / (n - w).max(1.0);
                between(self.least(), cosine(given.num_cycles, progress)).max(0.0)
            }
            ScheduleKind::Polynomial if done > self.total_steps || n == w => given.lr_end / self.learning_rate,
            ScheduleKind::Polynomial => {
                let left = libm::pow(1.0 - (s - w) / (n - w), given.power);
                ((self.learning_rate - given.lr_end) * left + given.lr_end) / self.learning_rate
            }
            ScheduleKind::InverseSqrt => {
                let scale = given.timescale.unwrap_or(if self.warmup_steps == 0 { 10_000.0 } else { w });
                1.0 / ((s + (scale - w)) / scale).sqrt()
            }
            ScheduleKind::WarmupStableDecay => self.stable_and_decay(s, w, n),
        }
    }

    fn warmup(&self, s: f64, w: f64) -> f64 {
        let given = &self.arguments;
        match (self.kind, given.warmup_lr_rate) {
            (ScheduleKind::CosineWarmupWithMinLr, None) => (s + 1.0) / w.max(1.0),
            (ScheduleKind::CosineWarmupWithMinLr, Some(first)) => first + (1.0 - first) * s / (w - 1.0).max(1.0),
            (ScheduleKind::WarmupStableDecay, _) => {
                let progress = s / w.max(1.0);
                let rise = match given.warmup_type {
                    Ramp::Linear => progress,
                    Ramp::Cosine => 0.5 * (1.0 - libm::cos(PI * progress)),
                    Ramp::OneMinusSqrt => 1.0 - (1.0 - progress).sqrt(),
                };
                between(given.min_lr_ratio, rise).max(0.0)
            }
            _ => s / w.max(1.0),
        }
    }

    fn stable_and_decay(&self, s: f64, w: f64, n: f64) -> f64 {
        let given = &self.arguments;
        let decay = given.num_decay_steps as f64;
        let stable = given.num_stable_steps.map_or(n - w - decay, |steps| steps as f64);
        if s < w + stable {
            return 1.0;
        }
        if s >= w + stable + decay {
            return given.min_lr_ratio;
        }
        let progress = (s - w - stable) / decay.max(1.0);
        let fall = match given.decay_type {
            Ramp::Linear => 1.0 - progress,
            Ramp::Cosine => cosine(given.num_cycles, progress),
            Ramp::OneMinusSqrt => 1.0 - progress.sqrt(),
        };
        between(given.min_lr_ratio, fall).max(0.0)
    }

    /// The minimum factor of the schedules with a minimum learning rate.
    fn least(&self) -> f64 {
        self.arguments.min_lr.map_or(self.arguments.min_lr_rate, |least| least / self.learning_rate)
    }
}

/// ½ (1 + cos(2π `cycles` `progress`)), multiplied in the same order as in transformers.
fn cosine(cycles: f64, progress: f64) -> f64 {
    0.5 * (1.0 + libm::cos(PI * cycles * 2.0 * progress))
}

/// Maps `factor` from the range 0 to 1 to the range `least` to 1.
fn between(least: f64, factor: f64) -> f64 {
    factor * (1.0 - least) + least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(kind: ScheduleKind, learning_rate: f64, warmup_steps: u64, total_steps: u64) -> Schedule {
        Schedule { kind, arguments: ScheduleArguments::of(kind), learning_rate, warmup_steps, total_steps }
    }

    #[test]
    fn schedules_match_hand_computed_values() {
        let at = |kind, step| schedule(kind, 2.0, 4, 12).at(step);
        assert_eq!(at(ScheduleKind::Constant, 0), 2.0);
        assert_eq!([0, 1, 4, 100].map(|s| at(ScheduleKind::ConstantWithWarmup, s)), [0.0, 0.5, 2.0, 2.0]);
        assert_eq!([0, 2, 4, 8, 12, 13].map(|s| at(ScheduleKind::Linear, s)), [0.0, 1.0, 2.0, 1.0, 0.0, 0.0]);
        assert_eq!([0, 2, 4].map(|s| at(ScheduleKind::Cosine, s)), [0.0, 1.0, 2.0]);
        assert!((at(ScheduleKind::Cosine, 8) - 1.0).abs() < 1e-15 && at(ScheduleKind::Cosine, 12) == 0.0);
        assert_eq!([0, 3, 4, 16].map(|s| at(ScheduleKind::InverseSqrt, s)), [0.0, 1.5, 2.0, 1.0]);
        assert_eq!(at(ScheduleKind::Polynomial, 8), 1.0 + 0.5e-7);
    }

    #[test]
    fn the_cosine_schedule_without_arguments_keeps_its_bits() {
        for (warmup, total) in [(0u64, 1u64), (0, 7), (3, 10), (2, 1000), (500, 100_000), (9, 9)] {
            for step in (warmup..total + 3).step_by(1 + total as usize / 500) {
                let progress = (step as f64 - warmup as f64) / (total as f64 - warmup as f64).max(1.0);
                let before = (0.5 * (1.0 + libm::cos(PI * progress))).max(0.0);
                let now = schedule(ScheduleKind::Cosine, 1.0, warmup, total).factor(step);
                assert_eq!(now.to_bits(), before.to_bits(), "{warmup} {total} {step}");
            }
        }
    }

    #[test]
    fn schedules_work_without_warm_up_or_decay() {
        let at = |kind, warmup_steps, total_steps, step| schedule(kind, 4.0, warmup_steps, total_steps).at(step);
        let (linear, cosine) = (ScheduleKind::Linear, ScheduleKind::Cosine);
        assert_eq!([0, 1, 2, 3].map(|s| at(linear, 0, 2, s)), [4.0, 2.0, 0.0, 0.0]);
        assert_eq!([0, 1, 2].map(|s| at(linear, 1, 2, s)), [0.0, 4.0, 0.0]);
        // All steps are warm-up steps: after them the factor is 0, or the end of the cosine.
        assert_eq!([1, 2, 3].map(|s| at(linear, 2, 2, s)), [2.0, 0.0, 0.0]);
        assert_eq!([1, 2, 3].map(|s| at(cosine, 2, 2, s)), [2.0, 4.0, 0.0]);
        assert_eq!(at(ScheduleKind::Constant, 5, 9, 0), 4.0, "the schedule `constant` has no warm-up");
        // If no step is left for the decay, transformers divides by 0.
        assert_eq!(at(ScheduleKind::Polynomial, 2, 2, 2), 1e-7);
        let expected = |s: f64| 2.0 * (1.0 + (PI * (s - 2.0) / 8.0).cos());
        for s in 2..10 {
            assert!((at(cosine, 2, 10, s) - expected(s as f64)).abs() < 1e-12);
            assert_eq!(at(linear, 2, 10, s), 4.0 * (10 - s) as f64 / 8.0);
        }
    }
}
