//! Low-rank adapters in a complete model: compared with PEFT in f64 (`conformance/lora_fixtures.py`), switched off, and
//! merged; frozen weights; equal bits.

use super::fixtures::{Expected, GRADIENT, LOGITS, gradient_errors_of};
use super::gradients::{batch, groups, is_the_slope};
use super::*;
use kernels::Memory;
use kernels::check::{normal, relative_error};
use model::io::TensorSpec;
use model::weights::{Named, NamedMut, Role};
use model::{LoraConfig, TargetModules};

pub fn lora(target_modules: TargetModules) -> LoraConfig {
    LoraConfig { r: 3, alpha: 5.0, use_rslora: true, dropout: 0.0, target_modules }
}

/// Target modules that cover only some rows of the fused weights.
pub fn some() -> LoraConfig {
    lora(TargetModules::Names(["q_proj", "v_proj", "o_proj", "up_proj"].map(str::to_owned).to_vec()))
}

/// The family's weights with an adapter that changes the results.
pub fn adapted(ctx: &Context, family: &str, lora: &LoraConfig) -> AdaptedWeights {
    let weights = load(ctx, family);
    let mut adapter = Adapter::new(ctx.memory(), &weights, lora, 1).unwrap();
    let mut named = NamedMut { params: &mut adapter.params };
    for (i, spec) in named.tensors().into_iter().filter(|s| s.name.contains("lora_")).enumerate() {
        let data = normal::<f32>(100 + i as u64, spec.shape.iter().product());
        named.put(&spec.name, &data.iter().map(|x| 0.3 * x).collect::<Vec<_>>()).unwrap();
    }
    AdaptedWeights::new(ctx.memory(), weights, Some(adapter))
}

/// Moves every parameter of the weights' adapter along `g`.
pub fn move_along(weights: &mut AdaptedWeights, g: &[Vec<f32>], by: f64) {
    change(weights, |adapter| {
        for (t, g) in adapter.params.tensors_mut().into_iter().zip(g).filter(|(_, g)| !g.is_empty()) {
            let to: Vec<f32> = t.to_vec_f32().iter().zip(g).map(|(w, g)| w + (by * f64::from(*g)) as f32).collect();
            t.view_mut().copy_from_f32(&to);
        }
    });
}

pub fn whole<'a>(model: impl Into<ModelView<'a>>) -> ([Batch; 1], Vec<f32>) {
    let whole = [batch(&groups(model.into().config().vocab_size as u32), true)];
    let weight = normal(3, whole[0].targets.len());
    (whole, weight)
}

#[test]
fn a_new_adapter_changes_no_bit_and_switching_it_off_gives_the_base() {
    let ctx = context(2);
    for family in FAMILIES {
        let base = load(&ctx, family);
        let (whole, weight) = whole(&base);
        let expected = gradients(&ctx, &base, &whole, &weight, false);
        let new = Adapter::new(ctx.memory(), &base, &lora(TargetModules::AllLinear), 1).unwrap();
        let got = gradients(&ctx, ModelView::new(&base, Some(&new)), &whole, &weight, false);
        assert!(got.logps == expected.logps && got.hidden == expected.hidden, "{family}: a new adapter");
        let other = adapted(&ctx, family, &some());
        let got = gradients(&ctx, &other, &whole, &weight, false);
        assert!(relative_error(&got.logps, &expected.logps.iter().map(|&x| f64::from(x)).collect::<Vec<_>>()) > 1e-2);
        let off = other.base.current();
        let mut tape = Tape::forward_only(ctx.memory(), &off.config, whole[0].capacity());
        let rope = Rope::new(ctx.memory(), &off.config, 256);
        let logps = net::score(&ctx, off, &rope, &whole[0], &mut tape, 1.0).unwrap().logps;
        assert!(logps == expected.logps, "{family}: switched off");
        let again = gradients(&ctx, &other, &whole, &weight, false);
        assert!(again.logps == got.logps && bits(&again.grads) == bits(&got.grads), "{family}: on again");
    }
}

#[test]
fn a_merged_model_equals_its_base_with_the_adapter() {
    let ctx = context(2);
    for family in FAMILIES {
        let weights = adapted(&ctx, family, &some());
        let (whole, weight) = whole(&weights);
        let expected: Vec<f64> =
            gradients(&ctx, &weights, &whole, &weight, false).logps.iter().map(|&x| f64::from(x)).collect();
        let mut merged = load(&ctx, family);
        merged.merge(adapter(&weights));
        assert_eq!(merged.version.0, 1);
        let error = relative_error(&gradients(&ctx, &merged, &whole, &weight, false).logps, &expected);
        assert!(error < 1e-5, "{family}: {error:e}");
    }
}

