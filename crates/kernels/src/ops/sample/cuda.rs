//! Sampling tokens on CUDA, from whole rows of logits, a block of rows at a time. One thread draws each row; a row with
//! truncation or a penalty uses a whole thread block.

use super::{Forward, RowParams};
use crate::device::Cuda;
use crate::device::cuda::{Arg, Grid, Source, source};
use crate::ops::lm_head::CHUNK;
use crate::ops::lm_head::cpu::{KEPT, blocks};
use crate::ops::lm_head::cuda::{Beta, Head};
use crate::rng::philox;
use crate::{Result, ViewMut};

const SOURCE: Source = source!("sample");
/// Limit on the 32-bit words of logits that are in memory at once: 64 MiB. (Small in tests, to cover several blocks of
/// rows.)
const WORDS: usize = if cfg!(test) { 1 << 12 } else { 1 << 24 };
/// The limit instead of [`WORDS`] if a row has truncation or a penalty, which needs several words per logit.
const WORDS_WHOLE: usize = if cfg!(test) { 1 << 14 } else { 1 << 26 };

/// Words of packed sampling parameters for each row, stored column by column (`sample.cu` names them), without the
/// history.
pub(crate) const COLUMNS: usize = 12;
const BETA: usize = 2;
const GREEDY: u32 = 1;
const WHOLE: u32 = 2;

/// Returns how many of `all` rows are drawn together, and the scratch words for them: logits and partial sums. With
/// truncation or a penalty (`whole`), the scratch words also include penalised logits, weights, kept ids, and (logit,
/// id) pairs to sort.
pub(crate) fn block(all: usize, vocab: usize, whole: bool) -> (usize, usize) {
    let each = if whole { 4 * vocab + 2 * vocab.next_power_of_two() } else { vocab };
    let rows = (if whole { WORDS_WHOLE } else { WORDS } / each.max(1)).clamp(1, all.max(1));
    (rows, rows * (each + vocab.div_ceil(CHUNK) * KEPT))
}

/// Appends the packed sampling parameters of all rows, and their histories, to `words`.
pub(super) fn pack<'a>(rows: impl ExactSizeIterator<Item = RowParams<'a>>, words: &mut Vec<u32>) {
    let halves = |x: f64| [x.to_bits() as u32, (x.to_bits() >> 32) as u32];
    let (first, count) = (words.len(), rows.len());
    words.resize(first + COLUMNS * count, 0);
    for (i, row) in rows.enumerate() {
        let history = row.penalised();
        let random = philox(row.key, row.counter);
        let greedy = if row.temperature == 0.0 { GREEDY } else { 0 };
        let kind = greedy | if row.needs_logits() { WHOLE } else { 0 };
        let [top_p, min_p] = [row.top_p, row.min_p].map(halves);
        let columns: [u32; COLUMNS] = [
            random[0],
            random[1],
            row.inv_temperature().to_bits(),
            kind,
            u32::try_from(row.top_k).unwrap_or(0),
            (row.repetition_penalty as f32).to_bits(),
            top_p[0],
            top_p[1],
            min_p[0],
            min_p[1],
            (words.len() - first) as u32,
            history.len() as u32,
        ];
        for (column, word) in columns.into_iter().enumerate() {
            words[first + column * count + i] = word;
        }
        words.extend_from_slice(history);
    }
}

