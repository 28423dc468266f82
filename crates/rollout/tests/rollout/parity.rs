//! The bits that the sampler records equal the bits that the trainer computes, whatever else either of them computes at
//! the same time.

use crate::*;
use kernels::check::with_flush_to_zero;

/// The requests of a test, and the engine's size.
struct Load {
    prompts: Vec<Arc<Prompt>>,
    generations: usize,
    max_new_tokens: usize,
    max_model_len: usize,
    /// A number of pages that is too small for all sequences.
    few_blocks: usize,
}

impl Load {
    fn new(vocab: usize, lengths: &[usize], generations: usize, max_new_tokens: usize, few_blocks: usize) -> Load {
        let prompts = lengths.iter().enumerate().map(|(i, &len)| prompt(vocab, i, len)).collect();
        let max_model_len = lengths.iter().max().unwrap() + max_new_tokens;
        Load { prompts, generations, max_new_tokens, max_model_len, few_blocks }
    }
    fn requests(&self, temperature: f64) -> Vec<Request> {
        let sampling =
            SamplingParams { temperature, max_new_tokens: self.max_new_tokens, seed: 11, ..SamplingParams::default() };
        requests(&self.prompts, self.generations, sampling)
    }
}

/// Generates with every engine configuration, scores with every trainer layout, and compares all results with the
/// first. Returns the number of compared tokens.
fn matrix<'a>(
    model: impl Into<ModelView<'a>>,
    load: &Load,
    isa: Isa,
    sizes: &[usize],
    threads: &[usize],
    temperatures: &[f64],
) -> usize {
    let contexts: Vec<Context> = threads.iter().map(|&threads| Context::cpu(isa, threads)).collect();
    matrix_on(&contexts, model, load, sizes, temperatures)
}

/// As [`matrix`], on each of these contexts, which share the model's memory.
fn matrix_on<'a>(
    contexts: &[Context],
    model: impl Into<ModelView<'a>>,
    load: &Load,
    sizes: &[usize],
    temperatures: &[f64],
) -> usize {
    let model = model.into();
    let mut compared = 0;
    for &temperature in temperatures {
        let mut first: Option<Vec<RolloutGroup>> = None;
        for ctx in contexts {
            let title = format!("{} T={temperature} {} threads", ctx.describe(), ctx.threads());
            for &max_num_seqs in sizes {
                for switches in 0..8 {
                    let [prefix_sharing, chunked_prefill, few] = [1, 2, 4].map(|bit| switches & bit != 0);
                    let mut config = EngineConfig {
                        max_num_seqs,
                        max_batched_tokens: 24,
                        chunked_prefill,
                        prefix_sharing,
                        ..roomy(load.max_model_len)
                    };
                    if few {
                        config.kv_blocks = load.few_blocks;
                    }
                    let mut engine = poisoned(ctx, model.weights, config.clone());
                    let groups = engine.generate(model, load.requests(temperature)).unwrap();
                    assert!(!few || max_num_seqs < 3 || engine.counters().preemptions > 0, "{config:?} must preempt");
                    assert_eq!(completions(&groups).count(), load.prompts.len() * load.generations);
                    compared += completions(&groups).map(|c| c.ids.len()).sum::<usize>();
                    match &first {
                        None => first = Some(groups),
                        Some(first) => {
                            let same = bits(&groups) == bits(first);
                            assert!(same, "{title} {config:?}");
                        }
                    }
                }
            }
        }
        let groups = first.unwrap();
        let recorded: Vec<u32> = recorded(&groups).iter().map(|l| l.to_bits()).collect();
        for ctx in contexts {
            let title = format!("{} T={temperature} {} threads", ctx.describe(), ctx.threads());
            for layout in [Layout::Shared, Layout::Packed, Layout::Alone] {
                let trainer = scored(ctx, model, &groups, temperature, layout);
                let trainer: Vec<u32> = trainer.iter().map(|l| l.to_bits()).collect();
                assert_eq!(trainer.len(), recorded.len());
                let mismatching = trainer.iter().zip(&recorded).filter(|(a, b)| a != b).count();
                assert_eq!(mismatching, 0, "of {} tokens: {title} {layout:?}", trainer.len());
            }
        }
    }
    compared
}

/// Whether to run the full matrix on an instruction set: on the best one, or on all (`cargo xtask nightly parity`), but
/// never on portable code, which is slow.
fn is_full(isa: Isa) -> bool {
    let is_chosen = isa == Isa::best() || std::env::var_os("PARITY").is_some_and(|which| which == "all");
    is_chosen && isa != Isa::PORTABLE
}

