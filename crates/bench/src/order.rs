//! What the fixed order of sums costs: the matmuls and the attention that a freer engine would split, as they are and
//! split.
//!
//! | work | in order | split |
//! |---|---|---|
//! | matmul, few rows and a long K | one chain over K; threads share outputs | each thread has half of K, halves are added |
//! | gradient of a weight | one chain over tokens; threads share outputs | each thread has half of the tokens, halves are added |
//! | decode attention | keys block by block; threads share rows and heads | each thread has half of the keys, softmaxes are merged |
//!
//! Halves run on threads of their own that are kept spinning, and are put together by an average of the two outputs:
//! the least that a right merge takes. So what is measured is the most that freedom can gain.

use super::report::column;
use super::workload::Bench;
use super::{Machine, Report, Subject, Workload, median, repeat};
use kernels::ops::attention::{self, BLOCK, Geometry};
use kernels::ops::lerp::{self, Lerp};
use kernels::ops::linear::{self, BackwardWeight};
use kernels::{Context, DType, Matrix, Tensor};
use lockstep::bad_input;
use serde_json::json;
use std::hint::spin_loop;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Keys of the sequences that decode.
const KEYS: usize = 4096;
/// Rows of the micro-batch whose weight gradients are measured.
const TOKENS: usize = 1024;
/// Seconds of each measurement.
const SECONDS: f64 = 0.3;

/// Times every kind of work both ways, and what the difference is of the step that it belongs to.
pub fn run(ctx: &Context, shape: Subject) -> anyhow::Result<Report> {
    if ctx.threads() != 2 {
        bad_input!("{} threads: sums are split between two; expected --threads 2", ctx.threads());
    }
    let config = shape.config()?;
    let (layers, [hidden, ffn]) = (config.num_layers as f64, [config.hidden_size, config.intermediate_size]);
    let columns = [
        column("work", "work", 0),
        column("in_order_ms", "in order ms", 3),
        column("split_ms", "split ms", 3),
        column("gain", "in order / split", 2),
        column("of_step_percent", "gain of its step %", 2),
    ];
    let mut report = Report::new("order", Machine::measure(ctx)?.of_dtype(shape.dtype.dtype()), &columns);
    let mut row = |work: String, (ordered, split): (f64, f64), step: f64| {
        let gain = (ordered - split).max(0.0) * layers;
        report.row([
            json!(work),
            json!(1e3 * ordered),
            json!(1e3 * split),
            json!(ordered / split),
            json!(100.0 * gain / step),
        ]);
        gain
    };
    for batch in [1, 16] {
        let step = decode_step_s(ctx, shape, batch)?;
        let matmul = both(ctx, |half| Matmul::new(ctx, shape, [batch, ffn / half, hidden]))?;
        let attention = both(ctx, |half| Attention::new(ctx, shape, batch, KEYS / half))?;
        let gain = row(format!("matmul {batch} × {ffn} × {hidden}"), matmul, step)
            + row(format!("attention, {batch} × {KEYS} keys"), attention, step);
        let all = (step / layers, (step - gain) / layers);
        row(format!("decode step of {batch}, all layers; its share of one here"), all, step);
    }
    let step = update_s(ctx, shape)?;
    let weight = both(ctx, |half| WeightGradient::new(ctx, shape, [TOKENS / half, hidden, ffn]))?;
    let gain = row(format!("gradient of a weight, {TOKENS} × {hidden} × {ffn}"), weight, step);
    row(
        format!("update of {TOKENS} rows, all layers; its share of one here"),
        (step / layers, (step - gain) / layers),
        step,
    );
    report.note(format!(
        "{}; the last column takes each difference once per layer, none where the order costs nothing",
        shape.name()
    ));
    Ok(report)
}

/// Work that can be cut in half.
trait Work: Send {
    /// Does it on the threads of `ctx`.
    fn run(&mut self, ctx: &Context) -> kernels::Result<()>;
    /// What it gives, in f32.
    fn output(&mut self) -> &mut Tensor;
}

/// Seconds of the work on both threads, and of two halves, one on each, with their merge. `make(n)` makes an n-th of
/// it.
fn both<W: Work>(ctx: &Context, make: impl Fn(usize) -> W) -> anyhow::Result<(f64, f64)> {
    let mut whole = make(1);
    let ordered = median(&repeat(5, SECONDS, || Ok(whole.run(ctx)?))?);
    drop(whole);
    let halves = [Mutex::new(make(2)), Mutex::new(make(2))];
    let single = ctx.with_threads(1);
    let one = |i: usize| halves[i].lock().expect("no thread has panicked").run(&single);
    let (asked, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let split = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let (mut outcome, mut last) = (Ok(()), 0);
            loop {
                match asked.load(Ordering::Acquire) {
                    usize::MAX => return outcome,
                    now if now == last => spin_loop(),
                    now => {
                        outcome = outcome.and(one(1));
                        last = now;
                        done.store(now, Ordering::Release);
                    }
                }
            }
        });
        let mut turn = 0;
        let times = repeat(5, SECONDS, || {
            turn += 1;
            asked.store(turn, Ordering::Release);
            one(0)?;
            while done.load(Ordering::Acquire) != turn {
                spin_loop();
            }
            let (mut a, mut b) = (halves[0].lock().expect("its thread is here"), halves[1].lock().expect("it is done"));
            let (y, x) = (a.output().view_mut(), b.output().view());
            Ok(lerp::lerp(&single, Lerp { y, x, alpha: 0.5 })?)
        });
        asked.store(usize::MAX, Ordering::Release);
        other.join().expect("no thread panics")?;
        times
    })?;
    Ok((ordered, median(&split)))
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i % 13) as f32 / 13.0 - 0.5).collect()
}

