//! Scores do not depend on the order in which groups end. Groups are scored while others are generated.

use super::*;
use kernels::{Context, Isa};
use model::tokenizer::SpecialTokens;
use model::{ModelConfig, Weights};
use rewards::{RewardBatch, RewardSpec, Scores};
use rollout::{Completion, Engine, EngineConfig, FinishReason, Request, SamplingParams};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Completions of each prompt.
const GROUP: usize = 2;
fn tokenizer() -> Tokenizer {
    let special = SpecialTokens { eos: Some("<e>".into()), ..SpecialTokens::default() };
    Tokenizer::characters("abcdefghijklmnopqrstuvwxyz0123456789 ".chars(), &special).unwrap()
}

/// The first group number.
const FIRST: u64 = 40;

/// Four prompts, one with an answer that is not a number, and one without the column.
fn prompts() -> Prompts {
    let answer = [Some("7"), Some("none"), Some("nothing"), None];
    let prompt = |(row, answer): (usize, &Option<&str>)| {
        let columns = answer.iter().map(|&answer| ("answer".to_owned(), answer.into())).collect();
        let (tokens, content) = (model::Prompt::new([1, 2]), Content::Text(format!("q{row}")));
        (GroupId(FIRST + row as u64), Arc::new(Prompt { row, tokens, content, columns }))
    };
    answer.iter().enumerate().map(prompt).collect()
}

fn completion(tokenizer: &Tokenizer, row: usize, generation: usize) -> Completion {
    let ids = tokenizer.encode(["is 7", "is 8", "none", "a"][(row + 3 * generation) % 4]).unwrap();
    let n = ids.len();
    Completion {
        generation,
        ids,
        sampled: vec![true; n],
        versions: vec![model::Updates(0); n],
        columns: model::Columns::default(),
        finish_reason: FinishReason::Stop,
    }
}

/// The groups of all prompts.
fn groups(tokenizer: &Tokenizer) -> Vec<RolloutGroup> {
    let group = |(&group, prompt): (&GroupId, &Arc<Prompt>)| {
        let completions = (0..GROUP).map(|g| completion(tokenizer, prompt.row, g)).collect();
        RolloutGroup::new(group, prompt.tokens.clone(), completions)
    };
    prompts().iter().map(group).collect()
}

/// Scores the groups as if they had ended in this order.
fn scored(rewards: &mut [Box<dyn Reward>], order: &[usize]) -> ScoredRollouts {
    let (tokenizer, prompts) = (tokenizer(), prompts());
    let groups = groups(&tokenizer);
    let weights = vec![1.0; rewards.len()];
    std::thread::scope(|scope| {
        let scorer = RolloutScorer {
            rewards,
            weights: &weights,
            tokenizer: &tokenizer,
            step: Step(3),
            columns: GivenColumns::new(),
        };
        let mut job = scorer.start(scope, &prompts, &[]).unwrap();
        for &i in order {
            job.group_ended(&groups[i]);
        }
        job.finish(groups, BTreeMap::new()).unwrap()
    })
}

/// All fields except the times.
fn lasting(output: &ScoredRollouts) -> String {
    let ScoredRollouts { rollouts, problems, metrics, .. } = output;
    format!("{rollouts:?}\n{problems:?}\n{metrics:?}")
}

/// A reward that is called once for the whole batch (the default).
struct Whole(Box<dyn Reward>);

impl Reward for Whole {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        self.0.score(batch)
    }
}

/// A reward that takes a different time for each group, fails for one group, and returns NaN for another.
#[derive(Clone, Default)]
struct Slow {
    asked: Arc<Mutex<Vec<usize>>>,
    whole: bool,
}

