//! Ranks other than 0, which `lockstep rank` is if rank 0 starts it, and each training command if a launcher starts it;
//! and their end with rank 0.

use crate::options::RunArgs;
use crate::output;
use crate::program::EndedWith;
use lockstep::error::BadInput;
use lockstep::ranks::{self, Launch, Link, Rendezvous};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

/// How long a rank exits after rank 0, which reports what is wrong with their launch: a launcher that sees the first
/// process end may kill the others.
const AFTER_RANK_0: Duration = Duration::from_secs(1);

/// The place where this process, if it is rank 0 of a launch, meets the other ranks.
static RENDEZVOUS: OnceLock<Arc<Rendezvous>> = OnceLock::new();

/// The place where the other ranks of a launch meet this process, if it is rank 0 of one.
pub(crate) fn rendezvous() -> Option<Arc<Rendezvous>> {
    RENDEZVOUS.get().cloned()
}

/// In a training command that a launcher has started with others: lets them join if this process is rank 0; otherwise
/// works as a rank until rank 0 ends, and returns an error.
pub(crate) fn enter(args: &RunArgs, distributed: bool) -> anyhow::Result<()> {
    let Some(launch) = ranks::launch_from_env()? else { return Ok(()) };
    let checked = check(&launch, args, distributed);
    if launch.rank == 0 {
        checked?;
        let _ = RENDEZVOUS.set(Arc::new(ranks::open(launch)?));
        return Ok(());
    }
    if checked.is_err() {
        thread::sleep(AFTER_RANK_0);
        return Err(EndedWith(2).into());
    }
    Err(EndedWith(serve_launch(&launch)?).into())
}

/// Joins rank 0 of this launch, and works for it. The process exits when rank 0 ends, with its code. If the work fails
/// before, this function returns the exit code of a failure, which has been reported to rank 0.
pub fn serve_launch(launch: &Launch) -> anyhow::Result<u8> {
    let link = ranks::join(launch, &mut |text| output::note(text))?;
    // After the end of the connection the process must not begin a run of its own.
    let _ = serve(&link);
    Ok(1)
}

/// Ends the other ranks of a launch, if this process is rank 0 of one and about to exit with this code.
pub(crate) fn leave(exit_code: u8) {
    if let Some(rendezvous) = RENDEZVOUS.get() {
        rendezvous.end(exit_code);
    }
}

/// The sentence for a launch that cannot be a run. All of its processes come to the same result.
fn check(launch: &Launch, args: &RunArgs, distributed: bool) -> anyhow::Result<()> {
    ranks::check_launch(launch)?;
    let (size, world_size) = (launch.size, launch.world_size);
    match args.ranks {
        _ if distributed => Err(BadInput::new(format!(
            "--distributed cannot be combined with ranks yet, but {size} is {world_size}: start one process, or leave \
             out --distributed"
        ))),
        Some(ranks) if ranks != world_size => Err(BadInput::new(format!(
            "--ranks is {ranks}, but the launcher has started {world_size} processes ({size}): leave out --ranks"
        ))),
        _ => Ok(()),
    }
}

/// Works for the process that started this one, rank 0.
pub(crate) fn serve_parent() -> anyhow::Result<()> {
    serve(&ranks::link_of_child()?)
}

/// Works for rank 0, which reports a failure.
fn serve(link: &Link) -> anyhow::Result<()> {
    // A scheduler may send a signal to all processes of a job. Rank 0 then saves a checkpoint and ends the other ranks.
    for signal in [SIGHUP, SIGINT, SIGTERM, SIGUSR1] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    ranks::serve(link).map_err(|_| EndedWith(1).into())
}
