//! The service: generates completions for many clients at once, as a typed interface without HTTP.
//!
//! One thread, the owner, has the weights, the adapters and the engine. Clients send it requests over a channel, and it
//! sends events back: each token as soon as it is drawn, then the end. The tokens of all requests are computed in the
//! same engine steps. The bits of a completion depend only on its own request ([`Generate`]), not on other requests.
//!
//! | file | contents |
//! |---|---|
//! | `request` | requests, their checks, and the reasons to refuse one |
//! | `load` | the model, its adapters and the sizes of the engine |
//! | `owner` | the owner's loop |
//! | `text` | the text of a completion, token by token, cut before its stop string |
//! | [`training`] | models that clients train |

mod load;
mod owner;
mod request;
#[cfg(test)]
mod tests;
mod text;
pub mod training;

pub use self::load::{NamedDir, ServiceOptions, ServiceSizes};
pub use self::owner::{Event, Ranked, Status, Token};
pub use self::request::{Generate, Refused};
pub use self::text::{CompletionText, TextOptions};
pub use model::chat::{ToolCall, ToolFormat, ToolParser};
pub use model::{Chat, FinishReason, did_you_mean};

use self::load::Loaded;
use self::owner::{Command, Deliver, Owner, Part, Slots, Undelivered};
use self::training::{Failure, Job, Learners, Reply, Sampler, StatePath, Submitted, Training};
use kernels::Context;
use model::chat::ChatTemplate;
use model::tokenizer::Tokenizer;
use model::{GroupId, Prompt};
use rollout::{ModelVersion, Request};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Requests without a seed are numbered from here on, so that their random numbers differ from those of every request
/// with the server's seed.
const UNSEEDED: u64 = 1 << 63;

/// A running service. Clones share one owner thread, which ends after the last clone and the last [`Ticket`] are gone.
#[derive(Clone)]
pub struct Service(Arc<Shared>);

struct Shared {
    models: Vec<(String, ModelVersion)>,
    description: String,
    tokenizer: Arc<Tokenizer>,
    chat: Option<Arc<ChatTemplate>>,
    tools: ToolSupport,
    eos_ids: Vec<u32>,
    /// The number of rows of the embedding: ids are smaller.
    vocab: usize,
    sizes: ServiceSizes,
    seed: u64,
    commands: Sender<Command>,
    /// The number of completions that have not ended.
    open: Arc<AtomicUsize>,
    /// The number of requests by name so far: the identity of a request without a seed.
    arrivals: AtomicU64,
    /// The number of all requests so far.
    numbers: AtomicU64,
    status: Arc<Mutex<Status>>,
    stops: AtomicBool,
    training: Arc<Training>,
    model_type: &'static str,
    /// The directory of the base model.
    dir: PathBuf,
}

/// How a model calls tools, according to its chat template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolSupport {
    /// There is no chat template, or it does not read tools.
    Unread,
    /// The template reads tools and writes calls in an unknown format, so calls stay text.
    Text,
    /// Calls can be separated from text.
    Parsed(ToolFormat),
}

impl ToolSupport {
    fn of(template: &ChatTemplate) -> ToolSupport {
        match template.tool_format() {
            _ if !template.reads_tools() => ToolSupport::Unread,
            Some(format) => ToolSupport::Parsed(format),
            None => ToolSupport::Text,
        }
    }
}

