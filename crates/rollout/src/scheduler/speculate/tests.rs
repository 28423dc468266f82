//! Tests of draft tokens: their places, their number, and the measured time with and without them.

use super::*;
use crate::blocks::BlockPool;
use crate::models::ModelVersion;
use crate::scheduler::Limits;
use crate::sequence::{State, TokenRecord};
use crate::{Request, SamplingParams};
use model::{GroupId, Prompt, Updates};
use std::sync::Arc;

fn scheduler(speculative: Speculative, blocks: usize) -> Scheduler {
    let limits = Limits { max_num_seqs: 8, max_rows: 512, max_model_len: 4096, chunked_prefill: true };
    let mut scheduler = Scheduler::new(BlockPool::new(blocks, false), limits, speculative);
    scheduler.current = Some(ModelVersion { base: Updates(0), adapter: None });
    scheduler
}

/// Adds a running sequence with this prompt and these drawn tokens. All tokens but the last are computed.
fn run(s: &mut Scheduler, prompt: &[u32], drawn: &[u32]) -> usize {
    let request = Request::new(GroupId(0), Prompt::new(prompt.to_vec()), 1, Arc::new(SamplingParams::default()));
    let group = s.submit(Arc::new(request), false).index;
    let id = s.groups[group].members[0];
    assert!(s.make_room(id, prompt.len() + drawn.len()));
    for &token in drawn {
        s.sequences[id].push(token, Some(TokenRecord::default()), Updates(0));
    }
    s.sequences[id].computed = prompt.len() + drawn.len() - 1;
    s.sequences[id].state = State::Running;
    s.waiting.retain(|&other| other != id);
    s.running.push(id);
    id
}

#[test]
fn the_continuation_of_the_same_tokens_is_guessed() {
    let mut s = scheduler(Speculative::Always(4), 20);
    let id = run(&mut s, &[1, 2, 3, 4, 5, 6, 9], &[1, 2, 3]);
    s.speculate();
    assert_eq!((&s.sequences[id].tokens[10..], s.sequences[id].drafted), (&[4, 5, 6, 9][..], 4));
    s.speculate();
    assert_eq!(s.sequences[id].drafted, 4, "the guesses must wait for verification");
    // A repetition is continued. If the index has no place, the last token is repeated.
    let mut s = scheduler(Speculative::Always(5), 20);
    let (repeats, none) = (run(&mut s, &[8, 1, 2], &[1, 2, 1, 2]), run(&mut s, &[7, 6], &[5]));
    s.speculate();
    assert_eq!(
        (&s.sequences[repeats].tokens[7..], &s.sequences[none].tokens[3..]),
        (&[1, 2, 1, 2, 1][..], &[5; 5][..])
    );
    // No tokens are guessed for prompts, for completions without a token, or for sequences with more tokens to compute.
    let mut s = scheduler(Speculative::Always(4), 20);
    let id = run(&mut s, &[1, 2, 3, 4], &[1, 2, 3]);
    s.sequences[id].computed -= 1;
    s.speculate();
    assert_eq!(s.sequences[id].drafted, 0);
    let mut off = scheduler(Speculative::Off, 20);
    let id = run(&mut off, &[1, 2, 3, 4], &[1, 2, 3]);
    off.speculate();
    off.measure(1, 1, Some(2), Duration::from_secs(1));
    assert_eq!((off.sequences[id].drafted, off.counters.draft_time), (0, Duration::ZERO));
}

#[test]
fn the_guess_follows_the_newest_of_the_longest_agreements() {
    let mut s = scheduler(Speculative::Always(1), 20);
    let id = run(&mut s, &[7, 1, 2, 3, 40, 1, 2, 3, 50, 6, 7, 1, 2, 3, 60, 1, 2, 3, 70, 5], &[7, 1, 2, 3]);
    let mut drafts = s.drafts.take().unwrap();
    s.index_group(s.sequences[id].group, &mut drafts);
    // Four tokens match before the tokens 40 and 60, and three before the others.
    assert_eq!(s.best_place(id, &drafts), Some((4, (id as u32, 14))));
    // If a sequence's index was reused, a place of its predecessor must not be used.
    let serial = s.groups[s.sequences[id].group].serial;
    let mut stale = Drafts::new();
    let text = s.sequences[id].known()[..15].to_vec();
    for of in [(id, s.sequences[id].serial + 1), (id + 5, 1)] {
        stale.add(serial, of, &text, 14);
        assert_eq!(s.best_place(id, &stale), None);
    }
    stale.add(serial, (id, s.sequences[id].serial), &text, 14);
    assert_eq!(s.best_place(id, &stale), Some((4, (id as u32, 14))));
    // A place beyond the end of the text is also ignored.
    drafts.add(serial, (id, s.sequences[id].serial), &[vec![0; 40], vec![7, 1, 2, 3, 9]].concat(), 44);
    assert_eq!(s.best_place(id, &drafts), Some((4, (id as u32, 14))));
    assert_eq!(s.text(0, id as u32), Some(s.sequences[id].known()));
    assert_eq!((s.text(0, EARLIER), s.text(1, id as u32), s.text(0, 77)), (None, None, None));
    let other = run(&mut s, &[9, 9], &[8]);
    assert_eq!(s.best_place(other, &drafts), None);
}

#[test]
fn draft_tokens_use_only_free_rows_and_pages() {
    let mut s = scheduler(Speculative::Auto, 4);
    let id = run(&mut s, &[1; 60], &[2]);
    // A step has 16 rows in total, and each sequence needs one row for its last token.
    assert_eq!([1, 2, 3, 5, 16, 20].map(|live| s.rows_for(id, live)), [15, 7, 4, 2, 0, 0]);
    s.limits.max_rows = 10;
    assert_eq!([1, 2, 10].map(|live| s.rows_for(id, live)), [9, 4, 0]);
    // Without a free page per running sequence, only the rest of the last page can be used: 61 of 64 slots are full.
    s.blocks.take();
    s.blocks.take();
    assert_eq!((s.blocks.available(), s.rows_for(id, 1), s.rows_for(id, 5)), (1, 3, 1));
    s.sequences[id].push(3, Some(TokenRecord::default()), Updates(0));
    assert_eq!(s.rows_for(id, 1), 2);
}

#[test]
fn draft_tokens_need_few_sequences_and_a_measured_step() {
    let mut s = scheduler(Speculative::Auto, 40);
    let text: Vec<u32> = (0..30).chain(0..20).collect();
    let id = run(&mut s, &text[..45], &text[45..]);
    s.speculate();
    assert_eq!(s.sequences[id].drafted, 0, "no step was measured yet");
    s.measure(1, 1, None, Duration::from_secs(1));
    s.speculate();
    assert!(s.sequences[id].drafted > 0);
    s.sequences[id].reject_drafts();
    for _ in 0..8 {
        run(&mut s, &[1; 5], &[2]);
    }
    s.speculate();
    assert!(s.running.iter().all(|&id| s.sequences[id].drafted == 0), "no guesses with nine running sequences");
    // The time with draft tokens is compared with the time to draw the same number of tokens without them.
    s.measure(1, 3, Some(3), Duration::from_secs(2));
    assert_eq!((s.counters.draft_time, s.counters.undrafted_time), (Duration::from_secs(2), Duration::from_secs(3)));
    s.measure(2, 3, Some(3), Duration::from_secs(2));
    assert_eq!(s.counters.draft_time, Duration::from_secs(2), "no step of two sequences was measured");
}
