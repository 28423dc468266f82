//! The forward pass of attention in bf16 on AMX tiles, for CPUs that have them. (`backward_amx.rs` contains the
//! backward pass.)
//!
//! Tasks, the order of blocks, the online-softmax state of a row and its rescaling rule are those of `cpu.rs`. Each
//! block of 64 keys needs two matmuls, computed on tiles ([`crate::simd::tiles`]) in steps of 32 terms. A query is a
//! pair (row, query head):
//!
//! | matmul  | left operand A                      | right operand B   | steps of 32 terms                                 |
//! |---------|-------------------------------------|-------------------|---------------------------------------------------|
//! | q · Kᵀ  | the task's queries                  | the page's keys   | along head_dim, zeros after its end               |
//! | P · V   | P = exp(z − m), rounded to bf16     | the page's values | the two halves of the block; P = 0 at masked keys |
//!
//! Both halves of a block are added to every row that attends to any key of the block. So a row's bits depend on the
//! same inputs as in `cpu.rs`, with one exception: a key that is masked for this row but not for another row of the
//! same task is multiplied by 0. If that key's value is infinite or NaN, which happens only in a diverged model, this
//! row becomes NaN too.

use super::pages::{self, padded};
use super::places::{Outputs, Places, rescaled, span};
use super::{BLOCK, Forward, Geometry};
use crate::device::Cpu;
use crate::gemm::aligned;
use crate::gemm::{halves, narrowed};
use crate::math::exp_finite;
use crate::ops::lanes::rows;
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::tiles::{DEPTH, SIDE, TileMatmul, Unit, cuts, run_all};
use crate::simd::{Element, LANES, Simd};
use crate::tensor::Elements;
use half::bf16;
use std::ops::Range;

/// Approximate number of queries (row, query head) of a task. The tiles of a KV-cache page are loaded once per 32
/// queries, and the task's queries, scores and outputs stay in the second-level cache.
const PAIRS: usize = if cfg!(test) { 40 } else { 128 };
/// Minimum number of queries in a task; with fewer, tiles are half empty.
const FEWEST: usize = 2 * SIDE;

/// Bytes of one row of a tile of A (`LINE`), and of its 16 rows (`LINES`).
pub(super) const LINE: usize = size_of::<[bf16; DEPTH]>();
pub(super) const LINES: usize = SIDE * LINE;

struct ForwardTasks<'a> {
    unit: Unit,
    geometry: Geometry,
    places: Places<'a>,
    qkv: &'a [bf16],
    keys: &'a [bf16],
    values: &'a [bf16],
    outputs: Outputs<'a, bf16>,
    rows_of_tile: usize,
}

/// Buffers of a task: its queries and their online-softmax state. `pairs` in a shape counts the queries (row, query
/// head), row by row.
struct Tile<'s> {
    pairs: usize,
    /// Queries: `[steps of 32 dimensions][pairs][32]`.
    q: &'s mut [bf16],
    /// Scores of one block of keys: `[pairs, 64]`.
    s: &'s mut [f32],
    /// Unnormalised probabilities, in two halves of 32 keys: `[2][pairs][32]`.
    p: &'s mut [bf16],
    /// Unnormalised outputs: `[pairs, padded hd]`. The padding is never read.
    o: &'s mut [f32],
    /// Partial sums of exp(z − m): `[pairs, 16]`.
    l: &'s mut [f32],
    /// Largest score so far: `[pairs]`.
    m: &'s mut [f32],
    /// Buffer for a KV-cache page that must be copied into tiles.
    room: &'s mut [bf16],
}

impl Tasks for ForwardTasks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, scratch: &mut Scratch) {
        let (g, group, padded) = (&self.geometry, self.geometry.group(), padded(self.geometry.head_dim));
        let tiles = self.places.positions.len().div_ceil(self.rows_of_tile);
        // The last rows attend to the most keys. They come first, so that threads finish at about the same time.
        let (tile, head) = (tiles - 1 - index / g.kv_heads, index % g.kv_heads);
        let rows = rows(tile, self.rows_of_tile, self.places.positions.len());
        let pairs = rows.len() * group;

