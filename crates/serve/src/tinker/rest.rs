//! Saved states and samplers: listed, described and deleted.

use super::{Replied, Tinker, TinkerError, read};
use axum::http::{Method, StatusCode};
use lockstep::service::training::{Kind, Listed, Saved, StatePath, rfc3339};
use serde_json::{Value, json};

/// Responds to a request other than POST for `/api/v1/{route}`. `query` is the part after `?`.
pub fn rest(tinker: &Tinker, method: &Method, route: &str, query: &str, body: &[u8]) -> Replied {
    let parts: Vec<&str> = route.split('/').collect();
    let training = tinker.service.training();
    match (method.as_str(), &parts[..]) {
        ("GET", ["healthz"]) => Ok(json!({"status": "ok"})),
        ("GET", ["get_server_capabilities"]) => Ok(json!({"supported_models": [{
            "model_name": training.base_model, "max_context_length": tinker.service.sizes().max_model_len,
            "trainable": true, "sampleable": true,
        }]})),
        ("GET", ["samplers", id]) => {
            let sampler = training.sampler(id).map_err(TinkerError::not_found)?;
            Ok(json!({"sampler_id": id, "base_model": training.base_model, "model_path": sampler.path.map(|path|
                path.to_string())}))
        }
        ("GET", ["training_runs"]) => tinker.runs(query),
        ("GET", ["training_runs", model]) => tinker.run(model),
        ("GET", ["training_runs", model, "checkpoints"]) => {
            Ok(json!({"checkpoints": training.store.list(model).iter().map(checkpoint).collect::<Vec<_>>()}))
        }
        ("DELETE", ["training_runs", model, "checkpoints", kind, name]) => {
            let path: StatePath = format!("tinker://{model}/{kind}/{name}").parse()?;
            training.store.delete(&path).map_err(TinkerError::not_found)?;
            Ok(json!({}))
        }
        ("PUT", ["training_runs", model, "checkpoints", kind, name, "ttl"]) => {
            let path: StatePath = format!("tinker://{model}/{kind}/{name}").parse()?;
            let ttl_seconds = read::json::<read::Ttl>(body)?.seconds()?;
            tinker.service.expire(&path, ttl_seconds).map_err(TinkerError::not_found)?;
            Ok(json!({}))
        }
        ("GET", ["checkpoints"]) => {
            let listed = training.store.models().into_iter().flat_map(|model| training.store.list(&model));
            Ok(json!({"checkpoints": listed.map(|listed| checkpoint(&listed)).collect::<Vec<_>>()}))
        }
        ("GET", ["training_runs", .., "external_weights_urls"]) | ("PUT" | "DELETE", ["training_runs", ..]) => {
            Err(TinkerError::bad(format!("{method} {route} is not supported by this server: states stay on its disk")))
        }
        _ => {
            let detail = format!("no route {method} /api/v1/{route}: docs/serve.md lists the routes of this server");
            Err(TinkerError { status: StatusCode::NOT_FOUND, detail })
        }
    }
}

impl Tinker {
    pub fn weights_info(&self, request: &read::TinkerPath) -> Replied {
        let path: StatePath = request.tinker_path.parse()?;
        let Saved { base_model, spec, .. } =
            self.service.training().store.saved(&path).map_err(TinkerError::not_found)?;
        Ok(json!({
            "base_model": base_model, "is_lora": true, "lora_rank": spec.rank, "train_unembed": false,
            "train_mlp": spec.train_mlp, "train_attn": spec.train_attn,
        }))
    }

    /// Ends a session.
    pub fn finish(&self, session: &str) -> Replied {
        self.service.close_session(session);
        Ok(json!({}))
    }

    /// The models that have saved something, newest first, and those in training.
    fn runs(&self, query: &str) -> Replied {
        let training = self.service.training();
        let mut ids = training.store.models();
        ids.extend(training.models());
        ids.sort();
        ids.dedup();
        ids.reverse();
        let number = |name: &str| {
            let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.filter(|(key, _)| *key == name).find_map(|(_, value)| value.parse::<usize>().ok())
        };
        // A directory without a saved state is skipped.
        let all: Vec<Value> = ids.iter().filter_map(|id| self.run(id).ok()).collect();
        let (offset, limit, total) = (number("offset").unwrap_or(0), number("limit").unwrap_or(20), all.len());
        let runs: Vec<Value> = all.into_iter().skip(offset).take(limit).collect();
        Ok(json!({"training_runs": runs, "cursor": {"offset": offset, "limit": limit, "total_count": total}}))
    }

    fn run(&self, model: &str) -> Replied {
        let training = self.service.training();
        let saved = training.store.list(model);
        let live = training.info(model).ok();
        let last = saved.last().map(|listed| &listed.saved);
        let (rank, metadata) = match (&live, last) {
            (Some(info), _) => (info.lora.r, training.user_metadata(model)),
            (None, Some(saved)) => (saved.lora.r, saved.user_metadata.clone()),
            (None, None) => {
                let detail = format!("no model {model}: it has saved nothing, and is not in training");
                return Err(TinkerError { status: StatusCode::NOT_FOUND, detail });
            }
        };
        let time = last.map_or(telemetry::system::since_1970().as_secs(), |saved| saved.created);
        let latest = |kind| saved.iter().rev().find(|listed| listed.path.kind == kind).map(checkpoint);
        Ok(json!({
            "training_run_id": model, "base_model": training.base_model, "model_owner": "lockstep", "is_lora": true,
            "lora_rank": rank, "corrupted": false, "last_request_time": rfc3339(time), "user_metadata": metadata,
            "last_checkpoint": latest(Kind::Training), "last_sampler_checkpoint": latest(Kind::Sampler),
        }))
    }
}

fn checkpoint(listed: &Listed) -> Value {
    let Listed { path, saved, bytes } = listed;
    let kind = match path.kind {
        Kind::Training => "training",
        Kind::Sampler => "sampler",
    };
    json!({
        "checkpoint_id": format!("{}/{}", path.kind.name(), path.name), "checkpoint_type": kind,
        "time": rfc3339(saved.created), "tinker_path": path.to_string(), "size_bytes": bytes, "public": false,
        "user_metadata": saved.user_metadata, "expires_at": saved.expires.map(rfc3339),
    })
}
