//! A rank other than 0: runs forward and backward passes for rank 0, and accumulates the gradient of its own shares of
//! each optimizer step. It knows neither the loss nor the samples, only token ids and the gradients of its outputs.

use super::other::{OtherWork, RankModel};
use super::protocol::{ModelRequest, Ops, PartStep, Pass, Reply, Request, Start, bits, floats, halves};
use super::slots::{Opened, SharedGradients, gradient_shape, reduce};
use crate::optimizer::Optimizer;
use crate::trainer::kept::{Origin, Planned};
use crate::trainer::passes::{Compute, Forward, ForwardSums, OutputGrads, Passes};
use crate::trainer::shares::Shares;
use crate::{Error, Result};
use kernels::{Context, DType, Device, Isa, Memory};
use model::batch::Dropout;
use model::kept::RolloutActivations;
use model::net::KeptRows;
use model::packing::{check_groups, longest, micro_batches};
use model::weights::{Adapter, Lent, NextParams};
use model::{BatchTensors, Grads, ModelConfig, ModelView, Params, SharedSlot, Sharing, Weights};
use ranks::{Link, Message};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Works for rank 0 until it closes the `link`, also by `other`. `build` names this build of the program. A failure is
/// also reported to rank 0.
pub fn serve(link: &Link, build: &str, other: &mut dyn OtherWork) -> Result<()> {
    let served = serve_until_end(link, build, other);
    if let Err(error) = &served {
        other.note(&format!("failed: {error}"));
        let _ = link.send(&Message::json(&Reply::Failed { why: error.to_string() }, Vec::new())?);
    }
    served
}

fn serve_until_end(link: &Link, build: &str, other: &mut dyn OtherWork) -> Result<()> {
    let mut servers = Vec::new();
    let mut reported = Reported::default();
    while let Some(Message { text, numbers }) = link.receive() {
        let ModelRequest { model, request } = Message::of(text).value()?;
        if let Request::Start(start) = request {
            servers.truncate(model);
            let server = Server::new(*start)?;
            other.note(&server.describe(model));
            servers.push(server);
            send(link, Message::json(&Reply::Ready { build: build.to_owned() }, Vec::new())?)?;
            continue;
        }
        let none = || Error::Rank(format!("a request came before the start of model {model}"));
        let server = servers.get_mut(model).ok_or_else(none)?;
        match request {
            Request::Log { file } => {
                other.open_log(&file)?;
                send(link, Message::json(&Reply::Logs, Vec::new())?)?;
            }
            Request::Other(text) => {
                let reply =
                    |Message { text, numbers }, ops| send(link, Message::json(&Reply::Other { text, ops }, numbers)?);
                let work = Message { text, numbers };
                let last = other.work(server.model(), &work, &|part| reply(part, Ops::default()))?;
                server.release();
                reply(last, reported.take())?;
            }
            request => {
                let is_last = matches!(request, Request::Finish);
                if let Some(reply) = server.answer(request, numbers, &mut reported)? {
                    send(link, reply)?;
                }
                if is_last {
                    other.note(&server.describe_gradient(model));
                }
            }
        }
    }
    Ok(())
}

/// The operations that rank 0 knows of.
#[derive(Default)]
struct Reported(u64, u64);

impl Reported {
    /// The operations since the last call.
    fn take(&mut self) -> Ops {
        let (flops, bytes) = kernels::context::counted();
        let before = std::mem::replace(self, Reported(flops, bytes));
        Ops { flops: flops - before.0, bytes: bytes - before.1 }
    }
}

fn send(link: &Link, reply: Message) -> Result<()> {
    link.send(&reply).map_err(|error| Error::Rank(format!("the connection to rank 0 failed: {error}")))
}

/// The work for one model.
struct Server {
    start: Start,
    ctx: Context,
    model: Arc<ModelConfig>,
    passes: Passes,
    gradients: SharedGradients,
    optimizer: Optimizer,
    /// The slots with the optimizer's state.
    state: Vec<Lent>,
    /// The slots of rank 0 with weights to read.
    read: BTreeMap<PathBuf, SharedSlot>,
    /// The slots of other ranks to write.
    written: Opened,
    /// The slot with the complete gradient.
    reduced: Option<PathBuf>,
    /// The base weights, kept for all steps if they are frozen.
    base: Option<Weights>,
    adapter: Option<Adapter>,
    /// The last forward pass.
    forward: Option<(Pass, Forward)>,
    /// When the current step began, and the number of backward passes since then.
    begun: Instant,
    passes_done: usize,
}