        // All lengths except the last are multiples of a cache line.
        let lens = [pairs * padded / 2, BLOCK * pairs / 2, BLOCK * padded, pairs * BLOCK, pairs * padded];
        let memory = aligned(scratch, lens.iter().sum::<usize>() + pairs * (LANES + 1));
        let (q, rest) = memory.split_at_mut(lens[0]);
        let (p, rest) = rest.split_at_mut(lens[1]);
        let (room, rest) = rest.split_at_mut(lens[2]);
        let (s, rest) = rest.split_at_mut(lens[3]);
        let (o, rest) = rest.split_at_mut(lens[4]);
        let (l, m) = rest.split_at_mut(pairs * LANES);
        let (q, p, room) = (halves(q), halves(p), halves(room));
        let mut t = Tile { pairs, q, s, p, o, l, m, room };
        t.o.fill(0.0);
        t.m.fill(f32::NEG_INFINITY);
        t.l.fill(0.0);
        self.queries::<V>(&mut t, rows.clone(), head);

        for block in self.places.blocks(g, rows.clone()) {
            for (page, run) in self.places.runs(g, rows.clone(), block) {
                self.block::<V>(&mut t, rows.start, run, head, block, page);
            }
        }
        for (i, row) in rows.enumerate() {
            for h in 0..group {
                let pair = i * group + h;
                let o = &t.o[pair * padded..pair * padded + g.head_dim];
                let l = &t.l[pair * LANES..(pair + 1) * LANES];
                // SAFETY: no other task accesses this row and head.
                unsafe { self.outputs.write::<V>(row * g.heads + head * group + h, o, t.m[pair], l) };
            }
        }
    }
}

impl ForwardTasks<'_> {
    /// Copies the task's queries into rows of tiles.
    #[inline(always)]
    fn queries<V: Simd>(&self, t: &mut Tile<'_>, rows: Range<usize>, head: usize) {
        let (g, hd, group) = (&self.geometry, self.geometry.head_dim, self.geometry.group());
        for (i, row) in rows.enumerate() {
            let at = row * g.width() + head * group * hd;
            for (h, from) in self.qkv[at..at + group * hd].chunks_exact(hd).enumerate() {
                for (step, from) in from.chunks(DEPTH).enumerate() {
                    let line = step * t.pairs + i * group + h;
                    narrowed::<V>(Elements::Bf16(from), &mut t.q[line * DEPTH..(line + 1) * DEPTH]);
                }
            }
        }
    }

    /// Adds one KV-cache page to the attention of rows `run`: computes scores, the online softmax, and the weighted sum
    /// of values. `page` contains block `block` of these rows' sequence; `start` is the task's first row.
    #[inline(always)]
    fn block<V: Simd>(
        &self,
        t: &mut Tile<'_>,
        start: usize,
        run: Range<usize>,
        head: usize,
        block: usize,
        page: usize,
    ) {
        let (g, hd, group) = (&self.geometry, self.geometry.head_dim, self.geometry.group());
        let padded = padded(hd);
        let slots = |row: usize| g.slots(self.places.positions[row] as usize, block);
        let (_, any_sees) = span(run.clone().map(slots));
        let at = (page * g.kv_heads + head) * BLOCK * hd;
        let page_kv = [&self.keys[at..at + BLOCK * hd], &self.values[at..at + BLOCK * hd]];
        let [keys, values] = pages::tiles::<V>(page_kv, hd, any_sees.end, t.room);
        let (first, count) = ((run.start - start) * group, run.len() * group);
        assert!(first + count <= t.pairs && keys.len() == BLOCK * padded && values.len() == keys.len());

        // Computes scores for 32 keys at a time, up to the last key that any row attends to. Later columns are not
        // computed, only masked below.
        let panels = any_sees.end.div_ceil(DEPTH);
        for (cut, blocks, rows) in cuts(count) {
            let pair = first + cut;
            let (a, b, c) = (&t.q[pair * DEPTH..], &keys, t.s[pair * BLOCK..].as_mut_ptr());
            let matmul = |panel: usize| TileMatmul {
                a: a.as_ptr(),
                b: b[panel * DEPTH * padded..].as_ptr(),
                c: c.wrapping_add(panel * DEPTH),
                a_row: LINE,
                a_lower: LINES,
                a_step: t.pairs * LINE,
                c_stride: BLOCK * size_of::<f32>(),
                a_block: 2 * LINES,
                c_block: 2 * SIDE * BLOCK * size_of::<f32>(),
                depth: padded / DEPTH,
                blocks,
                from_c: 0,
                rows,
            };
            // SAFETY: every step of q has lines of `count` pairs from `first`, every panel has its tiles of keys, and
            // the scores have `count` rows. All buffers belong to this task.
            unsafe { run_all(self.unit, (0..panels).map(matmul)) };
        }

        for row in run.clone() {
            let slots = slots(row);
            for pair in (row - start) * group..(row - start + 1) * group {
                let (low, high) = t.p.split_at_mut(t.pairs * DEPTH);
                let p = [low, high].map(|half| &mut half[pair * DEPTH..(pair + 1) * DEPTH]);
                let s = &t.s[pair * BLOCK..(pair + 1) * BLOCK];
                let l = &mut t.l[pair * LANES..(pair + 1) * LANES];
                let o = &mut t.o[pair * padded..pair * padded + hd];
                online_softmax::<V>(s, p, g.scale, slots.clone(), &mut t.m[pair], l, o);
            }
        }

        for (cut, blocks, rows) in cuts(count) {
            let pair = first + cut;
            let (a, b, c) = (&t.p[pair * DEPTH..], &values, t.o[pair * padded..].as_mut_ptr());
            let matmul = |panel: usize| TileMatmul {
                a: a.as_ptr(),
                b: b[panel * DEPTH * BLOCK..].as_ptr(),
                c: c.wrapping_add(panel * DEPTH),
                a_row: LINE,
                a_lower: LINES,
                a_step: t.pairs * LINE,
                c_stride: padded * size_of::<f32>(),
                a_block: 2 * LINES,
                c_block: 2 * SIDE * padded * size_of::<f32>(),
                depth: BLOCK / DEPTH,
                blocks,
                from_c: 1,
                rows,
            };
            // SAFETY: both halves of p have lines of `count` pairs from `first`, every panel has its tiles of values,
            // and O has `count` rows. All buffers belong to this task.
            unsafe { run_all(self.unit, (0..padded / DEPTH).map(matmul)) };
        }
    }
}

