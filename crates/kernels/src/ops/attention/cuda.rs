//! Attention on CUDA: launches the kernels of `attention.cu` that write KV-cache pages and compute the forward and
//! backward pass. The forward pass uses one thread block per row and kv head, so that keys and values are read once for
//! all query heads of a kv head. The gradient of queries uses one thread block per row and query head, the gradient of
//! keys and values one per page, kv head and 64 dimensions.

use super::{BLOCK, Backward, Forward, Geometry, PagesMut, Rows, WriteKv};
use crate::Result;
use crate::device::Cuda;
use crate::device::cuda::{Arg, Grid, Source, source};

const SOURCE: Source = source!("attention");
/// Largest head_dim for which each thread can keep its part of the output in registers.
const MOST_DIM: usize = 256;
/// Number of threads per dimension that gather the gradients of pages into rows. Each thread reads the whole list of
/// writes.
const RESIDUES: u32 = 16;

impl Geometry {
    fn arguments(&self) -> [Arg; 3] {
        [self.heads, self.kv_heads, self.head_dim].map(|n| Arg::U32(n as u32))
    }
    /// The sliding window as a kernel argument. 0 means no window; a window that exceeds u32 becomes 0, too.
    fn window_argument(&self) -> Arg {
        Arg::U32(self.window.map_or(0, |window| u32::try_from(window).unwrap_or(0)))
    }
    fn fits(&self, cuda: &Cuda) -> Result<()> {
        if self.head_dim > MOST_DIM {
            Err(cuda.lacks(&format!("head_dim = {}, above {MOST_DIM},", self.head_dim)))
        } else {
            Ok(())
        }
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

pub(super) fn copy_block(cuda: &Cuda, from: usize, to: usize, mut pages: PagesMut<'_>) -> Result<()> {
    let count: usize = pages.keys.shape()[1..].iter().product();
    let (keys, values) = (pages.keys.f32_at(cuda)?, pages.values.f32_at(cuda)?);
    let arguments = [keys, values, from.into(), to.into(), count.into()];
    cuda.launch(&SOURCE, "attention_copy_page", Grid::over(count), &arguments)
}

pub(super) fn forward(cuda: &Cuda, mut args: Forward<'_>) -> Result<()> {
    let (g, rows) = (args.geometry, args.qkv.shape()[0]);
    g.fits(cuda)?;
    let lse = args.lse.as_mut().map_or(Ok(Arg::NULL), |lse| lse.f32_at(cuda))?;
    let at = args.rows;
    let mut arguments = vec![args.qkv.f32_at(cuda)?];
    arguments.extend([at.positions, at.tables_of_rows, at.tables].map(|indices| indices.u32_at(cuda)));
    arguments.extend([args.pages.keys.f32_at(cuda)?, args.pages.values.f32_at(cuda)?, args.out.f32_at(cuda)?, lse]);
    arguments.extend(g.arguments());
    arguments.extend([g.scale.into(), g.window_argument(), at.tables.shape()[1].into()]);
    // Query heads of a kv head in one block, and the block's groups of 64 threads.
    let per = g.heads / g.kv_heads;
    let (heads, groups, kernel) = match per {
        1 => (1, 1, "attention_forward_1"),
        2 => (2, 2, "attention_forward_2"),
        3 | 4 => (4, 4, "attention_forward_4"),
        _ => (8, 4, "attention_forward_8"),
    };
    let blocks = [rows as u32, g.kv_heads as u32, per.div_ceil(heads) as u32];
    cuda.launch(&SOURCE, kernel, Grid { blocks, threads: BLOCK as u32 * groups }, &arguments)
}

/// The rows that attend to each KV-cache page, computed on the host from its copies of the index tensors.
#[derive(Default)]
struct Looks {
    /// The pages to which at least one row attends, in ascending order.
    pages: Vec<u32>,
    /// For each page: index of its first entry in `looks`; at the end, the number of entries.
    first: Vec<u32>,
    /// Entries (row, block index of the page in the row's sequence), two numbers each; for each page ordered by block,
    /// then by row.
    looks: Vec<u32>,
}

impl Looks {
    fn new(g: &Geometry, rows: Rows<'_>) -> Looks {
        let (tables, table_len) = (rows.tables.indices(), rows.tables.shape()[1]);
        let mut all = Vec::new();
        for (row, (&p, &table)) in rows.positions.indices().iter().zip(rows.tables_of_rows.indices()).enumerate() {
            let seen = g.seen(p as usize);
            for block in seen.start / BLOCK..seen.end.div_ceil(BLOCK) {
                all.push((tables[table as usize * table_len + block], block as u32, row as u32));
            }
        }
        all.sort_unstable();
        let mut of = Looks::default();
        for (i, (page, block, row)) in all.into_iter().enumerate() {
            if of.pages.last() != Some(&page) {
                of.pages.push(page);
                of.first.push(i as u32);
            }
            of.looks.extend([row, block]);
        }
        of.first.push(of.looks.len() as u32 / 2);
        of
    }
}

pub(super) fn backward(cuda: &Cuda, mut args: Backward<'_>) -> Result<()> {
    let (g, rows, at) = (args.geometry, args.qkv.shape()[0], args.rows);
    g.fits(cuda)?;
    let looks = Looks::new(&g, at);
    // Writes to pages that no row attends to have no gradient.
    let seen = |slot: u32| looks.pages.binary_search(&(slot / BLOCK as u32)).is_ok();
    let writes = args.write_rows.indices().iter().zip(args.write_slots.indices());
    let (written, slots): (Vec<u32>, Vec<u32>) = writes.filter(|(_, slot)| seen(**slot)).unzip();
    let (stream, pairs) = (cuda.stream(), rows * g.heads);
    let delta = stream.scratch(pairs * size_of::<f32>())?;
    // The lists are concatenated, so that one copy brings all of them to the device.
    let lists = [&looks.pages, &looks.first, &looks.looks, &written, &slots];
    let joined = stream.scratch_of(&lists.map(Vec::as_slice).concat())?;
    let mut end = 0;
    let [pages, first, looks_at, written_at, slots_at] = lists.map(|list| {
        end += list.len();
        joined.at((end - list.len()) * size_of::<u32>())
    });

    let (qkv, lse, d_out) = (args.qkv.f32_at(cuda)?, args.lse.f32_at(cuda)?, args.d_out.f32_at(cuda)?);
    let (keys, values) = (args.pages.keys.f32_at(cuda)?, args.pages.values.f32_at(cuda)?);
    let (d_keys, d_values) = (args.d_pages.keys.f32_at(cuda)?, args.d_pages.values.f32_at(cuda)?);
    let (d_qkv, delta, positions) = (args.d_qkv.f32_at(cuda)?, delta.at(0), at.positions.u32_at(cuda));
    let [heads, kv_heads, head_dim] = g.arguments();
    let (scale, window) = (Arg::F32(g.scale), g.window_argument());

    let arguments = [d_out, args.out.f32_at(cuda)?, delta, pairs.into(), g.head_dim.into()];
    cuda.launch(&SOURCE, "attention_delta", Grid::lanes(pairs), &arguments)?;
    let mut arguments = vec![qkv, positions, at.tables_of_rows.u32_at(cuda), at.tables.u32_at(cuda), keys, values];
    arguments.extend([lse, d_out, delta, d_qkv, heads, kv_heads, head_dim, scale, window]);
    arguments.push(at.tables.shape()[1].into());
    let grid = Grid { blocks: [rows as u32, g.heads as u32, 1], threads: BLOCK as u32 };
    cuda.launch(&SOURCE, "attention_backward_queries", grid, &arguments)?;
    let mut arguments = vec![qkv, positions, keys, values, lse, d_out, delta, pages, first, looks_at];
    arguments.extend([d_keys, d_values, heads, kv_heads, head_dim, scale, window]);
    let blocks = [looks.pages.len() as u32, g.kv_heads as u32, g.head_dim.div_ceil(64) as u32];
    let kernel = if g.head_dim <= 64 { "attention_backward_pages_64" } else { "attention_backward_pages_256" };
    cuda.launch(&SOURCE, kernel, Grid { blocks, threads: 256 }, &arguments)?;
    let mut arguments = vec![written_at, slots_at, d_keys, d_values, d_qkv, heads, kv_heads, head_dim];
    arguments.extend([written.len(), rows].map(Arg::from));
    let grid = Grid::columns(g.kv_heads * g.head_dim, RESIDUES);
    cuda.launch(&SOURCE, "attention_gather", grid, &arguments)
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::Tensor;
    use crate::device::cuda::tests::{random, results, same};

    /// Runs write, copy, forward and backward on sequences whose pages are scattered among pages of NaN. Each case has
    /// the heads (query heads, kv heads, head_dim), the window, the number of shared pages, and the lengths of the
    /// sequences. All sequences share their first pages with the first sequence.
    #[test]
    fn cuda_gives_the_bits_of_the_cpu() {
        let cases = [
            ([1, 1, 2], None, 0, &[1usize][..]),
            ([4, 2, 10], None, 0, &[70, 3, 64]),
            ([2, 1, 66], Some(5), 0, &[9, 66]),
            ([10, 1, 64], None, 0, &[3, 66]),
            ([3, 3, 16], Some(64), 0, &[130]),
            ([1, 1, 200], None, 0, &[2]),
            ([2, 1, 6], None, 1, &[67, 70, 65]),
            // A window that does not fit in 32 bits means no window.
            ([1, 1, 2], Some(1 << 32), 0, &[70]),
            ([1, 1, 2], Some(70), 0, &[140]),
        ];
        same(cases, |&([heads, kv_heads, head_dim], window, shared, lengths), ctx| {
            let geometry = Geometry { heads, kv_heads, head_dim, scale: 0.3, window };
            let width = (heads + 2 * kv_heads) * head_dim;
            let longest = lengths.iter().map(|len| len.div_ceil(BLOCK)).max().unwrap_or(0).max(1);
            let pages = lengths.len() * longest + 1;
            // A permutation of all pages except the last one.
            let page = |s: usize, b: usize| ((s * longest + b) * 5 + 2) % (pages - 1);
            let scattered = !(pages - 1).is_multiple_of(5);
            let page = |s: usize, b: usize| {
                let s = if b < shared { 0 } else { s };
                if scattered { page(s, b) } else { s * longest + b }
            };
            let tables: Vec<u32> =
                (0..lengths.len()).flat_map(|s| (0..longest).map(move |b| page(s, b) as u32)).collect();
            let (mut positions, mut row_tables, mut slots) = (Vec::new(), Vec::new(), Vec::new());
            for (s, &len) in lengths.iter().enumerate() {
                for p in if s > 0 { shared * BLOCK } else { 0 }..len {
                    positions.push(p as u32);
                    row_tables.push(s as u32);
                    slots.push((page(s, p / BLOCK) * BLOCK + p % BLOCK) as u32);
                }
            }
            let t = positions.len();
            let list = |list: &[u32]| Tensor::from_u32(ctx.memory(), &[list.len()], list);
            let (positions, row_tables, slots) = (list(&positions), list(&row_tables), list(&slots));
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
            let rows = Rows { positions: positions.view(), tables_of_rows: row_tables.view(), tables: tables.view() };
            let pages = Pages { keys: keys.view(), values: values.view() };
            let (qkv, out_mut, lse_mut) = (qkv.view(), out.view_mut(), Some(lse.view_mut()));
            forward(ctx, Forward { qkv, geometry, rows, pages, out: out_mut, lse: lse_mut })?;
            let (d_out, mut d_qkv) = (random(ctx, 6, &[t, heads * head_dim]), random(ctx, 7, &[t, width]));
            let (mut d_keys, mut d_values) = (random(ctx, 8, keys.shape()), random(ctx, 9, values.shape()));
            // One row is written twice, and another row to a page that no row attends to.
            let last = (keys.shape()[0] - 1) * BLOCK;
            let mut write_rows: Vec<u32> = (0..t as u32).collect();
            let mut write_slots = slots.indices().to_vec();
            write_rows.extend([0, 0]);
            write_slots.extend([write_slots[t - 1] / 64 * 64 + (t > 1) as u32, last as u32]);
            let groups = list(&[0, t as u32]);
            let (write_rows, write_slots) = (list(&write_rows), list(&write_slots));
            let args = Backward {
                qkv,
                geometry,
                rows,
                pages,
                write_rows: write_rows.view(),
                write_slots: write_slots.view(),
                out: out.view(),
                lse: lse.view(),
                d_out: d_out.view(),
                d_qkv: d_qkv.view_mut(),
                d_pages: PagesMut { keys: d_keys.view_mut(), values: d_values.view_mut() },
                groups: groups.view(),
            };
            backward(ctx, args)?;
            Ok(results![out, lse, keys, values, d_qkv])
        });
    }

    #[test]
    fn heads_of_more_than_256_are_refused() {
        let Some(cuda) = crate::device::cuda::tests::emulated(0) else { return };
        for (head_dim, fits) in [(256, true), (257, false)] {
            let geometry = Geometry { heads: 1, kv_heads: 1, head_dim, scale: 1.0, window: None };
            let message = geometry.fits(&cuda).err().map(|error| error.to_string());
            let expected = "cuda-emulated: head_dim = 257, above 256, is not supported yet; use the device \"cpu\"";
            assert_eq!(message.as_deref(), (!fits).then_some(expected));
        }
    }
}
