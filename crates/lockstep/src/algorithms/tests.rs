use super::*;
use train::ScaleRewards;
use train::advantages::process::ProcessRewards;
use train::loss::rloo::RlooConfig;

const ALL: [Algorithm; 6] = [
    Algorithm::Grpo,
    Algorithm::Rloo,
    Algorithm::ReinforcePlusPlus,
    Algorithm::ReinforcePlusPlusBaseline,
    Algorithm::Ppo,
    Algorithm::Distillation,
];

fn config(algorithm: Algorithm, change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config { algorithm, beta: 0.0, ..Config::default() };
    change(&mut config);
    config
}

#[test]
fn the_reference_model_is_loaded_only_if_a_kl_term_needs_it() {
    let reference = |algorithm, change: fn(&mut Config)| config(algorithm, change).reference().is_some();
    for algorithm in ALL {
        let (by_beta, by_kl) =
            (reference(algorithm, |c| (c.beta, c.kl_coef) = (0.1, 0.0)), reference(algorithm, |c| c.kl_coef = 0.1));
        let expected = match algorithm {
            Algorithm::Ppo => (false, true),
            Algorithm::Distillation => (false, false),
            _ => (true, false),
        };
        assert_eq!((by_beta, by_kl), expected, "{algorithm:?}");
    }
    let teacher = config(Algorithm::Distillation, |c| c.teacher_model_name_or_path = Some("t".into()));
    let expected = Reference::Teacher { key: "teacher_model_name_or_path", name: "t" };
    assert_eq!(teacher.reference(), Some(expected));

    // A rollout file contains the reference's log-probabilities for training, but evaluations still need the model.
    let loads = |ref_logps: bool, change: fn(&mut Config)| {
        let change = |c: &mut Config| {
            (c.beta, c.eval_strategy, c.eval_dataset_name) = (0.1, Strategy::Steps, Some("e".into()));
            change(c);
        };
        config(Algorithm::Grpo, change).loads_reference(ref_logps)
    };
    assert!(loads(false, |_| {}) && loads(true, |_| {}));
    assert!(!loads(true, |c| c.eval_dataset_name = None) && loads(false, |c| c.eval_dataset_name = None));
    assert!(!loads(true, |c| c.eval_strategy = Strategy::No) && !loads(true, |c| c.eval_loss = false));
    assert!(!loads(false, |c| c.beta = 0.0));
    let has_loss = ALL.map(|algorithm| config(algorithm, |_| {}).has_eval_loss());
    assert_eq!(has_loss, [true, true, true, true, false, true]);
    assert!(!config(Algorithm::Grpo, |c| c.eval_loss = false).has_eval_loss());
}

#[test]
fn objectives_take_their_settings_from_the_configuration() {
    let change = |c: &mut Config| {
        (c.epsilon, c.epsilon_high, c.beta, c.mask_truncated_completions) = (0.125, Some(0.25), 0.5, true);
    };
    let objective = |algorithm| config(algorithm, change).objective();
    let beta = |algorithm| match objective(algorithm) {
        Objective::Policy(loss) => Some((loss.beta, loss.epsilon)),
        _ => None,
    };
    use Algorithm::{Distillation, Grpo, Ppo, ReinforcePlusPlus, ReinforcePlusPlusBaseline, Rloo};
    let found = [Grpo, Rloo, ReinforcePlusPlus, ReinforcePlusPlusBaseline, Ppo, Distillation].map(beta);
    let (with, without) = (Some((0.5, 0.125)), Some((0.0, 0.125)));
    assert_eq!(found, [with, None, without, with, None, with], "REINFORCE++ has the KL divergence in its rewards");
    let Objective::Rloo(rloo) = objective(Rloo) else { panic!("another objective") };
    let RlooConfig { epsilon, epsilon_high, mask_truncated_completions } = rloo;
    assert_eq!((epsilon, epsilon_high, mask_truncated_completions), (0.125, Some(0.25), true));
    assert!(matches!(objective(Ppo), Objective::Ppo(_)));
}

