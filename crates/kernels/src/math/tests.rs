use super::*;
use crate::Isa;
use crate::simd::{Kernel, LANES};

#[derive(Clone, Copy)]
enum Function {
    Exp,
    ExpFinite,
    Ln,
    Sigmoid,
}

struct Apply(Function, [f32; LANES]);

impl Kernel for Apply {
    type Output = [f32; LANES];
    #[inline(always)]
    fn run<V: Simd>(self) -> Self::Output {
        let x = V::load(&self.1);
        match self.0 {
            Function::Exp => exp(x),
            Function::ExpFinite => exp_finite(x),
            Function::Ln => ln(x),
            Function::Sigmoid => sigmoid(x),
        }
        .to_array()
    }
}

/// Applies `f` to all inputs, and checks that every instruction set gives the same bits.
fn apply(f: Function, inputs: &[f32]) -> Vec<f32> {
    let mut out = Vec::new();
    for chunk in inputs.chunks(LANES) {
        let lanes = std::array::from_fn(|i| chunk.get(i).copied().unwrap_or(1.0));
        let first = Isa::PORTABLE.run(Apply(f, lanes));
        for isa in Isa::present() {
            let got = isa.run(Apply(f, lanes));
            for (l, (a, b)) in first.iter().zip(&got).enumerate() {
                assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(), "{isa:?} of {}: {b} not {a}", lanes[l]);
            }
        }
        out.extend_from_slice(&first[..chunk.len()]);
    }
    out
}

/// The largest error of `f` over the inputs, in ulps (f64's result rounded to f32), and the input at which it occurs.
fn worst_ulp(f: Function, exact: fn(f64) -> f64, inputs: &[f32]) -> (f64, f32) {
    let mut worst = (0.0, 0.0);
    for (&x, y) in inputs.iter().zip(apply(f, inputs)) {
        let exact = exact(f64::from(x));
        let ulp = f64::from((exact as f32).abs().next_up()) - f64::from((exact as f32).abs());
        let error = (f64::from(y) - exact).abs() / ulp;
        if error > worst.0 || error.is_nan() {
            worst = (error, x);
        }
    }
    worst
}

/// `n` numbers evenly spread over a range.
fn spread(from: f32, to: f32, n: usize) -> Vec<f32> {
    (0..n).map(|i| from + (to - from) * (i as f32 / (n - 1) as f32)).collect()
}

#[test]
fn exp_is_accurate_over_its_whole_range() {
    for (from, to) in [(-87.3, 88.72), (88.0, 88.72), (-1.0, 1.0), (-1e-4, 1e-4)] {
        let inputs = spread(from, to, 40_000);
        let (error, at) = worst_ulp(Function::Exp, f64::exp, &inputs);
        assert!(error <= 2.0, "{error} ulp at {at}");
        assert_eq!(apply(Function::Exp, &inputs), apply(Function::ExpFinite, &inputs));
    }
    let edges = [f32::NEG_INFINITY, -1e30, -87.4, 0.0, -0.0, 88.8, 1e30, f32::INFINITY, f32::NAN];
    let at_edges = apply(Function::Exp, &edges);
    assert_eq!(at_edges[..8], [0.0, 0.0, 0.0, 1.0, 1.0, f32::INFINITY, f32::INFINITY, f32::INFINITY]);
    assert!(at_edges[8].is_nan());
    let finite = [-87.33, -87.33f32.next_down(), -87.33f32.next_up(), f32::NEG_INFINITY, -1e30, 0.0, -0.0, 88.72];
    assert_eq!(apply(Function::Exp, &finite), apply(Function::ExpFinite, &finite));
    // The result is NaN for every NaN payload.
    let nan: Vec<f32> = (0..512).map(|payload| f32::from_bits(0x7fc0_0000 + payload)).collect();
    for function in [Function::Exp, Function::ExpFinite, Function::Sigmoid] {
        assert!(apply(function, &nan).iter().all(|y| y.is_nan()));
    }
}

#[test]
fn ln_is_accurate_over_all_normal_numbers() {
    let mut stream = crate::rng::Stream::new(5, 0);
    let any: Vec<f32> = (0..40_000)
        .map(|_| f32::from_bits((0x0080_0000 + stream.below(0x7f00_0000)) as u32))
        .chain([f32::MIN_POSITIVE, f32::MAX, 1.0])
        .collect();
    for inputs in [any, spread(0.5, 2.0, 40_000), spread(1.0, 1e6, 10_000)] {
        let (error, at) = worst_ulp(Function::Ln, f64::ln, &inputs);
        assert!(error <= 2.0, "{error} ulp at {at}");
    }
    assert_eq!(apply(Function::Ln, &[1.0]), [0.0]);
}

#[test]
fn sigmoid_is_accurate_and_saturates() {
    let (error, at) = worst_ulp(Function::Sigmoid, |x| 1.0 / (1.0 + (-x).exp()), &spread(-80.0, 40.0, 40_000));
    assert!(error <= 3.0, "{error} ulp at {at}");
    assert_eq!(
        apply(Function::Sigmoid, &[0.0, 200.0, -200.0, f32::INFINITY, f32::NEG_INFINITY]),
        [0.5, 1.0, 0.0, 1.0, 0.0]
    );
    assert!(apply(Function::Sigmoid, &[f32::NAN])[0].is_nan());
}
