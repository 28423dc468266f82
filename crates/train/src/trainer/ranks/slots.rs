//! Trees in shared memory that ranks access together. Each rank has its gradients in slots of its own, and updates a
//! part of the parameters in slots of rank 0. Rank 0 tells the others when to access the slots, waits for their
//! answers, and every rank then accesses only the elements of its [`Part`].

use crate::Result;
use crate::optimizer::Part;
use crate::trainer::shares::Shares;
use kernels::ops::grad_norm;
use kernels::{Context, Device, Memory};
use model::weights::{Lent, Sharing};
use model::{Grads, LoraConfig, ModelConfig, Params};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The gradient of a rank's shares, with its buffers in slots of shared memory.
pub(in crate::trainer) struct SharedGradients {
    pub(in crate::trainer) grads: Grads,
    pub(in crate::trainer) shares: Shares,
    /// The slot of each buffer of `shares`.
    pub(in crate::trainer) slots: Vec<PathBuf>,
}

impl SharedGradients {
    /// Zeros for the shares of rank `rank` of `world_size`, of `total` shares.
    pub(in crate::trainer) fn new(
        sharing: &Sharing,
        memory: &Memory,
        model: &ModelConfig,
        lora: Option<&LoraConfig>,
        [rank, world_size, total]: [usize; 3],
    ) -> Result<SharedGradients> {
        let count = total / world_size;
        let (mut buffers, mut slots) = (Vec::new(), Vec::new());
        for _ in 0..=count.ilog2() {
            let (params, path) = sharing.lend(&memory.part("gradients"), gradient_shape(model, lora))?;
            buffers.push(params);
            slots.push(path);
        }
        let grads = Grads::of(memory, model, lora, buffers.remove(0));
        Ok(SharedGradients { grads, shares: Shares::of(total, rank * count, count, buffers), slots })
    }
}

/// The shape of the gradients.
pub(super) fn gradient_shape(model: &ModelConfig, lora: Option<&LoraConfig>) -> Params {
    Params::trained(&Memory::new(Device::Meta), model, lora)
}

/// The slots of other ranks that this one has opened.
#[derive(Default)]
pub(super) struct Opened(BTreeMap<PathBuf, (Lent, Params)>);

impl Opened {
    /// Borrows the slot at `path`, with a tree of the shape `like`, until it is [given back](Self::give_back).
    pub(super) fn borrow(&mut self, path: &Path, memory: &Memory, like: impl FnOnce() -> Params) -> Result<Borrowed> {
        let (slot, params) = match self.0.remove(path) {
            Some(opened) => opened,
            None => Lent::open(path, memory, like())?,
        };
        slot.borrow()?;
        Ok(Borrowed { path: path.to_owned(), slot, params })
    }

    pub(super) fn give_back(&mut self, borrowed: Borrowed) {
        let Borrowed { path, slot, params } = borrowed;
        slot.give_back();
        self.0.insert(path, (slot, params));
    }
}

/// A tree in a slot of another rank, which this rank may access now.
pub(super) struct Borrowed {
    path: PathBuf,
    slot: Lent,
    pub(super) params: Params,
}

/// Adds the gradients of all ranks, which are at `gradients`, on the elements of `part`: into that of rank 0, as the
/// tree of the shares. `own` is that of this rank, `rank`. Returns the sums of squares of the part's chunks.
pub(super) fn reduce(
    ctx: &Context,
    opened: &mut Opened,
    gradients: &[PathBuf],
    (rank, own): (usize, &mut Params),
    part: &Part,
    like: impl Fn() -> Params,
) -> Result<Vec<f64>> {
    let mut others = Vec::new();
    for (_, path) in gradients.iter().enumerate().filter(|(of, _)| *of != rank) {
        others.push(opened.borrow(path, ctx.memory(), &like)?);
    }
    let mut trees: Vec<&mut Params> = others.iter_mut().map(|other| &mut other.params).collect();
    trees.insert(rank, own);
    let mut distance = 1;
    while distance < trees.len() {
        for to in (0..trees.len()).step_by(2 * distance) {
            let (first, second) = trees.split_at_mut(to + distance);
            first[to].add_elements(ctx, second[0], part.ranges())?;
        }
        distance *= 2;
    }
    let sums = grad_norm::sums_of_chunks(ctx, &part.views(trees[0]))?;
    for other in others {
        opened.give_back(other);
    }
    Ok(sums)
}
