//! `lockstep init`.

use crate::bad_input;
use crate::error::OrBadInput;
use anyhow::Context as _;
use kernels::{Device, Memory};
use model::io::SaveOptions;
use model::weights::tensor_specs;
use model::{ModelConfig, Tokenizer, Weights};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Makes a model directory with random weights of a shape.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shape: a Hugging Face config.json.
    #[arg(long, value_name = "config.json")]
    pub config: PathBuf,
    /// Copies the tokenizer from this directory.
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    /// The seed of the weights.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// The directory to write; must not exist, or be empty.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let config = Arc::new(ModelConfig::load(&args.config).or_bad_input()?);
    if let Some(dir) = &args.tokenizer {
        Tokenizer::load(dir).and_then(|t| t.check_fits(&config)).or_bad_input_in(dir.display())?;
    }
    let out = std::path::absolute(&args.out).or_bad_input_in(args.out.display())?;
    let (Some(parent), Some(name)) = (out.parent(), out.file_name()) else {
        bad_input!("--out {}: give the name of a new directory", args.out.display());
    };
    let free = match std::fs::read_dir(&out) {
        Ok(mut entries) => entries.next().is_none(),
        Err(e) => e.kind() == std::io::ErrorKind::NotFound,
    };
    if !free {
        bad_input!("--out {}: exists and is no empty directory; nothing is overwritten", args.out.display());
    }
    std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;

    // Beside the target and renamed when whole, so that no half-written model is ever found under its name.
    let temporary = parent.join(format!(".{}.{}.partial", name.to_string_lossy(), std::process::id()));
    let written = write(&args, &config, &temporary)
        .and_then(|()| std::fs::rename(&temporary, &out).with_context(|| format!("cannot create {}", out.display())));
    if written.is_err() {
        // The error that matters is the one that is returned.
        let _ = std::fs::remove_dir_all(&temporary);
    }
    written?;
    let parameters: usize = tensor_specs(&config).iter().map(|t| t.shape.iter().product::<usize>()).sum();
    eprintln!(
        "{}: {} with {parameters} random parameters, seed {}",
        args.out.display(),
        config.family.architecture(),
        args.seed
    );
    Ok(())
}

fn write(args: &Args, config: &Arc<ModelConfig>, dir: &Path) -> anyhow::Result<()> {
    let weights = Weights::random(&Memory::new(Device::Cpu), config, args.seed)?;
    Ok(model::io::save_model(dir, config, &weights, args.tokenizer.as_deref(), SaveOptions::default())?)
}
