//! The exact error for each invalid column of jobs and answers.

use super::super::tests::with_column;
use super::super::{Group, RecordWriter};
use super::*;

type Put<'a> = &'a dyn Fn(&mut RecordWriter);

/// The error for `bytes` as a job.
fn job_error(bytes: &[u8]) -> String {
    GroupJob::from_bytes(bytes).unwrap_err().to_string()
}

/// The error for a job whose column `name` has other values.
fn job_with(name: &str, put: Put<'_>) -> String {
    job_error(&with_column(&job().to_bytes(), name, put))
}

/// The error for an answer whose column `name` has other values.
fn answer_with(name: &str, put: Put<'_>) -> String {
    let bytes = with_column(&answer().to_bytes(), name, put);
    GroupAnswer::from_bytes(&bytes, &job()).unwrap_err().to_string()
}

#[test]
fn invalid_jobs_are_refused_with_the_reason() {
    assert_eq!(job_with("job", &|r| r.uints("job", 1, [9, 6, 8, 2])), "column `job` must have 5 numbers");
    assert_eq!(job_with("job", &|_| {}), "column `job` must have 5 numbers");
    let counts = |values: &'static [u64]| {
        job_with("sampling_counts", &|r| r.uints("sampling_counts", 1, values.iter().copied()))
    };
    assert_eq!(counts(&[5, 4, 7, 1, 0]), "column `sampling_counts` must have 6 numbers");
    assert_eq!(counts(&[5, 4, 7, 1, 2, 0]), "column `sampling_counts` has 2, which is neither 0 nor 1");
    assert_eq!(counts(&[5, 4, 7, 1, 0, 3]), "column `sampling_counts` has 3, which is neither 0 nor 1");
    let sampling = |values: &[f64]| job_with("sampling", &|r| r.f64s("sampling", 1, values));
    for count in [0, 3, 5] {
        assert_eq!(sampling(&vec![1.0; count]), "column `sampling` must have four numbers");
    }
    for place in 0..4 {
        for wrong in [f64::NAN, f64::INFINITY, -0.5] {
            let mut values = [0.0; 4];
            values[place] = wrong;
            assert_eq!(sampling(&values), "column `sampling` has an invalid sampling parameter", "{values:?}");
        }
    }
    let zeros = with_column(&job().to_bytes(), "sampling", |r| r.f64s("sampling", 1, &[0.0; 4]));
    assert_eq!(GroupJob::from_bytes(&zeros).unwrap().sampling.temperature, 0.0, "greedy sampling is valid");

    let nothing = "the job is empty: it must have a prompt, completions and tokens";
    assert_eq!(job_with("prompt_ids", &|_| {}), nothing);
    assert_eq!(counts(&[5, 0, 7, 1, 0, 0]), nothing);
    let generations = |n: u64| {
        let bytes = with_column(&job().to_bytes(), "job", |r| r.uints("job", 1, [9, 6, 8, n, 3]));
        GroupJob::from_bytes(&bytes).map(|job| job.num_generations).map_err(|error| error.to_string())
    };
    assert_eq!((generations(0), generations(1)), (Err(nothing.into()), Ok(1)));
    assert_eq!((generations(1 << 20), generations((1 << 20) + 1)), (Ok(1 << 20), Err(nothing.into())));

    for name in ["prompt_ids", "stop_ids"] {
        let token = format!("column `{name}` has 4294967296, which is not a token id");
        assert_eq!(job_with(name, &|r| r.uints(name, 1, [1, 1 << 32])), token);
    }
    for name in ["prompt", "dataset"] {
        assert_eq!(job_with(name, &|_| {}), format!("column `{name}` must have one string"));
        let one = if name == "prompt" { "\"x\"" } else { "{}" };
        assert_eq!(job_with(name, &|r| r.texts(name, [one, one])), format!("column `{name}` must have one string"));
        let end = format!("column `{name}`: EOF while parsing a value at line 1 column 0");
        assert_eq!(job_with(name, &|r| r.texts(name, [""])), end);
    }
    for wrong in [&[0][..], &[], &[2, 2]] {
        let until = job_with("", &|r| r.uints("until", 1, wrong.iter().copied()));
        assert_eq!(until, "column `until` must have one number above 0");
    }
    let until = with_column(&job().to_bytes(), "", |r| r.uints("until", 1, [1]));
    assert_eq!(GroupJob::from_bytes(&until).unwrap().until, Some(1));
    let unknown = "column `later` is required, but unknown to this program: use a newer one";
    assert_eq!(job_with("", &|r| r.must_be_known().bytes("later", &[])), unknown);
}

