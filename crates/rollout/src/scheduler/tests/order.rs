//! Which sequences a step takes and what it costs: budgets to the last row, slot and page, in exact order.

use super::*;
use crate::prefix::ROOT;

fn limited(blocks: usize, prompts: &[usize], max_num_seqs: usize, max_rows: usize) -> Scheduler {
    let mut s = scheduler(blocks, prompts, 1, false);
    (s.limits.max_num_seqs, s.limits.max_rows) = (max_num_seqs, max_rows);
    s
}

fn request(len: usize, completions: usize) -> Request {
    Request::new(0, Prompt::new(vec![1; len]), completions, Arc::new(SamplingParams::default()))
}

#[test]
fn a_step_takes_rows_and_slots_to_the_last() {
    let mut s = limited(20, &[5, 5, 5, 5], 8, 12);
    assert_eq!(step(&mut s), [(0, 0, 5), (1, 0, 5), (2, 0, 2)], "the third in part");
    assert_eq!(step(&mut s), [(0, 5, 6), (1, 5, 6), (2, 2, 5), (3, 0, 5)], "those that run come first");
    assert_eq!(s.counters.computed_tokens, 22);
    let mut s = limited(20, &[5, 5, 5, 5], 8, 10);
    assert_eq!(step(&mut s), [(0, 0, 5), (1, 0, 5)], "no row is left");
    let mut s = limited(20, &[5, 5, 5, 5], 3, 100);
    assert_eq!(step(&mut s), [(0, 0, 5), (1, 0, 5), (2, 0, 5)], "no slot is left");
    s.finish(1, FinishReason::Stop);
    assert_eq!(step(&mut s), [(0, 5, 6), (2, 5, 6), (3, 0, 5)]);
    // Where prompts are not cut, one that does not fit waits.
    let mut s = limited(20, &[5, 7], 8, 12);
    s.limits.chunked_prefill = false;
    assert_eq!(step(&mut s).len(), 2);
    let mut s = limited(20, &[5, 8], 8, 12);
    s.limits.chunked_prefill = false;
    assert_eq!(step(&mut s), [(0, 0, 5)]);
    // More that run than there are rows: the last wait.
    let mut s = limited(20, &[5, 5, 5], 8, 100);
    step(&mut s);
    s.limits.max_rows = 2;
    assert_eq!(step(&mut s), [(0, 5, 6), (1, 5, 6)]);
}

#[test]
fn pages_are_taken_to_the_last() {
    // Two pages each; the third sequence finds one.
    let mut s = limited(5, &[65, 65, 65], 8, 500);
    assert_eq!(step(&mut s), [(0, 0, 65), (1, 0, 65)]);
    assert_eq!((s.blocks.available(), s.sequences[2].blocks.len()), (1, 0), "nothing was taken for it");
    let mut s = limited(6, &[65, 65, 65], 8, 500);
    assert_eq!((step(&mut s).len(), s.blocks.available()), (3, 0));
    // A page holds 64.
    let mut s = limited(3, &[64, 64, 64], 8, 500);
    assert_eq!((step(&mut s).len(), s.blocks.available(), s.counters.preemptions), (3, 0, 0));
    assert_eq!(step(&mut s), [(0, 64, 65)], "the youngest ones give way");
    assert_eq!((s.counters.preemptions, s.blocks.available()), (2, 1));
    s.finish(0, FinishReason::Length);
    assert_eq!(step(&mut s), [(1, 0, 65)], "in the order in which they ran");
    assert_eq!(s.blocks.available(), 1);
}

