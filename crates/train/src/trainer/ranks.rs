//! Several ranks: processes that divide the gradient of each optimizer step.
//!
//! Rank 0 has the samples, the loss, the optimizer and its state, and reads and writes the weights. Each rank runs the
//! forward and backward passes of its own shares of a step's groups (see [`shares`](super::shares)), rank r those from
//! share r·S/R on. For a micro-batch of another rank, rank 0 sends token ids, receives log-probabilities and entropies,
//! and returns the gradients of the loss with respect to these, a few numbers per token. It does so on one thread for
//! each rank, while its own passes run. All sums over samples (loss, metrics, entropies) are computed by rank 0, in the
//! order of the samples, from the outputs that it received, so they have the bits of a single process.
//!
//! The ranks' gradients are added as the balanced binary tree of the shares: first that of each odd rank to that of the
//! rank before, then that of every fourth rank from 2 on to that of two ranks before, and so on. Each rank adds the
//! elements of its part of the parameters, in place, in shared memory, and sums their squares; rank 0 adds these sums
//! in order for the gradient norm. Then each rank takes the optimizer step on its part: it writes the weights in the
//! slot of rank 0, and the optimizer's state ([`slots`]).
//!
//! Between steps, the ranks can do [other work](OtherWork) with the weights, such as generation.

mod memory;
mod other;
mod protocol;
mod server;
mod slots;

pub use memory::RankMemory;
pub use other::{OtherRanks, OtherWork, RankModel, SendReply};
pub(super) use protocol::PartStep;
pub use server::serve;
pub(super) use slots::SharedGradients;

use super::TrainerConfig;
use super::kept::{Origin, Planned};
use super::loss_gradient::loss_and_gradient;
use super::passes::{ForwardSums, LossBatch, Measured, Outputs};
use crate::loss::Normalizer;
use crate::objective::Objective;
use crate::optimizer::Part;
use crate::optimizer_batch::Sequence;
use crate::{Error, Result};
use kernels::ops::grad_norm;
use kernels::{Context, DType};
use model::weights::NextParams;
use model::{Grads, GroupId, LoraConfig, ModelConfig, StopCheck, Updates};
use protocol::{DropoutOfPass, ModelRequest, Ops, Pass, Reply, Request, Start, bits, doubles, floats};
use ranks::{Message, Peers};
use serde::Serialize;
use slots::{Opened, gradient_shape, reduce};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The other ranks of a training run, as rank 0 sees them.
pub(super) struct Ranks {
    world: World,
    /// Rank 0's part of the threads, for passes while other ranks compute, too.
    pub(super) ctx: Context,
    model: Arc<ModelConfig>,
    adapter: Option<LoraConfig>,
    /// The number of shares of a step.
    shares: usize,
    /// The first rank that reported a failure.
    failed: OnceLock<usize>,
    /// The number of steps begun, including cancelled ones.
    begun: AtomicU64,
    /// The slots with the gradients of other ranks.
    opened: Mutex<Opened>,
    /// The groups whose activations another rank keeps, with that rank.
    kept: Mutex<BTreeMap<GroupId, usize>>,
}

/// A part of the optimizer batch whose micro-batches the ranks compute.
#[derive(Clone, Copy)]
pub(super) struct DividedBatch<'a> {
    pub(super) loss: &'a Objective,
    pub(super) sequences: &'a [Sequence<'a>],
    /// Number of sequences of the optimizer batch that earlier parts had.
    pub(super) before: usize,
    pub(super) version: Updates,
    /// The step number of dropout; `None` without dropout.
    pub(super) dropout: Option<u64>,
    /// The counts by which the loss divides; `None` for forward passes without a gradient.
    pub(super) normalizer: Option<&'a Normalizer>,
    pub(super) stop: &'a StopCheck,
}