impl Service {
    /// Loads the model and its adapters, allocates the engine, and starts the owner thread. `warn` gets the library's
    /// warnings.
    pub fn start(ctx: &Context, options: &ServiceOptions, warn: impl FnMut(&str)) -> anyhow::Result<Service> {
        let loaded = Loaded::new(ctx, options, warn)?;
        let Loaded { policy, models, sizes, .. } = &loaded;
        let (commands, received) = channel();
        let status = Arc::default();
        let name = models[0].0.clone();
        let training =
            Training::new(options.state.clone(), policy.dir.clone(), name, options.seed, models.len() as u64);
        let training = Arc::new(training);
        let shared = Shared {
            models: models.clone(),
            description: policy.describe(ctx),
            tokenizer: policy.tokenizer.clone(),
            chat: policy.chat.clone(),
            tools: policy.chat.as_deref().map_or(ToolSupport::Unread, ToolSupport::of),
            eos_ids: policy.eos_ids.clone(),
            vocab: policy.config().vocab_size,
            sizes: *sizes,
            seed: options.seed,
            commands,
            open: Arc::default(),
            arrivals: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            status: Arc::clone(&status),
            stops: AtomicBool::new(false),
            training: training.clone(),
            model_type: policy.config().family.model_type,
            dir: policy.dir.clone(),
        };
        let owner = Owner::new(loaded, Learners::new(ctx.clone(), training), received, status);
        std::thread::Builder::new().name("engine".to_owned()).spawn(move || owner.run())?;
        Ok(Service(Arc::new(shared)))
    }

