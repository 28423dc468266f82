//! Tests of completions generated in chunks. With unchanged weights they have the bits of completions generated without
//! chunks, for any sampling and load. With changing weights, each token is sampled with the weights of its chunk.

use crate::engine::{Letters, VOCAB, sampling, small};
use crate::serving::{caching, run};
use crate::*;
use rollout::{Error, FinishReason, Models, Speculative};

/// Engine configurations to compare.
fn engines() -> [EngineConfig; 5] {
    let few = EngineConfig { kv_blocks: 8, max_num_seqs: 5, max_batched_tokens: 24, ..roomy(200) };
    [
        roomy(200),
        EngineConfig { prefix_sharing: false, ..roomy(200) },
        EngineConfig { speculative: Speculative::Always(3), ..roomy(200) },
        EngineConfig { speculative: Speculative::Auto, ..caching(200) },
        few,
    ]
}

fn load(sampling: &SamplingParams) -> Vec<Request> {
    requests(&[prompt(VOCAB, 0, 70), prompt(VOCAB, 1, 5), prompt(VOCAB, 2, 64)], 3, sampling.clone())
}

/// Generates the groups of `requests`, pausing after every `chunk` tokens. `weights` has one version per chunk; the
/// last version computes the rest.
fn in_chunks(
    engine: &mut Engine,
    weights: &mut dyn FnMut(usize) -> Models<'static>,
    requests: Vec<Request>,
    chunk: usize,
    last: usize,
) -> Vec<RolloutGroup> {
    let mut groups: Vec<Option<RolloutGroup>> = vec![None; requests.len()];
    for number in 0..=last {
        let until = (number < last).then_some((number + 1) * chunk);
        for (request, group) in requests.iter().zip(&groups) {
            let so_far = group.as_ref().map_or_else(Vec::new, |group| group.completions.clone());
            if number == 0 || so_far.iter().any(Completion::is_unfinished) {
                engine.submit(Request { so_far, until, ..request.clone() }).unwrap();
            }
        }
        for group in run(engine, weights(number)) {
            let most = until.unwrap_or(usize::MAX);
            for c in &group.completions {
                assert!(if c.is_unfinished() { c.ids.len() == most } else { c.ids.len() <= most });
            }
            let place = requests.iter().position(|request| request.group == group.group).unwrap();
            groups[place] = Some(group);
        }
    }
    groups.into_iter().flatten().collect()
}

#[test]
fn chunked_completions_have_the_bits_of_unchunked_ones() {
    let (ctx, weights) = small();
    let weights: &'static Weights = Box::leak(Box::new(weights));
    let plain = || sampling(40);
    let with_stops = SamplingParams { stop_ids: vec![3, 50], stop_strings: vec!["bc".into(), "d".into()], ..plain() };
    let samplings = [
        plain(),
        SamplingParams { temperature: 0.0, ..plain() },
        SamplingParams { temperature: 0.7, top_k: 7, top_p: 0.9, min_p: 0.02, ..plain() },
        SamplingParams { repetition_penalty: 1.3, entropies: true, ..plain() },
        SamplingParams { entropies: true, top_logprobs: 3, prompt_logprobs: true, ..with_stops },
    ];
    let mut reasons = Vec::new();
    for sampling in samplings {
        let whole = poisoned(&ctx, weights, roomy(200)).generate(weights, load(&sampling)).unwrap();
        for config in engines() {
            // A page has 64 tokens. In the last case, every completion ends within the first chunk.
            for (chunk, last) in [(1, 3), (3, 2), (7, 9), (40, 2)] {
                let mut engine = poisoned(&ctx, weights, config.clone());
                engine.set_detokenizer(Arc::new(Letters));
                let mut reference = poisoned(&ctx, weights, roomy(200));
                reference.set_detokenizer(Arc::new(Letters));
                let whole = if sampling.stop_strings.is_empty() {
                    whole.clone()
                } else {
                    reference.generate(weights, load(&sampling)).unwrap()
                };
                let mut same = |_| Models::from(weights);
                let mut made = in_chunks(&mut engine, &mut same, load(&sampling), chunk, last);
                for (made, whole) in made.iter_mut().zip(&whole) {
                    // Completions that ended before the last chunk are not requested again.
                    made.prompt_columns = whole.prompt_columns.clone();
                    reasons.extend(made.completions.iter().map(|c| (c.finish_reason, c.ids.len())));
                }
                assert!(made == whole, "{sampling:?} {config:?} {chunk}");
                assert_eq!(engine.live().count(), 0);
            }
        }
    }
    let ended = |reason| reasons.iter().filter(|(r, _)| *r == reason).count();
    assert!(ended(FinishReason::Stop) > 50 && ended(FinishReason::Length) > 50 && ended(FinishReason::Unfinished) == 0);
}

