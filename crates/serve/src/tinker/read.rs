//! Reads requests: JSON bodies into structs, and protobuf messages into passes.

use super::proto::{self, ChunkKind, ConfigValue, DType, ForwardBackwardRequest, Span};
use super::tensors::{by_dtype, token_ids, values};
use lockstep::service::Generate;
use lockstep::service::training::{AdamParams, AdapterSpec, ClipRange, Datum, Job, TokenLoss};
use prost::Message;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The most numbers of a request's tensors: sparse ones may be much larger than their bytes.
const MOST_NUMBERS: usize = 1 << 24;
/// The number of seconds after which a saved state may be deleted; the client's documentation has the limits.
const TTL: std::ops::RangeInclusive<u64> = 3600..=315_360_000;
/// The rank of an adapter whose request has none.
const RANK: usize = 32;

/// Reads a JSON body. Fields that are not in the struct are ignored: newer clients send more.
pub fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("the body does not fit the request: {error}"))
}

#[derive(Deserialize)]
pub struct SessionId {
    pub session_id: String,
}

#[derive(Deserialize)]
pub struct CreateModel {
    pub session_id: String,
    pub model_seq_id: u64,
    pub base_model: String,
    #[serde(default)]
    pub user_metadata: Value,
    #[serde(default)]
    pub lora_config: LoraRequest,
    #[serde(default)]
    pub optimizer_config: Option<Kind>,
}

#[derive(Deserialize)]
pub struct LoraRequest {
    #[serde(default = "rank")]
    rank: usize,
    #[serde(default)]
    seed: Option<serde_json::Number>,
    #[serde(default = "yes")]
    train_mlp: bool,
    #[serde(default = "yes")]
    train_attn: bool,
}

impl Default for LoraRequest {
    fn default() -> LoraRequest {
        LoraRequest { rank: RANK, seed: None, train_mlp: true, train_attn: true }
    }
}

fn rank() -> usize {
    RANK
}

fn yes() -> bool {
    true
}

/// An object of which only the type matters.
#[derive(Deserialize)]
pub struct Kind {
    #[serde(rename = "type")]
    pub kind: String,
}

impl LoraRequest {
    pub fn spec(self) -> Result<AdapterSpec, String> {
        let LoraRequest { rank, seed, train_mlp, train_attn } = self;
        Ok(AdapterSpec { rank, seed: seed.map(bits).transpose()?, train_attn, train_mlp })
    }
}

#[derive(Deserialize)]
pub struct OfModel {
    pub model_id: String,
    #[serde(default)]
    pub seq_id: u64,
}

#[derive(Deserialize)]
pub struct OptimStep {
    #[serde(default)]
    adam_params: Adam,
    #[serde(default)]
    optimizer_params: Option<Kind>,
}

#[derive(Deserialize)]
#[serde(default)]
struct Adam {
    learning_rate: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    grad_clip_norm: f64,
}

impl Default for Adam {
    fn default() -> Adam {
        let AdamParams { learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm } = AdamParams::default();
        Adam { learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm }
    }
}

impl OptimStep {
    pub fn job(self) -> Result<Job, String> {
        if let Some(Kind { kind }) = self.optimizer_params.filter(|params| params.kind != "adamw") {
            return Err(format!("the optimizer `{kind}` is not supported: this server has adamw"));
        }
        let Adam { learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm } = self.adam_params;
        Ok(Job::Step(AdamParams { learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm }))
    }
}

/// The time after which a saved state is deleted.
#[derive(Deserialize, Default)]
pub struct Ttl {
    #[serde(default)]
    ttl_seconds: Option<u64>,
}

impl Ttl {
    pub fn seconds(self) -> Result<Option<u64>, String> {
        match self.ttl_seconds {
            Some(seconds) if !TTL.contains(&seconds) => {
                let (least, most) = (TTL.start(), TTL.end());
                Err(format!("`ttl_seconds` is {seconds}: expected {least} (an hour) to {most} (ten years)"))
            }
            seconds => Ok(seconds),
        }
    }
}

#[derive(Deserialize)]
pub struct SaveWeights {
    path: String,
    #[serde(default)]
    overwrite: bool,
    #[serde(flatten)]
    ttl: Ttl,
}

impl SaveWeights {
    pub fn job(self) -> Result<Job, String> {
        Ok(Job::Save { name: self.path, overwrite: self.overwrite, ttl_seconds: self.ttl.seconds()? })
    }
}

#[derive(Deserialize)]
pub struct SaveForSampler {
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    sampling_session_seq_id: Option<u64>,
    #[serde(flatten)]
    ttl: Ttl,
}

impl SaveForSampler {
    pub fn job(self) -> Result<Job, String> {
        let ttl_seconds = self.ttl.seconds()?;
        match (self.path, self.sampling_session_seq_id) {
            (Some(name), _) => Ok(Job::SaveForSampler { name, ttl_seconds }),
            (None, Some(_)) if ttl_seconds.is_some() => {
                Err("`ttl_seconds` needs a `path`: weights without files are kept by their number".to_owned())
            }
            (None, Some(number)) => Ok(Job::Sampler { number }),
            (None, None) => Err("`path` or `sampling_session_seq_id` is missing".to_owned()),
        }
    }
}

