//! Tests of the scheduler, with schedules computed by hand.

mod pages;

use super::*;
use crate::models::ModelVersion;
use crate::sequence::{Draw, Sampled, TokenRecord};
use crate::stop::StopCheck;
use crate::{FinishReason, Request, SamplingParams};
use model::kv::BLOCK;
use model::{GroupId, Prompt, Updates};

fn scheduler(blocks: usize, prompts: &[usize], num_generations: usize, sharing: bool) -> Scheduler {
    let limits = Limits { max_num_seqs: 8, max_rows: 512, max_model_len: 4096, chunked_prefill: true };
    let mut scheduler = Scheduler::new(BlockPool::new(blocks, false), limits, Speculative::Off);
    scheduler.current = Some(ModelVersion { base: Updates(0), adapter: None });
    for &len in prompts {
        let request =
            Request::new(GroupId(0), Prompt::new(vec![1; len]), num_generations, Arc::new(SamplingParams::default()));
        scheduler.submit(Arc::new(request), sharing);
    }
    scheduler
}

/// Runs one step as the engine does, and draws a token for each completely computed sequence. Returns the rows.
fn step(s: &mut Scheduler) -> Vec<(usize, usize, usize)> {
    let (mut chunks, mut copies) = (Vec::new(), Vec::new());
    s.schedule(&mut chunks, &mut copies);
    s.mark_computed(&chunks);
    for chunk in &chunks {
        let (id, sequence) = (chunk.sequence, &s.sequences[chunk.sequence]);
        assert!(sequence.blocks.len() * BLOCK >= chunk.to, "every row needs a page");
        if sequence.uncomputed() > 0 {
            continue;
        }
        let at = sequence.tokens.len();
        let draws: Vec<Draw> = match sequence.role {
            Role::Completion(_) => vec![Draw { row: 0, sequence: id, at }],
            Role::Prompt => s.not_begun(sequence.group).map(|sequence| Draw { row: 0, sequence, at }).collect(),
        };
        sampled(s, &draws, 0);
    }
    s.share_prompts(&chunks);
    chunks.iter().map(|c| (c.sequence, c.from, c.to)).collect()
}

/// Appends token `id` for each of `draws`.
fn sampled(s: &mut Scheduler, draws: &[Draw], id: u32) {
    let (ids, records) = (vec![id; draws.len()], vec![TokenRecord::default(); draws.len()]);
    s.postprocess(draws, Sampled { ids: &ids, records: &records, alternatives: &[] }, &StopCheck::default());
}

#[test]
fn the_youngest_sequence_is_preempted_and_recomputed() {
    let mut s = scheduler(3, &[63, 63], 1, false);
    assert_eq!(step(&mut s), [(0, 0, 63), (1, 0, 63)]);
    assert_eq!(step(&mut s), [(0, 63, 64), (1, 63, 64)]);
    assert_eq!(step(&mut s), [(0, 64, 65)], "the older sequence gets the third page");
    assert_eq!((s.counters.preemptions, s.sequences[1].blocks.len()), (1, 0));
    assert_eq!(step(&mut s), [(0, 65, 66)], "the younger sequence waits for two pages");
    s.finish(0, FinishReason::Length);
    assert_eq!(step(&mut s), [(1, 0, 65)], "the whole sequence is recomputed");
    s.finish(1, FinishReason::Stop);
    assert!(s.is_idle() && s.blocks.available() == 3);
}

#[test]
fn a_preempted_sequence_resumes_before_others_begin() {
    let mut s = scheduler(3, &[63, 63, 10], 1, false);
    s.limits.max_num_seqs = 2;
    step(&mut s);
    step(&mut s);
    assert_eq!(step(&mut s), [(0, 64, 65)], "one page is free, but the third sequence must wait");
    s.finish(0, FinishReason::Length);
    assert_eq!(step(&mut s), [(1, 0, 65), (2, 0, 10)]);
}

#[test]
fn a_prompt_is_split_only_with_chunked_prefill() {
    for (chunked, first, second) in [(true, 212, 212), (false, 0, 0)] {
        let mut s = scheduler(12, &[300, 300], 1, false);
        s.limits.chunked_prefill = chunked;
        let expected = [(0, 0, 300), (1, 0, first)];
        assert_eq!(step(&mut s), expected[..if chunked { 2 } else { 1 }]);
        assert_eq!(step(&mut s), [(0, 300, 301), (1, second, 300)]);
    }
}

#[test]
fn a_recomputed_prompt_draws_no_token_for_begun_completions() {
    let mut s = scheduler(10, &[70], 2, true);
    let (mut chunks, mut copies) = (Vec::new(), Vec::new());
    s.schedule(&mut chunks, &mut copies);
    s.mark_computed(&chunks);
    // Drawing fails for the second completion, and then the weights change.
    sampled(&mut s, &[Draw { row: 69, sequence: 0, at: 70 }], 5);
    s.invalidate();
    assert_eq!(s.not_begun(0).collect::<Vec<_>>(), [1], "only completion 1 has not begun");
    assert_eq!(step(&mut s), [(2, 0, 70)]);
    assert_eq!([0, 1].map(|id| s.sequences[id].completion().to_vec()), [[5], [0]]);
}