    /// The names of the models: the base first, then its adapters.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.0.models.iter().map(|(name, _)| name.as_str())
    }

    /// One line about the model, the arithmetic and the threads.
    pub fn description(&self) -> &str {
        &self.0.description
    }

    /// The type of the model, as in its `config.json`.
    pub fn model_type(&self) -> &str {
        self.0.model_type
    }

    /// The directory of the model.
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// The sizes of the engine and of the queue.
    pub fn sizes(&self) -> ServiceSizes {
        self.0.sizes
    }

    /// Whether the model has a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.0.chat.is_some()
    }

    /// How the model calls tools.
    pub fn tools(&self) -> ToolSupport {
        self.0.tools
    }

    /// Counts of the owner, after its latest step.
    pub fn status(&self) -> Status {
        let open = self.open_completions();
        Status { open, ..*self.0.status.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// The number of completions that have not ended.
    pub fn open_completions(&self) -> usize {
        self.0.open.load(Ordering::Acquire)
    }

    /// Whether the owner thread runs. It ends early only if the engine panics.
    pub fn is_running(&self) -> bool {
        // The owner has the other reference.
        Arc::strong_count(&self.0.status) > 1
    }

    /// From now on, requests are refused. Those that were accepted are computed to their end.
    pub fn stop(&self) {
        self.0.stops.store(true, Ordering::Release);
    }

    /// Whether requests are refused because of [`stop`](Self::stop).
    pub fn is_stopping(&self) -> bool {
        self.0.stops.load(Ordering::Acquire)
    }

    /// Whether completions or requests for training are being computed.
    pub fn is_busy(&self) -> bool {
        self.is_running() && (self.open_completions() > 0 || self.training().is_busy())
    }

    /// The token ids of a text, with the special tokens that the tokenizer adds around it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Refused> {
        self.check_length(text)?;
        self.0.tokenizer.encode(text).map_err(|error| Refused::field("prompt", error.to_string()))
    }

    /// The token ids of a conversation, rendered by the model's chat template.
    pub fn encode_chat(&self, chat: &Chat<'_>) -> Result<Vec<u32>, Refused> {
        let Some(template) = &self.0.chat else {
            let name = &self.0.models[0].0;
            let message = format!("the model `{name}` has no chat template: use /v1/completions with a prompt");
            return Err(Refused::field("messages", message));
        };
        let wrong = |error: model::Error| Refused::field("messages", error.to_string());
        let text = template.render(chat).map_err(wrong)?;
        self.check_length(&text)?;
        // The template's output already has the special tokens.
        self.0.tokenizer.encode_rendered(&text).map_err(wrong)
    }

    /// Refuses a text that is certainly too long, without encoding it.
    fn check_length(&self, text: &str) -> Result<(), Refused> {
        let most = self.0.sizes.max_model_len;
        if self.0.tokenizer.is_beyond(text.len(), most) {
            return Err(Refused::ContextLength(format!(
                "This model's maximum context length is {most} tokens, but a prompt of {} bytes has more. Shorten the \
                 prompt.",
                text.len()
            )));
        }
        Ok(())
    }

    /// The text of a completion of this prompt, to be filled token by token.
    pub fn text(&self, prompt: &[u32], options: &TextOptions) -> CompletionText {
        CompletionText::new(&self.0.tokenizer, prompt, options)
    }

    /// The ids that end a completion of this request.
    pub fn stop_ids(&self, generate: &Generate) -> Vec<u32> {
        let own = generate.stop_token_ids.iter().copied();
        if generate.ignore_eos { own.collect() } else { self.0.eos_ids.iter().copied().chain(own).collect() }
    }

    /// Accepts a request, or refuses it at once. `deliver` gets its events, on the owner's thread; if it returns false,
    /// the request is cancelled, as it is if the ticket is dropped.
    pub fn generate(
        &self,
        generate: Generate,
        deliver: impl Fn(Event) -> bool + Send + Sync + 'static,
    ) -> Result<Ticket, Refused> {
        let shared = &*self.0;
        let Some((_, version)) = shared.models.iter().find(|(name, _)| *name == generate.model) else {
            let known = self.models().map(str::to_owned).collect();
            return Err(Refused::NoSuchModel { model: generate.model, known });
        };
        let group = || UNSEEDED | shared.arrivals.fetch_add(1, Ordering::Relaxed) << 16;
        self.begin(generate, (*version, None), None, (shared.seed, group), deliver)
    }

    /// Accepts the request `number` of a sampler, as [`generate`](Self::generate) does. Without a seed, the random
    /// numbers are those of this request of this sampler. It is cancelled if the client's session ends.
    pub fn sample(
        &self,
        sampler: &Sampler,
        number: u64,
        generate: Generate,
        deliver: impl Fn(Event) -> bool + Send + Sync + 'static,
    ) -> Result<Ticket, Refused> {
        let refused = |failure: Failure| Refused::field("sampling_session_id", failure.message);
        let weights = match sampler.weights().map_err(refused)? {
            Some(weights) => weights,
            None => {
                let sampler = sampler.id.clone();
                self.ask(move |reply| Command::Reload { sampler, reply })?.map_err(refused)?
            }
        };
        let client = Some((sampler.session(), Instant::now()));
        self.begin(generate, weights, client, (sampler.seed, || UNSEEDED | number), deliver)
    }

    /// Begins a request. If it has no seed, `noise` is the seed and the number of the first prompt.
    fn begin(
        &self,
        generate: Generate,
        (version, snapshot): training::Weights,
        client: Option<(Arc<str>, Instant)>,
        (seed, group): (u64, impl FnOnce() -> u64),
        deliver: impl Fn(Event) -> bool + Send + Sync + 'static,
    ) -> Result<Ticket, Refused> {
        let shared = &*self.0;
        self.accepts()?;
        let longest = generate.check(shared.vocab, &shared.sizes)?;
        let sampling = Arc::new(generate.sampling(self.stop_ids(&generate), longest, seed));
        let slots = Slots::take(&shared.open, generate.completions(), shared.sizes.most_open())?;
        let number = shared.numbers.fetch_add(1, Ordering::Relaxed);
        let deliver: Arc<Deliver> = Arc::new(deliver);
        // The random numbers of a draw depend on the seed, this number, the index of the sample and that of the token.
        let group = if generate.seed.is_some() { 0 } else { group() };
        let n = generate.n;
        let parts = generate.prompts.into_iter().enumerate().zip(slots.split(n)).map(|((place, ids), slots)| {
            let request = Request::new(GroupId(group | place as u64), Prompt::new(ids), n, sampling.clone());
            Part { place, request: Request { model: Some(version), ..request }, slots }
        });
        let parts: Vec<Part> = parts.collect();
        shared
            .commands
            .send(Command::Generate { number, parts, snapshot, client, deliver: Undelivered::new(deliver) })
            .map_err(|_| Refused::Ended)?;
        Ok(Ticket { number, commands: shared.commands.clone() })
    }

    /// Sessions, models in training, samplers and saved states.
    pub fn training(&self) -> &Training {
        &self.0.training
    }

    /// See [`Training::create`].
    pub fn create(
        &self,
        (session, number): (&str, u64),
        user_metadata: serde_json::Value,
        identity: (u64, u128),
        job: Job,
        reply: Reply,
    ) -> Result<(String, Submitted), Failure> {
        self.accepts()?;
        let created = self.training().create((session, number), user_metadata, identity, job, reply);
        self.wake();
        created
    }

    /// See [`Training::submit`].
    pub fn submit(
        &self,
        place: (&str, u64),
        identity: (u64, u128),
        job: Job,
        reply: Reply,
    ) -> Result<Submitted, Failure> {
        self.accepts()?;
        let submitted = self.training().submit(place, identity, job, reply);
        self.wake();
        submitted
    }

    /// Ends a session: its models are freed once their requests are done, and its open sequences are cancelled. Saved
    /// states stay, and samplers for an hour. False: there is no such session.
    pub fn close_session(&self, session: &str) -> bool {
        let is_closed = self.training().close_session(session);
        let _ = self.0.commands.send(Command::Left);
        is_closed
    }

    /// Lets a saved state expire after a number of seconds from now, or never.
    pub fn expire(&self, path: &StatePath, ttl_seconds: Option<u64>) -> Result<(), Failure> {
        self.training().store.expire(path, ttl_seconds)?;
        self.wake();
        Ok(())
    }

    /// Uses up the number of a request that was refused. `is_data`: the request had data for the next step, which
    /// therefore fails. False: the number is too far ahead, and is not used up, so the request must arrive again.
    pub fn refuse(&self, place: (&str, u64), is_data: bool) -> bool {
        let is_used_up = self.training().refuse(place, is_data);
        self.wake();
        is_used_up
    }

    /// The id of the sampler `number` of a session: of the base model, or of a saved adapter, which the owner loads.
    pub fn sampler(&self, session: &str, number: u64, path: Option<&StatePath>) -> Result<String, Failure> {
        let Shared { models, training, .. } = &*self.0;
        let Some(path) = path else { return training.sampler_of_base(session, number, models[0].1) };
        let (session, path) = (session.to_owned(), path.clone());
        self.ask(move |reply| Command::Sampler { session, number, path, reply })?
    }

    /// Sends the owner a command that has a reply, and waits for the reply.
    fn ask<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command) -> Result<T, Refused> {
        let (reply, received) = sync_channel(1);
        self.0.commands.send(command(reply)).map_err(|_| Refused::Ended)?;
        received.recv().map_err(|_| Refused::Ended)
    }

    /// Whether new requests are accepted.
    fn accepts(&self) -> Result<(), Refused> {
        if self.is_stopping() {
            return Err(Refused::Stops);
        }
        if self.is_running() { Ok(()) } else { Err(Refused::Ended) }
    }

    /// Wakes the owner, which may be waiting for commands. An owner that has ended needs none.
    fn wake(&self) {
        let _ = self.0.commands.send(Command::Train);
    }
}

/// The claim to a request's results. Dropping the ticket cancels the request, and its KV-cache pages become free.
pub struct Ticket {
    number: u64,
    commands: Sender<Command>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // An owner that has ended has no requests.
        let _ = self.commands.send(Command::Cancel { number: self.number });
    }
}

/// The default name of the model `name`: a directory's last part, or the whole Hub id.
pub fn model_name(name: &str) -> String {
    let last = Path::new(name).file_name().filter(|_| Path::new(name).is_dir());
    last.map_or_else(|| name.to_owned(), |last| last.to_string_lossy().into_owned())
}
