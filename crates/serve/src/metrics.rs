//! The route `/metrics`: the counts of the service in Prometheus' text format.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use lockstep::service::Service;
use telemetry::prometheus::{CONTENT_TYPE, ServerMetric, exposition_of_server};

pub fn metrics(service: &Service) -> Response {
    let (status, sizes) = (service.status(), service.sizes());
    let gauge = |name, help, value: usize| ServerMetric { name, help, is_counter: false, value: value as f64 };
    let counter = |name, help, value: u64| ServerMetric { name, help, is_counter: true, value: value as f64 };
    let engine = status.engine;
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
    ];
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], exposition_of_server(&all)).into_response()
}
