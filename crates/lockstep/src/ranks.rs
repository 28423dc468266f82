//! Several ranks: processes on this machine that divide the passes of each step, with the bits of one process.
//!
//! The process of the run is rank 0. It starts the other ranks, shares its weights with them, and does everything else:
//! generation, rewards, the optimizer step, logs and checkpoints ([`train::World`] describes the division).

use crate::bad_input;
use crate::config::{Config, Resolved};
use crate::error::BadInput;
use crate::stop::StopSignal;
use kernels::{Context, Device};
use model::{AdaptedWeights, ModelConfig, Sharing};
use ranks::{Limits, Link, Peers};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use telemetry::build::Build;
use telemetry::counted;
use train::{Trainer, World};

/// The other ranks of a run.
pub struct RankOptions {
    /// The number of ranks, with rank 0.
    pub(crate) world_size: usize,
    /// The command that starts a rank, a process that calls [`serve`].
    pub(crate) command: Box<dyn Fn() -> Command>,
    /// How the ranks read the weights.
    pub(crate) sharing: Sharing,
}

impl RankOptions {
    /// Sets `gradient_shares` to the number of ranks, if no layer sets it, and refuses a run that ranks cannot divide.
    /// Returns a message for the start of the run.
    pub(crate) fn prepare(&self, resolved: &mut Resolved, ctx: &Context) -> anyhow::Result<String> {
        let world_size = check_world_size(self.world_size)?;
        resolved.share_among(world_size);
        let config = &resolved.config;
        refuse_what_ranks_cannot(config, world_size, ctx.memory().device())?;
        let shares = config.gradient_shares;
        let threads = (ctx.threads() / world_size).max(1);
        Ok(format!(
            "{} of {} for the passes of each step; gradient_shares = {shares}: one process computes the same bits with \
             --set gradient_shares={shares}",
            counted(world_size, "rank"),
            counted(threads, "thread")
        ))
    }

    /// Starts the other ranks and divides the steps of `trainer` among them. If a rank is lost later, `stop` is
    /// requested.
    pub(crate) fn start(
        &self,
        trainer: &mut Trainer,
        ctx: &Context,
        model: &Arc<ModelConfig>,
        stop: &StopSignal,
    ) -> anyhow::Result<()> {
        let stop = stop.clone();
        let peers = Peers::start(self.world_size, Limits::default(), |_| (self.command)(), move || stop.request())?;
        let world =
            World { peers: Arc::new(peers), model: 0, run: self.sharing.run, build: Build::current().to_string() };
        Ok(trainer.use_ranks(ctx, model, world)?)
    }
}

/// The weights of a trained model, as other ranks read them. Does nothing in a run of one process.
#[derive(Default)]
pub(crate) struct PublishedWeights(Option<PathBuf>);

impl PublishedWeights {
    /// Publishes the weights of the next step to other ranks, before readers in this process hold them.
    pub(crate) fn publish(&mut self, trainer: &Trainer, weights: &mut AdaptedWeights) -> anyhow::Result<()> {
        if trainer.has_ranks() {
            self.0 = Some(weights.publish(weights.version().0, [0; 16])?.path);
        }
        Ok(())
    }

    /// Lets other ranks read the published weights until the gradient is complete.
    pub(crate) fn share(&self, trainer: &Trainer, weights: &AdaptedWeights) -> anyhow::Result<()> {
        let Some(published) = &self.0 else { return Ok(()) };
        Ok(trainer.share_weights(published, weights.shared_base.as_deref())?)
    }
}

/// Works as a rank other than 0, whose standard input is the socket that rank 0 gave it. The process exits when rank 0
/// ends. A failure has been reported to rank 0.
pub fn serve() -> anyhow::Result<()> {
    // Without rank 0, the result of this process has no use.
    let link = Link::on_stdin(Limits::default().heartbeat, || std::process::exit(0));
    let link = link.map_err(|error| BadInput::new(format!("{error}: `lockstep train --ranks N` starts the ranks")))?;
    Ok(train::serve_rank(&link, &Build::current().to_string())?)
}

/// Refuses a number of ranks that is not a power of two, or too large.
pub fn check_world_size(world_size: usize) -> anyhow::Result<usize> {
    match world_size {
        0 => bad_input!("--ranks must be at least 1, got 0"),
        n if !n.is_power_of_two() => {
            let (below, above) = (n.next_power_of_two() / 2, n.next_power_of_two());
            bad_input!(
                "--ranks must be a power of two, since gradients are added in pairs, got {n}: use {below} or {above}"
            )
        }
        n if n > 64 => bad_input!("--ranks {n} is more than the largest gradient_shares, 64"),
        n => Ok(n),
    }
}

fn refuse_what_ranks_cannot(config: &Config, world_size: usize, device: Device) -> anyhow::Result<()> {
    let shares = config.gradient_shares;
    if world_size > shares {
        bad_input!(
            "--ranks {world_size} is more than gradient_shares = {shares}, by which the gradients of this run are \
             divided: use --ranks {shares}, or start a new run with gradient_shares = {world_size}"
        );
    }
    if device != Device::Cpu {
        bad_input!("--ranks divides the threads of a CPU, but the device is {}: use --device cpu", device.name());
    }
    Ok(())
}
