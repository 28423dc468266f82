//! The lm head on the CPU. Logits are computed chunk by chunk of the vocabulary, for the running log-sum-exp of the
//! forward pass and for the gradients.

use super::{BLOCK_ROWS, Backward, CHUNK, Forward, Logits};
use crate::device::Cpu;
use crate::gemm::{Left, Matmul, MatmulDType, Operands, Order, Right};
use crate::gemm::{halves, steps};
use crate::matrix::PANEL;
use crate::ops::lanes::{load, store};
use crate::pool::{Disjoint, Scratch, Tasks};
use crate::simd::{Element, LANES, Simd};
use crate::tensor::Elements;
use crate::{Isa, Matrix, View, math};
use std::cell::RefCell;
use std::ops::Range;

/// Number of rows in a task: whole tiles, and few enough that the logits of a chunk stay in the second-level cache.
const TASK_ROWS: usize = 120;
/// [`TASK_ROWS`] on AMX tiles: larger, because each task packs the weight again.
const TASK_ROWS_ON_TILES: usize = 256;
/// Number of vocabulary entries whose gradients are in memory at once, in the backward pass.
const WINDOW: usize = 8 * CHUNK;
/// Statistics that are kept for each chunk of a row: m = max z, Σ exp(z−m), Σ exp(z−m)(z−m).
pub(crate) const KEPT: usize = 3;
/// Replaces −∞ where it is multiplied by its exponential, 0, to avoid NaN.
const FAR: f32 = -1e4;

/// The operands of the lm head: hidden rows, and the weight that maps them to logits.
pub(crate) struct Head<'a> {
    isa: Isa,
    hidden: Elements<'a>,
    weight: Elements<'a>,
    rows: usize,
    task_rows: usize,
    /// Hidden size, H.
    pub(crate) width: usize,
    /// Vocabulary size, V.
    pub(crate) vocab: usize,
}

impl<'a> Head<'a> {
    pub(crate) fn new(cpu: &Cpu, hidden: View<'a>, weight: &'a Matrix) -> Head<'a> {
        let (rows, width) = (hidden.shape()[0], weight.cols());
        let (hidden, data) = (hidden.elements(cpu), weight.elements(cpu));
        let (isa, dtype) = (cpu.isa(), MatmulDType::of(&[hidden, data]));
        let task_rows = if isa.has_tiles() && dtype == MatmulDType::Bf16 { TASK_ROWS_ON_TILES } else { TASK_ROWS };
        Head { isa, hidden, weight: data, rows, task_rows, width, vocab: weight.rows() }
    }
    pub(crate) fn chunks(&self) -> usize {
        self.vocab.div_ceil(CHUNK)
    }
    /// Range of the token ids of chunk `chunk`.
    pub(crate) fn ids(&self, chunk: usize) -> Range<usize> {
        chunk * CHUNK..self.vocab.min((chunk + 1) * CHUNK)
    }
    /// Cuts all rows into blocks of [`BLOCK_ROWS`].
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        blocks(0..self.rows, BLOCK_ROWS)
    }
    /// Runs `f` with a buffer for the statistics of `rows` rows: `[rows][chunks][KEPT]`.
    pub(crate) fn with_partials<T>(&self, rows: usize, f: impl FnOnce(&mut [f32]) -> T) -> T {
        with_workspace(rows * self.chunks() * KEPT, f)
    }

    /// The matmul `to = hidden[rows] Wᵀ` for the token ids `ids`, which start at a panel: `[rows][ids]`.
    pub(crate) fn matmul<'b>(&self, rows: Range<usize>, ids: Range<usize>, to: &'b mut [f32]) -> Matmul<'b>
    where
        'a: 'b,
    {
        let operands = Operands::for_outputs((self.hidden, self.weight), self.width, rows, ids, None, to);
        Matmul::new(self.isa, operands)
    }

    /// Computes the unscaled logits of chunk `chunk` on this thread. Returns the chunk's token ids.
    pub(crate) fn logits(
        &self,
        rows: Range<usize>,
        chunk: usize,
        to: &mut [f32],
        scratch: &mut Scratch,
    ) -> Range<usize> {
        let ids = self.ids(chunk);
        let m = rows.len();
        let matmul = self.matmul(rows, ids.clone(), to);
        // SAFETY: `to` is borrowed exclusively, and only this thread writes to it.
        unsafe { matmul.block(0..m, 0..ids.len().div_ceil(PANEL), scratch) };
        ids
    }
}

