use super::*;
use model::Updates;
use model::columns::{ENTROPIES, SAMPLER_LOGPS};
use rewards::{GivenScores, Scores};
use rollout::{FinishReason, RolloutGroup, SamplingParams};
use serde_json::Map;
use telemetry::Step;

fn completion(generation: usize, ids: &[u32]) -> Completion {
    let tokens = ids.len();
    Completion {
        generation,
        ids: ids.to_vec(),
        sampled: vec![true; tokens],
        versions: vec![Updates(6); tokens],
        columns: Columns::of([(SAMPLER_LOGPS, vec![-0.5; tokens]), (ENTROPIES, vec![1.0; tokens])]),
        finish_reason: FinishReason::Stop,
    }
}

/// A job with the rewards `names`, and its answer of two completions. Each further reward has one more score.
fn remade(names: &[&str]) -> (GroupJob, GroupAnswer) {
    let prompt = model::Prompt::new([1]);
    let job = GroupJob {
        group: GroupId(9),
        prompt: crate::data::prompts::Prompt {
            row: 3,
            tokens: prompt.clone(),
            content: "x".into(),
            columns: Map::new(),
        },
        num_generations: 2,
        sampling: SamplingParams::default(),
        updates: Updates(6),
        step: Step(8),
        rewards: names.iter().map(|&name| name.to_owned()).collect(),
        so_far: Vec::new(),
        until: None,
    };
    let given = |(reward, _): (usize, &&str)| {
        let scores = Scores::new(vec![Some(0.5 + reward as f64), None]);
        GivenScores { reward, scores, seconds: 0.25 }
    };
    let group = RolloutGroup::new(GroupId(9), prompt, vec![completion(0, &[4, 5, 6]), completion(1, &[7, 8])]);
    (job, GroupAnswer { group, scores: names.iter().enumerate().map(given).collect(), rollout_s: 1.5 })
}

/// The difference in an answer with the rewards `a` and `b` after `lie`, if the rewards `asked` are called again.
fn reported(asked: &[&str], lie: impl FnOnce(&mut GroupAnswer)) -> Option<String> {
    let (GroupJob { rewards, .. }, mut given) = remade(&["a", "b"]);
    lie(&mut given);
    let mut again = remade(&["a", "b"]);
    again.1.scores.retain(|given| asked.contains(&&*rewards[given.reward]));
    again.0.rewards.retain(|name| asked.contains(&name.as_str()));
    difference(&given, &rewards, &again).map(|found| found.to_string())
}

#[test]
fn the_first_difference_of_an_answer_is_named() {
    let of = |lie: fn(&mut Completion)| reported(&[], |given| lie(&mut given.group.completions[1])).unwrap();
    assert_eq!(reported(&["a", "b"], |_| {}), None);
    assert_eq!(of(|c| c.ids[1] = 3), "completion 1, token 1, token: the worker sent 3, but the repeated job gives 8");
    assert_eq!(
        of(|c| c.ids.truncate(1)),
        "completion 1, token 1, token: the worker sent none, but the repeated job gives 8"
    );
    assert_eq!(
        of(|c| c.ids.push(9)),
        "completion 1, token 2, token: the worker sent 9, but the repeated job gives none"
    );
    assert_eq!(
        of(|c| c.columns.set(SAMPLER_LOGPS, vec![-0.5, -0.25])),
        "completion 1, token 1, log-probability: the worker sent -0.25 (0xbe800000), but the repeated job gives -0.5 \
         (0xbf000000)"
    );
    assert_eq!(
        of(|c| c.columns.set(SAMPLER_LOGPS, Vec::new())),
        "completion 1, token 0, log-probability: the worker sent none, but the repeated job gives -0.5 (0xbf000000)"
    );
    assert_eq!(
        of(|c| c.versions[0] = Updates(5)),
        "completion 1, token 0, version of the weights: the worker sent 5, but the repeated job gives 6"
    );
    let fields = "the worker sent Length, [true, true], 1, but the repeated job gives Stop, [true, true], 1";
    assert_eq!(
        of(|c| c.finish_reason = FinishReason::Length),
        format!("completion 1, finish reason and mask: {fields}")
    );
    assert!(
        of(|c| c.sampled[0] = false).contains("the worker sent Stop, [false, true], 1, but the repeated job gives")
    );
    assert!(of(|c| c.generation = 0).contains("the worker sent Stop, [true, true], 0, but the repeated job gives"));
    let columns = "completion 1, columns of its tokens: the worker sent others, but the repeated job gives its own";
    assert_eq!(of(|c| c.columns.set(ENTROPIES, vec![1.0, 2.0])), columns);
    // If there are several differences, the first one in the first completion is reported.
    let several = reported(&["a"], |given| {
        given.scores[0].scores.values[0] = None;
        given.group.completions[0].versions[0] = Updates(5);
        given.group.completions[0].columns.set(SAMPLER_LOGPS, vec![-0.5, -0.5, 0.0]);
        given.group.completions[1].ids[0] = 0;
    });
    assert!(several.unwrap().starts_with("completion 0, token 2, log-probability: the worker sent 0 (0x00000000)"));
}

