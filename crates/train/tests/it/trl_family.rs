//! Compares whole optimizer steps, through the model, with TRL 1.16: losses other than the clipped surrogate, masks,
//! corrections and bonuses, GDPO's advantages, and RLOOTrainer. TRL's numbers come from
//! `conformance/trl_family_fixtures.py`.

use crate::common::model::{context, policy, scaled};
use crate::common::{Fixture, close, get};
use model::columns::{OLD_LOGPS, REF_LOGPS, SAMPLER_LOGPS};
use model::{Columns, FinishReason, GroupId, Prompt, PromptCompletion, Scorer, Updates, Weights};
use serde_json::Value;
use train::advantages::{self, gdpo, rloo};
use train::loss::entropy::EntropyConfig;
use train::loss::rloo::RlooConfig;
use train::loss::sampling::Correction;
use train::{
    Advantages, LossConfig, Objective, OptimizerConfig, RewardMatrix, RewardRow, Sample, ScaleRewards, Trainer,
    TrainerConfig,
};

/// The model, rollouts, rewards and old log-probabilities of `trl_fixtures.py`, and additional inputs.
struct Family {
    base: Fixture,
    json: Value,
    /// Log-probabilities under the initial weights and under the reference weights.
    on: Vec<Vec<f32>>,
    reference: Vec<Vec<f32>>,
}

impl Family {
    fn load() -> Family {
        let base = Fixture::load();
        let text =
            std::fs::read_to_string(crate::common::directory().join("../trl_family/cases.json")).expect("fixture");
        let ctx = context(1);
        let score = |weights: &Weights| -> Vec<Vec<f32>> {
            let pair = |(i, completion): (usize, _)| PromptCompletion {
                prompt: base.prompts[i / base.num_generations()].as_slice(),
                completion,
            };
            let sequences: Vec<_> = base.completions.iter().map(Vec::as_slice).enumerate().map(pair).collect();
            let temperature = get(&base.json["common"]["temperature"]);
            let scores = Scorer::new(ctx.memory(), 1000, true).score(&ctx, weights, &sequences, temperature);
            scores.expect("scores").into_iter().map(|s| s.logps).collect()
        };
        let scale = get(&base.json["common"]["reference_scale"]);
        let (on, reference) = (score(&policy(ctx.memory())), score(&scaled(ctx.memory(), scale)));
        Family { json: serde_json::from_str(&text).expect("fixture"), on, reference, base }
    }

    fn cases(&self) -> &[Value] {
        self.json["cases"].as_array().expect("cases")
    }

    /// The samples of a case, without advantages.
    fn samples(&self, case: &Value) -> Vec<Sample> {
        let changed = case["policy"] == "changed";
        let old = if changed { &self.base.old_logps } else { &self.on };
        // GRPOTrainer gets the sampler's log-probabilities, RLOOTrainer does not.
        let told = case["config"]["algorithm"] != "rloo";
        let recorded: Vec<Vec<f32>> = get(&self.json[if changed { "sampler_logps" } else { "sampler_logps_on" }]);
        let limit: usize = get(&self.base.json["common"]["max_completion_length"]);
        let prompts: Vec<_> = self.base.prompts.iter().map(|p| Prompt::new(p.as_slice())).collect();
        let sample = |(i, completion): (usize, &Vec<u32>)| Sample {
            group: GroupId((i / self.base.num_generations()) as u64),
            columns: Columns::of([
                (SAMPLER_LOGPS, if told { recorded[i].clone() } else { old[i].clone() }),
                (OLD_LOGPS, old[i].clone()),
                (REF_LOGPS, self.reference[i].clone()),
            ]),
            versions: vec![Updates(u64::MAX); completion.len()],
            finish_reason: FinishReason::from_truncated(completion.len() == limit),
            ..Sample::supervised(prompts[i / self.base.num_generations()].clone(), completion.clone())
        };
        self.base.completions.iter().enumerate().map(sample).collect()
    }

