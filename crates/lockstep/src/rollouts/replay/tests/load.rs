//! Files of recorded rollouts: which lines form a group, and the errors of invalid files.

use super::*;
use crate::config::ComputeDType;
use crate::models::load_assets;
use crate::rollouts::versions::recorded_versions;
use crate::verify::tests::directory;
use model::Head;
use model::chat::PromptTime;

fn assets() -> ModelAssets {
    load_assets(&directory().path().join("model"), Head::Lm, ComputeDType::F32, PromptTime(0)).unwrap()
}

fn limits(num_generations: usize) -> Limits {
    Limits { num_generations, max_completion_length: 3, context: 5 }
}

/// Reads a file with this content. The file's path is removed from errors.
fn load(content: impl AsRef<[u8]>, num_generations: usize) -> Result<Replay, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    std::fs::write(&path, content).unwrap();
    let read = Replay::load(&path, &assets(), &limits(num_generations));
    read.map_err(|error| error.to_string().replace(&path.display().to_string(), "FILE"))
}

fn line(prompt: &str, completion: &str, rest: &str) -> String {
    format!("{{\"prompt_ids\": {prompt}, \"completion_ids\": {completion}, \"rewards\": {rest}}}\n")
}

/// The prompt and the completions of each group.
fn shown(replay: &Replay) -> Vec<(Vec<u32>, Vec<Vec<u32>>)> {
    let of = |group: &ReplayGroup| {
        (group.prompt.tokens.ids.clone(), group.completions.iter().map(|c| c.ids.clone()).collect())
    };
    replay.groups.iter().map(of).collect()
}

#[test]
fn lines_with_the_same_prompt_form_a_group() {
    let text = [
        line("[7, 8]", "[1]", "0.5, \"lineage\": \"00000000000000000000000000000001\""),
        "\n  \n".to_owned(),
        line("[7, 8]", "[2, 3]", "1, \"lineage\": \"00000000000000000000000000000001\""),
        line("[9]", "[[4], [5, 6, 7]]", "[2, null]"),
        line("[7, 8]", "[1]", "0, \"lineage\": \"00000000000000000000000000000001\""),
        line("[7, 8]", "[2]", "0, \"lineage\": \"00000000000000000000000000000002\""),
    ];
    let replay = load(text.concat(), 2).unwrap();
    let expected = [
        (vec![7, 8], vec![vec![1], vec![2, 3]]),
        (vec![9], vec![vec![4], vec![5, 6, 7]]),
        (vec![7, 8], vec![vec![1], vec![2]]),
    ];
    assert_eq!(shown(&replay), expected);
    assert_eq!((replay.len(), replay.longest(), replay.has_ref_logps()), (3, 2, false));
    let bounds = replay.bounds();
    assert_eq!((bounds.longest_prompt, bounds.sequences, bounds.ref_logps, bounds.given), (2, 0, false, false));
    assert_eq!(replay.hash, telemetry::record::sha256(text.concat().as_bytes()));
    assert_eq!(replay.reward_names, ["reward"]);
    let lineages: Vec<bool> = replay.groups.iter().map(|group| group.lineage.is_some()).collect();
    assert_eq!(lineages, [true, false, false], "the lines of the last group have two lineages");
    let rows: Vec<usize> = replay.groups.iter().map(|group| group.prompt.row).collect();
    assert_eq!(rows, [0, 1, 2]);
    assert!(Arc::ptr_eq(&replay.groups[0].prompt.tokens, &replay.groups[2].prompt.tokens));
    assert_eq!(replay.groups[1].prompt.content, Content::Text(assets().tokenizer.decode(&[9], false).unwrap()));
    let names = |rest: &str| load(line("[9]", "[4]", rest), 1).unwrap().reward_names;
    assert_eq!(names("[1, 2, null]"), ["reward_0", "reward_1", "reward_2"]);
    assert_eq!(names("[1, 2], \"reward_names\": [\"x\", \"y\"]"), ["x", "y"]);
    let with = "1, \"ref_logprobs\": [-1.0]";
    assert!(load(line("[9]", "[4]", with), 1).unwrap().has_ref_logps());
    assert!(!load([line("[9]", "[4]", with), line("[9]", "[4]", "1")].concat(), 1).unwrap().has_ref_logps());
}

