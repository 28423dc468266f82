//! `lockstep doctor`.

/// Says what this machine has, what will be used, and why.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// As JSON.
    #[arg(long)]
    pub json: bool,
    /// Threads; all cores if not given.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let _ = args;
    anyhow::bail!("doctor is not built yet")
}