    fn advantages(&self, case: &Value, samples: &[Sample]) -> Advantages {
        let config = &case["config"];
        let table = if flag(config, "none_rewards") { "rewards_with_none" } else { "rewards" };
        let columns: Vec<Vec<Option<f64>>> = get(&self.base.json["rollouts"][table]);
        let scores = |i: usize| columns.iter().map(|c| c[i]).collect();
        let rows = samples.iter().enumerate().map(|(i, s)| RewardRow { group: s.group, scores: scores(i) }).collect();
        let weights = get(&self.base.json["rollouts"]["reward_weights"]);
        let matrix = RewardMatrix { rows, names: vec!["first".into(), "second".into()], weights };
        if config["algorithm"] == "rloo" {
            let range: Option<Vec<f64>> = config.get("reward_clip_range").map(get);
            let rewards = rloo::RlooRewards {
                beta: number(config, "beta", 0.05),
                reward_clip_range: range.map(|r| [r[0], r[1]]),
                normalize_advantages: flag(config, "normalize_advantages"),
                mask_truncated_completions: flag(config, "mask_truncated_completions"),
            };
            return rloo::compute(&matrix, samples, &rewards);
        }
        if config["multi_objective_aggregation"] == "normalize_then_sum" {
            gdpo::compute(&matrix)
        } else {
            advantages::compute(&matrix, ScaleRewards::Group)
        }
    }

    fn objective(&self, case: &Value) -> Objective {
        let (config, common) = (&case["config"], &self.base.json["common"]);
        let (epsilon, high) = (get(&common["epsilon"]), number(config, "epsilon_high", get(&common["epsilon_high"])));
        let mask_truncated_completions = flag(config, "mask_truncated_completions");
        if config["algorithm"] == "rloo" {
            return Objective::Rloo(RlooConfig { epsilon, epsilon_high: Some(high), mask_truncated_completions });
        }
        let default = LossConfig::default();
        let of = |name: &str, default: f64| number(config, name, default);
        Objective::Policy(LossConfig {
            loss_type: config.get("loss_type").map_or(default.loss_type, get),
            importance_sampling_level: config.get("importance_sampling_level").map_or(Default::default(), get),
            epsilon,
            epsilon_high: Some(high),
            delta: config["delta"].as_f64(),
            beta: of("beta", 0.0),
            mask_truncated_completions,
            max_completion_length: get(&common["max_completion_length"]),
            sapo_temperature_pos: of("sapo_temperature_pos", default.sapo_temperature_pos),
            sapo_temperature_neg: of("sapo_temperature_neg", default.sapo_temperature_neg),
            vespo_k_pos: of("vespo_k_pos", default.vespo_k_pos),
            vespo_lambda_pos: of("vespo_lambda_pos", default.vespo_lambda_pos),
            vespo_k_neg: of("vespo_k_neg", default.vespo_k_neg),
            vespo_lambda_neg: of("vespo_lambda_neg", default.vespo_lambda_neg),
            off_policy_mask_threshold: config["off_policy_mask_threshold"].as_f64(),
            top_entropy_quantile: of("top_entropy_quantile", 1.0),
            entropy: EntropyConfig {
                entropy_coef: of("entropy_coef", 0.0),
                use_adaptive_entropy: flag(config, "use_adaptive_entropy"),
                entropy_coef_delta: of("entropy_coef_delta", EntropyConfig::default().entropy_coef_delta),
                entropy_coef_max: of("entropy_coef_max", EntropyConfig::default().entropy_coef_max),
                entropy_target: of("entropy_target", EntropyConfig::default().entropy_target),
                ..EntropyConfig::default()
            },
            importance_sampling: if !flag(config, "vllm") {
                Correction::default()
            } else {
                Correction {
                    enabled: true,
                    mode: get(&config["vllm_importance_sampling_mode"]),
                    clip_max: config["vllm_importance_sampling_clip_max"].as_f64(),
                    clip_min: config["vllm_importance_sampling_clip_min"].as_f64(),
                }
            },
            ..default
        })
    }

    fn trainer(&self, case: &Value, weights: &Weights, micro_batch: usize) -> Trainer {
        let config = TrainerConfig {
            objective: self.objective(case),
            optimizer: OptimizerConfig { max_grad_norm: 0.0, ..OptimizerConfig::default() },
            adapter: None,
            temperature: get(&self.base.json["common"]["temperature"]),
            max_tokens_per_micro_batch: micro_batch,
            skip_zero_gradients: false,
            prefix_sharing: true,
            gradient_checkpointing: false,
            gradient_shares: 1,
        };
        Trainer::new(context(1).memory(), &weights.config, config).expect("trainer")
    }
}

fn flag(config: &Value, name: &str) -> bool {
    config[name].as_bool().unwrap_or(false)
}

fn number(config: &Value, name: &str, default: f64) -> f64 {
    config[name].as_f64().unwrap_or(default)
}

