//! Sampling parameters that are rejected, and those that need the whole row of logits.

use super::*;

/// The error of sampling from a row of ten logits; `None` if sampling succeeds.
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
        lse: None,
        entropies: None,
    };
    forward(&Context::cpu(Isa::PORTABLE, 1), args).err().map(|error| error.to_string())
}

#[test]
fn sampling_parameters_are_valid_up_to_their_bounds() {
    type With = fn(f64) -> RowParams<'static>;
    type Case = (&'static str, &'static str, With, &'static [f64], &'static [f64]);
    // The inverse of a temperature near 0 is infinite.
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
fn history_tokens_are_checked_only_with_a_penalty() {
    let of = |repetition_penalty| RowParams { repetition_penalty, history: &[9, 10, 11], ..PLAIN };
    assert_eq!(says(of(1.0)), None);
    for penalty in [0.5, 2.0] {
        let message = "sample::forward: history[1] is 10, expected below 10";
        assert_eq!(says(of(penalty)).as_deref(), Some(message));
    }
    assert!(of(1.0).penalised().is_empty());
    assert_eq!(of(2.0).penalised(), [9, 10, 11]);
    assert_eq!((of(1.0).words(), of(2.0).words()), (12, 15));
}

#[test]
fn truncation_and_penalties_need_the_whole_row_of_logits() {
    let greedy = RowParams { temperature: 0.0, ..PLAIN };
    for (params, whole) in [
        (PLAIN, false),
        (greedy, false),
        (RowParams { history: &[3], ..PLAIN }, false),
        (RowParams { top_k: 1, ..PLAIN }, true),
        (RowParams { top_p: 0.999, ..PLAIN }, true),
        (RowParams { min_p: 0.001, ..PLAIN }, true),
        // Greedy sampling takes the most likely token, which truncation never removes.
        (RowParams { top_k: 1, top_p: 0.5, min_p: 0.5, ..greedy }, false),
        (RowParams { repetition_penalty: 1.1, ..greedy }, true),
        (RowParams { repetition_penalty: 0.9, ..PLAIN }, true),
    ] {
        assert_eq!(params.needs_logits(), whole, "{params:?}");
    }
    let inverse = |temperature| RowParams { temperature, ..PLAIN }.inv_temperature();
    assert_eq!((inverse(0.0), inverse(0.5), inverse(3.0)), (1.0, 2.0, 1.0 / 3.0));
}