/// Cuts the rows into blocks. A cut is at a segment's start, or a multiple of 32 rows after it. Returns each block with
/// the offsets of its segments, counted from the block's first row.
fn cut(rows: usize, segments: Option<&[u32]>) -> Vec<(Range<usize>, Vec<u32>)> {
    let one = [0, rows as u32];
    let offsets = segments.unwrap_or(&one);
    let mut out: Vec<(Range<usize>, Vec<u32>)> = Vec::new();
    for step in steps(offsets) {
        match out.last_mut() {
            Some((block, segments)) if step.end - block.start <= BLOCK_ROWS => {
                if offsets.binary_search(&(step.start as u32)).is_ok() {
                    segments.push((step.start - block.start) as u32);
                }
                block.end = step.end;
            }
            _ => out.push((step, vec![0])),
        }
    }
    for (block, segments) in &mut out {
        segments.push(block.len() as u32);
    }
    out
}

/// Cuts `range` into pieces of at most `len`.
pub(crate) fn blocks(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    range.clone().step_by(len).map(move |start| start..range.end.min(start + len))
}

/// The factor β = 1/T of the logits, the same for all rows or one per row.
#[derive(Clone, Copy)]
pub(crate) enum Beta<'a> {
    All(f32),
    /// A function from the index of a row in the whole batch to its β.
    Each(&'a (dyn Fn(usize) -> f32 + Sync)),
}

impl Beta<'_> {
    #[inline(always)]
    pub(crate) fn of(&self, row: usize) -> f32 {
        match self {
            Beta::All(beta) => *beta,
            Beta::Each(beta) => beta(row),
        }
    }
}

/// Scales the logits of one chunk of a row by `beta` in place, and returns the chunk's statistics.
#[inline(always)]
pub(crate) fn statistics<V: Simd>(logits: &mut [f32], beta: f32) -> [f32; KEPT] {
    let none = V::splat(f32::NEG_INFINITY);
    let mut max = none;
    for z in logits.chunks_mut(LANES) {
        let n = z.len();
        let scaled = V::load_partial(z, n).mul(V::splat(beta));
        scaled.store_partial(z, n);
        max = max.max(V::select(V::first(n), scaled, none));
    }
    let m = max.max_lane();
    let (mut sum, mut slope) = (V::splat(0.0), V::splat(0.0));
    for z in logits.chunks(LANES) {
        let n = z.len();
        let below = V::select(V::first(n), V::load_partial(z, n), none).sub(V::splat(m));
        let e = math::exp_finite(below);
        sum = sum.add(e);
        slope = e.fma(below.max(V::splat(FAR)), slope);
    }
    [m, sum.sum(), slope.sum()]
}

/// Results of a row, combined from its chunks.
pub(crate) struct Row {
    /// The largest scaled logit z.
    pub max: f32,
    /// Log-sum-exp of the scaled logits.
    pub lse: f32,
    /// Entropy −Σ p ln p, in nats.
    pub entropy: f32,
}

/// Combines the statistics of a row's chunks, `[chunks][KEPT]`, in ascending order.
#[inline(always)]
pub(crate) fn combine<V: Simd>(chunks: &[f32]) -> Row {
    let mut max = f32::NEG_INFINITY;
    for chunk in chunks.chunks_exact(KEPT) {
        max = if chunk[0] > max { chunk[0] } else { max };
    }
    let (mut sum, mut slope) = (0.0f32, 0.0f32);
    for chunk in chunks.chunks_exact(KEPT) {
        let below = chunk[0] - max;
        let factor = math::exp1::<V>(below);
        sum = chunk[1].mul_add(factor, sum);
        slope = chunk[1].mul_add(below.max(FAR), chunk[2]).mul_add(factor, slope);
    }
    // `ln` needs a positive normal number. Anything else means that the row is not finite: the result is NaN.
    let ln = if sum >= 1.0 && sum.is_finite() { math::ln1::<V>(sum) } else { f32::NAN };
    Row { max, lse: max + ln, entropy: ln - slope / sum }
}

pub(super) fn logits(cpu: &Cpu, args: Logits<'_>) {
    let head = Head::new(cpu, args.hidden, args.weight);
    let (logits, lse) = (args.logits.f32(cpu), Disjoint::new(args.lse.f32(cpu)));
    head.matmul(0..head.rows, 0..head.vocab, logits).run(cpu);
    let scaled = Scaled { vocab: head.vocab, beta: args.inv_temperature, logits: Disjoint::new(logits), lse };
    cpu.run(head.rows, &scaled);
}