/// One online-softmax step of a query. Computes `p` = exp(z − m) from the scores `s` of a block, rounded to bf16, and 0
/// outside `slots`. Updates the query's maximum `m`, sum `l` (of exp(z − m) before rounding) and output `o`. The
/// arithmetic is that of `online_softmax` in `cpu.rs`.
#[inline(always)]
fn online_softmax<V: Simd>(
    s: &[f32],
    p: [&mut [bf16]; 2],
    scale: f32,
    slots: Range<usize>,
    m: &mut f32,
    l: &mut [f32],
    o: &mut [f32],
) {
    const VECTORS: usize = BLOCK / LANES;
    let (scale, minus_infinity) = (V::splat(scale), V::splat(f32::NEG_INFINITY));
    let mut z = [minus_infinity; VECTORS];
    for (v, z) in z.iter_mut().enumerate() {
        *z = V::load(&s[v * LANES..]).mul(scale);
    }
    if slots != (0..BLOCK) {
        for (v, z) in z.iter_mut().enumerate() {
            let below_end = V::first(slots.end.saturating_sub(v * LANES));
            let below_start = V::first(slots.start.saturating_sub(v * LANES));
            *z = V::select(below_start, minus_infinity, V::select(below_end, *z, minus_infinity));
        }
    }
    let largest = z[0].max(z[1]).max(z[2].max(z[3])).max_lane();
    let mut sum = rescaled(largest, m, V::load(l), o);
    let (m, [low, high]) = (V::splat(*m), p);
    for (v, z) in z.into_iter().enumerate() {
        let p = exp_finite(z.sub(m));
        bf16::store(p, &mut (if v < 2 { &mut *low } else { &mut *high })[v % 2 * LANES..]);
        sum = sum.add(p);
    }
    sum.store(l);
}

/// [`super::forward`] in bf16 on the CPU's tile unit.
pub(super) fn forward(cpu: &Cpu, args: Forward<'_>, unit: Unit) {
    let (g, places) = (args.geometry, Places::new(cpu, args.rows));
    let rows = places.positions.len();
    // Tasks have fewer rows if threads would otherwise be idle, but at least enough to fill the tiles.
    let for_threads = (rows * g.kv_heads).div_ceil(2 * cpu.threads()).max(FEWEST / g.group());
    let rows_of_tile = (PAIRS / g.group()).min(for_threads).max(1);
    let tasks = ForwardTasks {
        unit,
        geometry: g,
        places,
        qkv: args.qkv.bf16(cpu),
        keys: args.pages.keys.bf16(cpu),
        values: args.pages.values.bf16(cpu),
        outputs: Outputs {
            out: Disjoint::new(args.out.bf16(cpu)),
            lse: args.lse.map(|lse| Disjoint::new(lse.f32(cpu))),
        },
        rows_of_tile,
    };
    cpu.run(rows.div_ceil(rows_of_tile) * g.kv_heads, &tasks);
}
