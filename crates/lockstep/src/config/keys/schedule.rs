//! The learning-rate schedule of a configuration: the keys `lr_scheduler_type` and `lr_scheduler_kwargs`.

use crate::config::keys::Config;
use crate::config::values::KeyValue;
use crate::error::BadInput;
use serde_json::{Value as Json, json};
use toml::Value;
use train::{Ramp, ScheduleArguments, ScheduleKind};

/// transformers' names of the schedules.
const NAMES: &[(&str, ScheduleKind)] = &[
    ("constant", ScheduleKind::Constant),
    ("constant_with_warmup", ScheduleKind::ConstantWithWarmup),
    ("linear", ScheduleKind::Linear),
    ("cosine", ScheduleKind::Cosine),
    ("cosine_with_restarts", ScheduleKind::CosineWithRestarts),
    ("cosine_with_min_lr", ScheduleKind::CosineWithMinLr),
    ("cosine_warmup_with_min_lr", ScheduleKind::CosineWarmupWithMinLr),
    ("polynomial", ScheduleKind::Polynomial),
    ("inverse_sqrt", ScheduleKind::InverseSqrt),
    ("warmup_stable_decay", ScheduleKind::WarmupStableDecay),
];

/// transformers' schedules that follow a metric.
const OF_METRICS: [&str; 2] = ["reduce_lr_on_plateau", "greedy"];

impl KeyValue for ScheduleKind {
    fn type_name() -> String {
        names(" | ")
    }
    fn schema() -> Json {
        json!({"enum": NAMES.iter().map(|(name, _)| name).collect::<Vec<_>>()})
    }
    fn read(value: &Value) -> Result<Self, String> {
        let given = value.as_str();
        if let Some(kind) = NAMES.iter().find(|(name, _)| given == Some(name)) {
            return Ok(kind.1);
        }
        let expected = format!("expected one of {}, got {value}", names(", "));
        Err(if given.is_some_and(|name| OF_METRICS.contains(&name)) {
            format!(
                "{expected}: this schedule follows a metric, but a schedule must depend only on the step, so that runs \
             can resume: use constant_with_warmup or cosine_with_min_lr"
            )
        } else {
            expected
        })
    }
    fn write(&self) -> Option<Value> {
        Some(name_of(*self).into())
    }
}

fn names(between: &str) -> String {
    NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(between)
}

fn name_of(kind: ScheduleKind) -> &'static str {
    NAMES.iter().find(|(_, one)| *one == kind).expect("every kind has a name").0
}

impl Config {
    /// The learning-rate schedule over `total` optimizer steps.
    pub(crate) fn schedule(&self, total: u64) -> train::Schedule {
        train::Schedule {
            kind: self.lr_scheduler_type,
            arguments: self.schedule_arguments().expect("`lr_scheduler_kwargs` was checked"),
            learning_rate: self.learning_rate,
            warmup_steps: self.warmup(total),
            total_steps: total,
        }
    }

    fn schedule_arguments(&self) -> Result<ScheduleArguments, String> {
        let kind = self.lr_scheduler_type;
        let (name, known) = (name_of(kind), kind.arguments());
        let mut arguments = ScheduleArguments::of(kind);
        for (argument, value) in &self.lr_scheduler_kwargs {
            if !known.contains(&argument.as_str()) {
                return Err(match known {
                    [] => format!("{name} takes no arguments: remove `{argument}`"),
                    _ => format!("{name} has no argument `{argument}`; its arguments: {}", known.join(", ")),
                });
            }
            set(&mut arguments, argument, value).map_err(|what| format!("{argument} = {value}: expected {what}"))?;
        }
        self.check_schedule(&arguments)?;
        Ok(arguments)
    }

    fn check_schedule(&self, arguments: &ScheduleArguments) -> Result<(), String> {
        let given = |name: &str| self.lr_scheduler_kwargs.contains_key(name);
        // PPO's value model has the schedule with a learning rate of its own.
        let rates = [Some(self.learning_rate), self.value_learning_rate];
        let lowest = rates.into_iter().flatten().fold(f64::INFINITY, f64::min);
        match self.lr_scheduler_type {
            ScheduleKind::CosineWithMinLr | ScheduleKind::CosineWarmupWithMinLr => {
                if given("min_lr") == given("min_lr_rate") {
                    let name = name_of(self.lr_scheduler_type);
                    return Err(format!("{name} needs one of min_lr and min_lr_rate: {{ min_lr_rate = 0.1 }}"));
                }
                if given("min_lr") && lowest == 0.0 {
                    return Err("min_lr needs a learning_rate above 0: set min_lr_rate".to_owned());
                }
            }
            ScheduleKind::Polynomial if lowest <= arguments.lr_end => {
                let end = arguments.lr_end;
                return Err(format!("lr_end = {end} must be below learning_rate = {lowest}: lower lr_end"));
            }
            ScheduleKind::WarmupStableDecay if !given("num_decay_steps") => {
                return Err("warmup_stable_decay needs num_decay_steps: { num_decay_steps = 100 }".to_owned());
            }
            _ => {}
        }
        Ok(())
    }
}

