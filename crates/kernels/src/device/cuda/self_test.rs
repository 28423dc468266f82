//! Compares a device's tensor cores with the formula of their family. A process compares a few thousand dot products
//! before it first uses the tensor cores; tests can compare any number.

use super::driver::{Grid, Outcome};
use super::sources::Source;
use super::tensor_core::{DEPTH, Factor, Family};
use super::{Cuda, source};
use crate::Result;
use crate::rng::Stream;
use half::bf16;

const SOURCE: Source = source!("tensor_core");
/// The shape of one instruction's matmul: `[ROWS, DEPTH]` by `[DEPTH, COLUMNS]`.
const ROWS: usize = 16;
const COLUMNS: usize = 8;
/// Number of instructions compared before the first use.
const AT_START: usize = 32;
const SEED: u64 = 0x7465_6e73_6f72;
/// Number of instructions compared in one launch.
const AT_ONCE: usize = 4096;

/// The result of a comparison.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Number of dot products compared, of 16 terms each.
    pub compared: usize,
    pub differ: usize,
    /// The operands of the first dot products that differ, with both results, formatted as text.
    pub first: Vec<String>,
}

/// Fails if the device's results differ from the formula of `family`.
pub(super) fn run(cuda: &Cuda, family: Family) -> Outcome<()> {
    let report = compare(cuda, family, SEED, AT_START).map_err(|error| error.to_string())?;
    match report.first.first() {
        None => Ok(()),
        Some(first) => Err(format!(
            "{} of {} bf16 dot products differ from the formula of {:?} (docs/arithmetic.md), so results would not be \
             reproducible; dtype = \"f32\" does not use tensor cores. The first: {first}",
            report.differ, report.compared, family.name
        )),
    }
}

/// Compares the results of `instructions` instructions, alternately on ordinary operands and on unusual ones.
pub(super) fn compare(cuda: &Cuda, family: Family, seed: u64, instructions: usize) -> Result<Report> {
    let (stream, mut report) = (cuda.stream(), Report::default());
    for first in (0..instructions).step_by(AT_ONCE) {
        let all: Vec<_> = (first..instructions.min(first + AT_ONCE)).map(|i| Operands::random(i, seed)).collect();
        let pairs = |of: fn(&Operands) -> &[bf16]| -> Vec<u32> {
            all.iter().flat_map(|x| of(x).chunks(2)).map(|two| pair(two[0], two[1])).collect()
        };
        let c: Vec<u32> = all.iter().flat_map(|x| x.c).map(f32::to_bits).collect();
        let (a, b) = (stream.scratch_of(&pairs(|x| &x.a))?, stream.scratch_of(&pairs(|x| &x.b))?);
        let (sums, count) = (stream.scratch_of(&c)?, all.len());
        let arguments = [a.at(0), b.at(0), sums.at(0), count.into()];
        cuda.launch(&SOURCE, "tensor_core_dot_products", Grid::each(count.div_ceil(4), 128), &arguments)?;
        let sums: Vec<f32> = sums.words(c.len()).into_iter().map(f32::from_bits).collect();
        for (operands, got) in all.iter().zip(sums.chunks(ROWS * COLUMNS)) {
            operands.judge(family, got, &mut report);
        }
    }
    Ok(report)
}

fn pair(low: bf16, high: bf16) -> u32 {
    u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16
}

/// The operands of one instruction; `b` is stored column by column.
struct Operands {
    a: [bf16; ROWS * DEPTH],
    b: [bf16; COLUMNS * DEPTH],
    c: [f32; ROWS * COLUMNS],
}

impl Operands {
    fn random(number: usize, seed: u64) -> Operands {
        let mut stream = Stream::new(seed, number as u64);
        // The kinds of operands: ordinary numbers, numbers of any size, numbers near the smallest normal number, terms
        // that cancel, infinities and NaN.
        let kind = [0, 1, 0, 2, 3, 0, 1, 4][number % 8];
        let mut factor = || {
            let random = stream.next_u64();
            let bits = match kind {
                _ if random >> 60 == 0 => random as u16 & 0x8000,
                1 => random as u16 & 0xbfff,
                2 => (random as u16 & 0x87ff) | (0x1800 * (random >> 59 & 1) as u16),
                4 if random >> 56 & 15 == 0 => [0x7f80, 0xff80, 0x7fc0, 0x7f7f][random as usize % 4],
                _ => random as u16 & 0x83ff | 0x3d00,
            };
            bf16::from_bits(bits)
        };
        let mut operands = Operands {
            a: std::array::from_fn(|_| factor()),
            b: std::array::from_fn(|_| factor()),
            c: [0.0; ROWS * COLUMNS],
        };
        for (i, c) in operands.c.iter_mut().enumerate() {
            let random = stream.next_u64();
            *c = match (kind, random >> 60) {
                (_, 0) => 0.0,
                (0 | 3, _) => stream.next_normal() as f32,
                (2, _) => f32::from_bits(random as u32 & 0x81ff_ffff),
                (4, 1) => [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX][i % 4],
                _ => f32::from_bits(random as u32 & 0xbfff_ffff),
            };
        }
        if kind == 3 {
            // The second half of the terms cancels the first half, except for two terms.
            let back = |x: &mut [bf16], sign: f32| {
                x.chunks_mut(DEPTH).for_each(|x| {
                    for k in DEPTH / 2 + 1..DEPTH - 1 {
                        x[k] = bf16::from_f32(sign * x[k - DEPTH / 2].to_f32());
                    }
                });
            };
            back(&mut operands.a, -1.0);
            back(&mut operands.b, 1.0);
        }
        operands
    }

    /// Compares the device's results `got` with the formula. All NaNs count as equal.
    fn judge(&self, family: Family, got: &[f32], report: &mut Report) {
        for (i, (&got, &c)) in got.iter().zip(&self.c).enumerate() {
            let (a, b) = (&self.a[i / COLUMNS * DEPTH..][..DEPTH], &self.b[i % COLUMNS * DEPTH..][..DEPTH]);
            let terms = a.iter().zip(b).map(|(a, b)| (a.to_f32(), b.to_f32()));
            let expected = family.chain(Factor::Bf16, c, terms);
            report.compared += 1;
            if got.to_bits() != expected.to_bits() && !(got.is_nan() && expected.is_nan()) {
                report.differ += 1;
                if report.first.len() < 100 {
                    let hex =
                        |x: &[bf16]| x.iter().map(|x| format!("{:04x}", x.to_bits())).collect::<Vec<_>>().join(" ");
                    report.first.push(format!(
                        "c {:08x}, a {}, b {}: got {:08x}, expected {:08x}",
                        c.to_bits(),
                        hex(a),
                        hex(b),
                        got.to_bits(),
                        expected.to_bits()
                    ));
                }
            }
        }
    }
}
