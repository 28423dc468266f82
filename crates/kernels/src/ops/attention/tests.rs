//! Compares the fused attention with the unfused oracle, and checks that a row's bits do not depend on its
//! surroundings.

use super::*;
use crate::check::{directional_error, normal, relative_error};
use crate::device::cuda::tests::contexts;
use crate::rng::Stream;
use crate::{DType, Isa, Tensor};
use formula::{emulated, emulated_backward};

mod arguments;
mod bf16;
mod formula;
mod pieces;
mod splits;

/// The placement of rows and their keys: groups of (prefix, branches), packed as the model packs them.
#[derive(Clone, Default)]
struct Layout {
    positions: Vec<u32>,
    tables_of_rows: Vec<u32>,
    tables: Vec<u32>,
    table_len: usize,
    write_rows: Vec<u32>,
    write_slots: Vec<u32>,
    groups: Vec<u32>,
    blocks: usize,
    /// For each row, the rows of the keys to which it attends, for the oracle.
    keys: Vec<Vec<usize>>,
}

/// Page indices are shuffled by `seed`, among some unused pages.
fn layout(groups: &[(usize, &[usize])], seed: u64) -> Layout {
    let mut l = Layout::default();
    let mut tables: Vec<Vec<u32>> = Vec::new();
    let mut blocks = 0;
    let mut grow = |table: &mut Vec<u32>, len: usize| {
        while table.len() * BLOCK < len {
            table.push(blocks);
            blocks += 1;
        }
    };
    for &(prefix, branches) in groups {
        l.groups.push(l.positions.len() as u32);
        let first = tables.len();
        for (i, &branch) in branches.iter().enumerate() {
            let mut table = if i == 0 { Vec::new() } else { tables[first][..prefix / BLOCK].to_vec() };
            grow(&mut table, prefix + branch);
            tables.push(table);
        }
        let mut row = |position: usize, table: usize, written: std::ops::Range<usize>, keys: Vec<usize>| {
            let this = l.positions.len();
            l.positions.push(position as u32);
            l.tables_of_rows.push(table as u32);
            for table in &tables[written] {
                l.write_rows.push(this as u32);
                l.write_slots.push(table[position / BLOCK] * BLOCK as u32 + (position % BLOCK) as u32);
            }
            l.keys.push(keys.into_iter().chain([this]).collect());
            this
        };
        let mut prefix_rows = Vec::new();
        for position in 0..prefix {
            let straddles = position >= prefix / BLOCK * BLOCK;
            let written = first..if straddles { tables.len() } else { first + 1 };
            let this = row(position, first, written, prefix_rows.clone());
            prefix_rows.push(this);
        }
        for (i, &branch) in branches.iter().enumerate() {
            let mut keys = prefix_rows.clone();
            for position in prefix..prefix + branch {
                let this = row(position, first + i, first + i..first + i + 1, keys.clone());
                keys.push(this);
            }
        }
    }
    l.groups.push(l.positions.len() as u32);
    l.blocks = blocks as usize + 2;
    let mut number: Vec<u32> = (0..l.blocks as u32).collect();
    let mut stream = Stream::new(seed, 9);
    for i in (1..number.len()).rev() {
        number.swap(i, stream.next_u64() as usize % (i + 1));
    }
    l.table_len = tables.iter().map(Vec::len).max().unwrap_or(0);
    for mut table in tables {
        for page in &mut table {
            *page = number[*page as usize];
        }
        table.resize(l.table_len, 0);
        l.tables.extend(table);
    }
    let renumbered = |slot: u32| number[slot as usize / BLOCK] * BLOCK as u32 + slot % BLOCK as u32;
    l.write_slots.iter_mut().for_each(|slot| *slot = renumbered(*slot));
    l
}

fn geometry(heads: usize, kv_heads: usize, head_dim: usize, window: Option<usize>) -> Geometry {
    Geometry { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), window }
}

/// A tensor of f32 or bf16 with the elements of `data`.
fn tensor(ctx: &Context, shape: &[usize], dtype: DType, data: &[f32]) -> Tensor {
    let mut t = Tensor::zeros(ctx.memory(), shape, dtype);
    t.view_mut().copy_from_f32(data);
    t
}