#[test]
fn frozen_weights_have_no_gradient_memory() {
    let ctx = context(1);
    let weights = adapted(&ctx, "qwen3", &some());
    let (whole, weight) = whole(&weights);
    let got = gradients(&ctx, &weights, &whole, &weight, false);
    for (spec, tensor) in got.grads.params.specs().iter().zip(got.grads.params.tensors()) {
        let moves = tensor.to_vec_f32().iter().any(|g| *g != 0.0);
        assert_eq!(moves, spec.role == Role::Adapter, "{spec:?}");
        assert_eq!(tensor.bytes() > 0, spec.role == Role::Adapter, "{spec:?}");
    }
    assert_eq!(Named { params: &got.grads.params }.tensors().len(), 2 * 2 * 4);
    let memory = Memory::new(kernels::Device::Meta);
    let full = Grads::zeros(&memory, weights.config());
    let own = Grads::trained(&memory, weights.config(), weights.lora());
    assert_eq!(own.bytes(), got.grads.bytes());
    assert!(own.bytes() < full.bytes());
}

#[test]
fn bits_do_not_depend_on_threads_checkpointing_micro_batches_or_instruction_set() {
    let one = context(1);
    for family in FAMILIES {
        let weights = adapted(&one, family, &some());
        let (whole, weight) = whole(&weights);
        let expected = gradients(&one, &weights, &whole, &weight, false);
        let cut: Vec<Batch> = groups(weights.config().vocab_size as u32).chunks(1).map(|g| batch(g, true)).collect();
        for isa in Isa::present() {
            let ctx = Context::cpu(isa, 2);
            for (batches, checkpointing) in [(&whole[..], false), (&cut[..], true)] {
                let got = gradients(&ctx, &weights, batches, &weight, checkpointing);
                assert!(got.logps == expected.logps && got.hidden == expected.hidden, "{family} {isa:?}: forward");
                assert!(bits(&got.grads) == bits(&expected.grads), "{family} {isa:?}: gradients");
            }
        }
    }
}

#[test]
fn the_gradient_of_an_adapter_is_the_slope() {
    let ctx = context(2);
    let mut weights = adapted(&ctx, "qwen2", &lora(TargetModules::AllLinear));
    let (whole, weight) = whole(&weights);
    let weight: Vec<f32> = weight.iter().map(|w| w / 100.0).collect();
    let at = gradients(&ctx, &weights, &whole, &weight, false);
    is_the_slope(&at, &weight, |g, by| {
        move_along(&mut weights, g, by);
        gradients(&ctx, &weights, &whole, &weight, false)
    });
}