#[test]
fn configurations_that_an_algorithm_cannot_train_are_refused() {
    let check = |algorithm, change: fn(&mut Config)| {
        let config = config(algorithm, change);
        config.policy_gradient().check(&config).err().map(|error| error.to_string())
    };
    let refused = |algorithm, change: fn(&mut Config), words: &str| {
        assert_eq!(check(algorithm, change).as_deref(), Some(words));
    };
    use Algorithm::{Distillation, Ppo};
    assert_eq!((check(Ppo, |_| {}), check(Algorithm::Grpo, |_| {})), (None, None));
    refused(
        Ppo,
        |c| (c.num_iterations, c.num_ppo_epochs) = (2, 3),
        "`num_iterations` is a key of GRPO; in PPO, set num_ppo_epochs (now 3) instead",
    );
    for name in ["generation_batch_size", "steps_per_generation"] {
        let words = format!(
            "`{name}` is a key of GRPO; in PPO a generation batch has num_mini_batches (now 1) × \
             per_device_train_batch_size × gradient_accumulation_steps completions: set these keys"
        );
        match name {
            "steps_per_generation" => refused(Ppo, |c| c.steps_per_generation = Some(2), &words),
            _ => refused(Ppo, |c| c.generation_batch_size = Some(2), &words),
        }
    }
    refused(
        Ppo,
        |c| c.dynamic_sampling = true,
        "`dynamic_sampling` is for algorithms that compare the completions of a group, such as GRPO: set it to false",
    );
    refused(
        Ppo,
        |c| (c.per_device_train_batch_size, c.gradient_accumulation_steps, c.num_generations) = (5, 2, 4),
        "a mini-batch of 10 completions (per_device_train_batch_size × gradient_accumulation_steps) must be a multiple \
         of num_generations = 4, so that groups are complete: set num_generations = 1, or another batch size",
    );
    assert_eq!(
        check(Ppo, |c| (c.per_device_train_batch_size, c.gradient_accumulation_steps, c.num_generations) = (6, 2, 4)),
        None
    );
    refused(
        Ppo,
        |c| (c.adap_kl_ctrl, c.kl_coef) = (true, 0.0),
        "`adap_kl_ctrl` = true multiplies kl_coef, which is 0: set kl_coef above 0, or adap_kl_ctrl = false",
    );
    assert_eq!(check(Ppo, |c| (c.adap_kl_ctrl, c.kl_coef) = (true, 0.1)), None);
    assert_eq!(check(Ppo, |c| c.kl_coef = 0.0), None);
    refused(
        Distillation,
        |_| {},
        "algorithm = \"distillation\" learns from a teacher: set `teacher_model_name_or_path` to a model's directory \
         or Hub id",
    );
    assert_eq!(check(Distillation, |c| c.teacher_model_name_or_path = Some("t".into())), None);
    refused(
        Distillation,
        |c| (c.teacher_model_name_or_path, c.dynamic_sampling) = (Some("t".into()), true),
        "`dynamic_sampling` replaces groups whose rewards are all equal, but algorithm = \"distillation\" learns from \
         them too: set dynamic_sampling to false",
    );
}

/// Each algorithm computes its formula with the settings of the configuration.
#[test]
fn advantages_follow_the_configured_formula() {
    let sample = |group: u64, tokens: usize| {
        let mut sample =
            Sample { group: model::GroupId(group), ..Sample::supervised(model::Prompt::new([1]), vec![4; tokens]) };
        sample.columns.set(model::columns::SAMPLER_LOGPS, vec![-1.0; tokens]);
        sample.columns.set(model::columns::REF_LOGPS, vec![-1.5; tokens]);
        sample
    };
    let samples = [sample(1, 2), sample(1, 3), sample(2, 1), sample(2, 2)];
    let row = |(sample, score): (&Sample, f64)| train::RewardRow { group: sample.group, scores: vec![Some(score)] };
    let rows = samples.iter().zip([1.0, 3.0, 5.0, 9.0]).map(row).collect();
    let rewards = RewardMatrix { rows, names: vec!["r".into()], weights: vec![1.0] };
    let steps = [Some(StepRewards { steps: vec![(0, 0.25), (1, 0.75)], at_end: None }), None, None, None];
    let batch = Scored { rewards: &rewards, steps: &steps, samples: &samples };
    let of = |algorithm, change: fn(&mut Config)| {
        let config = config(algorithm, change);
        let Estimator::Batch(compute) = config.policy_gradient().estimator() else { panic!("a value model") };
        compute(&config, &batch).advantages
    };
    let sequence = |all: [f32; 4]| all.map(train::Advantage::Sequence).to_vec();
    let plain: fn(&mut Config) = |c| c.scale_rewards = ScaleRewards::None;
    assert_eq!(of(Algorithm::Grpo, plain), sequence([-1.0, 1.0, -2.0, 2.0]));
    assert_ne!(of(Algorithm::Grpo, |c| c.scale_rewards = ScaleRewards::Group), of(Algorithm::Grpo, plain));
    let steps = |c: &mut Config| (c.scale_rewards, c.process_rewards) = (ScaleRewards::None, ProcessRewards::PerStep);
    assert!(matches!(of(Algorithm::Grpo, steps)[0], train::Advantage::Tokens(_)));
    // In a group of two the baseline is the other completion.
    assert_eq!(of(Algorithm::Rloo, |_| {}), sequence([-2.0, 2.0, -4.0, 4.0]));
    assert_eq!(of(Algorithm::Rloo, |c| c.reward_clip_range = Some(vec![2.0, 6.0])), sequence([-1.0, 1.0, -1.0, 1.0]));
    // Rewards are reduced by beta times the KL divergence, which is 0.5 per token.
    assert_eq!(of(Algorithm::Rloo, |c| c.beta = 1.0), sequence([-1.5, 1.5, -3.5, 3.5]));
    let (batch_mean, group_mean) =
        (of(Algorithm::ReinforcePlusPlus, |_| {}), of(Algorithm::ReinforcePlusPlusBaseline, |_| {}));
    assert!(batch_mean.iter().chain(&group_mean).all(|one| matches!(one, train::Advantage::Tokens(_))));
    assert_ne!(batch_mean, group_mean);
    assert!(
        group_mean[0].at(0) < 0.0
            && group_mean[1].at(0) > 0.0
            && group_mean[2].at(0) < 0.0
            && group_mean[3].at(0) > 0.0
    );
    assert!(batch_mean[0].at(0) < 0.0 && batch_mean[1].at(0) < 0.0 && batch_mean[3].at(0) > 0.0);
}