/// The inputs of attention, with KV-cache pages in which every unwritten slot is NaN.
struct Run {
    ctx: Context,
    g: Geometry,
    layout: Layout,
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
}

impl Run {
    fn new(ctx: &Context, g: Geometry, layout: &Layout, qkv: &[f32]) -> Run {
        Run::of(DType::F32, ctx, g, layout, qkv)
    }
    fn of(dtype: DType, ctx: &Context, g: Geometry, layout: &Layout, qkv: &[f32]) -> Run {
        let (ctx, layout) = (ctx.clone(), layout.clone());
        let m = ctx.memory();
        let poisoned = |shape: &[usize]| {
            let mut t = Tensor::zeros(m, shape, dtype);
            t.view_mut().fill(f32::NAN);
            t
        };
        let qkv = tensor(&ctx, &[layout.positions.len(), g.width()], dtype, qkv);
        let mut keys = poisoned(&[layout.blocks, g.kv_heads, g.head_dim, BLOCK]);
        let mut values = poisoned(&[layout.blocks, g.kv_heads, BLOCK, g.head_dim]);
        let rows = Tensor::from_u32(m, &[layout.write_rows.len()], &layout.write_rows);
        let slots = Tensor::from_u32(m, &[layout.write_rows.len()], &layout.write_slots);
        let pages = PagesMut { keys: keys.view_mut(), values: values.view_mut() };
        let (r, s) = (rows.view(), slots.view());
        write_kv(&ctx, WriteKv { qkv: qkv.view(), geometry: g, rows: r, slots: s, pages }).unwrap();
        Run { ctx, g, layout, qkv, keys, values }
    }
    fn tables(&self) -> Tensor {
        let tables = self.layout.tables.len().checked_div(self.layout.table_len).unwrap_or(0);
        Tensor::from_u32(self.ctx.memory(), &[tables, self.layout.table_len], &self.layout.tables)
    }
    /// The attention output and the log-sum-exp of these rows.
    fn forward(&self, rows: std::ops::Range<usize>) -> (Vec<f32>, Vec<f32>) {
        let (g, m, t) = (self.g, self.ctx.memory(), rows.len());
        let positions = Tensor::from_u32(m, &[t], &self.layout.positions[rows.clone()]);
        let tables_of_rows = Tensor::from_u32(m, &[t], &self.layout.tables_of_rows[rows.clone()]);
        let tables = self.tables();
        let mut out = Tensor::zeros(m, &[t, g.heads * g.head_dim], self.qkv.dtype());
        let mut lse = Tensor::zeros(m, &[t, g.heads], DType::F32);
        out.view_mut().fill(f32::NAN);
        lse.view_mut().fill(f32::NAN);
        let args = Forward {
            qkv: self.qkv.rows(rows),
            geometry: g,
            rows: Rows { positions: positions.view(), tables_of_rows: tables_of_rows.view(), tables: tables.view() },
            pages: Pages { keys: self.keys.view(), values: self.values.view() },
            out: out.view_mut(),
            lse: Some(lse.view_mut()),
        };
        forward(&self.ctx, args).unwrap();
        (out.to_vec_f32(), lse.to_vec_f32())
    }
    fn all(&self) -> (Vec<f32>, Vec<f32>) {
        self.forward(0..self.layout.positions.len())
    }
    /// The gradient of `qkv`.
    fn backward(&self, d_out: &[f32]) -> Vec<f32> {
        let (g, m, l) = (self.g, self.ctx.memory(), &self.layout);
        let t = l.positions.len();
        let (out, lse) = self.all();
        let f32 = |columns: usize, data: &[f32]| Tensor::from_f32(m, &[t, columns], data);
        let u32 = |data: &[u32]| Tensor::from_u32(m, &[data.len()], data);
        let out = tensor(&self.ctx, &[t, g.heads * g.head_dim], self.qkv.dtype(), &out);
        let (lse, d_out) = (f32(g.heads, &lse), f32(g.heads * g.head_dim, d_out));
        let (positions, tables_of_rows, tables) = (u32(&l.positions), u32(&l.tables_of_rows), self.tables());
        let (write_rows, write_slots, groups) = (u32(&l.write_rows), u32(&l.write_slots), u32(&l.groups));
        let poisoned = |shape: &[usize]| {
            let mut t = Tensor::zeros(m, shape, DType::F32);
            t.view_mut().fill(f32::NAN);
            t
        };
        let (mut d_keys, mut d_values) = (poisoned(self.keys.shape()), poisoned(self.values.shape()));
        let mut d_qkv = poisoned(&[t, g.width()]);
        let args = Backward {
            qkv: self.qkv.view(),
            geometry: g,
            rows: Rows { positions: positions.view(), tables_of_rows: tables_of_rows.view(), tables: tables.view() },
            pages: Pages { keys: self.keys.view(), values: self.values.view() },
            write_rows: write_rows.view(),
            write_slots: write_slots.view(),
            out: out.view(),
            lse: lse.view(),
            d_out: d_out.view(),
            d_qkv: d_qkv.view_mut(),
            d_pages: PagesMut { keys: d_keys.view_mut(), values: d_values.view_mut() },
            groups: groups.view(),
        };
        backward(&self.ctx, args).unwrap();
        d_qkv.to_vec_f32()
    }
}