impl Server {
    fn new(start: Start) -> Result<Server> {
        let ctx = Context::cpu(Isa::from_name(&start.isa)?, start.threads);
        let dtype = if start.is_bf16 { DType::Bf16 } else { DType::F32 };
        let model = Arc::new(ModelConfig::parse(&start.model)?.computing_in(dtype)?);
        let sharing = Sharing { run: start.run, dir: None, lent: true };
        let (memory, lora, of) = (ctx.memory(), start.adapter.as_ref(), [start.rank, start.world_size]);
        let shares = [start.rank, start.world_size, start.gradient_shares];
        let gradients = SharedGradients::new(&sharing, memory, &model, lora, shares)?;
        let (optimizer, state) = Optimizer::for_rank(memory, &model, lora, start.optimizer, of, &start.state)?;
        let passes = Passes::new(memory, start.gradient_checkpointing);
        memory.check()?;
        let (read, written, reduced, base, adapter, forward) = Default::default();
        Ok(Server {
            start,
            ctx,
            model,
            passes,
            gradients,
            optimizer,
            state,
            read,
            written,
            reduced,
            base,
            adapter,
            forward,
            begun: Instant::now(),
            passes_done: 0,
        })
    }

    /// A line for the rank's log about its work for the model with this index.
    fn describe(&self, model: usize) -> String {
        let Start { rank, world_size, isa, threads, gradient_shares, .. } = &self.start;
        let count = gradient_shares / world_size;
        let elements: usize = self.optimizer.part().ranges().iter().map(|range| range.len()).sum();
        format!(
            "rank {rank} of {world_size}: {threads} threads, {isa}; model {model}: shares {} to {} of \
             {gradient_shares}, updates {elements} parameters",
            rank * count,
            (rank + 1) * count - 1
        )
    }

    /// A line for the rank's log about the gradient that is complete now.
    fn describe_gradient(&mut self, model: usize) -> String {
        let (passes, since) = (std::mem::take(&mut self.passes_done), self.begun.elapsed().as_secs_f64());
        format!("model {model}: gradient of {passes} micro-batches in {since:.3} s")
    }

    fn answer(&mut self, request: Request, numbers: Vec<u32>, reported: &mut Reported) -> Result<Option<Message>> {
        let reply = match request {
            Request::Start(_) | Request::Other(_) | Request::Log { .. } => return Ok(None),
            Request::Weights { trained, base } => {
                self.read_weights(&trained, base.as_deref())?;
                return Ok(None);
            }
            Request::Begin { number } => {
                self.forward = None;
                (self.begun, self.passes_done) = (Instant::now(), 0);
                let SharedGradients { grads, shares, .. } = &mut self.gradients;
                shares.begin(&self.ctx, grads);
                Reply::Begun { number }
            }
            Request::Forward(pass) => {
                let (outputs, sums) = self.forward(pass, &numbers)?;
                return Ok(Some(Message::json(&Reply::Outputs(sums), outputs)?));
            }
            Request::Backward { has_entropies } => {
                self.backward(&numbers, has_entropies)?;
                return Ok(None);
            }
            Request::Finish => Reply::Finished { gradient: self.finish()?.to_owned(), ops: reported.take() },
            Request::Reduce { gradients } => {
                let sums = self.reduce(&gradients)?;
                return Ok(Some(Message::json(&Reply::Reduced { ops: reported.take() }, halves(&sums))?));
            }
            Request::Step { step, from, to } => {
                self.step(step, &from, &to)?;
                Reply::Stepped { ops: reported.take() }
            }
        };
        Ok(Some(Message::json(&reply, Vec::new())?))
    }

