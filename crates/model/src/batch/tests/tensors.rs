//! Batches and steps on the device: the lists that operations read and their sizes.

use super::*;
use kernels::rng::philox;
use kernels::{DType, Device};

fn cpu() -> Memory {
    Memory::new(Device::Cpu)
}

fn capacity(tokens: usize, blocks: usize, score_rows: usize) -> Capacity {
    Capacity { tokens, blocks, score_rows }
}

#[test]
fn the_capacity_of_a_group_counts_its_rows_and_pages() {
    for (prefix, branches, shared, apart) in [
        (10, &[][..], (10, 1, 0), (10, 1, 0)),
        (0, &[], (0, 0, 0), (0, 0, 0)),
        (10, &[1], (10, 1, 1), (10, 1, 1)),
        (64, &[1], (64, 1, 1), (64, 1, 1)),
        (64, &[2], (65, 2, 2), (65, 2, 2)),
        (0, &[3, 4], (5, 2, 5), (5, 2, 5)),
        // The first branch has 70 + 4 positions. The second branch has a copy of the prefix's last 6 positions, and 4
        // of its own.
        (70, &[5, 5], (78, 3, 10), (148, 4, 10)),
        (64, &[5, 1, 0, 65], (132, 3, 71), (324, 6, 71)),
        (130, &[0, 64], (193, 5, 64), (323, 7, 64)),
    ] {
        let of = |sharing| {
            let c = Capacity::for_group(prefix, branches, sharing);
            (c.tokens, c.blocks, c.score_rows)
        };
        assert_eq!((of(true), of(false)), (shared, apart), "{prefix} {branches:?}");
    }
}

#[test]
fn micro_batch_capacity_is_bounded_by_the_token_budget() {
    let one = capacity(100, 4, 30);
    for (groups, completions, most, expected) in [
        // All groups fit into the budget.
        (2, 6, 1000, (200, 8, 60)),
        // The budget limits this batch: 150 tokens, 3 pages, and 2 more for each completion.
        (3, 2, 150, (150, 7, 90)),
        (9, 4, 150, (150, 11, 154)),
        // One group is larger than the budget.
        (9, 1, 50, (100, 4, 101)),
        (1, 1, 50, (100, 4, 30)),
    ] {
        let c = Capacity::for_micro_batch(one, groups, completions, most);
        assert_eq!((c.tokens, c.blocks, c.score_rows), expected, "{groups} {completions} {most}");
    }
    let large = Capacity::for_micro_batch(capacity(100, 40, 900), 9, 1, 50);
    assert_eq!(large, capacity(100, 40, 900));
}

fn step<'a>(ids: &'a [u32], tables: &'a [u32], sampled: &'a [u32], draws: &'a [u32]) -> StepRows<'a> {
    StepRows { ids, positions: ids, tables_of_rows: tables, write_rows: ids, write_slots: ids, sampled, draws }
}

#[test]
fn a_step_uses_the_rows_that_were_set_last() {
    let memory = cpu();
    let mut rows = InferRows::with_room(&memory, [5, 6, 3], 3, 2);
    assert_eq!((rows.rows(), rows.max_sampled()), (0, 3));
    rows.set_table(0, &[10, 11]);
    rows.set_table(1, &[12]);
    rows.set_table(2, &[13, 14]);
    rows.set(step(&[1, 2, 3], &[0, 0, 1], &[2, 0], &[]));
    let tables = |rows: &InferRows| {
        let tables = rows.views().attention().tables;
        (tables.shape().to_vec(), tables.to_vec_u32())
    };
    assert_eq!(tables(&rows), (vec![2, 2], vec![10, 11, 12, 0]), "tables up to the last one that a row uses");
    assert_eq!((rows.rows(), rows.sampled().to_vec_u32()), (3, vec![2, 0]));
    assert_eq!(rows.sequences().collect::<Vec<_>>(), [(0..2, 0..1), (2..3, 1..2)]);
    // Entries of a table that are not set again keep their values.
    rows.set_table(1, &[15, 16]);
    rows.set_table(0, &[17]);
    rows.set(step(&[4, 5, 6, 7, 8], &[2, 1, 1, 1, 2], &[4], &[]));
    assert_eq!(tables(&rows), (vec![3, 2], vec![17, 11, 15, 16, 13, 14]));
    assert_eq!(rows.views().ids.to_vec_u32(), [4, 5, 6, 7, 8]);
    assert_eq!(rows.sequences().collect::<Vec<_>>(), [(0..1, 2..3), (1..4, 1..2), (4..5, 2..3)]);
    // `set_sampled` can replace the rows to sample from by more or fewer rows.
    for sampled in [&[0, 1, 2][..], &[3], &[]] {
        rows.set_sampled(sampled, &[]);
        assert_eq!((rows.sampled().to_vec_u32(), rows.draws().shape()), (sampled.to_vec(), &[0][..]));
    }
    assert_eq!((rows.views().ids.to_vec_u32(), tables(&rows).1[5]), (vec![4, 5, 6, 7, 8], 14));
    rows.set(StepRows::default());
    assert_eq!((rows.rows(), rows.sequences().count()), (0, 0));
    let panics = |f: &mut dyn FnMut()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err();
    assert!(
        panics(&mut || rows.set(step(&[1], &[0], &[0; 4], &[]))),
        "the buffers have no room to sample from four rows"
    );
    assert!(panics(&mut || rows.set_sampled(&[0; 4], &[])));
    assert!(panics(&mut || rows.set_table(3, &[1])) && panics(&mut || rows.set_table(0, &[1, 2, 3])));
}

#[test]
fn dropout_keys_differ_by_layer_step_and_seed() {
    let memory = cpu();
    let branches: [&[u32]; 2] = [&[1, 2, 3], &[4, 5]];
    let batch = Batch::new(&[GroupSegment { prefix: &[9], branches: &branches }], true);
    let positions = Tensor::from_u32(&memory, &[4], &batch.positions);
    let key = |seed: u64, step: u64, place: u32| {
        let dropout = Dropout::new(&memory, 0.25, seed, step, &batch, &[30, 40]);
        let of = dropout.of(place, positions.view());
        assert_eq!((of.p, of.samples.to_vec_u32()), (0.25, vec![30, 30, 30, 40]));
        of.key
    };
    let all = [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4), (1, 2 + (1 << 32), 3), (1, 1 << 33, 3), (1, 0, 3)];
    let keys: BTreeSet<u64> = all.into_iter().map(|(seed, step, place)| key(seed, step, place)).collect();
    assert_eq!(keys.len(), all.len());
    let [high, low, ..] = philox(5, [7, 6, 8, 0x6472_6f70]);
    assert_eq!(
        key(5, (6 << 32) + 7, 8),
        u64::from(high) * (1 << 32) + u64::from(low),
        "changed keys would change the results of earlier runs"
    );
    assert_eq!(batch.branches_of_rows, [0, 0, 0, 1]);
    assert_eq!(positions.dtype(), DType::U32);
}
