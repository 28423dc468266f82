//! The documented formulas, computed one number at a time, with keys and values read from the rows that wrote them.

use super::*;
use crate::math::{exp1, ln1};
use crate::ops::linear::reference::on_tiles;
use crate::ops::linear::reference::rounded;
use crate::simd::tiles::{self, DEPTH};
use crate::simd::{LANES, portable::F32x16 as Portable};
use std::collections::BTreeMap;

/// The details in which the arithmetics of f32, bf16 chains and tiles differ.
#[derive(Clone, Copy)]
pub(super) struct Arithmetic {
    /// Adds the products of these pairs to an initial value.
    pub sum: fn(f32, Vec<(f32, f32)>) -> f32,
    /// Rounds probabilities, output gradients and score gradients before they are multiplied.
    pub round: fn(f32) -> f32,
    /// Number of pairs (row, query head) in one step of a sum over rows.
    pub step: usize,
}

pub(super) const F32: Arithmetic = Arithmetic { sum: chain, round: |x| x, step: 1 };
pub(super) const BF16: Arithmetic = Arithmetic { sum: flushed_chain, round: rounded, step: 1 };
pub(super) const TILES: Arithmetic = Arithmetic { sum: on_tiles, round: rounded, step: DEPTH };

fn chain(start: f32, terms: Vec<(f32, f32)>) -> f32 {
    terms.into_iter().fold(start, |sum, (a, b)| a.mul_add(b, sum))
}

fn flushed_chain(start: f32, terms: Vec<(f32, f32)>) -> f32 {
    terms.into_iter().fold(start, |sum, (a, b)| tiles::fma(a, b, sum))
}

impl Arithmetic {
    /// The term of a sum for one key. If the key is masked (`None`), tiles multiply by 0, and chains have no term.
    fn term(self, a: f32, b: Option<f32>) -> Option<(f32, f32)> {
        if self.step == 1 { b.map(|b| (a, b)) } else { Some((a, b.unwrap_or(0.0))) }
    }
}

fn part<'a>(g: &Geometry, qkv: &'a [f32], row: usize, head: usize) -> &'a [f32] {
    &qkv[row * g.width() + head * g.head_dim..][..g.head_dim]
}

fn heads(g: &Geometry, head: usize) -> [usize; 2] {
    let kv = head / (g.heads / g.kv_heads);
    [g.heads + kv, g.heads + g.kv_heads + kv]
}

/// For each slot of a block, the row of its key, if the key is attended to.
pub(super) type Slots = [Option<usize>; BLOCK];

/// The keys to which the last of these rows attends, by block.
pub(super) fn seen(g: &Geometry, keys: &[usize]) -> Vec<(usize, Slots)> {
    let first = g.window.map_or(0, |w| keys.len().saturating_sub(w));
    let slot = |j: usize| (first..keys.len()).contains(&j).then(|| keys[j]);
    let block = |b: usize| (b, std::array::from_fn(|i| slot(b * BLOCK + i)));
    (first / BLOCK..keys.len().div_ceil(BLOCK)).map(block).collect()
}

/// The scores z of these keys, −∞ for a masked key.
fn scores(g: &Geometry, a: Arithmetic, q: &[f32], keys: &[Option<&[f32]>]) -> Vec<f32> {
    let dot = |k: &[f32]| (a.sum)(0.0, q.iter().copied().zip(k.iter().copied()).collect()) * g.scale;
    keys.iter().map(|k| k.map_or(f32::NEG_INFINITY, dot)).collect()
}

/// The online-softmax state that is carried from block to block.
#[derive(Clone)]
pub(super) struct State {
    pub m: f32,
    pub l: [f32; LANES],
    pub o: Vec<f32>,
}

impl State {
    /// The state before the first key.
    pub(super) fn new(g: &Geometry) -> State {
        State { m: f32::NEG_INFINITY, l: [0.0; LANES], o: vec![0.0; g.head_dim] }
    }

    /// Adds the keys of a block for the query of `row`.
    pub(super) fn take(&mut self, g: &Geometry, qkv: &[f32], row: usize, head: usize, slots: &Slots, a: Arithmetic) {
        let State { m, l, o } = self;
        let head_parts = |head: usize| slots.map(|key| key.map(|key| part(g, qkv, key, head)));
        let [k_head, v_head] = heads(g, head);
        let z = scores(g, a, part(g, qkv, row, head), &head_parts(k_head));
        let largest = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if largest > *m {
            let alpha = exp1::<Portable>(*m - largest);
            *m = largest;
            l.iter_mut().chain(&mut *o).for_each(|x| *x *= alpha);
        }
        let p: Vec<f32> = z.iter().map(|z| exp1::<Portable>(z - *m)).collect();
        p.iter().enumerate().for_each(|(j, p)| l[j % LANES] += p);
        let values = head_parts(v_head);
        for (i, o) in o.iter_mut().enumerate() {
            let terms = p.iter().zip(&values).filter_map(|(&p, v)| a.term((a.round)(p), v.map(|v| v[i])));
            *o = (a.sum)(*o, terms.collect());
        }
    }

    /// The sum of the 16 lanes.
    pub(super) fn sum(&self) -> f32 {
        let mut l = self.l;
        for half in [8, 4, 2, 1] {
            (0..half).for_each(|i| l[i] += l[i + half]);
        }
        l[0]
    }
}