impl Reward for Slow {
    fn name(&self) -> &str {
        "slow"
    }
    fn scores_by_group(&self) -> bool {
        !self.whole
    }
    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        self.asked.lock().unwrap().push(batch.len());
        let row = |i: usize| batch.prompts[i].text()[1..].parse::<usize>().unwrap();
        std::thread::sleep(Duration::from_millis([9, 0, 5, 1][row(0)]));
        let value = |i: usize| match row(i) {
            1 => None,
            2 => Some(f64::INFINITY),
            row => Some((10 * row + batch.completion_ids[i].len()) as f64),
        };
        let mut scores = Scores::new((0..batch.len()).map(value).collect());
        let failed = scores.values.iter().filter(|v| v.is_none()).count();
        if failed > 0 {
            scores.problems.push(Problem::new("slow", failed, "it crashed"));
        }
        scores.extra.push(("row".into(), (0..batch.len()).map(|i| row(i).into()).collect()));
        scores.metrics.push(("step".into(), batch.step.0 as f64));
        scores
    }
}

#[test]
fn a_reported_problem_suppresses_the_unscored_warning() {
    let rollouts = crate::rollouts::generation::tests::round(&[(1, [None, Some(1.0)]), (2, [None, None])]);
    let mut scored = ScoredRollouts { rollouts, ..ScoredRollouts::default() };
    assert_eq!(scored.unscored_warning().unwrap(), "no reward gave a score for 3 of 4 completions");
    scored.problems.push(Problem::new("r", 3, "it crashed"));
    assert_eq!(scored.unscored_warning(), None);
}

#[test]
fn scores_do_not_depend_on_the_order_in_which_groups_end() {
    let build = |whole: bool| -> Vec<Box<dyn Reward>> {
        let specs = ["gsm8k", "exact_match", "gsm8k:solution", "format:7", "length:3", "unique_chars"];
        let own = specs
            .iter()
            .map(|&spec| rewards::build(&RewardSpec::from(spec), spec.split(':').next().unwrap().into()).unwrap());
        let all = own.chain([Box::new(Slow::default()) as Box<dyn Reward>]);
        all.map(|reward| if whole { Box::new(Whole(reward)) as Box<dyn Reward> } else { reward }).collect()
    };
    let expected = scored(&mut build(true), &[0, 1, 2, 3]);
    assert!(build(false).iter().all(|r| r.scores_by_group()) && !build(true).iter().any(|r| r.scores_by_group()));
    assert!(expected.overlapped.is_empty());
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        assert_eq!(lasting(&scored(&mut build(false), &order)), lasting(&expected), "{order:?}");
    }
    // A reward's extra columns belong to their completion.
    for group in &expected.rollouts.groups {
        assert!(group.completions.iter().all(|c| c.extra["row"] == group.prompt.row));
    }
    let problems: Vec<String> = expected.problems.iter().map(Problem::to_string).collect();
    let expected_problems = [
        "reward `gsm8k` gave no score for 6 completions: no number in column `answer`, for example in \"none\"",
        "reward `exact_match` gave no score for 2 completions: column `answer` has no answer in these rows",
        "reward `gsm8k` gave no score for 8 completions: the dataset has no column `solution`; it has `answer`",
        "reward `slow` gave no score for 2 completions: it crashed",
        "reward `slow` gave no score for 2 completions: it gave inf, which is not a finite number",
    ];
    assert_eq!(problems, expected_problems);
    // Each group has the problems of its own completions.
    for group in &expected.rollouts.groups {
        let unscored = |c: &ScoredCompletion| c.rewards.iter().filter(|score| score.is_none()).count();
        for (place, c) in group.completions.iter().enumerate() {
            let own = group.problems.iter().filter(|problem| problem.completions.contains(&place));
            assert_eq!(own.count(), unscored(c), "{:?}", group.problems);
        }
    }
    let slow_problems = |group: usize| -> Vec<(usize, &str)> {
        let problems = expected.rollouts.groups[group].problems.iter().filter(|problem| problem.reward == "slow");
        problems.map(|problem| (problem.rows, &*problem.message)).collect()
    };
    assert_eq!([slow_problems(0), slow_problems(3)], [vec![], vec![]]);
    assert_eq!(slow_problems(1), [(2, "it crashed")]);
    assert_eq!(slow_problems(2), [(2, "it gave inf, which is not a finite number")]);
}

