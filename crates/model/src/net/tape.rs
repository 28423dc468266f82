//! Buffers of fixed capacity, allocated once: the activations that a forward pass keeps for the backward pass, or
//! scratch alone.

use super::layer::{BackwardBuffers, LayerActivations, LayerScratch};
use crate::ModelConfig;
use crate::StopCheck;
use crate::batch::Capacity;
use crate::kv::KvCache;
use crate::weights::AdapterRanges;
use kernels::{DType, Error, Memory, Result, Tensor, View, ViewMut};

/// How much of a pass is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// One layer's: each layer overwrites the one before.
    Nothing,
    /// Every layer's input, and one layer's activations.
    Inputs,
    /// Every layer's activations.
    All,
}

/// What a pass through the layers writes.
pub(super) struct Activations {
    /// The input of each layer `[T, H]`; of one, where nothing is kept.
    pub inputs: Vec<Tensor>,
    /// What each layer computes; or what one does, where only inputs or nothing is kept.
    pub saved: Vec<LayerActivations>,
    /// What a layer's two halves add to the residual stream `[T, H]`.
    pub delta: Tensor,
    /// The residual stream after the last layer `[T, H]`.
    pub last: Tensor,
    /// 1 / rms of it `[T]`.
    pub rstd: Tensor,
    /// `last` after the final norm `[T, H]`, of what matmuls read.
    pub hidden: Tensor,
    /// What a half of a layer hands on.
    pub scratch: LayerScratch,
    /// T of the last pass.
    pub rows: usize,
    keep: Keep,
}

impl Activations {
    fn new(memory: &Memory, c: &ModelConfig, rows: usize, keep: Keep) -> Activations {
        let stream = || Tensor::zeros(memory, &[rows, c.hidden_size], DType::F32);
        let kept = |all: bool| if all { c.num_layers } else { 1 };
        let gates = keep != Keep::Nothing;
        Activations {
            inputs: (0..kept(keep != Keep::Nothing)).map(|_| stream()).collect(),
            saved: (0..kept(keep == Keep::All)).map(|_| LayerActivations::new(memory, c, rows, gates)).collect(),
            delta: stream(),
            last: stream(),
            rstd: Tensor::zeros(memory, &[rows], DType::F32),
            hidden: Tensor::zeros(memory, &[rows, c.hidden_size], c.compute),
            scratch: LayerScratch::new(&memory.part("workspace"), c, rows, gates),
            rows: 0,
            keep,
        }
    }

    /// Whether the layers share one [`LayerActivations`], so that the backward pass has to recompute it.
    pub fn shares(&self) -> bool {
        self.keep != Keep::All
    }
    /// Which of `inputs` is layer `layer`'s.
    pub fn input_of(&self, layer: usize) -> usize {
        if self.keep == Keep::Nothing { 0 } else { layer }
    }
    /// Which of `saved` is layer `layer`'s.
    pub fn saved_of(&self, layer: usize) -> usize {
        if self.keep == Keep::All { layer } else { 0 }
    }

    /// Takes `rows` rows into use, if there is room.
    pub fn begin(&mut self, rows: usize) -> Result<()> {
        let room = self.hidden.shape()[0];
        if rows > room {
            return Err(no_room("rows", rows, room));
        }
        self.rows = rows;
        Ok(())
    }
}

/// Buffers of inference: one layer's, used by all. Booked under "workspace".
pub struct Workspace {
    pub(super) activations: Activations,
    pub(super) adapters: AdapterRanges,
}

impl Workspace {
    /// Buffers for up to `max_rows` rows.
    pub fn new(memory: &Memory, config: &ModelConfig, max_rows: usize) -> Workspace {
        let activations = Activations::new(&memory.part("workspace"), config, max_rows, Keep::Nothing);
        Workspace { activations, adapters: AdapterRanges::default() }
    }
    /// The hidden rows `[T, H]` of the last [`infer`](super::infer), after the final norm.
    pub fn hidden(&self) -> View<'_> {
        self.activations.hidden.rows(0..self.activations.rows)
    }
}

/// What the scored rows need, in the forward and backward pass.
pub(super) struct HeadBuffers {
    /// Hidden rows that predict scored tokens `[R, H]`.
    pub hidden: Tensor,
    /// Log-probabilities, or scores `[R]`.
    pub logps: Tensor,
    /// `[R]`
    pub lse: Tensor,
    /// `[R]`
    pub entropies: Tensor,
    /// R of the last pass, and its temperature.
    pub rows: usize,
    pub inv_temperature: f32,
}

