//! The order in which training draws prompts. As in TRL, each epoch has a seeded permutation of the rows, split into
//! chunks with the number of prompts of a generation batch. An incomplete last chunk is dropped or kept.
//!
//! Each prompt of a chunk gets its G completions in one group. The training loop, not the sampler, uses a chunk for
//! `num_iterations` × `steps_per_generation` before it draws the next.

use kernels::rng::Stream;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The position of a sampler. A resumed run needs only this, the dataset size, the chunk size and the seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerState {
    /// The epoch being drawn, from 0.
    pub epoch: u64,
    /// Prompts drawn in this epoch so far.
    pub cursor: usize,
    /// Prompts drawn so far outside chunks, as replacements. Checkpoints of older versions lack this field.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub extra: u64,
    /// Optimizer steps skipped by epochs that ended early. Checkpoints of older versions lack this field.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped_steps: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Draws indices of dataset rows in the order of training.
#[derive(Clone, Debug)]
pub struct Sampler {
    rows: usize,
    chunk: usize,
    /// The seed of the permutations; `None` keeps the files' order.
    shuffle_seed: Option<u64>,
    /// Whether an epoch's incomplete last chunk is kept.
    keeps_last: bool,
    state: SamplerState,
    /// This epoch's permutation of all rows; clones of the sampler share the list.
    order: Arc<[usize]>,
}

impl Sampler {
    /// A sampler that draws chunks of `chunk` row indices out of `rows`, in the files' order or, with a seed, in a new
    /// permutation each epoch. `None` unless 1 ≤ chunk ≤ rows.
    pub fn new(rows: usize, chunk: usize, shuffle_seed: Option<u64>) -> Option<Sampler> {
        if chunk == 0 || chunk > rows {
            return None;
        }
        let state = SamplerState::default();
        let order = permutation(rows, shuffle_seed, 0);
        Some(Sampler { rows, chunk, shuffle_seed, keeps_last: false, state, order })
    }

    /// Keeps the incomplete last chunk of an epoch. A chunk may then be larger than the data.
    pub fn keeping_last(rows: usize, chunk: usize, shuffle_seed: Option<u64>) -> Option<Sampler> {
        let sampler = Sampler::new(rows, chunk.min(rows), shuffle_seed)?;
        Some(Sampler { keeps_last: true, ..sampler })
    }

    /// Chunks in an epoch.
    pub fn chunks_per_epoch(&self) -> usize {
        if self.keeps_last { self.rows.div_ceil(self.chunk) } else { self.rows / self.chunk }
    }

    /// The row indices of the next chunk. An epoch's last chunk is followed by the next epoch's first.
    pub fn next_batch(&mut self) -> Vec<usize> {
        let left = self.rows - self.state.cursor.min(self.rows);
        self.take(if self.keeps_last && left > 0 { self.chunk.min(left) } else { self.chunk })
    }

    /// The next `count` row indices, drawn outside the chunks; `count` is at most the size of a chunk.
    pub fn take_extra(&mut self, count: usize) -> Vec<usize> {
        self.state.extra = self.state.extra.saturating_add(count as u64);
        self.take(count)
    }

    /// Ends the epoch: the next chunk is the first of the next epoch. `steps` is the number of steps that this skips.
    pub fn end_epoch(&mut self, steps: u64) {
        self.state.cursor = self.rows;
        self.state.skipped_steps = self.state.skipped_steps.saturating_add(steps);
    }

    /// The number of rows drawn outside chunks, in epochs.
    pub fn extra_epochs(&self) -> f64 {
        self.state.extra as f64 / (self.chunks_per_epoch() * self.chunk) as f64
    }

    /// The next `count` row indices, all of one epoch. If this epoch has fewer indices left, the epoch ends, and the
    /// first indices of the next epoch are returned.
    fn take(&mut self, count: usize) -> Vec<usize> {
        if self.state.cursor.saturating_add(count) > self.rows {
            let epoch = self.state.epoch.wrapping_add(1);
            self.restore(SamplerState { epoch, cursor: 0, ..self.state });
        }
        let from = self.state.cursor;
        self.state.cursor += count;
        self.order[from..self.state.cursor].to_vec()
    }

    /// The sampler's position, for a checkpoint.
    pub fn state(&self) -> SamplerState {
        self.state
    }

    /// Continues from `state`, taken from a sampler with the same rows, chunk and seed.
    pub fn restore(&mut self, state: SamplerState) {
        if state.epoch != self.state.epoch {
            self.order = permutation(self.rows, self.shuffle_seed, state.epoch);
        }
        self.state = state;
    }
}

/// The random stream for shuffling rows; each use of the seed has a stream of its own.
const SHUFFLE: u64 = 0x5348_5546_464c_4500;

fn permutation(rows: usize, seed: Option<u64>, epoch: u64) -> Arc<[usize]> {
    let mut order: Vec<usize> = (0..rows).collect();
    if let Some(seed) = seed {
        Stream::new(seed, SHUFFLE.wrapping_add(epoch)).shuffle(&mut order);
    }
    order.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn an_epoch_draws_each_row_at_most_once_and_drops_the_incomplete_chunk() {
        let mut sampler = Sampler::new(11, 4, Some(7)).unwrap();
        assert_eq!(sampler.chunks_per_epoch(), 2);
        let first: Vec<usize> = (0..2).flat_map(|_| sampler.next_batch()).collect();
        assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 8);
        assert!(first.iter().all(|&row| row < 11));
        assert_eq!(sampler.state(), SamplerState { cursor: 8, ..SamplerState::default() });
        let second: Vec<usize> = (0..2).flat_map(|_| sampler.next_batch()).collect();
        assert_eq!(sampler.state(), SamplerState { epoch: 1, cursor: 8, ..SamplerState::default() });
        assert_ne!(first, second, "each epoch has its own order");
    }

    #[test]
    fn the_seed_decides_the_order_and_no_seed_keeps_file_order() {
        let draw = |seed| Sampler::new(50, 50, seed).unwrap().next_batch();
        assert_eq!(draw(Some(1)), draw(Some(1)));
        assert_ne!(draw(Some(1)), draw(Some(2)));
        assert_eq!(draw(None), (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn a_restored_sampler_continues_exactly() {
        let mut straight = Sampler::new(10, 3, Some(5)).unwrap();
        for _ in 0..7 {
            straight.next_batch();
        }
        let state: SamplerState = serde_json::from_str(&serde_json::to_string(&straight.state()).unwrap()).unwrap();
        let mut resumed = Sampler::new(10, 3, Some(5)).unwrap();
        resumed.restore(state);
        for _ in 0..9 {
            assert_eq!(straight.next_batch(), resumed.next_batch());
        }
    }

    #[test]
    fn extra_rows_can_be_drawn_between_chunks() {
        let mut sampler = Sampler::new(10, 4, None).unwrap();
        assert_eq!((sampler.next_batch(), sampler.take_extra(3)), (vec![0, 1, 2, 3], vec![4, 5, 6]));
        assert_eq!(sampler.take_extra(0), Vec::<usize>::new());
        assert_eq!(sampler.take_extra(3), [7, 8, 9]);
        let state = SamplerState { epoch: 1, cursor: 2, extra: 8, skipped_steps: 0 };
        assert_eq!((sampler.take_extra(2), sampler.state()), (vec![0, 1], state));
        // An epoch has two chunks of four rows.
        assert_eq!(sampler.extra_epochs(), 1.0);
        let older: SamplerState = serde_json::from_str("{\"epoch\": 1, \"cursor\": 2}").unwrap();
        assert_eq!(older, SamplerState { extra: 0, ..state });
        let written = serde_json::to_value(older).unwrap();
        let newer = (written.get("extra"), written.get("skipped_steps"));
        assert_eq!(newer, (None, None), "without extra prompts, a checkpoint has the same bytes as in older versions");
    }

    #[test]
    fn ending_an_epoch_continues_with_the_next_epochs_first_chunk() {
        for seed in [None, Some(3)] {
            let mut whole = Sampler::new(10, 3, seed).unwrap();
            let chunks: Vec<Vec<usize>> = (0..9).map(|_| whole.next_batch()).collect();
            let mut ended = Sampler::new(10, 3, seed).unwrap();
            assert_eq!(ended.next_batch(), chunks[0]);
            ended.end_epoch(2);
            assert_eq!(ended.state(), SamplerState { cursor: 10, skipped_steps: 2, ..SamplerState::default() });
            let mut resumed = Sampler::new(10, 3, seed).unwrap();
            resumed.restore(ended.state());
            for chunk in &chunks[3..6] {
                assert_eq!((&ended.next_batch(), &resumed.next_batch()), (chunk, chunk));
            }
            // At the end of an epoch, no steps are skipped.
            ended.end_epoch(0);
            assert_eq!((ended.next_batch(), ended.state().skipped_steps), (chunks[6].clone(), 2));
        }
    }

    #[test]
    fn an_incomplete_last_chunk_can_be_kept() {
        for (rows, chunk, sizes) in [
            (10, 4, &[4, 4, 2][..]),
            (8, 4, &[4, 4]),
            (9, 4, &[4, 4, 1]),
            (3, 4, &[3]),
            (1, 8, &[1]),
            (4, 4, &[4]),
            (7, 1, &[1; 7]),
        ] {
            for seed in [None, Some(5)] {
                let mut sampler = Sampler::keeping_last(rows, chunk, seed).unwrap();
                assert_eq!(sampler.chunks_per_epoch(), sizes.len(), "{rows} rows by {chunk}");
                for epoch in 0..3 {
                    let chunks: Vec<Vec<usize>> = sizes.iter().map(|_| sampler.next_batch()).collect();
                    assert_eq!(chunks.iter().map(Vec::len).collect::<Vec<_>>(), sizes, "{rows} rows by {chunk}");
                    assert_eq!(
                        *chunks.concat(),
                        *permutation(rows, seed, epoch),
                        "each row once, in the epoch's order"
                    );
                    // A sampler resumes exactly between any two chunks.
                    let mut resumed = Sampler::keeping_last(rows, chunk, seed).unwrap();
                    resumed.restore(sampler.state());
                    assert_eq!(resumed.next_batch(), sampler.clone().next_batch());
                }
            }
        }
        assert!(Sampler::keeping_last(0, 4, None).is_none());
        let mut ended = Sampler::keeping_last(10, 4, None).unwrap();
        ended.next_batch();
        ended.end_epoch(2);
        assert_eq!((ended.next_batch(), ended.state().epoch), (vec![0, 1, 2, 3], 1));
    }

    #[test]
    fn a_chunk_larger_than_the_data_is_refused() {
        assert!(Sampler::new(3, 4, None).is_none() && Sampler::new(3, 0, None).is_none());
    }
}
