//! The route `/metrics`: the counts of the service in Prometheus' text format.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use lockstep::service::Service;
use std::time::Duration;
use telemetry::prometheus::{CONTENT_TYPE, ServerMetric, exposition_of_server};

pub fn metrics(service: &Service) -> Response {
    let (status, sizes, training) = (service.status(), service.sizes(), service.training().status());
    let gauge = |name, help, value: usize| ServerMetric { name, help, is_counter: false, value: value as f64 };
    let counter = |name, help, value: u64| ServerMetric { name, help, is_counter: true, value: value as f64 };
    let seconds =
        |name, help, is_counter, value: Duration| ServerMetric { name, help, is_counter, value: value.as_secs_f64() };
    let (engine, counts) = (status.engine, training.counts);
    let engine_time = engine.prefill_time + engine.decode_time + engine.sampling_time;
    let all = [
        gauge("lockstep_serve_open_completions", "Completions that run or wait.", status.open),
        gauge("lockstep_serve_most_open_completions", "Completions that may run and wait.", sizes.most_open()),
        gauge("lockstep_serve_kv_blocks", "Pages of the KV cache.", sizes.kv_cache_blocks),
        gauge("lockstep_serve_free_kv_blocks", "Pages that no completion uses.", status.free_blocks),
        counter("lockstep_serve_prompts_total", "Accepted prompts.", status.prompts),
        counter("lockstep_serve_prompt_tokens_total", "Tokens of accepted prompts.", status.prompt_tokens),
        counter("lockstep_serve_cached_tokens_total", "Tokens found in the prefix cache.", engine.cached_tokens),
        counter("lockstep_serve_computed_tokens_total", "Rows computed by the engine.", engine.computed_tokens),
        counter("lockstep_serve_generated_tokens_total", "Generated tokens.", status.generated_tokens),
        counter("lockstep_serve_cancelled_prompts_total", "Prompts whose clients left.", status.cancelled),
        counter("lockstep_serve_preemptions_total", "Preempted sequences.", engine.preemptions),
        seconds("lockstep_serve_engine_seconds_total", "Time of the engine's steps.", true, engine_time),
        gauge("lockstep_serve_sessions", "Sessions of Tinker's API that have not ended.", training.sessions),
        gauge("lockstep_serve_training_models", "Adapters in training.", training.models),
        gauge("lockstep_serve_sampler_adapters", "Adapters of samplers in memory.", training.sampler_adapters),
        gauge("lockstep_serve_training_waiting_requests", "Requests that wait to be computed.", training.waiting),
        gauge("lockstep_serve_training_bytes", "Bytes of requests that wait or are computed.", training.bytes),
        seconds("lockstep_serve_training_longest_wait_seconds", "The longest wait now.", false, training.longest_wait),
        counter("lockstep_serve_training_requests_total", "Requests that were computed.", counts.requests),
        seconds("lockstep_serve_training_wait_seconds_total", "Time of their waits together.", true, counts.waited),
        counter("lockstep_serve_training_passes_total", "Passes that succeeded.", counts.passes),
        counter("lockstep_serve_training_steps_total", "Optimizer steps that were taken.", counts.steps),
        counter("lockstep_serve_training_tokens_total", "Tokens in the sequences of passes.", counts.tokens),
        seconds("lockstep_serve_training_seconds_total", "Time of training.", true, counts.time),
    ];
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], exposition_of_server(&all)).into_response()
}
