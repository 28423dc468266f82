//! The backward pass of attention on the CPU, in f32 or widened bf16.
//!
//! A task is one part of a group of rows (`visits.rs`; parts that run at the same time write disjoint gradients) under
//! one kv head. The task visits the part's KV-cache pages in the order of their positions. For each page, the task
//! processes the rows that attend to the page in ascending order, in tiles of a few rows. So the gradient of a query is
//! a sum over its keys in ascending order, and the gradient of a key is a sum over its rows in ascending order,
//! regardless of the tiles. Afterwards the gradients of the pages are added to the rows that wrote them (`writes.rs`).

use super::backward_amx::BackwardTasks as OnTiles;
use super::backward_pairs::BackwardTasks as InPairs;
use super::gradients::{Operands, begin, clear, gradients, rows_of_tile};
use super::matmul::{Matmul, Right};
use super::places::{Places, mask_blocks, on_tiles, span};
use super::visits::{Group, Page, Part, Visit};
use super::writes::GatherTasks;
use super::{BLOCK, Backward, pages};
use crate::device::Cpu;
use crate::ops::lanes::load;
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::element::widen_into;
use crate::simd::{Element, LANES, Simd};
use crate::{DType, Isa};
use std::ops::Range;

struct BackwardTasks<'a, E> {
    isa: Isa,
    of: Operands<'a, E>,
}

/// Buffers of a task: one KV-cache page for one kv head, and a tile of rows that attend to it. `pairs` in a shape
/// counts the tile's queries (row, query head).
struct PageScratch<'s> {
    /// The page's keys: `[64, hd]`.
    keys: &'s mut [f32],
    /// The page's values: `[hd, 64]`.
    values: &'s mut [f32],
    /// Queries, and gradients of outputs and queries: `[pairs, hd]` each, row by row.
    q: &'s mut [f32],
    d_out: &'s mut [f32],
    d_q: &'s mut [f32],
    /// Scores, later probabilities: `[pairs, 64]`.
    p: &'s mut [f32],
    /// Gradients of the probabilities, later of the scores: `[pairs, 64]`.
    d_s: &'s mut [f32],
    /// Σ d_out · out for each query (row, query head) of the task.
    delta: &'s [f32],
}

impl<E: Element + Right> Tasks for BackwardTasks<'_, E> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, scratch: &mut Scratch) {
        let (g, hd, per) = (&self.of.geometry, self.of.geometry.head_dim, self.of.geometry.group());
        let (part, head) = (&self.of.parts[index / g.kv_heads], index % g.kv_heads);
        let Part { rows, visits, .. } = part;
        let rows_of_tile = rows_of_tile(g);
        let pairs = rows_of_tile * per;

        let scratch = scratch.f32(rows.len() * per + 2 * BLOCK * hd + pairs * (3 * hd + 2 * BLOCK));
        let (delta, rest) = scratch.split_at_mut(rows.len() * per);
        let (keys, rest) = rest.split_at_mut(BLOCK * hd);
        let (values, rest) = rest.split_at_mut(BLOCK * hd);
        let (q, rest) = rest.split_at_mut(pairs * hd);
        let (d_out, rest) = rest.split_at_mut(pairs * hd);
        let (d_q, rest) = rest.split_at_mut(pairs * hd);
        let (p, d_s) = rest.split_at_mut(pairs * BLOCK);

        begin::<V, E>(g, part, head, (self.of.d_out, self.of.out), &self.of.d_qkv, delta);
        let mut page = PageScratch { keys, values, q, d_out, d_q, p, d_s, delta };
        for visit in visits {
            let at = (visit.page * g.kv_heads + head) * BLOCK * hd;
            // SAFETY: no other task accesses the part's pages for this kv head.
            let (d_keys, d_values) =
                unsafe { (self.of.d_keys.slice(at..at + BLOCK * hd), self.of.d_values.slice(at..at + BLOCK * hd)) };
            clear(visit, hd, d_keys, d_values);
            // Only used slots are transposed, because short sequences fill little of a page.
            let (keys, values) = (&self.of.keys[at..at + BLOCK * hd], &self.of.values[at..at + BLOCK * hd]);
            for (slot, to) in page.keys.chunks_exact_mut(hd).take(visit.end).enumerate() {
                to.iter_mut().enumerate().for_each(|(i, to)| *to = keys[i * BLOCK + slot].widen());
            }
            for (i, to) in page.values.chunks_exact_mut(BLOCK).enumerate() {
                let slot_value = |slot: usize| values[slot * hd + i].widen();
                to[..visit.end].iter_mut().enumerate().for_each(|(slot, to)| *to = slot_value(slot));
            }
            for run in &visit.rows {
                for start in run.clone().step_by(rows_of_tile) {
                    let tile = start..(start + rows_of_tile).min(run.end);
                    self.tile::<V>(&mut page, tile, rows.start, head, visit, d_keys, d_values);
                }
            }
        }
    }
}

