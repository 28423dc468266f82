//! Decoding and prefill compute the same bits as training, regardless of the rows in a step, so their activations can
//! replace a training forward pass. A plan counts exactly the memory of a run.

use super::*;
use kernels::check::normal;
use kernels::{Device, Memory};
use model::batch::{InferRows, StepRows};
use model::kv::BLOCK;
use model::net::{KeptRows, RowStore, Workspace};
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
            let tensors = BatchTensors::new(memory, &batch);
            let mut tape = Tape::new(memory, config, batch.capacity(), false);
            let rope = Rope::new(memory, config, IDS);
            net::forward(&ctx, &weights, &rope, &tensors, &mut tape).unwrap();
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
            let mut store = RowStore::new(memory, config, sequences.len() * IDS + 100);
            let (mut used, mut kept) = (7, vec![vec![]; sequences.len()]);
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
                let keep = (&mut store, used);
                net::infer_keeping(&ctx, &weights, &rope, &rows, &mut kv, &mut workspace, keep).unwrap();
                assert!(store.hidden().to_vec_f32() == hidden, "{family} {isa:?}");
                let mut hidden = hidden.as_slice();
                for (s, taken) in taken.into_iter().enumerate() {
                    let (mine, rest) = hidden.split_at(taken * config.hidden_size);
                    got[s].extend_from_slice(mine);
                    hidden = rest;
                    kept[s].extend(used as u32..(used + taken) as u32);
                    used += taken;
                }
                // Leaves a gap in the store: rows of other sequences may lie between those of a sequence.
                used += usize::from(step % 2 == 0);
            }
            assert!(got.concat() == expected, "{family} {isa:?}");

            let case = format!("{family} {isa:?}");
            the_kept_rows_take_the_place_of(&ctx, &weights, &rope, &tensors, &mut tape, (&store, kept.concat()), &case);
        }
    }
}

/// Checks that the rows `kept` of the store equal those of `tape`, on which the forward pass of `batch` was computed,
/// and that the backward pass gives the same gradients from them.
fn the_kept_rows_take_the_place_of(
    ctx: &Context,
    weights: &Weights,
    rope: &Rope,
    batch: &BatchTensors,
    tape: &mut Tape,
    (store, mut kept): (&RowStore, Vec<u32>),
    case: &str,
) {
    let memory = ctx.memory();
    let slots = |rows: &[u32]| Tensor::from_u32(memory, &[rows.len()], rows);
    let differing = |slots: &Tensor, tape: &Tape| {
        let differs = net::differing_rows(ctx, memory, KeptRows { store, slots: slots.view() }, tape).unwrap();
        differs.into_iter().filter(|&differs| differs).count()
    };
    let own = slots(&kept);
    assert_eq!(differing(&own, tape), 0, "{case}");

    let d_hidden: Vec<f32> = normal(1, tape.hidden().shape().iter().product());
    let gradients = |tape: &mut Tape, rows: Option<KeptRows<'_>>| {
        let mut grads = Grads::zeros(memory, &weights.config);
        tape.d_hidden_mut().copy_from_f32(&d_hidden);
        net::backward_from(ctx, weights.into(), rope, batch, rows, tape, &mut grads).unwrap();
        grads.params.tensors().into_iter().map(Tensor::to_vec_f32).collect::<Vec<_>>()
    };
    let expected = gradients(tape, None);
    for checkpointing in [false, true] {
        let rows = KeptRows { store, slots: own.view() };
        let mut restored = Tape::new(memory, &weights.config, tape.capacity(), checkpointing);
        net::restore(ctx, rows, batch, &mut restored).unwrap();
        assert!(restored.hidden().to_vec_f32() == tape.hidden().to_vec_f32(), "{case}");
        assert!(gradients(&mut restored, Some(rows)) == expected, "{case}, checkpointing: {checkpointing}");

        // A row of a different token is detected.
        kept.swap(3, IDS + 9);
        net::forward(ctx, weights, rope, batch, &mut restored).unwrap();
        assert_eq!(differing(&slots(&kept), &restored), 2, "{case}, checkpointing: {checkpointing}");
        kept.swap(3, IDS + 9);
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
    assert!(error.contains("3 rows, but the buffers have room for only 2"), "{error}");

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
