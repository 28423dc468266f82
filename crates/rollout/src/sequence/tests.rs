//! Tests of sequences whose tokens are drawn, guessed, inserted or continued.

use super::*;
use crate::request::SamplingParams;

fn sequence(prompt: &[u32]) -> Sequence {
    Sequence::new(11, 2, Role::Completion(3), None, prompt, 10)
}

/// The record of a sampled token with this log-probability.
fn record(logp: f32) -> Option<TokenRecord> {
    Some(TokenRecord { logp, lse: 1.0, entropy: -logp })
}

fn draft(s: &mut Sequence, tokens: &[u32]) {
    s.tokens.extend_from_slice(tokens);
    s.drafted = tokens.len();
}

#[test]
fn a_right_draft_token_is_kept_and_a_wrong_one_drops_the_rest() {
    let mut s = sequence(&[1, 2]);
    assert_eq!((s.known(), s.completion(), s.uncomputed(), s.generation()), (&[1, 2][..], &[][..], 2, 3));
    assert!(!s.push(7, record(-0.5), Updates(4)));
    s.computed = 3;
    draft(&mut s, &[8, 9, 10]);
    s.computed = 6;
    assert_eq!((s.known(), s.completion(), s.uncomputed()), (&[1, 2, 7][..], &[7][..], 0));
    assert!(s.push(8, record(-1.0), Updates(4)), "the drawn token equals the draft");
    assert_eq!((s.known(), s.drafted, s.computed), (&[1, 2, 7, 8][..], 2, 6));
    assert!(!s.push(5, record(-2.0), Updates(5)), "another");
    assert_eq!((&s.tokens[..], s.drafted, s.computed), (&[1, 2, 7, 8, 5][..], 0, 4));
    assert_eq!(
        (&s.head.logps[..], &s.sampled[..], &s.versions[..]),
        (&[-0.5, -1.0, -2.0][..], &[true; 3][..], &[4, 4, 5].map(Updates)[..])
    );
    // Inserted tokens have no alternatives.
    s.top.push(&[6, 7], &[-0.1, -0.2]);
    assert!(!s.push(4, None, Updates(6)));
    let top = Alternatives { width: 2, ids: vec![6, 7, 0, 0], logps: vec![-0.1, -0.2, 0.0, 0.0] };
    assert_eq!((&s.top, s.sampled[3], s.versions[3]), (&top, false, Updates(6)));
    draft(&mut s, &[1, 1]);
    (s.computed, s.cached, s.node) = (8, 1, 9);
    s.reject_drafts();
    assert_eq!((s.tokens.len(), s.computed, s.drafted), (6, 6, 0));
    draft(&mut s, &[1]);
    s.forget_pages();
    assert_eq!((s.tokens.len(), s.computed, s.cached, s.node, s.drafted), (6, 0, 0, ROOT, 0));
}

#[test]
fn a_completion_continues_as_if_it_had_never_stopped() {
    let mut s = sequence(&[1, 2]);
    for (id, logp, version) in [(7, -0.5, Updates(4)), (8, -1.0, Updates(5))] {
        s.push(id, record(logp), version);
        s.top.push(&[id, 9], &[logp, -3.0]);
    }
    s.push(3, None, Updates(5));
    s.state = State::Finished(FinishReason::Unfinished);
    let completion = s.into_completion(true);
    let columns = &completion.columns;
    assert_eq!(
        (completion.generation, &completion.ids[..], completion.logps()),
        (3, &[7, 8, 3][..], &[-0.5, -1.0, 0.0][..])
    );
    assert_eq!(
        (&completion.sampled[..], &completion.versions[..]),
        (&[true, true, false][..], &[4, 5, 5].map(Updates)[..])
    );
    assert_eq!(columns.f32(ENTROPIES), Some(&[0.5, 1.0, 0.0][..]), "inserted tokens have entropy 0");
    let ids = Column { width: 2, values: Values::U32(vec![7, 9, 8, 9, 0, 0]) };
    assert_eq!((columns.get(TOP_IDS), columns.get(TOP_LOGPS).unwrap().width), (Some(&ids), 2));
    let sampling = SamplingParams { top_logprobs: 2, entropies: true, ..SamplingParams::default() };
    assert!(completion.is_whole(&sampling));

    let mut again = sequence(&[1, 2]);
    again.continue_from(&completion);
    assert_eq!((again.completion(), again.state, again.uncomputed()), (&[7, 8, 3][..], State::Waiting, 5));
    assert_eq!((again.head.entropies.len(), again.top.width, again.top.ids.len()), (3, 2, 6));
    again.state = State::Finished(FinishReason::Unfinished);
    assert_eq!(again.into_completion(true), completion);
    let mut ended = sequence(&[1, 2]);
    ended.continue_from(&Completion { finish_reason: FinishReason::Stop, ..completion });
    assert_eq!(ended.state, State::Finished(FinishReason::Stop));
    // If only log-probabilities are recorded, the completion has only these.
    let mut plain = sequence(&[1]);
    plain.push(7, record(-0.5), Updates(0));
    plain.state = State::Finished(FinishReason::Length);
    let plain = plain.into_completion(false);
    assert_eq!((plain.columns.iter().count(), plain.finish_reason), (1, FinishReason::Length));
}
