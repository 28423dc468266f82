//! Maps parameters to the tensors of Hugging Face files: which tensors a parameter contains, and in which of its rows.

use crate::{Head, ModelConfig};
use std::ops::Range;

/// Name of the language-model head in weight files.
pub(super) const HEAD: &str = "lm_head.weight";
/// Name of the score head in weight files.
pub(super) const SCORES: &str = "score.weight";

/// A tensor of a Hugging Face file, which is a range of rows of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The tensor's name in files, such as `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// The rows of the parameter that hold this tensor.
    pub rows: Range<usize>,
    /// The tensor's shape in files: `[rows, inputs]` for a matrix, `[rows]` for a vector.
    pub shape: Vec<usize>,
}

/// Whether a parameter belongs to the model or to an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A parameter of the model itself.
    Base,
    /// A parameter of a low-rank adapter.
    Adapter,
}

/// Specification of a parameter: the tensors of files that it contains, stacked by rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamSpec {
    /// The tensors of files that the parameter holds, in the order of its rows.
    pub parts: Vec<Part>,
    /// Whether the parameter is a matrix (a matmul's weight, or the embedding) rather than a vector (a norm's weight or
    /// a bias). Only matrices get weight decay.
    pub matrix: bool,
    /// Whether the parameter belongs to the model or to an adapter.
    pub role: Role,
}

impl ParamSpec {
    fn matrix(cols: usize, parts: &[(String, usize)]) -> ParamSpec {
        ParamSpec { parts: stack(parts, |rows| vec![rows, cols]), matrix: true, role: Role::Base }
    }
    fn vector(parts: &[(String, usize)]) -> ParamSpec {
        ParamSpec { parts: stack(parts, |rows| vec![rows]), matrix: false, role: Role::Base }
    }
}

pub(super) fn stack(parts: &[(String, usize)], shape: impl Fn(usize) -> Vec<usize>) -> Vec<Part> {
    let mut first = 0;
    let mut part = |(name, rows): &(String, usize)| {
        let range = first..first + rows;
        first = range.end;
        Part { name: name.clone(), rows: range, shape: shape(*rows) }
    };
    parts.iter().map(&mut part).collect()
}

/// Names of the norms of a decoder layer, in the order of the parameters.
fn layer_norms(c: &ModelConfig) -> [Option<&'static str>; 4] {
    let norms = c.norms;
    [norms.attention.before, norms.attention.after, norms.mlp.before, norms.mlp.after]
}

/// Specifications of a model's parameters without adapters, in the order of
/// [`Params::tensors`](super::Params::tensors).
pub(super) fn specs(c: &ModelConfig) -> Vec<ParamSpec> {
    let (h, f, v, hd) = (c.hidden_size, c.intermediate_size, c.vocab_size, c.head_dim);
    let (q, kv) = (c.num_heads * hd, c.num_kv_heads * hd);
    let mut specs = vec![ParamSpec::matrix(h, &[("model.embed_tokens.weight".into(), v)])];
    for layer in 0..c.num_layers {
        let at = |name: &str, rows: usize| (format!("model.layers.{layer}.{name}"), rows);
        let mut linear = |cols: usize, bias: bool, parts: &[(&str, usize)]| {
            let named =
                |kind: &str| -> Vec<_> { parts.iter().map(|(p, rows)| at(&format!("{p}.{kind}"), *rows)).collect() };
            specs.push(ParamSpec::matrix(cols, &named("weight")));
            if bias {
                specs.push(ParamSpec::vector(&named("bias")));
            }
        };
        linear(h, c.attention_bias, &[("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)]);
        linear(q, c.attention_output_bias, &[("self_attn.o_proj", h)]);
        linear(h, c.mlp_bias, &[("mlp.gate_proj", f), ("mlp.up_proj", f)]);
        linear(f, c.mlp_bias, &[("mlp.down_proj", h)]);
        for name in layer_norms(c).into_iter().flatten() {
            specs.push(ParamSpec::vector(&[at(&format!("{name}.weight"), h)]));
        }
        if let Some((q_norm, k_norm, _)) = c.qk_norm_widths() {
            specs.push(ParamSpec::vector(&[at("self_attn.q_norm.weight", q_norm)]));
            specs.push(ParamSpec::vector(&[at("self_attn.k_norm.weight", k_norm)]));
        }
    }
    specs.push(ParamSpec::vector(&[("model.norm.weight".into(), h)]));
    if let Some(rows) = c.head_rows() {
        let name = if c.head == Head::Lm { HEAD } else { SCORES };
        specs.push(ParamSpec::matrix(h, &[(name.into(), rows)]));
    }
    specs
}
