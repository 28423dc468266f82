//! The fixture from `conformance/trl_fixtures.py`: inputs and results of TRL's GRPO steps.

pub mod model;

use ::model::columns::{REF_LOGPS, SAMPLER_LOGPS};
use ::model::{Columns, FinishReason, GroupId, Prompt, Updates};
use serde_json::Value;
use std::path::PathBuf;
use train::advantages::{self, Advantages};
use train::{ImportanceSamplingLevel, LossConfig, RewardMatrix, RewardRow, Sample, ScaleRewards};

/// The directory of the fixture.
pub fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/trl")
}

/// `cases.json`.
pub struct Fixture {
    pub json: Value,
    pub prompts: Vec<Vec<u32>>,
    pub completions: Vec<Vec<u32>>,
    pub logps: Vec<Vec<f32>>,
    pub entropies: Vec<Vec<f32>>,
    pub ref_logps: Vec<Vec<f32>>,
    pub old_logps: Vec<Vec<f32>>,
    pub cases: Vec<Case>,
}

/// One optimizer step of TRL.
pub struct Case {
    pub json: Value,
    /// The configuration of the step, for messages.
    pub title: String,
    pub loss: LossConfig,
    pub scale: ScaleRewards,
    /// Whether the old policy differs from the current policy.
    pub changed: bool,
    pub d_logps: Vec<Vec<f32>>,
}

/// Deserialises a JSON value of the fixture.
pub fn get<T: serde::de::DeserializeOwned>(json: &Value) -> T {
    serde_json::from_value(json.clone()).expect("fixture")
}

impl Fixture {
    pub fn load() -> Fixture {
        let text = std::fs::read_to_string(directory().join("cases.json")).expect("fixture");
        let json: Value = serde_json::from_str(&text).expect("fixture");
        let cases = json["cases"].as_array().expect("cases").iter().map(|c| Case::new(c, &json["common"])).collect();
        Fixture {
            prompts: get(&json["rollouts"]["prompts"]),
            completions: get(&json["rollouts"]["completions"]),
            logps: get(&json["logps"]),
            entropies: get(&json["entropies"]),
            ref_logps: get(&json["ref_logps"]),
            old_logps: get(&json["old_logps"]),
            cases,
            json,
        }
    }

    pub fn num_generations(&self) -> usize {
        get(&self.json["common"]["num_generations"])
    }

    /// The group of a completion.
    fn group(&self, completion: usize) -> GroupId {
        GroupId((completion / self.num_generations()) as u64)
    }

    /// The advantages of a case, as this crate computes them.
    pub fn advantages(&self, case: &Case) -> Advantages {
        let none = case.json["config"]["none_rewards"].as_bool().unwrap_or(false);
        let table = if none { "rewards_with_none" } else { "rewards" };
        let columns: Vec<Vec<Option<f64>>> = get(&self.json["rollouts"][table]);
        let row = |i: usize| RewardRow { group: self.group(i), scores: columns.iter().map(|c| c[i]).collect() };
        let rows = (0..self.completions.len()).map(row).collect();
        let weights = get(&self.json["rollouts"]["reward_weights"]);
        let matrix = RewardMatrix { rows, names: vec!["first".into(), "second".into()], weights };
        advantages::compute(&matrix, case.scale)
    }

    /// The samples of a case. `on` has log-probabilities under the current policy, for cases in which the old policy is
    /// the current one.
    pub fn samples(&self, case: &Case, on: &[Vec<f32>], version: Updates) -> Vec<Sample> {
        let advantages = self.advantages(case).advantages;
        let foreign: Option<Vec<Vec<u8>>> =
            case.json["config"].get("env_mask").map(|_| get(&self.json["rollouts"]["env_mask"]));
        let prompts: Vec<_> = self.prompts.iter().map(|p| Prompt::new(p.as_slice())).collect();
        let limit = case.loss.max_completion_length;
        let sample = |(i, completion): (usize, &Vec<u32>)| Sample {
            group: self.group(i),
            prompt: prompts[self.group(i).0 as usize].clone(),
            completion: completion.clone(),
            loss_mask: (0..completion.len()).map(|t| foreign.as_ref().is_none_or(|m| m[i][t] == 1)).collect(),
            versions: vec![if case.changed { Updates(version.0.wrapping_sub(1)) } else { version }; completion.len()],
            advantage: advantages[i].clone(),
            columns: Columns::of([
                (SAMPLER_LOGPS, if case.changed { self.old_logps[i].clone() } else { on[i].clone() }),
                (REF_LOGPS, self.ref_logps[i].clone()),
            ]),
            finish_reason: FinishReason::from_truncated(completion.len() == limit),
        };
        self.completions.iter().enumerate().map(sample).collect()
    }
}

impl Case {
    fn new(json: &Value, common: &Value) -> Case {
        let config = &json["config"];
        let flag = |name: &str| config[name].as_bool().unwrap_or(false);
        let loss = LossConfig {
            loss_type: get(&config["loss_type"]),
            importance_sampling_level: match &config["importance_sampling_level"] {
                Value::Null => ImportanceSamplingLevel::Token,
                level => get(level),
            },
            epsilon: get(&common["epsilon"]),
            epsilon_high: get(&common["epsilon_high"]),
            delta: config["delta"].as_f64(),
            beta: config["beta"].as_f64().unwrap_or(0.0),
            use_bias_correction_kl: config["use_bias_correction_kl"].as_bool().unwrap_or(true),
            mask_truncated_completions: flag("mask_truncated_completions"),
            max_completion_length: get(&common["max_completion_length"]),
            ..LossConfig::default()
        };
        Case {
            title: format!("{} {} {config}", json["name"], json["policy"]),
            scale: config.get("scale_rewards").map_or(ScaleRewards::Group, get),
            changed: json["policy"] == "changed",
            d_logps: get(&json["d_logps"]),
            loss,
            json: json.clone(),
        }
    }

    /// A metric that TRL logged.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.json["metrics"][name].as_f64()
    }
}

/// Checks that |a − b| ≤ `tolerance` · |b|, or that the difference is within the rounding noise (3e-7) of f32 sums of
/// numbers around 1 that cancel.
pub fn close(got: f64, expected: f64, tolerance: f64, what: &str) {
    let difference = (got - expected).abs();
    assert!(difference <= tolerance * expected.abs() || difference <= 3e-7, "{what}: {got}, TRL {expected}");
}

/// Relative L2 distance of ragged rows.
pub fn distance(got: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    kernels::check::relative_error(&got.concat(), &expected.concat())
}
