//! Memory layouts of KV-cache pages in bf16: as AMX tiles, or as pairs of terms.
//!
//! If matmuls run on AMX tiles and hd (the head dimension) is a multiple of 32, a page (64 positions for one kv head)
//! is stored in the layout that the instruction needs for its right operand, so the matmul reads the KV cache without
//! repacking:
//!
//! ```text
//! keys    [64/32][hd/32][16 pairs of dimensions][32 keys][2]      q · Kᵀ: sums over dimensions
//! values  [hd/32][64/32][16 pairs of keys][32 dimensions][2]      P · V: sums over keys
//! ```
//!
//! Pages of any other hd have the usual layout, keys `[hd, 64]` and values `[64, hd]`. The task that reads a page in
//! this layout copies the page into tiles padded with zeros.
//!
//! If the CPU multiplies two bf16 terms at once (without tiles) and hd is even, the two terms are stored side by side:
//! two dimensions of a key, or the values of two positions:
//!
//! ```text
//! keys    [hd/2][64][2]       values  [64/2][hd][2]
//! ```
//!
//! Except for writing new keys and values, this module does not depend on the rows of the batch.

use super::parts::Parts;
use super::{BLOCK, Geometry, WriteKv};
use crate::device::Cpu;
use crate::gemm::zip;
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::Simd;
use crate::simd::tiles::{DEPTH, TILE};
use crate::tensor::Elements;
use crate::{DType, Isa};
use half::bf16;

/// `hd` rounded up to a multiple of 32, the terms of a tile step.
pub(super) fn padded(hd: usize) -> usize {
    hd.next_multiple_of(DEPTH)
}

/// Whether KV-cache pages of this `hd` are stored as AMX tiles.
pub(super) fn kept(hd: usize) -> bool {
    hd.is_multiple_of(DEPTH)
}

/// Whether KV-cache pages are stored as pairs of terms, on this instruction set, in this dtype and for this `hd`.
pub(super) fn in_pairs(isa: Isa, dtype: DType, hd: usize) -> bool {
    isa.has_dots() && dtype == DType::Bf16 && hd.is_multiple_of(2)
}

/// The index, within a page, of dimension `i` of the key in slot `slot`.
#[inline(always)]
pub(super) fn key(pairs: bool, slot: usize, i: usize) -> usize {
    if pairs { (i / 2 * BLOCK + slot) * 2 + i % 2 } else { i * BLOCK + slot }
}

/// The index, within a page, of dimension `i` of the value in slot `slot`.
#[inline(always)]
pub(super) fn value(pairs: bool, hd: usize, slot: usize, i: usize) -> usize {
    if pairs { (slot / 2 * hd + i) * 2 + slot % 2 } else { slot * hd + i }
}

/// Elements of one line of a tile pair: 32 pairs of bf16.
const PAIRS: usize = 2 * DEPTH;

/// The index, within a page stored as tiles, of the first two dimensions of the key in slot `slot`. The next two
/// dimensions follow one line (64 elements) later, and the next 32 dimensions two tiles later.
fn key_at(hd: usize, slot: usize) -> usize {
    slot / DEPTH * DEPTH * hd + slot % DEPTH * 2
}

/// The index, within a page stored as tiles, of dimension 0 of the value in slot `slot`. The next dimension follows two
/// elements later; each group of 32 dimensions has separate tiles.
fn value_at(slot: usize) -> usize {
    slot / 2 * PAIRS + slot % 2
}

struct WriteTasks<'a> {
    geometry: Geometry,
    parts: Parts<'a>,
    qkv: &'a [bf16],
    rows: &'a [u32],
    slots: &'a [u32],
    keys: Disjoint<'a, bf16>,
    values: Disjoint<'a, bf16>,
}