#[test]
fn a_reward_that_compares_completions_is_called_once() {
    let (whole, group) = (Slow { whole: true, ..Slow::default() }, Slow::default());
    let mut rewards: Vec<Box<dyn Reward>> = vec![Box::new(whole.clone()), Box::new(group.clone())];
    let output = scored(&mut rewards, &[3, 0, 2, 1]);
    assert_eq!(*whole.asked.lock().unwrap(), [8]);
    assert_eq!(*group.asked.lock().unwrap(), [2, 2, 2, 2]);
    // Each reward's scores are in its own column.
    assert!(output.rollouts.completions().all(|c| c.rewards.len() == 2 && c.rewards[0] == c.rewards[1]));
}

/// A reward that reports each call, then waits for permission to return.
struct Gate {
    asked: Sender<String>,
    may_answer: Receiver<()>,
}

impl Reward for Gate {
    fn name(&self) -> &str {
        "gate"
    }
    fn scores_by_group(&self) -> bool {
        true
    }
    fn score(&mut self, batch: &RewardBatch<'_>) -> Scores {
        self.asked.send(batch.prompts[0].text().into_owned()).unwrap();
        self.may_answer.recv_timeout(testing::HANG).unwrap();
        Scores::new(vec![Some(1.0); batch.len()])
    }
}

/// A [`Gate`], the receiver of its calls, and the sender of its permissions.
fn gate() -> (Vec<Box<dyn Reward>>, Receiver<String>, Sender<()>) {
    let ((asked, was_asked), (answer, may_answer)) = (channel(), channel());
    (vec![Box::new(Gate { asked, may_answer })], was_asked, answer)
}

/// This test uses no clock. In the middle of generation, the engine waits until the reward was called for the first
/// group. The reward returns only after the engine has generated another group.
#[test]
fn groups_are_scored_while_others_are_generated() {
    let shape = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 40, "hidden_size": 16,
        "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": false, "bos_token_id": null, "eos_token_id": 0}"#;
    let ctx = Context::cpu(Isa::best(), 1);
    let model = Arc::new(ModelConfig::parse(shape).unwrap());
    let weights = Weights::random(ctx.memory(), &model, 1).unwrap();
    // The engine generates one group at a time.
    let sizes = EngineConfig { kv_blocks: 8, max_batched_tokens: 16, ..EngineConfig::new(GROUP, 16) };
    let mut engine = Engine::new(&ctx, &model, sizes).unwrap();
    let sampling = Arc::new(SamplingParams { max_new_tokens: 3, ..SamplingParams::default() });
    let prompts = prompts();
    let request = |(&group, prompt): (&GroupId, &Arc<Prompt>)| {
        Request::new(group, prompt.tokens.clone(), GROUP, sampling.clone())
    };
    let requests = prompts.iter().map(request).collect();
    let (mut rewards, was_asked, answer) = gate();
    let tokenizer = tokenizer();
    let mut ended = 0;
    let output = std::thread::scope(|scope| {
        let (rewards, columns) = (&mut rewards[..], GivenColumns::new());
        let scorer = RolloutScorer { rewards, weights: &[1.0], tokenizer: &tokenizer, step: Step(0), columns };
        let mut job = scorer.start(scope, &prompts, &[]).unwrap();
        let on_end = |group: &RolloutGroup| {
            job.group_ended(group);
            ended += 1;
            if ended == 1 {
                assert_eq!(was_asked.recv_timeout(testing::HANG).unwrap(), format!("q{}", group.group.0 - FIRST));
            }
            if ended == 2 {
                for _ in &prompts {
                    answer.send(()).unwrap();
                }
            }
        };
        let groups = engine.generate_with(&weights, requests, on_end).unwrap();
        job.finish(groups, BTreeMap::new()).unwrap()
    });
    assert_eq!((ended, output.rollouts.completions().count()), (4, 8));
    assert!(output.rollouts.completions().all(|c| c.rewards == [Some(1.0)]));
    assert!(!output.overlapped.is_empty() && output.overlapped.len() <= 4);
    // Each text belongs to its completion.
    for scored in output.rollouts.completions() {
        assert_eq!(scored.content, Content::Text(tokenizer.decode(&scored.completion.ids, true).unwrap()));
    }
}