#[test]
fn paused_sequences_free_stale_pages_at_once() {
    let mut s = scheduler(3, &[60], 1, false);
    step(&mut s);
    s.pause(0);
    assert_eq!(s.blocks.available(), 2);
    s.invalidate();
    assert_eq!(s.blocks.available(), 3);
    s.extend(0, &[]);
    assert_eq!(step(&mut s), [(0, 0, 61)]);
}

#[test]
fn a_group_shares_full_pages_and_copies_the_last_page() {
    let mut s = scheduler(10, &[130], 3, true);
    assert_eq!(step(&mut s), [(3, 0, 130)], "the prompt is computed once");
    assert_eq!(s.blocks.available(), 7);
    let (mut chunks, mut copies) = (Vec::new(), Vec::new());
    s.schedule(&mut chunks, &mut copies);
    let (prompt, members) = (s.sequences[3].blocks.clone(), [0, 1, 2].map(|id| s.sequences[id].blocks.clone()));
    assert_eq!(s.blocks.available(), 4);
    for (member, copy) in members.iter().zip(&copies) {
        assert_eq!(member[..2], prompt[..2]);
        assert_eq!((prompt[2], member[2]), *copy);
        assert_ne!(member[2], prompt[2]);
    }
    for chunk in &chunks {
        assert_eq!((chunk.from, chunk.to), (130, 131));
    }
    (0..3).for_each(|id| s.finish(id, FinishReason::Stop));
    assert!(s.is_idle() && s.blocks.available() == 10, "the prompt is removed with its last completion");
}

#[test]
fn paused_sequences_lose_their_pages_if_running_ones_need_them() {
    let mut s = scheduler(3, &[60], 1, false);
    step(&mut s);
    s.pause(0);
    let request = s.groups[0].request.as_ref().clone();
    s.submit(Arc::new(Request { prompt: Prompt::new(vec![1; 129]), ..request }), false);
    assert_eq!(step(&mut s), [(1, 0, 129)]);
    s.finish(1, FinishReason::Length);
    s.extend(0, &[]);
    assert_eq!(step(&mut s), [(0, 0, 61)]);
    s.finish(0, FinishReason::Length);
    assert_eq!(s.blocks.available(), 3);
}

#[test]
fn an_extended_sequence_keeps_its_pages_until_others_need_them() {
    let mut s = scheduler(3, &[60, 60], 1, false);
    step(&mut s);
    s.pause(0);
    s.extend(0, &[7, 8, 9]);
    assert_eq!(step(&mut s), [(1, 60, 61), (0, 60, 64)], "the drawn token and the inserted ones are computed");
    // Both sequences need a second page, but only one is free.
    s.pause(0);
    s.extend(0, &[]);
    s.limits.max_num_seqs = 1;
    for length in 61..64 {
        assert_eq!(step(&mut s), [(1, length, length + 1)]);
    }
    assert_eq!((s.sequences[0].blocks.len(), s.blocks.available()), (1, 1));
    s.blocks.take();
    assert_eq!(step(&mut s), [(1, 64, 65)], "the waiting sequence must release its page");
    assert_eq!((s.sequences[0].blocks.len(), s.counters.preemptions), (0, 0));
    s.finish(1, FinishReason::Length);
    assert_eq!(step(&mut s), [(0, 0, 65)]);
}

#[test]
fn a_step_uses_the_base_weights_of_the_oldest_running_sequence() {
    let mut s = scheduler(20, &[], 1, false);
    for (base, len) in [(4, 10), (7, 11), (4, 12)] {
        let request = Request::new(GroupId(0), Prompt::new(vec![1; len]), 1, Arc::new(SamplingParams::default()));
        let model = Some(ModelVersion { base: Updates(base), adapter: None });
        s.submit(Arc::new(Request { model, ..request }), false);
    }
    assert_eq!(step(&mut s), [(0, 0, 10), (2, 0, 12)]);
    s.finish(0, FinishReason::Stop);
    assert_eq!(step(&mut s), [(2, 12, 13)], "the second base waits until no sequence uses the first");
    s.finish(2, FinishReason::Stop);
    assert_eq!(step(&mut s), [(1, 0, 11)]);
}

#[test]
fn a_cancelled_request_is_removed_from_all_lists() {
    for sharing in [false, true] {
        let mut s = scheduler(20, &[], 1, false);
        let request = |len: usize| {
            Arc::new(Request::new(GroupId(0), Prompt::new(vec![1; len]), 3, Arc::new(SamplingParams::default())))
        };
        let ids: Vec<_> = [70, 80, 90].map(|len| s.submit(request(len), sharing)).to_vec();
        s.limits.max_num_seqs = 4;
        for _ in 0..3 {
            step(&mut s);
        }
        s.pause(s.groups[ids[0].index].members[0]);
        for &id in &ids {
            assert!(s.cancel(id) && !s.cancel(id));
            let again = s.submit(request(5), sharing);
            assert!(again.index == id.index && !s.cancel(id), "the old id must not cancel the new request");
            assert!(s.cancel(again));
        }
        assert!(s.is_idle() && s.sequences.is_empty() && s.groups.is_empty());
        assert_eq!((s.blocks.available(), s.paused.len(), s.held.len()), (20, 0, 0), "{sharing}");
    }
}
