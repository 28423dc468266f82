//! `config.json`: the shape of a model, and every switch of its arithmetic.
//!
//! Read as transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) and 5 (`rope_parameters`, `dtype`) write it,
//! with the defaults of transformers 5.23 for what is absent. A setting that the model here would not honour is an
//! error that names the field and its value; fields that transformers itself does not read for the family are not
//! looked at. It does not know weights or files of weights.

mod common;
mod fields;
mod rope;
mod rope_fields;

pub(crate) use common::{Defaults, like_llama, only};
pub(crate) use fields::{Fields, slides};
pub use rope::{Rope, RopeScaling};
pub(crate) use rope_fields::rope;

use crate::{Error, Result};
use kernels::DType;
pub use kernels::ops::glu::Activation;

/// A model family: what a `model_type` names.
#[derive(Debug)]
pub struct Family {
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// The entry in `architectures` of a language model.
    pub architecture: &'static str,
    /// The entry in `architectures` of a model that gives scores.
    pub score_architecture: &'static str,
    /// Reads its configuration.
    pub(crate) read: fn(&Fields<'_>, &'static Family) -> Result<ModelConfig>,
}

/// How q and k are normed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Not at all.
    Off,
    /// Each head by itself (Qwen 3, Gemma 3).
    EachHead,
    /// All heads together (OLMo 2).
    AllHeads,
}

/// The norms of one half of a layer, by what files call them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfNorms {
    /// The norm of what the half reads.
    pub before: Option<&'static str>,
    /// The norm of what the half adds to the residual stream.
    pub after: Option<&'static str>,
}

/// The norms of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerNorms {
    /// Norms of the attention half.
    pub attention: HalfNorms,
    /// Norms of the MLP half.
    pub mlp: HalfNorms,
}

/// How a layer rotates queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerRope {
    /// By [`ModelConfig::rope`].
    Global,
    /// By [`ModelConfig::local_rope`].
    Local,
    /// Not at all: the layer knows no positions.
    Off,
}

/// What an element of a weight file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileDType {
    /// IEEE single.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
}

impl FileDType {
    /// The dtype's name in `config.json`.
    pub fn config_name(self) -> &'static str {
        match self {
            FileDType::F32 => "float32",
            FileDType::Bf16 => "bfloat16",
            FileDType::F16 => "float16",
        }
    }
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            FileDType::F32 => 4,
            FileDType::Bf16 | FileDType::F16 => 2,
        }
    }
}

/// How the architectures of transformers end that give scores.
const SCORES: &str = "ForSequenceClassification";

/// What hidden rows are turned into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// Logits of the next token.
    #[default]
    Lm,
    /// This many scores (of a value or a reward model: 1), as transformers' `…ForSequenceClassification`.
    Score(usize),
}

/// A parsed `config.json`.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// The family.
    pub family: &'static Family,
    /// H, the width of the residual stream.
    pub hidden_size: usize,
    /// F, the width of the MLP.
    pub intermediate_size: usize,
    /// Layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key (and value) heads; divides [`num_heads`](Self::num_heads).
    pub num_kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// V, rows of the embedding.
    pub vocab_size: usize,
    /// Positions that the model was made for.
    pub max_position_embeddings: usize,
    /// ε of every RMS norm.
    pub rms_norm_eps: f32,
    /// Added to the weight of every RMS norm: 1 where files hold it less 1.
    pub norm_offset: f32,
    /// What the MLP passes its gate through.
    pub activation: Activation,
    /// What the embedding's rows are multiplied with: 1, or √[`hidden_size`](Self::hidden_size).
    pub embedding_multiplier: f32,
    /// Scores of attention are divided by its root: [`head_dim`](Self::head_dim), where the family has no other.
    pub query_pre_attn_scalar: f64,
    /// Rotary positions.
    pub rope: Rope,
    /// The rope of layers with a sliding window, where it differs from the others'.
    pub local_rope: Option<Rope>,
    /// Which of them each layer has.
    pub layer_ropes: Vec<LayerRope>,
    /// For each layer its sliding window: a query at position p sees the keys j with p − w < j ≤ p. None sees all.
    pub windows: Vec<Option<usize>>,
    /// Whether q, k and v have a bias.
    pub attention_bias: bool,
    /// Whether the attention output has a bias.
    pub attention_output_bias: bool,
    /// Whether gate, up and down have a bias.
    pub mlp_bias: bool,
    /// How q and k are normed.
    pub qk_norm: QkNorm,
    /// The norms of each layer.
    pub norms: LayerNorms,
    /// What the model's hidden rows become.
    pub head: Head,
    /// Whether the head is the embedding, in a language model.
    pub tie_word_embeddings: bool,
    /// The token that starts a sequence.
    pub bos_token_id: Option<u32>,
    /// The tokens that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// The token that padding would be made of.
    pub pad_token_id: Option<u32>,
    /// The dtype that the weights were saved in, if it says so.
    pub dtype: Option<FileDType>,
    /// What matmuls read: weights, and the activations that feed them, in f32 or in bf16. Not a thing of the file:
    /// the caller that loads the model chooses it (f32 by default).
    pub compute: DType,
    /// Standard deviation of random initial weights.
    pub initializer_range: f32,
    /// The JSON as it was read, for saving without loss.
    pub raw: serde_json::Map<String, serde_json::Value>,
}

