//! Tests of the configuration that the flags of an evaluation set.

use super::*;
use clap::Parser as _;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn config(words: &[&str]) -> Config {
    let all = ["eval", "--model", "m", "--reward", "gsm8k", "--dataset", "d.jsonl"];
    configuration(&Line::parse_from(all.iter().chain(words)).args).unwrap().config
}

#[test]
fn a_single_completion_is_greedy_and_several_are_sampled_by_default() {
    let of = |words: &[&str]| {
        let config = config(words);
        (config.eval_sampling, config.generations_eval(), config.eval_pass_at_k.clone())
    };
    assert_eq!(of(&[]).0, EvalSampling::Greedy);
    assert_eq!(of(&[]).1, 1);
    assert_eq!(of(&["--n", "1"]).0, EvalSampling::Greedy);
    let (sampling, n, k) = of(&["--n", "4"]);
    assert!(
        (sampling, n) == (EvalSampling::Sampled, 4)
            && format!("{k:?}") == format!("{:?}", of(&["--n", "4", "--pass-at-k", "1,4"]).2)
    );
    assert_eq!(format!("{:?}", of(&["--n", "4", "--pass-at-k", "2"]).2).matches('2').count(), 1);
    assert_eq!(of(&["--temperature", "0"]).0, EvalSampling::Greedy);
    let sampled = config(&["--temperature", "0.5"]);
    assert_eq!((sampled.eval_sampling, sampled.temperature), (EvalSampling::Sampled, 0.5));
}

#[test]
fn several_datasets_need_names_and_a_single_one_does_not() {
    let of = |given: &[&str]| {
        let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
        datasets(&given).map_err(|error| error.to_string())
    };
    assert_eq!(of(&["a.jsonl"]).unwrap(), (Some("a.jsonl".to_owned()), vec![]));
    let named = vec!["\"easy\" = \"a=b.jsonl\"".to_owned(), "\"hard\" = \"c\"".to_owned()];
    assert_eq!(of(&["easy = a=b.jsonl", "hard=c"]).unwrap(), (None, named.clone()));
    assert_eq!(of(&["x", "easy=a=b.jsonl", "hard=c"]).unwrap(), (Some("x".to_owned()), named));
    let why = "--dataset y: several datasets need names: --dataset NAME=FILE";
    assert_eq!(of(&["x", "y"]).unwrap_err(), why);
    let why = "--dataset a=c: the name is used twice; each dataset needs a different name";
    assert_eq!(of(&["a=b", "a=c"]).unwrap_err(), why);
    assert!(of(&["a=b", "ab=c"]).is_ok(), "a name may be a prefix of another");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a=b");
    std::fs::write(&file, "").unwrap();
    let name = file.to_str().unwrap();
    assert_eq!(of(&[name]).unwrap().0.as_deref(), Some(name), "a file name may contain `=`");
}

#[test]
fn the_source_of_an_evaluation_is_a_file_or_a_run_with_its_model() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.toml");
    assert_eq!(source(&file).unwrap(), (Some(file), None));
    let run = dir.path().join("run");
    std::fs::create_dir_all(run.join("model")).unwrap();
    assert!(source(&run).is_err(), "a run without a configuration must be refused");
    std::fs::write(run.join("config.toml"), "").unwrap();
    std::fs::write(run.join("model/config.json"), "{}").unwrap();
    if let Ok((file, model)) = source(&run) {
        assert!(file.unwrap().ends_with("run/config.toml"));
        assert!(model.unwrap().ends_with("run/model"));
    }
}

#[test]
fn rewards_are_summarised_by_dataset_and_a_reward_without_scores_is_an_error() {
    let of = |name: &str| {
        let prefix = if name.is_empty() { "eval".to_owned() } else { format!("eval_{name}") };
        let metric = |what: &str, value: f64| (format!("{prefix}_rewards/a/{what}"), value);
        let mut outcome = Outcome {
            name: name.to_owned(),
            metrics: vec![metric("mean", 0.5), metric("std", 0.25)],
            problems: Vec::new(),
            unscored: None,
            rollouts: Default::default(),
        };
        outcome.rollouts.reward_names = vec!["a".to_owned(), "b".to_owned()];
        outcome.rollouts.reward_weights = vec![1.0, 0.5];
        outcome
    };
    let outcome = of("hard");
    let found: Vec<Value> = summaries(&outcome).map(|summary| summary.json()).collect();
    let expected = [
        json!({"set": "hard", "reward": "a", "weight": 1.0, "mean": 0.5, "std": 0.25, "judged": 0, "of": 0}),
        json!({"set": "hard", "reward": "b", "weight": 0.5, "mean": null, "std": null, "judged": 0, "of": 0}),
    ];
    assert_eq!(found, expected);
    let table = rewards_table(&[of(""), outcome]).render(100);
    let rows: Vec<String> = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for row in ["- a 1 0.5000 0.2500 0/0", "- b 0.5 - - 0/0", "hard a 1 0.5000 0.2500 0/0", "hard b 0.5 - - 0/0"] {
        assert!(rows.iter().any(|found| found == row), "`{row}` is not in\n{table}");
    }
    let why = |name: &str| all_scored(&of(name)).unwrap_err().to_string();
    assert_eq!(why(""), "reward `a` scored no completion");
    assert_eq!(why("hard"), "reward `a` scored no completion of hard");
    let mut none = of("");
    none.rollouts.reward_names.clear();
    assert!(all_scored(&none).is_ok(), "an evaluation without rewards must pass");
}

#[test]
fn a_reward_may_fail_on_some_completions_or_abstain_on_all() {
    let scored = [("a", 3), ("b", 0), ("c", 0)].map(|(name, n)| (name.to_owned(), n));
    for (failed, expected) in [(&[][..], None), (&["a"], None), (&["c"], Some("c")), (&["a", "b", "c"], Some("b"))] {
        assert_eq!(first_unscored(&scored, failed), expected, "{failed:?}");
    }
    assert_eq!(first_unscored(&scored[1..], &[]), Some("b"));
    assert_eq!(first_unscored(&[], &["a"]), None);
}
