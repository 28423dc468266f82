//! Groups of generation batches, samples and evaluations, converted to the byte format.

use super::super::convert::{records_of_evaluation, records_of_rollouts};
use super::*;
use crate::config::SamplingPlan;
use crate::rollouts::generation::tests::round;
use crate::rollouts::{Rollouts, samples};
use rewards::Problem;
use rollout::SamplingParams;
use telemetry::Step;

/// The bit of a version that another run has counted.
const OF_ANOTHER_RUN: u64 = 1 << 63;

/// Two groups of two completions. Another run sampled the first group.
fn rollouts() -> Rollouts {
    let mut rollouts = round(&[(3, [Some(1.0), None]), (5, [Some(2.0), Some(4.0)])]);
    rollouts.reward_weights = vec![0.5];
    for (place, c) in rollouts.groups.iter_mut().flat_map(|group| &mut group.completions).enumerate() {
        c.completion.generation = place % 2;
        c.completion.versions = vec![Updates([OF_ANOTHER_RUN | 6, u64::MAX, 7, 8][place])];
        c.completion.columns.set(SAMPLER_LOGPS, vec![-0.25 - place as f32]);
        c.completion.finish_reason = if place == 2 { FinishReason::Length } else { FinishReason::Stop };
        c.extra = object(json!({"place": place}));
    }
    rollouts.groups[0].lineage = Some(Lineage([1; 16]));
    rollouts.groups[0].problems = vec![Problem::new("r", 1, "none").at(vec![1])];
    rollouts
}

fn sampling() -> SamplingParams {
    SamplingParams {
        temperature: 0.5,
        top_k: 20,
        top_p: 0.75,
        min_p: 0.125,
        repetition_penalty: 1.25,
        max_new_tokens: 9,
        stop_ids: vec![0, 4],
        stop_strings: vec!["end".into()],
        seed: 11,
        prompt_logprobs: true,
        top_logprobs: 2,
        entropies: true,
    }
}

fn settings() -> Value {
    json!({"temperature": 0.5, "top_k": 20, "top_p": 0.75, "min_p": 0.125, "repetition_penalty": 1.25,
        "max_completion_length": 9, "stop_token_ids": [0, 4], "stop": ["end"], "seed": 11})
}

#[test]
fn a_generation_is_recorded_with_its_advantages_and_masks() {
    let rollouts = rollouts();
    let mut samples = samples::from_rollouts(&rollouts);
    assert_eq!(
        samples.iter().map(|s| (s.group.0, s.truncated())).collect::<Vec<_>>(),
        [(3, false), (3, false), (5, true), (5, false)]
    );
    for (place, sample) in samples.iter_mut().enumerate() {
        assert_eq!(sample.advantage, Advantage::Sequence(0.0));
        assert_eq!((&sample.completion, &sample.loss_mask), (&vec![sample.group.0 as u32], &vec![true]));
        sample.loss_mask = vec![place != 1];
        sample.advantage = Advantage::Sequence(place as f32);
        sample.columns.set(REF_LOGPS, vec![-1.0 - place as f32]);
    }
    let plan = SamplingPlan::alike(Arc::new(sampling()));
    let bytes = records_of_rollouts(&rollouts, &samples, &plan, Step(12), Some(Lineage([2; 16])));
    let recorded = Group::read_all(&bytes).unwrap();
    let [first, second] = &recorded[..] else { panic!("{recorded:?}") };
    for (group, id) in [(first, 3), (second, 5)] {
        assert_eq!(
            (group.group, group.step, &group.prompt_ids, group.prompt_id),
            (GroupId(id), Some(Step(12)), &vec![id as u32], Some(id))
        );
        assert_eq!((&group.prompt, &group.dataset), (&Some(Content::Text(id.to_string())), &Map::new()));
        assert_eq!(Value::Object(group.sampling.clone()), settings());
        assert_eq!((&group.reward_names, &group.reward_weights), (&vec!["r".to_owned()], &vec![0.5]));
        assert!(group.completions.iter().all(|c| c.content.is_none()), "the text follows from the token ids");
    }
    assert_eq!([first.lineage, second.lineage], [Some(Lineage([1; 16])), Some(Lineage([2; 16]))]);
    let problem = json!({"reward": "r", "kind": "failed", "message": "none", "rows": 1, "example": null, "fatal": false,
        "completions": [1]});
    assert_eq!((&first.problems, &second.problems), (&vec![problem], &vec![]));
    let versions = [vec![Updates(6)], vec![], vec![Updates(7)], vec![Updates(8)]];
    for (place, (c, versions)) in recorded.iter().flat_map(|group| &group.completions).zip(versions).enumerate() {
        assert_eq!((c.generation, &c.versions, c.loss_mask[0]), (place % 2, &versions, place != 1));
        assert_eq!((c.sampled[0], &c.advantage), (true, &Some(Advantage::Sequence(place as f32))));
        assert_eq!(c.columns.sampler_logps().unwrap(), [-0.25 - place as f32]);
        assert_eq!(c.columns.ref_logps().unwrap(), [-1.0 - place as f32]);
        let reason = if place == 2 { FinishReason::Length } else { FinishReason::Stop };
        assert_eq!((c.finish_reason, &c.extra["place"]), (Some(reason), &json!(place)));
        assert_eq!(c.rewards, [[Some(1.0), None, Some(2.0), Some(4.0)][place]]);
    }

    let bytes: Vec<Vec<u8>> = records_of_evaluation(&rollouts, &sampling(), Step(12), "easy").collect();
    assert_eq!(bytes.len(), 2);
    let evaluated = Group::read_all(&bytes.concat()).unwrap();
    for (group, recorded) in evaluated.iter().zip(&recorded) {
        let mut expected = settings();
        expected["evaluation_set"] = json!("easy");
        assert_eq!((Value::Object(group.sampling.clone()), group.step), (expected, Some(Step(12))));
        assert_eq!((&group.reward_names, &group.reward_weights), (&recorded.reward_names, &recorded.reward_weights));
        for (c, recorded) in group.completions.iter().zip(&recorded.completions) {
            assert_eq!((&c.versions, &c.advantage, &c.loss_mask), (&recorded.versions, &None, &vec![true]));
            assert_eq!((&c.columns.sampler_logps(), c.columns.ref_logps()), (&recorded.columns.sampler_logps(), None));
        }
    }
    assert_eq!([evaluated[0].lineage, evaluated[1].lineage], [Some(Lineage([1; 16])), None]);
}