impl<E: Element + Right> BackwardTasks<'_, E> {
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn tile<V: Simd>(
        &self,
        w: &mut PageScratch<'_>,
        tile: Range<usize>,
        part_start: usize,
        head: usize,
        visit: &Visit,
        d_keys: &mut [f32],
        d_values: &mut [f32],
    ) {
        let (g, hd, per) = (&self.of.geometry, self.of.geometry.head_dim, self.of.geometry.group());
        let slots = |row: usize| g.slots(self.of.places.positions[row] as usize, visit.block);
        let (_, any_sees) = span(tile.clone().map(slots));
        let pairs = tile.len() * per;
        let columns = any_sees.end.next_multiple_of(LANES);
        let at = (visit.page * g.kv_heads + head) * BLOCK * hd;
        let part = |row: usize| row * g.width() + head * per * hd;
        for (i, row) in tile.clone().enumerate() {
            let here = i * per * hd..(i + 1) * per * hd;
            widen_into::<V, E>(&self.of.qkv[part(row)..part(row) + per * hd], &mut w.q[here.clone()]);
            let at = (row * g.heads + head * per) * hd;
            for (from, to) in
                self.of.d_out[at..at + per * hd].chunks(LANES).zip(w.d_out[here.clone()].chunks_mut(LANES))
            {
                E::rounded(load::<V>(from, 0)).store_partial(to, from.len());
            }
            // SAFETY: no other task accesses this row's queries for this kv head.
            w.d_q[here].copy_from_slice(unsafe { self.of.d_qkv.slice(part(row)..part(row) + per * hd) });
        }

        // Scores, computed as in the forward pass, and d_out · v.
        let (a_row, a_k, b_row, out_row, rows, k, accumulate) = (hd, 1, BLOCK, BLOCK, pairs, 0..hd, false);
        let (a, out, dims) = (&*w.q, &mut *w.p, k.clone());
        let b = &self.of.keys[at..at + BLOCK * hd];
        Matmul { a, a_row, a_k, b, b_row, out, out_row, rows, columns, k: dims, accumulate }.compute::<E>(self.isa);
        let (a, b, out) = (&*w.d_out, &*w.values, &mut *w.d_s);
        Matmul { a, a_row, a_k, b, b_row, out, out_row, rows, columns, k, accumulate }.compute::<E>(self.isa);
        for (i, row) in tile.clone().enumerate() {
            let slots = slots(row);
            for h in 0..per {
                let pair = i * per + h;
                let block = pair * BLOCK..pair * BLOCK + columns;
                let delta = w.delta[(row - part_start) * per + h];
                let lse = self.of.lse[row * g.heads + head * per + h];
                gradients::<V, E>(&mut w.p[block.clone()], &mut w.d_s[block], g.scale, lse, delta, slots.clone());
            }
        }

        // d_k [hd, 64] += qᵗ · d_s and d_v [64, hd] += pᵗ · d_out: sums over the tile's queries. For masked keys p =
        // d_s = 0.
        Matmul {
            a: w.q,
            a_row: 1,
            a_k: hd,
            b: &*w.d_s,
            b_row: BLOCK,
            out: d_keys,
            out_row: BLOCK,
            rows: hd,
            columns,
            k: 0..pairs,
            accumulate: true,
        }
        .compute::<E>(self.isa);
        Matmul {
            a: w.p,
            a_row: 1,
            a_k: BLOCK,
            b: &*w.d_out,
            b_row: hd,
            out: d_values,
            out_row: hd,
            rows: any_sees.end,
            columns: hd,
            k: 0..pairs,
            accumulate: true,
        }
        .compute::<E>(self.isa);

        // d_q += d_s · k, over the keys that the row attends to. Masked keys are skipped, because they may be NaN.
        let of = |row: usize, width: usize| (row - tile.start) * per * width;
        mask_blocks(tile.clone(), per, slots, |rows, k| {
            Matmul {
                a: &w.d_s[of(rows.start, BLOCK)..of(rows.end, BLOCK)],
                a_row: BLOCK,
                a_k: 1,
                b: &*w.keys,
                b_row: hd,
                out: &mut w.d_q[of(rows.start, hd)..of(rows.end, hd)],
                out_row: hd,
                rows: rows.len() * per,
                columns: hd,
                k,
                accumulate: true,
            }
            .compute::<E>(self.isa);
        });
        for (i, row) in tile.enumerate() {
            // SAFETY: no other task accesses this row's queries for this kv head.
            unsafe { self.of.d_qkv.slice(part(row)..part(row) + per * hd) }
                .copy_from_slice(&w.d_q[i * per * hd..(i + 1) * per * hd]);
        }
    }
}

