use super::*;
use crate::check::normal;
use crate::{Device, Isa, Memory, Tensor};

fn norm(ctx: &Context, grads: &[Vec<f32>]) -> Vec<f32> {
    let memory = Memory::new(Device::Cpu);
    let grads: Vec<Tensor> = grads.iter().map(|g| Tensor::from_f32(&memory, &[g.len()], g)).collect();
    let mut out = Tensor::from_f32(&memory, &[2], &[f32::NAN; 2]);
    global(ctx, &grads.iter().map(Tensor::view).collect::<Vec<_>>(), out.view_mut()).unwrap();
    out.to_vec_f32()
}

#[test]
fn the_gradient_norm_matches_the_oracle_on_every_context() {
    let grads: Vec<Vec<f32>> = [1, 0, 129, 3 * cpu::CHUNK + 5].map(|n| normal(n as u64, n)).into();
    let slices: Vec<&[f32]> = grads.iter().map(Vec::as_slice).collect();
    let (oracle, finite) = reference::global(&slices);
    let first = norm(&Context::cpu(Isa::PORTABLE, 1), &grads);
    assert!((f64::from(first[0]) / oracle - 1.0).abs() < 1e-7, "{first:?} {oracle}");
    assert!(finite && first[1] == 1.0);
    for isa in Isa::present() {
        for threads in 1..=3 {
            assert_eq!(norm(&Context::cpu(isa, threads), &grads), first, "{isa:?} {threads}");
        }
    }
    assert_eq!(norm(&Context::cpu(Isa::PORTABLE, 1), &[]), [0.0, 1.0]);
}

#[test]
fn the_norm_of_chunks_that_several_processes_sum_has_the_same_bits() {
    let ctx = Context::cpu(Isa::best(), 2);
    let gradient = Tensor::from_f32(ctx.memory(), &[3 * CHUNK + 5], &normal::<f32>(1, 3 * CHUNK + 5));
    let other = Tensor::from_f32(ctx.memory(), &[7], &normal::<f32>(2, 7));
    let sums = |views: &[View<'_>]| sums_of_chunks(&ctx, views).unwrap();
    let whole = norm(&ctx, &[gradient.to_vec_f32(), other.to_vec_f32()]);
    for cut in 0..=3 {
        let first = sums(&[gradient.rows(0..cut * CHUNK)]);
        let rest = sums(&[gradient.rows(cut * CHUNK..3 * CHUNK + 5), other.view()]);
        assert_eq!((first.len(), rest.len()), (cut, 5 - cut));
        assert_eq!(from_chunks(&[first, rest].concat()).map(f32::to_bits), [whole[0], whole[1]].map(f32::to_bits));
    }
    assert_eq!((from_chunks(&[]), from_chunks(&[1e80])), ([0.0, 1.0], [f32::INFINITY, 0.0]));
}

#[test]
fn a_single_non_finite_gradient_is_detected() {
    let ctx = Context::cpu(Isa::best(), 2);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 17, 99] {
            let mut g = vec![normal::<f32>(1, 50), normal::<f32>(2, 100)];
            g[1][at] = bad;
            assert_eq!(norm(&ctx, &g)[1], 0.0);
            assert!(!reference::global(&[&g[0], &g[1]]).1);
        }
    }
    // The gradients are large but finite, so no square overflows.
    assert_eq!(norm(&ctx, &[vec![2e38, 0.0]]), [2e38, 1.0]);
}
