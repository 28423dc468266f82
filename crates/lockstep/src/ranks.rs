//! Several ranks: processes on this machine that divide generation and the passes of each step, with the bits of one
//! process.
//!
//! The process of the run is rank 0. It starts the other ranks, or meets those that a launcher has started, shares its
//! weights with them, and does everything else: data, rewards, the optimizer step, logs and checkpoints
//! ([`train::World`] and `rollouts/divided` describe the division).

mod log;

use crate::bad_input;
use crate::config::{Config, Resolved};
use crate::error::BadInput;
use crate::rollouts::divided::{self, RankEngine};
use crate::stop::StopSignal;
use kernels::{Context, Device};
use model::{AdaptedWeights, ModelConfig, Sharing};
use ranks::{Error, Limits, Message, Peers};
pub use ranks::{Launch, Link, Rendezvous};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use telemetry::build::Build;
use telemetry::{Sinks, counted};
use train::{OtherWork, RankModel, SendReply, Trainer, World};

/// The other ranks of a run.
pub struct RankOptions {
    /// The number of ranks, with rank 0.
    pub(crate) world_size: usize,
    pub(crate) processes: RankProcesses,
    /// How the ranks read the weights.
    pub(crate) sharing: Sharing,
}

/// The processes of the other ranks, which call [`serve`].
pub(crate) enum RankProcesses {
    /// Child processes, which this command starts.
    Started(Box<dyn Fn() -> Command>),
    /// Processes of a launcher.
    Launched(Arc<Rendezvous>),
}

impl RankOptions {
    /// Sets `gradient_shares` to the number of ranks, if no layer sets it, and refuses a run that ranks cannot divide.
    /// Returns a message for the start of the run.
    pub(crate) fn prepare(&self, resolved: &mut Resolved, ctx: &Context) -> anyhow::Result<String> {
        let flag = match &self.processes {
            RankProcesses::Started(_) => "--ranks",
            RankProcesses::Launched(rendezvous) => rendezvous.launch().size,
        };
        let world_size = check_world_size(self.world_size, flag)?;
        resolved.share_among(world_size);
        let config = &resolved.config;
        refuse_what_ranks_cannot(config, world_size, flag, ctx.memory().device())?;
        let shares = config.gradient_shares;
        let threads = (ctx.threads() / world_size).max(1);
        Ok(format!(
            "{} of {}; gradient_shares = {shares}: one process computes the same bits with --set \
             gradient_shares={shares}",
            counted(world_size, "rank"),
            counted(threads, "thread")
        ))
    }

    /// Starts or meets the other ranks and divides the steps of `trainer` among them. If a rank is lost later, `stop`
    /// is requested.
    pub(crate) fn start(
        &self,
        trainer: &mut Trainer,
        ctx: &Context,
        model: &Arc<ModelConfig>,
        stop: &StopSignal,
        sinks: &Sinks,
    ) -> anyhow::Result<()> {
        let requested = stop.clone();
        let (limits, on_loss) = (Limits::default(), move || requested.request());
        let peers = match &self.processes {
            RankProcesses::Started(command) => Peers::start(self.world_size, limits, |_| command(), on_loss)?,
            RankProcesses::Launched(rendezvous) => {
                let mut note = |text: &str| sinks.info(text);
                let met = Peers::launched(rendezvous, limits, &|| stop.is_requested(), &mut note, on_loss);
                let peers = met.map_err(launch_error)?;
                if !rendezvous.ranks_on_other_cores().is_empty() {
                    sinks.warn(BOUND);
                }
                peers
            }
        };
        let world = World::new(Arc::new(peers), self.sharing.run, Build::current().to_string());
        Ok(trainer.use_ranks(ctx, model, world)?)
    }
}

/// Publishes the weights of the next step to other ranks, if there are any, before readers in this process hold them.
pub(crate) fn publish(trainer: &Trainer, weights: &mut AdaptedWeights) -> anyhow::Result<()> {
    if trainer.has_ranks() {
        weights.publish(weights.version().0, [0; 16])?;
    }
    Ok(())
}

/// Lets the other ranks of a trainer, if there are any, read the published weights until the gradient is complete.
pub(crate) fn share(trainer: &Trainer, weights: &AdaptedWeights) -> anyhow::Result<()> {
    trainer.other_ranks().map_or(Ok(()), |ranks| divided::share(&ranks, weights))
}

/// A warning if a launcher binds each rank to cores of its own.
const BOUND: &str = "the launcher binds each rank to cores of its own, so all ranks together use only as many threads \
                     as rank 0 has cores: mpirun --bind-to none and srun --cpu-bind=none let them use all cores";

