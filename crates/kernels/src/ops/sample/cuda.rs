//! Draws from whole rows of logits, a block of rows at a time: a thread for each row.

use super::cpu::uniform;
use super::{Forward, RowParams};
use crate::Result;
use crate::device::Cuda;
use crate::device::cuda::{Arg, Grid, Source, source};
use crate::ops::lm_head::CHUNK;
use crate::ops::lm_head::cpu::{KEPT, blocks};
use crate::ops::lm_head::cuda::{Beta, Head};

const SOURCE: Source = source!("sample");
/// Logits that are in memory at once: 64 MiB. (Few in tests, for several blocks.)
const LOGITS: usize = if cfg!(test) { 1 << 12 } else { 1 << 24 };

pub(super) fn forward(cuda: &Cuda, mut args: Forward<'_>) -> Result<()> {
    if args.rows.iter().any(RowParams::needs_logits) {
        return Err(cuda.lacks("sampling with top_k, top_p, min_p or a repetition penalty"));
    }
    let head = Head::new(cuda, args.hidden, args.weight)?;
    let (vocab, chunks, queue) = (head.vocab, head.chunks(), cuda.queue());
    let most = (LOGITS / vocab).clamp(1, args.rows.len().max(1));
    let logits = queue.scratch(most * vocab * size_of::<f32>())?;
    let partials = queue.scratch(most * chunks * KEPT * size_of::<f32>())?;
    // What a row is drawn with, in one copy: uniforms (two words each), 1/T, whether it is greedy.
    let all = args.rows.len();
    let uniforms = args.rows.iter().map(|row| uniform(row).to_bits());
    let mut words: Vec<u32> = uniforms.flat_map(|bits| [bits as u32, (bits >> 32) as u32]).collect();
    words.extend(args.rows.iter().map(|row| row.inv_temperature().to_bits()));
    words.extend(args.rows.iter().map(|row| u32::from(row.temperature == 0.0)));
    let params = queue.scratch_of(&words)?;
    let (uniforms, betas, greedy) = (params.at(0), params.at(8 * all), params.at(12 * all));

    let (ids, logps) = (args.ids.u32_at(cuda), args.logps.f32_at(cuda)?);
    let truncated = args.truncated_logps.as_mut().map_or(Ok(Arg::NULL), |logps| logps.f32_at(cuda))?;
    for rows in blocks(0..all, most) {
        let of = |column: Arg| if column == Arg::NULL { column } else { column.after::<f32>(rows.start) };
        let (logits, partials) = (logits.at(0), partials.at(0));
        head.logits(cuda, &rows, &(0..vocab), logits)?;
        head.statistics(cuda, rows.len(), &(0..vocab), logits, partials, [Arg::NULL; 2], Beta::Each(of(betas)))?;
        let mut arguments = vec![logits, partials, uniforms.after::<f64>(rows.start), of(greedy)];
        arguments.extend([of(ids), of(logps), of(truncated)]);
        arguments.extend([rows.len(), vocab, CHUNK, chunks].map(Arg::from));
        cuda.launch(&SOURCE, "sample_plain", Grid::each(rows.len().div_ceil(32), 32), &arguments)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::Tensor;
    use crate::check::normal;
    use crate::device::cuda::tests::{bits, emulated, random, same};

    const PLAIN: RowParams<'static> = RowParams {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        history: &[],
        key: 42,
        counter: [0; 4],
    };

    fn draw(ctx: &Context, rows: &[RowParams<'_>], h: usize, v: usize) -> Result<Vec<u32>> {
        let r = rows.len();
        let (hidden, weight) = (random(ctx, 1, &[r, h]), Matrix::from_f32(ctx.memory(), v, h, &normal(2, v * h)));
        let mut ids = Tensor::zeros(ctx.memory(), &[r], DType::U32);
        let [mut logps, mut truncated] = [3, 4].map(|seed| random(ctx, seed, &[r]));
        let args = Forward {
            hidden: hidden.view(),
            weight: &weight,
            rows,
            ids: ids.view_mut(),
            logps: logps.view_mut(),
            truncated_logps: Some(truncated.view_mut()),
        };
        forward(ctx, args)?;
        let mut all = bits(&[&logps, &truncated]);
        all.extend(ids.view().to_vec_u32());
        Ok(all)
    }

    #[test]
    fn the_bits_are_the_cpu_s() {
        for (r, h, v) in [(1, 1, 1), (50, 3, 37), (70, 5, 1300), (0, 2, 3)] {
            let temperatures = [1.0, 0.7, 0.0, 3.0];
            let row = |i: usize| RowParams { temperature: temperatures[i % 4], counter: [i as u32, 7, 0, 1], ..PLAIN };
            let rows: Vec<RowParams<'_>> = (0..r).map(row).collect();
            same(|ctx| draw(ctx, &rows, h, v));
        }
    }

    #[test]
    fn truncation_is_refused() {
        let Some(cuda) = emulated(0) else { return };
        let refused = draw(&Context::cuda(cuda), &[RowParams { top_k: 3, ..PLAIN }], 2, 9).unwrap_err();
        assert!(refused.to_string().contains("sampling with top_k"), "{refused}");
    }
}