#[test]
fn only_scores_of_rewards_that_are_called_again_are_compared() {
    let lie = |reward: usize, completion: usize, to: Option<f64>| {
        move |given: &mut GroupAnswer| given.scores[reward].scores.values[completion] = to
    };
    let b_differs =
        "completion 1, score of `b`: the worker sent 2 (0x4000000000000000), but the repeated job gives none";
    assert_eq!(reported(&["a", "b"], lie(1, 1, Some(2.0))).as_deref(), Some(b_differs));
    // A difference in scores names its reward.
    assert_eq!(reported(&["b"], lie(1, 1, Some(2.0))).as_deref(), Some(b_differs));
    assert_eq!((reported(&["a"], lie(1, 1, Some(2.0))), reported(&["b"], lie(0, 1, Some(2.0)))), (None, None));
    let a_differs =
        "completion 0, score of `a`: the worker sent none, but the repeated job gives 0.5 (0x3fe0000000000000)";
    assert_eq!(reported(&["a", "b"], lie(0, 0, None)).as_deref(), Some(a_differs));
    // Scores must match bit for bit.
    let zero = |given: &mut GroupAnswer| given.scores[0].scores.values[0] = Some(-0.0);
    let mut again = remade(&["a"]);
    again.1.scores[0].scores.values[0] = Some(0.0);
    let mut given = remade(&["a"]).1;
    zero(&mut given);
    let found = difference(&given, &["a".to_owned()], &again).unwrap();
    assert_eq!((found.given.as_str(), found.remade.as_str()), ("-0 (0x8000000000000000)", "0 (0x0000000000000000)"));
    assert_eq!((found.completion, found.token), (Some(0), None));
}

/// A job with an answer in which every field has a value.
fn full() -> (GroupJob, GroupAnswer) {
    use rewards::{Problem, ProblemKind, StepEnd, StepScore};
    let (mut job, mut answer) = remade(&["a", "b"]);
    job.sampling.entropies = true;
    for (given, name) in answer.scores.iter_mut().zip(["a", "b"]) {
        let problem = Problem { example: Some("x".into()), ..Problem::new(name, 1, "no number") };
        given.scores.problems = vec![problem.with_kind(ProblemKind::BadData).at(vec![1])];
        given.scores.steps = vec![Some(vec![StepScore { end: StepEnd::Char(2), score: 0.5 }]), None];
        given.scores.extra = vec![("note".into(), vec!["x".into(), 0.5.into()])];
        given.scores.metrics = vec![("no_answer".into(), 0.5), ("m".into(), -0.0)];
        given.scores.timed_out = 1;
    }
    (job, answer)
}

/// Changes each column of an answer, with a correct checksum. Every change must be refused or reported by the audit,
/// unless the column is a time.
#[test]
fn a_change_of_any_column_of_an_answer_is_noticed() {
    use crate::rollouts::wire::lies::{changed, columns, split, with_more, without};
    let (job, answer) = full();
    let records = split(&answer.to_bytes());
    assert_eq!(records.len(), 2, "scores, and the group");
    let found = |record: usize, lie: Vec<u8>| {
        let mut lied = records.clone();
        lied[record] = lie;
        let given = GroupAnswer::from_bytes(&lied.concat(), &job).map_err(|error| error.to_string())?;
        Ok((given == answer, difference(&given, &job.rewards, &full())))
    };
    let is_time = |column: &str| column == "rollout_s" || column.ends_with(".seconds");
    let mut rows = 0;
    for (place, record) in records.iter().enumerate() {
        for column in columns(record) {
            let lie = changed(record, &column).unwrap_or_else(|| panic!("`{column}` has a value"));
            for (what, lie) in [("changed", lie), ("left out", without(record, &column))] {
                let found: Result<(bool, Option<Difference>), String> = found(place, lie);
                match found {
                    // A refused answer means that the job is repeated.
                    Err(_) => {}
                    Ok((is_same, None)) => assert!(is_same || is_time(&column), "`{column}` {what} is not noticed"),
                    Ok((_, Some(_))) => assert!(!is_time(&column), "`{column}` {what}"),
                }
                rows += 1;
            }
        }
        // Columns that do not belong to an answer are not read.
        let (is_same, differs) = found(place, with_more(record, "later")).unwrap();
        assert!(is_same && differs.is_none());
    }
    assert!(rows >= 40, "{rows} lies");
    // Changes are accepted only in columns that are not read: the group's scores come from the first record.
    let read =
        ["0.scored", "0.values", "0.steps", "0.problems", "0.extra", "0.metrics", "0.metric_values", "0.timed_out"];
    for column in read {
        let (is_same, differs) = match found(0, changed(&records[0], column).unwrap()) {
            Ok(found) => found,
            Err(_) => continue,
        };
        assert!(!is_same && differs.is_some(), "{column}");
    }
}