/// The processes with which rank 0 works.
#[derive(Clone)]
pub struct World {
    /// Their connections; they call [`serve_rank`](crate::serve_rank).
    pub peers: Arc<Peers>,
    /// The index of the trained model: 0, and 1 for a second model that is trained with the same ranks.
    pub model: usize,
    /// Id of the training run.
    pub run: [u8; 16],
    /// The name of this build of the program, which must be that of all ranks.
    pub build: String,
    /// Whether an optimizer step of any model has begun and is not complete.
    is_stepping: Arc<AtomicBool>,
}

impl World {
    /// The ranks for the first model that is trained with them.
    pub fn new(peers: Arc<Peers>, run: [u8; 16], build: String) -> World {
        World { peers, model: 0, run, build, is_stepping: Arc::default() }
    }
}

impl Ranks {
    /// Starts the work of the ranks. `ctx` has all threads, which are divided among the ranks. `state` are the slots of
    /// the optimizer's state.
    pub(super) fn start(
        ctx: &Context,
        model: &Arc<ModelConfig>,
        config: &TrainerConfig,
        state: &[PathBuf],
        world: World,
    ) -> Result<Ranks> {
        let world_size = world.peers.world_size();
        let threads = (ctx.threads() / world_size).max(1);
        let ranks = Ranks {
            world,
            ctx: ctx.with_threads(threads),
            model: model.clone(),
            adapter: config.adapter.clone(),
            shares: config.gradient_shares,
            failed: OnceLock::new(),
            begun: AtomicU64::new(0),
            opened: Mutex::default(),
            kept: Mutex::default(),
        };
        let description = description(model)?;
        for rank in 1..world_size {
            let start = Start {
                rank,
                world_size,
                isa: ctx.describe().to_owned(),
                threads,
                run: ranks.world.run,
                model: description.clone(),
                is_bf16: model.compute == DType::Bf16,
                adapter: config.adapter.clone(),
                temperature: config.temperature,
                prefix_sharing: config.prefix_sharing,
                gradient_checkpointing: config.gradient_checkpointing,
                gradient_shares: config.gradient_shares,
                optimizer: config.optimizer,
                state: state.to_vec(),
            };
            ranks.send(rank, Request::Start(Box::new(start)), Vec::new())?;
        }
        let build = &ranks.world.build;
        for rank in 1..world_size {
            match ranks.receive(rank, &|| false)? {
                (Reply::Ready { build: other }, _) if other == *build => {}
                (Reply::Ready { build: other }, _) => {
                    let of = ranks.name(rank);
                    return Err(Error::Rank(format!("{of} is build {other} of the program, but rank 0 is {build}")));
                }
                (reply, _) => return Err(ranks.unexpected(rank, &reply)),
            }
        }
        Ok(ranks)
    }

    /// The ranks, for a second model that is trained with them.
    pub(super) fn world_of_second_model(&self) -> World {
        World { model: self.world.model + 1, ..self.world.clone() }
    }

    /// Whether a rank is lost.
    pub(super) fn lost(&self) -> &ranks::Lost {
        self.world.peers.lost()
    }

    /// The rank that has failed or was lost.
    pub(super) fn failed(&self) -> Option<usize> {
        self.failed.get().copied().or_else(|| self.lost().rank())
    }

    /// Lets each other rank write its log to the file that `file` returns for it.
    pub(super) fn open_logs(&self, file: &dyn Fn(usize) -> PathBuf) -> Result<()> {
        for rank in 1..self.world_size() {
            self.send(rank, Request::Log { file: file(rank) }, Vec::new())?;
        }
        for rank in 1..self.world_size() {
            match self.receive(rank, &|| false)? {
                (Reply::Logs, _) => {}
                (reply, _) => return Err(self.unexpected(rank, &reply)),
            }
        }
        Ok(())
    }

    /// The number of ranks.
    pub(super) fn world_size(&self) -> usize {
        self.world.peers.world_size()
    }

