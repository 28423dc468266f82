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

/// The sums of the shares that are complete.
pub(super) struct Shares {
    count: usize,
    /// The number of complete shares.
    complete: usize,
    /// At index l, the sum of 2ˡ complete shares that waits for the sum of the next 2ˡ, if bit l of `complete` is set.
    partial: Vec<Params>,
}

impl Shares {
    /// `count` shares, a power of two. `zeros` allocates the gradients of all trained parameters.
    pub(super) fn new(count: usize, zeros: impl Fn() -> Params) -> Result<Shares> {
        if !count.is_power_of_two() {
            let why = "must be a power of two, since the shares are added in pairs";
            return Err(Error::Config(format!("gradient_shares = {count}: {why}")));
        }
        Ok(Shares { count, complete: 0, partial: (0..count.ilog2()).map(|_| zeros()).collect() })
    }

    /// The share of group `group` of a step with `groups` groups.
    pub(super) fn index(&self, group: usize, groups: usize) -> usize {
        (group * self.count / groups.max(1)).min(self.count - 1)
    }

    /// Begins a step: no share is complete, and all gradients are zero.
    pub(super) fn begin(&mut self, ctx: &Context, grads: &mut Grads) {
        self.complete = 0;
        grads.zero(ctx);
    }

    /// Completes the shares before `share`, so that `grads` is ready for it. Shares without a group are also added, as
    /// zeros, since 0 added to −0 is 0.
    pub(super) fn enter(&mut self, ctx: &Context, grads: &mut Grads, share: usize) -> kernels::Result<()> {
        while self.complete < share {
            self.complete(ctx, grads)?;
        }
        Ok(())
    }

    /// Completes all shares. `grads` then contains their sum.
    pub(super) fn finish(&mut self, ctx: &Context, grads: &mut Grads) -> kernels::Result<()> {
        self.enter(ctx, grads, self.count)
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
            grads.zero(ctx);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