/// Tasks that scale whole rows of logits in place and compute their log-sum-exp.
struct Scaled<'a> {
    vocab: usize,
    beta: f32,
    /// Logits `[R, V]`.
    logits: Disjoint<'a, f32>,
    /// Log-sum-exp of each row: `[R]`.
    lse: Disjoint<'a, f32>,
}

impl Tasks for Scaled<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, row: usize, scratch: &mut Scratch) {
        let partials = scratch.f32(self.vocab.div_ceil(CHUNK) * KEPT);
        // SAFETY: no other task accesses this row.
        let (logits, lse) =
            unsafe { (self.logits.slice(row * self.vocab..(row + 1) * self.vocab), self.lse.slice(row..row + 1)) };
        for (chunk, kept) in logits.chunks_mut(CHUNK).zip(partials.chunks_exact_mut(KEPT)) {
            kept.copy_from_slice(&statistics::<V>(chunk, self.beta));
        }
        lse[0] = combine::<V>(partials).lse;
    }
}

/// Tasks that compute the statistics of every chunk of a block of rows.
pub(crate) struct Chunks<'a> {
    pub head: &'a Head<'a>,
    pub rows: Range<usize>,
    pub beta: Beta<'a>,
    /// Statistics: `[rows of the block][chunks][KEPT]`.
    pub partials: &'a Disjoint<'a, f32>,
    /// The token id of each row of the batch, and the memory for the scaled logits of these tokens.
    pub picked: Option<(&'a [u32], &'a Disjoint<'a, f32>)>,
    /// Memory for all scaled logits, if they are kept: `[chunks][rows of the block][ids of the chunk]`.
    pub logits: Option<&'a Disjoint<'a, f32>>,
}

impl Chunks<'_> {
    fn tiles(&self) -> usize {
        self.rows.len().div_ceil(self.head.task_rows)
    }
    pub(crate) fn tasks(&self) -> usize {
        self.head.chunks() * self.tiles()
    }
}

impl Head<'_> {
    /// Rows of task `task` of a block.
    fn rows_of_task(&self, block: &Range<usize>, task: usize) -> Range<usize> {
        let start = block.start + task * self.task_rows;
        start..block.end.min(start + self.task_rows)
    }
}

impl Tasks for Chunks<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, scratch: &mut Scratch) {
        // The row tiles of a chunk are consecutive tasks, so that they find the chunk's weight in the cache.
        let (chunk, rows) = (index / self.tiles(), self.head.rows_of_task(&self.rows, index % self.tiles()));
        let (own, scratch) = scratch.split(if self.logits.is_some() { 0 } else { rows.len() * CHUNK });
        let logits = match self.logits {
            None => own,
            Some(all) => {
                let (width, first) = (self.head.ids(chunk).len(), rows.start - self.rows.start);
                let at = chunk * CHUNK * self.rows.len() + first * width;
                // SAFETY: no other task accesses this chunk of these rows.
                unsafe { all.slice(at..at + rows.len() * width) }
            }
        };
        let ids = self.head.logits(rows.clone(), chunk, logits, scratch);
        for (row, logits) in rows.zip(logits.chunks_exact_mut(ids.len())) {
            let kept = statistics::<V>(logits, self.beta.of(row));
            let at = ((row - self.rows.start) * self.head.chunks() + chunk) * KEPT;
            // SAFETY: no other task accesses this chunk of these rows.
            unsafe { self.partials.slice(at..at + KEPT) }.copy_from_slice(&kept);
            if let Some((wanted, to)) = self.picked {
                let id = wanted[row] as usize;
                if ids.contains(&id) {
                    // SAFETY: only one chunk contains the id, so no other task accesses this element.
                    let z = unsafe { to.slice(row..row + 1) };
                    z[0] = logits[id - ids.start];
                }
            }
        }
    }
}

/// Tasks that combine the statistics of a block of rows into log-sum-exps, entropies and log-probabilities. On entry
/// `logps` contains each target's scaled logit.
pub(crate) struct Combine<'a> {
    pub head: &'a Head<'a>,
    pub rows: Range<usize>,
    pub partials: &'a Disjoint<'a, f32>,
    pub logps: &'a Disjoint<'a, f32>,
    pub lse: &'a Disjoint<'a, f32>,
    pub entropies: Option<&'a Disjoint<'a, f32>>,
}

/// Rows per [`Combine`] task.
const COMBINE_ROWS: usize = 16;