#[test]
fn a_failed_generation_waits_only_for_the_running_reward() {
    let (tokenizer, prompts) = (tokenizer(), prompts());
    let (mut rewards, was_asked, answer) = gate();
    std::thread::scope(|scope| {
        let (rewards, columns) = (&mut rewards[..], GivenColumns::new());
        let scorer = RolloutScorer { rewards, weights: &[1.0], tokenizer: &tokenizer, step: Step(0), columns };
        let mut job = scorer.start(scope, &prompts, &[]).unwrap();
        for group in &groups(&tokenizer) {
            job.group_ended(group);
        }
        was_asked.recv_timeout(testing::HANG).unwrap();
        drop(job);
        answer.send(()).unwrap();
    });
    assert!(was_asked.try_recv().is_err(), "another group was scored");
}

#[test]
#[should_panic(expected = "a bug in a reward")]
fn a_panic_in_a_reward_is_propagated() {
    struct Bug;
    impl Reward for Bug {
        fn name(&self) -> &str {
            "bug"
        }
        fn scores_by_group(&self) -> bool {
            true
        }
        fn score(&mut self, _: &RewardBatch<'_>) -> Scores {
            panic!("a bug in a reward")
        }
    }
    scored(&mut [Box::new(Bug)], &[0, 1, 2, 3]);
}

#[test]
fn a_problem_is_reported_for_the_groups_that_it_concerns() {
    let problem = Problem { example: Some("x".into()), ..Problem::new("r", 5, "m").at(vec![1, 2, 4]) };
    let of = |problem: &Problem, own: Range<usize>| {
        problem_of(problem, &own).map(|own| (own.rows, own.completions, own.example.is_some()))
    };
    // The example is from the problem's first completion.
    assert_eq!(of(&problem, 0..2), Some((1, vec![1], true)));
    assert_eq!(of(&problem, 1..3), Some((2, vec![0, 1], true)));
    assert_eq!(of(&problem, 2..5), Some((2, vec![0, 2], false)));
    assert_eq!((of(&problem, 3..4), of(&problem, 5..9), of(&problem, 4..5)), (None, None, Some((1, vec![0], false))));
    assert_eq!(of(&Problem::new("r", 2, "m"), 0..2), None, "the problem does not name its completions");
}

#[test]
fn a_step_ends_at_the_token_with_its_last_character() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("is 7 a").unwrap();
    let at = |end: usize| token_of(&tokenizer, &ids, end).unwrap();
    assert_eq!([0, 1, 2, 3, 6, 7].map(at), [0, 0, 1, 2, 5, 5]);
    assert_eq!(token_of(&tokenizer, &[], 3).unwrap(), 0);
    // A character of two tokens ends at the second token.
    let byte_tokenizer = crate::rollouts::pieces::tests::byte_texts().tokenizer();
    let ends = [1, 2, 3, 4, 5].map(|end| token_of(&byte_tokenizer, &[0, 1, 2, 3, 0], end).unwrap());
    assert_eq!(ends, [0, 2, 3, 3, 4]);
    let step = |end: StepEnd, score: f64| StepScore { end, score };
    let steps = vec![Some(vec![step(StepEnd::Char(2), 0.5), step(StepEnd::Token(4), 1.5)]), None, Some(vec![])];
    let found = steps_at_tokens(&tokenizer, &ids, steps).unwrap();
    assert_eq!(found, [Some(vec![(1, 0.5), (4, 1.5)]), None, Some(vec![])]);
}

