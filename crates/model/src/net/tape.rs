//! Buffers for passes through the decoder, allocated once with a fixed capacity. Training buffers contain the
//! activations that a forward pass keeps for the backward pass; inference buffers contain only scratch.

use super::pass::{BackwardBuffers, LayerActivations, LayerScratch};
use crate::ModelConfig;
use crate::StopCheck;
use crate::batch::Capacity;
use crate::kv::KvCache;
use crate::weights::AdapterRanges;
use kernels::{Context, DType, Error, Memory, Result, Tensor, View, ViewMut};

/// The activations that a forward pass keeps for the backward pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// Nothing: each layer overwrites the activations of the layer before.
    Nothing,
    /// Every layer's input, and the activations of one layer (activation checkpointing).
    Inputs,
    /// Every layer's activations.
    All,
}

/// The tensors that a pass through the decoder layers writes. T is the number of rows (tokens), H the hidden size.
pub(super) struct Activations {
    /// The input of each layer `[T, H]`; a single tensor if nothing is kept.
    pub inputs: Vec<Tensor>,
    /// The activations of each layer; those of a single layer unless all activations are kept.
    pub saved: Vec<LayerActivations>,
    /// The residual stream after the last layer `[T, H]`.
    pub last: Tensor,
    /// 1 / rms of each row of `last` `[T]`.
    pub rstd: Tensor,
    /// `last` after the final norm `[T, H]`, in the dtype that matmuls read.
    pub hidden: Tensor,
    /// Number of rows (tokens) of the last pass.
    pub rows: usize,
    keep: Keep,
}

/// The tensors that a pass through the decoder layers writes and no later pass reads.
pub(super) struct PassScratch {
    /// Output of the attention or MLP part of a layer, which is added to the residual stream `[T, H]`.
    pub delta: Tensor,
    /// Scratch that all layers use.
    pub layers: LayerScratch,
}

impl PassScratch {
    /// Scratch for passes of up to `rows` rows; with `gates`, for passes that keep gate and up projections.
    fn new(memory: &Memory, c: &ModelConfig, rows: usize, gates: bool) -> PassScratch {
        PassScratch {
            delta: Tensor::zeros(memory, &[rows, c.hidden_size], DType::F32),
            layers: LayerScratch::new(&memory.part("workspace"), c, rows, gates),
        }
    }
}

impl Activations {
    /// Activations of `rows` rows in the first layer and in the hidden states, and of `later` rows in the other layers.
    fn new(memory: &Memory, c: &ModelConfig, [rows, later]: [usize; 2], keep: Keep) -> Activations {
        let stream = |rows: usize| Tensor::zeros(memory, &[rows, c.hidden_size], DType::F32);
        let layers = |all: bool| (0..if all { c.num_layers } else { 1 }).map(|l| if l == 0 { rows } else { later });
        let gates = keep != Keep::Nothing;
        let saved = layers(keep == Keep::All).map(|rows| LayerActivations::new(memory, c, rows, gates)).collect();
        Activations {
            inputs: layers(keep != Keep::Nothing).map(stream).collect(),
            saved,
            last: stream(rows),
            rstd: Tensor::zeros(memory, &[rows], DType::F32),
            hidden: Tensor::zeros(memory, &[rows, c.hidden_size], c.compute),
            rows: 0,
            keep,
        }
    }

    /// Whether all layers share one [`LayerActivations`], so that the backward pass has to recompute each layer.
    pub fn shares(&self) -> bool {
        self.keep != Keep::All
    }
    /// Index into `inputs` for layer `layer`.
    pub fn input_of(&self, layer: usize) -> usize {
        if self.keep == Keep::Nothing { 0 } else { layer }
    }
    /// Index into `saved` for layer `layer`.
    pub fn saved_of(&self, layer: usize) -> usize {
        if self.keep == Keep::All { layer } else { 0 }
    }

    /// Starts a pass over `rows` rows whose kept activations begin at row `first`; fails if the buffers are too small.
    pub fn begin(&mut self, first: usize, rows: usize) -> Result<()> {
        let room = self.hidden.shape()[0];
        if first + rows > room {
            return Err(no_room("rows", first + rows, room));
        }
        self.rows = rows;
        Ok(())
    }

    /// The tensors that are kept for the backward pass, always in the same order; with `all`, every layer's activations
    /// as well as its input.
    pub fn kept(&self, all: bool) -> impl Iterator<Item = &Tensor> {
        let layers = self.saved.iter().filter(move |_| all).flat_map(|layer| layer.tensors(true));
        self.inputs.iter().chain(layers).chain([&self.last, &self.rstd, &self.hidden])
    }
}

/// Buffers for inference: one set that all layers use. Their memory is charged to "workspace".
pub struct Workspace {
    pub(super) activations: Activations,
    pub(super) scratch: PassScratch,
    pub(super) adapters: AdapterRanges,
}

