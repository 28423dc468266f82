//! `lockstep plan`.

use super::options::ConfigArgs;

/// Says what memory a run will take, by part, before it starts.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let _ = args;
    anyhow::bail!("plan is not built yet")
}
