//! Implements, one number at a time, a rule for future bf16 kernels on GPUs (docs/decisions/0005-key-splits.md): keys
//! are cut into splits of fixed length, and the splits are merged in order. No kernel implements the rule yet.

use super::formula::{Arithmetic, F32, State, emulated, seen};
use super::*;
use crate::device::cuda::tensor_core::{AMPERE, Factor, HOPPER};
use crate::math::{exp1, ln1};
use crate::ops::linear::reference::rounded;
use crate::simd::portable::F32x16 as Portable;

/// Splits are short in this test, so that even short rows have several.
const SPLIT: usize = 2 * BLOCK;

const ON_HOPPER: Arithmetic =
    Arithmetic { sum: |c, terms| HOPPER.chain(Factor::Bf16, c, terms), round: rounded, step: 16 };
const ON_AMPERE: Arithmetic =
    Arithmetic { sum: |c, terms| AMPERE.chain(Factor::Bf16, c, terms), round: rounded, step: 16 };

/// The result of a split, with its lanes summed.
#[derive(Clone)]
struct Partial {
    m: f32,
    l: f32,
    o: Vec<f32>,
}

impl Partial {
    fn of(state: &State) -> Partial {
        Partial { m: state.m, l: state.sum(), o: state.o.clone() }
    }

    /// Merges the next split. One of the factors is exactly 1.
    fn merge(mut self, next: &Partial) -> Partial {
        let m = if next.m > self.m { next.m } else { self.m };
        let (alpha, beta) = (exp1::<Portable>(self.m - m), exp1::<Portable>(next.m - m));
        self.m = m;
        self.l = next.l.mul_add(beta, self.l * alpha);
        self.o.iter_mut().zip(&next.o).for_each(|(o, next)| *o = next.mul_add(beta, *o * alpha));
        self
    }

    /// The attention output and log-sum-exp.
    fn finish(&self) -> (Vec<f32>, f32) {
        (self.o.iter().map(|o| o / self.l).collect(), self.m + ln1::<Portable>(self.l))
    }
}

/// One row of one head.
struct Row<'a> {
    g: &'a Geometry,
    qkv: &'a [f32],
    keys: &'a [usize],
    head: usize,
    a: Arithmetic,
}

impl Row<'_> {
    /// The results, with indices, of all splits of `length` keys in which the row attends to any key.
    fn partials(&self, length: usize) -> Vec<(usize, Partial)> {
        let Row { g, qkv, keys, head, a } = *self;
        let (row, mut states) = (*keys.last().unwrap(), Vec::<(usize, State)>::new());
        for (block, slots) in seen(g, keys) {
            let split = block * BLOCK / length;
            if states.last().is_none_or(|(last, _)| *last != split) {
                states.push((split, State::new(g)));
            }
            states.last_mut().expect("one").1.take(g, qkv, row, head, &slots, a);
        }
        states.iter().map(|(split, state)| (*split, Partial::of(state))).collect()
    }

    /// Decoding: splits finish in any order, but are merged in ascending order.
    fn in_parallel(&self, length: usize, seed: u64) -> (Vec<f32>, f32) {
        let mut partials = self.partials(length);
        Stream::new(seed, 3).shuffle(&mut partials);
        partials.sort_by_key(|(split, _)| *split);
        let mut partials = partials.into_iter().map(|(_, partial)| partial);
        let first = partials.next().expect("a row attends to itself");
        partials.fold(first, |sum, next| sum.merge(&next)).finish()
    }

    /// Training: block by block; at the end of each split, the split is merged into the running result.
    fn in_sequence(&self, length: usize) -> (Vec<f32>, f32) {
        let Row { g, qkv, keys, head, a } = *self;
        let row = *keys.last().unwrap();
        let (mut carried, mut state, mut current) = (None::<Partial>, State::new(g), None);
        let merge = |carried: Option<Partial>, state: &State| match carried {
            None => Partial::of(state),
            Some(sum) => sum.merge(&Partial::of(state)),
        };
        for (block, slots) in seen(g, keys) {
            let split = block * BLOCK / length;
            if current.is_some_and(|current| current != split) {
                carried = Some(merge(carried, &state));
                state = State::new(g);
            }
            current = Some(split);
            state.take(g, qkv, row, head, &slots, a);
        }
        merge(carried, &state).finish()
    }
}

