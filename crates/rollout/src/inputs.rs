//! The model's inputs in one step: one row per token, with its position, its page table, and the cache slot for its key
//! and value.

use crate::config::EngineConfig;
use crate::sampler;
use crate::scheduler::{Chunk, Scheduler};
use crate::sequence::{Draw, Role};
use kernels::ops::sample;
use kernels::{Device, Memory};
use model::batch::{InferRows, StepRows};
use model::kv::BLOCK;

/// Input buffers of a fixed size, which every step refills.
pub(crate) struct StepInputs {
    pub(crate) rows: InferRows,
    ids: Vec<u32>,
    positions: Vec<u32>,
    tables_of_rows: Vec<u32>,
    write_rows: Vec<u32>,
    write_slots: Vec<u32>,
    sampled: Vec<u32>,
    /// The sampling parameters of the rows, packed by `sample::pack`.
    packed: Vec<u32>,
    device: Device,
}

impl StepInputs {
    pub(crate) fn new(memory: &Memory, max_rows: usize, config: &EngineConfig) -> StepInputs {
        StepInputs {
            rows: InferRows::with_room(
                memory,
                [max_rows, max_rows, config.draws()],
                config.max_num_seqs,
                config.max_model_len.div_ceil(BLOCK),
            ),
            ids: Vec::with_capacity(max_rows),
            positions: Vec::with_capacity(max_rows),
            tables_of_rows: Vec::with_capacity(max_rows),
            write_rows: Vec::with_capacity(max_rows),
            write_slots: Vec::with_capacity(max_rows),
            sampled: Vec::with_capacity(config.draws()),
            packed: Vec::new(),
            device: memory.device(),
        }
    }

    /// Fills the inputs for the rows of `chunks`, and lists in `draws` the tokens to draw after them.
    pub(crate) fn prepare(&mut self, scheduler: &Scheduler, chunks: &[Chunk], draws: &mut Vec<Draw>) {
        for list in
            [&mut self.ids, &mut self.positions, &mut self.tables_of_rows, &mut self.write_rows, &mut self.write_slots]
        {
            list.clear();
        }
        draws.clear();
        for (table, chunk) in chunks.iter().enumerate() {
            let s = &scheduler.sequences[chunk.sequence];
            for position in chunk.from..chunk.to {
                self.write_rows.push(self.ids.len() as u32);
                self.write_slots.push(s.blocks[position / BLOCK] * BLOCK as u32 + (position % BLOCK) as u32);
                self.ids.push(s.tokens[position]);
                self.positions.push(position as u32);
                self.tables_of_rows.push(table as u32);
            }
            self.rows.set_table(table, &s.blocks);
            // The last known token predicts the next token. Each draft token after it predicts the token that follows
            // the draft.
            let known = s.known().len();
            for at in (chunk.from + 1).max(known)..chunk.to + 1 {
                let row = (self.ids.len() - (chunk.to + 1 - at)) as u32;
                match s.role {
                    Role::Completion(_) => draws.push(Draw { row, sequence: chunk.sequence, at }),
                    Role::Prompt => {
                        draws.extend(scheduler.not_begun(s.group).map(|sequence| Draw { row, sequence, at }));
                    }
                }
            }
        }
        self.draw(scheduler, &draws[..draws.len().min(self.rows.max_sampled())]);
        self.rows.set(StepRows {
            ids: &self.ids,
            positions: &self.positions,
            tables_of_rows: &self.tables_of_rows,
            write_rows: &self.write_rows,
            write_slots: &self.write_slots,
            sampled: &self.sampled,
            draws: &self.packed,
        });
    }

    /// Sets the rows to sample from. After [`prepare`](Self::prepare) they are the rows of the step's first draws.
    pub(crate) fn sample_from(&mut self, scheduler: &Scheduler, draws: &[Draw]) {
        self.draw(scheduler, draws);
        self.rows.set_sampled(&self.sampled, &self.packed);
    }

    fn draw(&mut self, scheduler: &Scheduler, draws: &[Draw]) {
        self.sampled.clear();
        self.sampled.extend(draws.iter().map(|draw| draw.row));
        self.packed.clear();
        sample::pack(self.device, sampler::params(scheduler, draws), &mut self.packed);
    }
}

#[cfg(test)]
mod tests;
