//! Tests of the rows of a step, with values computed by hand.

use super::*;
use crate::blocks::BlockPool;
use crate::config::Speculative;
use crate::models::ModelVersion;
use crate::scheduler::Limits;
use crate::sequence::TokenRecord;
use crate::{Request, SamplingParams};
use model::{GroupId, Prompt, Updates};
use std::sync::Arc;

fn scheduler(chunked_prefill: bool, max_rows: usize) -> Scheduler {
    let limits = Limits { max_num_seqs: 3, max_rows, max_model_len: 256, chunked_prefill };
    let mut scheduler = Scheduler::new(BlockPool::new(20, false), limits, Speculative::Off);
    scheduler.current = Some(ModelVersion { base: Updates(0), adapter: None });
    scheduler
}

fn submit(scheduler: &mut Scheduler, first: u32, len: u32, completions: usize, sharing: bool) {
    let prompt = Prompt::new((first..first + len).collect::<Vec<_>>());
    let request = Request::new(GroupId(5), prompt, completions, Arc::new(SamplingParams::default()));
    scheduler.submit(Arc::new(request), sharing);
}

fn config() -> EngineConfig {
    EngineConfig { max_batched_tokens: 200, ..EngineConfig::new(3, 256) }
}

type Lists = (Vec<u32>, Vec<u32>, Vec<u32>, Vec<u32>, Vec<(u32, usize, usize)>);

/// Prepares the next step. Returns token ids, positions, tables, slots and draws (row, sequence, index of the token).
fn prepared(inputs: &mut StepInputs, scheduler: &mut Scheduler) -> (Lists, Vec<Chunk>) {
    let (mut chunks, mut copies) = (Vec::new(), Vec::new());
    scheduler.schedule(&mut chunks, &mut copies);
    // Draws of an earlier step must be overwritten.
    let mut draws = vec![Draw { row: 77, sequence: 77, at: 77 }];
    inputs.prepare(scheduler, &chunks, &mut draws);
    let draws: Vec<_> = draws.iter().map(|draw| (draw.row, draw.sequence, draw.at)).collect();
    let rows: Vec<u32> = (0..inputs.ids.len() as u32).collect();
    assert_eq!(inputs.write_rows, rows, "each row is written once");
    let sampled: Vec<u32> = draws.iter().map(|draw| draw.0).take(inputs.rows.max_sampled()).collect();
    assert_eq!((inputs.rows.rows(), inputs.rows.sampled().to_vec_u32()), (rows.len(), sampled));
    let lists =
        (inputs.ids.clone(), inputs.positions.clone(), inputs.tables_of_rows.clone(), inputs.write_slots.clone());
    ((lists.0, lists.1, lists.2, lists.3, draws), chunks)
}

#[test]
fn each_uncomputed_token_is_a_row_and_the_last_row_of_each_sequence_draws() {
    let mut scheduler = scheduler(true, 200);
    let mut inputs = StepInputs::new(&Memory::new(Device::Cpu), 200, &config());
    submit(&mut scheduler, 100, 66, 1, false);
    submit(&mut scheduler, 300, 2, 1, false);
    // Pages are taken in order: 0 and 1, then 2.
    let ((ids, positions, tables, slots, draws), chunks) = prepared(&mut inputs, &mut scheduler);
    assert_eq!(ids, (100..166).chain(300..302).collect::<Vec<_>>(), "ids");
    assert_eq!(positions, (0..66).chain(0..2).collect::<Vec<_>>(), "positions");
    assert_eq!(tables, [vec![0; 66], vec![1; 2]].concat(), "tables");
    assert_eq!(slots, (0..66).chain(128..130).collect::<Vec<_>>(), "slots of keys and values");
    assert_eq!(draws, [(65, 0, 66), (67, 1, 2)], "draws (row, sequence, index of the token)");
    // The next step has one row per sequence, at the following position.
    scheduler.mark_computed(&chunks);
    for (sequence, id) in [(0, 7), (1, 8)] {
        scheduler.sequences[sequence].push(id, Some(TokenRecord::default()), Updates(0));
    }
    let (lists, _) = prepared(&mut inputs, &mut scheduler);
    assert_eq!(lists, (vec![7, 8], vec![66, 2], vec![0, 1], vec![66, 130], vec![(0, 0, 67), (1, 1, 3)]));
}

#[test]
fn part_of_a_prompt_draws_no_token_and_each_draft_token_draws_one() {
    let mut scheduler = scheduler(true, 5);
    let mut inputs = StepInputs::new(&Memory::new(Device::Cpu), 200, &config());
    submit(&mut scheduler, 100, 8, 1, false);
    let ((ids, .., draws), chunks) = prepared(&mut inputs, &mut scheduler);
    assert_eq!((ids, draws), ((100..105).collect(), vec![]));
    scheduler.mark_computed(&chunks);
    let ((ids, positions, .., draws), chunks) = prepared(&mut inputs, &mut scheduler);
    assert_eq!((ids, positions, draws), (vec![105, 106, 107], vec![5, 6, 7], vec![(2, 0, 8)]));
    scheduler.mark_computed(&chunks);
    scheduler.sequences[0].push(7, Some(TokenRecord::default()), Updates(0));
    scheduler.draft(0, &[20, 21, 22]);
    let ((ids, positions, .., draws), _) = prepared(&mut inputs, &mut scheduler);
    assert_eq!((ids, positions), (vec![7, 20, 21, 22], vec![8, 9, 10, 11]));
    assert_eq!(draws, [(0, 0, 9), (1, 0, 10), (2, 0, 11), (3, 0, 12)]);
}

#[test]
fn the_last_row_of_a_shared_prompt_draws_for_all_completions() {
    let mut scheduler = scheduler(true, 200);
    let small = EngineConfig { max_num_seqs: 2, ..config() };
    let mut inputs = StepInputs::new(&Memory::new(Device::Cpu), 200, &small);
    submit(&mut scheduler, 100, 3, 3, true);
    let ((ids, .., draws), _) = prepared(&mut inputs, &mut scheduler);
    assert_eq!((ids, draws), (vec![100, 101, 102], vec![(2, 0, 3), (2, 1, 3), (2, 2, 3)]));
    assert_eq!(inputs.rows.max_sampled(), 2, "the third draw needs a second call of the sampler");
    inputs.sample_from(&scheduler, &[Draw { row: 1, sequence: 2, at: 3 }]);
    assert_eq!(inputs.rows.sampled().to_vec_u32(), [1]);
}