    /// Shares the published weights with the other ranks, which read them until the next [`reduce`](Self::reduce).
    pub(super) fn share_weights(&self, trained: &Path, base: Option<&Path>) -> Result<()> {
        self.send_all(&Request::Weights { trained: trained.to_owned(), base: base.map(Path::to_owned) })
    }

    /// Begins an optimizer step on all ranks.
    pub(super) fn begin(&self, stop: &StopCheck) -> Result<()> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        self.send_all(&Request::Begin { number })?;
        for rank in 1..self.world_size() {
            // Replies of a cancelled step, or to other work that was cancelled, come before.
            while !matches!(
                self.receive(rank, &|| stop.is_requested())?,
                (Reply::Begun { number: begun }, _) if begun == number
            ) {}
        }
        Ok(())
    }

    /// The number of `planned` micro-batches that rank 0 computes. They come first.
    pub(super) fn own(&self, planned: &[Planned<'_>]) -> usize {
        planned.partition_point(|planned| self.rank_of(planned) == 0)
    }

    fn rank_of(&self, planned: &Planned<'_>) -> usize {
        self.computing_rank(planned.share)
    }

    fn computing_rank(&self, share: usize) -> usize {
        share * self.world_size() / self.shares
    }

    /// Whether the rank that computes `share` keeps the activations of a group; `None` if rank 0 computes the share.
    pub(super) fn keeps(&self, share: usize, group: GroupId) -> Option<bool> {
        let rank = self.computing_rank(share);
        (rank > 0).then(|| self.kept().get(&group) == Some(&rank))
    }

    /// Forgets which groups the ranks have kept, because they belong to earlier weights.
    pub(super) fn forget_kept(&self) {
        self.kept().clear();
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<GroupId, usize>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the other ranks compute the micro-batches `others`, while `own` computes those of rank 0. Returns the
    /// outputs of each of `others`, and the sums of their kept rows.
    pub(super) fn compute(
        &self,
        batch: DividedBatch<'_>,
        others: &[Planned<'_>],
        own: impl FnOnce() -> Result<()>,
    ) -> Result<(Vec<Outputs>, ForwardSums)> {
        let cancels = AtomicBool::new(false);
        let (own, others) = std::thread::scope(|scope| {
            let (mut exchanges, cancels) = (Vec::new(), &cancels);
            for planned in others.chunk_by(|a, b| self.rank_of(a) == self.rank_of(b)) {
                let rank = self.rank_of(&planned[0]);
                exchanges.push(scope.spawn(move || self.exchange(rank, batch, planned, cancels)));
            }
            let own = own();
            cancels.store(own.is_err(), Ordering::Relaxed);
            let joined = exchanges.into_iter().map(|exchange| exchange.join());
            let joined = joined.map(|joined| joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            (own, joined.collect::<Vec<_>>())
        });
        // The failure that a rank reports is the reason why its process ends, and why the other exchanges and rank 0's
        // own passes were cancelled.
        let mut failures = others.iter().filter_map(|result| match result {
            Err(Error::Rank(why)) => Some(why.as_str()),
            _ => None,
        });
        let lost = self.lost().why();
        if let Some(why) = failures.find(|why| Some(*why) != lost).or(lost) {
            return Err(Error::Rank(why.to_owned()));
        }
        own?;
        others.into_iter().try_fold(Default::default(), |(mut all, mut sums): (Vec<_>, _), exchanged| {
            let (outputs, rank_sums) = exchanged?;
            all.extend(outputs);
            sums += rank_sums;
            Ok((all, sums))
        })
    }

    /// Has `rank` compute its micro-batches, in order.
    fn exchange(
        &self,
        rank: usize,
        batch: DividedBatch<'_>,
        planned: &[Planned<'_>],
        cancels: &AtomicBool,
    ) -> Result<(Vec<Outputs>, ForwardSums)> {
        let DividedBatch { loss, sequences, before, version, dropout, normalizer, stop } = batch;
        let is_cancelled = || cancels.load(Ordering::Relaxed) || stop.is_requested();
        let request = |Planned { micro, share, origin, .. }: &Planned<'_>| {
            let samples = || micro.scored().map(|i| (before + i) as u32).collect();
            let dropout = dropout.map(|step| DropoutOfPass { step, samples: samples(), second: loss.is_policy() });
            // A micro-batch's group has several of these groups, if they have the same prompt.
            let groups = micro.scored().filter_map(|i| Some(sequences[i].source.sample()?.group));
            let kept = match origin {
                Origin::Computed => None,
                Origin::Kept => Some((groups.collect(), false)),
                Origin::Compared(_) => Some((groups.collect(), true)),
            };
            let (request, ids) = Pass::request(*share, loss.is_of_scores(), dropout, kept, micro);
            self.send(rank, request, ids)
        };
        let (mut all, mut sums) = (Vec::with_capacity(planned.len()), ForwardSums::default());
        for (i, Planned { micro, .. }) in planned.iter().enumerate() {
            if i == 0 {
                request(&planned[0])?;
            }
            let (reply, numbers) = self.receive(rank, &is_cancelled)?;
            let scored: usize = micro.scored().map(|i| sequences[i].completion.len()).sum();
            let Reply::Outputs(own_sums) = reply else { return Err(self.unexpected(rank, &reply)) };
            if numbers.len() != 2 * scored {
                return Err(self.unexpected(rank, &reply));
            }
            sums += own_sums;
            let (logps, entropies) = numbers.split_at(scored);
            let outputs = Outputs { logps: floats(logps), entropies: floats(entropies), slots: None };
            if let Some(normalizer) = normalizer {
                let skipped = Cell::default();
                let batch = LossBatch { loss, normalizer, sequences, before, skipped, kept: None };
                let measured = &mut Measured::default(); // the sums of the step are computed later, in order
                let d_outputs = loss_and_gradient(&batch, version, micro, &outputs, measured);
                let has_entropies = d_outputs.d_entropies.is_some();
                let entropies = d_outputs.d_entropies.iter().flat_map(|d| bits(d));
                let numbers = bits(&d_outputs.d_logps).chain(entropies).collect();
                self.send(rank, Request::Backward { has_entropies }, numbers)?;
            }
            // The rank continues with the next forward pass at once.
            planned.get(i + 1).map_or(Ok(()), &request)?;
            all.push(outputs);
        }
        Ok((all, sums))
    }

    /// Adds the gradients of all ranks to `grads`, the complete gradient of rank 0, which is in the slot `own`. Each
    /// rank adds those of its part of the parameters; that of rank 0 is `part`. Returns the gradient norm.
    pub(super) fn reduce(&self, own: &Path, grads: &mut Grads, part: &Part, stop: &StopCheck) -> Result<[f32; 2]> {
        self.send_all(&Request::Finish)?;
        let mut gradients = vec![own.to_owned()];
        for rank in 1..self.world_size() {
            match self.receive(rank, &|| stop.is_requested())? {
                (Reply::Finished { gradient, ops }, _) => {
                    ops.count();
                    gradients.push(gradient);
                }
                (reply, _) => return Err(self.unexpected(rank, &reply)),
            }
        }
        // From here on, ranks access each other's memory, so that rank 0 waits for all of them.
        self.send_all(&Request::Reduce { gradients: gradients.clone() })?;
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let like = || gradient_shape(&self.model, self.adapter.as_ref());
        let mut sums = reduce(&self.ctx, &mut opened, &gradients, (0, &mut grads.params), part, like)?;
        for rank in 1..self.world_size() {
            match self.receive(rank, &|| false)? {
                (Reply::Reduced { ops }, numbers) => {
                    ops.count();
                    sums.extend(doubles(&numbers));
                }
                (reply, _) => return Err(self.unexpected(rank, &reply)),
            }
        }
        Ok(grad_norm::from_chunks(&sums))
    }

    /// Takes the optimizer step from the complete gradient: each rank on its part of the parameters, and rank 0 by
    /// `own`. If it fails, the weights are those of no step.
    pub(super) fn step(
        &self,
        next: &mut NextParams<'_>,
        step: PartStep,
        own: impl FnOnce(&Context, &mut NextParams<'_>) -> Result<()>,
    ) -> Result<()> {
        let none = || Error::Config("the weights that ranks update must be in shared memory".to_owned());
        let (from, to) = next.slots().cloned().ok_or_else(none)?;
        self.world.is_stepping.store(true, Ordering::Relaxed);
        self.send_all(&Request::Step { step, from, to })?;
        own(&self.ctx, next)?;
        for rank in 1..self.world_size() {
            match self.receive(rank, &|| false)? {
                (Reply::Stepped { ops }, _) => ops.count(),
                (reply, _) => return Err(self.unexpected(rank, &reply)),
            }
        }
        self.world.is_stepping.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Whether an optimizer step has begun and is not complete.
    pub(super) fn is_stepping(&self) -> bool {
        self.world.is_stepping.load(Ordering::Relaxed)
    }

    fn send(&self, rank: usize, request: Request, numbers: Vec<u32>) -> Result<()> {
        let request = ModelRequest { model: self.world.model, request };
        Ok(self.world.peers.send(rank, &Message::json(&request, numbers)?)?)
    }

    fn send_all(&self, request: &Request) -> Result<()> {
        (1..self.world_size()).try_for_each(|rank| self.send(rank, request.clone(), Vec::new()))
    }

    /// The next reply of `rank`, with its numbers.
    fn receive(&self, rank: usize, cancels: &dyn Fn() -> bool) -> Result<(Reply, Vec<u32>)> {
        match self.world.peers.receive(rank, cancels) {
            Ok(message) => self.reply(rank, message),
            Err(ranks::Error::Lost(why)) => Err(self.reason_of_loss(why)),
            Err(error) => Err(error.into()),
        }
    }

    /// The error after a rank was lost: the failure that it reported before its process ended, or else `why`.
    fn reason_of_loss(&self, why: String) -> Error {
        let replies = self
            .lost()
            .rank()
            .into_iter()
            .flat_map(|lost| std::iter::from_fn(move || Some((lost, self.world.peers.try_receive(lost).ok()??))));
        let failure = replies.filter_map(|(lost, message)| self.reply(lost, message).err()).next();
        failure.unwrap_or(Error::Rank(why))
    }

    /// The reply in a message of `rank`, with its numbers.
    fn reply(&self, rank: usize, message: Message) -> Result<(Reply, Vec<u32>)> {
        match message.value()? {
            Reply::Failed { why } => {
                let _ = self.failed.set(rank);
                Err(Error::Rank(format!("{} failed: {why}", self.name(rank))))
            }
            reply => Ok((reply, message.numbers)),
        }
    }

    fn name(&self, rank: usize) -> String {
        format!("rank {rank} of {}", self.world_size())
    }

    fn unexpected(&self, rank: usize, reply: &impl Serialize) -> Error {
        let reply = serde_json::to_string(reply).unwrap_or_default();
        Error::Rank(format!("{} sent an unexpected reply: {reply}", self.name(rank)))
    }
}

impl Ops {
    /// Adds the operations to those that this thread has counted.
    fn count(self) {
        kernels::context::count(self.flops, self.bytes);
    }
}

/// The `config.json` from which other ranks read the model's configuration, after a check that it is complete.
fn description(model: &ModelConfig) -> Result<String> {
    let json = serde_json::to_string(&model.raw).map_err(|error| Error::Rank(error.to_string()))?;
    let found = ModelConfig::parse(&json)?.computing_in(model.compute)?;
    if format!("{found:?}") != format!("{model:?}") {
        let why = "the model's configuration differs from its config.json, which the other ranks read";
        return Err(Error::Rank(why.to_owned()));
    }
    Ok(json)
}
