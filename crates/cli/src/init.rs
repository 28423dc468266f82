//! `lockstep init`: writes a model with random weights.

use crate::new_directory::new_directory;
use crate::output;
use kernels::{Device, Memory};
use lockstep::error::OrBadInput;
use model::io::{ModelFiles, SaveOptions};
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

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = Arc::new(ModelConfig::load(&args.config).or_bad_input_in("--config")?);
    if let Some(dir) = &args.tokenizer {
        // (An error of loading names the file.)
        Tokenizer::load(dir).or_bad_input()?.check_fits(&config).or_bad_input_in(dir.display())?;
    }
    new_directory(&args.out, |dir| write(&args, &config, dir))?;
    let parameters: usize = tensor_specs(&config).iter().map(|t| t.shape.iter().product::<usize>()).sum();
    output::note(format_args!(
        "{}: {} with {parameters} random parameters, seed {}",
        args.out.display(),
        config.family.architecture,
        args.seed
    ));
    Ok(())
}

fn write(args: &Args, config: &Arc<ModelConfig>, dir: &Path) -> anyhow::Result<()> {
    let weights = Weights::random(&Memory::new(Device::Cpu), config, args.seed)?;
    let copied = args.tokenizer.as_deref().map(ModelFiles::read).transpose()?;
    Ok(model::io::save_model(dir, config, &weights, copied.as_ref(), SaveOptions::default())?)
}