#[derive(Deserialize)]
pub struct LoadWeights {
    #[serde(default)]
    pub session_id: Option<String>,
    #[serde(default)]
    pub model_seq_id: Option<u64>,
    #[serde(default)]
    pub user_metadata: Value,
    path: String,
    #[serde(default)]
    optimizer: bool,
    #[serde(default)]
    weights_access_token: Option<String>,
}

impl LoadWeights {
    pub fn job(self) -> Result<Job, String> {
        if self.weights_access_token.is_some() {
            return Err("`weights_access_token` is not supported: this server loads only its own states".to_owned());
        }
        Ok(Job::Load { path: self.path, optimizer: self.optimizer })
    }
}

#[derive(Deserialize)]
pub struct CreateSampler {
    pub session_id: String,
    pub sampling_session_seq_id: u64,
    #[serde(default)]
    pub base_model: Option<String>,
    #[serde(default)]
    pub model_path: Option<String>,
}

#[derive(Deserialize)]
pub struct Sample {
    pub sampling_session_id: String,
    pub seq_id: u64,
    #[serde(default = "one")]
    num_samples: usize,
    prompt: Prompt,
    #[serde(default)]
    sampling_params: Params,
    #[serde(default)]
    pub prompt_logprobs: Option<bool>,
    #[serde(default)]
    pub topk_prompt_logprobs: usize,
    #[serde(default)]
    pub topk_sample_logprobs: usize,
    #[serde(default)]
    pub prompt_logprobs_last_n: Option<usize>,
    #[serde(default)]
    target_prompt_logprobs: Option<Value>,
    #[serde(default)]
    prompt_alt_tokens_k: usize,
}

fn one() -> usize {
    1
}

#[derive(Deserialize)]
struct Prompt {
    chunks: Vec<PromptChunk>,
}

#[derive(Deserialize)]
struct PromptChunk {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    tokens: Vec<u32>,
}

#[derive(Deserialize)]
#[serde(default)]
struct Params {
    max_tokens: Option<usize>,
    seed: Option<serde_json::Number>,
    stop: Option<Stop>,
    temperature: f64,
    top_k: i64,
    top_p: f64,
}

