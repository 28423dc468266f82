use super::*;
use crate::config::{Algorithm, EvalSampling};
use crate::data::prompts::Prompt;
use crate::rollouts::generation::tests::round;
use rewards::FunctionReward;
use serde_json::Map;
use train::LossType;

fn named(metrics: &[(&str, f64)]) -> Vec<(String, f64)> {
    metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

fn set(name: &str, lengths: &[usize]) -> EvalSet {
    let prompt = |(row, &length): (usize, &usize)| {
        let tokens = model::Prompt::new(vec![1; length]);
        Arc::new(Prompt { row, tokens, content: "x".into(), columns: Map::new() })
    };
    let all = lengths.iter().enumerate().map(prompt).collect();
    EvalSet {
        name: name.into(),
        questions: PromptDataset { all, hash: String::new(), left_out: 0, notices: Default::default() },
    }
}

fn reward(name: &str) -> Box<dyn Reward> {
    Box::new(FunctionReward::new(name, |_| Some(1.0)))
}

fn evaluation(config: &Config, sets: Vec<EvalSet>) -> anyhow::Result<Evaluation> {
    let training = SamplingParams { temperature: 0.75, top_k: 7, entropies: true, ..SamplingParams::default() };
    Evaluation::new(config, sets, &training, &[reward("a"), reward("b")])
}

#[test]
fn metrics_are_found_with_and_without_the_eval_prefix() {
    let metrics = named(&[("eval_reward", 1.0), ("eval_easy_reward", 2.0), ("loss", 3.0)]);
    let of = |name: &str| find(&metrics, name);
    assert_eq!(
        [of("reward"), of("eval_reward"), of("easy_reward"), of("loss")],
        [Some(1.0), Some(1.0), Some(2.0), Some(3.0)]
    );
    assert_eq!((of("eval_loss"), of("ward")), (None, None));
    assert_eq!((prefix(""), prefix("easy")), ("eval_".into(), "eval_easy_".into()));
}

#[test]
fn the_names_of_metrics_are_known_before_an_evaluation() {
    let rewards = [reward("a"), reward("b")];
    let mut config = Config { eval_dataset_name: Some("d".into()), eval_pass_at_k: vec![1, 4], ..Config::default() };
    let all = [
        "rewards/a/mean",
        "rewards/a/std",
        "rewards/b/mean",
        "rewards/b/std",
        "reward",
        "reward_std",
        "frac_reward_zero_std",
        "completions/mean_length",
        "completions/clipped_ratio",
        "completions/min_length",
        "completions/max_length",
        "completions/mean_terminated_length",
        "completions/min_terminated_length",
        "completions/max_terminated_length",
        "loss",
        "entropy",
        "clip_ratio/low_mean",
        "clip_ratio/low_min",
        "clip_ratio/high_mean",
        "clip_ratio/high_max",
        "clip_ratio/region_mean",
        "pass@1",
        "pass@4",
    ];
    let with = |prefixes: &[&str], names: &[&str]| -> Vec<String> {
        let names = prefixes.iter().flat_map(|prefix| names.iter().map(move |name| format!("{prefix}{name}")));
        names.chain(["eval_num_tokens", "eval_runtime"].map(str::to_owned)).collect()
    };
    assert_eq!(metric_names(&config, &rewards), with(&["eval_"], &all));
    // The loss metrics depend on the loss: a KL term, an entropy bonus, and whether the loss clips.
    let loss_names = |change: fn(&mut Config)| {
        let mut config = Config { eval_pass_at_k: Vec::new(), ..config.clone() };
        change(&mut config);
        let names = metric_names(&config, &[]).into_iter().skip_while(|name| name != "eval_loss");
        names
            .take_while(|name| name != "eval_num_tokens")
            .map(|name| name["eval_".len()..].to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(loss_names(|c| c.beta = 0.1)[..3], ["loss", "entropy", "kl"]);
    assert_eq!(loss_names(|c| (c.algorithm, c.beta) = (Algorithm::Rloo, 0.1))[..4], ["loss", "entropy", "kl", all[16]]);
    assert_eq!(loss_names(|c| c.entropy_coef = 0.1)[..4], ["loss", "entropy", "policy_loss", "entropy_coef"]);
    assert_eq!(loss_names(|c| c.loss_type = LossType::Cispo), ["loss", "entropy"]);
    config.eval_datasets.insert("easy".into(), "e".into());
    assert_eq!(metric_names(&config, &rewards), with(&["eval_", "eval_easy_"], &all));
    (config.eval_dataset_name, config.eval_loss, config.eval_pass_at_k) = (None, false, Vec::new());
    assert_eq!(metric_names(&config, &[]), with(&["eval_easy_"], &all[7..14]));
}

#[test]
fn completions_are_sampled_as_configured() {
    let config = Config { num_generations: 5, eval_pass_at_k: vec![2], ..Config::default() };
    let sampled = evaluation(&config, Vec::new()).unwrap();
    assert_eq!((sampled.generations, sampled.right, &sampled.pass_at_k[..]), (5, 0, &[2][..]));
    let sampling = sampled.sampling();
    assert_eq!((sampling.temperature, sampling.top_k, sampling.entropies), (0.75, 7, false));
    let greedy = Config { eval_sampling: EvalSampling::Greedy, ..config.clone() };
    let greedy = evaluation(&greedy, Vec::new()).unwrap();
    assert_eq!((greedy.generations, greedy.sampling().temperature), (1, 0.0));
    let right =
        |name: &str| evaluation(&Config { eval_pass_at_k_reward: Some(name.into()), ..config.clone() }, Vec::new());
    assert_eq!((right("a").unwrap().right, right("b").unwrap().right), (0, 1));
    let words = "`eval_pass_at_k_reward` = c: unknown reward; the rewards are: a, b";
    assert_eq!(right("c").err().unwrap().to_string(), words);
}

#[test]
fn metrics_of_a_set_use_only_its_scored_completions() {
    let mut rollouts = round(&[(3, [Some(1.0), Some(0.5)]), (5, [None, Some(2.0)])]);
    rollouts.reward_names = vec!["a".into(), "b".into()];
    rollouts.reward_weights = vec![1.0, 0.0];
    // The second reward, with weight 0, decides pass@k. It counts one of the first group's two completions as right,
    // and the only scored completion of the second group.
    let second = [Some(1.0), Some(0.99), None, Some(1.5)];
    for (place, c) in rollouts.groups.iter_mut().flat_map(|group| &mut group.completions).enumerate() {
        c.rewards.push(second[place]);
        c.completion.ids = vec![4; place + 2];
        c.completion.sampled = vec![true; place + 2];
        c.completion.finish_reason = if place == 1 { FinishReason::Length } else { FinishReason::Stop };
    }
    let config = Config { eval_pass_at_k: vec![1, 2], eval_pass_at_k_reward: Some("b".into()), ..Config::default() };
    let evaluation = evaluation(&config, Vec::new()).unwrap();
    let of = |name: &str, rollouts: &Rollouts| {
        let scored = ScoredRollouts { rollouts: rollouts.clone(), ..ScoredRollouts::default() };
        evaluation.outcome(&set(name, &[]), scored)
    };
    let outcome = of("easy", &rollouts);
    let metric = |name: &str| outcome.metric(name);
    assert_eq!(
        (outcome.name.as_str(), metric("reward"), metric("rewards/a/mean")),
        ("easy", Some(3.5 / 3.0), Some(3.5 / 3.0))
    );
    assert_eq!(metric("rewards/b/mean"), Some((1.0 + 0.99 + 1.5) / 3.0));
    assert_eq!((metric("completions/mean_length"), metric("completions/clipped_ratio")), (Some(3.5), Some(0.25)));
    assert_eq!((metric("pass@1"), metric("pass@2")), (Some(0.75), Some(1.0)));
    assert!(outcome.metrics.iter().all(|(name, _)| name.starts_with("eval_easy_")), "{:?}", outcome.metrics);
    assert_eq!(metric("completions/max_length"), Some(5.0));
    assert!(metric("frac_reward_zero_std").is_some_and(|share| (0.0..=1.0).contains(&share)));
    let lengths = ["min_length", "mean_terminated_length", "min_terminated_length", "max_terminated_length"];
    let lengths = lengths.map(|name| metric(&format!("completions/{name}")).unwrap());
    assert_eq!(lengths, [2.0, 11.0 / 3.0, 2.0, 5.0], "the second completion was truncated");
    let plain = of("", &rollouts);
    assert_eq!(plain.metric("reward"), find(&plain.metrics, "eval_reward"));
    assert!(plain.metric("reward").is_some());

    // Checks a set without rewards, and then one without completions.
    (rollouts.reward_names, rollouts.reward_weights) = (Vec::new(), Vec::new());
    rollouts.groups.iter_mut().flat_map(|group| &mut group.completions).for_each(|c| c.rewards.clear());
    let bare = of("", &rollouts);
    assert_eq!(
        (bare.metric("pass@1"), bare.metric("reward"), bare.metric("completions/clipped_ratio")),
        (None, None, Some(0.25))
    );
    let none = of("", &Rollouts::default());
    assert_eq!((none.metric("completions/clipped_ratio"), none.metric("completions/mean_length")), (None, None));
}

#[test]
fn unscored_completions_of_an_evaluation_are_reported() {
    let rollouts = round(&[(3, [Some(1.0), None])]);
    let evaluation = evaluation(&Config::default(), Vec::new()).unwrap();
    let scored = ScoredRollouts { rollouts, ..ScoredRollouts::default() };
    let outcome = evaluation.outcome(&set("", &[]), scored.clone());
    assert_eq!(outcome.unscored.as_deref(), Some("no reward gave a score for 1 of 2 completions"));
    let problems = vec![Problem::new("r", 1, "it failed")];
    let outcome = evaluation.outcome(&set("", &[]), ScoredRollouts { problems: problems.clone(), ..scored });
    assert_eq!((outcome.unscored, outcome.problems), (None, problems));
}
