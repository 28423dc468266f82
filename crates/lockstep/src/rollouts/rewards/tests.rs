use super::*;
use rewards::FunctionReward;
use serde_json::json;

fn function(name: &str) -> Box<dyn Reward> {
    Box::new(FunctionReward::new(name, |_| Some(1.0)))
}

/// A reward that compares all completions, and reads the columns `answer` and `level`.
struct Whole(&'static str);

impl Reward for Whole {
    fn name(&self) -> &str {
        self.0
    }
    fn required_columns(&self) -> Vec<String> {
        vec!["answer".into(), "level".into()]
    }
    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        Scores::new(vec![None; batch.len()])
    }
}

fn config(specs: &[&str]) -> Config {
    Config { reward_funcs: specs.iter().map(|&spec| spec.into()).collect(), ..Config::default() }
}

fn named(specs: &[&str], injected: Vec<Box<dyn Reward>>) -> Result<Vec<(String, Owner)>, String> {
    let all = named_rewards(&config(specs), injected, PromptTime(0), &StopSignal::new())
        .map_err(|error| error.to_string())?;
    let of = |reward: &ConfiguredReward| match reward {
        ConfiguredReward::Ready(reward, owner) => (reward.name().to_owned(), *owner),
        ConfiguredReward::Model(_) => unreachable!("no reward model is configured"),
    };
    Ok(all.iter().map(of).collect())
}

#[test]
fn each_function_of_the_caller_must_be_named_once() {
    let both = || vec![function("x"), function("y")];
    let found = named(&["function:y", "unique_chars", "function:x"], both()).unwrap();
    let expected = [("y", Owner::Caller), ("unique_chars", Owner::Configuration), ("x", Owner::Caller)];
    assert_eq!(found, expected.map(|(name, owner)| (name.to_owned(), owner)));
    let own = "reward function:z must be passed by the calling program: start the run from that program";
    assert_eq!(named(&["function:z"], both()).unwrap_err(), own);
    let left = "the program passes the function `x`, but reward_funcs has no \"function:x\" (or two functions have \
        this name)";
    assert_eq!(named(&["function:y"], both()).unwrap_err(), left);
    assert_eq!(
        named(&["function:x", "function:y"], vec![function("x"), function("x"), function("y")]).unwrap_err(),
        left
    );
    assert_eq!(named(&[], Vec::new()), Ok(vec![]));
    // A stop request does not mean that a reward failed.
    let stop = StopSignal::new();
    stop.request();
    assert!(named_rewards(&config(&["unique_chars"]), Vec::new(), PromptTime(0), &stop).is_err());
}

#[test]
fn workers_call_only_rewards_that_the_configuration_describes() {
    let all = || {
        let stop = StopSignal::new();
        let named = named_rewards(&config(&["unique_chars", "function:x"]), vec![function("x")], PromptTime(0), &stop);
        let mut all = named.unwrap();
        all.push(ConfiguredReward::Ready(Box::new(Whole("whole")), Owner::Configuration));
        all
    };
    let of = |functions: bool| asked_by_workers(&all(), functions).into_iter().collect::<Vec<_>>();
    assert_eq!(
        (of(false), of(true)),
        (vec!["unique_chars".to_owned()], vec!["unique_chars".to_owned(), "x".to_owned()])
    );
    assert_eq!(models(&all()).count(), 0);
    assert!(named_models(&config(&["unique_chars", "function:x"])).unwrap().is_empty());
    let ready = ready_rewards(all(), Vec::new(), &StopSignal::new());
    assert_eq!(ready.iter().map(|reward| reward.name()).collect::<Vec<_>>(), ["unique_chars", "x", "whole"]);
}

#[test]
fn nondeterministic_rewards_score_nothing_in_a_replay() {
    let all = rewards_of_record(&config(&["command:./no-such-program", "unique_chars"]), &StopSignal::new()).unwrap();
    let mut ready = ready_rewards(all, Vec::new(), &StopSignal::new());
    let [silent, asked] = &mut ready[..] else { panic!("two rewards") };
    assert_eq!((silent.name(), asked.name()), ("no-such-program", "unique_chars"));
    assert!(silent.scores_by_group());
    let (texts, ids, columns) = (["a".into(), "b".into()], [vec![1], vec![2]], Default::default());
    let batch = RewardBatch {
        prompts: &texts,
        completions: &texts,
        completion_ids: &ids,
        columns: &columns,
        rows: &[0, 1],
        step: model::Step(0),
    };
    let scores = silent.score(&batch);
    assert_eq!((scores.values, scores.problems), (vec![None, None], vec![]));
    assert_eq!(asked.score(&batch).values.len(), 2);
}

#[test]
fn a_missing_column_of_a_reward_is_named() {
    let rewards = [
        ConfiguredReward::Ready(function("x"), Owner::Caller),
        ConfiguredReward::Ready(Box::new(Whole("whole")), Owner::Configuration),
    ];
    let refused = |columns: Value| {
        let error = check_columns_of(columns.as_object().unwrap(), "d.jsonl", &rewards).err();
        error.map(|error| error.to_string())
    };
    assert_eq!(refused(json!({"answer": 1, "level": null})), None);
    let lacks = |column: &str, present: &str| {
        Some(format!(
            "reward whole reads column `{column}`, which d.jsonl lacks; its columns besides the prompt are: {present}. \
             Rename one with columns = {{ {column} = \"…\" }}"
        ))
    };
    assert_eq!(refused(json!({})), lacks("answer", "none"));
    assert_eq!(refused(json!({"answer": 1, "other": 2})), lacks("level", "answer, other"));
    let row = |columns: Value| {
        let columns = columns.as_object().unwrap().clone();
        let tokens = model::Prompt::new([1]);
        std::sync::Arc::new(crate::data::prompts::Prompt { row: 0, tokens, content: "x".into(), columns })
    };
    let refusal = |all: Vec<_>| {
        let prompts = PromptDataset { all, hash: String::new(), left_out: 0, notices: Default::default() };
        check_columns(&prompts, "d.jsonl", &rewards).err().map(|error| error.to_string())
    };
    // The first row decides which columns a dataset has.
    assert_eq!(refusal(vec![]), None);
    assert_eq!(refusal(vec![row(json!({})), row(json!({"answer": 1, "level": 1}))]), lacks("answer", "none"));
}