type OwnedGroups = Vec<(usize, Vec<usize>)>;
type Groups<'a> = &'a [(usize, &'a [usize])];

/// Unusual geometries and layouts.
fn cases() -> Vec<(Geometry, OwnedGroups)> {
    vec![
        (geometry(1, 1, 8, None), vec![(0, vec![1])]),
        (geometry(3, 1, 20, None), vec![(5, vec![3, 1, 9]), (0, vec![2])]),
        (geometry(4, 2, 16, None), vec![(77, vec![4, 60, 1]), (12, vec![5])]),
        (geometry(14, 2, 64, None), vec![(66, vec![7, 3])]),
        (geometry(2, 2, 8, Some(1)), vec![(70, vec![3])]),
        (geometry(6, 3, 20, Some(5)), vec![(62, vec![9, 4])]),
        (geometry(2, 1, 16, Some(64)), vec![(130, vec![70, 2])]),
        (geometry(8, 8, 8, Some(100)), vec![(64, vec![150, 64])]),
        (geometry(2, 1, 80, None), vec![(128, vec![1, 2])]),
    ]
}

fn of(groups: &[(usize, Vec<usize>)], seed: u64) -> Layout {
    let groups: Vec<(usize, &[usize])> = groups.iter().map(|(p, b)| (*p, b.as_slice())).collect();
    layout(&groups, seed)
}

fn inputs(g: &Geometry, l: &Layout) -> (Vec<f32>, Vec<f32>) {
    let t = l.positions.len();
    let qkv: Vec<f32> = normal(3, t * g.width());
    // Scores are so large that maxima change and outputs are rescaled.
    (qkv.iter().map(|x| 1.5 * x).collect(), normal(4, t * g.heads * g.head_dim))
}

#[test]
fn forward_matches_the_documented_formula_on_every_isa() {
    for (g, groups) in cases() {
        let l = of(&groups, 1);
        let (qkv, _) = inputs(&g, &l);
        let (mut out, mut lse) = (Vec::new(), Vec::new());
        for keys in &l.keys {
            for head in 0..g.heads {
                let (o, s) = emulated(&g, &qkv, keys, head, formula::F32);
                out.extend(o);
                lse.push(s);
            }
        }
        let wide: Vec<f64> = qkv.iter().map(|&x| f64::from(x)).collect();
        let (oracle_out, oracle_lse) = reference::forward(&g, &wide, &l.keys);
        assert!(relative_error(&out, &oracle_out) < 1e-6, "{g:?}");
        assert!(relative_error(&lse, &oracle_lse) < 1e-6, "{g:?}");
        for isa in Isa::present() {
            for threads in [1, 3] {
                let run = Run::new(&Context::cpu(isa, threads), g, &l, &qkv);
                assert!(run.all() == (out.clone(), lse.clone()), "{isa:?} {threads} {g:?} {groups:?}");
            }
        }
    }
}

#[test]
fn a_rows_bits_do_not_depend_on_other_rows_pages_or_sharing() {
    for (g, groups) in cases() {
        let l = of(&groups, 1);
        let (qkv, _) = inputs(&g, &l);
        let ctx = Context::cpu(Isa::best(), 2);
        let run = Run::new(&ctx, g, &l, &qkv);
        let (out, lse) = run.all();
        let width = g.heads * g.head_dim;
        for row in 0..l.positions.len() {
            let expected = (&out[row * width..(row + 1) * width], &lse[row * g.heads..(row + 1) * g.heads]);
            let (o, s) = run.forward(row..row + 1);
            assert_eq!((&o[..], &s[..]), expected, "row {row} alone, {g:?}");
        }
        assert!(Run::new(&ctx, g, &of(&groups, 2), &qkv).all() == (out.clone(), lse.clone()), "other pages, {g:?}");

        // Every branch becomes a separate sequence, with the prefix's rows repeated before it.
        for (group, (prefix, branches)) in groups.iter().enumerate() {
            let mut branch_start = l.groups[group] as usize + prefix;
            for &branch in branches {
                let start = l.groups[group] as usize;
                let rows: Vec<usize> = (start..start + prefix).chain(branch_start..branch_start + branch).collect();
                let own: Vec<f32> =
                    rows.iter().flat_map(|r| &qkv[r * g.width()..(r + 1) * g.width()]).copied().collect();
                let alone = Run::new(&ctx, g, &layout(&[(0, &[prefix + branch])], 3), &own).all();
                for (i, row) in rows.iter().enumerate() {
                    assert!(alone.0[i * width..(i + 1) * width] == out[row * width..(row + 1) * width], "{row} {g:?}");
                }
                branch_start += branch;
            }
        }
    }
}

#[test]
fn the_oracles_gradients_match_finite_differences() {
    for (g, groups) in
        [(geometry(3, 1, 5, None), vec![(3, vec![2, 4])]), (geometry(2, 2, 4, Some(3)), vec![(2, vec![5, 1])])]
    {
        let l = of(&groups, 1);
        let (qkv, d_out): (Vec<f64>, Vec<f64>) = {
            let (q, d) = inputs(&g, &l);
            (q.iter().map(|&x| x.into()).collect(), d.iter().map(|&x| x.into()).collect())
        };
        let f = |x: &[f64]| reference::forward(&g, x, &l.keys).0.iter().zip(&d_out).map(|(o, d)| o * d).sum();
        let mut d = reference::backward(&g, &qkv, &l.keys, &d_out);
        assert!(directional_error(&qkv, &d, f) < 1e-7, "{g:?}");
        // Changes the last element. (The gradient of a first row's query is 0, so scaling it would have no effect.)
        *d.last_mut().unwrap() *= 1.01;
        assert!(directional_error(&qkv, &d, f) > 1e-7, "a wrong gradient passes, {g:?}");
    }
}

#[test]
fn backward_matches_the_oracle_on_every_isa_and_thread_count() {
    for (g, groups) in cases() {
        let l = of(&groups, 1);
        let (qkv, d_out) = inputs(&g, &l);
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let oracle = reference::backward(&g, &wide(&qkv), &l.keys, &wide(&d_out));
        let mut bits: Option<Vec<f32>> = None;
        for ctx in contexts(&[1, 3]) {
            let run = Run::new(&ctx, g, &l, &qkv);
            let mut d = run.backward(&d_out);
            let error = relative_error(&d, &oracle);
            assert!(error < 1e-5, "{error} {} {g:?} {groups:?}", ctx.describe());
            let formula = || {
                let (out, lse) = run.all();
                emulated_backward(&run, &qkv, [&out, &lse, &d_out], formula::F32)
            };
            assert!(*bits.get_or_insert_with(formula) == d, "{} {} {g:?}", ctx.describe(), ctx.threads());
            let last = d.len() - 1;
            d[last] += 0.01 * oracle.iter().map(|x| x * x).sum::<f64>().sqrt() as f32;
            assert!(relative_error(&d, &oracle) > 1e-5, "a wrong gradient passes");
        }
        let elsewhere = Run::new(&Context::cpu(Isa::best(), 2), g, &of(&groups, 7), &qkv).backward(&d_out);
        assert!(bits.unwrap() == elsewhere, "other pages, {g:?}");
    }
}

#[test]
fn a_groups_gradient_does_not_depend_on_its_batch() {
    let g = geometry(4, 2, 16, None);
    let all: Groups<'_> = &[(70, &[3, 9]), (4, &[2]), (65, &[1, 1, 5])];
    let l = layout(all, 1);
    let (qkv, d_out) = inputs(&g, &l);
    let ctx = Context::cpu(Isa::best(), 2);
    let together = Run::new(&ctx, g, &l, &qkv).backward(&d_out);
    for (i, group) in all.iter().enumerate() {
        let rows = l.groups[i] as usize..l.groups[i + 1] as usize;
        let cut = |x: &[f32], w: usize| x[rows.start * w..rows.end * w].to_vec();
        let width = g.heads * g.head_dim;
        let run = Run::new(&ctx, g, &layout(&[*group], 5), &cut(&qkv, g.width()));
        assert!(run.backward(&cut(&d_out, width)) == cut(&together, g.width()), "group {i}");
    }
}

#[test]
fn an_empty_range_of_rows_is_accepted_and_an_invalid_page_is_refused() {
    let g = geometry(2, 1, 8, None);
    let ctx = Context::cpu(Isa::best(), 2);
    let l = layout(&[(3, &[2])], 1);
    let (qkv, _) = inputs(&g, &l);
    let mut run = Run::new(&ctx, g, &l, &qkv);
    assert_eq!(run.forward(0..0), (vec![], vec![]));
    run.layout.tables[0] = 99;
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.all()));
    assert!(caught.is_err(), "a page that does not exist must be an error");
}

