//! Computing in bf16: logits are nearer to f64 than transformers' bf16 logits (`conformance/bf16_fixtures.py`),
//! gradients are close to f32 gradients, and the bits do not depend on the layout of a batch.

use super::fixtures::Expected;
use super::*;
use kernels::check::{normal, relative_error};

/// The largest allowed error, as a fraction of transformers' error.
const OF_TRANSFORMERS: f64 = 0.9;

fn load_in_bf16(ctx: &Context, dir: &Path) -> Weights {
    let config = ModelConfig::load(&dir.join("config.json")).unwrap();
    let config = Arc::new(ModelConfig { compute: DType::Bf16, ..config });
    Weights::load(ctx.memory(), dir, &config).unwrap()
}

/// The same weights for a model that computes in f32.
fn in_f32(ctx: &Context, weights: &Weights) -> Weights {
    let embedding_multiplier = weights.config.embedding_scale();
    with_config(ctx, weights, ModelConfig { compute: DType::F32, embedding_multiplier, ..(*weights.config).clone() })
}

/// The instruction sets of this machine, and tiles emulated in plain Rust, which run on every machine.
fn isas() -> impl Iterator<Item = Isa> {
    Isa::present().into_iter().chain([Isa::AMX_EMULATED])
}

fn nearer_than_transformers(ctx: &Context, dir: &Path, fixture: &Path) -> f64 {
    let (expected, weights) = (Expected::read(fixture), load_in_bf16(ctx, dir));
    let (ids, exact, theirs) = (expected.ids(), expected.f64("logits"), expected.f64("error")[0]);
    let ours = relative_error(&logits(ctx, &weights, &ids), &exact);
    // The weights are the same; only the activations are rounded.
    assert!(relative_error(&logits(ctx, &in_f32(ctx, &weights), &ids), &exact) < 1e-5, "{}", dir.display());
    assert!(ours > 1e-4, "{}: bf16 changed nothing", dir.display());
    println!("{}: {ours:.2e}, {:.2} of transformers' {theirs:.2e}", dir.display(), ours / theirs);
    ours / theirs
}

#[test]
fn bf16_logits_are_nearer_to_f64_than_transformers_logits() {
    for isa in isas() {
        let ctx = Context::cpu(isa, 2);
        for family in FAMILIES {
            let ratio = nearer_than_transformers(&ctx, &folder(family), &folder(family).join("bf16.safetensors"));
            assert!(ratio <= OF_TRANSFORMERS, "{family}: {ratio}");
        }
    }
}

#[test]
fn bf16_logits_of_a_pretrained_model_are_nearer_to_f64_than_transformers_logits() {
    let Some(dir) = stories::directory() else { return };
    let fixture = folder("stories_bf16.safetensors");
    let ratio = nearer_than_transformers(&context(2), &dir, &fixture);
    assert!(ratio <= OF_TRANSFORMERS, "{ratio}");
}

#[test]
fn bf16_gradients_are_near_f32_gradients() {
    for ctx in [context(2), Context::cpu(Isa::AMX_EMULATED, 2)] {
        gradients_are_near(&ctx);
    }
}

fn gradients_are_near(ctx: &Context) {
    for family in FAMILIES {
        let weights = load_in_bf16(ctx, &folder(family));
        let ids: Vec<u32> = (0..70).map(|i| (i * i + 3 * i) % 43).collect();
        let batches = [Batch::new(&[GroupSegment { prefix: &ids[..9], branches: &[&ids[9..], &ids[20..44]] }], true)];
        let weight: Vec<f32> = normal(1, batches[0].targets.len());
        let narrow = gradients(ctx, &weights, &batches, &weight, false);
        let wide = gradients(ctx, &in_f32(ctx, &weights), &batches, &weight, false);
        let (mut square, mut missed) = (0.0, 0.0);
        let tensors = narrow.grads.params.tensors().into_iter().zip(wide.grads.params.tensors());
        for (spec, (n, w)) in weights.params.specs().iter().zip(tensors) {
            assert_eq!(n.dtype(), DType::F32);
            let exact: Vec<f64> = w.to_vec_f32().into_iter().map(f64::from).collect();
            let (norm, error) = (exact.iter().map(|x| x * x).sum::<f64>(), relative_error(&n.to_vec_f32(), &exact));
            assert!(error > 1e-5 && error < 0.15, "{family} {:?}: {error}", spec.parts[0].name);
            (square, missed) = (square + norm, missed + norm * error * error);
        }
        let error = (missed / square).sqrt();
        println!("{family}: gradients {error:.1e}");
        assert!(error < 0.06, "{family}: {error}");
    }
}

/// The bits do not depend on threads, batching, checkpointing or the instruction set. The only exception: AMX tiles do
/// not sum in a single chain of additions.
#[test]
fn bf16_bits_do_not_depend_on_threads_batching_or_checkpointing() {
    let ids: Vec<u32> = (0..150).map(|i| (i * i + 3 * i) % 43).collect();
    let groups: [GroupSegment<'_>; 2] = [
        GroupSegment { prefix: &ids[..77], branches: &[&ids[77..], &ids[30..60]] },
        GroupSegment { prefix: &ids[5..20], branches: &[&ids[90..100], &ids[100..140]] },
    ];
    let one = [Batch::new(&groups, true)];
    let two = groups.map(|g| Batch::new(&[g], true));
    let weight: Vec<f32> = normal(1, one[0].targets.len());
    for family in FAMILIES {
        let mut first = [None, None];
        for isa in isas() {
            let first = &mut first[usize::from(Context::cpu(isa, 1).arithmetic(DType::Bf16) == "bf16-amx")];
            for (threads, batches, checkpointing) in [(1, &one[..], false), (2, &two[..], true), (3, &one[..], true)] {
                let ctx = Context::cpu(isa, threads);
                let weights = load_in_bf16(&ctx, &folder(family));
                let got = gradients(&ctx, &weights, batches, &weight, checkpointing);
                let got = (got.logps, got.entropies, bits(&got.grads));
                assert!(*first.get_or_insert(got.clone()) == got, "{family} {isa:?} {threads} {checkpointing}");
            }
        }
        assert!(first[0] != first[1], "{family}: tiles were not used");
    }
}

#[test]
fn bf16_weights_take_half_the_memory() {
    let bytes = |compute: DType| {
        let config = ModelConfig::load(&folder("qwen3").join("config.json")).unwrap();
        let config = Arc::new(ModelConfig { hidden_size: 64, vocab_size: 4096, compute, ..config });
        let memory = kernels::Memory::new(kernels::Device::Meta);
        let parts = (Weights::zeros(&memory, &config), model::KvCache::new(&memory, &config, 8));
        let usage = memory.usage();
        drop(parts);
        ["weights", "kv cache"].map(|part| usage[part].bytes)
    };
    let ([weights, pages], [narrow, narrow_pages]) = (bytes(DType::F32), bytes(DType::Bf16));
    assert_eq!(pages, 2 * narrow_pages);
    assert!(narrow as f64 / (weights as f64) < 0.51, "{narrow} bytes in bf16, {weights} in f32");
}
