//! `lockstep rank`: a rank other than 0 of a run with `--ranks`, which rank 0 starts.

use crate::distributed::EndedWith;
use lockstep::error::is_bad_input;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::sync::Arc;

pub(crate) fn run() -> anyhow::Result<()> {
    // A scheduler may send a signal to all processes of a job. Rank 0 then saves a checkpoint and ends the other ranks.
    for signal in [SIGHUP, SIGINT, SIGTERM, SIGUSR1] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    let served = lockstep::ranks::serve();
    served.map_err(|error| if is_bad_input(&error) { error } else { EndedWith(1).into() })
}