#[test]
fn modules_that_cannot_be_adapted_are_refused() {
    let ctx = context(1);
    let refused = |lora: LoraConfig, word: &str| {
        let error = Adapter::new(ctx.memory(), &load(&ctx, "qwen2"), &lora, 1).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(lora(TargetModules::Names(vec!["lm_head".into()])), "lm_head");
    refused(lora(TargetModules::Names(vec!["proj".into()])), "proj");
    refused(lora(TargetModules::Names(vec![])), "all-linear");
    refused(lora(TargetModules::Regex("q_proj".into())), "layers.0");
    refused(lora(TargetModules::Regex("(".into())), "regular expression");
    refused(LoraConfig { r: 0, ..some() }, "rank");
    for dropout in [1.0, -0.1, f64::NAN] {
        refused(LoraConfig { dropout, ..some() }, "lora_dropout");
    }
    let one = lora(TargetModules::Regex(r".*\.1\.self_attn\.(q|k)_proj".into()));
    let adapter = Adapter::new(ctx.memory(), &load(&ctx, "qwen2"), &one, 1).unwrap();
    let adapted = |l: usize| adapter.params.layers[l].qkv.low_rank.as_ref().map(|a| a.b.len());
    assert_eq!((adapted(0), adapted(1)), (None, Some(2)));
}

/// Families with an adapter written by PEFT.
pub const PEFT: [&str; 3] = ["llama3", "qwen2", "qwen3"];

/// The model `family` with the adapter of a PEFT directory.
fn with_peft(ctx: &Context, family: &str, dir: &Path) -> AdaptedWeights {
    let weights = load(ctx, family);
    let adapter = model::peft::load_adapter(ctx.memory(), dir, &weights).unwrap();
    AdaptedWeights::new(ctx.memory(), weights, Some(adapter))
}

pub fn peft_reference(ctx: &Context, family: &str) -> (AdaptedWeights, Expected) {
    let dir = folder(family).join("lora");
    let weights = with_peft(ctx, family, &dir);
    (weights, Expected::read(&dir.join("expected.safetensors")))
}

#[test]
fn adapter_logits_and_gradients_match_peft() {
    for isa in Isa::present() {
        let ctx = Context::cpu(isa, 2);
        for family in PEFT {
            let (weights, expected) = peft_reference(&ctx, family);
            let error = relative_error(&logits(&ctx, &weights, &expected.ids()), &expected.f64("logits"));
            println!("{family} {isa:?}: logits {error:.1e}");
            assert!(error <= LOGITS, "{family} {isa:?}: {error:e}");
            let names: Vec<String> =
                Named { params: &adapter(&weights).params }.tensors().into_iter().map(|s| s.name).collect();
            let names = names.into_iter().filter(|n| n.contains("lora_")).collect::<Vec<_>>();
            assert_eq!(names.len(), expected.names().iter().filter(|n| n.starts_with("grad.")).count());
            for (name, error) in gradient_errors_of(&ctx, &expected, &weights, names) {
                assert!(error <= GRADIENT, "{family} {isa:?} {name}: {error:e}");
            }
        }
    }
}

#[test]
fn a_wrong_module_scale_or_block_changes_the_logits() {
    let ctx = context(1);
    for family in PEFT {
        let error = |weights: &AdaptedWeights, expected: &Expected| {
            relative_error(&logits(&ctx, weights, &expected.ids()), &expected.f64("logits"))
        };
        let (weights, expected) = peft_reference(&ctx, family);
        for spec in
            (Named { params: &adapter(&weights).params }).tensors().into_iter().filter(|s| s.name.contains("lora_B"))
        {
            let (mut weights, _) = peft_reference(&ctx, family);
            let zeros = vec![0.0; spec.shape.iter().product()];
            change(&mut weights, |a| NamedMut { params: &mut a.params }.put(&spec.name, &zeros)).unwrap();
            assert!(error(&weights, &expected) > 100.0 * LOGITS, "{family} without {}", spec.name);
        }
        let (mut weights, _) = peft_reference(&ctx, family);
        change(&mut weights, |adapter| {
            let linears = adapter.params.layers.iter_mut().flat_map(|layer| layer.linears_mut());
            linears.filter_map(|l| l.low_rank.as_mut()).for_each(|a| a.scale *= 1.01);
        });
        assert!(error(&weights, &expected) > 100.0 * LOGITS, "{family}: another scale");
    }
}

#[test]
fn saving_and_loading_an_adapter_keeps_every_bit() {
    let ctx = context(1);
    for family in PEFT {
        let (weights, expected) = peft_reference(&ctx, family);
        assert_eq!(weights.lora().unwrap().dropout, 0.0);
        let dir = tempfile::tempdir().unwrap();
        model::peft::save_adapter(dir.path(), adapter(&weights), family).unwrap();
        let theirs = std::fs::read(folder(family).join("lora/adapter_model.safetensors")).unwrap();
        let ours = std::fs::read(dir.path().join("adapter_model.safetensors")).unwrap();
        let tensors = |bytes: &[u8]| {
            let file = safetensors::SafeTensors::deserialize(bytes).unwrap();
            let mut all: Vec<_> =
                file.tensors().into_iter().map(|(n, t)| (n, t.shape().to_vec(), t.data().to_vec())).collect();
            all.sort();
            all
        };
        assert!(tensors(&ours) == tensors(&theirs), "{family}: names, shapes or elements differ from PEFT's file");
        let again = with_peft(&ctx, family, dir.path());
        // The saved file lists module names in place of a pattern. The tensors compared above are those of the same
        // modules.
        let lora = weights.lora().unwrap();
        let mut loaded = again.lora().unwrap().clone();
        loaded.target_modules = lora.target_modules.clone();
        assert_eq!(&loaded, lora);
        let config = dir.path().join(model::peft::ADAPTER_CONFIG);
        let told = std::fs::read_to_string(&config).unwrap();
        assert!(told.contains("\"lora_dropout\": 0.0"), "{told}");
        let ids = expected.ids();
        assert_eq!(logits(&ctx, &again, &ids), logits(&ctx, &weights, &ids), "{family}");
        // The dropout setting is kept, and inference drops nothing.
        std::fs::write(&config, told.replace("\"lora_dropout\": 0.0", "\"lora_dropout\": 0.05")).unwrap();
        let again = with_peft(&ctx, family, dir.path());
        assert_eq!(again.lora().unwrap().dropout, 0.05);
        assert_eq!(logits(&ctx, &again, &ids), logits(&ctx, &weights, &ids), "{family}");
        model::peft::save_adapter(dir.path(), adapter(&again), family).unwrap();
        assert_eq!(model::peft::load_adapter_config(dir.path()).unwrap().lora.dropout, 0.05);
        for (p, word) in [("1.0", "below 1"), ("\"a\"", "a number")] {
            std::fs::write(&config, told.replace("\"lora_dropout\": 0.0", &format!("\"lora_dropout\": {p}"))).unwrap();
            let error =
                model::peft::load_adapter(ctx.memory(), dir.path(), again.base.current()).unwrap_err().to_string();
            assert!(error.contains("lora_dropout") && error.contains(word), "{error}");
        }
    }
}

/// Adapters written by Lockstep (`examples/adapter.rs`), in `MODEL/ours`: the rank, and the modules. The last adapter
/// comes with a score head.
const OURS: [(&str, usize, &[&str]); 3] = [
    ("qwen2", 2, &["q_proj", "v_proj", "down_proj"]),
    ("qwen3", 3, &["all-linear"]),
    ("llama3/score", 2, &["k_proj", "o_proj", "gate_proj"]),
];

/// The family's weights with the adapter that the example draws.
fn drawn(ctx: &Context, family: &str, r: usize, modules: &[&str]) -> AdaptedWeights {
    let target_modules = match modules {
        ["all-linear"] => TargetModules::AllLinear,
        names => TargetModules::Names(names.iter().map(|n| (*n).to_owned()).collect()),
    };
    let weights = load(ctx, family);
    let lora = LoraConfig { r, target_modules, ..LoraConfig::default() };
    let mut adapter = Adapter::new(ctx.memory(), &weights, &lora, 7).unwrap();
    let mut named = NamedMut { params: &mut adapter.params };
    for (i, spec) in
        named.tensors().into_iter().filter(|s| s.name.contains("lora_B") || s.name == "score.weight").enumerate()
    {
        let at = |k: usize| ((37 * k + 11 * i) % 101) as f32 / 128.0 - 0.390625;
        named.put(&spec.name, &(0..spec.shape.iter().product()).map(at).collect::<Vec<_>>()).unwrap();
    }
    AdaptedWeights::new(ctx.memory(), weights, Some(adapter))
}

#[test]
fn an_adapter_saved_by_lockstep_gives_the_same_logits_in_peft() {
    let ctx = context(1);
    for (family, r, modules) in OURS {
        let (weights, theirs) = (drawn(&ctx, family, r, modules), folder(family).join("ours"));
        // Lockstep must still write exactly the files that PEFT loaded.
        let dir = tempfile::tempdir().unwrap();
        model::peft::save_adapter(dir.path(), adapter(&weights), family).unwrap();
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            let [now, then] = [dir.path(), &theirs.join("adapter")].map(|d| std::fs::read(d.join(file)).unwrap());
            assert!(now == then, "{family}: {file} differs from the file that PEFT loaded");
        }
        let expected = Expected::read(&theirs.join("expected.safetensors"));
        let peft = expected.f64("logits");
        for isa in Isa::present() {
            let error = relative_error(&logits(&Context::cpu(isa, 2), &weights, &expected.ids()), &peft);
            println!("{family} {isa:?}: logits of PEFT with our adapter {error:.1e}");
            assert!(error <= LOGITS, "{family} {isa:?}: {error:e}");
        }
        let without = relative_error(&logits(&ctx, &load(&ctx, family), &expected.ids()), &peft);
        assert!(without > 1e-2, "{family}: the adapter changes the logits too little: {without:e}");
    }
}

