//! The table of all fields that OpenAI's and vLLM's clients send. A field is read, ignored because it does not affect a
//! completion, or refused unless its value changes nothing. A field that is not in the table is refused, too: a
//! misspelt name must not change a result silently.

use crate::error::{ApiError, shortened};
use serde_json::{Map, Value};

/// An object in a request that has fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// The body of `/v1/completions`.
    Completion,
    /// The body of `/v1/chat/completions`.
    Chat,
    /// The body of `/inference/v1/generate`.
    Generate,
    /// `sampling_params` in the body of `/inference/v1/generate`.
    Sampling,
}

/// How a field is treated.
#[derive(Clone, Copy, Debug)]
enum Use {
    Read,
    Ignored,
    /// Refused, unless its JSON is one of these values. The text is the reason or the alternative.
    Only(&'static [&'static str], &'static str),
}

use Of::{Chat, Completion, Generate, Sampling};
use Use::{Ignored, Only, Read};

type Row = (&'static [Of], Use, &'static [&'static str]);

const TEXTS: &[Of] = &[Completion, Chat];
const SAMPLED: &[Of] = &[Completion, Chat, Sampling];
const NOT_YET: &str = "not supported yet";
const USE_TOOLS: &str = "use tools and tool_choice";
const NO_GRAMMAR: &str = "constrained decoding is not supported";
const NO_MEDIA: &str = "the models are text models";

/// All fields. A field with the JSON value `null` is the same as a missing one.
const TABLE: &[Row] = &[
    (&[Completion, Chat, Generate], Read, &["model", "stream"]),
    (&[Completion], Read, &["prompt", "echo"]),
    (&[Chat], Read, &["messages", "max_completion_tokens", "top_logprobs"]),
    (&[Chat], Read, &["chat_template_kwargs", "add_generation_prompt", "continue_final_message"]),
    (&[Generate], Read, &["token_ids", "sampling_params", "request_id"]),
    (TEXTS, Read, &["stream_options", "return_token_ids", "return_tokens_as_token_ids"]),
    (SAMPLED, Read, &["n", "seed", "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"]),
    (SAMPLED, Read, &["stop", "stop_token_ids", "ignore_eos", "logprobs", "skip_special_tokens"]),
    // Who asks, and how a provider bills and stores it. The prefix cache changes no bit, so it needs no salt.
    (TEXTS, Ignored, &["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"]),
    (&[Completion, Chat, Generate], Ignored, &["cache_salt", "priority", "request_id"]),
    (SAMPLED, Only(&["0", "0.0"], "use repetition_penalty"), &["presence_penalty", "frequency_penalty"]),
    (SAMPLED, Only(&["0"], NOT_YET), &["min_tokens"]),
    (SAMPLED, Only(&["{}"], NOT_YET), &["logit_bias"]),
    (SAMPLED, Only(&["[]"], NOT_YET), &["bad_words"]),
    (SAMPLED, Only(&[], NOT_YET), &["allowed_token_ids", "truncate_prompt_tokens"]),
    (SAMPLED, Only(&[], "/v1/completions returns them with \"echo\": true and logprobs"), &["prompt_logprobs"]),
    (SAMPLED, Only(&["false"], "the text ends before the stop string"), &["include_stop_str_in_output"]),
    (SAMPLED, Only(&["true"], "text is decoded as transformers does"), &["spaces_between_special_tokens"]),
    (SAMPLED, Only(&["false"], "beam search is not supported"), &["use_beam_search"]),
    (SAMPLED, Only(&["1", "1.0"], "beam search is not supported"), &["length_penalty"]),
    (&[Completion], Only(&["1"], "use n"), &["best_of"]),
    (&[Completion], Only(&[], NOT_YET), &["suffix"]),
    (&[Completion], Only(&["true"], "send token ids as the prompt"), &["add_special_tokens"]),
    (&[Chat], Only(&["false"], "the rendered text already has special tokens"), &["add_special_tokens"]),
    (&[Chat], Only(&["false"], "/v1/completions has it"), &["echo"]),
    (&[Chat], Read, &["tools", "tool_choice", "parallel_tool_calls"]),
    (&[Chat], Only(&["[]"], USE_TOOLS), &["functions"]),
    (&[Chat], Only(&["\"none\"", "\"auto\""], USE_TOOLS), &["function_call"]),
    (TEXTS, Only(&["{\"type\":\"text\"}"], NO_GRAMMAR), &["response_format"]),
    (TEXTS, Only(&[], NO_GRAMMAR), &["structured_outputs", "guided_json", "guided_regex", "guided_choice"]),
    (TEXTS, Only(&[], NO_GRAMMAR), &["guided_grammar"]),
    (&[Chat], Only(&["[\"text\"]"], NO_MEDIA), &["modalities"]),
    (&[Chat], Only(&[], NO_MEDIA), &["audio", "mm_processor_kwargs"]),
    (&[Generate], Only(&[], NO_MEDIA), &["features"]),
    (&[Chat], Only(&[], "pass template variables in chat_template_kwargs"), &["reasoning_effort", "documents"]),
    (&[Chat], Only(&[], "the model's own template is used"), &["chat_template"]),
    (&[Chat], Only(&[], NOT_YET), &["prediction", "verbosity", "web_search_options"]),
    (&[Completion, Chat, Generate], Only(&[], "this server has one engine"), &["kv_transfer_params"]),
    (&[Sampling], Only(&["true", "false"], "the response has ids only"), &["detokenize"]),
    (&[Generate], Only(&[], "the request is not streamed"), &["stream_options"]),
];

/// Removes the fields of `object` that have no effect. Refuses those that are unknown or unsupported.
pub fn check(of: Of, object: &mut Map<String, Value>) -> Result<(), ApiError> {
    object.retain(|_, value| !value.is_null());
    let mut ignored = Vec::new();
    for (name, value) in object.iter() {
        let row = TABLE.iter().find(|(places, _, names)| places.contains(&of) && names.contains(&name.as_str()));
        match row {
            Some((_, Read, _)) => {}
            Some((_, Ignored, _)) => ignored.push(name.clone()),
            Some((_, Only(values, why), _)) => {
                let value = value.to_string();
                if !values.contains(&value.as_str()) {
                    let message = format!("`{name}` = {} is not supported: {why}", shortened(&value));
                    return Err(ApiError::field(name, message).with_code("unsupported_parameter"));
                }
                ignored.push(name.clone());
            }
            None => {
                let shown = shortened(name);
                let known = TABLE.iter().filter(|(places, ..)| places.contains(&of)).flat_map(|(.., names)| *names);
                let hint = lockstep::service::did_you_mean(name, known.copied());
                let message = format!("unknown field `{shown}`{hint}");
                return Err(ApiError::field(shown, message).with_code("unknown_parameter"));
            }
        }
    }
    for name in &ignored {
        object.remove(name);
    }
    Ok(())
}
