//! The owner's part of training: the adapter, gradient and optimizer of each model, and the requests being computed.
//!
//! [`Learners::advance`] computes one micro-batch, or one other request, of the model whose turn it is.

use super::Training;
use super::failure::Failure;
use super::job::{AdapterSpec, Compared, Done, Job, ModelInfo, Passed, Pending, Replies};
use super::path::{Kind, StatePath, check_name};
use super::queue::Next;
use super::samplers::{Weights as SamplerWeights, noise};
use super::store::{Saved, expiry, now};
use crate::rollouts::lineage::Lineage;
use kernels::Context;
use model::{Adapter, LoraConfig, ModelView, TargetModules, WeightSlots, Weights};
use rollout::ModelVersion;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use train::Passes;
use train::datums::{AdamParams, Datum, DatumTrainer, Part, TokenLoss, logprobs, split};
use twox_hash::XxHash3_128;
use zerocopy::IntoBytes;

/// LoRA's alpha of all adapters; clients cannot choose it.
const ALPHA: f64 = 32.0;
/// The maximum number of tokens of a micro-batch.
const MICRO_BATCH_TOKENS: usize = 2048;
/// The largest rank.
const MOST_RANK: usize = 512;
/// The interval at which ended sessions and waits are noticed.
const TICK: Duration = Duration::from_millis(500);

/// All models in training.
pub struct Learners {
    ctx: Context,
    shared: Arc<Training>,
    passes: Passes,
    learners: HashMap<String, Learner>,
    tidied: Instant,
}

/// A model in training.
struct Learner {
    adapter: WeightSlots<Adapter>,
    trainer: DatumTrainer,
    spec: AdapterSpec,
    /// The lineage of the weights and of the gradient since the last step.
    lineage: Lineage,
    /// The lineage of the weights.
    weights: Lineage,
    /// The number of samplers of the current weights.
    samplers: u64,
    /// Why the gradient is incomplete. The next step fails.
    spoilt: Option<String>,
    compared: Compared,
    running: Option<Running>,
}

/// A pass that is being computed.
struct Running {
    datums: Vec<Datum>,
    loss: Option<TokenLoss>,
    parts: std::vec::IntoIter<Part>,
    /// Whether the log-probabilities of the client are those of the current weights.
    is_on_policy: bool,
    passed: Passed,
    reply: Replies,
}

impl Learners {
    pub fn new(ctx: Context, shared: Arc<Training>) -> Learners {
        let passes = Passes::new(ctx.memory(), false);
        Learners { ctx, shared, passes, learners: HashMap::new(), tidied: Instant::now() }
    }

    /// Whether [`advance`](Self::advance) has something to compute.
    pub fn is_idle(&self) -> bool {
        self.learners.values().all(|learner| learner.running.is_none()) && !self.shared.is_ready()
    }

    /// Ends the sessions and deletes the saved states whose time has come. Returns the time for which nothing more
    /// happens without a further request; `None`: for ever.
    pub fn tidy(&mut self) -> Option<Duration> {
        self.tidied = Instant::now();
        let is_free = |model: &str| self.learners.get(model).is_none_or(|learner| learner.running.is_none());
        for model in self.shared.retire(is_free) {
            self.learners.remove(&model);
        }
        let expires = self.shared.store.sweep();
        // A session may end, or give up a wait for a request.
        let session = self.shared.has_sessions().then_some(TICK);
        session.into_iter().chain(expires).min()
    }

