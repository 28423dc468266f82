//! Tinker's protobuf messages, as far as the client sends and reads them. Tags and names are those of the client's
//! descriptor (`tinker_public.proto` in the wheel of tinker 0.38.0).

use prost::{Enumeration, Message, Oneof};
use std::collections::BTreeMap;

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum StopReason {
    Stop = 0,
    Length = 1,
}

/// The dtype of a tensor's bytes, which are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum DType {
    Unspecified = 0,
    Float32 = 1,
    Int64 = 2,
    Int32 = 3,
    Bfloat16 = 4,
}

/// The result of `asample`.
#[derive(Clone, PartialEq, Message)]
pub struct SampleResponse {
    #[prost(message, repeated, tag = "1")]
    pub sequences: Vec<SampledSequence>,
    /// f32, one for each prompt token; NaN for the first one.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub prompt_logprobs: Option<Vec<u8>>,
    #[prost(message, optional, tag = "3")]
    pub topk_prompt_logprobs: Option<TopkLogprobs>,
    #[prost(int32, tag = "4")]
    pub prompt_cache_hit_tokens: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct SampledSequence {
    #[prost(enumeration = "StopReason", tag = "1")]
    pub stop_reason: i32,
    /// i32, the token that ended the sequence included.
    #[prost(bytes = "vec", tag = "2")]
    pub tokens: Vec<u8>,
    /// f32.
    #[prost(bytes = "vec", optional, tag = "3")]
    pub logprobs: Option<Vec<u8>>,
    #[prost(message, optional, tag = "4")]
    pub topk_sampled_logprobs: Option<TopkLogprobs>,
}

/// `[length, k]` most likely tokens.
#[derive(Clone, PartialEq, Message)]
pub struct TopkLogprobs {
    /// i32.
    #[prost(bytes = "vec", tag = "1")]
    pub token_ids: Vec<u8>,
    /// f32.
    #[prost(bytes = "vec", tag = "2")]
    pub logprobs: Vec<u8>,
    #[prost(uint32, tag = "3")]
    pub k: u32,
    #[prost(uint32, tag = "4")]
    pub length: u32,
}

/// A sparse matrix by rows.
#[derive(Clone, PartialEq, Message)]
pub struct SparseCsr {
    #[prost(bytes = "vec", tag = "1")]
    pub values: Vec<u8>,
    /// i64 `[rows + 1]`.
    #[prost(bytes = "vec", tag = "2")]
    pub crow_indices: Vec<u8>,
    /// i64, one for each value.
    #[prost(bytes = "vec", tag = "3")]
    pub col_indices: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Tensor {
    #[prost(oneof = "Encoding", tags = "1, 2")]
    pub encoding: Option<Encoding>,
    #[prost(enumeration = "DType", tag = "3")]
    pub dtype: i32,
    #[prost(int64, repeated, tag = "4")]
    pub shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Encoding {
    #[prost(bytes = "vec", tag = "1")]
    Dense(Vec<u8>),
    #[prost(message, tag = "2")]
    SparseCsr(SparseCsr),
}

/// One array for each datum, one after the other.
#[derive(Clone, PartialEq, Message)]
pub struct BatchedTensor {
    #[prost(bytes = "vec", tag = "1")]
    pub data: Vec<u8>,
    /// i64 `[datums + 1]`, in bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub offsets: Vec<u8>,
    #[prost(enumeration = "DType", tag = "3")]
    pub dtype: i32,
    #[prost(int64, repeated, tag = "4")]
    pub trailing_shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ArrayRecord {
    #[prost(string, tag = "1")]
    pub type_tag: String,
    #[prost(btree_map = "string, message", tag = "2")]
    pub fields: BTreeMap<String, BatchedTensor>,
    #[prost(int64, tag = "3")]
    pub num_datums: i64,
}

/// The result of `forward_backward`.
#[derive(Clone, PartialEq, Message)]
pub struct ForwardBackwardOutput {
    #[prost(string, tag = "1")]
    pub loss_fn_output_type: String,
    #[prost(message, repeated, tag = "2")]
    pub loss_fn_outputs: Vec<ArrayRecord>,
    #[prost(btree_map = "string, double", tag = "3")]
    pub metrics: BTreeMap<String, f64>,
}

/// The body of `forward_backward`.
#[derive(Clone, PartialEq, Message)]
pub struct ForwardBackwardRequest {
    #[prost(string, tag = "1")]
    pub model_id: String,
    #[prost(int32, tag = "2")]
    pub seq_id: i32,
    #[prost(message, repeated, tag = "3")]
    pub data: Vec<Datum>,
    #[prost(string, tag = "4")]
    pub loss_fn: String,
    #[prost(btree_map = "string, double", tag = "5")]
    pub loss_fn_config: BTreeMap<String, f64>,
    #[prost(bool, tag = "6")]
    pub forward_only: bool,
    #[prost(btree_map = "string, message", tag = "7")]
    pub loss_fn_config_v2: BTreeMap<String, LossConfigValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LossConfigValue {
    #[prost(oneof = "ConfigValue", tags = "1, 2")]
    pub value: Option<ConfigValue>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum ConfigValue {
    #[prost(double, tag = "1")]
    Number(f64),
    #[prost(string, tag = "2")]
    Text(String),
}

#[derive(Clone, PartialEq, Message)]
pub struct Datum {
    #[prost(message, repeated, tag = "1")]
    pub model_input: Vec<Chunk>,
    #[prost(btree_map = "string, message", tag = "2")]
    pub loss_fn_inputs: BTreeMap<String, Tensor>,
    #[prost(message, repeated, tag = "3")]
    pub model_input_spans: Vec<ProvenanceSpan>,
    #[prost(message, repeated, tag = "4")]
    pub loss_fn_input_spans: Vec<ProvenanceSpan>,
}

/// Names the sequence from which tokens come.
#[derive(Clone, PartialEq, Message)]
pub struct ProvenanceSpan {
    #[prost(oneof = "Span", tags = "1, 2")]
    pub span: Option<Span>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Span {
    #[prost(message, tag = "1")]
    PromptTokens(Provenance),
    #[prost(message, tag = "2")]
    SampledTokens(Provenance),
}

#[derive(Clone, PartialEq, Message)]
pub struct Provenance {
    #[prost(string, tag = "1")]
    pub sequence_id: String,
    #[prost(int64, tag = "2")]
    pub offset: i64,
    #[prost(int64, tag = "3")]
    pub length: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Chunk {
    #[prost(oneof = "ChunkKind", tags = "1, 2, 3")]
    pub chunk: Option<ChunkKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum ChunkKind {
    #[prost(message, tag = "1")]
    EncodedText(EncodedTextChunk),
    #[prost(message, tag = "2")]
    Image(OtherChunk),
    #[prost(message, tag = "3")]
    Dmel(OtherChunk),
}

#[derive(Clone, PartialEq, Message)]
pub struct EncodedTextChunk {
    /// i32.
    #[prost(bytes = "vec", tag = "1")]
    pub tokens: Vec<u8>,
}

/// A chunk whose contents are not read, because it is refused.
#[derive(Clone, PartialEq, Message)]
pub struct OtherChunk {}
