//! Tests of the completions that a request may continue, and of their required columns.

use super::*;

fn sampling(top_logprobs: usize, entropies: bool) -> SamplingParams {
    SamplingParams { max_new_tokens: 6, top_logprobs, entropies, ..SamplingParams::default() }
}

/// A completion with all columns that these parameters record.
fn completion(generation: usize, tokens: usize, finish_reason: FinishReason, sampling: &SamplingParams) -> Completion {
    let mut columns = Columns::of([(SAMPLER_LOGPS, vec![-1.0; tokens])]);
    let k = sampling.top_logprobs;
    if k > 0 && tokens > 0 {
        columns.insert(TOP_IDS, Column { width: k, values: Values::U32(vec![1; k * tokens]) });
        columns.insert(TOP_LOGPS, Column { width: k, values: Values::F32(vec![-1.0; k * tokens]) });
    }
    if sampling.entropies && tokens > 0 {
        columns.set(ENTROPIES, vec![0.5; tokens]);
    }
    let (ids, sampled, versions) = (vec![1; tokens], vec![true; tokens], vec![Updates(0); tokens]);
    Completion { generation, ids, sampled, versions, columns, finish_reason }
}

#[test]
fn a_completion_is_whole_if_every_column_has_its_length() {
    for (k, entropies) in [(0, false), (2, false), (0, true), (2, true)] {
        let wanted = sampling(k, entropies);
        let good = || completion(0, 3, FinishReason::Unfinished, &wanted);
        let whole = |change: &dyn Fn(&mut Completion)| {
            let mut completion = good();
            change(&mut completion);
            completion.is_whole(&wanted)
        };
        assert!(whole(&|_| {}) && completion(0, 0, FinishReason::Stop, &wanted).is_whole(&wanted));
        assert!(
            !whole(&|c| c.sampled.truncate(2)) && !whole(&|c| c.versions.truncate(2)) && !whole(&|c| c.ids.push(1))
        );
        assert!(!whole(&|c| drop(c.columns.remove(SAMPLER_LOGPS))));
        assert!(!whole(&|c| c.columns.set(SAMPLER_LOGPS, vec![-1.0; 2])));
        assert_eq!(whole(&|c| drop(c.columns.remove(ENTROPIES))), !entropies);
        assert_eq!(
            whole(&|c| c.columns.set(ENTROPIES, vec![0.5; 3])),
            entropies,
            "entropies must exist only if requested"
        );
        assert!(!whole(&|c| c.columns.set(ENTROPIES, vec![0.5; 4])));
        for name in [TOP_IDS, TOP_LOGPS] {
            assert_eq!(
                whole(&|c| drop(c.columns.remove(name))),
                k == 0,
                "ids and log-probabilities must exist together"
            );
        }
        let both = |width: usize, ids: usize, logps: usize| {
            whole(&|c| {
                c.columns.insert(TOP_IDS, Column { width, values: Values::U32(vec![1; ids]) });
                c.columns.insert(TOP_LOGPS, Column { width, values: Values::F32(vec![1.0; logps]) });
            })
        };
        assert_eq!(
            (both(2, 6, 6), both(1, 3, 3)),
            (k == 2, k == 2),
            "as many as requested, or fewer with a small vocabulary"
        );
        assert!(!both(3, 9, 9) && !both(2, 5, 6) && !both(2, 6, 7) && !both(2, 3, 3));
        let other = whole(&|c| {
            c.columns.insert(TOP_IDS, Column { width: 2, values: Values::U32(vec![1; 6]) });
            c.columns.insert(TOP_LOGPS, Column { width: 1, values: Values::F32(vec![1.0; 3]) });
        });
        let swapped = whole(&|c| c.columns.insert(TOP_IDS, Column { width: 2, values: Values::F32(vec![1.0; 6]) }));
        assert!(!other && !swapped);
    }
    let named = [FinishReason::Stop, FinishReason::Length, FinishReason::Unfinished].map(FinishReason::name);
    assert_eq!(named, ["stop", "length", "unfinished"]);
}

#[test]
fn completions_that_cannot_be_continued_are_refused() {
    let wanted = Arc::new(sampling(0, false));
    let check = |so_far: Vec<Completion>, until: Option<usize>, max_model_len: usize| {
        let request = Request::new(GroupId(9), Prompt::new([1, 2, 3]), 3, wanted.clone());
        let checked = Request { so_far, until, ..request }.check_so_far(max_model_len);
        checked.map_err(|e| e.to_string().replace("the completions of request 9 cannot be continued: ", ""))
    };
    let (stop, open) = (FinishReason::Stop, FinishReason::Unfinished);
    let of = |lengths: [(usize, FinishReason); 3]| -> Vec<Completion> {
        lengths.iter().enumerate().map(|(i, &(tokens, reason))| completion(i, tokens, reason, &wanted)).collect()
    };
    let good = || of([(2, stop), (5, open), (1, open)]);
    assert_eq!((check(vec![], None, 100), check(good(), None, 100)), (Ok(()), Ok(())));
    let told = |so_far, until, most| check(so_far, until, most).unwrap_err();
    assert_eq!(told(good()[..2].to_vec(), None, 100), "expected 3 completions, got 2");
    assert_eq!(told([good(), good()].concat(), None, 100), "expected 3 completions, got 6");
    let mut swapped = good();
    swapped.swap(0, 2);
    assert_eq!(told(swapped, None, 100), "their indices are not in order");
    assert_eq!(
        told(of([(2, stop), (5, stop), (1, FinishReason::Length)]), None, 100),
        "all of them have already finished"
    );
    let mut lacking = good();
    lacking[1].sampled.pop();
    assert_eq!(told(lacking, None, 100), "completion 1 has incomplete columns");
    assert_eq!(told(of([(2, stop), (0, open), (1, open)]), None, 100), "completion 1 has no tokens but is unfinished");
    assert_eq!(check(of([(0, stop), (5, open), (1, open)]), None, 100), Ok(()));
    let full = "completion 1 has reached its maximum length but is unfinished";
    assert_eq!(told(of([(9, stop), (6, open), (1, open)]), None, 100), full, "max_new_tokens");
    assert_eq!((check(good(), Some(6), 100), told(good(), Some(5), 100)), (Ok(()), full.to_owned()));
    assert_eq!((check(good(), None, 9), told(good(), None, 8)), (Ok(()), full.to_owned()), "the prompt has 3 tokens");
    assert_eq!(
        check(of([(9, stop), (5, open), (1, open)]), Some(7), 100),
        Ok(()),
        "a finished completion may exceed `until`"
    );
}