    /// Computes one micro-batch or one request, if there is any.
    pub fn advance(&mut self, base: &Weights) {
        if self.tidied.elapsed() > TICK {
            self.tidy();
        }
        let (start, mut tokens) = (Instant::now(), 0);
        let is_free = |model: &str| self.learners.get(model).is_none_or(|learner| learner.running.is_none());
        let next = self.shared.next(is_free);
        let mut is_idle = next.is_none();
        match next {
            Some((model, Next::Missing { numbers, is_data })) => {
                let why = match numbers.end - numbers.start {
                    1 => format!("request {} of this model was refused or never arrived", numbers.start),
                    _ => format!("requests {} to {} of this model never arrived", numbers.start, numbers.end - 1),
                };
                if let Some(learner) = self.learners.get_mut(&model).filter(|_| is_data) {
                    learner.spoil(&why);
                }
            }
            Some((model, Next::Job(pending))) => self.begin(base, &model, pending),
            None => {}
        }
        // All passes take turns. (The map's order does not matter: models share no state but the tape.)
        for (model, learner) in self.learners.iter_mut().filter(|(_, learner)| learner.running.is_some()) {
            tokens += learner.pass(&mut self.passes, &self.ctx, base, &self.shared);
            self.shared.touch(model);
            is_idle = false;
        }
        if !is_idle {
            self.shared.computed(tokens, start.elapsed());
        }
        self.shared.set_busy(!self.is_idle());
    }

    fn begin(&mut self, base: &Weights, model: &str, pending: Pending) {
        let Pending { job, reply, .. } = pending;
        let result = match job {
            Job::Create(spec) => self.create(base, model, spec).map(|()| Done::Created),
            Job::Load { path, optimizer } => self.load(base, model, &path, optimizer).map(Done::Loaded),
            job => match self.learners.get_mut(model) {
                None => Err(Failure::request(format!("the model {model} could not be created"))),
                Some(learner) => match job {
                    Job::Pass { datums, loss, samplers, needs_on_policy } => {
                        let is_on_policy = is_on_policy(&self.shared, model, learner, &samplers);
                        match is_on_policy {
                            Err(why) if needs_on_policy => {
                                learner.spoil(&why);
                                Err(Failure::request(why))
                            }
                            _ => return learner.start(base, datums, loss, is_on_policy.is_ok(), reply),
                        }
                    }
                    Job::Step(params) => learner.step(&self.ctx, params),
                    Job::Save { name, overwrite, ttl_seconds } => {
                        save(&self.shared, learner, (model, Kind::Training, name), overwrite, ttl_seconds)
                    }
                    Job::SaveForSampler { name, ttl_seconds } => {
                        save(&self.shared, learner, (model, Kind::Sampler, name), true, ttl_seconds)
                    }
                    Job::Sampler { number } => {
                        learner.samplers += 1;
                        let seed = noise(self.shared.seed, &learner.lineage.0, learner.samplers);
                        let adapter = learner.adapter.hold();
                        let of = (model, learner.weights);
                        let id = self.shared.add_snapshot(of, number, base.version, adapter, seed);
                        id.map(Done::Sampler)
                    }
                    Job::Create(_) | Job::Load { .. } => unreachable!("matched above"),
                },
            },
        };
        match &result {
            Ok(done) => self.shared.succeeded(done),
            // A later load that fails leaves the model as it was.
            Err(_) if !self.learners.contains_key(model) => self.shared.not_created(model),
            Err(_) => {}
        }
        reply.send(result);
    }

    fn create(&mut self, base: &Weights, model: &str, spec: AdapterSpec) -> Result<(), Failure> {
        if !(1..=MOST_RANK).contains(&spec.rank) {
            let full = if spec.rank == 0 { " (full fine-tuning is not supported)" } else { "" };
            return Err(Failure::request(format!("rank {}: expected 1 to {MOST_RANK}{full}", spec.rank)));
        }
        let lora = LoraConfig { r: spec.rank, alpha: ALPHA, target_modules: targets(&spec)?, ..LoraConfig::default() };
        let number = model.rsplit(':').next().unwrap_or_default();
        let facts = serde_json::to_vec(&spec).map_err(Failure::server)?;
        let parts: [&[u8]; 4] =
            [&self.shared.seed.to_le_bytes(), self.shared.base_model.as_bytes(), number.as_bytes(), &facts];
        let lineage = Lineage::of(&parts);
        let seed = spec.seed.unwrap_or_else(|| noise(self.shared.seed, &lineage.0, u64::MAX));
        let adapter = Adapter::new(self.ctx.memory(), base, &lora, seed).map_err(Failure::request_error)?;
        let learner = self.learner(base, spec, lineage, adapter)?;
        self.add(model, learner);
        Ok(())
    }

