//! `lockstep config`.

/// Shows, explains and translates configurations.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let _ = args;
    anyhow::bail!("config is not built yet")
}