#[test]
fn a_request_is_queued_with_its_members_and_numbers() {
    let mut s = scheduler(20, &[], 1, false);
    let first = s.submit(Arc::new(request(5, 2)), false);
    let second = s.submit(Arc::new(request(5, 2)), true);
    let alone = s.submit(Arc::new(request(5, 1)), true);
    assert_eq!([first.index, second.index, alone.index], [0, 1, 2]);
    let serials: Vec<u64> = (0..6).map(|i| s.sequences[i].serial).collect();
    assert_eq!(serials, [1, 2, 4, 5, 6, 8]);
    assert_eq!([first.serial, second.serial, alone.serial], [3, 7, 9]);
    assert_eq!(s.waiting, [0, 1, 4, 5], "of several completions their prompt; one has none");
    assert_eq!((s.groups[1].prompt, s.groups[2].prompt, s.groups[0].prompt), (Some(4), None, None));
    assert_eq!((s.groups[1].members.clone(), s.groups[1].unfinished), (vec![2, 3], 2));
    assert_eq!(s.not_begun(1).collect::<Vec<_>>(), [2, 3]);
    let id = SequenceId { index: 2, serial: 4 };
    assert_eq!(
        (s.find(id), s.find(SequenceId { serial: 5, ..id }), s.find(SequenceId { index: 9, ..id })),
        (Some(2), None, None)
    );
    // Of completions that continue, those that have ended are done; one alone shares nothing.
    let done = |generation: usize, finish_reason| crate::Completion {
        generation,
        ids: vec![7],
        mask: vec![true],
        versions: vec![0],
        columns: model::Columns::of([("sampler_logps", vec![-1.0])]),
        finish_reason,
    };
    let so_far = vec![done(0, FinishReason::Stop), done(1, FinishReason::Unfinished)];
    let more = s.submit(Arc::new(Request { so_far, ..request(5, 2) }), true);
    assert_eq!((s.groups[more.index].unfinished, s.groups[more.index].prompt), (1, None));
    assert_eq!(s.waiting, [0, 1, 4, 5, 7]);
    s.clear();
    assert!(s.is_idle() && s.sequences.is_empty() && s.groups.is_empty() && s.waiting.is_empty());
}

#[test]
fn completions_end_at_their_limits() {
    let sampling =
        |max_new_tokens| Arc::new(SamplingParams { max_new_tokens, stop_ids: vec![9], ..SamplingParams::default() });
    for (most, until, model_len, tokens, reason) in [
        (3, None, 100, 3, FinishReason::Length),
        (50, None, 8, 3, FinishReason::Length),
        (50, Some(2), 100, 2, FinishReason::Unfinished),
        (2, Some(2), 100, 2, FinishReason::Length),
        (50, Some(7), 8, 3, FinishReason::Length),
    ] {
        let mut s = scheduler(20, &[], 1, false);
        s.limits.max_model_len = model_len;
        s.submit(Arc::new(Request { sampling: sampling(most), until, ..request(5, 1) }), false);
        let mut steps = 0;
        while !s.is_idle() {
            step(&mut s);
            steps += 1;
            let last = s.drawn.last().unwrap();
            assert_eq!((last.index + 1, last.finish_reason.is_some()), (steps, steps == tokens));
        }
        let ended = s.take_finished();
        let completion = &ended[0].1.completions[0];
        assert_eq!((completion.ids.len(), completion.finish_reason), (tokens, reason), "{most} {until:?} {model_len}");
        assert_eq!((s.blocks.available(), s.take_finished().len()), (20, 0));
    }
    // A stop id ends it, or pauses it; the token is part of it.
    for pause_on_stop in [false, true] {
        let mut s = scheduler(20, &[], 1, false);
        s.submit(Arc::new(Request { sampling: sampling(50), pause_on_stop, ..request(5, 1) }), false);
        let (mut chunks, mut copies) = (Vec::new(), Vec::new());
        s.schedule(&mut chunks, &mut copies);
        s.mark_computed(&chunks);
        sampled(&mut s, &[Draw { row: 4, sequence: 0, at: 5 }], 9);
        let drawn = s.drawn[0];
        assert_eq!((drawn.id, drawn.group, drawn.generation, drawn.index), (9, 0, 0, 0));
        assert_eq!(
            (drawn.finish_reason, s.paused().len()),
            if pause_on_stop { (None, 1) } else { (Some(FinishReason::Stop), 0) }
        );
        // Draws after the end, or of another place, are dropped.
        sampled(&mut s, &[Draw { row: 4, sequence: 0, at: 6 }], 5);
        assert_eq!((s.sequences[0].completion(), s.drawn.len()), (&[9][..], 1));
        if pause_on_stop {
            s.finish_paused(0);
        }
        assert_eq!(s.take_finished()[0].1.completions[0].finish_reason, FinishReason::Stop);
    }
}