impl Workspace {
    /// Buffers for passes of up to `max_rows` rows.
    pub fn new(memory: &Memory, config: &ModelConfig, max_rows: usize) -> Workspace {
        let memory = memory.part("workspace");
        let activations = Activations::new(&memory, config, [max_rows; 2], Keep::Nothing);
        let scratch = PassScratch::new(&memory, config, max_rows, false);
        Workspace { activations, scratch, adapters: AdapterRanges::default() }
    }
    /// The hidden states `[T, H]` of the last [`infer`](super::infer), after the final norm.
    pub fn hidden(&self) -> View<'_> {
        self.activations.hidden.rows(0..self.activations.rows)
    }
}

/// The activations of rows that [`infer_keeping`](super::infer_keeping) computed in many passes: everything that the
/// backward pass reads. [`restore`](super::restore) and the backward pass copy its rows to a tape. Memory is charged
/// to "rollout activations".
pub struct RowStore {
    pub(super) activations: Activations,
    /// The first row of the last pass.
    pub(super) first: usize,
}

impl RowStore {
    /// A store for `capacity` rows.
    pub fn new(memory: &Memory, config: &ModelConfig, capacity: usize) -> RowStore {
        let memory = memory.part("rollout activations");
        RowStore { activations: Activations::new(&memory, config, [capacity; 2], Keep::All), first: 0 }
    }
    /// Bytes of the activations of one row.
    pub fn row_bytes(config: &ModelConfig) -> usize {
        let meta = Context::meta();
        let row = Activations::new(meta.memory(), config, [1; 2], Keep::All);
        row.kept(true).map(|tensor| tensor.shape().iter().product::<usize>() * tensor.dtype().bytes()).sum()
    }
    /// The number of rows that the store can keep.
    pub fn capacity(&self) -> usize {
        self.activations.hidden.shape()[0]
    }
    /// The hidden states `[T, H]` of the last pass, after the final norm.
    pub fn hidden(&self) -> View<'_> {
        self.activations.hidden.rows(self.first..self.first + self.activations.rows)
    }
}

/// Buffers of the head for the forward and backward pass over the R scored tokens.
pub(super) struct HeadBuffers {
    /// Hidden states that predict the scored tokens `[R, H]`.
    pub hidden: Tensor,
    /// Log-probabilities of the scored tokens, or scores of a score head `[R]`.
    pub logps: Tensor,
    /// Log-sum-exp of the logits for each scored token `[R]`.
    pub lse: Tensor,
    /// Entropy of the next-token distribution for each scored token, in nats `[R]`.
    pub entropies: Tensor,
    /// R (number of scored tokens) of the last pass.
    pub rows: usize,
    pub inv_temperature: f32,
}

/// Buffers that only the backward pass needs.
pub(super) struct TapeBackward {
    pub layer: BackwardBuffers,
    /// The gradient of the hidden states `[T, H]`.
    pub d_hidden: Tensor,
    /// The gradient of the hidden states that predict scored tokens `[R, H]`.
    pub d_score_rows: Tensor,
}

/// Buffers for training: the activations of every layer (with checkpointing, the input of every layer and the
/// activations of one), the KV-cache pages of one layer, and the gradients of activations. Memory is charged to
/// "activations" (if it is kept for the backward pass) and "workspace".
pub struct Tape {
    pub(super) activations: Activations,
    pub(super) scratch: PassScratch,
    pub(super) pages: KvCache,
    pub(super) head: HeadBuffers,
    pub(super) back: Option<TapeBackward>,
    pub(super) stop: StopCheck,
    capacity: Capacity,
    /// The maximum number of rows that [`forward`](super::forward) computes; larger batches are restored.
    forwarded: usize,
}