impl Combine<'_> {
    pub(crate) fn tasks(&self) -> usize {
        self.rows.len().div_ceil(COMBINE_ROWS)
    }
}

impl Tasks for Combine<'_> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, _scratch: &mut Scratch) {
        let start = self.rows.start + index * COMBINE_ROWS;
        let kept = self.head.chunks() * KEPT;
        for row in start..self.rows.end.min(start + COMBINE_ROWS) {
            let at = (row - self.rows.start) * kept;
            // SAFETY: no other task accesses this row.
            unsafe {
                let done = combine::<V>(self.partials.slice(at..at + kept));
                self.logps.slice(row..row + 1)[0] -= done.lse;
                self.lse.slice(row..row + 1)[0] = done.lse;
                if let Some(entropies) = self.entropies {
                    entropies.slice(row..row + 1)[0] = done.entropy;
                }
            }
        }
    }
}

/// Inputs of the gradient of the logits; each slice is `[R]`.
pub(super) struct Slopes<'a> {
    pub targets: &'a [u32],
    pub beta: f32,
    pub lse: &'a [f32],
    pub d_logps: &'a [f32],
    /// Gradients of the entropies, and the entropies.
    pub entropies: Option<(&'a [f32], &'a [f32])>,
}

impl Slopes<'_> {
    /// Computes `to = β dz` for the token ids `ids` of a row, from their unscaled logits.
    #[inline(always)]
    fn row<V: Simd, D: Element>(&self, row: usize, ids: Range<usize>, logits: &[f32], to: &mut [D]) {
        for at in (0..logits.len()).step_by(LANES) {
            store(self.slope::<V>(row, load(logits, at)), to, at);
        }
        let target = self.targets[row] as usize;
        if ids.contains(&target) {
            let at = target - ids.start;
            let slope = self.slope::<V>(row, load(&logits[at..=at], 0));
            store(slope.add(V::splat(self.beta * self.d_logps[row])), &mut to[at..=at], 0);
        }
    }

    /// Computes β dz from unscaled logits, for tokens that are not the row's target.
    #[inline(always)]
    fn slope<V: Simd>(&self, row: usize, logits: V) -> V {
        let (d_entropy, entropy) = self.entropies.map_or((0.0, 0.0), |(d, e)| (d[row], e[row]));
        let (a, b) = (V::splat(-self.beta * self.d_logps[row]), V::splat(-self.beta * d_entropy));
        let ln_p = logits.mul(V::splat(self.beta)).sub(V::splat(self.lse[row]));
        math::exp(ln_p).mul(ln_p.max(V::splat(FAR)).add(V::splat(entropy)).fma(b, a))
    }
}

/// Tasks that compute the gradients of the logits in one window of the vocabulary, for a block of rows.
struct Window<'a, D> {
    head: &'a Head<'a>,
    slopes: &'a Slopes<'a>,
    rows: &'a Range<usize>,
    ids: &'a Range<usize>,
    /// Gradients of the unscaled logits: `[rows][ids]`.
    d_logits: Disjoint<'a, D>,
}

impl<D: Element> Window<'_, D> {
    fn run(&self, cpu: &Cpu) {
        cpu.run(self.ids.len().div_ceil(CHUNK) * self.tiles(), self);
    }

    fn tiles(&self) -> usize {
        self.rows.len().div_ceil(self.head.task_rows)
    }
}

impl<D: Element> Tasks for Window<'_, D> {
    #[inline(always)]
    fn task<V: Simd>(&self, index: usize, scratch: &mut Scratch) {
        let chunk = self.ids.start / CHUNK + index / self.tiles();
        let rows = self.head.rows_of_task(self.rows, index % self.tiles());
        let (logits, scratch) = scratch.split(rows.len() * CHUNK);
        let ids = self.head.logits(rows.clone(), chunk, logits, scratch);
        for (row, logits) in rows.zip(logits.chunks_exact(ids.len())) {
            let at = (row - self.rows.start) * self.ids.len() + ids.start - self.ids.start;
            // SAFETY: no other task accesses this chunk of these rows.
            let to = unsafe { self.d_logits.slice(at..at + ids.len()) };
            self.slopes.row::<V, D>(row, ids.clone(), logits, to);
        }
    }
}

