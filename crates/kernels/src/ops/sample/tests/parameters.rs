//! Sampling parameters of a row: which are refused, which need the whole row of logits, and how they are packed.

use super::*;
use crate::ops::sample::cuda::{COLUMNS, block};
use crate::rng::philox;

/// The error of sampling a row of logits of ten tokens, if there is one.
pub(super) fn says(params: RowParams<'_>) -> Option<String> {
    let m = memory();
    let (hidden, weight) = (Tensor::zeros(&m, &[1, 2], DType::F32), Matrix::zeros(&m, 10, 2));
    let (mut ids, mut logps) = (Tensor::from_u32(&m, &[1], &[99]), Tensor::zeros(&m, &[1], DType::F32));
    let args = Forward {
        hidden: hidden.view(),
        weight: &weight,
        rows: &[params],
        packed: None,
        ids: ids.view_mut(),
        logps: logps.view_mut(),
        truncated_logps: None,
    };
    forward(&Context::cpu(Isa::PORTABLE, 1), args).err().map(|error| error.to_string())
}

#[test]
fn values_out_of_range_are_refused_and_bounds_are_not() {
    type With = fn(f64) -> RowParams<'static>;
    type Case = (&'static str, &'static str, With, &'static [f64], &'static [f64]);
    // Of a temperature near 0 the inverse is infinite.
    let of: [Case; 4] = [
        (
            "temperature",
            "0 or more",
            |temperature| RowParams { temperature, ..PLAIN },
            &[-1.0, f64::NAN, 1e-39, f64::NEG_INFINITY],
            &[0.0, 1e-38, 1.0, 1e9],
        ),
        (
            "top_p",
            "above 0 and at most 1",
            |top_p| RowParams { top_p, ..PLAIN },
            &[0.0, -0.5, 1.0 + 1e-9, f64::NAN],
            &[1e-300, 0.5, 1.0],
        ),
        ("min_p", "0 to 1", |min_p| RowParams { min_p, ..PLAIN }, &[-0.5, 1.0 + 1e-9, f64::NAN], &[0.0, 1e-300, 1.0]),
        (
            "repetition_penalty",
            "above 0",
            |repetition_penalty| RowParams { repetition_penalty, ..PLAIN },
            &[0.0, -1.0, f64::INFINITY, f64::NAN],
            &[0.5, 1.0, 2.0],
        ),
    ];
    for (name, range, with, wrong, right) in of {
        for &x in wrong {
            assert_eq!(says(with(x)), Some(format!("sample::forward: {name} is {x}, expected {range}")));
        }
        for &x in right {
            assert_eq!(says(with(x)), None, "{name} {x}");
        }
    }
}

#[test]
fn tokens_of_the_history_matter_only_to_a_penalty() {
    let of = |repetition_penalty| RowParams { repetition_penalty, history: &[9, 10, 11], ..PLAIN };
    assert_eq!(says(of(1.0)), None);
    for penalty in [0.5, 2.0] {
        let message = "sample::forward: history[1] is 10, which is not below 10";
        assert_eq!(says(of(penalty)).as_deref(), Some(message));
    }
    assert!(of(1.0).penalised().is_empty());
    assert_eq!(of(2.0).penalised(), [9, 10, 11]);
    assert_eq!((of(1.0).words(), of(2.0).words()), (12, 15));
}

#[test]
fn truncation_and_a_penalty_need_the_whole_row() {
    let greedy = RowParams { temperature: 0.0, ..PLAIN };
    for (params, whole) in [
        (PLAIN, false),
        (greedy, false),
        (RowParams { history: &[3], ..PLAIN }, false),
        (RowParams { top_k: 1, ..PLAIN }, true),
        (RowParams { top_p: 0.999, ..PLAIN }, true),
        (RowParams { min_p: 0.001, ..PLAIN }, true),
        // Greedy takes the most likely token, which no truncation removes.
        (RowParams { top_k: 1, top_p: 0.5, min_p: 0.5, ..greedy }, false),
        (RowParams { repetition_penalty: 1.1, ..greedy }, true),
        (RowParams { repetition_penalty: 0.9, ..PLAIN }, true),
    ] {
        assert_eq!(params.needs_logits(), whole, "{params:?}");
    }
    let inverse = |temperature| RowParams { temperature, ..PLAIN }.inv_temperature();
    assert_eq!((inverse(0.0), inverse(0.5), inverse(3.0)), (1.0, 2.0, 1.0 / 3.0));
}

