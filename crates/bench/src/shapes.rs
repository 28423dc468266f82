//! The models of the benchmarks: Qwen2-like decoders with random weights.

use kernels::Context;
use lockstep::config::ComputeDType;
use model::{ModelConfig, Weights};
use serde_json::json;
use std::sync::Arc;

/// A model size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Hidden 32, 2 layers, vocabulary 64. For tests and the GPU emulator.
    Tiny,
    /// 4 million parameters, as in `examples/ppo_preset.toml`: hidden 256, 4 layers with 8 heads, vocabulary 512.
    M4,
    /// 7 million parameters: hidden 256, 6 layers, vocabulary 4,096.
    M7,
    /// 92 million parameters: hidden 640, 12 layers, vocabulary 32,768.
    M92,
    /// The size of Qwen2.5-0.5B: hidden 896, 24 layers, vocabulary 151,936, tied embeddings.
    B05,
}

impl Shape {
    /// All model sizes.
    pub const ALL: [Shape; 5] = [Shape::Tiny, Shape::M4, Shape::M7, Shape::M92, Shape::B05];

    /// The name of the size on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Tiny => "tiny",
            Shape::M4 => "4m",
            Shape::M7 => "7m",
            Shape::M92 => "92m",
            Shape::B05 => "0.5b",
        }
    }

    /// The sizes: hidden, feed-forward, layers, heads, key-value heads, vocabulary.
    fn sizes(self) -> [usize; 6] {
        match self {
            Shape::Tiny => [32, 64, 2, 4, 2, 64],
            Shape::M4 => [256, 1024, 4, 8, 8, 512],
            Shape::M7 => [256, 1024, 6, 8, 2, 4096],
            Shape::M92 => [640, 2560, 12, 10, 2, 32768],
            Shape::B05 => [896, 4864, 24, 14, 2, 151_936],
        }
    }

    /// The size of the GRPO step that is compared with other engines: the number of completions, and the tokens of
    /// each.
    pub fn step(self) -> (usize, usize) {
        match self {
            Shape::Tiny => (4, 8),
            Shape::M4 => (8, 128),
            Shape::M7 => (64, 128),
            Shape::M92 => (32, 128),
            Shape::B05 => (16, 64),
        }
    }

    /// The content of the model's config.json.
    pub fn config_json(self) -> String {
        let [hidden, ffn, layers, heads, kv_heads, vocabulary] = self.sizes();
        json!({
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "hidden_size": hidden,
            "intermediate_size": ffn,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "vocab_size": vocabulary,
            "hidden_act": "silu",
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e6,
            "tie_word_embeddings": true,
            "initializer_range": 0.02,
            "torch_dtype": "float32",
        })
        .to_string()
    }
}

/// The model that is measured: its size and the type of its matmuls.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// The model size.
    pub shape: Shape,
    /// The number type in which matmuls compute.
    pub dtype: ComputeDType,
}

impl Subject {
    /// The size and the type as one name for tables.
    pub fn name(self) -> String {
        format!("{} {}", self.shape.name(), self.dtype.name())
    }

    /// The size of the GRPO step that is compared with other engines: the number of completions, and the tokens of
    /// each.
    pub fn step(self) -> (usize, usize) {
        self.shape.step()
    }

    /// The configuration of the model.
    pub fn config(self) -> anyhow::Result<Arc<ModelConfig>> {
        let config = ModelConfig::parse(&self.shape.config_json())?;
        Ok(Arc::new(ModelConfig { compute: self.dtype.dtype(), ..config }))
    }

    /// Random weights, the same at every call.
    pub fn weights(self, ctx: &Context) -> anyhow::Result<Weights> {
        Ok(Weights::random(ctx.memory(), &self.config()?, 1)?)
    }
}