/// Rows with several splits, with and without a window, with shared and separate prefixes. Only some rows are tested,
/// because the test is slow.
fn rows(a: Arithmetic, check: impl Fn(&Row<'_>)) {
    for (window, groups) in [(None, &[(150, &[120, 3][..])]), (Some(140), &[(300, &[40][..])])] {
        let (g, layout) = (geometry(2, 1, 16, window), layout(groups, 5));
        let qkv: Vec<f32> = normal(3, layout.positions.len() * g.width());
        let qkv: Vec<f32> = qkv.iter().map(|x| if a.step == 1 { 2.0 * x } else { rounded(2.0 * x) }).collect();
        for keys in layout.keys.iter().filter(|keys| keys.len() % 29 == 0 || keys.len() % SPLIT < 2) {
            (0..g.heads).for_each(|head| check(&Row { g: &g, qkv: &qkv, keys, head, a }));
        }
    }
}

fn bits((out, lse): &(Vec<f32>, f32)) -> Vec<u32> {
    out.iter().chain([lse]).map(|x| x.to_bits()).collect()
}

/// The bits do not depend on the thread that computes a split, on the order in which splits finish, or on other work.
#[test]
fn merging_splits_in_order_gives_bits_that_depend_only_on_the_row() {
    for a in [F32, ON_AMPERE, ON_HOPPER] {
        rows(a, |row| {
            let sequence = bits(&row.in_sequence(SPLIT));
            assert!((0..4).all(|seed| bits(&row.in_parallel(SPLIT, seed)) == sequence), "{} keys", row.keys.len());
        });
    }
}

/// A row that attends to only one split is computed as without splits.
#[test]
fn a_row_with_one_split_has_the_bits_of_the_unsplit_formula() {
    for a in [F32, ON_HOPPER] {
        rows(a, |row| {
            let Row { g, qkv, keys, head, a } = *row;
            let unsplit = bits(&emulated(g, qkv, keys, head, a));
            assert!(bits(&row.in_sequence(1024)) == unsplit);
            let one = keys.len() <= SPLIT;
            assert!(!one || bits(&row.in_sequence(SPLIT)) == unsplit);
        });
    }
}

/// Each violation of the rule changes bits: splits that depend on the row's length or on the number of workers, merging
/// in the order of completion, and no splits at all.
#[test]
fn another_split_rule_gives_other_bits() {
    let count = [(); 4].map(|()| std::cell::Cell::new(0));
    rows(ON_HOPPER, |row| {
        let Row { g, qkv, keys, head, a } = *row;
        let ours = bits(&row.in_sequence(SPLIT));
        let mut backwards = row.partials(SPLIT);
        backwards.reverse();
        let mut backwards = backwards.into_iter().map(|(_, partial)| partial);
        let last = backwards.next().expect("a row attends to itself");
        let others = [
            bits(&row.in_sequence(keys.len().div_ceil(2).next_multiple_of(BLOCK))),
            bits(&row.in_sequence(BLOCK)),
            bits(&emulated(g, qkv, keys, head, a)),
            bits(&backwards.fold(last, |sum, next| sum.merge(&next)).finish()),
        ];
        for (count, other) in count.iter().zip(others) {
            count.set(count.get() + usize::from(other != ours));
        }
    });
    assert!(count.iter().all(|count| count.get() > 3), "{count:?}");
}

/// The result of split attention is close to the oracle's.
#[test]
fn split_attention_is_close_to_the_oracle() {
    for (a, tolerance) in [(F32, 1e-5), (ON_HOPPER, 1e-2)] {
        rows(a, |row| {
            let Row { g, qkv, keys, head, .. } = *row;
            let wide: Vec<f64> = qkv.iter().map(|&x| x.into()).collect();
            let mut lists = vec![Vec::new(); keys.last().unwrap() + 1];
            *lists.last_mut().expect("one") = keys.to_vec();
            // The oracle needs a list of keys for each row. The other rows attend only to themselves.
            lists.iter_mut().enumerate().filter(|(_, list)| list.is_empty()).for_each(|(i, list)| list.push(i));
            let (out, lse) = reference::forward(g, &wide, &lists);
            let (got, got_lse) = row.in_sequence(SPLIT);
            let at = (lists.len() - 1) * g.heads + head;
            let expected = &out[at * g.head_dim..][..g.head_dim];
            assert!(relative_error(&got, expected) < tolerance, "{}", relative_error(&got, expected));
            assert!((f64::from(got_lse) - lse[at]).abs() < 1e-3);
        });
    }
}
