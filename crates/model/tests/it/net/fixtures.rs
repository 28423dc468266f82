//! Random tiny models of every family, compared with transformers in f64 (`conformance/model_fixtures.py`). Other tests
//! remove single parts of the model, and check that the comparison then fails.

use super::*;
use kernels::check::relative_error;
use model::config::{Activation, LayerRope, QkNorm, RopeScaling};
use model::weights::{Named, tensor_specs};

pub const LOGITS: f64 = 5e-6;
pub const GRADIENT: f64 = 2e-5;

pub struct Expected(Vec<u8>);

impl Expected {
    fn of(family: &str) -> Expected {
        Expected::read(&folder(family).join("expected.safetensors"))
    }
    pub fn read(path: &Path) -> Expected {
        let read = |e| panic!("{}: {e} (made by a script of conformance/: CONTRIBUTING.md)", path.display());
        Expected(std::fs::read(path).unwrap_or_else(read))
    }
    pub fn names(&self) -> Vec<String> {
        let file = safetensors::SafeTensors::deserialize(&self.0).unwrap();
        file.names().into_iter().map(|n| n.to_string()).collect()
    }
    fn words(&self, name: &str) -> Vec<[u8; 8]> {
        let file = safetensors::SafeTensors::deserialize(&self.0).unwrap();
        file.tensor(name).unwrap().data().as_chunks().0.to_vec()
    }
    pub fn f64(&self, name: &str) -> Vec<f64> {
        self.words(name).into_iter().map(f64::from_le_bytes).collect()
    }
    pub fn ids(&self) -> Vec<u32> {
        self.words("ids").into_iter().map(|b| i64::from_le_bytes(b) as u32).collect()
    }
}

/// A family that is missing from `FAMILIES` would not be tested at all.
#[test]
fn every_family_has_fixtures() {
    let listed = FAMILIES.map(|name| ModelConfig::load(&folder(name).join("config.json")).unwrap().family.model_type);
    for family in model::families::FAMILIES.map(|family| family.model_type) {
        assert!(
            listed.contains(&family),
            "{family} is not compared with transformers: make its fixtures (CONTRIBUTING.md, Adding a model family), \
             and add their directory to FAMILIES in crates/model/tests/it/net/mod.rs"
        );
    }
}

fn logits_error(ctx: &Context, family: &str, weights: &Weights) -> f64 {
    let expected = Expected::of(family);
    relative_error(&logits(ctx, weights, &expected.ids()), &expected.f64("logits"))
}

#[test]
fn logits_match_transformers() {
    for isa in Isa::present() {
        let ctx = Context::cpu(isa, 2);
        for family in FAMILIES {
            let error = logits_error(&ctx, family, &load(&ctx, family));
            println!("{family} {isa:?}: logits {error:.1e}");
            assert!(error <= LOGITS, "{family} {isa:?}: {error:e}");
        }
    }
}

#[test]
fn version_4_configs_give_the_same_model() {
    let ctx = context(1);
    for family in FAMILIES {
        let config = ModelConfig::load(&folder(family).join("config_v4.json")).unwrap();
        let weights = Weights::load(ctx.memory(), &folder(family), &Arc::new(config)).unwrap();
        let ids = Expected::of(family).ids();
        assert_eq!(logits(&ctx, &weights, &ids), logits(&ctx, &load(&ctx, family), &ids), "{family}");
    }
}

/// The error of each parameter's gradient of the mean negative log-likelihood.
fn gradient_errors(ctx: &Context, family: &str, weights: &Weights) -> Vec<(String, f64)> {
    let names = tensor_specs(&weights.config).into_iter().map(|s| s.name).collect();
    gradient_errors_of(ctx, &Expected::of(family), weights, names)
}

/// Like `gradient_errors`, for the parameters `names` of any weights.
pub fn gradient_errors_of<'a>(
    ctx: &Context,
    expected: &Expected,
    model: impl Into<ModelView<'a>>,
    names: Vec<String>,
) -> Vec<(String, f64)> {
    let ids = expected.ids();
    let batch = Batch::new(&[GroupSegment { prefix: &ids[..1], branches: &[&ids[1..]] }], true);
    let model = model.into();
    let (config, memory) = (model.config(), ctx.memory());
    let mut tape = Tape::new(memory, config, batch.capacity(), false);
    let (rope, tensors) = (Rope::new(memory, config, ids.len()), BatchTensors::new(memory, &batch));
    let mut grads = Grads::trained(memory, config, model.lora());
    net::forward(ctx, model, &rope, &tensors, &mut tape).unwrap();
    net::head_forward(ctx, model, &tensors, 1.0, &mut tape).unwrap();
    let n = batch.targets.len();
    let loss = -tape.logps().to_vec_f32().into_iter().map(f64::from).sum::<f64>() / n as f64;
    let d_logps = Tensor::from_f32(memory, &[n], &vec![-1.0 / n as f32; n]);
    net::head_backward(ctx, model, &tensors, d_logps.view(), None, &mut tape, &mut grads).unwrap();
    net::backward(ctx, model, &rope, &tensors, &mut tape, &mut grads).unwrap();
    grads.finish(ctx).unwrap();

    let named = Named { params: &grads.params };
    let error = |name: String| {
        let error = relative_error(&named.get(&name).unwrap(), &expected.f64(&format!("grad.{name}")));
        (name, error)
    };
    let loss = ("loss".to_owned(), (loss / expected.f64("loss")[0] - 1.0).abs());
    std::iter::once(loss).chain(names.into_iter().map(error)).collect()
}