pub(super) fn forward(cuda: &Cuda, mut args: Forward<'_>) -> Result<()> {
    let head = Head::new(cuda, args.hidden, args.weight)?;
    let (vocab, chunks, stream, all) = (head.vocab, head.chunks(), cuda.stream(), args.rows.len());
    let (whole, plain) = (args.rows.iter().any(RowParams::needs_logits), |row: &RowParams<'_>| !row.needs_logits());
    let room = vocab.next_power_of_two();
    let (most, _) = block(all, vocab, whole);
    let logits = stream.scratch(most * vocab * size_of::<f32>())?;
    let partials = stream.scratch(most * chunks * KEPT * size_of::<f32>())?;
    // Buffers for penalised logits, weights and kept ids, followed by the buffer for sorting.
    let whole_bytes = if whole { most * vocab * size_of::<f32>() } else { 0 };
    let [warped, weights, kept] =
        [stream.scratch(whole_bytes), stream.scratch(whole_bytes), stream.scratch(whole_bytes)];
    let (warped, weights, kept) = (warped?, weights?, kept?);
    let sorted = stream.scratch(if whole { most * room * size_of::<u64>() } else { 0 })?;
    let own = match args.packed {
        Some(_) => None,
        None => {
            let mut words = Vec::new();
            pack(args.rows.iter().copied(), &mut words);
            Some(stream.scratch_of(&words)?)
        }
    };
    let words = match (&own, args.packed) {
        (Some(own), _) => own.at(0),
        (None, Some(packed)) => packed.u32_at(cuda),
        (None, None) => Arg::NULL,
    };

    let (ids, logps) = (args.ids.u32_at(cuda), args.logps.f32_at(cuda)?);
    let column = |column: Option<&mut ViewMut<'_>>| column.map_or(Ok(Arg::NULL), |column| column.f32_at(cuda));
    let truncated = column(args.truncated_logps.as_mut())?;
    let (lse, entropies) = (column(args.lse.as_mut())?, column(args.entropies.as_mut())?);
    for rows in blocks(0..all, most) {
        let of = |column: Arg| if column == Arg::NULL { column } else { column.after::<f32>(rows.start) };
        let here = &args.rows[rows.clone()];
        let (whole, plain) = (here.iter().any(RowParams::needs_logits), here.iter().any(plain));
        let [logits, partials, warped] = [&logits, &partials, &warped].map(|scratch| scratch.at(0));
        let [first, all_rows, vocab_size] = [rows.start, all, vocab].map(Arg::from);
        let outputs = [ids, logps, truncated, lse, entropies].map(of);
        head.logits(cuda, &rows, &(0..vocab), logits)?;
        if whole {
            let arguments = [logits, words, warped, first, all_rows, vocab_size];
            cuda.launch(&SOURCE, "sample_penalise", Grid::each(rows.len(), 256), &arguments)?;
        }
        let betas = Beta::Each(words.after::<f32>(BETA * all + rows.start));
        head.statistics(cuda, rows.len(), &(0..vocab), logits, partials, [Arg::NULL; 2], betas)?;
        if whole {
            let mut arguments = vec![logits, partials, words, warped, weights.at(0), kept.at(0), sorted.at(0)];
            arguments.extend(outputs);
            arguments.extend([first, all_rows, vocab_size, room.into(), chunks.into()]);
            cuda.launch(&SOURCE, "sample_whole", Grid::each(rows.len(), 256), &arguments)?;
        }
        if plain {
            let mut arguments = vec![logits, partials, words];
            arguments.extend(outputs);
            arguments.extend([rows.len().into(), first, all_rows, vocab_size, CHUNK.into(), chunks.into()]);
            cuda.launch(&SOURCE, "sample_plain", Grid::each(rows.len().div_ceil(32), 32), &arguments)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{PLAIN, kinds};
    use super::super::*;
    use crate::Tensor;
    use crate::check::normal;
    use crate::device::cuda::tests::{Results, random, results, same};

    /// All outputs of the draws.
    fn draw(ctx: &Context, rows: &[RowParams<'_>], h: usize, v: usize, hidden: &[f32]) -> Result<Results> {
        let r = rows.len();
        let hidden = Tensor::from_f32(ctx.memory(), &[r, h], hidden);
        let weight = Matrix::from_f32(ctx.memory(), v, h, &normal(2, v * h));
        let mut all = Vec::new();
        for joined in if r > 60 { &[false][..] } else { &[false, true] } {
            let mut words = vec![7];
            pack(ctx.memory().device(), rows.iter().copied(), &mut words);
            let words = Tensor::from_u32(ctx.memory(), &[words.len()], &words);
            let mut ids = Tensor::from_u32(ctx.memory(), &[r], &vec![u32::MAX; r]);
            let [mut logps, mut truncated, mut lse, mut entropies] = [3, 4, 5, 6].map(|seed| random(ctx, seed, &[r]));
            let args = Forward {
                hidden: hidden.view(),
                weight: &weight,
                rows,
                packed: joined.then(|| words.rows(1..words.shape()[0])),
                ids: ids.view_mut(),
                logps: logps.view_mut(),
                truncated_logps: Some(truncated.view_mut()),
                lse: Some(lse.view_mut()),
                entropies: Some(entropies.view_mut()),
            };
            forward(ctx, args)?;
            all.extend(results![logps, truncated, lse, entropies]);
            all.push(("ids", ids.view().to_vec_u32()));
        }
        Ok(all)
    }

    /// Hidden rows with peaked token distributions in which several tokens are still likely.
    fn peaked(r: usize, h: usize) -> Vec<f32> {
        let scale = 3.0 / (h as f32).sqrt();
        normal::<f32>(1, r * h).into_iter().map(|x| x * scale).collect()
    }

    #[test]
    fn cuda_gives_the_bits_of_the_cpu() {
        same([(1, 1, 1), (50, 3, 37), (70, 5, 1300), (0, 2, 3)], |&(r, h, v), ctx| {
            let temperatures = [1.0, 0.7, 0.0, 3.0];
            let row = |i: usize| RowParams { temperature: temperatures[i % 4], counter: [i as u32, 7, 0, 1], ..PLAIN };
            let rows: Vec<RowParams<'_>> = (0..r).map(row).collect();
            draw(ctx, &rows, h, v, &normal(1, r * h))
        });
    }

    #[test]
    fn truncated_draws_on_cuda_match_the_cpu_in_any_batch() {
        same([(20, 3, 700), (9, 7, 1031), (30, 2, 601)], |&(r, h, v), ctx| {
            let kinds = kinds();
            let row = |i: usize| RowParams { counter: [i as u32, 1, 2, 3], ..kinds[(i + r) % kinds.len()] };
            let rows: Vec<RowParams<'_>> = (0..r).map(row).collect();
            draw(ctx, &rows, h, v, &peaked(r, h))
        });
    }

    /// Top-k, top-p and min-p keep between one token and all of them. With ties, NaN and infinities in the logits, the
    /// device draws the same tokens as the CPU.
    #[test]
    fn cuda_draws_match_the_cpu_for_any_truncation() {
        let mut rows = Vec::new();
        for top_k in [0, 1, 63, 99] {
            for top_p in [1.0, 0.999_999, 0.5] {
                for min_p in [0.0, 1.0] {
                    let counter = [rows.len() as u32, 0, 0, 0];
                    rows.push(RowParams { top_k, top_p, min_p, counter, ..PLAIN });
                }
            }
        }
        let penalty = RowParams { repetition_penalty: 0.7, history: &[1, 63, 1, 0], ..PLAIN };
        rows.extend([penalty, RowParams { temperature: 0.0, ..penalty }, RowParams { top_k: 3, ..penalty }]);
        let r = rows.len();
        same([4.0, 0.0, f32::NAN, f32::INFINITY], |&scale, ctx| {
            let hidden: Vec<f32> = normal::<f32>(5, r).iter().map(|x| x * scale).collect();
            draw(ctx, &rows, 1, 64, &hidden)
        });
    }

    #[test]
    fn packed_parameters_of_other_rows_are_refused() {
        let ctx = Context::cpu(crate::Isa::best(), 1);
        let Some(cuda) = crate::device::cuda::tests::emulated(0).map(Context::cuda) else { return };
        for ctx in [&ctx, &cuda] {
            let (hidden, weight) = (random(ctx, 1, &[1, 2]), Matrix::from_f32(ctx.memory(), 3, 2, &[0.5; 6]));
            let (mut ids, mut logps) =
                (Tensor::from_u32(ctx.memory(), &[1], &[0]), Tensor::zeros(ctx.memory(), &[1], DType::F32));
            let words = Tensor::from_u32(ctx.memory(), &[4], &[0; 4]);
            let args = Forward {
                hidden: hidden.view(),
                weight: &weight,
                rows: &[PLAIN],
                packed: Some(words.view()),
                ids: ids.view_mut(),
                logps: logps.view_mut(),
                truncated_logps: None,
                lse: None,
                entropies: None,
            };
            assert!(forward(ctx, args).unwrap_err().to_string().contains("packed"));
        }
    }
}