impl Tasks for WriteTasks<'_> {
    /// Writes one kv head of one part of the list of writes, as in `writes.rs`.
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let Geometry { heads, kv_heads, head_dim: hd, .. } = self.geometry;
        let (part, head) = (self.parts.writes(index / kv_heads), index % kv_heads);
        for (&row, &slot) in self.rows[part.clone()].iter().zip(&self.slots[part]) {
            let (page, slot) = (slot as usize / BLOCK, slot as usize % BLOCK);
            let start = (page * kv_heads + head) * BLOCK * hd;
            let key = row as usize * self.geometry.width() + (heads + head) * hd;
            let value = key + kv_heads * hd;
            // SAFETY: no other task accesses the part's pages for this head.
            let (keys, values) =
                unsafe { (self.keys.slice(start..start + BLOCK * hd), self.values.slice(start..start + BLOCK * hd)) };
            for (step, from) in self.qkv[key..key + hd].chunks_exact(DEPTH).enumerate() {
                let to = &mut keys[key_at(hd, slot) + step * 2 * TILE..];
                for (pair, from) in from.chunks_exact(2).enumerate() {
                    to[pair * PAIRS..pair * PAIRS + 2].copy_from_slice(from);
                }
            }
            for (step, from) in self.qkv[value..value + hd].chunks_exact(DEPTH).enumerate() {
                let to = &mut values[value_at(slot) + step * DEPTH * BLOCK..];
                from.iter().enumerate().for_each(|(i, &x)| to[2 * i] = x);
            }
        }
    }
}

/// [`super::write_kv`] for pages that are stored as AMX tiles.
pub(super) fn write(cpu: &Cpu, args: WriteKv<'_>, parts: Parts<'_>) {
    let WriteKv { qkv, geometry, rows, slots, pages } = args;
    let (keys, values) = (Disjoint::new(pages.keys.bf16(cpu)), Disjoint::new(pages.values.bf16(cpu)));
    let (qkv, rows, slots) = (qkv.bf16(cpu), rows.u32(cpu), slots.u32(cpu));
    cpu.run(parts.count() * geometry.kv_heads, &WriteTasks { geometry, parts, qkv, rows, slots, keys, values });
}

/// Returns a page's keys and values as AMX tiles: the page's own memory if the page is stored as tiles, otherwise a
/// copy in `room` (2 · 64 · padded hd elements). Values of slots from `end` on are set to 0: no row attends to them,
/// but the matmul multiplies them by 0, and 0 times infinity or NaN is NaN. Keys of these slots are left as they are,
/// because their scores are masked.
#[inline(always)]
pub(super) fn tiles<'a, V: Simd>(
    [keys, values]: [&'a [bf16]; 2],
    hd: usize,
    end: usize,
    room: &'a mut [bf16],
) -> [&'a [bf16]; 2] {
    let page_len = BLOCK * padded(hd);
    let (key_room, value_room) = room.split_at_mut(page_len);
    if kept(hd) {
        if end == BLOCK {
            return [keys, values];
        }
        let value_room = &mut value_room[..page_len];
        for (from, to) in values.chunks_exact(DEPTH * BLOCK).zip(value_room.chunks_exact_mut(DEPTH * BLOCK)) {
            let whole = end / 2 * PAIRS;
            to[..whole].copy_from_slice(&from[..whole]);
            to[whole..].fill(bf16::ZERO);
            if end % 2 == 1 {
                (whole..whole + PAIRS).step_by(2).for_each(|i| to[i] = from[i]);
            }
        }
        return [keys, value_room];
    }
    let steps = padded(hd) / DEPTH;
    for (i, to) in key_room[..page_len].chunks_exact_mut(2 * TILE).enumerate() {
        let (panel, first) = (i / steps * DEPTH, i % steps * DEPTH);
        let row = |i: usize| Elements::Bf16(&keys[i * BLOCK + panel..i * BLOCK + panel + DEPTH]);
        zip::<V>(first..hd.min(first + DEPTH), row, to);
    }
    for (i, to) in value_room[..page_len].chunks_exact_mut(2 * TILE).enumerate() {
        let (panel, first) = (i / 2 * DEPTH, i % 2 * DEPTH);
        let row = |slot: usize| Elements::Bf16(&values[slot * hd + panel..slot * hd + hd.min(panel + DEPTH)]);
        zip::<V>(first..end.clamp(first, first + DEPTH), row, to);
    }
    [key_room, value_room]
}
