//! Writing pages, and the forward pass: a block of threads for each row and query head.

use super::{BLOCK, Forward, Geometry, PagesMut, WriteKv};
use crate::Result;
use crate::device::Cuda;
use crate::device::cuda::{Arg, Grid, Source, source};

const SOURCE: Source = source!("attention");
/// The longest head that a thread's share of the output is in registers for.
const MOST_DIM: usize = 256;

impl Geometry {
    fn arguments(&self) -> [Arg; 3] {
        [self.heads, self.kv_heads, self.head_dim].map(|n| Arg::U32(n as u32))
    }
}

pub(super) fn write_kv(cuda: &Cuda, mut args: WriteKv<'_>) -> Result<()> {
    let (g, writes) = (args.geometry, args.rows.shape()[0]);
    let (qkv, rows, slots) = (args.qkv.f32_at(cuda)?, args.rows.u32_at(cuda), args.slots.u32_at(cuda));
    let mut arguments = vec![qkv, rows, slots, args.pages.keys.f32_at(cuda)?, args.pages.values.f32_at(cuda)?];
    arguments.extend(g.arguments());
    arguments.push(writes.into());
    let grid = Grid::over(writes * g.kv_heads * g.head_dim);
    cuda.launch(&SOURCE, "attention_write_kv", grid, &arguments)
}

pub(super) fn copy_block(cuda: &Cuda, from: usize, to: usize, pages: PagesMut<'_>) -> Result<()> {
    for mut part in [pages.keys, pages.values] {
        let count: usize = part.shape()[1..].iter().product();
        let arguments = [part.f32_at(cuda)?, from.into(), to.into(), count.into()];
        cuda.launch(&SOURCE, "attention_copy_page", Grid::over(count), &arguments)?;
    }
    Ok(())
}

pub(super) fn forward(cuda: &Cuda, mut args: Forward<'_>) -> Result<()> {
    let (g, rows) = (args.geometry, args.qkv.shape()[0]);
    if g.head_dim > MOST_DIM {
        return Err(cuda.lacks(&format!("a head_dim of {}, above {MOST_DIM},", g.head_dim)));
    }
    let lse = args.lse.as_mut().map_or(Ok(Arg::NULL), |lse| lse.f32_at(cuda))?;
    let at = args.rows;
    let mut arguments = vec![args.qkv.f32_at(cuda)?];
    arguments.extend([at.positions, at.tables_of_rows, at.tables].map(|indices| indices.u32_at(cuda)));
    arguments.extend([args.pages.keys.f32_at(cuda)?, args.pages.values.f32_at(cuda)?, args.out.f32_at(cuda)?, lse]);
    arguments.extend(g.arguments());
    // A window longer than any sequence is none.
    let window = g.window.map_or(0, |window| u32::try_from(window).unwrap_or(0));
    arguments.extend([Arg::F32(g.scale), Arg::U32(window), at.tables.shape()[1].into()]);
    let grid = Grid { blocks: [rows as u32, g.heads as u32, 1], threads: BLOCK as u32 };
    cuda.launch(&SOURCE, "attention_forward", grid, &arguments)
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::Tensor;
    use crate::device::cuda::tests::{bits, random, same};

    /// Sequences of these lengths whose pages are scattered, the rest of the pages NaN; a page is copied over another.
    fn attend(heads: usize, kv_heads: usize, head_dim: usize, window: Option<usize>, lengths: &[usize]) {
        same(|ctx| {
            let geometry = Geometry { heads, kv_heads, head_dim, scale: 0.3, window };
            let (t, width) = (lengths.iter().sum::<usize>(), (heads + 2 * kv_heads) * head_dim);
            let longest = lengths.iter().map(|len| len.div_ceil(BLOCK)).max().unwrap_or(0).max(1);
            let pages = lengths.len() * longest + 1;
            // A permutation of the pages but the last one.
            let page = |s: usize, b: usize| ((s * longest + b) * 5 + 2) % (pages - 1);
            let scattered = !(pages - 1).is_multiple_of(5);
            let page = |s: usize, b: usize| if scattered { page(s, b) } else { s * longest + b };
            let tables: Vec<u32> =
                (0..lengths.len()).flat_map(|s| (0..longest).map(move |b| page(s, b) as u32)).collect();
            let (mut positions, mut of_rows, mut slots) = (Vec::new(), Vec::new(), Vec::new());
            for (s, &len) in lengths.iter().enumerate() {
                for p in 0..len {
                    positions.push(p as u32);
                    of_rows.push(s as u32);
                    slots.push((page(s, p / BLOCK) * BLOCK + p % BLOCK) as u32);
                }
            }
            let list = |list: &[u32]| Tensor::from_u32(ctx.memory(), &[list.len()], list);
            let (positions, of_rows, slots) = (list(&positions), list(&of_rows), list(&slots));
            let rows = list(&(0..t as u32).collect::<Vec<_>>());
            let tables = Tensor::from_u32(ctx.memory(), &[lengths.len(), longest], &tables);
            let qkv = random(ctx, 1, &[t, width]);
            let mut keys = random(ctx, 2, &[pages, kv_heads, head_dim, BLOCK]);
            let mut values = random(ctx, 3, &[pages, kv_heads, BLOCK, head_dim]);
            keys.view_mut().fill(f32::NAN);
            values.view_mut().fill(f32::NAN);
            let pages_mut = PagesMut { keys: keys.view_mut(), values: values.view_mut() };
            let (rows, slots) = (rows.view(), slots.view());
            write_kv(ctx, WriteKv { qkv: qkv.view(), geometry, rows, slots, pages: pages_mut })?;
            copy_block(ctx, 0, pages as u32 - 1, PagesMut { keys: keys.view_mut(), values: values.view_mut() })?;
            let (mut out, mut lse) = (random(ctx, 4, &[t, heads * head_dim]), random(ctx, 5, &[t, heads]));
            let rows = Rows { positions: positions.view(), tables_of_rows: of_rows.view(), tables: tables.view() };
            let pages = Pages { keys: keys.view(), values: values.view() };
            let (qkv, out_mut, lse_mut) = (qkv.view(), out.view_mut(), Some(lse.view_mut()));
            forward(ctx, Forward { qkv, geometry, rows, pages, out: out_mut, lse: lse_mut })?;
            Ok(bits(&[&out, &lse, &keys, &values]))
        });
    }

    #[test]
    fn the_bits_are_the_cpu_s() {
        attend(1, 1, 2, None, &[1]);
        attend(4, 2, 10, None, &[70, 3, 64]);
        attend(2, 1, 66, Some(5), &[9, 66]);
        attend(3, 3, 16, Some(64), &[130]);
        attend(1, 1, 200, None, &[2]);
    }
}
