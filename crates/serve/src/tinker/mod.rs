//! Tinker's API: training and sampling over HTTP, for the stock client (tinker 0.38). The rules are those of
//! [`lockstep::service::training`]; this module reads and writes the wire.
//!
//! Submissions respond with a request id at once. The client asks for the result of the id, and the response is held
//! until the result is known.
//!
//! | file | contents |
//! |---|---|
//! | `read` | JSON and protobuf bodies, read into requests of the service |
//! | `tensors` | the numbers of tensors |
//! | `write` | results, written as JSON and protobuf |
//! | `proto` | the protobuf messages |
//! | `place` | the numbers of requests that are refused |
//! | `packed` | compressed bodies |
//! | `futures` | results, until they are fetched |
//! | `rest` | saved states, listed and deleted |

mod futures;
mod packed;
mod place;
pub(crate) mod proto;
mod read;
mod rest;
mod tensors;
#[cfg(test)]
mod tests;
mod write;

pub use packed::{MOST_TRAINING_BODY, kept};
pub use rest::rest;

use crate::error::{ApiError, answer, with_retry};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::{Answer, Futures, Waited};
use lockstep::service::training::{Cause, Failure, Job, Reply, StatePath, Submitted};
use lockstep::service::{Event, Refused, Service};
use place::Place;
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use write::Sequences;

/// The time for which a request for a result is held; clients end it after 45 seconds.
pub const HOLD: Duration = Duration::from_secs(30);
/// The largest size of a client's data about a model in bytes, which stays as long as the model.
const MOST_METADATA: usize = 64 << 10;
/// Separates the id of a sampler from the numbers of request and sequence in the id of a sequence.
const SEQUENCE: char = '#';

/// The API's state.
pub struct Tinker {
    service: Service,
    futures: Arc<Futures>,
    /// The name by which clients find the tokenizer.
    tokenizer_id: String,
    /// Whether clients are asked to compress data, because they may be on other machines.
    compresses: bool,
}

/// An error response: `{"detail": …}`, which the client shows.
#[derive(Debug)]
pub struct TinkerError {
    status: StatusCode,
    detail: String,
}

impl TinkerError {
    fn bad(detail: impl Into<String>) -> TinkerError {
        TinkerError { status: StatusCode::BAD_REQUEST, detail: detail.into() }
    }

    /// Whether the client does not send the request again.
    fn is_final(&self) -> bool {
        let again = [StatusCode::REQUEST_TIMEOUT, StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS];
        self.status.is_client_error() && !again.contains(&self.status)
    }

    /// The client sends the request again, with the same number.
    fn full() -> TinkerError {
        let detail = "the queue is full: requests of this model, or the data of all models, wait to be computed; send \
                      the request again later";
        TinkerError { status: StatusCode::TOO_MANY_REQUESTS, detail: detail.to_owned() }
    }

    fn not_found(failure: Failure) -> TinkerError {
        TinkerError { status: StatusCode::NOT_FOUND, detail: failure.message }
    }
}

impl From<ApiError> for TinkerError {
    fn from(error: ApiError) -> TinkerError {
        TinkerError { status: error.status, detail: error.message }
    }
}

impl From<String> for TinkerError {
    fn from(detail: String) -> TinkerError {
        TinkerError::bad(detail)
    }
}

impl From<Failure> for TinkerError {
    fn from(failure: Failure) -> TinkerError {
        let status = match failure.cause {
            Cause::Request => StatusCode::BAD_REQUEST,
            Cause::Load => StatusCode::TOO_MANY_REQUESTS,
            Cause::Server => StatusCode::SERVICE_UNAVAILABLE,
        };
        TinkerError { status, detail: failure.message }
    }
}

impl From<Refused> for TinkerError {
    /// The usual fields have the client's names in the message.
    fn from(refused: Refused) -> TinkerError {
        let status = match refused {
            Refused::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
            Refused::Stops => StatusCode::SERVICE_UNAVAILABLE,
            Refused::Ended => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        };
        let detail = refused.to_string();
        let detail = detail.replace("`n` is", "`num_samples` is").replace("`stop_token_ids` has", "`stop` has the id");
        TinkerError { status, detail }
    }
}

impl IntoResponse for TinkerError {
    fn into_response(self) -> Response {
        let mut response = (self.status, answer(&json!({"detail": self.detail}))).into_response();
        with_retry(&mut response);
        response
    }
}

type Replied = Result<Value, TinkerError>;

/// The sampler of a sequence, by the sequence's id.
fn sampler_of(sequence: &str) -> &str {
    sequence.split(SEQUENCE).next().unwrap_or_default()
}

