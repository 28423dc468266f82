//! Telemetry and `model` do not import each other, so each has its own type for steps. This crate uses telemetry's,
//! as events and a run's files do, and converts it here.

use telemetry::Step;

/// The step as `model` and `rewards` have it.
pub fn model_step(step: Step) -> model::Step {
    model::Step(step.0)
}