pub(super) fn backward(cpu: &Cpu, args: Backward<'_>) {
    let (g, places) = (args.geometry, Places::new(cpu, args.rows));
    let mut pages = vec![Page::default(); args.pages.keys.shape()[0]];
    for &slot in args.write_slots.u32(cpu) {
        let end = &mut pages[slot as usize / BLOCK].end;
        *end = (*end).max(slot as usize % BLOCK + 1);
    }
    let offsets = args.groups.u32(cpu);
    let (unit, isa) = (on_tiles(cpu, args.qkv.dtype()), cpu.isa());
    // Parts that are computed first (shared pages), and parts that depend on them.
    let (mut first, mut then) = (Vec::new(), Vec::new());
    for offsets in offsets.windows(2) {
        let group = Group::new(&g, &places, offsets[0] as usize..offsets[1] as usize, &mut pages);
        if unit.is_some() {
            // On tiles, steps of queries are counted from the group's first row, so a group is not split.
            first.push(group.whole());
            continue;
        }
        let (shared, own) = group.split();
        first.extend(shared);
        then.extend(own);
    }
    let (d_keys, d_values, d_qkv) = (args.d_pages.keys.f32(cpu), args.d_pages.values.f32(cpu), args.d_qkv.f32(cpu));
    macro_rules! operands {
        ($parts:ident, $of:ident) => {
            Operands {
                geometry: g,
                places,
                parts: $parts,
                qkv: args.qkv.$of(cpu),
                keys: args.pages.keys.$of(cpu),
                values: args.pages.values.$of(cpu),
                out: args.out.$of(cpu),
                lse: args.lse.f32(cpu),
                d_out: args.d_out.f32(cpu),
                d_qkv: Disjoint::new(&mut *d_qkv),
                d_keys: Disjoint::new(&mut *d_keys),
                d_values: Disjoint::new(&mut *d_values),
            }
        };
    }
    for parts in [&first[..], &then] {
        let count = parts.len() * g.kv_heads;
        if let Some(unit) = unit {
            cpu.run(count, &OnTiles { unit, of: operands!(parts, bf16) });
        } else if pages::in_pairs(isa, args.qkv.dtype(), g.head_dim) {
            cpu.run(count, &InPairs { isa, of: operands!(parts, bf16) });
        } else if args.qkv.dtype() == DType::Bf16 {
            cpu.run(count, &BackwardTasks { isa, of: operands!(parts, bf16) });
        } else {
            cpu.run(count, &BackwardTasks { isa, of: operands!(parts, f32) });
        }
    }
    GatherTasks {
        geometry: g,
        write_rows: args.write_rows.u32(cpu),
        write_slots: args.write_slots.u32(cpu),
        pages: &pages,
        d_keys,
        key_strides: if unit.is_some() { [g.head_dim, 1] } else { [1, BLOCK] },
        d_values,
        d_qkv: Disjoint::new(d_qkv),
        rows: places.positions.len(),
    }
    .run(cpu);
}