    fn read_weights(&mut self, trained: &Path, base: Option<&Path>) -> Result<()> {
        let memory = self.ctx.memory().clone();
        let unread = || Error::Rank("the weights are being written while rank 0 shares them".to_owned());
        let Some(lora) = self.start.adapter.clone() else {
            self.base = None; // unpins the slot, which may be the same
            let model = self.model.clone();
            let (weights, _) = self.slot(trained)?.weights(&memory, &model)?.ok_or_else(unread)?;
            self.base = Some(weights);
            return Ok(());
        };
        let model = self.model.clone();
        if let (None, Some(base)) = (&self.base, base) {
            let (weights, _) = self.slot(base)?.weights(&memory, &model)?.ok_or_else(unread)?;
            self.base = Some(weights);
        }
        self.adapter = None;
        let (adapter, _) = self.slot(trained)?.adapter(&memory, &model, &lora)?.ok_or_else(unread)?;
        self.adapter = Some(adapter);
        Ok(())
    }

    fn slot(&mut self, path: &Path) -> Result<&SharedSlot> {
        if !self.read.contains_key(path) {
            self.read.insert(path.to_owned(), SharedSlot::open(path)?);
        }
        Ok(&self.read[path])
    }

    fn forward(&mut self, pass: Pass, ids: &[u32]) -> Result<(Vec<u32>, ForwardSums)> {
        let unreadable = || Error::Rank("a request for a forward pass has the wrong number of token ids".to_owned());
        let groups = pass.groups(ids).ok_or_else(unreadable)?;
        check_groups(&self.model, &groups)?;
        let sharing = self.start.prefix_sharing;
        let mut micro = micro_batches(&groups, usize::MAX, sharing);
        let Some(micro) = micro.pop().filter(|_| micro.is_empty()) else { return Err(unreadable()) };
        let capacity = micro.capacity();
        let temperature = self.start.temperature;
        let activations = self.passes.activations.clone();
        let kept = activations.as_ref().filter(|_| pass.kept.is_some()).map(RolloutActivations::lock);
        let kept = kept.as_deref();
        let version = self.parts()?.0.model.version();
        let (numbers, compares) = pass.kept.as_ref().map_or((&[][..], false), |(groups, compares)| (groups, *compares));
        let planned = Planned::kept_or_computed(micro, pass.share, (numbers, compares), (kept, (version, temperature)));
        let forwarded = if planned.origin == Origin::Kept { 0 } else { capacity.tokens };
        self.gradients.grads.reserve(capacity.tokens);
        self.passes.reserve(&self.model, capacity, forwarded, longest(&groups));
        let memory = self.ctx.memory().clone();
        memory.check()?;
        let packed = planned.micro.batch(sharing);
        let mut tensors = BatchTensors::new(&memory.part("workspace"), &packed);
        let dropout = pass.dropout.as_ref().zip(self.start.adapter.as_ref());
        let mut dropout = dropout.map(|(d, lora)| {
            Dropout::new(&memory, lora.dropout, self.start.optimizer.seed, d.step, &packed, &d.samples)
        });
        if pass.dropout.as_ref().is_some_and(|dropout| !dropout.second) {
            tensors.set_dropout(dropout.take());
        }
        let mut sums = ForwardSums::default();
        let (mut compute, _, _) = self.parts()?;
        let head = (temperature, pass.is_of_scores);
        let outputs = planned.forward(&mut compute, &packed, &tensors, kept, head, &mut sums)?;
        let sent = bits(&outputs.logps).chain(bits(&outputs.entropies)).collect();
        self.forward = Some((pass, Forward { tensors, dropout, outputs }));
        Ok((sent, sums))
    }

    fn backward(&mut self, numbers: &[u32], has_entropies: bool) -> Result<()> {
        let Some((pass, Forward { mut tensors, dropout, outputs })) = self.forward.take() else {
            return Err(Error::Rank("a backward pass was requested before a forward pass".to_owned()));
        };
        let scored = outputs.logps.len();
        if numbers.len() != scored * (1 + usize::from(has_entropies)) {
            return Err(Error::Rank("a request for a backward pass has the wrong number of gradients".to_owned()));
        }
        let (d_logps, d_entropies) = numbers.split_at(scored);
        let d_outputs =
            OutputGrads { d_logps: floats(d_logps), d_entropies: has_entropies.then(|| floats(d_entropies)) };
        let temperature = self.start.temperature;
        let activations = self.passes.activations.clone();
        let kept = activations.as_ref().zip(outputs.slots.as_ref());
        let kept = kept.map(|(activations, slots)| (activations.lock(), slots));
        let kept = kept.as_ref().map(|(kept, slots)| KeptRows { store: &kept.store, slots: slots.view() });
        let (mut compute, grads, shares) = self.parts()?;
        if dropout.is_some() {
            tensors.set_dropout(dropout);
            compute.forward(&tensors, temperature, pass.is_of_scores)?;
        }
        shares.enter(compute.ctx, grads, pass.share)?;
        compute.backward(&tensors, &d_outputs, pass.is_of_scores, kept, grads)?;
        self.passes_done += 1;
        Ok(())
    }

