//! Tests the helpers that operations share: checks of arguments, splitting rows into chunks, and the bound on scratch
//! memory, which is compared with the operations' actual use on the emulator.

use super::args::{expect_below, expect_offsets};
use super::lanes::chunks;
use super::{Passes, attention, lm_head, lora, sample};
use crate::DType::{F32, U32};
use crate::check::normal;
use crate::device::cuda::tests::emulated;
use crate::{Context, Isa, Matrix, Result, Tensor};

#[test]
fn the_error_names_the_first_index_that_is_too_large() {
    let says = |indices: &[u32], end| expect_below("op", "ids", indices, end).err().map(|error| error.to_string());
    assert_eq!(says(&[], 0), None);
    assert_eq!(says(&[0, 4, 2], 5), None);
    assert_eq!(says(&[0, 5, 2, 7], 5).as_deref(), Some("op: ids[1] is 5, expected below 5"));
    assert_eq!(says(&[0], 0).as_deref(), Some("op: ids[0] is 0, expected below 0"));
}

#[test]
fn segment_offsets_must_ascend_from_0_to_the_length() {
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let says = |offsets: &[u32], len| {
        let offsets = Tensor::from_u32(ctx.memory(), &[offsets.len()], offsets);
        expect_offsets("op", "segments", offsets.view(), len).err().map(|error| error.to_string())
    };
    for (right, len) in [(&[0][..], 0), (&[0, 0], 0), (&[0, 4], 4), (&[0, 0, 3, 3, 4], 4)] {
        assert_eq!(says(right, len), None, "{right:?}");
    }
    for (wrong, len) in [(&[][..], 0), (&[1, 4], 4), (&[0, 3], 4), (&[0, 5], 4), (&[0, 3, 2, 4], 4), (&[4, 0], 0)] {
        let message = format!("op: segments must ascend from 0 to {len}");
        assert_eq!(says(wrong, len), Some(message), "{wrong:?}");
    }
}

#[test]
fn chunks_of_64_rows_restart_at_each_segment() {
    let of = |segments: Option<&[u32]>, all| chunks(segments, all).collect::<Vec<_>>();
    assert_eq!(of(None, 0), []);
    assert_eq!(of(None, 64), std::iter::once(0..64).collect::<Vec<_>>());
    assert_eq!(of(None, 130), [0..64, 64..128, 128..130]);
    assert_eq!(of(Some(&[0, 3, 3, 68, 70]), 70), [0..3, 3..67, 67..68, 68..70]);
}

/// Bytes of scratch memory that `run` allocates on the emulator, in addition to its tensors.
fn taken(run: impl Fn(&Context, &mut dyn FnMut()) -> Result<()>) -> Option<u64> {
    let ctx = Context::cuda(emulated(0)?);
    let peak = || ctx.device_memory().unwrap().unwrap().peak;
    let mut before = 0;
    run(&ctx, &mut || before = peak()).unwrap();
    Some(peak() - before)
}

fn random(ctx: &Context, shape: &[usize]) -> Tensor {
    Tensor::from_f32(ctx.memory(), shape, &normal(1, shape.iter().product()))
}

fn list(ctx: &Context, list: &[u32]) -> Tensor {
    Tensor::from_u32(ctx.memory(), &[list.len()], list)
}

#[test]
fn scoring_stays_within_the_scratch_bound() {
    let (rows, vocab) = (3, 1025);
    let forward_bytes = taken(|ctx, begin| {
        let (hidden, weight) = (random(ctx, &[rows, 2]), Matrix::zeros(ctx.memory(), vocab, 2));
        let (targets, mut logps, mut lse) = (list(ctx, &[0, 1024, 512]), random(ctx, &[rows]), random(ctx, &[rows]));
        begin();
        let args = lm_head::Forward {
            hidden: hidden.view(),
            weight: &weight,
            targets: targets.view(),
            inv_temperature: 1.0,
            logps: logps.view_mut(),
            lse: lse.view_mut(),
            entropies: None,
        };
        lm_head::forward(ctx, args)
    });
    let Some(forward_bytes) = forward_bytes else { return };
    assert_eq!(forward_bytes, Passes { tokens: rows, vocab, ..Passes::default() }.scratch_bytes());
    let logits_bytes = taken(|ctx, begin| {
        let (hidden, weight) = (random(ctx, &[rows, 2]), Matrix::zeros(ctx.memory(), vocab, 2));
        let (mut logits, mut lse) = (random(ctx, &[rows, vocab]), random(ctx, &[rows]));
        begin();
        let (hidden, logits, lse) = (hidden.view(), logits.view_mut(), lse.view_mut());
        lm_head::logits(ctx, lm_head::Logits { hidden, weight: &weight, inv_temperature: 1.0, logits, lse })
    });
    // Each row has the statistics of three chunks, and an unused log-probability.
    assert_eq!(logits_bytes, Some(4 * 3 * (3 * 3 + 1)));
}