fn filled(ctx: &Context, dims: &[usize], dtype: DType) -> Tensor {
    let mut tensor = Tensor::zeros(ctx.memory(), dims, dtype);
    tensor.view_mut().copy_from_f32(&numbers(dims.iter().product()));
    tensor
}

/// `y = x Wᵀ`
struct Matmul {
    x: Tensor,
    w: Matrix,
    y: Tensor,
}

impl Matmul {
    fn new(ctx: &Context, shape: Subject, [m, k, n]: [usize; 3]) -> Matmul {
        let (memory, dtype) = (ctx.memory(), shape.dtype.dtype());
        let mut w = Matrix::zeros_of(memory, n, k, dtype);
        w.pack_rows(0, &numbers(n * k));
        Matmul { x: filled(ctx, &[m, k], dtype), w, y: Tensor::zeros(memory, &[m, n], DType::F32) }
    }
}

impl Work for Matmul {
    fn run(&mut self, ctx: &Context) -> kernels::Result<()> {
        let (x, y) = (self.x.view(), self.y.view_mut());
        linear::forward(ctx, linear::Forward { x, w: &self.w, bias: None, y, accumulate: false })
    }
    fn output(&mut self) -> &mut Tensor {
        &mut self.y
    }
}

/// `d_W += d_yᵀ x`
struct WeightGradient {
    x: Tensor,
    d_y: Tensor,
    d_w: Matrix,
}

impl WeightGradient {
    fn new(ctx: &Context, shape: Subject, [m, k, n]: [usize; 3]) -> WeightGradient {
        WeightGradient {
            x: filled(ctx, &[m, k], shape.dtype.dtype()),
            d_y: filled(ctx, &[m, n], DType::F32),
            d_w: Matrix::zeros(ctx.memory(), n, k),
        }
    }
}

impl Work for WeightGradient {
    fn run(&mut self, ctx: &Context) -> kernels::Result<()> {
        let (x, d_y) = (self.x.view(), self.d_y.view());
        linear::backward_weight(ctx, BackwardWeight { x, d_y, d_w: &mut self.d_w, d_bias: None, segments: None })
    }
    fn output(&mut self) -> &mut Tensor {
        self.d_w.data_mut()
    }
}

/// One row of each of `batch` sequences attends to `keys` keys of its own.
struct Attention {
    geometry: Geometry,
    qkv: Tensor,
    pages: [Tensor; 2],
    rows: [Tensor; 3],
    out: Tensor,
    /// What halves are merged in: they keep their outputs in f32, whatever the dtype.
    merged: Tensor,
}

impl Attention {
    fn new(ctx: &Context, shape: Subject, batch: usize, keys: usize) -> Attention {
        let config = shape.config().expect("the shapes are valid");
        let (memory, dtype) = (ctx.memory(), shape.dtype.dtype());
        let [heads, kv_heads, head_dim] = [config.num_heads, config.num_kv_heads, config.head_dim];
        let blocks = keys.div_ceil(BLOCK);
        let ids = |n: usize, f: &dyn Fn(usize) -> usize| (0..n).map(|i| f(i) as u32).collect::<Vec<_>>();
        Attention {
            geometry: Geometry { heads, kv_heads, head_dim, scale: (head_dim as f32).sqrt().recip(), window: None },
            qkv: filled(ctx, &[batch, (heads + 2 * kv_heads) * head_dim], dtype),
            pages: [
                filled(ctx, &[batch * blocks, kv_heads, head_dim, BLOCK], dtype),
                filled(ctx, &[batch * blocks, kv_heads, BLOCK, head_dim], dtype),
            ],
            rows: [
                Tensor::from_u32(memory, &[batch], &ids(batch, &|_| keys - 1)),
                Tensor::from_u32(memory, &[batch], &ids(batch, &|i| i)),
                Tensor::from_u32(memory, &[batch, blocks], &ids(batch * blocks, &|i| i)),
            ],
            out: Tensor::zeros(memory, &[batch, heads * head_dim], dtype),
            merged: Tensor::zeros(memory, &[batch, heads * head_dim], DType::F32),
        }
    }
}

impl Work for Attention {
    fn run(&mut self, ctx: &Context) -> kernels::Result<()> {
        let [positions, tables_of_rows, tables] = &self.rows;
        let args = attention::Forward {
            qkv: self.qkv.view(),
            geometry: self.geometry,
            rows: attention::Rows {
                positions: positions.view(),
                tables_of_rows: tables_of_rows.view(),
                tables: tables.view(),
            },
            pages: attention::Pages { keys: self.pages[0].view(), values: self.pages[1].view() },
            out: self.out.view_mut(),
            lse: None,
        };
        attention::forward(ctx, args)
    }
    fn output(&mut self) -> &mut Tensor {
        &mut self.merged
    }
}

/// Seconds of a decode step of `batch` sequences of about [`KEYS`] tokens, sampler included.
fn decode_step_s(ctx: &Context, shape: Subject, batch: usize) -> anyhow::Result<f64> {
    let steps = 8;
    // Sequences share a prompt, so that it is computed once; what a step attends to is the same.
    let workload = Workload {
        prompts: 1,
        prompt_tokens: KEYS - steps,
        generations: batch,
        max_num_seqs: batch,
        ..Workload::grpo(batch, steps)
    };
    let steps = workload.decode_steps(ctx, &shape.weights(ctx)?)?;
    Ok(median(&steps.iter().map(|step| step.0).collect::<Vec<_>>()))
}

/// Seconds of an update on [`TOKENS`] completion tokens.
fn update_s(ctx: &Context, shape: Subject) -> anyhow::Result<f64> {
    let mut bench = Bench::new(Workload::grpo(8, TOKENS / 8), ctx, shape.weights(ctx)?)?;
    bench.step()?;
    Ok(bench.step()?.update_s)
}
