//! One task of a matmul on the CPU's vector registers: blocks of packed rows (strips) times groups of panels of 32
//! columns.

use super::plan::Strips;
use super::prefetch::Prefetch;
use super::tile::{MAX_DEPTH, Packed, Pair, Tile, Word};
use super::{Left, Matmul, MatmulDType, Order, Right, aligned, tiles};
use crate::matrix::PANEL;
use crate::pool::Scratch;
use crate::simd::{LANES, Simd};
use crate::tensor::Elements;
use half::bf16;
use std::ops::Range;

/// With at most this many strips of rows, bf16 panels are widened or packed into words as they are loaded, again for
/// each strip. With more strips, the panels are widened or packed once, in memory.
const FEW_STRIPS: usize = 3;

impl Matmul<'_> {
    /// [`block`](Self::block), compiled for the vectors `V` of one instruction set.
    ///
    /// # Safety
    /// Same as for [`block`](Self::block).
    #[inline(always)]
    pub(crate) unsafe fn block_with<V: Simd>(&self, rows: Range<usize>, panels: Range<usize>, scratch: &mut Scratch) {
        debug_assert!(rows.end <= self.m && panels.end <= self.n.div_ceil(PANEL));
        if let Some((unit, steps)) = &self.tiles {
            // SAFETY: the caller upholds this function's safety contract.
            return unsafe { tiles::block::<V>(self, *unit, steps, rows, panels, scratch) };
        }
        let strips = Strips::new::<V>(rows.clone());
        let most = (strips.vectors / 2).max(1);
        let own = if let Left::Strips(_) = self.left { 0 } else { strips.packed() };
        let scratch = aligned(scratch, own + most * MAX_DEPTH * PANEL);
        let (own, b) = scratch.split_at_mut(own);
        let blocks = self.blocks();
        let count = blocks.len();
        for (i, depth) in blocks.enumerate() {
            let a = match self.left {
                Left::Strips(packed) => &packed[strips.place::<V>(count, i)..][..strips.packed()],
                _ => {
                    self.pack_left::<V>(&strips, 0..strips.count, depth.clone(), own);
                    &*own
                }
            };
            let mut panel = panels.start;
            while panel < panels.end {
                // Several panels are computed at once only if every vector of the tile has columns.
                let group_panels = panel..panel + if panel + most <= panels.end { most } else { 1 };
                panel = group_panels.end;
                // Tiles with few rows and several panels are limited by memory bandwidth. More prefetching would evict
                // the data that they read.
                let next = if most > 1 {
                    Prefetch::NOTHING
                } else if panel < panels.end || depth.end == self.depth {
                    self.prefetch(panel, depth.clone())
                } else {
                    self.prefetch(panels.start, depth.end..self.depth.min(depth.end + depth.len()))
                };
                let few = match (self.right, strips.count) {
                    (Right::Panels(Elements::Bf16(data)), 1..=FEW_STRIPS) => {
                        let whole = self.depth * PANEL;
                        Some((data[group_panels.start * whole + depth.start * PANEL..].as_ptr(), whole))
                    }
                    _ => None,
                };
                let (panels, depth) = (group_panels.clone(), depth.clone());
                match (few, self.together()) {
                    (Some(right), 1) => self.group::<V, bf16>(&strips, a, &Group { panels, depth, right, next }),
                    (Some((from, pitch)), _) => {
                        let right = (from.cast(), pitch / 2);
                        self.group::<V, Pair>(&strips, a, &Group { panels, depth, right, next });
                    }
                    (None, 1) => {
                        let right = self.right::<V>(group_panels, depth.clone(), b);
                        self.group::<V, f32>(&strips, a, &Group { panels, depth, right, next });
                    }
                    (None, _) => {
                        let (from, pitch) = self.words::<V>(group_panels, depth.clone(), b);
                        self.group::<V, Word>(&strips, a, &Group { panels, depth, right: (from.cast(), pitch), next });
                    }
                }
            }
        }
    }

    /// Computes the tiles of all strips of rows for one group of panels.
    #[inline(always)]
    fn group<V: Simd, E: Packed>(&self, strips: &Strips, a: &[f32], group: &Group<E>) {
        for strip in 0..strips.count {
            self.tiles::<V, E>(strips, strip, a[strip * strips.pitch()..].as_ptr(), group);
        }
    }

    /// Computes the tiles of one strip of rows for one group of panels.
    #[inline(always)]
    fn tiles<V: Simd, E: Packed>(&self, strips: &Strips, strip: usize, a: *const f32, group: &Group<E>) {
        let Group { panels, depth, right: (b, b_panel), next } = group;
        let rows = strips.rows(strip);
        let (c_row, c_panel) = match self.order {
            Order::Rows(stride) => (stride, PANEL),
            Order::Panels => (PANEL, self.m * PANEL),
        };
        let width = panels.len() * PANEL / LANES;
        let vectors = if strips.vectors <= width { strips.vectors } else { V::GEMM_VECTORS };
        for vector in (0..width).step_by(vectors) {
            let at = (vector / 2, (vector % 2) * LANES);
            let column = (panels.start + at.0) * PANEL + at.1;
            let columns = self.n.saturating_sub(column);
            if columns == 0 {
                continue;
            }
            let last = depth.end == self.depth;
            let bias = self.bias.filter(|_| last).map_or(std::ptr::null(), |bias| bias[column..].as_ptr());
            let tile = &Tile {
                rows: rows.len(),
                vectors,
                depth: depth.len().div_ceil(self.together()),
                a,
                a_pitch: strips.most,
                b: b.wrapping_add(at.0 * b_panel + at.1 * E::TOGETHER),
                b_panel: *b_panel,
                c: self.c.wrapping_add(rows.start * c_row + (panels.start + at.0) * c_panel + at.1),
                c_row,
                c_panel,
                columns,
                from_c: self.accumulate || depth.start > 0,
                bias,
                prefetch: if vector == 0 { next.part(strip, strips.count) } else { Prefetch::NOTHING },
            };
            match self.dtype {
                _ if E::DOTS => self.isa.run_dots(tile, !bias.is_null()),
                MatmulDType::Stored => self.isa.run(tile),
                MatmulDType::Bf16 => self.isa.run_flushing(tile),
            }
        }
    }
}

/// A group of panels of the right operand that tiles read together, for one block of the depth.
struct Group<E> {
    panels: Range<usize>,
    depth: Range<usize>,
    /// The first panel, `[depth][32]` in elements `E`, and the distance in elements from one panel to the next.
    right: (*const E, usize),
    /// Memory that will be read after this group, to be prefetched.
    next: Prefetch,
}