#[test]
fn errors_of_invalid_lines_name_the_line() {
    let refused = |lines: &[String], generations: usize| load(lines.concat(), generations).err().expect("refused");
    let good = || line("[9]", "[4]", "1");
    assert_eq!(refused(&[], 1), "FILE is empty: it has no rollouts");
    assert_eq!(refused(&["\n".into()], 1), "FILE is empty: it has no rollouts");
    assert_eq!(refused(&[good()], 2), "FILE, line 1: the last group has 1 completion, but num_generations is 2");
    let other = "FILE, line 4: a new prompt begins after a group of 2 completions, but num_generations is 3";
    assert_eq!(refused(&[good(), "\n".into(), good(), line("[8]", "[4]", "1")], 3), other);
    let whole = "FILE, line 2: a new prompt begins after a group of 1 completion, but num_generations is 2";
    assert_eq!(refused(&[good(), line("[9]", "[[4], [5]]", "[1, 2]")], 2), whole);
    let set = "FILE, line 1: the group has 2 completions, but num_generations is 3: set num_generations = 2";
    assert_eq!(refused(&[line("[9]", "[[4], [5]]", "[1, 2]")], 3), set);
    assert!(load(line("[8, 9]", "[1, 2, 3]", "1"), 1).is_ok(), "as long as the limits allow");
    let long =
        "FILE, line 1: a completion has 4 tokens, more than max_completion_length = 3: raise max_completion_length";
    assert_eq!(refused(&[line("[9]", "[1, 2, 3, 4]", "1")], 1), long);
    let context = "FILE, line 1: prompt and completion have 6 tokens, but only 5 fit into the context";
    assert_eq!(refused(&[line("[7, 8, 9]", "[1, 2, 3]", "1")], 1), context);
    let rewards = "FILE, line 2: `rewards` has 2 numbers, but earlier lines have 1";
    assert_eq!(refused(&[good(), line("[9]", "[4]", "[1, 2]")], 1), rewards);
    let names = |names: &str| line("[9]", "[4]", &format!("[1, 2], \"reward_names\": {names}"));
    let count = "FILE, line 1: `reward_names` has 1 names for 2 rewards";
    assert_eq!(refused(&[names("[\"x\"]")], 1), count);
    let other = "FILE, line 2: `reward_names` is [\"x\", \"z\"], but [\"x\", \"y\"] in earlier lines";
    assert_eq!(refused(&[names("[\"x\", \"y\"]"), names("[\"x\", \"z\"]")], 1), other);
    let lineage = "FILE, line 1: a lineage is 32 hexadecimal digits, not \"12\"";
    assert_eq!(refused(&[line("[9]", "[4]", "1, \"lineage\": \"12\"")], 1), lineage);
    assert!(refused(&["[1]\n".into()], 1).starts_with("FILE, line 1: expected an object"));
    let vocabulary = "FILE, line 1: completion_ids[0] = 40 is not in the model's vocabulary of 40";
    assert_eq!(refused(&[line("[9]", "[40]", "1")], 1), vocabulary);
    let problem = refused(&[line("[9]", "[4]", "null, \"problems\": [{\"reward\": 1}]")], 1);
    assert!(problem.starts_with("FILE, line 1: `problems`: invalid type: integer"), "{problem}");
    let missing = Replay::load(Path::new("/nowhere/r"), &assets(), &limits(1)).err().unwrap().to_string();
    assert!(missing.starts_with("cannot read the rollouts /nowhere/r: "), "{missing}");
}

/// A problem that several completions of a group share is read as one problem.
#[test]
fn shared_problems_of_a_group_are_merged() {
    let problem = |message: &str| format!("{{\"reward\": \"r\", \"kind\": \"failed\", \"message\": \"{message}\"}}");
    let with = |problems: &str| line("[9]", "[4]", &format!("null, \"problems\": [{problems}]"));
    let all = [with(&problem("a")), with(""), with(&[problem("b"), problem("a")].join(", "))];
    let replay = load(all.concat(), 3).unwrap();
    let of = |problem: &Problem| (problem.message.clone(), problem.rows, problem.completions.clone(), problem.fatal);
    let found: Vec<_> = replay.groups[0].problems.iter().map(of).collect();
    assert_eq!(found, [("a".to_owned(), 2, vec![0, 2], false), ("b".to_owned(), 1, vec![2], false)]);
}