type Row = (&'static str, fn(&mut Scores), &'static str);

/// Values that a worker may invent in a deterministic reward's result, besides scores.
#[test]
fn invented_values_of_a_deterministic_reward_are_noticed() {
    use rewards::{Problem, StepEnd, StepScore};
    let rows: [Row; 20] = [
        (
            "a problem",
            |s| s.problems.push(Problem::new("b", 1, "x").at(vec![1])),
            "problems of `b`: the worker sent [Problem {",
        ),
        ("a problem of another reward", |s| s.problems.push(Problem::new("a", 0, "x")), "problems of `b`"),
        ("a problem without completions", |s| s.problems.push(Problem::new("b", 0, "")), "problems of `b`"),
        ("another message", |s| s.problems[0].message = "y".into(), "problems of `b`"),
        ("another example", |s| s.problems[0].example = None, "problems of `b`"),
        ("another kind", |s| s.problems[0].kind = rewards::ProblemKind::Crashed, "problems of `b`"),
        ("a fatal problem", |s| s.problems[0].fatal = true, "problems of `b`"),
        ("more rows", |s| s.problems[0].rows = 2, "problems of `b`"),
        ("another place", |s| s.problems[0].completions = vec![0], "problems of `b`"),
        (
            "no problem",
            |s| s.problems.clear(),
            "problems of `b`: the worker sent [], but the repeated job gives [Problem {",
        ),
        ("a column", |s| s.extra.push(("x".into(), vec![1.into(), 2.into()])), "columns of `b`"),
        ("another name of a column", |s| s.extra[0].0 = "y".into(), "columns of `b`"),
        ("another value of a column", |s| s.extra[0].1[1] = 0.25.into(), "columns of `b`"),
        ("no column", |s| s.extra.clear(), "columns of `b`"),
        ("a metric", |s| s.metrics.push(("x".into(), 1.0)), "metrics of `b`"),
        ("another value of a metric", |s| s.metrics[0].1 = 0.75, "metrics of `b`"),
        (
            "another zero",
            |s| s.metrics[1].1 = 0.0,
            "metrics of `b`: the worker sent [(\"no_answer\", 0.5), (\"m\", 0.0)]",
        ),
        ("no metric", |s| s.metrics.clear(), "metrics of `b`"),
        (
            "completions that ran out of time",
            |s| s.timed_out = 2,
            "completions that ran out of time of `b`: the worker sent 2",
        ),
        (
            "the score of a step",
            |s| s.steps[0] = Some(vec![StepScore { end: StepEnd::Token(2), score: 0.5 }]),
            "scores of steps of `b`",
        ),
    ];
    let (job, answer) = full();
    for (what, lie, words) in rows {
        let mut given = answer.clone();
        lie(&mut given.scores[1].scores);
        let text =
            difference(&given, &job.rewards, &full()).unwrap_or_else(|| panic!("{what} is not noticed")).to_string();
        assert!(text.starts_with(words), "{what}: {text}");
        // The scores of a reward program are not compared.
        let (mut short_job, mut again) = full();
        short_job.rewards.truncate(1);
        again.scores.truncate(1);
        assert_eq!(difference(&given, &job.rewards, &(short_job, again)), None, "{what}");
    }
    // Long strings are truncated in the message.
    let mut given = answer.clone();
    given.scores[1].scores.problems[0].message = "é".repeat(100_000);
    let text = difference(&given, &job.rewards, &full()).unwrap().to_string();
    assert!(text.chars().count() < 600 && text.contains('…'), "{text}");
    // The columns of the prompt must be empty.
    let mut given = answer;
    given.group.prompt_columns.set("lie", Vec::new());
    assert_eq!(difference(&given, &job.rewards, &full()).unwrap().what, "columns of the prompt");
}

#[test]
fn columns_are_compared_by_their_bits() {
    let nan = |c: &mut Completion| c.columns.set(ENTROPIES, vec![f32::NAN; 2]);
    let (job, mut given) = full();
    let mut again = full();
    nan(&mut given.group.completions[1]);
    nan(&mut again.1.group.completions[1]);
    assert_eq!(difference(&given, &job.rewards, &again), None, "an honest worker may compute the same NaN");
    given.group.completions[1].columns.set(ENTROPIES, vec![0.0; 2]);
    again.1.group.completions[1].columns.set(ENTROPIES, vec![-0.0; 2]);
    assert!(difference(&given, &job.rewards, &again).is_some());
}