    /// Creates the model from a saved state, or overwrites its state.
    fn load(&mut self, base: &Weights, model: &str, path: &str, optimizer: bool) -> Result<StatePath, Failure> {
        let path: StatePath = path.parse()?;
        if optimizer && path.kind == Kind::Sampler {
            return Err(Failure::request(format!(
                "{path} was saved for sampling, without the optimizer's moments: load a path with /weights/, or set \
                 optimizer = false"
            )));
        }
        let saved = self.shared.store.saved(&path)?;
        let adapter = self.read(base, &path, &saved)?;
        let lineage = if optimizer { saved.lineage } else { Lineage::of(&[&saved.lineage.0, b"without moments"]) };
        let mut learner = self.learner(base, saved.spec, lineage, adapter)?;
        learner.samplers = saved.samplers;
        if optimizer {
            self.shared.store.read_moments(&path, learner.trainer.resume(saved.steps))?;
        }
        self.add(model, learner);
        Ok(path)
    }

    /// Makes the sampler `number` of a session, of a saved adapter.
    pub fn load_sampler(&self, base: &Weights, place: (&str, u64), path: &StatePath) -> Result<String, Failure> {
        let version = ModelVersion { base: base.version, adapter: None };
        self.shared.sampler_of_saved(place, path, version, |saved| self.read(base, path, saved))
    }

    /// The weights of a sampler, which are read again if they were released.
    pub fn reload_sampler(&self, base: &Weights, id: &str) -> Result<SamplerWeights, Failure> {
        self.shared.reload(id, |path, saved| self.read(base, path, saved))
    }

    /// See [`Training::has_left`].
    pub fn has_left(&self, session: &str, requested: Instant) -> bool {
        self.shared.has_left(session, requested)
    }

    fn read(&self, base: &Weights, path: &StatePath, saved: &Saved) -> Result<Adapter, Failure> {
        self.shared.store.load(path, saved, self.ctx.memory(), (&self.shared.base_model, base))
    }

    fn learner(
        &self,
        base: &Weights,
        spec: AdapterSpec,
        lineage: Lineage,
        adapter: Adapter,
    ) -> Result<Learner, Failure> {
        let memory = self.ctx.memory();
        Ok(Learner {
            trainer: DatumTrainer::new(memory, &base.config, &adapter.lora).map_err(Failure::server)?,
            adapter: WeightSlots::new(memory, adapter),
            spec,
            lineage,
            weights: lineage,
            samplers: 0,
            spoilt: None,
            compared: Compared::default(),
            running: None,
        })
    }

    fn add(&mut self, model: &str, learner: Learner) {
        let info = ModelInfo { lora: learner.adapter.current().lora.clone(), spec: learner.spec };
        self.shared.created(model, info);
        self.learners.insert(model.to_owned(), learner);
    }
}

impl Drop for Learners {
    /// The owner ends, perhaps by a panic: no request is left without a reply.
    fn drop(&mut self) {
        self.shared.end();
    }
}

fn targets(spec: &AdapterSpec) -> Result<TargetModules, Failure> {
    const ATTENTION: [&str; 4] = ["q_proj", "k_proj", "v_proj", "o_proj"];
    const MLP: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];
    let names = |names: &[&str]| TargetModules::Names(names.iter().map(|name| (*name).to_owned()).collect());
    match (spec.train_attn, spec.train_mlp) {
        (true, true) => Ok(TargetModules::AllLinear),
        (true, false) => Ok(names(&ATTENTION)),
        (false, true) => Ok(names(&MLP)),
        (false, false) => Err(Failure::request(
            "train_attn and train_mlp are both false: no matrix has an adapter (the head cannot have one)",
        )),
    }
}