/// Column after column of all rows, then the histories: `sample.cu` reads them so.
#[test]
fn parameters_are_packed_in_columns() {
    let all = RowParams {
        temperature: 0.5,
        top_k: 7,
        top_p: 0.75,
        min_p: 0.125,
        repetition_penalty: 1.5,
        history: &[4, 2],
        key: 9,
        counter: [1, 2, 3, 4],
    };
    let rows = [
        all,
        RowParams { history: &[8], ..RowParams::GREEDY },
        RowParams { repetition_penalty: 2.0, history: &[5], key: 3, ..RowParams::GREEDY },
        // More than all tokens are kept.
        RowParams { top_k: usize::MAX, ..PLAIN },
    ];
    let mut words = vec![77];
    pack(Device::CudaEmulated, rows.iter().copied(), &mut words);
    let random = rows.map(|row| philox(row.key, row.counter));
    let bits = |x: f32| x.to_bits();
    let half = |x: f64, shift: u32| (x.to_bits() >> shift) as u32;
    let expected = [
        [random[0][0], random[1][0], random[2][0], random[3][0]],
        [random[0][1], random[1][1], random[2][1], random[3][1]],
        [bits(2.0), bits(1.0), bits(1.0), bits(1.0)],
        // 1: greedy, 2: the whole row.
        [2, 1, 3, 2],
        [7, 0, 0, 0],
        [bits(1.5), bits(1.0), bits(2.0), bits(1.0)],
        [half(0.75, 0), half(1.0, 0), half(1.0, 0), half(1.0, 0)],
        [half(0.75, 32), half(1.0, 32), half(1.0, 32), half(1.0, 32)],
        [half(0.125, 0), 0, 0, 0],
        [half(0.125, 32), 0, 0, 0],
        // Where the histories begin, counted from the first word, and their lengths.
        [48, 50, 50, 51],
        [2, 0, 1, 0],
    ];
    assert_eq!(words, [&[77][..], expected.as_flattened(), &[4, 2, 5]].concat());
    assert_eq!(words.len() - 1, rows.iter().map(RowParams::words).sum::<usize>());
    assert_eq!(COLUMNS, 12);
    for device in [Device::Cuda(0), Device::CudaEmulated] {
        assert_eq!(packed_len(device, 4, 90), 4 * (12 + 90));
    }
    for device in [Device::Cpu, Device::CpuChecked, Device::Meta] {
        let mut words = vec![77];
        pack(device, rows.iter().copied(), &mut words);
        assert_eq!((words, packed_len(device, 4, 90)), (vec![77], 0));
    }
}

/// In tests 4096 words of logits at once, or 16384 with truncation.
#[test]
fn rows_are_drawn_in_blocks_that_fit_into_memory() {
    for (all, vocab, whole, expected) in [
        (0, 0, false, (1, 0)),
        (0, 100, false, (1, 100 + 3)),
        (7, 100, false, (7, 7 * (100 + 3))),
        (50, 100, false, (40, 40 * (100 + 3))),
        (50, 1024, false, (4, 4 * (1024 + 2 * 3))),
        (50, 1025, false, (3, 3 * (1025 + 3 * 3))),
        // One row, however long.
        (50, 5000, false, (1, 5000 + 10 * 3)),
        // Four words of each logit, and two of each place to sort in, of which there are a power of two.
        (50, 100, true, (24, 24 * (4 * 100 + 2 * 128 + 3))),
        (9, 128, true, (9, 9 * (4 * 128 + 2 * 128 + 3))),
        (50, 5000, true, (1, 4 * 5000 + 2 * 8192 + 10 * 3)),
    ] {
        assert_eq!(block(all, vocab, whole), expected, "{all} rows of {vocab}");
    }
}
