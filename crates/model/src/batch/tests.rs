//! Compares the layout of packed batches with a layout computed token by token.

mod tensors;

use super::*;
use std::collections::{BTreeMap, BTreeSet};

fn ids(first: u32, len: usize) -> Vec<u32> {
    (first..first + len as u32).collect()
}

/// Checks that every sequence (prefix + branch) sees exactly its own tokens at their positions through its table, that
/// pages are shared only where the prefix fills them, and that each score points at the row before its token, in the
/// same sequence.
fn check(groups: &[(Vec<u32>, Vec<Vec<u32>>)], sharing: bool) -> Batch {
    let branches: Vec<Vec<&[u32]>> = groups.iter().map(|(_, b)| b.iter().map(|b| b.as_slice()).collect()).collect();
    let segments: Vec<_> =
        groups.iter().zip(&branches).map(|((p, _), b)| GroupSegment { prefix: p, branches: b }).collect();
    let batch = Batch::new(&segments, sharing);

    let expected =
        groups.iter().map(|(p, b)| Capacity::for_group(p.len(), &b.iter().map(Vec::len).collect::<Vec<_>>(), sharing));
    assert_eq!(batch.capacity(), expected.fold(Capacity::default(), |a, b| a + b));
    assert!(batch.write_rows.is_sorted());

    // Maps each slot to the row written to it. Each slot is written once.
    let mut slots = BTreeMap::new();
    for (&row, &slot) in batch.write_rows.iter().zip(&batch.write_slots) {
        assert!((slot as usize) < batch.blocks * BLOCK);
        assert!(slots.insert(slot, row).is_none(), "slot {slot} written twice");
    }
    let table = |row: usize| {
        let t = batch.tables_of_rows[row] as usize * batch.table_len;
        &batch.tables[t..t + batch.table_len]
    };
    // The tokens to which a row attends, itself included.
    let seen = |row: usize| -> Vec<u32> {
        let slot = |p: usize| table(row)[p / BLOCK] * BLOCK as u32 + (p % BLOCK) as u32;
        let rows = (0..=batch.positions[row] as usize).map(|p| slots[&slot(p)] as usize);
        rows.map(|r| batch.ids[r]).collect()
    };
    let mut branch_index = 0;
    for (prefix, branches) in groups {
        for branch in branches {
            let scores = batch.scores_of_branches[branch_index].clone();
            branch_index += 1;
            let unscored = usize::from(prefix.is_empty()).min(branch.len());
            assert_eq!(batch.targets[scores.clone()], branch[unscored..]);
            for (i, score) in scores.enumerate() {
                let before: Vec<u32> = prefix.iter().chain(&branch[..i + unscored]).copied().collect();
                assert_eq!(seen(batch.score_rows[score] as usize), before);
            }
        }
    }
    assert_eq!(branch_index, batch.scores_of_branches.len());

    // Groups share no page, and begin at position 0.
    let mut pages = BTreeSet::new();
    for group in batch.groups.windows(2) {
        let rows = group[0] as usize..group[1] as usize;
        assert!(rows.is_empty() || batch.positions[rows.start] == 0);
        let group_pages: BTreeSet<u32> =
            rows.flat_map(|r| table(r)[..=batch.positions[r] as usize / BLOCK].to_vec()).collect();
        assert!(pages.is_disjoint(&group_pages));
        pages.extend(group_pages);
    }
    assert_eq!(pages.len(), batch.blocks, "every page must be used");

    // A branch's rows belong to the branch; a prompt's rows, in every copy, belong to the first branch of its group.
    let mut expected = Vec::new();
    let mut first = 0;
    for (prefix, branches) in groups {
        let copies = if sharing { 1 } else { branches.len().max(1) };
        let rows = |b: usize| vec![first + b as u32; branches[b].len().saturating_sub(1)];
        for copy in 0..copies {
            expected.extend(vec![first; prefix.len()]);
            match sharing {
                true => expected.extend((0..branches.len()).flat_map(rows)),
                false if copy < branches.len() => expected.extend(rows(copy)),
                false => {}
            }
        }
        first += branches.len() as u32;
    }
    assert_eq!(batch.branches_of_rows, expected);
    batch
}

#[test]
fn every_row_attends_to_its_own_sequence_only() {
    for prompt in [64 * 2 + 13, 64, 63, 0, 1] {
        for sharing in [true, false] {
            let lengths = [1, 64, 100, 0, 2];
            let branches: Vec<_> = lengths.iter().enumerate().map(|(i, &n)| ids(1000 * (i as u32 + 1), n)).collect();
            let one = (ids(0, prompt), branches.clone());
            // The first branch continues the prefix's block table. Both orders are tested, so that the first branch is
            // short in one group and long in the other.
            let other = (ids(500, prompt), branches.iter().rev().cloned().collect());
            check(&[one, other, (ids(7, 5), vec![])], sharing);
        }
    }
}

#[test]
fn a_shared_prompt_has_rows_once() {
    let group = (ids(0, 64 + 13), vec![ids(1000, 100), ids(2000, 100), ids(3000, 100)]);
    let shared = check(std::slice::from_ref(&group), true);
    assert_eq!(shared.ids.len(), 77 + 3 * 99);
    assert_eq!(shared.groups, [0, 374]);
    // One full page of the prompt is shared. Each branch needs a copy of the prompt's partial page and one more page
    // (77 + 99 = 176 positions).
    assert_eq!(shared.blocks, 1 + 3 * 2);
    assert_eq!(shared.write_rows.len(), 64 + 3 * 13 + 3 * 99);
    let apart = check(&[group], false);
    assert_eq!(apart.ids.len(), 3 * (77 + 99));
    assert_eq!(apart.groups, [0, 176, 352, 528]);
}

#[test]
fn a_batch_without_tokens_is_valid() {
    let batch = check(&[], true);
    assert_eq!((batch.ids.len(), batch.groups.as_slice()), (0, [0].as_slice()));
    check(&[(vec![], vec![])], true);
}
