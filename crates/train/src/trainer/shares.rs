//! The gradient of an optimizer step as a sum over shares of its groups.
//!
//! A sum in floating point depends on its order. To divide a step among processes without changing the bits of the
//! result, the order is fixed beforehand: the n groups of the step are split into S shares (a power of two), with group
//! i in share ⌊i·S/n⌋. Within a share, every element of the gradient is a sequential sum over the tokens, starting from
//! 0. The shares are added as a balanced binary tree: neighbours first, then pairs of neighbours, and so on. R
//! processes, where R is a power of two up to S, each compute S/R consecutive shares, which are a subtree (decision
//! 0003).
//!
//! With one share, the gradient is a single sequential sum.

use crate::{Error, Result};
use kernels::Context;
use model::{Grads, Params};

/// The shares of a step that this process computes, and the sums of those that are complete.
pub(super) struct Shares {
    /// The number of shares of the whole step.
    total: usize,
    /// The first share of this process.
    first: usize,
    /// The number of shares of this process, a power of two.
    count: usize,
    /// The number of complete shares of this process.
    complete: usize,
    /// At index l, the sum of 2ˡ complete shares that waits for the sum of the next 2ˡ, if bit l of `complete` is set.
    partial: Vec<Params>,
    /// Numbers of the buffers of the current share and of each partial sum, which are swapped.
    buffers: Vec<usize>,
}

impl Shares {
    /// All `total` shares, a power of two. `zeros` allocates the gradients of all trained parameters.
    pub(super) fn new(total: usize, zeros: impl Fn() -> Params) -> Result<Shares> {
        if !total.is_power_of_two() {
            let why = "must be a power of two, since the shares are added in pairs";
            return Err(Error::Config(format!("gradient_shares = {total}: {why}")));
        }
        Ok(Shares::of(total, 0, total, (0..total.ilog2()).map(|_| zeros()).collect()))
    }

    /// `count` of `total` shares, both powers of two, from `first` on; `partial` has log₂(count) gradients.
    pub(super) fn of(total: usize, first: usize, count: usize, partial: Vec<Params>) -> Shares {
        let buffers = (0..=partial.len()).collect();
        Shares { total, first, count, complete: 0, partial, buffers }
    }

    /// Leaves all shares but the first `count`, a power of two, to other processes.
    pub(super) fn keep_first(&mut self, count: usize) {
        self.partial.truncate(count.ilog2() as usize);
        self.count = count;
    }

    /// The number of shares of the whole step.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// The share of group `group` of a step with `groups` groups.
    pub(super) fn index(&self, group: usize, groups: usize) -> usize {
        (group * self.total / groups.max(1)).min(self.total - 1)
    }

    /// Begins a step: no share is complete, and all gradients are zero.
    pub(super) fn begin(&mut self, ctx: &Context, grads: &mut Grads) {
        self.complete = 0;
        grads.zero(ctx);
    }

    /// Completes the shares before `share`, so that `grads` is ready for it. Shares without a group are also added, as
    /// zeros, since 0 added to −0 is 0.
    pub(super) fn enter(&mut self, ctx: &Context, grads: &mut Grads, share: usize) -> kernels::Result<()> {
        while self.first + self.complete < share {
            self.complete(ctx, grads)?;
        }
        Ok(())
    }

    /// Completes all shares of this process. `grads` then contains their sum.
    pub(super) fn finish(&mut self, ctx: &Context, grads: &mut Grads) -> kernels::Result<()> {
        self.enter(ctx, grads, self.first + self.count)
    }

    /// The number of the buffer that `grads` uses now: 0 at first, and 1 + l for that of the partial sum l.
    pub(super) fn buffer(&self) -> usize {
        self.buffers[0]
    }

    /// Completes the current share, whose gradient is in `grads`.
    fn complete(&mut self, ctx: &Context, grads: &mut Grads) -> kernels::Result<()> {
        grads.finish(ctx)?;
        let mut level = 0;
        while self.complete >> level & 1 == 1 {
            grads.params.add(ctx, &self.partial[level])?;
            level += 1;
        }
        self.complete += 1;
        if self.complete < self.count {
            std::mem::swap(&mut grads.params, &mut self.partial[level]);
            self.buffers.swap(0, 1 + level);
            grads.zero(ctx);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
