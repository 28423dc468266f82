//! `config.json`: the sizes of a model, and every option that affects its arithmetic.
//!
//! Files of transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) and 5 (`rope_parameters`, `dtype`) are read,
//! and absent fields get the defaults of transformers 5.23. A setting that this crate does not support is an error that
//! names the field and its value. Fields that transformers itself does not read for the family are ignored.

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

/// A model family, such as Llama or Qwen 3, identified by `model_type` in `config.json`.
#[derive(Debug)]
pub struct Family {
    /// The family's `model_type` in `config.json`.
    pub model_type: &'static str,
    /// The name in `architectures` of the family's language models.
    pub architecture: &'static str,
    /// The name in `architectures` of the family's sequence-classification models, which give scores.
    pub score_architecture: &'static str,
    /// Reads the `config.json` of a model of this family.
    pub(crate) read: fn(&Fields<'_>, &'static Family) -> Result<ModelConfig>,
}

/// The RMS norms that attention applies to queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// No norm on queries and keys.
    Off,
    /// A separate norm over each head (Qwen 3, Gemma 3).
    EachHead,
    /// A norm over all heads together (OLMo 2).
    AllHeads,
}

/// The norms of the attention or MLP part of a decoder layer, by their names in weight files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfNorms {
    /// Name of the norm of the part's input.
    pub before: Option<&'static str>,
    /// Name of the norm of the part's output, before the output is added to the residual stream.
    pub after: Option<&'static str>,
}

/// The norms of a decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerNorms {
    /// Norms of the attention part.
    pub attention: HalfNorms,
    /// Norms of the MLP part.
    pub mlp: HalfNorms,
}

/// The rotary position embedding (rope) that a layer applies to queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerRope {
    /// The rope of [`ModelConfig::rope`].
    Global,
    /// The rope of [`ModelConfig::local_rope`].
    Local,
    /// No rope: attention in this layer ignores positions.
    Off,
}

/// The dtype of tensors in a weight file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileDType {
    /// IEEE 754 single precision, 32 bits.
    F32,
    /// bfloat16, 16 bits.
    Bf16,
    /// IEEE 754 half precision, 16 bits.
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
    /// Bytes per element in the file.
    pub fn bytes(self) -> usize {
        match self {
            FileDType::F32 => 4,
            FileDType::Bf16 | FileDType::F16 => 2,
        }
    }
}

/// Suffix of the names in `architectures` of transformers models that give scores.
const SCORES: &str = "ForSequenceClassification";

/// The head of a model, which turns hidden states into logits or scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// Language-model head: logits of the next token.
    #[default]
    Lm,
    /// Score head with this many labels, as in transformers' `…ForSequenceClassification`; a reward or value model has
    /// 1.
    Score(usize),
}

/// A parsed `config.json`.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// The model family.
    pub family: &'static Family,
    /// H, the width of the residual stream.
    pub hidden_size: usize,
    /// F, the width of the MLP.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub num_layers: usize,
    /// Number of query heads.
    pub num_heads: usize,
    /// Number of KV heads; divides [`num_heads`](Self::num_heads).
    pub num_kv_heads: usize,
    /// Head dim: the width of one attention head; even.
    pub head_dim: usize,
    /// V, the number of rows of the embedding.
    pub vocab_size: usize,
    /// Context length that the model was trained for, in positions.
    pub max_position_embeddings: usize,
    /// The ε of every RMS norm.
    pub rms_norm_eps: f32,
    /// The number added to the weight of every RMS norm: 1 in families whose files store the weight minus 1 (Gemma),
    /// else 0.
    pub norm_offset: f32,
    /// Activation function of the MLP's gate.
    pub activation: Activation,
    /// Multiplier of the embedding's rows: 1, or √[`hidden_size`](Self::hidden_size) in Gemma.
    pub embedding_multiplier: f32,
    /// Attention scores are divided by the square root of this number. It is [`head_dim`](Self::head_dim) unless the
    /// family sets another value.
    pub query_pre_attn_scalar: f64,
    /// Rotary position settings of layers with full attention, and of all layers if `local_rope` is missing.
    pub rope: Rope,
    /// Rotary position settings of layers with a sliding window, if they differ from those of the other layers.
    pub local_rope: Option<Rope>,
    /// The rotary position settings that each layer uses.
    pub layer_ropes: Vec<LayerRope>,
    /// Sliding window w of each layer: a query at position p attends to the keys j with p − w < j ≤ p. `None` means
    /// that it attends to all earlier positions.
    pub windows: Vec<Option<usize>>,
    /// Whether q, k and v have a bias.
    pub attention_bias: bool,
    /// Whether the attention output has a bias.
    pub attention_output_bias: bool,
    /// Whether gate, up and down have a bias.
    pub mlp_bias: bool,
    /// The norms that attention applies to queries and keys.
    pub qk_norm: QkNorm,
    /// The norms of each decoder layer.
    pub norms: LayerNorms,
    /// The kind of head: logits, or scores.
    pub head: Head,
    /// Whether a language model also uses its embedding matrix as the head's weight.
    pub tie_word_embeddings: bool,
    /// Id of the token that starts a sequence.
    pub bos_token_id: Option<u32>,
    /// Ids of the tokens that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// Id of the padding token.
    pub pad_token_id: Option<u32>,
    /// The dtype that the weights were saved in, if `config.json` names it.
    pub dtype: Option<FileDType>,
    /// The dtype of the weights, and of the activations that matmuls read: f32 or bf16. It does not come from
    /// `config.json`; the caller that loads the model chooses it (f32 by default).
    pub compute: DType,
    /// Standard deviation of random initial weights.
    pub initializer_range: f32,
    /// The JSON object as it was read, so that saving loses no field.
    pub raw: serde_json::Map<String, serde_json::Value>,
}

