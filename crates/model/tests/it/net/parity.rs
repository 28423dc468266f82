//! Decoding and prefill compute the same bits as training, whatever rows a step has. A plan counts exactly the memory
//! of a run.

use super::*;
use kernels::{Device, Memory};
use model::batch::{InferRows, StepRows};
use model::kv::BLOCK;
use model::net::Workspace;
use model::{Capacity, KvCache};

const IDS: usize = 150;

fn ids(seed: u32, vocab: u32) -> Vec<u32> {
    (0..IDS as u32).map(|i| (i.wrapping_mul(2654435761).wrapping_add(seed * 97) >> 7) % vocab).collect()
}

#[test]
fn inference_in_any_chunks_gives_the_bits_of_training() {
    for isa in Isa::present() {
        for family in FAMILIES {
            let ctx = Context::cpu(isa, 2);
            let (weights, memory) = (load(&ctx, family), ctx.memory());
            let config = &weights.config;
            let sequences: Vec<Vec<u32>> = (1..=3).map(|s| ids(s, config.vocab_size as u32)).collect();
            let groups: Vec<_> = sequences.iter().map(|s| GroupSegment { prefix: s, branches: &[] }).collect();
            let batch = Batch::new(&groups, true);
            let mut tape = Tape::forward_only(memory, config, batch.capacity());
            let rope = Rope::new(memory, config, IDS);
            net::forward(&ctx, &weights, &rope, &BatchTensors::new(memory, &batch), &mut tape).unwrap();
            let expected = tape.hidden().to_vec_f32();

            let table_len = IDS.div_ceil(BLOCK);
            let mut kv = KvCache::new(memory, config, sequences.len() * table_len);
            kv.fill(f32::NAN);
            let mut rows = InferRows::new(memory, sequences.len() * 70, sequences.len(), table_len);
            for s in 0..sequences.len() {
                let blocks: Vec<u32> = (0..table_len).map(|b| (b * sequences.len() + s) as u32).collect();
                rows.set_table(s, &blocks);
            }
            let mut workspace = Workspace::new(memory, config, sequences.len() * 70);
            let mut got = vec![vec![]; sequences.len()];
            // The chunks include decode steps of one row, chunks within a page and across pages, and a whole page. Each
            // sequence advances at its own pace.
            let chunks = [1, 5, 1, 70, 3, 64, 1, 1, 4, 0, 2];
            for step in 0.. {
                let (mut row_ids, mut positions, mut tables, mut slots) = (vec![], vec![], vec![], vec![]);
                let mut taken = vec![];
                for (s, sequence) in sequences.iter().enumerate() {
                    let from = got[s].len() / config.hidden_size;
                    let to = (from + chunks[(step + 3 * s) % chunks.len()]).min(IDS);
                    taken.push(to - from);
                    for (position, &id) in sequence.iter().enumerate().take(to).skip(from) {
                        row_ids.push(id);
                        positions.push(position as u32);
                        tables.push(s as u32);
                        let page = position / BLOCK * sequences.len() + s;
                        slots.push((page * BLOCK + position % BLOCK) as u32);
                    }
                }
                if row_ids.is_empty() && got.iter().all(|g| g.len() == IDS * config.hidden_size) {
                    break;
                }
                let all: Vec<u32> = (0..row_ids.len() as u32).collect();
                rows.set(StepRows {
                    ids: &row_ids,
                    positions: &positions,
                    tables_of_rows: &tables,
                    write_rows: &all,
                    write_slots: &slots,
                    sampled: &[],
                    draws: &[],
                });
                net::infer(&ctx, &weights, &rope, &rows, &mut kv, &mut workspace).unwrap();
                let hidden = workspace.hidden().to_vec_f32();
                let mut hidden = hidden.as_slice();
                for (s, taken) in taken.into_iter().enumerate() {
                    let (mine, rest) = hidden.split_at(taken * config.hidden_size);
                    got[s].extend_from_slice(mine);
                    hidden = rest;
                }
            }
            assert!(got.concat() == expected, "{family} {isa:?}");
        }
    }
}

#[test]
fn a_batch_that_does_not_fit_is_refused() {
    let ctx = context(1);
    let (weights, memory) = (load(&ctx, "qwen2"), ctx.memory());
    let batch = Batch::new(&[GroupSegment { prefix: &[1, 2, 3], branches: &[&[4]] }], true);
    let rope = Rope::new(memory, &weights.config, 8);
    let mut room = batch.capacity();
    room.tokens -= 1;
    let mut tape = Tape::forward_only(memory, &weights.config, room);
    let error = net::score(&ctx, &weights, &rope, &batch, &mut tape, 1.0).unwrap_err().to_string();
    assert!(error.contains("3 rows, but buffers for only 2"), "{error}");

    let mut tape = Tape::forward_only(memory, &weights.config, batch.capacity());
    net::score(&ctx, &weights, &rope, &batch, &mut tape, 1.0).unwrap();
    let (tensors, mut grads) = (BatchTensors::new(memory, &batch), Grads::zeros(memory, &weights.config));
    assert!(net::backward(&ctx, &weights, &rope, &tensors, &mut tape, &mut grads).is_err());
}

#[test]
fn a_plan_counts_the_memory_that_a_run_allocates() {
    let config = Arc::new(ModelConfig::load(&folder("qwen3").join("config.json")).unwrap());
    let usage = |device| {
        let memory = Memory::new(device);
        let capacity = Capacity { tokens: 100, blocks: 3, score_rows: 20 };
        let parts = (
            Weights::zeros(&memory, &config),
            Grads::zeros(&memory, &config),
            Tape::new(&memory, &config, capacity, false),
            Workspace::new(&memory, &config, 10),
            KvCache::new(&memory, &config, 5),
            Rope::new(&memory, &config, 50),
        );
        let usage = memory.usage();
        drop(parts);
        usage
    };
    let plan = usage(Device::Meta);
    assert_eq!(plan, usage(Device::Cpu));
    assert_eq!(
        plan.keys().copied().collect::<Vec<_>>(),
        ["activations", "gradients", "kv cache", "weights", "workspace"]
    );
    assert_eq!(plan["kv cache"].bytes, 5 * KvCache::block_bytes(&config));
}

#[test]
fn checkpointing_keeps_fewer_activations() {
    let config = ModelConfig::load(&folder("qwen3").join("config.json")).unwrap();
    let activations = |checkpointing| {
        let memory = Memory::new(Device::Meta);
        let _tape = Tape::new(&memory, &config, Capacity { tokens: 100, blocks: 3, score_rows: 20 }, checkpointing);
        memory.usage()["activations"].bytes
    };
    assert!(activations(true) < activations(false));
}