/// Sets an argument; the error names the expected value.
fn set(arguments: &mut ScheduleArguments, name: &str, value: &Json) -> Result<(), &'static str> {
    let number = || value.as_f64().filter(|x| x.is_finite()).ok_or("a number");
    let at_least_0 = || number().ok().filter(|x| *x >= 0.0).ok_or("a number of at least 0");
    let steps = || {
        let whole = at_least_0().ok().filter(|x| x.fract() == 0.0 && *x < 9e15);
        whole.map(|x| x as u64).ok_or("a number of steps")
    };
    let ramp = || match value.as_str() {
        Some("linear") => Ok(Ramp::Linear),
        Some("cosine") => Ok(Ramp::Cosine),
        Some("1-sqrt") => Ok(Ramp::OneMinusSqrt),
        _ => Err("one of linear, cosine, 1-sqrt"),
    };
    match name {
        "num_cycles" => arguments.num_cycles = number()?,
        "min_lr" => arguments.min_lr = Some(at_least_0()?),
        "min_lr_rate" => arguments.min_lr_rate = at_least_0()?,
        "warmup_lr_rate" => arguments.warmup_lr_rate = Some(at_least_0()?),
        "lr_end" => arguments.lr_end = at_least_0()?,
        "power" => arguments.power = at_least_0()?,
        "timescale" => arguments.timescale = Some(number().ok().filter(|x| *x > 0.0).ok_or("a number above 0")?),
        "num_decay_steps" => arguments.num_decay_steps = steps()?,
        "num_stable_steps" => arguments.num_stable_steps = Some(steps()?),
        "warmup_type" => arguments.warmup_type = ramp()?,
        "decay_type" => arguments.decay_type = ramp()?,
        "min_lr_ratio" => arguments.min_lr_ratio = at_least_0()?,
        _ => unreachable!("arguments() lists only these names"),
    }
    Ok(())
}

/// Checks the schedule's arguments.
pub(super) fn check(c: &Config) -> anyhow::Result<()> {
    c.schedule_arguments().map(|_| ()).map_err(|why| BadInput::new(format!("`lr_scheduler_kwargs`: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{grpo, refused};

    #[test]
    fn learning_rates_match_transformers() {
        let fixture: Json = serde_json::from_str(include_str!("../../../tests/fixtures/schedules.json")).unwrap();
        let cases = fixture["cases"].as_array().unwrap();
        assert!(cases.len() >= 35);
        for case in cases {
            let kwargs: Value = Value::try_from(&case["lr_scheduler_kwargs"]).unwrap();
            let texts = [case["lr_scheduler_type"].to_string(), case["learning_rate"].to_string(), kwargs.to_string()];
            let names = ["lr_scheduler_type", "learning_rate", "lr_scheduler_kwargs"];
            let warmup = case["warmup"].to_string();
            let mut set: Vec<(&str, &str)> = names.into_iter().zip(texts.iter().map(String::as_str)).collect();
            set.push(("warmup_steps", &warmup));
            let schedule = grpo(&set).unwrap().config.schedule(case["total"].as_u64().unwrap());
            for (step, rate) in case["rates"].as_array().unwrap().iter().enumerate() {
                let (ours, theirs) = (schedule.at(step as u64), rate.as_f64().unwrap());
                let close = (ours - theirs).abs() <= 2e-16 * schedule.learning_rate + 4e-16 * theirs.abs();
                assert!(close, "{set:?} at {step}: {ours}, in transformers {theirs}");
            }
        }
    }

    #[test]
    fn missing_and_unknown_schedule_arguments_are_refused_by_name() {
        for (kind, kwargs, words) in [
            ("linear", "{num_cycles = 2}", "linear takes no arguments: remove `num_cycles`"),
            ("constant", "{power = 2}", "constant takes no arguments"),
            ("cosine", "{power = 2}", "cosine has no argument `power`; its arguments: num_cycles"),
            ("cosine", "{num_cycles = \"two\"}", "num_cycles = \"two\": expected a number"),
            ("cosine_with_min_lr", "{}", "needs one of min_lr and min_lr_rate: { min_lr_rate = 0.1 }"),
            ("cosine_with_min_lr", "{min_lr = 0, min_lr_rate = 0.1}", "needs one of min_lr and min_lr_rate"),
            ("cosine_with_min_lr", "{min_lr = -1}", "min_lr = -1: expected a number of at least 0"),
            ("cosine_warmup_with_min_lr", "{warmup_lr_rate = 0.1}", "needs one of min_lr and min_lr_rate"),
            ("cosine_with_min_lr", "{min_lr = 0, warmup_lr_rate = 0.1}", "has no argument `warmup_lr_rate`"),
            ("polynomial", "{lr_end = 1}", "lr_end = 1 must be below learning_rate = 0.000001: lower lr_end"),
            ("polynomial", "{power = -1}", "power = -1: expected a number of at least 0"),
            ("inverse_sqrt", "{timescale = 0}", "timescale = 0: expected a number above 0"),
            ("warmup_stable_decay", "{}", "needs num_decay_steps: { num_decay_steps = 100 }"),
            ("warmup_stable_decay", "{num_decay_steps = 1.5}", "num_decay_steps = 1.5: expected a number of steps"),
            (
                "warmup_stable_decay",
                "{num_decay_steps = 3, decay_type = \"sqrt\"}",
                "decay_type = \"sqrt\": expected one of linear, cosine, 1-sqrt",
            ),
        ] {
            refused(
                &[("lr_scheduler_type", kind), ("lr_scheduler_kwargs", kwargs)],
                &["`lr_scheduler_kwargs`: ", words],
            );
        }
        for kind in OF_METRICS {
            let words = ["`lr_scheduler_type`", "this schedule follows a metric", "use constant_with_warmup"];
            refused(&[("lr_scheduler_type", kind)], &words);
        }
        refused(&[("lr_scheduler_type", "wavy")], &["expected one of constant, constant_with_warmup, linear", "wavy"]);
        let polynomial = [("lr_scheduler_type", "polynomial"), ("lr_scheduler_kwargs", "{power = 2}")];
        grpo(&polynomial).unwrap();
    }
}
