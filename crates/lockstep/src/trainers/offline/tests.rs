//! Rows as sequences, and the sizes of the values computed from them.

use super::*;
use model::{Prompt, PromptCompletion};
use train::{PreferencePair, Sample};

fn pair(prompt: &[u32], chosen: &[u32], rejected: &[u32]) -> PreferencePair {
    PreferencePair {
        prompt: Prompt::new(prompt.to_vec()),
        chosen: chosen.to_vec().into(),
        rejected: rejected.to_vec().into(),
        margin: 0.0,
    }
}

fn pairs() -> Vec<PreferencePair> {
    vec![pair(&[1, 2], &[3], &[4, 5, 6]), pair(&[7], &[8, 9], &[10])]
}

fn sample(prompt: &[u32], completion: &[u32], mask: &[bool]) -> Sample {
    Sample { loss_mask: mask.to_vec(), ..Sample::supervised(Prompt::new(prompt.to_vec()), completion.to_vec()) }
}

fn shown(sequences: &[PromptCompletion<'_>]) -> Vec<(Vec<u32>, Vec<u32>)> {
    sequences.iter().map(|s| (s.prompt.to_vec(), s.completion.to_vec())).collect()
}

#[test]
fn the_chosen_response_of_each_pair_comes_before_the_rejected_one() {
    let pairs = pairs();
    let expected = [(vec![1, 2], vec![3]), (vec![1, 2], vec![4, 5, 6]), (vec![7], vec![8, 9]), (vec![7], vec![10])];
    assert_eq!(shown(&PreferencePair::sequences(&pairs)), expected);
    let learned =
        [vec![false, false, true], vec![false, false, true, true, true], vec![false, true, true], vec![false, true]];
    assert_eq!(PreferencePair::learned(&pairs), learned);
    // The caller's metrics receive first all chosen responses, then all rejected ones.
    let reordered = first_of_each(PreferencePair::sequences(&pairs), 2);
    assert_eq!(shown(&reordered), [0, 2, 1, 3].map(|at: usize| expected[at].clone()));
    assert_eq!(
        (first_of_each(vec![1, 2, 3], 1), first_of_each(vec![1, 2, 3, 4, 5, 6], 3)),
        (vec![1, 2, 3], vec![1, 4, 2, 5, 3, 6])
    );

    let samples = [sample(&[1, 2], &[3, 4], &[false, true]), sample(&[5], &[6], &[true])];
    assert_eq!(shown(&Sample::sequences(&samples)), [(vec![1, 2], vec![3, 4]), (vec![5], vec![6])]);
    assert_eq!(Sample::learned(&samples), [vec![false, false, false, true], vec![false, true]]);
    assert_eq!((Sample::samples(&samples).len(), PreferencePair::samples(&pairs[..1]).len()), (2, 1));
}

#[test]
fn a_resumed_run_reports_changed_tokens_of_its_rows() {
    let rows = [sample(&[1, 2], &[3, 4], &[false, true]), sample(&[5], &[6], &[true])];
    let state = RowsState::of(&rows);
    let written = || serde_json::to_value(&state).unwrap();
    assert_eq!(state.differs_from(written(), "d").unwrap(), None);
    let others = [
        vec![sample(&[1, 2], &[3, 4], &[true, true]), rows[1].clone()],
        vec![sample(&[1, 2], &[3, 7], &[false, true]), rows[1].clone()],
        vec![rows[1].clone(), rows[0].clone()],
        rows[..1].to_vec(),
        vec![sample(&[1], &[2, 3, 4, 5, 6], &[false, false, true, false, true])],
    ];
    for other in others {
        let words = RowsState::of(&other).differs_from(written(), "d").unwrap().expect("it differs");
        assert!(words.starts_with("d: the tokens of the rows have changed since the run began"), "{words}");
    }
    // The hash does not depend on the end of the prompt.
    assert_eq!(RowsState::of(&[sample(&[1], &[2, 3, 4], &[false, false, true]), rows[1].clone()]), state);
    let older = state.differs_from(Value::Null, "d").unwrap().expect("nothing is recorded");
    assert!(older.starts_with("d: the checkpoint does not record the tokens of the rows."), "{older}");
    assert!(state.differs_from(serde_json::json!({"other": 1}), "d").is_err());
    assert_ne!(RowsState::of(&pairs()), RowsState::of(&pairs()[..1]));
}