#[test]
fn sampling_stays_within_the_scratch_bound() {
    for top_k in [0, 3] {
        let history: Vec<u32> = (0..90).collect();
        // With a penalty, the packed parameters include the history.
        let repetition_penalty = if top_k > 0 { 1.5 } else { 1.0 };
        let row = sample::RowParams {
            temperature: 1.0,
            top_k,
            repetition_penalty,
            history: &history,
            ..sample::RowParams::GREEDY
        };
        let taken = taken(|ctx, begin| {
            let (hidden, weight) = (random(ctx, &[7, 2]), Matrix::zeros(ctx.memory(), 100, 2));
            let (mut ids, mut logps) = (list(ctx, &[0; 7]), random(ctx, &[7]));
            begin();
            let args = sample::Forward {
                hidden: hidden.view(),
                weight: &weight,
                rows: &[row; 7],
                packed: None,
                ids: ids.view_mut(),
                logps: logps.view_mut(),
                truncated_logps: None,
                lse: None,
                entropies: None,
            };
            sample::forward(ctx, args)
        });
        let Some(taken) = taken else { return };
        let passes = Passes { sequences: 7, vocab: 100, positions: 90, whole: top_k > 0, ..Passes::default() };
        let bound = passes.scratch_bytes();
        if top_k > 0 {
            assert_eq!(taken, bound);
        } else {
            // Without a penalty, the history is not copied, and four empty buffers take one word each.
            assert_eq!(taken, bound - 4 * 7 * 90 + 4 * 4);
        }
    }
}

#[test]
fn attention_stays_within_the_scratch_bound() {
    let geometry = attention::Geometry { heads: 3, kv_heads: 1, head_dim: 2, scale: 1.0, window: None };
    // One sequence of 70 tokens in two pages.
    let (t, width) = (70, 5 * 2);
    let taken = taken(|ctx, begin| {
        let zeros = |shape: &[usize]| Tensor::zeros(ctx.memory(), shape, F32);
        let (qkv, mut d_qkv) = (random(ctx, &[t, width]), zeros(&[t, width]));
        let ([keys, mut d_keys], [values, mut d_values]) =
            ([(); 2].map(|()| zeros(&[2, 1, 2, 64])), [(); 2].map(|()| zeros(&[2, 1, 64, 2])));
        let (out, lse) = (zeros(&[t, 3 * 2]), zeros(&[t, 3]));
        let ascending: Vec<u32> = (0..t as u32).collect();
        let (positions, row_tables, groups) =
            (list(ctx, &ascending), list(ctx, &vec![0; t]), list(ctx, &[0, t as u32]));
        let tables = Tensor::from_u32(ctx.memory(), &[1, 2], &[0, 1]);
        begin();
        let args = attention::Backward {
            qkv: qkv.view(),
            geometry,
            rows: attention::Rows {
                positions: positions.view(),
                tables_of_rows: row_tables.view(),
                tables: tables.view(),
            },
            pages: attention::Pages { keys: keys.view(), values: values.view() },
            write_rows: positions.view(),
            write_slots: positions.view(),
            out: out.view(),
            lse: lse.view(),
            d_out: out.view(),
            d_qkv: d_qkv.view_mut(),
            d_pages: attention::PagesMut { keys: d_keys.view_mut(), values: d_values.view_mut() },
            groups: groups.view(),
        };
        attention::backward(ctx, args)
    });
    let Some(taken) = taken else { return };
    let bound = Passes { tokens: t, positions: t, pages: 2, heads: 3, ..Passes::default() }.scratch_bytes();
    // The first 64 tokens attend to one page instead of two, and one unused length takes one word.
    assert_eq!(taken, bound - 4 * (2 * 64 + 1));
}

#[test]
fn adapters_stay_within_the_scratch_bound() {
    let rank = 3;
    // A few rows are computed together; many rows, as many at a time as fit (16); wide rows, one at a time.
    for (p, m, k) in [(None, 11, 31), (Some(0.5), 11, 31), (Some(0.5), 40, 31), (Some(0.5), 2, 600)] {
        let taken = taken(|ctx, begin| {
            let matrix = |rows: usize, cols: usize| Matrix::zeros(ctx.memory(), rows, cols);
            let (a, b, mut d_a, mut d_b) = (matrix(rank, k), [matrix(2, rank)], matrix(rank, k), [matrix(2, rank)]);
            let adapter = lora::Adapter { a: &a, b: &b, first: &[0], scale: 1.0 };
            let (x, d_y, mut d_x) = (random(ctx, &[m, k]), random(ctx, &[m, 2]), random(ctx, &[m, k]));
            let rows = Tensor::zeros(ctx.memory(), &[m], U32);
            let dropout = p.map(|p| lora::Dropout { p, key: 1, samples: rows.view(), positions: rows.view() });
            begin();
            let (x, d_y, d_x) = (x.view(), d_y.view(), d_x.view_mut());
            lora::backward(ctx, lora::Backward { x, adapter, dropout, d_y, d_x, d_a: &mut d_a, d_b: &mut d_b })
        });
        let Some(taken) = taken else { return };
        let dropped = if p.is_some() { k } else { 0 };
        let bound = Passes { tokens: m, rank, dropped, ..Passes::default() }.scratch_bytes();
        let unused = if m == 40 { 4 * 2 * (512 - 16 * 31) } else { 0 };
        assert_eq!(taken, bound - unused, "{p:?} {m}");
    }
}
