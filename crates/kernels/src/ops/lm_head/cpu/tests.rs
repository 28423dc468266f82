//! Tests where the lm head splits rows and the vocabulary, and how a row's chunks are combined.

use super::*;
use crate::simd::portable::F32x16;

#[test]
fn blocks_of_rows_end_at_multiples_of_32_rows_of_a_segment() {
    let of = |rows, segments: Option<&[u32]>| cut(rows, segments);
    assert_eq!(of(0, None), []);
    assert_eq!(of(1, None), [(0..1, vec![0, 1])]);
    assert_eq!(of(512, None), [(0..512, vec![0, 512])]);
    assert_eq!(of(513, None), [(0..512, vec![0, 512]), (512..513, vec![0, 1])]);
    // Segments that begin inside a block and at its end, and an empty segment.
    assert_eq!(of(70, Some(&[0, 1, 1, 40, 70])), [(0..70, vec![0, 1, 40, 70])]);
    assert_eq!(of(520, Some(&[0, 512, 520])), [(0..512, vec![0, 512]), (512..520, vec![0, 8])]);
    // From row 40 on, steps have 32 rows. The last step that ends at or before row 512 ends at row 488.
    assert_eq!(of(600, Some(&[0, 1, 40, 600])), [(0..488, vec![0, 1, 40, 488]), (488..600, vec![0, 112])]);
    assert_eq!(blocks(3..10, 4).collect::<Vec<_>>(), [3..7, 7..10]);
    assert_eq!(blocks(3..11, 4).collect::<Vec<_>>(), [3..7, 7..11]);
    assert_eq!(blocks(3..3, 4).collect::<Vec<_>>(), []);
}

#[test]
fn combining_chunks_gives_the_log_sum_exp_of_the_row() {
    let of = |chunks: &[[f32; KEPT]]| {
        let Row { max, lse, entropy } = combine::<F32x16>(chunks.as_flattened());
        [max, lse, entropy]
    };
    let near = |got: [f32; 3], expected: [f64; 3]| {
        let near = got.iter().zip(expected).all(|(&got, expected)| (f64::from(got) - expected).abs() < 1e-6);
        assert!(near, "{got:?} {expected:?}");
    };
    // A single token has entropy 0.
    near(of(&[[3.0, 1.0, 0.0]]), [3.0, 3.0, 0.0]);
    // Two chunks with two equal tokens each, then one with tokens that are e^-2 as likely.
    near(of(&[[1.0, 2.0, 0.0], [1.0, 2.0, 0.0]]), [1.0, 1.0 + 4.0f64.ln(), 4.0f64.ln()]);
    let total = 2.0 + 2.0 * (-2.0f64).exp();
    let entropy = total.ln() + 2.0 * (-2.0f64).exp() * 2.0 / total;
    near(of(&[[-1.0, 2.0, 0.0], [1.0, 2.0, 0.0]]), [1.0, 1.0 + total.ln(), entropy]);
    near(of(&[[1.0, 2.0, 0.0], [-1.0, 2.0, 0.0]]), [1.0, 1.0 + total.ln(), entropy]);
    // A sum that is not finite, or impossible, gives NaN.
    for sum in [f32::INFINITY, f32::NAN, 0.5] {
        let [_, lse, entropy] = of(&[[1.0, sum, 0.0]]);
        assert!(lse.is_nan() && entropy.is_nan(), "{sum}");
    }
}