impl ModelConfig {
    /// The configuration of the same decoder with a score head of `labels` labels in place of its head, like
    /// transformers' `…ForSequenceClassification`.
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
    /// The same configuration with a different padding token. transformers needs a padding token to score several texts
    /// in one batch.
    pub(crate) fn padded_with(&self, pad_token_id: Option<u32>) -> ModelConfig {
        let mut config = ModelConfig { pad_token_id, ..self.clone() };
        if let Some(id) = pad_token_id {
            config.raw.insert("pad_token_id".into(), id.into());
        }
        config
    }
    /// The same configuration for a model that computes in `compute`: f32 or bf16. bf16 requires that each matrix has
    /// an even number of inputs.
    pub fn computing_in(&self, compute: kernels::DType) -> Result<ModelConfig> {
        let sizes = [("hidden_size", self.hidden_size), ("intermediate_size", self.intermediate_size)];
        let odd = sizes.into_iter().find(|(_, size)| compute == kernels::DType::Bf16 && size % 2 != 0);
        if let Some((field, size)) = odd {
            let message = "must be even for bf16: set dtype = \"f32\"".into();
            return Err(Error::Config { field: field.into(), value: Some(size.to_string()), message });
        }
        Ok(ModelConfig { compute, ..self.clone() })
    }
    /// The factor on the embedding's rows ([`embedding_multiplier`](Self::embedding_multiplier)), rounded to the dtype
    /// that the model computes in, as transformers does.
    pub fn embedding_scale(&self) -> f32 {
        match self.compute {
            DType::F32 => self.embedding_multiplier,
            _ => half::bf16::from_f32(self.embedding_multiplier).to_f32(),
        }
    }
    /// The factor on attention scores: 1 / √[`query_pre_attn_scalar`](Self::query_pre_attn_scalar).
    pub fn attention_scale(&self) -> f32 {
        (1.0 / self.query_pre_attn_scalar.sqrt()) as f32
    }
    /// Rows of the head's matrix; `None` if the head shares the embedding's matrix.
    pub fn head_rows(&self) -> Option<usize> {
        match self.head {
            Head::Lm => (!self.tie_word_embeddings).then_some(self.vocab_size),
            Head::Score(labels) => Some(labels),
        }
    }
    /// Rotary inverse frequencies `[head_dim / 2]` of layers of this kind, and the factor on cos and sin, as
    /// transformers computes them.
    pub fn inv_freq(&self, rope: LayerRope) -> (Vec<f32>, f32) {
        match rope {
            LayerRope::Global => self.rope.inv_freq(self.head_dim),
            LayerRope::Local => self.local_rope.as_ref().unwrap_or(&self.rope).inv_freq(self.head_dim),
            // A rotation by angle 0, so that every layer performs the same operations.
            LayerRope::Off => (vec![0.0; self.head_dim / 2], 1.0),
        }
    }
    /// Width of the q norm's weight, width of the k norm's weight, and the number of norms in one fused row; `None` if
    /// the model does not have these norms.
    pub(crate) fn qk_norm_widths(&self) -> Option<(usize, usize, usize)> {
        match self.qk_norm {
            QkNorm::Off => None,
            QkNorm::EachHead => Some((self.head_dim, self.head_dim, self.num_heads + self.num_kv_heads)),
            QkNorm::AllHeads => Some((self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim, 2)),
        }
    }
    /// Width of one row of fused queries, keys and values: (query heads + 2 · KV heads) · head dim.
    pub fn qkv_width(&self) -> usize {
        (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
    }
}