/// The attention output and log-sum-exp of one row for one head.
pub(super) fn emulated(g: &Geometry, qkv: &[f32], keys: &[usize], head: usize, a: Arithmetic) -> (Vec<f32>, f32) {
    let (row, mut state) = (*keys.last().unwrap(), State::new(g));
    for (_, slots) in seen(g, keys) {
        state.take(g, qkv, row, head, &slots, a);
    }
    let l = state.sum();
    (state.o.iter().map(|o| o / l).collect(), state.m + ln1::<Portable>(l))
}

/// The probabilities and score gradients of one pair (row, query head), for each slot of a page.
type OfPair = ([f32; BLOCK], [f32; BLOCK]);

/// The gradient of `qkv`, from the results of the forward pass.
pub(super) fn emulated_backward(run: &Run, qkv: &[f32], [out, lse, d_out]: [&[f32]; 3], a: Arithmetic) -> Vec<f32> {
    let (g, l, hd) = (&run.g, &run.layout, run.g.head_dim);
    let mut d_qkv = vec![0.0f32; qkv.len()];
    // For each page and kv head, the gradients of the keys and values in its slots.
    let mut d_pages: BTreeMap<(u32, usize), Vec<[Vec<f32>; 2]>> = BTreeMap::new();
    let d_out: Vec<f32> = d_out.iter().map(|&x| (a.round)(x)).collect();
    let per = g.heads / g.kv_heads;
    for group in l.groups.windows(2).map(|o| o[0] as usize..o[1] as usize) {
        for kv in 0..g.kv_heads {
            let mut visits: BTreeMap<(usize, u32), Vec<OfPair>> = BTreeMap::new();
            for (pair, (row, h)) in group.clone().flat_map(|row| (0..per).map(move |h| (row, kv * per + h))).enumerate()
            {
                let q = part(g, qkv, row, h);
                let at = (row * g.heads + h) * hd..(row * g.heads + h + 1) * hd;
                let (o, d_o) = (&out[at.clone()], &d_out[at]);
                let mut delta = [0.0f32; LANES];
                o.iter()
                    .zip(d_o)
                    .enumerate()
                    .for_each(|(i, (o, d))| delta[i % LANES] = d.mul_add(*o, delta[i % LANES]));
                for half in [8, 4, 2, 1] {
                    (0..half).for_each(|i| delta[i] += delta[i + half]);
                }
                for (block, slots) in seen(g, &l.keys[row]) {
                    let head_parts = |head: usize| slots.map(|key| key.map(|key| part(g, qkv, key, head)));
                    let [keys, values] = heads(g, h).map(head_parts);
                    let z = scores(g, a, q, &keys);
                    let p: [f32; BLOCK] = std::array::from_fn(|j| exp1::<Portable>(z[j] - lse[row * g.heads + h]));
                    let d_s: [f32; BLOCK] = std::array::from_fn(|j| {
                        let d_p = values[j].map(|v| (a.sum)(0.0, d_o.iter().copied().zip(v.iter().copied()).collect()));
                        d_p.map_or(0.0, |d_p| (a.round)(p[j] * (d_p - delta[0]) * g.scale))
                    });
                    let at = (row * g.width()) + h * hd;
                    for i in 0..hd {
                        let terms = d_s.iter().zip(&keys).filter_map(|(&d_s, k)| a.term(d_s, k.map(|k| k[i])));
                        d_qkv[at + i] = (a.sum)(d_qkv[at + i], terms.collect());
                    }
                    let page = l.tables[l.tables_of_rows[row] as usize * l.table_len + block];
                    let page_pairs = visits.entry((block, page)).or_default();
                    page_pairs.resize(group.len() * per, ([f32::NAN; BLOCK], [0.0; BLOCK]));
                    page_pairs[pair] = (p.map(a.round), d_s);
                }
            }
            for ((_, page), pairs) in visits {
                let d_page = d_pages.entry((page, kv)).or_insert_with(|| vec![[(); 2].map(|()| vec![0.0; hd]); BLOCK]);
                for (step, pairs) in pairs.chunks(a.step).enumerate() {
                    if pairs.iter().all(|(p, _)| p[0].is_nan()) {
                        continue;
                    }
                    // A pair that does not attend to the page has p = NaN.
                    let zero = |x: f32| if x.is_nan() { 0.0 } else { x };
                    for (j, [d_k, d_v]) in d_page.iter_mut().enumerate() {
                        for i in 0..hd {
                            let pair_values = |pair: usize| {
                                let pair = step * a.step + pair;
                                let (row, h) = (group.start + pair / per, kv * per + pair % per);
                                (part(g, qkv, row, h)[i], d_out[(row * g.heads + h) * hd + i])
                            };
                            let pairs = || pairs.iter().enumerate();
                            let keys = pairs().map(|(n, (_, d_s))| (d_s[j], pair_values(n).0));
                            d_k[i] = (a.sum)(d_k[i], keys.collect());
                            let values = pairs().map(|(n, (p, _))| (zero(p[j]), pair_values(n).1));
                            d_v[i] = (a.sum)(d_v[i], values.collect());
                        }
                    }
                }
            }
        }
    }
    for (&row, &slot) in l.write_rows.iter().zip(&l.write_slots) {
        for kv in 0..g.kv_heads {
            let Some(d_page) = d_pages.get(&(slot / BLOCK as u32, kv)) else { continue };
            for (part, d) in d_page[slot as usize % BLOCK].iter().enumerate() {
                let at = row as usize * g.width() + (g.heads + part * g.kv_heads + kv) * hd;
                d_qkv[at..at + hd].iter_mut().zip(d).for_each(|(to, d)| *to += d);
            }
        }
    }
    d_qkv
}
