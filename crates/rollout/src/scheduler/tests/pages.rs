//! Tests of shared, kept and evicted pages, with the exact number of free pages after each step.

use super::*;

fn request(len: usize, completions: usize) -> Request {
    Request::new(GroupId(0), Prompt::new(vec![1; len]), completions, Arc::new(SamplingParams::default()))
}

/// The rows of a step, as (sequence, from, to), and the pages to copy before it.
type Step = (Vec<(usize, usize, usize)>, Vec<(u32, u32)>);

fn next(s: &mut Scheduler) -> Step {
    let (mut chunks, mut copies) = (vec![Chunk { sequence: 9, from: 9, to: 9 }], vec![(9, 9)]);
    s.schedule(&mut chunks, &mut copies);
    (chunks.iter().map(|c| (c.sequence, c.from, c.to)).collect(), copies)
}

#[test]
fn completions_share_the_full_pages_of_their_prompt() {
    // The prompt's last page is copied unless it is full.
    for (len, copied) in [(63, 3), (64, 0), (65, 3), (128, 0)] {
        let mut s = scheduler(30, &[len], 3, true);
        assert_eq!(step(&mut s), [(3, 0, len)]);
        let before = s.blocks.available();
        assert_eq!(before, 30 - len.div_ceil(BLOCK));
        let (rows, copies) = next(&mut s);
        assert_eq!((rows, copies.len()), ((0..3).map(|id| (id, len, len + 1)).collect(), copied), "{len}");
        // Each completion has one page of its own, copied or new.
        assert_eq!(s.blocks.available(), before - 3);
        let pages = |id: usize| s.sequences[id].blocks.clone();
        for id in 0..3 {
            assert_eq!(pages(id)[..len / BLOCK], pages(3)[..len / BLOCK]);
            assert_eq!(pages(id).len(), (len + 1).div_ceil(BLOCK));
        }
        let expected = (0..copied).map(|id| (pages(3)[len / BLOCK], pages(id)[len / BLOCK]));
        assert_eq!(copies, expected.collect::<Vec<_>>());
        let mut own: Vec<u32> = (0..3).map(|id| pages(id)[len / BLOCK]).chain(pages(3)).collect();
        own.sort_unstable();
        own.dedup();
        assert_eq!(own.len(), 3 + len.div_ceil(BLOCK), "no page may be allocated twice");
    }
}

#[test]
fn a_completion_waits_for_a_free_page_for_its_copy() {
    // The prompt takes two pages, and each completion takes one more.
    let mut s = scheduler(4, &[70], 3, true);
    assert_eq!(step(&mut s), [(3, 0, 70)]);
    let (rows, copies) = next(&mut s);
    assert_eq!((rows, copies.len()), (vec![(0, 70, 71), (1, 70, 71)], 2));
    assert_eq!((s.blocks.available(), s.sequences[2].blocks.len(), s.sequences[2].computed), (0, 0, 0));
    assert_eq!(s.waiting, [2]);
    // The prompt's pages are kept for the waiting completion, and are freed with the last one.
    s.finish(0, FinishReason::Stop);
    s.finish(1, FinishReason::Stop);
    assert_eq!(s.blocks.available(), 2);
    assert_eq!(step(&mut s), [(2, 70, 71)]);
    s.finish(2, FinishReason::Stop);
    assert_eq!((s.blocks.available(), s.held.len()), (4, 0));
}

#[test]
fn computed_prompts_are_evicted_if_nothing_else_can_run() {
    // Two prompts use three pages, which leaves no room for a completion.
    let mut s = scheduler(3, &[70, 60], 2, true);
    step(&mut s);
    assert_eq!((s.held.len(), s.blocks.available()), (2, 0));
    assert_eq!(s.waiting.len(), 4);
    // Completions now compute their prompts themselves, beginning with the prompt that was computed last.
    assert_eq!(step(&mut s), [(3, 0, 61), (4, 0, 61)]);
    assert_eq!((s.held.len(), s.groups[0].prompt, s.groups[1].prompt), (0, None, None));
    assert!(!s.evict_prompts());
}

