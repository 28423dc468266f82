use super::*;
use crate::config::{Config, sampling};
use crate::data::prompts::Prompt;
use crate::rollouts::jobs::GroupAnswer;
use crate::sources::workers::CHECKPOINT;
use crate::sources::workers::ids::job_name;
use fleet::{Answer, Lineage, Plan, Version, WorkerName};
use model::columns::SAMPLER_LOGPS;
use model::{Columns, Updates};
use rewards::{Content, GivenScores, Scores};
use rollout::{Completion, FinishReason, RolloutGroup, SamplingParams};
use telemetry::Step;

fn group(group: u64) -> GroupJob {
    let (tokens, content) = (model::Prompt::new([1, 2]), Content::from("ab"));
    GroupJob {
        group: GroupId(group),
        prompt: Prompt { row: 0, tokens, content, columns: serde_json::Map::new() },
        num_generations: 2,
        sampling: SamplingParams::default(),
        updates: Updates(0),
        step: Step(0),
        rewards: Vec::new(),
        so_far: Vec::new(),
        until: None,
    }
}

fn payloads(config: &Config, chunks: bool) -> Payloads {
    let sampling = if config.sampling_profiles.is_empty() {
        SamplingPlan::alike(Arc::new(sampling(config, &[])))
    } else {
        SamplingPlan::new(config, &[]).unwrap()
    };
    let plan = Plan { chunks, ..Plan::new(9, 2, 1) };
    Payloads::new(Chunks::new(&plan, chunks.then_some(3), 40), sampling)
}

fn offer(payloads: &Payloads, numbers: &[u64]) {
    payloads.offer(numbers.iter().map(|number| group(*number)).collect::<Vec<_>>().iter());
}

#[test]
fn offered_jobs_have_their_content_and_profile() {
    let name = |group| job_name(GroupId(group), 0);
    let mut plain = payloads(&Config::default(), false);
    offer(&plain, &[0, 1, 2]);
    for number in 0..3 {
        let (profile, bytes) = plain.job(name(number), &[]).unwrap();
        assert_eq!((profile.as_str(), GroupJob::from_bytes(&bytes).unwrap()), ("any", group(number)));
    }
    let refused = |payloads: &mut Payloads, job| payloads.job(job, &[]).unwrap_err().to_string();
    let other = refused(&mut plain, name(3));
    assert!(other.contains("job 000003.0 was not prepared"), "{other}");
    // Chunks need weights that this learner has published.
    let mut chunked = payloads(&Config::default(), true);
    offer(&chunked, &[0]);
    let gone = refused(&mut chunked, name(0));
    assert!(gone.contains("job 000000.0 needs weights that no longer exist"), "{gone}");
    chunked.lock().chunks.published(Version(0), Updates(5));
    let (_, bytes) = chunked.job(name(0), &[]).unwrap();
    assert_eq!(GroupJob::from_bytes(&bytes).unwrap(), GroupJob { updates: Updates(5), until: Some(3), ..group(0) });
    let halves = serde_json::json!({"a": {"share": 0.5}, "b": {"share": 0.5}}).as_object().cloned().unwrap();
    let mut profiles = payloads(&Config { sampling_profiles: halves, ..Config::default() }, false);
    offer(&profiles, &[0, 1]);
    let names: Vec<String> = (0..2).map(|number| profiles.job(name(number), &[]).unwrap().0).collect();
    assert_eq!(names, ["a", "b"]);
}

/// Two completions of three tokens each, scored by one reward.
fn answer() -> GroupAnswer {
    let completion = |generation: usize| Completion {
        generation,
        ids: vec![4, 39, 6],
        sampled: vec![true; 3],
        versions: vec![Updates(7); 3],
        columns: Columns::of([(SAMPLER_LOGPS, vec![-0.5, -0.25, -1.0])]),
        finish_reason: FinishReason::Stop,
    };
    let group = RolloutGroup::new(GroupId(0), scored(0).prompt.tokens, (0..2).map(completion).collect());
    let given = GivenScores { reward: 0, scores: Scores::new(vec![Some(1.0), None]), seconds: 0.5 };
    GroupAnswer { group, scores: vec![given], rollout_s: 0.5 }
}