impl Tinker {
    /// `is_local`: all clients are on this machine, and find the tokenizer in the model's directory.
    pub fn new(service: Service, is_local: bool) -> Tinker {
        let dir = service.dir().canonicalize().unwrap_or_default().display().to_string();
        // The client cuts the id at the first colon.
        let finds = is_local && !dir.is_empty() && !dir.contains(':');
        let tokenizer_id = if finds { dir } else { service.training().base_model.clone() };
        let prefix = format!("r{:x}", telemetry::system::since_1970().as_micros());
        Tinker { service, futures: Arc::new(Futures::new(prefix)), tokenizer_id, compresses: !is_local }
    }

    /// Responds to `POST /api/v1/{route}`, except for the results of requests.
    pub fn post(&self, route: &str, headers: &HeaderMap, body: &[u8]) -> Replied {
        let replied = packed::unpack(headers, body).and_then(|body| self.respond(route, &body));
        replied.map_err(|error| if error.is_final() { self.refuse(error, route, headers, body) } else { error })
    }

    /// Uses up the number of a request that was refused, whose body begins with `start`: the client continues with the
    /// next number. Changes nothing for a number that is used up, and for requests without one. Returns the error for
    /// the client: a request whose number is too far ahead is judged when it arrives again.
    pub fn refuse(&self, error: TinkerError, route: &str, headers: &HeaderMap, start: &[u8]) -> TinkerError {
        let start = packed::start(headers, start);
        let place = if is_pass(route) { place::from_message(&start) } else { place::from_json(&start) };
        let is_used_up =
            place.is_none_or(|Place { model, number, is_data }| self.service.refuse((&model, number), is_data));
        if is_used_up { error } else { TinkerError::full() }
    }

    fn respond(&self, route: &str, body: &[u8]) -> Replied {
        match route {
            // Chunks of a pass would arrive in any order, and gain nothing on one machine.
            "client/config" => Ok(json!({"parallel_fwdbwd_chunks": false, "sample_join_sampling_session": true,
                "proto_compress_fwdbwd": self.compresses})),
            "client/dynamic_config" => Ok(json!({"sample_cancel_enabled": true})),
            "telemetry" => Ok(json!({"status": "accepted"})),
            "create_session" => self.create_session(),
            "session_heartbeat" => self.heartbeat(&read::json(body)?),
            "create_model" => self.create_model(read::json(body)?, body),
            "get_info" => self.info(&read::json(body)?),
            _ if is_pass(route) => self.pass(body),
            "optim_step" => self.numbered(body, body, |body| read::json::<read::OptimStep>(body)?.job()),
            "save_weights" => self.numbered(body, body, |body| read::json::<read::SaveWeights>(body)?.job()),
            "save_weights_for_sampler" => {
                // A client that tries again chooses another number of the sampler.
                let mut known: Value = read::json(body)?;
                known.as_object_mut().map(|object| object.remove("sampling_session_seq_id"));
                let identity = known.to_string();
                self.numbered(body, identity.as_bytes(), |body| read::json::<read::SaveForSampler>(body)?.job())
            }
            "load_weights" => self.load(body),
            "create_sampling_session" => self.create_sampler(read::json(body)?),
            "join_sampling_session" => {
                let read::SamplerId { sampling_session_id } = read::json(body)?;
                let number = self.service.training().join(&sampling_session_id).map_err(TinkerError::not_found)?;
                Ok(json!({"client_counter": number}))
            }
            "asample" => self.sample(read::json(body)?, body),
            "cancel_future" => {
                let read::RequestId { request_id } = read::json(body)?;
                if let Some(id) = self.futures.parse(&request_id) {
                    self.futures.cancel(id);
                }
                Ok(json!({}))
            }
            "weights_info" => self.weights_info(&read::json(body)?),
            "save_weights_external" => self.numbered(body, body, |_| Err(unsupported(route))),
            "create_custom_loss" | "copy_weights" | "auth/token" => Err(TinkerError::bad(unsupported(route))),
            _ if route.starts_with("training_runs/") => Err(TinkerError::bad(unsupported(route))),
            _ => {
                let detail = format!("no route /api/v1/{route}: docs/serve.md lists the routes of this server");
                Err(TinkerError { status: StatusCode::NOT_FOUND, detail })
            }
        }
    }

    fn create_session(&self) -> Replied {
        let id = self.service.training().open_session();
        Ok(json!({"type": "create_session", "session_id": id, "warning_message":
            "this server adapts the decoder layers and never the head: train_unembed is taken as false"}))
    }

    fn heartbeat(&self, request: &read::SessionId) -> Replied {
        if self.service.training().heartbeat(&request.session_id) {
            return Ok(json!({"type": "session_heartbeat"}));
        }
        let detail = format!("no session {}: it has ended", request.session_id);
        Err(TinkerError { status: StatusCode::GONE, detail })
    }