impl Tape {
    /// Buffers for batches of up to `capacity`. With `checkpointing` the backward pass recomputes every layer, with the
    /// same bits.
    pub fn new(memory: &Memory, config: &ModelConfig, capacity: Capacity, checkpointing: bool) -> Tape {
        Tape::with_restored(memory, config, capacity, capacity.tokens, checkpointing)
    }
    /// Like [`new`](Self::new), but batches of more than `forwarded` rows are only restored from kept rows
    /// ([`restore`](super::restore)), which takes the buffers of a single layer.
    pub fn with_restored(
        memory: &Memory,
        config: &ModelConfig,
        capacity: Capacity,
        forwarded: usize,
        checkpointing: bool,
    ) -> Tape {
        let keep = if checkpointing { Keep::Inputs } else { Keep::All };
        let memory = memory.part("workspace");
        let zeros = |rows: usize| Tensor::zeros(&memory, &[rows, config.hidden_size], DType::F32);
        let back = TapeBackward {
            layer: BackwardBuffers::new(&memory, config, capacity.tokens, capacity.blocks),
            d_hidden: zeros(capacity.tokens),
            d_score_rows: zeros(capacity.score_rows),
        };
        Tape { back: Some(back), ..Tape::with(&memory, config, capacity, forwarded, keep) }
    }
    /// Buffers for [`forward`](super::forward) and [`score`](super::score) only. A backward pass is impossible, and
    /// the size of the buffers does not grow with the number of layers.
    pub fn forward_only(memory: &Memory, config: &ModelConfig, capacity: Capacity) -> Tape {
        Tape::with(memory, config, capacity, capacity.tokens, Keep::Nothing)
    }
    fn with(memory: &Memory, config: &ModelConfig, capacity: Capacity, forwarded: usize, keep: Keep) -> Tape {
        let workspace = memory.part("workspace");
        let memory = if keep == Keep::Nothing { &workspace } else { &memory.part("activations") };
        let column = || Tensor::zeros(&workspace, &[capacity.score_rows], DType::F32);
        Tape {
            activations: Activations::new(memory, config, [capacity.tokens, forwarded], keep),
            scratch: PassScratch::new(memory, config, capacity.tokens, keep != Keep::Nothing),
            pages: KvCache::one_layer(&workspace, config, capacity.blocks),
            head: HeadBuffers {
                hidden: Tensor::zeros(&workspace, &[capacity.score_rows, config.hidden_size], config.compute),
                logps: column(),
                lse: column(),
                entropies: column(),
                rows: 0,
                inv_temperature: 1.0,
            },
            back: None,
            stop: StopCheck::default(),
            capacity,
            forwarded,
        }
    }
    /// Makes every pass over this tape check `stop` before each layer. A stopped pass ends with
    /// [`Error::Stopped`](crate::Error::Stopped), and the contents of its buffers must not be used.
    pub fn stop_with(mut self, stop: StopCheck) -> Tape {
        self.stop = stop;
        self
    }
    /// The largest batch for which the tape has room.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }
    /// The number of rows for which the tape has room in every layer.
    pub fn forwarded(&self) -> usize {
        self.forwarded
    }
    /// The hidden states `[T, H]` of the last forward pass, after the final norm.
    pub fn hidden(&self) -> View<'_> {
        self.activations.hidden.rows(0..self.activations.rows)
    }
    /// The gradient of the hidden states `[T, H]`, from which [`backward`](super::backward) starts.
    ///
    /// Panics on a tape created by `forward_only`.
    pub fn d_hidden_mut(&mut self) -> ViewMut<'_> {
        let rows = self.activations.rows;
        self.back.as_mut().expect("a forward-only tape has no backward buffers").d_hidden.rows_mut(0..rows)
    }
    /// Log-probabilities of the R scored tokens `[R]`, from the last [`head_forward`](super::head_forward).
    pub fn logps(&self) -> View<'_> {
        self.head.logps.rows(0..self.head.rows)
    }
    /// Log-sum-exp of the logits / temperature for each of the R scored tokens `[R]`.
    pub fn lse(&self) -> View<'_> {
        self.head.lse.rows(0..self.head.rows)
    }
    /// The hidden states that predict the R scored tokens `[R, H]`.
    pub(crate) fn scored_hidden(&self) -> View<'_> {
        self.head.hidden.rows(0..self.head.rows)
    }
    /// Scores from a score head, one for each of the R scored tokens `[R]`, from the last
    /// [`score_forward`](super::score_forward).
    pub fn scores(&self) -> View<'_> {
        self.logps()
    }
    /// Entropy of the next-token distribution at each of the R scored tokens `[R]`, in nats.
    pub fn entropies(&self) -> View<'_> {
        self.head.entropies.rows(0..self.head.rows)
    }
    /// Fails if the tape has no room for the forward pass of a batch of this size.
    pub(super) fn check(&self, batch: Capacity) -> Result<()> {
        self.check_restored(batch)?;
        let (rows, room) = (batch.tokens, self.forwarded);
        if rows > room { Err(no_room("rows", rows, room)) } else { Ok(()) }
    }
    /// Fails if the tape has no room to restore a batch of this size.
    pub(super) fn check_restored(&self, batch: Capacity) -> Result<()> {
        let room = self.capacity;
        let of = [
            ("rows", batch.tokens, room.tokens),
            ("pages", batch.blocks, room.blocks),
            ("scored tokens", batch.score_rows, room.score_rows),
        ];
        of.into_iter()
            .find(|(_, need, room)| need > room)
            .map_or(Ok(()), |(what, need, room)| Err(no_room(what, need, room)))
    }
}

fn no_room(what: &str, need: usize, room: usize) -> Error {
    Error::Value { op: "forward", message: format!("{need} {what}, but the buffers have room for only {room}") }
}
