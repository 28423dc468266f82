use super::*;
use model::Columns;
use model::columns::{ENTROPIES, SAMPLER_LOGPS};
use rewards::{GivenScores, Scores};
use rollout::{FinishReason, RolloutGroup, SamplingParams};
use serde_json::Map;

fn completion(generation: usize, ids: &[u32]) -> Completion {
    let tokens = ids.len();
    Completion {
        generation,
        ids: ids.to_vec(),
        mask: vec![true; tokens],
        versions: vec![6; tokens],
        columns: Columns::of([(SAMPLER_LOGPS, vec![-0.5; tokens]), (ENTROPIES, vec![1.0; tokens])]),
        finish_reason: FinishReason::Stop,
    }
}

/// A job of the rewards `names`, with an answer of two completions and one score more for each further reward.
fn remade(names: &[&str]) -> (GroupJob, GroupAnswer) {
    let prompt = model::Prompt::new([1]);
    let job = GroupJob {
        number: 9,
        prompt: crate::data::prompts::Prompt {
            row: 3,
            tokens: prompt.clone(),
            content: "x".into(),
            columns: Map::new(),
        },
        num_generations: 2,
        sampling: SamplingParams::default(),
        version: 6,
        step: 8,
        rewards: names.iter().map(|&name| name.to_owned()).collect(),
        so_far: Vec::new(),
        until: None,
    };
    let given = |(reward, _): (usize, &&str)| {
        let scores = Scores::new(vec![Some(0.5 + reward as f64), None]);
        GivenScores { reward, scores, seconds: 0.25 }
    };
    let group = RolloutGroup::new(9, prompt, vec![completion(0, &[4, 5, 6]), completion(1, &[7, 8])]);
    (job, GroupAnswer { group, scores: names.iter().enumerate().map(given).collect(), rollout_s: 1.5 })
}

/// What is said of an answer to a job of the rewards `a` and `b`, after `lie`, when `asked` are called again.
fn said(asked: &[&str], lie: impl FnOnce(&mut GroupAnswer)) -> Option<String> {
    let (GroupJob { rewards, .. }, mut given) = remade(&["a", "b"]);
    lie(&mut given);
    let mut again = remade(&["a", "b"]);
    again.1.scores.retain(|given| asked.contains(&&*rewards[given.reward]));
    again.0.rewards.retain(|name| asked.contains(&name.as_str()));
    difference(&given, &rewards, &again).map(|found| found.to_string())
}

#[test]
fn the_first_bit_that_differs_is_named() {
    let of = |lie: fn(&mut Completion)| said(&[], |given| lie(&mut given.group.completions[1])).unwrap();
    assert_eq!(said(&["a", "b"], |_| {}), None);
    assert_eq!(of(|c| c.ids[1] = 3), "completion 1, token 1, token: it said 3, and the job gives 8");
    assert_eq!(of(|c| c.ids.truncate(1)), "completion 1, token 1, token: it said none, and the job gives 8");
    assert_eq!(of(|c| c.ids.push(9)), "completion 1, token 2, token: it said 9, and the job gives none");
    assert_eq!(
        of(|c| c.columns.set(SAMPLER_LOGPS, vec![-0.5, -0.25])),
        "completion 1, token 1, log-probability: it said -0.25 (0xbe800000), and the job gives -0.5 (0xbf000000)"
    );
    assert_eq!(
        of(|c| c.columns.set(SAMPLER_LOGPS, Vec::new())),
        "completion 1, token 0, log-probability: it said none, and the job gives -0.5 (0xbf000000)"
    );
    assert_eq!(
        of(|c| c.versions[0] = 5),
        "completion 1, token 0, version of the weights: it said 5, and the job gives 6"
    );
    let fields = "it said Length, [true, true], 1, and the job gives Stop, [true, true], 1";
    assert_eq!(
        of(|c| c.finish_reason = FinishReason::Length),
        format!("completion 1, finish reason and mask: {fields}")
    );
    assert!(of(|c| c.mask[0] = false).contains("it said Stop, [false, true], 1, and the job gives"));
    assert!(of(|c| c.generation = 0).contains("it said Stop, [true, true], 0, and the job gives"));
    let columns = "completion 1, columns of its tokens: it said others, and the job gives its own";
    assert_eq!(of(|c| c.columns.set(ENTROPIES, vec![1.0, 2.0])), columns);
    // Of several, the first completion's, and in it what is made first.
    let several = said(&["a"], |given| {
        given.scores[0].scores.values[0] = None;
        given.group.completions[0].versions[0] = 5;
        given.group.completions[0].columns.set(SAMPLER_LOGPS, vec![-0.5, -0.5, 0.0]);
        given.group.completions[1].ids[0] = 0;
    });
    assert!(several.unwrap().starts_with("completion 0, token 2, log-probability: it said 0 (0x00000000)"));
}

#[test]
fn scores_are_compared_where_the_reward_was_called_again() {
    let lie = |reward: usize, completion: usize, to: Option<f64>| {
        move |given: &mut GroupAnswer| given.scores[reward].scores.values[completion] = to
    };
    let of_b = "completion 1, score of `b`: it said 2 (0x4000000000000000), and the job gives none";
    assert_eq!(said(&["a", "b"], lie(1, 1, Some(2.0))).as_deref(), Some(of_b));
    // The scores of one reward alone are found by its name.
    assert_eq!(said(&["b"], lie(1, 1, Some(2.0))).as_deref(), Some(of_b));
    assert_eq!((said(&["a"], lie(1, 1, Some(2.0))), said(&["b"], lie(0, 1, Some(2.0)))), (None, None));
    let of_a = "completion 0, score of `a`: it said none, and the job gives 0.5 (0x3fe0000000000000)";
    assert_eq!(said(&["a", "b"], lie(0, 0, None)).as_deref(), Some(of_a));
    // By their bits.
    let zero = |given: &mut GroupAnswer| given.scores[0].scores.values[0] = Some(-0.0);
    let mut again = remade(&["a"]);
    again.1.scores[0].scores.values[0] = Some(0.0);
    let mut given = remade(&["a"]).1;
    zero(&mut given);
    let found = difference(&given, &["a".to_owned()], &again).unwrap();
    assert_eq!((found.given.as_str(), found.remade.as_str()), ("-0 (0x8000000000000000)", "0 (0x0000000000000000)"));
    assert_eq!((found.completion, found.token), (Some(0), None));
}