#[test]
fn a_continued_job_must_contain_its_completions_so_far() {
    let job_bytes = GroupJob { so_far: Vec::new(), ..later() }.to_bytes();
    let so_far = later().to_bytes()[job_bytes.len()..].to_vec();
    let other = "the record after the job must hold the job's completions so far";
    let job_with_group = |change: &dyn Fn(&mut Group)| {
        let (mut group, _) = Group::read(&so_far).unwrap();
        change(&mut group);
        let mut bytes = job_bytes.clone();
        group.write(&mut bytes);
        GroupJob::from_bytes(&bytes).map_err(|error| error.to_string())
    };
    assert_eq!(job_with_group(&|_| {}), Ok(later()));
    assert_eq!(job_with_group(&|group| group.group = GroupId(8)), Err(other.into()));
    assert_eq!(job_with_group(&|group| drop(group.completions.pop())), Err(other.into()));
    assert_eq!(job_error(&[&later().to_bytes()[..], &so_far].concat()), other);
    let none = "completion 1 does not match the job";
    assert_eq!(job_with_group(&|group| group.completions[1].generation = 0), Err(none.into()));
    assert_eq!(job_with_group(&|group| group.completions[0].loss_mask[1] = false), Err(none.replace('1', "0")));
    let lacks = |place: usize| Err(format!("completion {place} lacks `versions` or `token.sampler_logps`"));
    assert_eq!(job_with_group(&|group| group.completions[0].versions.clear()), lacks(0));
    assert_eq!(job_with_group(&|group| drop(group.completions[1].columns.remove(SAMPLER_LOGPS))), lacks(1));
    let why = Err("completion 1 has no finish reason".into());
    assert_eq!(job_with_group(&|group| group.completions[1].finish_reason = None), why);
}

#[test]
fn an_invalid_answer_is_refused_with_the_reason() {
    let does_not_fit = |name: &str| format!("column `{name}` does not fit 2 completions");
    assert_eq!(answer_with("answer", &|r| r.uints("answer", 1, [9])), "column `answer` must have 2 numbers");
    assert_eq!(answer_with("answer", &|r| r.uints("answer", 1, [8, 2])), "the answer belongs to another job");
    for asked in [0, 1, 3] {
        let error = answer_with("answer", &|r| r.uints("answer", 1, [9, asked]));
        assert_eq!(error, "the answer must have 2 completions with scores of 2 rewards");
    }
    for seconds in [&[][..], &[1.0, 2.0]] {
        let error = answer_with("rollout_s", &|r| r.f64s("rollout_s", 1, seconds));
        assert_eq!(error, "column `rollout_s` must have one number");
        assert_eq!(answer_with("1.seconds", &|r| r.f64s("1.seconds", 1, seconds)), does_not_fit("1.seconds"));
    }
    assert_eq!(answer_with("0.scored", &|_| {}), does_not_fit("0.scored"));
    assert_eq!(answer_with("0.scored", &|r| r.runs("0.scored", [1, 2])), does_not_fit("0.scored"));
    let one = answer_with("0.scored", &|r| r.runs("0.scored", [1]));
    assert_eq!(one, "column `0.scored` must have 2 values");
    for values in [&[][..], &[0.5, 0.5]] {
        assert_eq!(answer_with("0.values", &|r| r.f64s("0.values", 1, values)), does_not_fit("0.values"));
    }
    for steps in [&["null"][..], &["null"; 3], &["[[2, 0, 0]]", "null"]] {
        assert_eq!(answer_with("0.steps", &|r| r.texts("0.steps", steps)), does_not_fit("0.steps"));
    }
    let mut at_most = answer();
    at_most.scores[1].scores.problems = vec![Problem::new("b", 2, "x").at(vec![0, 1])];
    at_most.scores[1].scores.timed_out = 2;
    assert_eq!(GroupAnswer::from_bytes(&at_most.to_bytes(), &job()), Ok(at_most.clone()));
    let spoiled = |spoil: fn(&mut Scores)| {
        let mut answer = at_most.clone();
        spoil(&mut answer.scores[1].scores);
        GroupAnswer::from_bytes(&answer.to_bytes(), &job()).unwrap_err().to_string()
    };
    assert_eq!(spoiled(|scores| scores.problems[0].rows = 3), does_not_fit("1.problems"));
    assert_eq!(spoiled(|scores| scores.problems[0].completions = vec![0, 2]), does_not_fit("1.problems"));
    assert_eq!(spoiled(|scores| scores.extra = vec![("x".into(), vec![json!(1); 3])]), does_not_fit("1.extra"));
    assert_eq!(spoiled(|scores| scores.timed_out = 3), does_not_fit("1.timed_out"));
    let metrics = |put: Put<'_>| answer_with("0.metric_values", put);
    assert_eq!(metrics(&|r| r.f64s("0.metric_values", 1, &[1.0])), does_not_fit("0.metric_values"));
    assert_eq!(metrics(&|_| {}), does_not_fit("0.metric_values"));
    let timed_out = answer_with("0.timed_out", &|r| r.uints("0.timed_out", 1, [1, 1]));
    assert_eq!(timed_out, "column `0.timed_out` must have 1 numbers");
    assert_eq!(answer_with("0.extra", &|_| {}), "column `0.extra` must have one string");
    assert!(answer_with("", &|r| r.must_be_known().bytes("later", &[])).contains("column `later`"));

    let more = [answer().to_bytes(), answer().to_bytes()].concat();
    assert_eq!(GroupAnswer::from_bytes(&more, &job()).unwrap_err().to_string(), "the answer belongs to another job");
    assert_eq!(GroupAnswer::believed(&more, &job()).unwrap_err().to_string(), "the answer belongs to another job");
    assert_eq!(GroupAnswer::believed(&answer().to_bytes(), &job()), Ok(answer()));
    let no_answer = GroupAnswer::group_of(&job().to_bytes()).unwrap_err().to_string();
    assert_eq!(no_answer, "column `answer` must have 2 numbers");
}