impl ModelConfig {
    /// The same trunk under a head of `labels` scores, as transformers' `…ForSequenceClassification` describes it.
    pub fn with_score_head(&self, labels: usize) -> ModelConfig {
        let mut config = ModelConfig { head: Head::Score(labels), ..self.clone() };
        let (mut names, mut numbers) = (serde_json::Map::new(), serde_json::Map::new());
        for label in 0..labels {
            names.insert(label.to_string(), format!("LABEL_{label}").into());
            numbers.insert(format!("LABEL_{label}"), label.into());
        }
        config.raw.insert("architectures".into(), serde_json::json!([self.family.score_architecture]));
        config.raw.insert("id2label".into(), names.into());
        config.raw.insert("label2id".into(), numbers.into());
        config
    }
    /// The same configuration with another padding token, which transformers needs to score several texts at once.
    pub(crate) fn padded_with(&self, pad_token_id: Option<u32>) -> ModelConfig {
        let mut config = ModelConfig { pad_token_id, ..self.clone() };
        if let Some(id) = pad_token_id {
            config.raw.insert("pad_token_id".into(), id.into());
        }
        config
    }
    /// The same configuration, computing in `compute`: f32 or bf16. bf16 needs an even number of inputs of each matrix.
    pub fn computing_in(&self, compute: kernels::DType) -> Result<ModelConfig> {
        let sizes = [("hidden_size", self.hidden_size), ("intermediate_size", self.intermediate_size)];
        let odd = sizes.into_iter().find(|(_, size)| compute == kernels::DType::Bf16 && size % 2 != 0);
        if let Some((field, size)) = odd {
            let message = "is odd, and bf16 takes even sizes: compute with dtype = \"f32\"".into();
            return Err(Error::Config { field: field.into(), value: Some(size.to_string()), message });
        }
        Ok(ModelConfig { compute, ..self.clone() })
    }
    /// [`embedding_multiplier`](Self::embedding_multiplier), rounded to what the model computes in, as transformers has
    /// it.
    pub fn embedding_scale(&self) -> f32 {
        match self.compute {
            DType::F32 => self.embedding_multiplier,
            _ => half::bf16::from_f32(self.embedding_multiplier).to_f32(),
        }
    }
    /// What scores of attention are multiplied with.
    pub fn attention_scale(&self) -> f32 {
        (1.0 / self.query_pre_attn_scalar.sqrt()) as f32
    }
    /// Rows of a head that has a matrix of its own.
    pub fn head_rows(&self) -> Option<usize> {
        match self.head {
            Head::Lm => (!self.tie_word_embeddings).then_some(self.vocab_size),
            Head::Score(labels) => Some(labels),
        }
    }
    /// Rotary inverse frequencies `[head_dim / 2]` of such a layer, and the factor on cos and sin, as transformers
    /// computes them.
    pub fn inv_freq(&self, rope: LayerRope) -> (Vec<f32>, f32) {
        match rope {
            LayerRope::Global => self.rope.inv_freq(self.head_dim),
            LayerRope::Local => self.local_rope.as_ref().unwrap_or(&self.rope).inv_freq(self.head_dim),
            // A rotation by nothing: the same operations as elsewhere.
            LayerRope::Off => (vec![0.0; self.head_dim / 2], 1.0),
        }
    }
    /// Widths of the norm weights of q and k, and the number of norms in a row.
    pub(crate) fn qk_norm_widths(&self) -> Option<(usize, usize, usize)> {
        match self.qk_norm {
            QkNorm::Off => None,
            QkNorm::EachHead => Some((self.head_dim, self.head_dim, self.num_heads + self.num_kv_heads)),
            QkNorm::AllHeads => Some((self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim, 2)),
        }
    }
    /// Width of the fused query, key and value rows: (heads + 2 · kv heads) · head_dim.
    pub fn qkv_width(&self) -> usize {
        (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
    }
}