/// Forward pass. For each block of rows: the statistics of its chunks, then the outputs combined from them.
pub(super) fn forward(cpu: &Cpu, args: Forward<'_>) {
    let (head, inv_temperature) = (Head::new(cpu, args.hidden, args.weight), args.inv_temperature);
    let targets = args.targets.u32(cpu);
    let (logps, lse) = (Disjoint::new(args.logps.f32(cpu)), Disjoint::new(args.lse.f32(cpu)));
    let entropies = args.entropies.map(|e| Disjoint::new(e.f32(cpu)));
    for block in head.blocks() {
        head.with_partials(block.len(), |partials| {
            let partials = Disjoint::new(partials);
            let beta = Beta::All(inv_temperature);
            let picked = Some((targets, &logps));
            let chunks = Chunks { head: &head, rows: block.clone(), beta, partials: &partials, picked, logits: None };
            cpu.run(chunks.tasks(), &chunks);
            let combine = Combine {
                head: &head,
                rows: block,
                partials: &partials,
                logps: &logps,
                lse: &lse,
                entropies: entropies.as_ref(),
            };
            cpu.run(combine.tasks(), &combine);
        });
    }
}

/// Backward pass. For each window of the vocabulary: the gradient of the window's logits, then the window's
/// contribution to the gradients of hidden rows and weight.
pub(super) fn backward(cpu: &Cpu, args: Backward<'_>) {
    let head = &Head::new(cpu, args.hidden, args.weight);
    let slopes = &Slopes {
        targets: args.targets.u32(cpu),
        beta: args.inv_temperature,
        lse: args.lse.f32(cpu),
        d_logps: args.d_logps.f32(cpu),
        entropies: args.d_entropies.zip(args.entropies).map(|(d, e)| (d.f32(cpu), e.f32(cpu))),
    };
    let (d_hidden, segments) = (args.d_hidden.f32(cpu), args.segments.map(|s| s.u32(cpu)));
    let mut d_weight = args.d_weight.map(|w| w.data_mut().view_mut().f32(cpu));
    let h = head.width;
    // In bf16, gradients are stored rounded, as the matmuls read them, which halves their memory.
    let rounds = MatmulDType::of(&[head.hidden, head.weight]) == MatmulDType::Bf16;
    for (rows, segments) in cut(head.rows, segments) {
        let hidden = head.hidden.range(rows.start * h..rows.end * h);
        for ids in blocks(0..head.vocab, WINDOW) {
            let len = rows.len() * ids.len();
            with_workspace(if rounds { len.div_ceil(2) } else { len }, |workspace| {
                let d_logits = if rounds {
                    let to = &mut halves(workspace)[..len];
                    Window { head, slopes, rows: &rows, ids: &ids, d_logits: Disjoint::new(to) }.run(cpu);
                    Elements::Bf16(to)
                } else {
                    Window { head, slopes, rows: &rows, ids: &ids, d_logits: Disjoint::new(workspace) }.run(cpu);
                    Elements::F32(workspace)
                };
                let panels = ids.start * h..ids.end.next_multiple_of(PANEL) * h;
                let operands = Operands {
                    m: rows.len(),
                    n: h,
                    depth: ids.len(),
                    left: Left::Rows(d_logits, ids.len()),
                    right: Right::Transposed(head.weight.range(panels.clone())),
                    c: &mut d_hidden[rows.start * h..rows.end * h],
                    order: Order::Rows(h),
                    accumulate: ids.start > 0,
                    bias: None,
                    dtype: MatmulDType::of(&[head.weight]),
                    segments: None,
                };
                Matmul::new(cpu.isa(), operands).run(cpu);
                if let Some(d_weight) = d_weight.as_deref_mut() {
                    let operands = Operands {
                        m: h,
                        n: ids.len(),
                        depth: rows.len(),
                        left: Left::Columns(hidden, h),
                        right: Right::Rows(d_logits, ids.len()),
                        c: &mut d_weight[panels],
                        order: Order::Panels,
                        accumulate: true,
                        bias: None,
                        dtype: MatmulDType::of(&[hidden]),
                        segments: Some(&segments),
                    };
                    Matmul::new(cpu.isa(), operands).run(cpu);
                }
            });
        }
    }
}

thread_local! {
    static WORKSPACE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` with a buffer of `len` elements of unspecified contents. The calling thread keeps the buffer for the next
/// call.
pub(crate) fn with_workspace<T>(len: usize, f: impl FnOnce(&mut [f32]) -> T) -> T {
    WORKSPACE.with_borrow_mut(|workspace| {
        if workspace.len() < len {
            workspace.resize(len, 0.0);
        }
        f(&mut workspace[..len])
    })
}

#[cfg(test)]
mod tests;