/// Whether all samplers have the current weights of the model; otherwise why not.
fn is_on_policy(shared: &Training, model: &str, learner: &Learner, samplers: &[String]) -> Result<(), String> {
    let others = "choose the loss importance_sampling, ppo or cispo, which correct for other weights";
    if samplers.is_empty() {
        return Err(format!("no token of the data names a sequence that this server sampled: {others}"));
    }
    for id in samplers {
        let of = shared.sampler(id).ok().and_then(|sampler| sampler.model);
        if of.as_ref().is_none_or(|(other, weights)| other != model || *weights != learner.weights) {
            return Err(format!(
                "some tokens were not sampled with the current weights of this model ({id}): {others}"
            ));
        }
    }
    Ok(())
}

fn save(
    shared: &Training,
    learner: &Learner,
    (model, kind, name): (&str, Kind, String),
    overwrite: bool,
    ttl_seconds: Option<u64>,
) -> Result<Done, Failure> {
    check_name(&name)?;
    let path = StatePath { model: model.to_owned(), kind, name };
    let adapter = learner.adapter.current();
    let saved = Saved {
        base_model: shared.base_model.clone(),
        lora: adapter.lora.clone(),
        spec: learner.spec,
        lineage: learner.lineage,
        weights: learner.weights,
        samplers: learner.samplers,
        steps: learner.trainer.steps(),
        version: adapter.version,
        created: now(),
        expires: expiry(ttl_seconds),
        user_metadata: shared.user_metadata(model),
    };
    shared.store.save(&path, &saved, adapter, learner.trainer.optimizer(), overwrite)?;
    Ok(Done::Saved(path))
}

impl Learner {
    /// Notes that a part of the data is not in the gradient.
    fn spoil(&mut self, why: &str) {
        self.trainer.discard();
        self.spoilt.get_or_insert_with(|| why.to_owned());
    }

    fn start(
        &mut self,
        base: &Weights,
        datums: Vec<Datum>,
        loss: Option<TokenLoss>,
        is_on_policy: bool,
        reply: Replies,
    ) {
        let mut checks = datums.iter().enumerate().map(|(index, datum)| {
            let most = base.config.max_position_embeddings;
            if datum.ids.len() > most {
                let tokens = datum.ids.len();
                return Err(format!("sample {index}: {tokens} tokens, but the model's context is {most}"));
            }
            datum.check(index, &base.config, loss).map_err(|error| error.to_string())
        });
        let checked =
            if datums.is_empty() { Err("there are no datums".to_owned()) } else { checks.try_for_each(|c| c) };
        drop(checks);
        if let Err(why) = checked {
            if loss.is_some() {
                self.spoil(&why);
            }
            return reply.send(Err(Failure::request(why)));
        }
        if loss.is_some() {
            self.lineage = self.lineage.advance(&hash(&datums, loss));
        }
        let parts = split(&datums, MICRO_BATCH_TOKENS).into_iter();
        self.running = Some(Running { datums, loss, parts, is_on_policy, passed: Passed::default(), reply });
    }

    /// Computes the next micro-batch of the running pass, and replies after the last one. Returns the number of tokens.
    fn pass(&mut self, passes: &mut Passes, ctx: &Context, base: &Weights, shared: &Training) -> usize {
        let Some(running) = &mut self.running else { return 0 };
        let Running { datums, loss, parts, is_on_policy, passed, .. } = running;
        let part = parts.next().expect("a pass has parts until it has ended");
        let tokens = datums[part.datums()].iter().map(|datum| datum.ids.len()).sum();
        let view = ModelView::new(base, Some(self.adapter.current()));
        let computed = match loss {
            Some(loss) => self.trainer.accumulate(passes, ctx, view, datums, &part, *loss).map(|outputs| {
                passed.loss += outputs.loss;
                outputs.logps
            }),
            None => logprobs(passes, ctx, view, datums, &part),
        };
        let failure = match computed {
            Ok(logps) => {
                if *is_on_policy {
                    let own = datums[part.datums()].iter().zip(&logps);
                    own.for_each(|(datum, logps)| compare(datum, logps, &mut passed.compared));
                }
                passed.logps.extend(logps);
                (loss.is_some() && !passed.loss.is_finite()).then(|| {
                    let value = passed.loss;
                    Failure::request(format!("the loss is {value}: check weights, advantages and log-probabilities"))
                })
            }
            Err(error) => Some(Failure::server(error)),
        };
        if failure.is_none() && parts.len() > 0 {
            return tokens;
        }
        let Running { loss, passed, reply, .. } = self.running.take().expect("running");
        self.compared.merge(passed.compared);
        if let Some(failure) = failure {
            if loss.is_some() {
                self.spoil(&failure.message);
            }
            reply.send(Err(failure));
        } else {
            let done = Done::Passed(passed);
            shared.succeeded(&done);
            reply.send(Ok(done));
        }
        tokens
    }