    fn create_model(&self, request: read::CreateModel, body: &[u8]) -> Replied {
        self.check_base(&request.base_model)?;
        if let Some(read::Kind { kind }) = request.optimizer_config.filter(|config| config.kind != "adamw") {
            let detail = format!("the optimizer `{kind}` is not supported: this server has adamw");
            return Err(TinkerError::bad(detail));
        }
        let place = (&*request.session_id, request.model_seq_id);
        self.create(place, request.user_metadata, Job::Create(request.lora_config.spec()?), body)
    }

    fn check_base(&self, name: &str) -> Result<(), TinkerError> {
        let own = &self.service.training().base_model;
        if name == own {
            return Ok(());
        }
        Err(TinkerError::bad(format!(
            "this server has the base model {own}, not {name}: start it with --model {name}=DIR"
        )))
    }

    /// Submits the first request of a model.
    fn create(&self, place: (&str, u64), user_metadata: Value, job: Job, body: &[u8]) -> Replied {
        let size = user_metadata.to_string().len();
        if size > MOST_METADATA {
            let detail = format!("`user_metadata` has {size} bytes: send at most {MOST_METADATA}");
            return Err(TinkerError::bad(detail));
        }
        let id = self.futures.reserve();
        let model = format!("{}:train:{}", place.0, place.1);
        let reply = self.reply(id, &model);
        let created = self.service.create(place, user_metadata, (id, fingerprint(body)), job, reply);
        let submitted = created.map(|(_, submitted)| submitted);
        self.accepted(id, submitted, json!({"model_id": model}))
    }

    /// Submits a request with a number of its model.
    fn numbered(&self, body: &[u8], identity: &[u8], job: impl FnOnce(&[u8]) -> Result<Job, String>) -> Replied {
        let read::OfModel { model_id, seq_id } = read::json(body)?;
        self.submit((&model_id, seq_id), identity, job(body)?)
    }

    fn submit(&self, (model, number): (&str, u64), identity: &[u8], job: Job) -> Replied {
        let id = self.futures.reserve();
        let reply = self.reply(id, model);
        let submitted = self.service.submit((model, number), (id, fingerprint(identity)), job, reply);
        self.accepted(id, submitted, json!({"model_id": model}))
    }

    /// Completes the request `id` of a model.
    fn reply(&self, id: u64, model: &str) -> Reply {
        self.futures.belongs(id, model.split(':').next().unwrap_or_default().into());
        let (futures, model) = (self.futures.clone(), model.to_owned());
        Box::new(move |result| futures.complete(id, write::done(&model, result)))
    }

    /// The response to a submission.
    fn accepted(&self, id: u64, submitted: Result<Submitted, Failure>, mut extra: Value) -> Replied {
        if submitted != Ok(Submitted::New) {
            self.futures.release(id);
        }
        let id = match submitted {
            Ok(Submitted::New) => id,
            Ok(Submitted::Repeated(first)) => first,
            Ok(other) => {
                let detail = match other {
                    Submitted::Full => return Err(TinkerError::full()),
                    Submitted::Old => "the seq_id is too old",
                    _ => "another request has this seq_id",
                };
                return Err(TinkerError { status: StatusCode::UNPROCESSABLE_ENTITY, detail: detail.to_owned() });
            }
            Err(failure) if failure.cause == Cause::Request => return Err(TinkerError::not_found(failure)),
            Err(failure) => return Err(failure.into()),
        };
        extra["request_id"] = json!(self.futures.name(id));
        Ok(extra)
    }

    fn pass(&self, body: &[u8]) -> Replied {
        let request = read::pass(body)?;
        let (model, number) = (request.model_id.clone(), u64::try_from(request.seq_id).unwrap_or(0));
        self.submit((&model, number), body, read::pass_job(request)?)
    }

    fn load(&self, body: &[u8]) -> Replied {
        let request: read::LoadWeights = read::json(body)?;
        let (Some(session), Some(number)) = (request.session_id.clone(), request.model_seq_id) else {
            return self.numbered(body, body, |_| request.job());
        };
        let metadata = request.user_metadata.clone();
        self.create((&session, number), metadata, request.job()?, body)
    }

    fn info(&self, request: &read::OfModel) -> Replied {
        let training = self.service.training();
        let info = training.info(&request.model_id).map_err(TinkerError::not_found)?;
        let name = &training.base_model;
        Ok(json!({
            "type": "get_info", "model_id": request.model_id, "model_name": name, "is_lora": true,
            "lora_rank": info.lora.r, "optimizer_config": {"type": "adamw"},
            "model_data": {"model_name": name, "arch": self.service.model_type(),
                           "tokenizer_id": self.tokenizer_id},
        }))
    }