fn scored(number: u64) -> GroupJob {
    GroupJob { rewards: vec!["r".to_owned()], updates: Updates(7), ..group(number) }
}

fn result(number: u64, chunk: u32, answer: &GroupAnswer) -> JobResult {
    let fingerprint = GroupAnswer::fingerprint(&answer.group);
    JobResult {
        job: job_name(GroupId(number), chunk),
        lineage: Lineage([0; 16]),
        worker: WorkerName::new("w").unwrap(),
        answer: Answer { fingerprint, more: answer.group.is_unfinished() },
        bytes: answer.to_bytes(),
    }
}

fn checked(result: &JobResult, before: &[JobResult]) -> Result<(), String> {
    let mut payloads = payloads(&Config::default(), false);
    payloads.offer([scored(0)].iter());
    payloads.check(result, before)
}

type Change = fn(&mut GroupAnswer);

/// Each row has a name, a change of an answer, and the reason why the changed answer does not match its job.
const NONE: [(&str, Change, &str); 20] = [
    ("a token beyond the vocabulary", |a| a.group.completions[1].ids[0] = 40, "completion 1 has the token 40, but"),
    ("the largest token", |a| a.group.completions[0].ids[2] = u32::MAX, "completion 0 has the token 4294967295, but"),
    ("another version", |a| a.group.completions[0].versions = vec![Updates(8); 3], "weights of version 8, not 7"),
    (
        "another version of one token",
        |a| a.group.completions[1].versions[2] = Updates(6),
        "weights of version 6, not 7",
    ),
    ("another group", |a| a.group.group = GroupId(1), "the answer belongs to another job"),
    ("another prompt", |a| a.group.prompt = model::Prompt::new([1, 3]), "the answer belongs to another job"),
    ("no prompt", |a| a.group.prompt = model::Prompt::new([]), "the answer belongs to another job"),
    ("a completion fewer", |a| drop(a.group.completions.pop()), "must have 2 completions"),
    ("no completion", |a| a.group.completions.clear(), "must have 2 completions"),
    ("a completion more", |a| a.group.completions.push(third(a)), "must have 2 completions"),
    ("another order", |a| a.group.completions.reverse(), "completion 0 does not match the job"),
    ("no scores", |a| a.scores.clear(), "with scores of 1 rewards"),
    ("scores of two rewards", |a| a.scores.push(a.scores[0].clone()), "with scores of 1 rewards"),
    ("a score fewer", |a| a.scores[0].scores.values.truncate(1), "must have 2 values"),
    ("no log-probabilities", |a| drop(a.group.completions[0].columns.remove(SAMPLER_LOGPS)), "`token.sampler_logps`"),
    (
        "an unfinished completion",
        |a| a.group.completions[1].finish_reason = FinishReason::Unfinished,
        "does not match the job",
    ),
    ("no versions", |a| a.group.completions[0].versions.clear(), "completion 0 lacks `versions`"),
    ("more tokens than asked for", |a| longer(&mut a.group.completions[0]), "does not match the job"),
    ("a problem of no completion", |a| a.scores[0].scores.problems.push(third_problem()), "does not fit 2 completions"),
    ("more timeouts than completions", |a| a.scores[0].scores.timed_out = 3, "does not fit 2 completions"),
];

fn third(answer: &GroupAnswer) -> Completion {
    Completion { generation: 2, ..answer.group.completions[0].clone() }
}

fn third_problem() -> rewards::Problem {
    rewards::Problem::new("r", 1, "x").at(vec![2])
}

fn longer(completion: &mut Completion) {
    let tokens = SamplingParams::default().max_new_tokens + 1;
    completion.columns.set(SAMPLER_LOGPS, vec![-0.5; tokens]);
    (completion.ids, completion.sampled, completion.versions) =
        (vec![4; tokens], vec![true; tokens], vec![Updates(7); tokens]);
}