#[test]
fn new_weights_invalidate_sequences_without_a_version() {
    let mut s = scheduler(30, &[], 1, false);
    let named = Some(ModelVersion { base: Updates(0), adapter: None });
    for (len, model, completions) in
        [(70, None, 1), (71, named, 1), (72, None, 2), (73, named, 2), (74, None, 1), (75, named, 1)]
    {
        s.submit(Arc::new(Request { model, ..request(len, completions) }), true);
    }
    step(&mut s);
    let members = |s: &Scheduler, group: usize| s.groups[group].members.clone();
    let (fresh, kept) = (members(&s, 4)[0], members(&s, 5)[0]);
    s.pause(fresh);
    s.pause(kept);
    s.extend(kept, &[]);
    assert_eq!((s.held.len(), s.running.clone()), (2, vec![0, 1]));
    s.invalidate();
    assert_eq!(s.running, [1], "only the sequence that names its weights keeps running");
    assert_eq!((s.sequences[0].computed, s.sequences[0].state, s.waiting.front()), (0, State::Waiting, Some(&0)));
    assert_eq!((s.sequences[fresh].blocks.len(), s.sequences[kept].blocks.len()), (0, 2));
    assert_eq!((s.groups[2].prompt, s.groups[3].prompt.is_some(), s.held.len()), (None, true, 1));
    // A prompt that was computed with other weights is not shared.
    let completion = members(&s, 3)[0];
    s.set_model(
        completion,
        ModelVersion { base: Updates(0), adapter: Some(crate::AdapterVersion { id: 1, version: Updates(1) }) },
    );
    let (rows, _) = next(&mut s);
    let of = |id: usize| rows.iter().find(|row| row.0 == id).map(|row| row.1);
    assert_eq!((of(completion), of(members(&s, 3)[1])), (Some(0), Some(73)));
    assert_eq!((of(kept), of(0), of(1)), (Some(75), Some(0), Some(71)));
}

#[test]
fn a_cancelled_request_that_has_ended_is_not_returned() {
    let mut s = scheduler(20, &[], 1, false);
    let ids: Vec<_> = [5, 6].map(|len| s.submit(Arc::new(request(len, 1)), false)).to_vec();
    step(&mut s);
    s.finish(0, FinishReason::Stop);
    s.finish(1, FinishReason::Length);
    assert!(s.cancel(ids[0]));
    let ended = s.take_finished(|_| true);
    assert_eq!(ended.iter().map(|ended| ended.request).collect::<Vec<_>>(), [ids[1]]);
    assert!(!s.cancel(ids[1]), "the request was already returned");
    assert!(s.sequences.is_empty() && s.groups.is_empty() && s.blocks.available() == 20);
}

#[test]
fn a_prompt_is_kept_until_its_last_completion_ends() {
    for ended in 0..=3_usize {
        let mut s = scheduler(20, &[], 1, false);
        let sampling = Arc::new(SamplingParams { stop_ids: vec![9], ..SamplingParams::default() });
        s.submit(Arc::new(Request { sampling, ..request(70, 3) }), true);
        let (mut chunks, mut copies) = (Vec::new(), Vec::new());
        s.schedule(&mut chunks, &mut copies);
        s.mark_computed(&chunks);
        for sequence in 0..3 {
            let id = if sequence < ended { 9 } else { 5 };
            sampled(&mut s, &[Draw { row: 69, sequence, at: 70 }], id);
        }
        s.share_prompts(&chunks);
        let held = ended < 3;
        assert_eq!((s.held.len(), s.groups[0].prompt.is_some()), (usize::from(held), held), "{ended}");
        assert_eq!(s.waiting, (ended..3).collect::<Vec<_>>());
        assert_eq!((s.blocks.available(), s.is_idle()), (if held { 18 } else { 20 }, !held));
        assert_eq!(s.take_finished(|_| true).len(), usize::from(!held));
    }
}