/// Runs the matrix on every instruction set. Portable code, which emulates fused products slowly, gets fewer tokens.
fn all_isas(weights: &Weights) {
    let vocab = weights.config.vocab_size;
    for isa in Isa::present() {
        if isa != Isa::PORTABLE {
            let load = Load::new(vocab, &[61, 5, 30, 9], 16, 10, 4);
            if is_full(isa) {
                assert!(matrix(weights, &load, isa, &[1, 3, 16, 64], &[1, 2], &[1.0, 0.7]) > 10_000);
            } else {
                assert!(matrix(weights, &load, isa, &[3, 64], &[1, 2], &[0.7]) > 5_000);
            }
        } else {
            let load = Load::new(vocab, &[61], 5, 10, 4);
            matrix(weights, &load, isa, &[1, 3, 16, 64], &[1, 2], &[1.0, 0.7]);
            // Enough sequences to fill batches of 16 and of 64, for a few tokens.
            matrix(weights, &Load::new(vocab, &[63], 64, 5, 4), isa, &[16, 64], &[2], &[0.7]);
        }
    }
}

#[test]
fn parity_holds_for_a_random_qwen3() {
    all_isas(&qwen3(&portable(), 40, 2, 611));
}

#[test]
fn parity_holds_for_a_random_qwen3_in_bf16() {
    all_isas(&in_bf16(&portable(), &qwen3(&portable(), 40, 2, 611)));
}

/// Runs matmuls on tiles in plain Rust. This is slow, so the load is small. Chunks of a prompt are longer than a tile
/// has rows, and completions cross a page. Heads of 24 are padded to a step of 32 when they are read; heads of 64 are
/// stored in pages in the layout that the instruction reads.
#[test]
fn parity_holds_on_emulated_tiles() {
    for head_dim in [24, 64] {
        let weights = in_bf16(&portable(), &qwen3_of(&portable(), 40, 2, 611, head_dim));
        let load = Load::new(weights.config.vocab_size, &[61], 5, 10, 4);
        assert!(matrix(&weights, &load, Isa::AMX_EMULATED, &[3], &[1, 2], &[0.7]) > 500);
    }
}

#[test]
fn parity_holds_for_the_pretrained_stories_in_bf16() {
    let Some(weights) = stories(&portable()) else { return };
    trained(&in_bf16(&portable(), &weights));
}

#[test]
fn parity_holds_for_the_pretrained_stories() {
    let Some(weights) = stories(&portable()) else { return };
    trained(&weights);
    let load = Load::new(weights.config.vocab_size, &[61], 5, 10, 4);
    matrix(&weights, &load, Isa::PORTABLE, &[3], &[1], &[0.7]);
}

/// Runs real weights with two batch sizes and one temperature. (Random weights run the full matrix.)
fn trained(weights: &Weights) {
    for isa in Isa::present().into_iter().filter(|&isa| isa != Isa::PORTABLE) {
        let load = Load::new(weights.config.vocab_size, &[61, 5, 30, 9], 16, 10, 4);
        assert!(matrix(weights, &load, isa, &[3, 64], &[1, 2], &[0.7]) > 5_000);
    }
}

/// In this test, K spans three depth blocks of the matmul and is not a multiple of 32; the vocabulary has three chunks
/// with a ragged tail; a prompt ends inside a page; completions cross two pages; pages are filled with NaN; and the
/// caller flushes denormals to zero.
#[test]
fn parity_holds_for_awkward_shapes() {
    check_awkward_shapes(&qwen3(&portable(), 600, 1, 3 * 512 + 77));
}

#[test]
fn parity_holds_for_awkward_shapes_in_bf16() {
    check_awkward_shapes(&in_bf16(&portable(), &qwen3(&portable(), 600, 1, 3 * 512 + 77)));
}

fn check_awkward_shapes(weights: &Weights) {
    let vocab = weights.config.vocab_size;
    for isa in Isa::present() {
        with_flush_to_zero(|| {
            if is_full(isa) {
                matrix(weights, &Load::new(vocab, &[64 + 13], 2, 121, 5), isa, &[1, 16], &[2], &[1.0, 0.7]);
            } else {
                matrix(weights, &Load::new(vocab, &[64 + 13], 2, 56, 5), isa, &[16], &[2], &[0.7]);
            }
        });
    }
}

/// Tests prefill in chunks or in one step, and decoding alone or with others, on pages that are shared, copied or
/// evicted.
#[test]
fn parity_holds_on_emulated_cuda() {
    let Some(ctx) = emulated() else { return };
    let weights = qwen3(&ctx, 24, 2, 97);
    let load = Load::new(97, &[61, 5], 3, 5, 4);
    assert_eq!(matrix_on(&[ctx], &weights, &load, &[2, 8], &[0.7]), 2 * 8 * 2 * 3 * 5);
}

/// The sampler runs an adapter like the trainer: unmerged, with the same operations.
#[test]
fn parity_holds_with_an_adapter() {
    for isa in Isa::present() {
        let weights = adapted(&Context::cpu(isa, 1));
        let load = Load::new(101, &[61, 5], 5, 10, 4);
        let threads: &[usize] = if isa == Isa::PORTABLE { &[1] } else { &[1, 2] };
        assert!(matrix(&weights, &load, isa, &[3, 16], threads, &[0.7]) > 1000);
    }
}