#[test]
fn an_invalid_answer_is_not_accepted() {
    assert_eq!(checked(&result(0, 0, &answer()), &[]), Ok(()));
    for (what, change, why) in NONE {
        let mut answer = answer();
        change(&mut answer);
        let error = checked(&result(0, 0, &answer), &[]).expect_err(what);
        assert!(error.contains(why), "{what}: {error}");
    }
    let whole = answer().to_bytes();
    let other = group(0).to_bytes();
    let zeros = [0; 99];
    let cuts = [0, 1, 15, whole.len() / 2, whole.len() - 1].map(|end| &whole[..end]);
    for bytes in cuts.into_iter().chain([&other[..], &zeros]) {
        let cut = JobResult { bytes: bytes.to_vec(), ..result(0, 0, &answer()) };
        assert!(checked(&cut, &[]).is_err(), "{} bytes", bytes.len());
    }
    let more = |more: bool, fingerprint: u64| {
        let right = result(0, 0, &answer());
        let answer = Answer { more, fingerprint: right.answer.fingerprint ^ fingerprint };
        checked(&JobResult { answer, ..right }, &[])
    };
    assert_eq!(more(false, 0), Ok(()));
    assert_eq!(more(true, 0), Err("it is inconsistent about whether it continues".to_owned()));
    assert_eq!(more(false, 1), Err("its fingerprint does not match its tokens".to_owned()));
    // An earlier learner's answer is checked when its batch is complete.
    let empty = |number, chunk| JobResult { bytes: Vec::new(), ..result(number, chunk, &answer()) };
    assert_eq!((checked(&empty(1, 0), &[]), checked(&empty(0, 1), &[])), (Ok(()), Ok(())));
    assert!(checked(&empty(0, 0), &[]).is_err());
}

#[test]
fn the_first_invalid_result_of_a_batch_is_reported() {
    let payloads = payloads(&Config::default(), false);
    let jobs = [scored(0), scored(1)];
    let of = |number: u64, change: Change| {
        let mut answer = answer();
        answer.group.group = GroupId(number);
        change(&mut answer);
        result(number, 0, &answer)
    };
    let found = |results: &[JobResult], whole| {
        let found = payloads.lock().chunks.first_unusable(&jobs, results, whole)?;
        Some((found.to_string(), found.job))
    };
    let name = |group, chunk| job_name(GroupId(group), chunk);
    let right = [of(0, |_| {}), of(1, |_| {})];
    assert_eq!((found(&right, true), found(&right[..1], false), found(&[], false)), (None, None, None));
    let missing = |number, chunk| {
        let job = name(number, chunk);
        Some((format!("job {job}: its answer is missing"), job))
    };
    assert_eq!((found(&right[..1], true), found(&right[1..], true)), (missing(1, 0), missing(0, 0)));
    let wrong = [of(0, |_| {}), of(1, |answer| answer.group.completions[0].ids[0] = 40)];
    let why = "worker w's answer to the job 000001.0: completion 0 has the token 40, but the vocabulary has 40";
    assert_eq!(found(&wrong, true), Some((why.to_owned(), name(1, 0))));
    // The first chunk of a group is missing.
    let later = JobResult { job: name(0, 1), ..of(0, |_| {}) };
    assert_eq!(found(&[later, of(1, |_| {})], true), missing(0, 0));
    let empty = JobResult { bytes: Vec::new(), ..of(0, |_| {}) };
    assert!(found(&[empty.clone(), of(1, |_| {})], true).is_some_and(|(why, _)| why.contains("worker w's answer")));
    // A checkpoint has the earlier answers without their bytes.
    let kept = JobResult { worker: WorkerName::new(CHECKPOINT).unwrap(), ..empty };
    assert_eq!(found(&[kept, of(1, |_| {})], true), None);
}