#[test]
fn each_prompt_becomes_a_request() {
    let sampling = Arc::new(SamplingParams { max_new_tokens: 3, ..SamplingParams::default() });
    let made = requests(&prompts(), GROUP + 1, &SamplingPlan::alike(sampling.clone()));
    assert_eq!(made.iter().map(|request| request.group.0).collect::<Vec<_>>(), [40, 41, 42, 43]);
    for (request, prompt) in made.iter().zip(prompts().values()) {
        assert_eq!((&request.prompt.ids, request.num_generations), (&prompt.tokens.ids, GROUP + 1));
        assert!(Arc::ptr_eq(&request.sampling, &sampling));
    }
}

/// Every input has each column of any row or completion; missing values are null.
#[test]
fn inputs_of_rewards_have_all_columns() {
    let (tokenizer, mut prompts) = (tokenizer(), prompts());
    let second = Prompt { content: Content::Messages(vec![]), ..Prompt::clone(&prompts[&GroupId(41)]) };
    prompts.insert(GroupId(41), Arc::new(second));
    let column = |name: &str, value: usize| Map::from_iter([(name.to_owned(), value.into())]);
    let given = GivenColumns::from([(GroupId(41), vec![column("x", 1), column("answer", 2)])]);
    let make = make_inputs(&tokenizer, &prompts, given);
    let ids = || ["is 7", "a"].map(|text| tokenizer.encode(text).unwrap()).to_vec();
    let plain = make(GroupId(40), ids()).unwrap();
    let json = |value: serde_json::Value| value;
    assert_eq!(plain.columns, BTreeMap::from([("answer".to_owned(), vec![json("7".into()), json("7".into())])]));
    assert_eq!((plain.rows, plain.completions), (vec![0, 0], vec![Content::from("is 7"), Content::from("a")]));
    assert_eq!((plain.prompts, plain.ids), (vec![Content::from("q0"); 2], ids()));
    let own = make(GroupId(41), ids()).unwrap();
    let expected =
        [("answer".to_owned(), vec![Value::Null, json(2.into())]), ("x".to_owned(), vec![json(1.into()), Value::Null])];
    assert_eq!(own.columns, BTreeMap::from(expected), "a completion's own values override the row's");
    assert_eq!((own.rows, own.completions[1].clone()), (vec![1, 1], Content::assistant("a")));
    let last = make(GroupId(43), ids()).unwrap();
    assert_eq!(last.columns["answer"], [Value::Null, Value::Null]);
}

/// A tokenizer with special tokens such as `<think>`, an end token `<e>` and a padding token `<p>`.
fn tags(special: &[&str]) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    let own = SpecialTokens { eos: Some("<e>".into()), pad: Some("<p>".into()), ..SpecialTokens::default() };
    Tokenizer::characters("abcdefghijklmnopqrstuvwxyz0123456789 ".chars(), &own).unwrap().save(dir.path()).unwrap();
    let path = dir.path().join("tokenizer_config.json");
    let mut settings: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    settings["additional_special_tokens"] = serde_json::json!(special);
    std::fs::write(&path, settings.to_string()).unwrap();
    Tokenizer::load(dir.path()).unwrap()
}

