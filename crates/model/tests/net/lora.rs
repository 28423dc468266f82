//! Low-rank adapters in the whole model: against PEFT in f64 (`conformance/lora_fixtures.py`), switched off, merged, frozen
//! weights, bits.

use super::fixtures::{Expected, GRADIENT, LOGITS, gradient_errors_of};
use super::gradients::{batch, groups};
use super::*;
use kernels::Memory;
use kernels::check::{normal, relative_error};
use model::weights::{Named, NamedMut, Role};
use model::{LoraConfig, TargetModules};

pub fn lora(target_modules: TargetModules) -> LoraConfig {
    LoraConfig { r: 3, alpha: 5.0, use_rslora: true, dropout: 0.0, target_modules }
}

/// Targets that leave gaps in the fused products.
pub fn some() -> LoraConfig {
    lora(TargetModules::Names(["q_proj", "v_proj", "o_proj", "up_proj"].map(str::to_owned).to_vec()))
}

/// The family's weights with an adapter that matters.
pub fn adapted(ctx: &Context, family: &str, lora: &LoraConfig) -> Weights {
    let mut weights = load(ctx, family);
    weights.add_adapter(ctx.memory(), lora, 1).unwrap();
    let mut named = NamedMut { params: &mut weights.params };
    for (i, spec) in named.tensors().into_iter().filter(|s| s.name.contains("lora_")).enumerate() {
        let data = normal::<f32>(100 + i as u64, spec.shape.iter().product());
        named.put(&spec.name, &data.iter().map(|x| 0.3 * x).collect::<Vec<_>>()).unwrap();
    }
    weights
}

pub fn whole(weights: &Weights) -> ([Batch; 1], Vec<f32>) {
    let whole = [batch(&groups(weights.config.vocab_size as u32), true)];
    let weight = normal(3, whole[0].targets.len());
    (whole, weight)
}

#[test]
fn a_new_adapter_changes_no_bit_and_off_is_the_base() {
    let ctx = context(2);
    for family in FAMILIES {
        let base = load(&ctx, family);
        let (whole, weight) = whole(&base);
        let expected = gradients(&ctx, &base, &whole, &weight, false);
        let mut new = load(&ctx, family);
        new.add_adapter(ctx.memory(), &lora(TargetModules::AllLinear), 1).unwrap();
        let got = gradients(&ctx, &new, &whole, &weight, false);
        assert!(got.logps == expected.logps && got.hidden == expected.hidden, "{family}: a new adapter");
        let mut other = adapted(&ctx, family, &some());
        let got = gradients(&ctx, &other, &whole, &weight, false);
        assert!(relative_error(&got.logps, &expected.logps.iter().map(|&x| f64::from(x)).collect::<Vec<_>>()) > 1e-2);
        let logps = other.without_adapter(|off| {
            let (mut tape, rope) = (
                Tape::forward_only(ctx.memory(), &off.config, whole[0].capacity()),
                Rope::new(ctx.memory(), &off.config, 256),
            );
            net::score(&ctx, off, &rope, &whole[0], &mut tape, 1.0).unwrap().logps
        });
        assert!(logps == expected.logps, "{family}: switched off");
        let again = gradients(&ctx, &other, &whole, &weight, false);
        assert!(again.logps == got.logps && bits(&again.grads) == bits(&got.grads), "{family}: on again");
    }
}

#[test]
fn a_merged_adapter_is_the_same_function() {
    let ctx = context(2);
    for family in FAMILIES {
        let mut weights = adapted(&ctx, family, &some());
        let (whole, weight) = whole(&weights);
        let expected: Vec<f64> =
            gradients(&ctx, &weights, &whole, &weight, false).logps.iter().map(|&x| f64::from(x)).collect();
        weights.merge_adapter();
        assert!(weights.lora().is_none() && weights.version == 1);
        let error = relative_error(&gradients(&ctx, &weights, &whole, &weight, false).logps, &expected);
        assert!(error < 1e-5, "{family}: {error:e}");
    }
}

