//! Learning-rate schedules over the optimizer steps, by the formulas of transformers' `get_scheduler`.
//!
//! With s = step (from 0), w = warm-up steps, n = total steps, the learning rate is multiplied by s / max(1, w) while
//! s < w, then by
//! - constant, constant_with_warmup: 1 (plain `constant` ignores w, as transformers does),
//! - linear: max(0, (n − s) / max(1, n − w)),
//! - cosine: max(0, ½ (1 + cos(π (s − w) / max(1, n − w)))).

use serde::{Deserialize, Serialize};

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
}

/// A learning-rate schedule: the learning rate of every optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Shape of the schedule.
    pub kind: ScheduleKind,
    /// The highest learning rate, reached after warm-up.
    pub learning_rate: f64,
    /// Number of warm-up steps, in which the learning rate rises.
    pub warmup_steps: u64,
    /// Number of optimizer steps of the whole training run.
    pub total_steps: u64,
}

impl Schedule {
    /// The learning rate of optimizer step `step`, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        self.learning_rate * self.factor(step)
    }

    /// The factor on the highest learning rate at `step`.
    pub fn factor(&self, step: u64) -> f64 {
        let (s, w, n) = (step as f64, self.warmup_steps as f64, self.total_steps as f64);
        if self.kind == ScheduleKind::Constant {
            return 1.0;
        }
        if step < self.warmup_steps {
            return s / w.max(1.0);
        }
        match self.kind {
            ScheduleKind::Constant | ScheduleKind::ConstantWithWarmup => 1.0,
            ScheduleKind::Linear => ((n - s) / (n - w).max(1.0)).max(0.0),
            ScheduleKind::Cosine => {
                let progress = (s - w) / (n - w).max(1.0);
                (0.5 * (1.0 + libm::cos(std::f64::consts::PI * progress))).max(0.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_computed_points() {
        let at = |kind, step| Schedule { kind, learning_rate: 2.0, warmup_steps: 4, total_steps: 12 }.at(step);
        assert_eq!(at(ScheduleKind::Constant, 0), 2.0);
        assert_eq!([0, 1, 4, 100].map(|s| at(ScheduleKind::ConstantWithWarmup, s)), [0.0, 0.5, 2.0, 2.0]);
        assert_eq!([0, 2, 4, 8, 12, 13].map(|s| at(ScheduleKind::Linear, s)), [0.0, 1.0, 2.0, 1.0, 0.0, 0.0]);
        assert_eq!([0, 2, 4].map(|s| at(ScheduleKind::Cosine, s)), [0.0, 1.0, 2.0]);
        assert!((at(ScheduleKind::Cosine, 8) - 1.0).abs() < 1e-15 && at(ScheduleKind::Cosine, 12) == 0.0);
    }

    #[test]
    fn schedules_without_warm_up_or_without_decay() {
        let at = |kind, warmup_steps, total_steps, step| {
            Schedule { kind, learning_rate: 4.0, warmup_steps, total_steps }.at(step)
        };
        let (linear, cosine) = (ScheduleKind::Linear, ScheduleKind::Cosine);
        assert_eq!([0, 1, 2, 3].map(|s| at(linear, 0, 2, s)), [4.0, 2.0, 0.0, 0.0]);
        assert_eq!([0, 1, 2].map(|s| at(linear, 1, 2, s)), [0.0, 4.0, 0.0]);
        // As many steps of warm-up as there are steps: what follows is 0, or the end of the cosine.
        assert_eq!([1, 2, 3].map(|s| at(linear, 2, 2, s)), [2.0, 0.0, 0.0]);
        assert_eq!([1, 2, 3].map(|s| at(cosine, 2, 2, s)), [2.0, 4.0, 0.0]);
        assert_eq!(at(ScheduleKind::Constant, 5, 9, 0), 4.0, "plain constant has no warm-up");
        let expected = |s: f64| 2.0 * (1.0 + (std::f64::consts::PI * (s - 2.0) / 8.0).cos());
        for s in 2..10 {
            assert!((at(cosine, 2, 10, s) - expected(s as f64)).abs() < 1e-12);
            assert_eq!(at(linear, 2, 10, s), 4.0 * (10 - s) as f64 / 8.0);
        }
    }
}