    fn step(&mut self, ctx: &Context, params: AdamParams) -> Result<Done, Failure> {
        let compared = std::mem::take(&mut self.compared);
        if let Some(why) = self.spoilt.take() {
            // Passes after the one that failed have begun another gradient.
            self.trainer.discard();
            return Err(Failure::request(format!(
                "no step was taken, since a part of its data is missing: {why}. The gradient was discarded"
            )));
        }
        check(params)?;
        if !self.trainer.has_gradient() {
            return Err(Failure::request("no step was taken: there is no forward_backward since the last step"));
        }
        let norm = self.trainer.step(ctx, &mut self.adapter, params).map_err(Failure::server)?;
        if !norm.finite {
            return Err(Failure::request(
                "no step was taken, since the gradient is not finite: lower the learning rate, or check the data",
            ));
        }
        let AdamParams { learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm } = params;
        let numbers = [learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm];
        self.lineage = Lineage::of(&[&self.lineage.0, &numbers.map(f64::to_le_bytes).concat()]);
        self.weights = self.lineage;
        self.samplers = 0;
        Ok(Done::Stepped { grad_norm: norm.norm, compared })
    }
}

/// Checks the settings of a step.
fn check(params: AdamParams) -> Result<(), Failure> {
    let AdamParams { learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm } = params;
    for (name, value) in [
        ("learning_rate", learning_rate),
        ("eps", eps),
        ("weight_decay", weight_decay),
        ("grad_clip_norm", grad_clip_norm),
    ] {
        if !(value.is_finite() && value >= 0.0) {
            return Err(Failure::request(format!("{name} is {value}: expected 0 or more")));
        }
    }
    for (name, value) in [("beta1", beta1), ("beta2", beta2)] {
        if !(0.0..1.0).contains(&value) {
            return Err(Failure::request(format!("{name} is {value}: expected 0 or more, below 1")));
        }
    }
    Ok(())
}

/// Compares the log-probabilities that a client sent with those of training, for tokens with an advantage.
fn compare(datum: &Datum, logps: &[f32], compared: &mut Compared) {
    let (Some(sent), Some(advantages)) = (datum.input("logprobs"), datum.input("advantages")) else { return };
    for ((&sent, &advantage), &computed) in sent.iter().zip(advantages).zip(logps) {
        if advantage != 0.0 {
            compared.add(sent, computed);
        }
    }
}

/// A hash of everything in a pass that determines the next weights.
fn hash(datums: &[Datum], loss: Option<TokenLoss>) -> [u8; 16] {
    let mut hash = XxHash3_128::new();
    hash.write(format!("{loss:?}").as_bytes());
    for Datum { ids, targets, width, inputs } in datums {
        for list in [&ids[..], targets, &[*width as u32]] {
            hash.write(&(list.len() as u64).to_le_bytes());
            hash.write(list.as_bytes());
        }
        for (name, values) in inputs {
            hash.write(format!("{name} {}", values.len()).as_bytes());
            hash.write(values.as_bytes());
        }
    }
    hash.finish_128().to_le_bytes()
}