impl Default for Params {
    fn default() -> Params {
        Params { max_tokens: None, seed: None, stop: None, temperature: 1.0, top_k: -1, top_p: 1.0 }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Stop {
    Ids(Vec<u32>),
    Texts(Vec<String>),
    Text(String),
}

impl Sample {
    /// The request for the engine; the model's name is not used.
    pub fn generate(self) -> Result<Generate, String> {
        if self.target_prompt_logprobs.is_some_and(|value| !value.is_null()) {
            return Err(
                "`target_prompt_logprobs` is not supported: use forward for log-probabilities of targets".into()
            );
        }
        if self.prompt_alt_tokens_k > 0 {
            return Err("`prompt_alt_tokens_k` is not supported: use topk_prompt_logprobs".into());
        }
        let mut ids = Vec::new();
        for PromptChunk { kind, tokens } in self.prompt.chunks {
            if !["encoded_text", ""].contains(&&*kind) {
                return Err(format!("the prompt has a chunk of type `{kind}`: only encoded_text is supported"));
            }
            ids.extend(tokens);
        }
        let Params { max_tokens, seed, stop, temperature, top_k, top_p } = self.sampling_params;
        let mut generate = Generate {
            prompts: vec![ids],
            n: self.num_samples,
            seed: seed.map(bits).transpose()?,
            max_tokens,
            temperature,
            top_p,
            // -1 means all tokens, as in vLLM.
            top_k: usize::try_from(top_k).unwrap_or(0),
            top_logprobs: self.topk_sample_logprobs.max(self.topk_prompt_logprobs),
            prompt_logprobs: self.prompt_logprobs.unwrap_or(false) || self.topk_prompt_logprobs > 0,
            ..Generate::default()
        };
        match stop {
            // An empty list: only the length ends a sequence.
            Some(Stop::Ids(ids)) if ids.is_empty() => generate.ignore_eos = true,
            Some(Stop::Ids(ids)) => generate.stop_token_ids = ids,
            Some(Stop::Texts(texts)) => generate.stop = texts,
            Some(Stop::Text(text)) => generate.stop = vec![text],
            None => {}
        }
        Ok(generate)
    }
}

/// The 64 bits of a seed, which may have a sign.
fn bits(seed: serde_json::Number) -> Result<u64, String> {
    let signed = || seed.as_i64().map(i64::cast_unsigned);
    seed.as_u64().or_else(signed).ok_or_else(|| format!("`seed` is {seed}: expected a 64-bit integer"))
}

#[derive(Deserialize)]
pub struct RequestId {
    pub request_id: String,
}

#[derive(Deserialize)]
pub struct SamplerId {
    pub sampling_session_id: String,
}

#[derive(Deserialize)]
pub struct TinkerPath {
    pub tinker_path: String,
}

/// Decodes the body of `forward_backward`.
pub fn pass(bytes: &[u8]) -> Result<ForwardBackwardRequest, String> {
    ForwardBackwardRequest::decode(bytes).map_err(|error| format!("the body is not a ForwardBackwardRequest: {error}"))
}

/// The job of a `forward_backward`.
pub fn pass_job(request: ForwardBackwardRequest) -> Result<Job, String> {
    let ForwardBackwardRequest { data, loss_fn, loss_fn_config, loss_fn_config_v2, forward_only, .. } = request;
    let mut settings = loss_fn_config;
    for (name, value) in loss_fn_config_v2 {
        match value.value {
            Some(ConfigValue::Number(number)) => drop(settings.insert(name, number)),
            Some(ConfigValue::Text(text)) => {
                return Err(format!("loss_fn_config: `{name}` is \"{text}\": expected a number"));
            }
            None => {}
        }
    }
    let needs_on_policy = !forward_only && loss_fn == "stable_reinforce";
    let loss = if forward_only { None } else { Some(loss(&loss_fn, settings)?) };
    let mut samplers = BTreeSet::new();
    for datum in &data {
        for span in datum.model_input_spans.iter().chain(&datum.loss_fn_input_spans) {
            if let Some(Span::SampledTokens(sampled)) = &span.span {
                samplers.insert(super::sampler_of(&sampled.sequence_id).to_owned());
            }
        }
    }
    let mut left = MOST_NUMBERS;
    let read = |(index, datum)| read_datum(datum, &mut left).map_err(|why| format!("datum {index}: {why}"));
    let datums = data.into_iter().enumerate().map(read).collect::<Result<_, _>>()?;
    Ok(Job::Pass { datums, loss, samplers: samplers.into_iter().collect(), needs_on_policy })
}

/// The loss with this name.
fn loss(name: &str, mut settings: BTreeMap<String, f64>) -> Result<TokenLoss, String> {
    let mut range = || {
        let ClipRange { low, high } = ClipRange::default();
        ClipRange {
            low: settings.remove("clip_low_threshold").unwrap_or(low),
            high: settings.remove("clip_high_threshold").unwrap_or(high),
        }
    };
    let loss = match name {
        "cross_entropy" => TokenLoss::CrossEntropy,
        "importance_sampling" => TokenLoss::ImportanceSampling,
        // With the weights that sampled the tokens, every ratio is 1, and the gradient is that of REINFORCE.
        "stable_reinforce" => {
            settings.remove("kl_coeff").filter(|coeff| *coeff != 0.0).map_or(Ok(()), |coeff| {
                Err(format!("stable_reinforce with kl_coeff {coeff} is not supported: its formula is not published"))
            })?;
            TokenLoss::ImportanceSampling
        }
        "ppo" => TokenLoss::Ppo(range()),
        "cispo" => TokenLoss::Cispo(range()),
        "gspo" => TokenLoss::Gspo(range()),
        "dro" => TokenLoss::Dro { beta: settings.remove("beta").ok_or("the loss dro needs loss_fn_config.beta")? },
        other => {
            return Err(format!(
                "the loss `{other}` is not supported: this server has cross_entropy, importance_sampling, ppo, cispo, \
                 dro, gspo, and stable_reinforce on tokens of the current weights"
            ));
        }
    };
    if let Some(name) = settings.keys().next() {
        return Err(format!("loss_fn_config: the loss has no setting `{name}`"));
    }
    Ok(loss)
}

/// `left`: the number of further numbers that the request may have.
fn read_datum(datum: proto::Datum, left: &mut usize) -> Result<Datum, String> {
    let mut ids = Vec::new();
    for chunk in datum.model_input {
        match chunk.chunk {
            Some(ChunkKind::EncodedText(text)) => ids.extend(token_ids(by_dtype(&text.tokens, DType::Int32 as i32)?)?),
            Some(ChunkKind::Image(_)) => return Err("an image: only encoded_text chunks are supported".into()),
            Some(ChunkKind::Dmel(_)) => return Err("audio (dmel): only encoded_text chunks are supported".into()),
            None => return Err("a chunk without contents".into()),
        }
    }
    let mut tensors = datum.loss_fn_inputs;
    let targets = tensors.remove("target_tokens").ok_or("`target_tokens` is missing")?;
    let width = match targets.shape[..] {
        [_] | [] => 1,
        [_, width] => {
            usize::try_from(width).map_err(|_| format!("`target_tokens` has the shape {:?}", targets.shape))?
        }
        _ => return Err(format!("`target_tokens` has the shape {:?}: expected [N] or [N, K]", targets.shape)),
    };
    let targets = token_ids(values(&targets, left).map_err(|why| format!("`target_tokens`: {why}"))?)?;
    let floats = |(name, tensor): (String, proto::Tensor)| {
        let values = values(&tensor, left).map_err(|why| format!("`{name}`: {why}"))?;
        Ok((name, values.into_iter().map(|x| x as f32).collect()))
    };
    let inputs = tensors.into_iter().map(floats).collect::<Result<_, String>>()?;
    Ok(Datum { ids, targets, width, inputs })
}