/// The gradients of Σ weightᵢ · scoreᵢ over the positions of a sequence.
fn score_gradients(ctx: &Context, model: &AdaptedWeights, ids: &[u32], factors: &[f32]) -> Grads {
    let (config, memory) = (model.config(), ctx.memory());
    // Scores exist for rows that predict a token.
    let rest = [&ids[1..], &[0]].concat();
    let batch = Batch::new(&[GroupSegment { prefix: &ids[..1], branches: &[&rest] }], true);
    let mut tape = Tape::new(memory, config, batch.capacity(), false);
    let (rope, tensors) = (Rope::new(memory, config, ids.len() + 1), BatchTensors::new(memory, &batch));
    let mut grads = Grads::trained(memory, config, model.lora());
    net::forward(ctx, model, &rope, &tensors, &mut tape).unwrap();
    net::score_forward(ctx, model, &tensors, &mut tape).unwrap();
    let d_scores = Tensor::from_f32(memory, &[factors.len()], factors);
    net::score_backward(ctx, model, &tensors, d_scores.view(), &mut tape, &mut grads).unwrap();
    net::backward(ctx, model, &rope, &tensors, &mut tape, &mut grads).unwrap();
    grads.finish(ctx).unwrap();
    grads
}

#[test]
fn a_score_head_is_loaded_and_saved_with_its_adapter() {
    let ctx = context(2);
    let model = "qwen3/score";
    let dir = folder(model).join("lora");
    let weights = with_peft(&ctx, model, &dir);
    let expected = Expected::read(&dir.join("expected.safetensors"));
    let scores = expected.f64("logits");
    let error = relative_error(&logits(&ctx, &weights, &expected.ids()), &scores);
    assert!(error <= LOGITS, "{error:e}");
    // The score head is saved and trained with the adapter, and stays when the adapter is merged.
    let out = tempfile::tempdir().unwrap();
    model::peft::save_adapter(out.path(), adapter(&weights), model).unwrap();
    let again = with_peft(&ctx, model, out.path());
    assert_eq!(logits(&ctx, &again, &expected.ids()), logits(&ctx, &weights, &expected.ids()));
    let factors: Vec<f32> = expected.f64("weights").into_iter().map(|w| w as f32).collect();
    let grads = score_gradients(&ctx, &weights, &expected.ids(), &factors);
    let trained = Named { params: &grads.params };
    let names: Vec<String> = trained.tensors().into_iter().map(|s| s.name).collect();
    assert!(names.len() == 1 + 2 * 2 * 3 && names[0] == "score.weight", "{names:?}");
    assert_eq!(names.len(), expected.names().iter().filter(|n| n.starts_with("grad.")).count());
    for name in names {
        let theirs = if name == "score.weight" { format!("base_model.model.{name}") } else { name.clone() };
        let error = relative_error(&trained.get(&name).unwrap(), &expected.f64(&format!("grad.{theirs}")));
        assert!(error <= GRADIENT, "{name}: {error:e}");
    }
    let mut merged = load(&ctx, model);
    merged.merge(adapter(&weights));
    assert!(relative_error(&logits(&ctx, &merged, &expected.ids()), &scores) < 1e-5);
    let mut other = load(&ctx, model);
    other.put("score.weight", &merged.get("score.weight").unwrap()).unwrap();
    assert!(
        relative_error(&logits(&ctx, &other, &expected.ids()), &scores) > 1e-2,
        "the adapter changes the scores too little"
    );

    let refused = |family: &str, adapter: &str, word: &str| {
        let (weights, dir) = (load(&ctx, family), folder(adapter));
        let error = model::peft::load_adapter(ctx.memory(), &dir, &weights).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("adapter_config.json"), "{error}");
    };
    refused("qwen3", "qwen3/score/lora", "belongs to a reward model");
    refused("qwen3/score", "qwen3/lora", "no score head");
    let told = std::fs::read_to_string(out.path().join("adapter_config.json")).unwrap();
    std::fs::write(out.path().join("adapter_config.json"), told.replace("\"score\"", "\"lm_head\"")).unwrap();
    let error = model::peft::load_adapter_config(out.path()).unwrap_err().to_string();
    assert!(error.contains("`modules_to_save` has \"lm_head\""), "{error}");
}

#[test]
fn a_language_models_trunk_loads_under_a_score_head() {
    let ctx = context(1);
    for family in FAMILIES {
        let language = load(&ctx, family);
        let read = Weights::load_scorer(ctx.memory(), &folder(family), &language.config).unwrap();
        let made = Weights::scorer(ctx.memory(), &language);
        assert_eq!(read.config.raw, made.config.raw, "{family}");
        for TensorSpec { name, .. } in TensorSource::tensors(&made) {
            assert!(read.get(&name).unwrap() == made.get(&name).unwrap(), "{family}: {name}");
        }
    }
}

#[test]
fn the_default_lora_config_matches_trl() {
    let lora = LoraConfig::default();
    assert_eq!((lora.r, lora.alpha, lora.use_rslora, lora.dropout), (16, 32.0, false, 0.0));
}