#[test]
fn frozen_weights_have_no_gradient_and_take_no_memory() {
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
    let full = Grads::zeros(&memory, &weights.config);
    let own = Grads::trained(&memory, &weights.config, weights.lora());
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
        let cut: Vec<Batch> = groups(weights.config.vocab_size as u32).chunks(1).map(|g| batch(g, true)).collect();
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
    let objective = |o: &Outcome| -> f64 {
        let terms = o.logps.iter().zip(&o.entropies).zip(&weight);
        terms.map(|((l, e), w)| f64::from(*w) * (f64::from(*l) + 0.5 * f64::from(*e))).sum()
    };
    let at = gradients(&ctx, &weights, &whole, &weight, false);
    let g: Vec<Vec<f32>> = at.grads.params.tensors().iter().map(|t| t.to_vec_f32()).collect();
    let square: f64 = g.iter().flatten().map(|&g| f64::from(g) * f64::from(g)).sum();
    let step = 1e-3 / square.sqrt();
    let mut moved = |by: f64| {
        for (t, g) in weights.params.tensors_mut().into_iter().zip(&g).filter(|(_, g)| !g.is_empty()) {
            let to: Vec<f32> = t.to_vec_f32().iter().zip(g).map(|(w, g)| w + (by * f64::from(*g)) as f32).collect();
            t.view_mut().copy_from_f32(&to);
        }
        objective(&gradients(&ctx, &weights, &whole, &weight, false))
    };
    let (up, down) = (moved(step), moved(-2.0 * step));
    let slope = (up - down) / (2.0 * step);
    assert!((slope / square - 1.0).abs() < 2e-2, "slope {slope}, |g|² {square}");
}