#[test]
fn gradients_match_transformers() {
    for isa in Isa::present() {
        let ctx = Context::cpu(isa, 2);
        for family in FAMILIES {
            let errors = gradient_errors(&ctx, family, &load(&ctx, family));
            let worst = errors.iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
            println!("{family} {isa:?}: worst gradient {} {:.1e}", worst.0, worst.1);
            for (name, error) in &errors {
                assert!(*error <= GRADIENT, "{family} {isa:?} {name}: {error:e}");
            }
        }
    }
}

#[test]
fn removing_any_bias_or_norm_changes_the_logits() {
    let ctx = context(1);
    for family in FAMILIES {
        for spec in tensor_specs(&load(&ctx, family).config).into_iter().filter(|s| s.shape.len() == 1) {
            let mut weights = load(&ctx, family);
            let nothing = if spec.name.ends_with("bias") { 0.0 } else { 1.0 - weights.config.norm_offset };
            weights.put(&spec.name, &vec![nothing; spec.shape[0]]).unwrap();
            let error = logits_error(&ctx, family, &weights);
            assert!(error > 200.0 * LOGITS, "{family} without {}: {error:e}", spec.name);
        }
    }
}

#[test]
fn removing_positions_qk_norms_or_windows_changes_the_logits() {
    let ctx = context(1);
    let without = |family: &str, change: &dyn Fn(&mut ModelConfig)| {
        let weights = load(&ctx, family);
        let mut config = ModelConfig::clone(&weights.config);
        change(&mut config);
        let error = logits_error(&ctx, family, &with_config(&ctx, &weights, config));
        assert!(error > 200.0 * LOGITS, "{family}: {error:e}");
    };
    for family in FAMILIES {
        // With frequencies this low, nothing rotates.
        without(family, &|c| c.rope.scaling = RopeScaling::Linear { factor: 1e30 });
    }
    without("llama3", &|c| c.rope.scaling = RopeScaling::Default);
    without("qwen2", &|c| c.rope.theta = 10000.0);
    without("qwen3", &|c| c.qk_norm = QkNorm::Off);
    without("mistral", &|c| c.windows.fill(None));
    without("mistral", &|c| c.windows.fill(Some(24)));
    without("mistral", &|c| c.windows.fill(Some(22)));
    without("smollm3", &|c| c.layer_ropes.fill(LayerRope::Global));
    without("smollm3", &|c| c.windows.fill(None));
    without("smollm3", &|c| c.windows.rotate_left(1));
    without("olmo2", &|c| c.qk_norm = QkNorm::Off);
    without("olmo2", &|c| c.norms.attention.after = None);
    without("olmo2", &|c| c.norms.mlp.after = None);
    without("olmo3", &|c| c.windows.rotate_left(1));
    without("olmo3", &|c| c.layer_ropes.fill(LayerRope::Global));
    without("olmo3", &|c| c.layer_ropes.fill(LayerRope::Local));
    without("gemma3", &|c| c.qk_norm = QkNorm::Off);
    without("gemma3", &|c| c.norm_offset = 0.0);
    without("gemma3", &|c| c.activation = Activation::Silu);
    without("gemma3", &|c| c.embedding_multiplier = 1.0);
    without("gemma3", &|c| c.query_pre_attn_scalar = c.head_dim as f64);
    without("gemma3", &|c| c.windows.rotate_left(1));
    without("gemma3", &|c| c.layer_ropes.rotate_left(1));
    without("gemma3", &|c| c.local_rope.as_mut().unwrap().theta = 20_000.0);
    without("gemma3", &|c| c.rope.scaling = RopeScaling::Default);
    for name in ["attention.before", "attention.after", "mlp.before", "mlp.after"] {
        without("gemma3", &|c| match name {
            "attention.before" => c.norms.attention.before = None,
            "attention.after" => c.norms.attention.after = None,
            "mlp.before" => c.norms.mlp.before = None,
            _ => c.norms.mlp.after = None,
        });
    }
}

#[test]
fn a_changed_gradient_exceeds_the_bound() {
    // The gradients of a model whose window is wider by 1 exceed the bound.
    let ctx = context(1);
    let weights = load(&ctx, "mistral");
    let mut config = ModelConfig::clone(&weights.config);
    config.windows.fill(Some(24));
    let errors = gradient_errors(&ctx, "mistral", &with_config(&ctx, &weights, config));
    assert!(errors.iter().filter(|(name, _)| name != "loss").all(|(_, error)| *error > GRADIENT), "{errors:?}");
}
