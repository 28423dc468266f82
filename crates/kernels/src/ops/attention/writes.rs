//! Copies the keys and values of the batch's rows into KV-cache pages on the CPU, and after the backward pass adds the
//! gradients of the pages to the gradients of the rows that wrote them.

use super::parts::Parts;
use super::places::on_tiles;
use super::visits::Page;
use super::{BLOCK, Geometry, WriteKv, pages};
use crate::DType;
use crate::device::Cpu;
use crate::ops::lanes;
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{Element, Simd};

struct WriteTasks<'a, E> {
    geometry: Geometry,
    parts: Parts<'a>,
    qkv: &'a [E],
    rows: &'a [u32],
    slots: &'a [u32],
    keys: Disjoint<'a, E>,
    values: Disjoint<'a, E>,
    pairs: bool,
}

impl<E: Element> Tasks for WriteTasks<'_, E> {
    /// Writes one kv head of one part of the list of writes.
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let Geometry { heads, kv_heads, head_dim: hd, .. } = self.geometry;
        let (part, head) = (self.parts.writes(index / kv_heads), index % kv_heads);
        let width = self.geometry.width();
        for (&row, &slot) in self.rows[part.clone()].iter().zip(&self.slots[part]) {
            let (page, slot) = (slot as usize / BLOCK, slot as usize % BLOCK);
            let start = (page * kv_heads + head) * BLOCK * hd;
            let key = row as usize * width + (heads + head) * hd;
            let value = key + kv_heads * hd;
            // SAFETY: no other task accesses the part's pages for this head.
            let (keys, values) =
                unsafe { (self.keys.slice(start..start + BLOCK * hd), self.values.slice(start..start + BLOCK * hd)) };
            for (i, &k) in self.qkv[key..key + hd].iter().enumerate() {
                keys[pages::key(self.pairs, slot, i)] = k;
            }
            for (i, &v) in self.qkv[value..value + hd].iter().enumerate() {
                values[pages::value(self.pairs, hd, slot, i)] = v;
            }
        }
    }
}

/// Number of parts per thread into which the list of writes is split: more than one, to balance the load if a thread
/// starts late.
const PARTS: usize = 2;

pub(super) fn write_kv(cpu: &Cpu, args: WriteKv<'_>) {
    let parts = Parts::new(args.slots.u32(cpu), if cpu.threads() == 1 { 1 } else { PARTS * cpu.threads() });
    if on_tiles(cpu, args.qkv.dtype()).is_some() && pages::kept(args.geometry.head_dim) {
        return pages::write(cpu, args, parts);
    }
    let WriteKv { qkv, geometry, rows, slots, pages } = args;
    let (rows, slots) = (rows.u32(cpu), slots.u32(cpu));
    let count = parts.count() * geometry.kv_heads;
    if qkv.dtype() == DType::Bf16 {
        let (keys, values) = (Disjoint::new(pages.keys.bf16(cpu)), Disjoint::new(pages.values.bf16(cpu)));
        let pairs = pages::in_pairs(cpu.isa(), DType::Bf16, geometry.head_dim);
        cpu.run(count, &WriteTasks { geometry, parts, qkv: qkv.bf16(cpu), rows, slots, keys, values, pairs });
    } else {
        let (keys, values) = (Disjoint::new(pages.keys.f32(cpu)), Disjoint::new(pages.values.f32(cpu)));
        let qkv = qkv.f32(cpu);
        cpu.run(count, &WriteTasks { geometry, parts, qkv, rows, slots, keys, values, pairs: false });
    }
}

/// Gathers the gradients of the keys and values of all rows from the gradients of the KV-cache pages.
pub(super) struct GatherTasks<'a> {
    pub geometry: Geometry,
    pub write_rows: &'a [u32],
    pub write_slots: &'a [u32],
    pub pages: &'a [Page],
    pub d_keys: &'a [f32],
    /// Strides in elements inside a page of `d_keys`: between slots, and between dimensions.
    pub key_strides: [usize; 2],
    pub d_values: &'a [f32],
    pub d_qkv: Disjoint<'a, f32>,
    pub rows: usize,
}

/// Number of rows for which a gather task collects the gradients.
const ROWS: usize = 256;

impl GatherTasks<'_> {
    pub fn run(&self, cpu: &Cpu) {
        cpu.run(self.rows.div_ceil(ROWS) * 2 * self.geometry.kv_heads, self);
    }
}

impl Tasks for GatherTasks<'_> {
    /// Gathers one head of some rows. The first nkv indices are heads of keys, the next nkv heads of values.
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _: &mut Scratch) {
        let Geometry { heads, kv_heads, head_dim: hd, .. } = self.geometry;
        let (rows, index) = (lanes::rows(index / (2 * kv_heads), ROWS, self.rows), index % (2 * kv_heads));
        let (width, head) = (self.geometry.width(), index % kv_heads);
        let is_value = index >= kv_heads;
        let part = |row: usize| row * width + (heads + index) * hd..row * width + (heads + index + 1) * hd;
        for row in rows.clone() {
            // SAFETY: no other task accesses this head of these rows.
            unsafe { self.d_qkv.slice(part(row)) }.fill(0.0);
        }
        for (&row, &slot) in self.write_rows.iter().zip(self.write_slots) {
            let (page, slot) = (slot as usize / BLOCK, slot as usize % BLOCK);
            if !rows.contains(&(row as usize)) || !self.pages[page].seen {
                continue;
            }
            // SAFETY: no other task accesses this head of these rows.
            let to = unsafe { self.d_qkv.slice(part(row as usize)) };
            let start = (page * kv_heads + head) * BLOCK * hd;
            if is_value {
                let from = &self.d_values[start + slot * hd..start + (slot + 1) * hd];
                to.iter_mut().zip(from).for_each(|(to, &x)| *to += x);
            } else {
                let [slot_stride, dim_stride] = self.key_strides;
                let from = self.d_keys[start..start + BLOCK * hd].iter().skip(slot * slot_stride).step_by(dim_stride);
                to.iter_mut().zip(from).for_each(|(to, &x)| *to += x);
            }
        }
    }
}
