use super::*;
use crate::check::{directional_error, normal};
use crate::{Device, Isa, Memory, Tensor};

/// Gemma 3's factor for embeddings of size 1152.
const SCALE: f32 = 33.941_125;

const SHAPES: [(usize, usize, usize); 5] = [(1, 1, 1), (3, 5, 7), (40, 129, 70), (0, 4, 3), (70, 33, 130)];

fn ids(tokens: usize, vocab: usize) -> Vec<u32> {
    // Some ids repeat, and one is the last row of the table.
    (0..tokens).map(|t| if t % 3 == 0 { vocab as u32 - 1 } else { (t * 7 % vocab) as u32 }).collect()
}

fn gathered(ctx: &Context, [tokens, vocab, hidden]: [usize; 3], scale: f32) -> Vec<f32> {
    let memory = Memory::new(Device::Cpu);
    let table = Matrix::from_f32(&memory, vocab, hidden, &normal::<f32>(1, vocab * hidden));
    let ids = Tensor::from_u32(&memory, &[tokens], &ids(tokens, vocab));
    let mut out = Tensor::from_f32(&memory, &[tokens, hidden], &vec![f32::NAN; tokens * hidden]);
    forward(ctx, Forward { ids: ids.view(), table: &table, scale, out: out.view_mut() }).unwrap();
    out.to_vec_f32()
}

/// The table's gradient, with the tokens split at `cut` into two calls.
fn scattered(ctx: &Context, [tokens, vocab, hidden]: [usize; 3], scale: f32, cut: usize) -> Vec<f32> {
    let memory = Memory::new(Device::Cpu);
    let mut d_table = Matrix::from_f32(&memory, vocab, hidden, &normal::<f32>(2, vocab * hidden));
    let ids = Tensor::from_u32(&memory, &[tokens], &ids(tokens, vocab));
    let d_out = Tensor::from_f32(&memory, &[tokens, hidden], &normal::<f32>(3, tokens * hidden));
    for t in [0..cut, cut..tokens] {
        let (ids, d_out) = (ids.rows(t.clone()), d_out.rows(t));
        backward(ctx, Backward { ids, d_out, scale, d_table: &mut d_table }).unwrap();
    }
    d_table.unpack_rows(0..vocab)
}

#[test]
fn the_result_equals_the_oracle_for_any_threads_and_split() {
    for ((tokens, vocab, hidden), scale) in SHAPES.into_iter().flat_map(|shape| [(shape, 1.0), (shape, SCALE)]) {
        let (ids, shape) = (ids(tokens, vocab), [tokens, vocab, hidden]);
        let out = reference::forward(hidden, &ids, &normal::<f32>(1, vocab * hidden), scale);
        let mut d_table = normal::<f32>(2, vocab * hidden);
        let start = d_table.clone();
        reference::backward(hidden, &ids, &normal::<f32>(3, tokens * hidden), scale, &mut d_table);
        for isa in Isa::present() {
            for threads in 1..=3 {
                let ctx = Context::cpu(isa, threads);
                assert_eq!(gathered(&ctx, shape, scale), out);
                for cut in [0, tokens / 2] {
                    assert_eq!(scattered(&ctx, shape, scale, cut), d_table);
                }
            }
        }
        assert_eq!(start == d_table, tokens == 0, "the check must detect a missing gradient");
    }
}

#[test]
fn the_oracles_gradient_matches_finite_differences() {
    let (tokens, vocab, hidden) = (7, 5, 3);
    let (table, d_out): (Vec<f64>, Vec<f64>) = (normal(1, vocab * hidden), normal(3, tokens * hidden));
    let ids = ids(tokens, vocab);
    let loss = |table: &[f64]| {
        let out = reference::forward(hidden, &ids, table, 1.7);
        out.iter().zip(&d_out).map(|(y, d)| y * d).sum()
    };
    let mut gradient = vec![0.0; vocab * hidden];
    reference::backward(hidden, &ids, &d_out, 1.7, &mut gradient);
    assert!(directional_error(&table, &gradient, loss) < 1e-7);
    // A gradient without the last token is wrong.
    let mut spoiled = vec![0.0; vocab * hidden];
    reference::backward(hidden, &ids[..tokens - 1], &d_out, 1.7, &mut spoiled);
    assert!(directional_error(&table, &spoiled, loss) > 1e-3);
    // A gradient without the scale is wrong.
    let mut spoiled = vec![0.0; vocab * hidden];
    reference::backward(hidden, &ids, &d_out, 1.0, &mut spoiled);
    assert!(directional_error(&table, &spoiled, loss) > 1e-3);
}

#[test]
fn a_token_id_outside_the_vocabulary_is_an_error() {
    let memory = Memory::new(Device::Cpu);
    let table = Matrix::zeros(&memory, 4, 2);
    let ids = Tensor::from_u32(&memory, &[2], &[3, 4]);
    let mut out = Tensor::zeros(&memory, &[2, 2], DType::F32);
    let ctx = Context::cpu(Isa::PORTABLE, 1);
    let error = forward(&ctx, Forward { ids: ids.view(), table: &table, scale: 1.0, out: out.view_mut() }).unwrap_err();
    assert_eq!(error.to_string(), "embedding::forward: ids[1] is 4, expected below 4");
}