#[test]
fn a_group_without_the_columns_for_scoring_is_refused() {
    let scored = rollouts().groups.remove(0);
    let refused = |change: fn(&mut Group)| {
        let mut group = Group::from_scored(&scored, true);
        change(&mut group);
        group.into_scored().unwrap_err().to_string()
    };
    assert_eq!(refused(|g| g.prompt_id = None), "group 3: column `prompt_id` is missing");
    assert_eq!(refused(|g| g.prompt = None), "group 3: column `prompt` is missing");
    assert_eq!(refused(|g| g.completions[1].content = None), "group 3: column `completions` is missing");
    assert_eq!(refused(|g| g.completions[1].finish_reason = None), "group 3: column `finish_reasons` is missing");
    let problem = refused(|g| g.problems = vec![json!({"reward": 1})]);
    assert!(problem.starts_with("group 3: column `problems`: invalid type: "), "{problem}");
    let back = Group::from_scored(&scored, true).into_scored().unwrap();
    assert_eq!((back.problems, back.lineage), (scored.problems.clone(), scored.lineage));
}

#[test]
fn adjacent_samples_of_one_group_and_prompt_form_a_group() {
    let prompts = [model::Prompt::new([1]), model::Prompt::new([1])];
    let sample = |group: u64, prompt: usize, id: u32| Sample {
        group: GroupId(group),
        versions: vec![Updates(u64::from(id))],
        finish_reason: FinishReason::from_truncated(id.is_multiple_of(2)),
        advantage: Advantage::Sequence(id as f32),
        ..Sample::supervised(prompts[prompt].clone(), vec![id])
    };
    let samples =
        [sample(7, 0, 1), sample(7, 0, 2), sample(8, 0, 3), sample(8, 1, 4), sample(8, 1, 5), sample(7, 0, 6)];
    let groups = Group::from_samples(&samples);
    let of = |group: &Group| (group.group.0, group.prompt_in_batch, group.completions.len(), group.prompt_ids.clone());
    let expected = [(7, 0, 2), (8, 0, 1), (8, 1, 2), (7, 0, 1)].map(|(id, prompt, n)| (id, Some(prompt), n, vec![1]));
    assert_eq!(groups.iter().map(of).collect::<Vec<_>>(), expected);
    let places: Vec<usize> = groups.iter().flat_map(|group| &group.completions).map(|c| c.generation).collect();
    assert_eq!(places, [0, 1, 0, 0, 1, 0]);
    let back = Group::into_samples(groups);
    assert_eq!(back, samples);
    let shared: Vec<bool> = back.iter().map(|sample| Arc::ptr_eq(&sample.prompt, &back[0].prompt)).collect();
    assert_eq!(shared, [true, true, true, false, false, true]);
    // A group without these columns has defaults: an advantage of 0, and an unshared prompt.
    let group = || Group { group: GroupId(2), completions: vec![Completion::new(0, vec![4])], ..Group::default() };
    let unknown = Group::into_samples(vec![group(), group()]);
    assert_eq!((&unknown[0].advantage, unknown[0].truncated()), (&Advantage::Sequence(0.0), false));
    assert!(!Arc::ptr_eq(&unknown[0].prompt, &unknown[1].prompt));
}