    fn create_sampler(&self, request: read::CreateSampler) -> Replied {
        let path: Option<StatePath> = request.model_path.as_deref().map(str::parse).transpose()?;
        if let (None, Some(base)) = (&path, &request.base_model) {
            self.check_base(base)?;
        }
        let sampler = self.service.sampler(&request.session_id, request.sampling_session_seq_id, path.as_ref());
        Ok(json!({"type": "create_sampling_session", "sampling_session_id": sampler.map_err(TinkerError::not_found)?}))
    }

    fn sample(&self, request: read::Sample, body: &[u8]) -> Replied {
        let (id, number, topk) = (request.sampling_session_id.clone(), request.seq_id, request.topk_sample_logprobs);
        let (topk_prompt, last_n) = (request.topk_prompt_logprobs, request.prompt_logprobs_last_n);
        let generate = request.generate()?;
        let most = self.service.sizes().most_open();
        if generate.n > most {
            return Err(TinkerError::bad(format!("`num_samples` is {}: expected 1 to {most}", generate.n)));
        }
        let training = self.service.training();
        let sampler = training.sampler(&id).map_err(TinkerError::not_found)?;
        let names: Vec<String> =
            (0..generate.n).map(|sample| format!("{id}{SEQUENCE}{number}{SEQUENCE}{sample}")).collect();
        let extra = json!({"sample_sequence_ids": names});
        let future = self.futures.reserve();
        let submitted = training.sample(&id, number, (future, fingerprint(body)));
        if submitted != Ok(Submitted::New) {
            return self.accepted(future, submitted, extra);
        }
        let mut sequences = Sequences::new(generate.n, generate.prompts[0].len(), generate.prompt_logprobs);
        (sequences.topk, sequences.topk_prompt, sequences.last_n) = (topk, topk_prompt, last_n);
        let (sequences, futures) = (Mutex::new(sequences), self.futures.clone());
        let deliver = move |event| {
            let mut sequences = sequences.lock().unwrap_or_else(PoisonError::into_inner);
            match event {
                Event::Token(token) => sequences.push(token),
                Event::Ended { prompt_logprobs, cached_tokens, .. } => {
                    futures.complete(future, Answer::Proto(sequences.response(&prompt_logprobs, cached_tokens)));
                }
                Event::Failed(error) => futures.complete(future, Answer::Failed { error, category: "server" }),
                Event::Cancelled => futures.complete(future, Answer::Gone),
            }
            true
        };
        match self.service.sample(&sampler, number, generate, deliver) {
            Ok(ticket) => self.futures.hold(future, ticket, sampler.session()),
            Err(refused) => {
                self.futures.release(future);
                training.forget_sample(&id, number);
                return Err(refused.into());
            }
        }
        self.accepted(future, submitted, extra)
    }

    /// Ends all waits for results, because nothing more is computed.
    pub fn stop(&self) {
        self.futures.stop();
    }

    /// Responds to a request for a result, once it is known.
    pub async fn retrieve(&self, body: &[u8]) -> Response {
        let request: read::RequestId = match read::json(body) {
            Ok(request) => request,
            Err(detail) => return TinkerError::bad(detail).into_response(),
        };
        let name = request.request_id;
        let waited = match self.futures.parse(&name) {
            Some(id) => {
                if let Some(session) = self.futures.session(id) {
                    self.service.training().waits(&session);
                }
                self.futures.wait(id, HOLD).await
            }
            None => Waited::Gone,
        };
        match waited {
            Waited::Ready(ready) => match &*ready {
                Answer::Json(value) => answer(value),
                Answer::Proto(bytes) => {
                    ([(header::CONTENT_TYPE, "application/x-protobuf")], bytes.clone()).into_response()
                }
                Answer::Failed { error, category } => answer(&json!({"error": error, "category": category})),
                Answer::Gone => gone(&name),
            },
            // With status 200 the client would print a warning each time.
            Waited::NotYet => {
                let body = json!({"type": "try_again", "request_id": name, "queue_state": "active"});
                (StatusCode::REQUEST_TIMEOUT, answer(&body)).into_response()
            }
            Waited::Gone => gone(&name),
        }
    }
}

/// The response to a client whose request is not known, which sends samples again.
fn gone(name: &str) -> Response {
    let detail = format!(
        "no request {name}: its result was dropped, its session has ended or was silent, or it belongs to an earlier \
         run"
    );
    TinkerError { status: StatusCode::GONE, detail }.into_response()
}

/// Whether the body of a route is a `ForwardBackwardRequest`.
fn is_pass(route: &str) -> bool {
    ["forward_backward", "forward"].contains(&route)
}

fn unsupported(route: &str) -> String {
    format!("{route} is not supported by this server: docs/serve.md has a list")
}

/// Recognises a request that arrives again.
fn fingerprint(bytes: &[u8]) -> u128 {
    let mut hash = DefaultHasher::new();
    bytes.hash(&mut hash);
    u128::from(hash.finish()) << 64 | bytes.len() as u128
}
