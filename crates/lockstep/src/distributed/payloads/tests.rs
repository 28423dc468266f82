use super::*;
use crate::config::{Config, sampling};
use crate::data::prompts::Prompt;
use rewards::Content;
use fleet::Plan;
use rollout::SamplingParams;

fn group(number: u64) -> GroupJob {
    let (tokens, content) = (model::Prompt::new([1, 2]), Content::from("ab"));
    GroupJob {
        number,
        prompt: Prompt { row: 0, tokens, content, columns: serde_json::Map::new() },
        num_generations: 2,
        sampling: SamplingParams::default(),
        version: 0,
        step: 0,
        rewards: Vec::new(),
        so_far: Vec::new(),
        until: None,
    }
}

fn payloads(config: &Config, chunks: bool) -> Payloads {
    let sampling = match config.sampling_profiles.is_empty() {
        true => SamplingPlan::alike(Arc::new(sampling(config, &[]))),
        false => SamplingPlan::new(config, &[]).unwrap(),
    };
    let plan = Plan { chunks, ..Plan::new(9, 2, 1) };
    Payloads::new(Chunks::new(&plan, chunks.then_some(3), 40), sampling)
}

fn offer(payloads: &Payloads, numbers: &[u64]) {
    payloads.offer(numbers.iter().map(|number| group(*number)).collect::<Vec<_>>().iter());
}

#[test]
fn jobs_that_are_offered_have_their_content_and_profile() {
    let name = |number| JobName::Rollout { number, chunk: 0 };
    let mut plain = payloads(&Config::default(), false);
    offer(&plain, &[0, 1, 2]);
    for number in 0..3 {
        let (profile, bytes) = plain.job(name(number), &[]).unwrap();
        assert_eq!((profile.as_str(), GroupJob::from_bytes(&bytes).unwrap()), ("any", group(number)));
    }
    let said = |payloads: &mut Payloads, job| payloads.job(job, &[]).unwrap_err().to_string();
    let other = said(&mut plain, name(3));
    assert!(other.contains("job 000003.0 was not prepared"), "{other}");
    let evaluation = said(&mut plain, JobName::Evaluation { version: 0, index: 1 });
    assert!(evaluation.contains("is none of this run's"), "{evaluation}");
    // Chunks need weights that this learner has published.
    let mut chunked = payloads(&Config::default(), true);
    offer(&chunked, &[0]);
    let gone = said(&mut chunked, name(0));
    assert!(gone.contains("job 000000.0 needs weights that are gone"), "{gone}");
    chunked.lock().chunks.published(0, 5);
    let (_, bytes) = chunked.job(name(0), &[]).unwrap();
    assert_eq!(GroupJob::from_bytes(&bytes).unwrap(), GroupJob { version: 5, until: Some(3), ..group(0) });
    let halves = serde_json::json!({"a": {"share": 0.5}, "b": {"share": 0.5}}).as_object().cloned().unwrap();
    let mut profiles = payloads(&Config { sampling_profiles: halves, ..Config::default() }, false);
    offer(&profiles, &[0, 1]);
    let names: Vec<String> = (0..2).map(|number| profiles.job(name(number), &[]).unwrap().0).collect();
    assert_eq!(names, ["a", "b"]);
}