#[test]
fn copy_block_copies_a_whole_page() {
    let ctx = Context::cpu(Isa::best(), 1);
    let data: Vec<f32> = normal(1, 3 * 2 * 8 * BLOCK);
    let page = data.len() / 3;
    let mut keys = Tensor::from_f32(ctx.memory(), &[3, 2, 8, BLOCK], &data);
    let mut values = Tensor::from_f32(ctx.memory(), &[3, 2, BLOCK, 8], &data);
    copy_block(&ctx, 2, 0, PagesMut { keys: keys.view_mut(), values: values.view_mut() }).unwrap();
    for copy in [keys.to_vec_f32(), values.to_vec_f32()] {
        assert_eq!(copy[..page], data[2 * page..]);
        assert_eq!(copy[page..], data[page..]);
    }
    let pages = PagesMut { keys: keys.view_mut(), values: values.view_mut() };
    assert!(copy_block(&ctx, 3, 0, pages).is_err());
}

/// A caller that flushes denormals does not change a bit of the result.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_callers_float_settings_do_not_change_attention() {
    let g = geometry(2, 1, 8, None);
    let l = layout(&[(3, &[2, 70])], 1);
    let (qkv, d_out) = inputs(&g, &l);
    // Some of the products are denormal.
    let qkv: Vec<f32> = qkv.iter().enumerate().map(|(i, x)| if i % 3 == 0 { x * 1e-39 } else { *x }).collect();
    let run = Run::new(&Context::cpu(Isa::best(), 2), g, &l, &qkv);
    let expected = (run.all(), run.backward(&d_out));
    let (mut saved, flush) = (0u32, 0x9fc0u32);
    // SAFETY: this sets flush-to-zero and denormals-are-zero on this thread only. The word is restored below.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &mut saved, options(nostack));
        std::arch::asm!("ldmxcsr [{}]", in(reg) &flush, options(nostack));
    }
    let got = (run.all(), run.backward(&d_out));
    // SAFETY: this restores the control word saved above.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &saved, options(nostack)) };
    assert!(got.0.0.iter().zip(&expected.0.0).all(|(a, b)| a.to_bits() == b.to_bits()));
    assert!(got.0.1.iter().zip(&expected.0.1).all(|(a, b)| a.to_bits() == b.to_bits()));
    assert!(got.1.iter().zip(&expected.1).all(|(a, b)| a.to_bits() == b.to_bits()));
}