#[test]
fn guesses_have_room_and_only_the_right_ones_stay() {
    let mut s = scheduler(20, &[5], 1, false);
    let most = Arc::new(SamplingParams { max_new_tokens: 6, ..SamplingParams::default() });
    let with = |s: &mut Scheduler, until| {
        let request = s.groups[0].request.as_ref().clone();
        s.groups[0].request = Arc::new(Request { sampling: most.clone(), until, ..request });
    };
    with(&mut s, None);
    s.draft(0, &[1, 2]);
    assert_eq!(s.sequences[0].drafted, 0, "it has no token yet");
    step(&mut s);
    for (until, model_len, room) in [(None, 4096, 4), (Some(4), 4096, 2), (None, 9, 2), (Some(2), 4096, 0)] {
        with(&mut s, until);
        s.limits.max_model_len = model_len;
        s.draft(0, &[1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(s.sequences[0].drafted, room, "{until:?} {model_len}: the last token is drawn");
        s.draft(0, &[1]);
        assert_eq!(s.sequences[0].drafted, room.min(1), "others take their place");
    }
    with(&mut s, None);
    s.limits.max_model_len = 4096;
    s.draft(0, &[1, 0, 3]);
    let (mut chunks, mut copies) = (Vec::new(), Vec::new());
    s.schedule(&mut chunks, &mut copies);
    assert_eq!(chunks, [Chunk { sequence: 0, from: 5, to: 9 }]);
    let draws: Vec<Draw> = (0..4).map(|i| Draw { row: i, sequence: 0, at: 6 + i as usize }).collect();
    assert_eq!((s.count_drafts(&draws), s.counters.drafted_tokens, s.counters.draft_passes), (3, 3, 1));
    s.mark_computed(&chunks);
    let (ids, logps) = (vec![1, 5, 6, 7], vec![-1.0; 4]);
    let all = Sampled { ids: &ids, logps: &logps, alternatives: &[], entropies: &[] };
    s.postprocess(&draws, all, &StopCheck::default());
    assert_eq!(s.sequences[0].completion(), [0, 1, 5], "after the wrong guess nothing counts");
    assert_eq!((s.counters.accepted_tokens, s.sequences[0].computed, s.drawn.len()), (1, 7, 3));
}

#[test]
fn records_of_draws_come_to_their_tokens() {
    let mut s = scheduler(20, &[5, 5], 1, false);
    let (mut chunks, mut copies) = (Vec::new(), Vec::new());
    s.schedule(&mut chunks, &mut copies);
    s.mark_computed(&chunks);
    let draws = [Draw { row: 4, sequence: 0, at: 5 }, Draw { row: 9, sequence: 1, at: 5 }];
    let alternatives = [(vec![3, 4], vec![-0.1, -0.2]), (vec![], vec![])];
    let all =
        Sampled { ids: &[3, 8], logps: &[-0.5, -0.75], alternatives: &alternatives, entropies: &[None, Some(1.5)] };
    s.postprocess(&draws, all, &StopCheck::default());
    let of = |id: usize| (&s.sequences[id].top.ids[..], &s.sequences[id].entropies[..], s.sequences[id].logps[0]);
    assert_eq!((of(0), of(1)), ((&[3, 4][..], &[][..], -0.5), (&[][..], &[1.5][..], -0.75)));
    // An entropy is at its token's place, whatever was inserted between.
    s.pause(1);
    s.extend(1, &[6, 6]);
    s.schedule(&mut chunks, &mut copies);
    s.mark_computed(&chunks);
    let all = Sampled { ids: &[2], logps: &[-1.0], alternatives: &[], entropies: &[Some(2.5)] };
    s.postprocess(&[Draw { row: 3, sequence: 1, at: 8 }], all, &StopCheck::default());
    assert_eq!(s.sequences[1].entropies, [1.5, 0.0, 0.0, 2.5]);
}

#[test]
fn other_weights_compute_a_completion_again() {
    let mut s = scheduler(20, &[70, 70], 1, false);
    step(&mut s);
    let other = ModelVersion { base: 0, adapter: Some(crate::AdapterVersion { id: 1, version: 2 }) };
    s.set_model(0, other);
    assert_eq!((s.sequences[0].state, s.sequences[0].computed, &s.running[..]), (State::Waiting, 0, &[1][..]));
    assert_eq!((s.model_of(0), s.model_of(1)), (Some(other), s.current));
    assert_eq!(step(&mut s), [(1, 70, 71), (0, 0, 71)]);
    assert_eq!(s.sequences[0].versions, [0, 2], "the adapter's version");
    s.set_model(0, other);
    assert_eq!((s.sequences[0].state, s.sequences[0].computed), (State::Running, 71), "they are the same");
    s.pause(0);
    s.set_model(0, ModelVersion { base: 1, adapter: None });
    assert_eq!((s.sequences[0].state, s.sequences[0].blocks.len()), (State::Paused, 0));
    // New current weights make stale what names none.
    s.invalidate();
    assert_eq!((s.sequences[1].state, s.waiting.front()), (State::Waiting, Some(&1)));
}

#[test]
fn cached_pages_are_found_by_later_requests() {
    let mut s = scheduler(20, &[], 1, false);
    s.blocks = BlockPool::new(20, true);
    for len in [200, 130, 128, 64, 65] {
        s.submit(Arc::new(request(len, 1)), false);
        let rows = step(&mut s);
        // Full pages of the same tokens; the last token is always computed.
        let cached = if len == 200 { 0 } else { (len - 1) / 64 * 64 };
        assert_eq!((rows[0].1, rows[0].2), (cached, len), "{len}");
        let index = rows[0].0;
        s.finish(index, FinishReason::Stop);
        s.take_finished();
    }
    assert_eq!((s.counters.cached_tokens, s.counters.computed_tokens), (128 + 64 + 64, 200 + 2 + 64 + 64 + 1));
    assert_eq!((s.blocks.available(), s.blocks.prefix.unheld()), (20, 3));
    // A request that wants the log-probabilities of its prompt computes all of it.
    let sampling = Arc::new(SamplingParams { prompt_logprobs: true, ..SamplingParams::default() });
    s.submit(Arc::new(Request { sampling, ..request(130, 1) }), false);
    assert_eq!(step(&mut s)[0].1, 0);
    assert!(s.blocks.prefix.find(ROOT, s.current.unwrap(), &[1; BLOCK]).is_some());
}

#[test]
fn counters_are_counted_and_subtracted_each_by_each() {
    let time = |n: u64| Duration::from_millis(n);
    let of = |n: u64| Counters {
        computed_tokens: n,
        cached_tokens: 2 * n,
        preemptions: 3 * n,
        prefill_steps: 4 * n,
        prefill_time: time(5 * n),
        decode_steps: 6 * n,
        decode_time: time(7 * n),
        decode_passes: 8 * n,
        decoded_tokens: 9 * n,
        sampling_time: time(10 * n),
        drafted_tokens: 11 * n,
        accepted_tokens: 12 * n,
        draft_passes: 13 * n,
        draft_time: time(14 * n),
        undrafted_time: time(15 * n),
    };
    assert_eq!(of(10) - of(3), of(7));
    let mut counters = Counters::default();
    for (is_prefill, ms) in [(true, 3), (false, 5), (false, 7)] {
        counters.ran(is_prefill, time(ms));
    }
    let expected = Counters {
        prefill_steps: 1,
        prefill_time: time(3),
        decode_steps: 2,
        decode_time: time(12),
        ..Counters::default()
    };
    assert_eq!(counters, expected);
}