/// Buffers that only the backward pass needs.
pub(super) struct TapeBackward {
    pub layer: BackwardBuffers,
    /// The gradient of the hidden rows `[T, H]`.
    pub d_hidden: Tensor,
    /// The gradient of the hidden rows that predict scored tokens `[R, H]`.
    pub d_score_rows: Tensor,
}

/// Buffers of training: the activations of every layer (or, with checkpointing, the input of every layer and the
/// activations of one), the pages of one layer, and the gradients of the backward pass. Booked under "activations"
/// (what is kept for the backward pass) and "workspace".
pub struct Tape {
    pub(super) activations: Activations,
    pub(super) pages: KvCache,
    pub(super) head: HeadBuffers,
    pub(super) back: Option<TapeBackward>,
    pub(super) stop: StopCheck,
    capacity: Capacity,
}

impl Tape {
    /// Buffers for batches up to `capacity`. With `checkpointing` the backward pass computes every layer a second
    /// time, to the same bits.
    pub fn new(memory: &Memory, config: &ModelConfig, capacity: Capacity, checkpointing: bool) -> Tape {
        let keep = if checkpointing { Keep::Inputs } else { Keep::All };
        let memory = memory.part("workspace");
        let zeros = |rows: usize| Tensor::zeros(&memory, &[rows, config.hidden_size], DType::F32);
        let back = TapeBackward {
            layer: BackwardBuffers::new(&memory, config, capacity.tokens, capacity.blocks),
            d_hidden: zeros(capacity.tokens),
            d_score_rows: zeros(capacity.score_rows),
        };
        Tape { back: Some(back), ..Tape::with(&memory, config, capacity, keep) }
    }
    /// Buffers for [`forward`](super::forward) and [`score`](super::score) alone: there is no backward pass, and
    /// their size does not grow with the number of layers.
    pub fn forward_only(memory: &Memory, config: &ModelConfig, capacity: Capacity) -> Tape {
        Tape::with(memory, config, capacity, Keep::Nothing)
    }
    fn with(memory: &Memory, config: &ModelConfig, capacity: Capacity, keep: Keep) -> Tape {
        let workspace = memory.part("workspace");
        let memory = if keep == Keep::Nothing { &workspace } else { &memory.part("activations") };
        let column = || Tensor::zeros(&workspace, &[capacity.score_rows], DType::F32);
        Tape {
            activations: Activations::new(memory, config, capacity.tokens, keep),
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
        }
    }
    /// What passes over it ask before each layer: they end with [`Error::Stopped`](crate::Error::Stopped) where they
    /// are wanted no more, and what they have written by then means nothing.
    pub fn stop_with(mut self, stop: StopCheck) -> Tape {
        self.stop = stop;
        self
    }
    /// What the tape has room for.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }
    /// The hidden rows `[T, H]` of the last forward, after the final norm.
    pub fn hidden(&self) -> View<'_> {
        self.activations.hidden.rows(0..self.activations.rows)
    }
    /// The gradient of the hidden rows `[T, H]`, from which [`backward`](super::backward) starts.
    ///
    /// Panics on a tape that is for forward only.
    pub fn d_hidden_mut(&mut self) -> ViewMut<'_> {
        let rows = self.activations.rows;
        self.back.as_mut().expect("a tape with a backward pass").d_hidden.rows_mut(0..rows)
    }
    /// Log-probabilities of the scored tokens `[R]`, of the last [`head_forward`](super::head_forward).
    pub fn logps(&self) -> View<'_> {
        self.head.logps.rows(0..self.head.rows)
    }
    /// The hidden rows that predict them `[R, H]`.
    pub(crate) fn scored_hidden(&self) -> View<'_> {
        self.head.hidden.rows(0..self.head.rows)
    }
    /// Scores of the rows that predict them `[R]`, of the last [`score_forward`](super::score_forward).
    pub fn scores(&self) -> View<'_> {
        self.logps()
    }
    /// Entropies of the distributions that scored tokens come from `[R]`, in nats.
    pub fn entropies(&self) -> View<'_> {
        self.head.entropies.rows(0..self.head.rows)
    }
    /// Refuses a batch that it has no room for.
    pub(super) fn check(&self, batch: Capacity) -> Result<()> {
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
    Error::Value { op: "forward", message: format!("{need} {what}, and buffers for {room}") }
}