    /// The model with its passes, and the gradients to accumulate into.
    fn parts(&mut self) -> Result<(Compute<'_>, &mut Grads, &mut Shares)> {
        let Server { ctx, passes, base, adapter, gradients: SharedGradients { grads, shares, .. }, .. } = self;
        let missing = || Error::Rank("a pass was requested before the weights were shared".to_owned());
        let base = base.as_ref().ok_or_else(missing)?;
        Ok((Compute { passes, ctx, model: ModelView::new(base, adapter.as_ref()) }, grads, shares))
    }

    /// The model, for work besides its training.
    fn model(&mut self) -> RankModel<'_> {
        let Server { ctx, model, passes, base, adapter, .. } = self;
        let weights = base.as_ref().map(|base| ModelView::new(base, adapter.as_ref()));
        RankModel { ctx, config: model, weights, activations: &mut passes.activations }
    }

    /// Releases the weights, which rank 0 may then change.
    fn release(&mut self) {
        self.adapter = None;
        if self.start.adapter.is_none() {
            self.base = None;
        }
    }

    /// Completes the gradient of this rank's shares, and returns its slot. Rank 0 may then change the weights.
    fn finish(&mut self) -> Result<&Path> {
        self.release();
        let SharedGradients { grads, shares, slots } = &mut self.gradients;
        shares.finish(&self.ctx, grads)?;
        Ok(&slots[shares.buffer()])
    }

    /// Adds the gradients of all ranks on this rank's part of the parameters. Returns the sums of squares of its
    /// chunks.
    fn reduce(&mut self, gradients: &[PathBuf]) -> Result<Vec<f64>> {
        let Server { ctx, model, start, written, optimizer, .. } = self;
        let own = (start.rank, &mut self.gradients.grads.params);
        let like = || gradient_shape(model, start.adapter.as_ref());
        self.reduced = gradients.first().cloned();
        reduce(ctx, written, gradients, own, optimizer.part(), like)
    }

    /// Takes the optimizer step on this rank's part of the parameters.
    fn step(&mut self, step: PartStep, from: &Path, to: &Path) -> Result<()> {
        let PartStep { learning_rate, before, norm } = step;
        let (memory, meta) = (self.ctx.memory().clone(), Memory::new(Device::Meta));
        let (model, lora) = (self.model.clone(), self.start.adapter.clone());
        let reduced = self.reduced.take();
        let reduced = reduced.ok_or_else(|| Error::Rank("a step was requested before its gradient".to_owned()))?;
        if from != to {
            self.read_weights(from, None)?;
        }
        let gradient = self.written.borrow(&reduced, &memory, || gradient_shape(&model, lora.as_ref()))?;
        let mut next = self.written.borrow(to, &memory, || match &lora {
            None => Params::zeros(&meta, &model),
            Some(lora) => Params::adapter(&meta, &model, lora),
        })?;
        self.state.iter().try_for_each(Lent::borrow)?;
        let Server { ctx, optimizer, base, adapter, .. } = self;
        let current = adapter.as_ref().map(|adapter| &adapter.params).or(base.as_ref().map(|base| &base.params));
        let mut params = match current.filter(|_| from != to) {
            Some(current) => NextParams::apart(current, &mut next.params),
            None => NextParams::in_place(&mut next.params),
        };
        optimizer.steps = before;
        optimizer.set_norm(norm.map(f32::from_bits));
        optimizer.step(ctx, &mut params, &gradient.params, learning_rate)?;
        self.state.iter().for_each(Lent::give_back);
        self.written.give_back(next);
        self.written.give_back(gradient);
        self.release();
        Ok(())
    }
}
