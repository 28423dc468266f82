//! Groups that cannot be written to a record.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Two completions, of two tokens and of one. All other fields are empty.
fn bare() -> Group {
    let completions = vec![Completion::new(0, vec![9, 8]), Completion::new(1, vec![7])];
    Group { group: GroupId(4), prompt_ids: vec![1, 2, 3], completions, ..Group::default() }
}

fn changed(change: impl FnOnce(&mut Group)) -> Group {
    let mut group = bare();
    change(&mut group);
    group
}

/// The text of one completion, with its data.
fn first(change: impl FnOnce(&mut Completion)) -> Group {
    changed(|group| change(&mut group.completions[0]))
}

fn column(width: usize, values: usize) -> Column {
    Column { width, values: Values::F32(vec![0.5; values]) }
}

/// Lists of wrong length are a bug of the caller, and are not written.
#[test]
fn a_list_of_wrong_length_is_not_written() {
    let tokens = |x: &str| format!("`{x}` must have one kind and one width in all completions");
    let cases: [(Group, String); 11] = [
        (changed(|g| g.reward_names = vec!["r".into()]), "rewards must have one entry per reward function".into()),
        (first(|c| c.sampled.truncate(1)), "masks must have one element per token".into()),
        (first(|c| c.loss_mask.push(true)), "masks must have one element per token".into()),
        (changed(|g| g.completions[1].loss_mask.clear()), "masks must have one element per token".into()),
        (first(|c| c.versions = vec![Updates(1)]), "versions must have one element per token".into()),
        (
            changed(|g| {
                g.completions[0].versions = vec![Updates(1); 2];
                g.completions[1].versions = vec![Updates(1); 2];
            }),
            "versions must have one element per token".into(),
        ),
        (first(|c| c.columns.insert("x", column(2, 2))), "`token.x` must have values for each token".into()),
        (first(|c| c.columns.insert("x", column(1, 3))), "`token.x` must have values for each token".into()),
        (
            first(|c| c.advantage = Some(Advantage::Tokens(vec![0.5]))),
            "advantages must have one element per token".into(),
        ),
        (
            changed(|g| {
                g.completions[0].columns.insert("x", column(1, 2));
                g.completions[1].columns.insert("x", column(2, 2));
            }),
            tokens("token.x"),
        ),
        (
            changed(|g| {
                g.completions.push(Completion::new(2, vec![5]));
                g.completions[0].columns.insert("x", column(1, 2));
                g.completions[1].columns.insert("x", column(1, 1));
                g.completions[2].columns.insert("x", Column { width: 1, values: Values::U32(vec![4]) });
            }),
            tokens("token.x"),
        ),
    ];
    for (group, words) in cases {
        let panic = catch_unwind(AssertUnwindSafe(|| bytes(&group))).expect_err(&words);
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let message = text.or_else(|| panic.downcast_ref::<&str>().copied()).expect("a text");
        assert!(message.contains(&words), "{message}, not {words}");
    }
}
