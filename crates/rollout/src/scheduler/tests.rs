//! Who runs in each step, by hand.

use super::*;
use crate::{Request, SamplingParams};
use model::Prompt;

fn scheduler(blocks: usize, prompts: &[usize], num_generations: usize, sharing: bool) -> Scheduler {
    let mut scheduler =
        Scheduler::new(blocks, Limits { max_num_seqs: 8, max_rows: 512, max_model_len: 4096, chunked_prefill: true });
    for &len in prompts {
        let request = Request {
            id: 0,
            prompt: Prompt::new(vec![1; len]),
            num_generations,
            sampling: Arc::new(SamplingParams::default()),
            pause_on_stop: false,
        };
        scheduler.submit(Arc::new(request), sharing);
    }
    scheduler
}

/// One step as the engine makes it, a token for each sequence that is whole. Returns its rows.
fn step(s: &mut Scheduler) -> Vec<(usize, usize, usize)> {
    let (mut chunks, mut copies) = (Vec::new(), Vec::new());
    s.schedule(&mut chunks, &mut copies);
    s.mark_computed(&chunks);
    for chunk in &chunks {
        let (id, sequence) = (chunk.sequence, &s.sequences[chunk.sequence]);
        assert!(sequence.blocks.len() * BLOCK >= chunk.to, "rows without a page");
        if sequence.uncomputed() > 0 {
            continue;
        }
        let draws: Vec<Draw> = match sequence.role {
            Role::Completion(_) => vec![Draw { row: 0, sequence: id }],
            Role::Prompt => s.not_begun(sequence.group).map(|sequence| Draw { row: 0, sequence }).collect(),
        };
        s.postprocess(&draws, &vec![0; draws.len()], &vec![0.0; draws.len()], 0, &StopCheck::default());
    }
    s.share_prompts(&chunks);
    chunks.iter().map(|c| (c.sequence, c.from, c.to)).collect()
}

#[test]
fn the_youngest_is_preempted_and_computed_again() {
    let mut s = scheduler(3, &[63, 63], 1, false);
    assert_eq!(step(&mut s), [(0, 0, 63), (1, 0, 63)]);
    assert_eq!(step(&mut s), [(0, 63, 64), (1, 63, 64)]);
    assert_eq!(step(&mut s), [(0, 64, 65)], "the third page goes to the older one");
    assert_eq!((s.preemptions, s.sequences[1].blocks.len()), (1, 0));
    assert_eq!(step(&mut s), [(0, 65, 66)], "and the younger one waits for its two");
    s.finish(0, FinishReason::Length);
    assert_eq!(step(&mut s), [(1, 0, 65)], "all of it again");
    s.finish(1, FinishReason::Stop);
    assert!(s.is_idle() && s.blocks.available() == 3);
}

#[test]
fn the_preempted_goes_on_before_others_begin() {
    let mut s = scheduler(3, &[63, 63, 10], 1, false);
    s.limits.max_num_seqs = 2;
    step(&mut s);
    step(&mut s);
    assert_eq!(step(&mut s), [(0, 64, 65)], "a page is left, which the third could have");
    s.finish(0, FinishReason::Length);
    assert_eq!(step(&mut s), [(1, 0, 65), (2, 0, 10)]);
}

#[test]
fn a_prompt_is_cut_only_if_it_may_be() {
    for (chunked, first, second) in [(true, 212, 212), (false, 0, 0)] {
        let mut s = scheduler(12, &[300, 300], 1, false);
        s.limits.chunked_prefill = chunked;
        let expected = [(0, 0, 300), (1, 0, first)];
        assert_eq!(step(&mut s), expected[..if chunked { 2 } else { 1 }]);
        assert_eq!(step(&mut s), [(0, 300, 301), (1, second, 300)]);
    }
}

#[test]
fn a_prompt_computed_again_gives_nothing_to_what_has_begun() {
    let mut s = scheduler(10, &[70], 2, true);
    let (mut chunks, mut copies) = (Vec::new(), Vec::new());
    s.schedule(&mut chunks, &mut copies);
    s.mark_computed(&chunks);
    // Drawing fails for the second completion, and then the weights change.
    s.postprocess(&[Draw { row: 69, sequence: 0 }], &[5], &[0.0], 0, &StopCheck::default());
    s.invalidate();
    assert_eq!(step(&mut s), [(2, 0, 70)]);
    assert_eq!([0, 1].map(|id| s.sequences[id].completion().to_vec()), [[5], [0]]);
}

#[test]
fn paused_sequences_give_stale_pages_back_at_once() {
    let mut s = scheduler(3, &[60], 1, false);
    step(&mut s);
    s.leave(0, State::Paused);
    assert_eq!(s.blocks.available(), 2);
    s.invalidate();
    assert_eq!(s.blocks.available(), 3);
    s.extend(0, &[], 1);
    assert_eq!(step(&mut s), [(0, 0, 61)]);
}

#[test]
fn a_group_shares_full_pages_and_copies_the_last() {
    let mut s = scheduler(10, &[130], 3, true);
    assert_eq!(step(&mut s), [(3, 0, 130)], "the prompt, once");
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
    assert!(s.is_idle() && s.blocks.available() == 10, "the prompt leaves with its last completion");
}

#[test]
fn paused_sequences_give_their_pages_rather_than_stop_all_others() {
    let mut s = scheduler(3, &[60], 1, false);
    step(&mut s);
    s.leave(0, State::Paused);
    let request = s.groups[0].request.as_ref().clone();
    s.submit(Arc::new(Request { prompt: Prompt::new(vec![1; 129]), ..request }), false);
    assert_eq!(step(&mut s), [(1, 0, 129)]);
    s.finish(1, FinishReason::Length);
    s.extend(0, &[], 0);
    assert_eq!(step(&mut s), [(0, 0, 61)]);
    s.finish(0, FinishReason::Length);
    assert_eq!(s.blocks.available(), 3);
}