#[test]
fn recorded_groups_and_json_lines_are_read_alike() {
    let group = |change: &dyn Fn(&mut Group)| {
        let completion = |place: usize| wire::Completion {
            rewards: vec![Some(1.0)],
            versions: vec![Updates(6)],
            ..wire::Completion::new(place, vec![4])
        };
        let mut group = Group {
            group: GroupId(12),
            prompt_ids: vec![9],
            reward_names: vec!["r".into()],
            reward_weights: vec![1.0],
            completions: vec![completion(0), completion(1)],
            lineage: Some(Lineage([3; 16])),
            ..Group::default()
        };
        change(&mut group);
        let mut bytes = Vec::new();
        group.write(&mut bytes);
        bytes
    };
    let replay = load(group(&|_| {}), 2).unwrap();
    assert_eq!(shown(&replay), [(vec![9], vec![vec![4], vec![4]])]);
    assert_eq!((replay.groups[0].lineage, replay.reward_names.clone()), (Some(Lineage([3; 16])), vec!["r".to_owned()]));
    assert_eq!(replay.groups[0].completions[1].versions, [6]);
    let refused = |change: &dyn Fn(&mut Group)| load(group(change), 2).err().expect("refused");
    let token = |id: u32| format!("FILE, group 12: token {id} is not in the model's vocabulary of 40");
    assert_eq!(refused(&|group| group.prompt_ids = vec![9, 40]), token(40));
    assert_eq!(refused(&|group| group.completions[1].ids[0] = 41), token(41));
    let nothing =
        "FILE, group 12: the group has no prompt, no completion or no reward, so nothing can be learned from it";
    assert_eq!(refused(&|group| group.prompt_ids.clear()), nothing);
    assert_eq!(refused(&|group| group.completions.clear()), nothing);
    let without = |group: &mut Group| {
        group.reward_names.clear();
        group.completions.iter_mut().for_each(|c| c.rewards.clear());
    };
    assert_eq!(refused(&without), nothing);
    let mut cut = group(&|_| {});
    cut.pop();
    assert!(load(cut, 2).err().unwrap().starts_with("FILE: record 0, at byte 0: the record is truncated"));
    assert_eq!(*recorded_versions(&[1 << 63 | 6, 7].map(Updates)), [6, 7].map(Updates));
    assert_eq!(recorded_versions(&[Updates(6), NO_VERSION]), Vec::new());
}

#[test]
fn replayed_completions_equal_newly_generated_ones() {
    let dir = directory();
    let ctx = crate::context(None, Some(1), ComputeDType::F32).unwrap();
    let policy = Policy::load(&ctx, &dir.path().join("model"), ComputeDType::F32).unwrap();
    let mut scorer = Scorer::new(ctx.memory(), 64, true);
    let text = [
        line("[9]", "[4, 0]", "1, \"logprobs\": [-0.5, -1.0], \"versions\": [[6, 2]], \"ref_logprobs\": [-2.0, -3.0]"),
        line("[9]", "[4]", "null, \"versions\": [[6, 1]], \"truncated\": false"),
        line("[7]", "[5]", "2, \"logprobs\": [-0.25]"),
        line("[7]", "[5, 0]", "3, \"truncated\": true, \"mask\": [true, false]"),
    ];
    let replay = load(text.concat(), 2).unwrap();
    let rollouts = replay.rollouts(&[1, 0], GroupId(40), &ctx, &policy, &mut scorer, 0.5, &[0.25]).unwrap();
    assert_eq!((rollouts.reward_names, rollouts.reward_weights), (vec!["reward".to_owned()], vec![0.25]));
    let ids: Vec<_> = rollouts.groups.iter().map(|group| (group.group.0, group.prompt.tokens.ids.clone())).collect();
    assert_eq!(ids, [(40, vec![7]), (41, vec![9])]);
    let mut logps = |prompt: &[u32], completion: &[u32]| {
        let one = PromptCompletion { prompt, completion };
        scorer.score(&ctx, &policy.weights, &[one], 0.5).unwrap().remove(0).logps
    };
    // The policy computes missing log-probabilities, so they have the policy's version.
    let (own, run_version) = (policy.weights.version(), Updates(1 << 63 | 6));
    let expected = [
        (0, vec![5], vec![NO_VERSION], vec![-0.25], FinishReason::Length),
        (1, vec![5, 0], vec![own; 2], logps(&[7], &[5, 0]), FinishReason::Length),
        (0, vec![4, 0], vec![run_version; 2], vec![-0.5, -1.0], FinishReason::Stop),
        (1, vec![4], vec![own], logps(&[9], &[4]), FinishReason::Stop),
    ];
    let all: Vec<&ScoredCompletion> = rollouts.groups.iter().flat_map(|group| &group.completions).collect();
    for (scored, (generation, ids, versions, logps, finish_reason)) in all.iter().zip(expected) {
        let c = &scored.completion;
        assert_eq!((c.generation, &c.ids, &c.versions, c.finish_reason), (generation, &ids, &versions, finish_reason));
        assert_eq!(c.logps(), logps);
        assert_eq!(scored.content, Content::Text(policy.tokenizer.decode(&ids, true).unwrap()));
    }
    assert_eq!((&all[1].completion.sampled, &all[0].completion.sampled), (&vec![true, false], &vec![true]));
    let refs: Vec<_> = all.iter().map(|scored| scored.completion.columns.ref_logps()).collect();
    assert_eq!(refs, [None, None, Some(&[-2.0, -3.0][..]), None]);
    let rewards: Vec<Option<f64>> = all.iter().map(|scored| scored.rewards[0]).collect();
    assert_eq!(rewards, [Some(2.0), Some(3.0), Some(1.0), None]);
}