/// Compares TRL's logged metrics of a step with our `entries`. All of TRL's names must be among them, except names with
/// a prefix in `skipped`.
fn compare(logged: &Value, entries: &[(String, f64)], skipped: &[&str], title: &str) {
    for (name, theirs) in logged["metrics"].as_object().expect("metrics") {
        // Without values to average, TRL logs null.
        let Some(theirs) = theirs.as_f64() else { continue };
        if skipped.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let ours = entries.iter().find(|(n, _)| n == name);
        let ours = ours.unwrap_or_else(|| panic!("{title}: no {name} among {entries:?}")).1;
        close(ours, theirs, 1e-4, &format!("{title} {name}"));
    }
    let of = |name: &str| entries.iter().find(|(n, _)| n == name).expect(name).1;
    close(of("loss"), get(&logged["loss"]), 1e-4, &format!("{title} loss"));
    close(of("grad_norm"), get(&logged["grad_norm"]), 1e-3, &format!("{title} grad_norm"));
}

#[test]
fn every_step_matches_trl() {
    let family = Family::load();
    let ctx = context(1);
    assert_eq!(family.cases().len(), 54);
    for case in family.cases() {
        let title = format!("{} {} {}", case["name"], case["policy"], case["config"]);
        let mut weights = policy(ctx.memory());
        let mut samples = family.samples(case);
        let advantages = family.advantages(case, &samples);
        let theirs: Vec<f64> = get(&case["advantages"]);
        for ((sample, ours), theirs) in samples.iter_mut().zip(&advantages.advantages).zip(theirs) {
            // Advantages with a KL term inherit the rounding of f32 log-probabilities.
            close(ours.mean().expect("tokens"), theirs, 1e-4, &format!("{title} advantage"));
            sample.advantage = ours.clone();
        }
        // In TRL's f32, an advantage of 0 becomes about 1e-9, whose sign affects the count of clipped tokens.
        let zeros = samples.iter().zip(get::<Vec<f64>>(&case["advantages"])).any(|(s, theirs)| {
            s.advantage.mean().is_some_and(|a| a.abs() < 1e-6) && theirs != 0.0 && theirs.abs() < 1e-6
        });
        // TRL logs the ratio after its bounds are applied, Lockstep before. They are comparable only if the bounds are
        // out of reach.
        let bounded = number(&case["config"], "vllm_importance_sampling_clip_max", f64::INFINITY) < 1e6;
        let skipped: Vec<&str> = [(zeros, "clip_ratio/"), (bounded, "sampling/importance_sampling_ratio/")]
            .into_iter()
            .filter_map(|(skip, prefix)| skip.then_some(prefix))
            .collect();
        let mut trainer = family.trainer(case, &weights, 30);
        let rate = get(&family.base.json["common"]["learning_rate"]);
        let steps = case.get("steps").map_or(std::slice::from_ref(case), |s| s.as_array().expect("steps"));
        for (number, logged) in steps.iter().enumerate() {
            if number > 0 {
                // TRL takes the next step on-policy: the old log-probabilities are those of the weights after the first
                // step.
                let pair = |s: &Sample| (s.prompt.clone(), s.completion.clone());
                let pairs: Vec<_> = samples.iter().map(pair).collect();
                let pairs: Vec<_> =
                    pairs.iter().map(|(p, c)| PromptCompletion { prompt: &p.ids, completion: c }).collect();
                let temperature = get(&family.base.json["common"]["temperature"]);
                let scores = Scorer::new(ctx.memory(), 1000, true).score(&ctx, &weights, &pairs, temperature);
                for (sample, scores) in samples.iter_mut().zip(scores.expect("scores")) {
                    sample.columns.set(OLD_LOGPS, scores.logps);
                }
            }
            let metrics = trainer.update(&ctx, &mut weights, &samples, rate).expect("update");
            assert!(metrics.micro_batches > 1 && !metrics.skipped, "{title}: {metrics:?}");
            let mut entries: Vec<(String, f64)> =
                metrics.entries().into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
            entries.extend(advantages.metrics.iter().filter_map(|(n, v)| Some((n.clone(), (*v)?))));
            compare(logged, &entries, &skipped, &format!("{title} step {number}"));
        }
    }
}

#[test]
fn splitting_the_batch_changes_no_bit() {
    let family = Family::load();
    let ctx = context(2);
    for case in family.cases() {
        let run = |micro_batch: usize| {
            let mut weights = policy(ctx.memory());
            let mut samples = family.samples(case);
            let advantages = family.advantages(case, &samples).advantages;
            samples.iter_mut().zip(advantages).for_each(|(s, a)| s.advantage = a);
            let mut trainer = family.trainer(case, &weights, micro_batch);
            trainer.update(&ctx, &mut weights, &samples, 1e-2).expect("update");
            crate::common::model::elements(&weights).iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        assert!(run(1) == run(10_000), "{} {}", case["name"], case["config"]);
    }
}