#[test]
fn each_token_is_sampled_with_the_weights_of_its_chunk() {
    let (ctx, mut weights) = small();
    weights.version = Updates(4);
    let other = {
        use model::io::{TensorSink, TensorSource};
        let mut other = Weights::zeros(ctx.memory(), &weights.config);
        for spec in TensorSink::tensors(&other) {
            let values: Vec<f32> = weights.get(&spec.name).unwrap().iter().map(|x| x * 1.25).collect();
            other.put(&spec.name, &values).unwrap();
        }
        other.version = Updates(9);
        other
    };
    let (weights, other): (&'static Weights, &'static Weights) =
        (Box::leak(Box::new(weights)), Box::leak(Box::new(other)));
    let mut engine = poisoned(&ctx, weights, roomy(200));
    let mut of = |number: usize| Models::from(if number == 0 { weights } else { other });
    let groups = in_chunks(&mut engine, &mut of, load(&sampling(20)), 6, 1);
    for (group, request) in groups.iter().zip(load(&sampling(20))) {
        for c in &group.completions {
            assert_eq!(c.versions, [[Updates(4); 6].as_slice(), &[Updates(9); 14]].concat());
        }
        // The recorded log-probabilities must equal those that each version computes for its own tokens in one pass.
        let alone = std::slice::from_ref(group);
        let (old, new) = (
            scored(&ctx, weights.into(), alone, 1.0, Layout::Shared),
            scored(&ctx, other.into(), alone, 1.0, Layout::Shared),
        );
        assert_eq!(request.group, group.group);
        for (at, logp) in recorded(alone).iter().enumerate() {
            let expected = if at % 20 < 6 { old[at] } else { new[at] };
            assert_eq!(logp.to_bits(), expected.to_bits(), "token {at}");
        }
        assert_ne!(old, new);
    }
}

#[test]
fn invalid_completions_are_refused() {
    let (ctx, weights) = small();
    let mut engine = poisoned(&ctx, &weights, roomy(200));
    let request = || Request { until: Some(4), ..load(&sampling(40)).swap_remove(1) };
    engine.submit(request()).unwrap();
    let so_far = run(&mut engine, &weights).swap_remove(0).completions;
    let mut refused = |spoil: fn(&mut Request), word: &str| {
        let mut wanted = Request { so_far: so_far.clone(), until: Some(8), ..request() };
        spoil(&mut wanted);
        let error = engine.submit(wanted).unwrap_err();
        assert!(matches!(error, Error::CannotContinue { .. }) && error.to_string().contains(word), "{error}");
    };
    refused(|request| request.so_far.truncate(2), "expected 3 completions, got 2");
    refused(|request| request.so_far.swap(0, 1), "order");
    refused(|request| request.until = Some(4), "maximum length");
    refused(
        |request| request.so_far.iter_mut().for_each(|c| c.finish_reason = FinishReason::Stop),
        "have already finished",
    );
    refused(|request| request.so_far[1].columns = Default::default(), "completion 1 has");
    refused(|request| request.so_far[2].versions.truncate(3), "completion 2 has");
    assert!(engine.is_idle());
}
