//! `lockstep reward`.

use crate::options::{ConfigArgs, LogArgs};
use lockstep::config::Purpose;

/// Trains a reward model on pairs of a better and a worse answer (Bradley–Terry).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Continues a run: its directory, or `latest` for the newest checkpoint under the output directory.
    #[arg(long, value_name = "DIR|latest")]
    pub resume: Option<String>,
    /// How it talks.
    #[command(flatten)]
    pub log: LogArgs,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    crate::session::run(Purpose::Reward, &args.config, args.resume.as_deref(), &args.log)
}