/// The connection to rank 0 of a rank whose standard input is the socket that rank 0 gave it. The process exits when
/// rank 0 ends.
pub fn link_of_child() -> anyhow::Result<Link> {
    // Without rank 0, the result of this process has no use.
    let link = Link::on_stdin(Limits::default().heartbeat, |_| {
        log::note("rank 0 has ended");
        std::process::exit(0)
    });
    link.map_err(|error| BadInput::new(format!("{error}: `lockstep train --ranks N` starts the ranks")))
}

/// Lets the other ranks of a launch join this process, its rank 0.
pub fn open(launch: Launch) -> anyhow::Result<Rendezvous> {
    Rendezvous::open(launch, &Build::current().to_string()).map_err(launch_error)
}

/// The connection to rank 0 of another rank of a launch, which waits until rank 0 has started. `note` is called if this
/// takes long. The process exits when rank 0 ends, with its code.
pub fn join(launch: &Launch, note: &mut dyn FnMut(&str)) -> anyhow::Result<Link> {
    let limits = Limits::default();
    let stream = ranks::join(launch, &Build::current().to_string(), limits, note).map_err(launch_error)?;
    let ended = |code: Option<u8>| {
        log::note(&format!("rank 0 has ended with exit code {}", code.map_or("unknown".to_owned(), |c| c.to_string())));
        std::process::exit(code.map_or(1, i32::from))
    };
    Ok(Link::of(stream, limits.heartbeat, ended)?)
}

/// The place of this process among those that a launcher has started; `None` without a launcher, or if the process is
/// alone.
pub fn launch_from_env() -> anyhow::Result<Option<Launch>> {
    Launch::from_env().map_err(launch_error)
}

/// Refuses a launch on several machines, or with a number of ranks that is not possible.
pub fn check_launch(launch: &Launch) -> anyhow::Result<()> {
    launch.check_nodes().map_err(launch_error)?;
    check_world_size(launch.world_size, launch.size).map(drop)
}

fn launch_error(error: Error) -> anyhow::Error {
    match error {
        Error::Refused(why) => BadInput::new(why),
        error => train::Error::from(error).into(),
    }
}

/// Works as a rank other than 0 until rank 0 ends. A failure has been reported to rank 0.
pub fn serve(link: &Link) -> anyhow::Result<()> {
    log::note(&format!("process {}, {}", std::process::id(), Build::current()));
    log::note_panics();
    Ok(train::serve_rank(link, &Build::current().to_string(), &mut Work::default())?)
}

/// The work of this rank besides training.
#[derive(Default)]
struct Work(RankEngine);

impl OtherWork for Work {
    fn work(&mut self, model: RankModel<'_>, work: &Message, reply: &SendReply<'_>) -> train::Result<Message> {
        let done = self.0.work(model, work, reply, &log::note);
        done.map_err(|error| train::Error::Rank(format!("{error:#}")))
    }

    fn open_log(&mut self, file: &Path) -> train::Result<()> {
        let named = |error| train::Error::Rank(format!("cannot write the log {}: {error}", file.display()));
        log::open(file).map_err(named)
    }

    fn note(&mut self, text: &str) {
        log::note(text);
    }
}

/// Refuses a number of ranks that is not a power of two, or too large. `flag` names the flag or variable with the
/// number.
pub fn check_world_size(world_size: usize, flag: &str) -> anyhow::Result<usize> {
    match world_size {
        0 => bad_input!("{flag} must be at least 1, got 0"),
        n if !n.is_power_of_two() => {
            let (below, above) = (n.next_power_of_two() / 2, n.next_power_of_two());
            bad_input!(
                "{flag} must be a power of two, since gradients are added in pairs, got {n}: use {below} or {above}"
            )
        }
        n if n > 64 => bad_input!("{flag} {n} is more than the largest gradient_shares, 64"),
        n => Ok(n),
    }
}

fn refuse_what_ranks_cannot(config: &Config, world_size: usize, flag: &str, device: Device) -> anyhow::Result<()> {
    let shares = config.gradient_shares;
    if world_size > shares {
        bad_input!(
            "{flag} {world_size} is more than gradient_shares = {shares}, by which the gradients of this run are \
             divided: use {flag} {shares}, or start a new run with gradient_shares = {world_size}"
        );
    }
    if device != Device::Cpu {
        bad_input!("{flag} divides the threads of a CPU, but the device is {}: use --device cpu", device.name());
    }
    Ok(())
}