/// The scores of one completion, its text as logged, and its text as the reward read it.
fn scores_of(tokenizer: &Tokenizer, text: &str, specs: &[&str], chat: bool) -> (Vec<Option<f64>>, String) {
    let specs: Vec<RewardSpec> = specs.iter().map(|&spec| spec.into()).collect();
    let names = rewards::names(&specs).unwrap();
    let mut all: Vec<_> = specs.iter().zip(names).map(|(spec, name)| rewards::build(spec, name).unwrap()).collect();
    let ids = tokenizer.encode(text).unwrap();
    let n = ids.len();
    let completion = Completion {
        generation: 0,
        ids,
        sampled: vec![true; n],
        versions: vec![model::Updates(0); n],
        columns: model::Columns::default(),
        finish_reason: FinishReason::Stop,
    };
    let content = if chat {
        Content::Messages(vec![serde_json::json!({"role": "user", "content": "q"})])
    } else {
        Content::from("q")
    };
    let (tokens, columns) = (model::Prompt::new([1]), Map::new());
    let prompts = Prompts::from([(GroupId(0), Arc::new(Prompt { row: 0, tokens: tokens.clone(), content, columns }))]);
    let weights = vec![1.0; all.len()];
    let group = RolloutGroup::new(GroupId(0), tokens, vec![completion]);
    let output = std::thread::scope(|scope| {
        let scorer = RolloutScorer {
            rewards: &mut all,
            weights: &weights,
            tokenizer,
            step: Step(0),
            columns: GivenColumns::new(),
        };
        let mut job = scorer.start(scope, &prompts, &[]).unwrap();
        job.group_ended(&group);
        job.finish(vec![group.clone()], BTreeMap::new()).unwrap()
    });
    let scored = &output.rollouts.groups[0].completions[0];
    (scored.rewards.clone(), scored.content.text().into_owned())
}

#[test]
fn rewards_see_special_tokens_if_skip_special_tokens_is_false() {
    let four = ["<think>", "</think>", "<answer>", "</answer>"];
    let whole = "<think>a</think><answer>b</answer>";
    let rewards = ["think_answer", "format:^<think>.*</think>", "keyword:<answer>"];
    let mut wrong = Vec::new();
    // Each row: the special tokens, the completion, its text without and with special tokens, and the scores with them.
    for (special, text, hidden, shown, scores) in [
        (&four[..], whole, "ab", whole, [1.0, 1.0, 1.0]),
        (&four, "<think>a</think><answer>b</answer><e>", "ab", whole, [1.0, 1.0, 1.0]),
        (&four, "<think>a</think><answer>b</answer><e><p><p>", "ab", whole, [1.0, 1.0, 1.0]),
        (&four, "<p><think>a</think><answer>b</answer>", "ab", whole, [1.0, 1.0, 1.0]),
        (&four, "<think>a</think><answer>b", "ab", "<think>a</think><answer>b", [0.375, 1.0, 1.0]),
        (&four, "a<e>", "a", "a", [0.0, 0.0, 0.0]),
        (&four, "<e>", "", "", [0.0, 0.0, 0.0]),
        (&["<tool>"], "a<tool>b<e>", "ab", "a<tool>b", [0.0, 0.0, 0.0]),
    ] {
        for chat in [false, true] {
            let tokenizer = tags(special);
            let found = scores_of(&tokenizer, text, &rewards, chat);
            if found.1 != hidden || found.0.iter().any(|score| *score != Some(0.0)) {
                wrong.push(format!("{text} without: {found:?}, not {hidden:?}"));
            }
            let ends = [tokenizer.eos_id(), tokenizer.pad_id()].into_iter().flatten().collect();
            let found = scores_of(&tokenizer.showing_special(ends), text, &rewards, chat);
            if found != (scores.map(Some).to_vec(), shown.to_owned()) {
                wrong.push(format!("{text} with: {found:?}, not {scores:?} of {shown:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Character positions of step ends refer to the text that the reward function read.
#[test]
fn step_ends_refer_to_the_text_that_rewards_read() {
    let tokenizer = tags(&["<think>", "</think>"]);
    let ids = tokenizer.encode("<think>ab</think>c<e>").unwrap();
    let at = |tokenizer: &Tokenizer, end: usize| token_of(tokenizer, &ids, end).unwrap();
    assert_eq!([1, 2, 3].map(|end| at(&tokenizer, end)), [1, 2, 4]);
    let ends = tokenizer.eos_id().into_iter().collect();
    let shown = tokenizer.showing_special(ends);
    assert_eq!([7, 8, 9, 17, 18].map(|end| at(&shown, end)), [0, 1, 2, 3, 4]);
}