#[test]
fn what_cannot_be_adapted_is_refused() {
    let ctx = context(1);
    let refused = |lora: LoraConfig, word: &str| {
        let error = load(&ctx, "qwen2").add_adapter(ctx.memory(), &lora, 1).unwrap_err().to_string();
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
    let mut weights = load(&ctx, "qwen2");
    let one = lora(TargetModules::Regex(r".*\.1\.self_attn\.(q|k)_proj".into()));
    weights.add_adapter(ctx.memory(), &one, 1).unwrap();
    let adapted = |l: usize| weights.params.layers[l].qkv.adapter.as_ref().map(|a| a.b.len());
    assert_eq!((adapted(0), adapted(1)), (None, Some(2)));
}

/// Families with an adapter that PEFT wrote.
pub const PEFT: [&str; 3] = ["llama3", "qwen2", "qwen3"];

pub fn of_peft(ctx: &Context, family: &str) -> (Weights, Expected) {
    let (mut weights, dir) = (load(ctx, family), folder(family).join("lora"));
    model::io::load_adapter(ctx.memory(), &dir, &mut weights).unwrap();
    (weights, Expected::read(&dir.join("expected.safetensors")))
}

#[test]
fn logits_and_gradients_of_adapters_are_those_of_peft() {
    for isa in Isa::present() {
        let ctx = Context::cpu(isa, 2);
        for family in PEFT {
            let (weights, expected) = of_peft(&ctx, family);
            let error = relative_error(&logits(&ctx, &weights, &expected.ids()), &expected.f64("logits"));
            println!("{family} {isa:?}: logits {error:.1e}");
            assert!(error <= LOGITS, "{family} {isa:?}: {error:e}");
            let names: Vec<String> = Named { params: &weights.params }.tensors().into_iter().map(|s| s.name).collect();
            let names = names.into_iter().filter(|n| n.contains("lora_")).collect::<Vec<_>>();
            assert_eq!(names.len(), expected.names().iter().filter(|n| n.starts_with("grad.")).count());
            for (name, error) in gradient_errors_of(&ctx, &expected, &weights, names) {
                assert!(error <= GRADIENT, "{family} {isa:?} {name}: {error:e}");
            }
        }
    }
}

#[test]
fn a_module_a_scale_or_a_block_in_the_wrong_place_is_seen() {
    let ctx = context(1);
    for family in PEFT {
        let error = |weights: &Weights, expected: &Expected| {
            relative_error(&logits(&ctx, weights, &expected.ids()), &expected.f64("logits"))
        };
        let (weights, expected) = of_peft(&ctx, family);
        for spec in (Named { params: &weights.params }).tensors().into_iter().filter(|s| s.name.contains("lora_B")) {
            let (mut weights, _) = of_peft(&ctx, family);
            NamedMut { params: &mut weights.params }.put(&spec.name, &vec![0.0; spec.shape.iter().product()]).unwrap();
            assert!(error(&weights, &expected) > 100.0 * LOGITS, "{family} without {}", spec.name);
        }
        let (mut weights, _) = of_peft(&ctx, family);
        for layer in &mut weights.params.layers {
            layer.linears_mut().into_iter().filter_map(|l| l.adapter.as_mut()).for_each(|a| a.scale *= 1.01);
        }
        assert!(error(&weights, &expected) > 100.0 * LOGITS, "{family}: another scale");
    }
}

#[test]
fn an_adapter_that_is_saved_is_the_one_that_is_loaded() {
    let ctx = context(1);
    for family in PEFT {
        let (weights, expected) = of_peft(&ctx, family);
        assert_eq!(weights.lora().unwrap().dropout, 0.0);
        let dir = tempfile::tempdir().unwrap();
        model::io::save_adapter(dir.path(), &weights, family).unwrap();
        let theirs = std::fs::read(folder(family).join("lora/adapter_model.safetensors")).unwrap();
        let (ours, mut again) =
            (std::fs::read(dir.path().join("adapter_model.safetensors")).unwrap(), load(&ctx, family));
        let tensors = |bytes: &[u8]| {
            let file = safetensors::SafeTensors::deserialize(bytes).unwrap();
            let mut all: Vec<_> =
                file.tensors().into_iter().map(|(n, t)| (n, t.shape().to_vec(), t.data().to_vec())).collect();
            all.sort();
            all
        };
        assert!(tensors(&ours) == tensors(&theirs), "{family}: names, shapes or elements");
        model::io::load_adapter(ctx.memory(), dir.path(), &mut again).unwrap();
        assert_eq!(again.lora(), weights.lora());
        let config = dir.path().join(model::io::ADAPTER_CONFIG);
        let told = std::fs::read_to_string(&config).unwrap();
        assert!(told.contains("\"lora_dropout\": 0.0"), "{told}");
        let ids = expected.ids();
        assert_eq!(logits(&ctx, &again, &ids), logits(&ctx, &weights, &ids), "{family}");
        // Dropout is carried, and dropped of nothing here.
        std::fs::write(&config, told.replace("\"lora_dropout\": 0.0", "\"lora_dropout\": 0.05")).unwrap();
        model::io::load_adapter(ctx.memory(), dir.path(), &mut again).unwrap();
        assert_eq!(again.lora().unwrap().dropout, 0.05);
        assert_eq!(logits(&ctx, &again, &ids), logits(&ctx, &weights, &ids), "{family}");
        model::io::save_adapter(dir.path(), &again, family).unwrap();
        assert_eq!(model::io::load_adapter_config(dir.path()).unwrap().dropout, 0.05);
        for (p, word) in [("1.0", "below 1"), ("\"a\"", "a number")] {
            std::fs::write(&config, told.replace("\"lora_dropout\": 0.0", &format!("\"lora_dropout\": {p}"))).unwrap();
            let error = model::io::load_adapter(ctx.memory(), dir.path(), &mut again).unwrap_err().to_string();
            assert!(error.contains("lora_dropout") && error.contains(word), "{error}");
        }
    }
}
