//! Checks that the functions of `kernel.cuh` give the CPU's bits, on the emulator or on the GPU that
//! `LOCKSTEP_DEVICE` names.

use super::device;
use crate::device::cuda::{Grid, Source, source};
use crate::rng::{Stream, philox, unit_f32};
use crate::simd::{LANES, Simd, portable};
use crate::tensor::rounded_to_bf16;
use crate::{Context, DType, Tensor, math};

const SOURCE: Source = source!("functions");

struct Each<'a>(&'a [f32]);

impl crate::simd::Kernel for Each<'_> {
    type Output = [Vec<f32>; 5];
    fn run<V: Simd>(self) -> Self::Output {
        let all = |f: fn(V) -> V| self.0.iter().map(|&x| f(V::splat(x)).to_array()[0]).collect();
        let fold = |f: fn(V) -> f32| self.0.chunks(LANES).flat_map(|x| [f(V::load(x)); LANES]).collect();
        [all(math::exp), all(math::ln), all(math::sigmoid), fold(V::sum), fold(V::max_lane)]
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    // Which NaN an operation returns depends on the processor.
    x.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

#[test]
fn cuda_functions_and_reductions_give_the_bits_of_the_cpu() {
    let Some(cuda) = device(0) else { return };
    let ctx = Context::cuda(cuda.clone());
    let mut stream = Stream::new(7, 0);
    let mut x: Vec<f32> = (0..40_000).map(|_| f32::from_bits(stream.next_u64() as u32)).collect();
    x.extend((0..40_000).map(|i| (i - 20_000) as f32 * 0.005));
    x.extend([0.0, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, f32::MAX]);
    x.extend([-87.33, -87.330_01, 88.72, 88.720_01, 1e-40, -1e-40, 16.0, -16.0]);
    assert!(x.len().is_multiple_of(LANES));
    let tensor = || Tensor::zeros(ctx.memory(), &[x.len()], DType::F32);
    let (input, mut outs) = (Tensor::from_f32(ctx.memory(), &[x.len()], &x), [(); 6].map(|()| tensor()));
    let mut at: Vec<_> = outs.iter_mut().map(|out| out.view_mut().f32_at(&cuda).unwrap()).collect();
    at.insert(0, input.view().f32_at(&cuda).unwrap());
    let (count, grid) = (x.len().into(), Grid::over(x.len()));
    cuda.launch(&SOURCE, "functions", grid, &[at[0], at[1], at[2], at[3], at[4], count]).unwrap();
    cuda.launch(&SOURCE, "folds", grid, &[at[0], at[5], at[6], count]).unwrap();
    let [exp, ln, sigmoid, sum, largest] = portable::run(Each(&x));
    for (out, (name, expected)) in outs.iter().zip([
        ("exp", exp),
        ("ln", ln),
        ("sigmoid", sigmoid),
        ("bf16", rounded_to_bf16(&x)),
        ("sum", sum),
        ("largest", largest),
    ]) {
        let got = out.to_vec_f32();
        for (i, (got, expected)) in bits(&got).into_iter().zip(bits(&expected)).enumerate() {
            // `ln` is defined for positive normal numbers only.
            assert!(got == expected || (name == "ln" && !(x[i] > 0.0 && x[i].is_normal())), "{name} of {:e}", x[i]);
        }
    }
}

#[test]
fn cuda_random_words_match_the_cpu() {
    let Some(cuda) = device(0) else { return };
    let ctx = Context::cuda(cuda.clone());
    let (count, key) = (1000usize, 0x0123_4567_89ab_cdef_u64);
    let mut words = Tensor::zeros(ctx.memory(), &[count, 4], DType::U32);
    let mut units = Tensor::zeros(ctx.memory(), &[count], DType::F32);
    let args = [key.into(), words.view_mut().u32_at(&cuda), units.view_mut().f32_at(&cuda).unwrap(), count.into()];
    cuda.launch(&SOURCE, "random_words", Grid::over(count), &args).unwrap();
    let (words, units) = (words.view().to_vec_u32(), units.to_vec_f32());
    for i in 0..count as u32 {
        let expected = philox(key, [i, 7, i.wrapping_mul(i), u32::MAX - i]);
        assert_eq!(words[4 * i as usize..][..4], expected);
        assert_eq!(units[i as usize], unit_f32(expected[0]));
    }
}