/// An answer to `job` with a single completion, which has these tokens and this finish reason.
fn single_answer(job: &GroupJob, tokens: usize, finish_reason: FinishReason) -> Result<(), String> {
    let completion = one(tokens, finish_reason);
    let group = RolloutGroup::new(GroupId(9), job.prompt.tokens.clone(), vec![completion]);
    let answer = GroupAnswer { group, scores: Vec::new(), rollout_s: 0.5 };
    GroupAnswer::from_bytes(&answer.to_bytes(), job).map(|_| ()).map_err(|error| error.to_string())
}

fn one(tokens: usize, finish_reason: FinishReason) -> rollout::Completion {
    rollout::Completion {
        generation: 0,
        ids: vec![4; tokens],
        sampled: vec![true; tokens],
        versions: vec![Updates(6); tokens],
        columns: recorded(vec![-0.3; tokens]),
        finish_reason,
    }
}

#[test]
fn a_completion_must_have_the_length_that_its_job_requires() {
    use FinishReason::{Length, Stop, Unfinished};
    let job = |so_far: Option<rollout::Completion>, until: Option<usize>| GroupJob {
        num_generations: 1,
        rewards: Vec::new(),
        so_far: so_far.into_iter().collect(),
        until,
        ..super::job()
    };
    let (none, other) = ("completion 0 does not match the job", "completion 0 does not continue the job's completion");
    let (none, other) = (Err(none.to_owned()), Err(other.to_owned()));
    // A completion has at most four tokens, and may be unfinished only if the job allows it.
    let whole = job(None, None);
    assert_eq!((single_answer(&whole, 4, Stop), single_answer(&whole, 5, Stop)), (Ok(()), none.clone()));
    assert_eq!((single_answer(&whole, 0, Length), single_answer(&whole, 4, Unfinished)), (Ok(()), none.clone()));
    let chunk = job(None, Some(2));
    assert_eq!((single_answer(&chunk, 2, Unfinished), single_answer(&chunk, 1, Unfinished)), (Ok(()), none.clone()));
    assert_eq!((single_answer(&chunk, 2, Stop), single_answer(&chunk, 3, Stop)), (Ok(()), none.clone()));
    let beyond = job(None, Some(9));
    assert_eq!((single_answer(&beyond, 4, Length), single_answer(&beyond, 5, Length)), (Ok(()), none.clone()));
    // A continued completion must grow.
    let begun = job(Some(one(2, Unfinished)), Some(3));
    assert_eq!((single_answer(&begun, 3, Unfinished), single_answer(&begun, 3, Stop)), (Ok(()), Ok(())));
    assert_eq!((single_answer(&begun, 2, Stop), single_answer(&begun, 1, Stop)), (other.clone(), other.clone()));
    // An ended completion is kept, even if it is longer than the job's limit.
    let ended = job(Some(one(3, Stop)), Some(2));
    assert_eq!((single_answer(&ended, 3, Stop), single_answer(&ended, 3, Length)), (Ok(()), other.clone()));
    assert_eq!((single_answer(&ended, 2, Stop), single_answer(&ended, 4, Stop)), (other, none));
}
