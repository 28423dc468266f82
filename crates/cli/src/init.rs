//! `lockstep init`: writes a model with random weights.

use crate::new_directory::new_directory;
use crate::output;
use kernels::{Device, Memory};
use lockstep::bad_input;
use lockstep::error::OrBadInput;
use model::io::{ModelFiles, SaveOptions};
use model::tokenizer::SpecialTokens;
use model::weights::tensor_specs;
use model::{ModelConfig, Tokenizer, Weights};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Creates a model directory with random weights.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A Hugging Face config.json, which gives the model's shape.
    #[arg(long, value_name = "config.json")]
    pub config: PathBuf,
    /// Copies the tokenizer from this directory.
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    /// Creates a tokenizer with one token per character of TEXT, after <pad> (id 0) and <eos> (id 1).
    #[arg(long, value_name = "TEXT", conflicts_with = "tokenizer")]
    pub characters: Option<String>,
    /// The seed of the random weights.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// The directory to create; must be empty or not exist.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = Arc::new(ModelConfig::load(&args.config).or_bad_input_in("--config")?);
    if let Some(dir) = &args.tokenizer {
        // Errors of `load` already name the file.
        Tokenizer::load(dir).or_bad_input()?.check_fits(&config).or_bad_input_in(dir.display())?;
    }
    let characters = args.characters.as_deref().map(of_characters).transpose()?;
    if let Some(made) = &characters {
        made.check_fits(&config).or_bad_input_in("--characters")?;
        let (ends, end) = (&config.eos_token_ids, made.eos_id());
        if ends.iter().any(|id| Some(*id) != end) {
            bad_input!(
                "{}: eos_token_id is {ends:?}, but the <eos> of --characters is token {}: change or remove the field",
                args.config.display(),
                end.unwrap_or_default()
            );
        }
    }
    new_directory(&args.out, |dir| write(&args, &config, characters.as_ref(), dir))?;
    let parameters: usize = tensor_specs(&config).iter().map(|t| t.shape.iter().product::<usize>()).sum();
    output::note(format_args!(
        "{}: {} with {parameters} random parameters, seed {}",
        args.out.display(),
        config.family.architecture,
        args.seed
    ));
    Ok(())
}

/// A tokenizer with one token per character. Its end token is `<eos>`. Text with any other character is refused.
fn of_characters(text: &str) -> anyhow::Result<Tokenizer> {
    if text.is_empty() {
        bad_input!("--characters must not be empty: list every character of the prompts and answers");
    }
    let special = SpecialTokens { pad: Some("<pad>".into()), eos: Some("<eos>".into()), ..SpecialTokens::default() };
    Tokenizer::characters(text.chars(), &special).or_bad_input_in("--characters")
}

fn write(args: &Args, config: &Arc<ModelConfig>, characters: Option<&Tokenizer>, dir: &Path) -> anyhow::Result<()> {
    let weights = Weights::random(&Memory::new(Device::Cpu), config, args.seed)?;
    let copied = args.tokenizer.as_deref().map(ModelFiles::read).transpose()?;
    model::io::save_model(dir, config, &weights, copied.as_ref(), SaveOptions::default())?;
    characters.map_or(Ok(()), |made| Ok(made.save(dir)?))
}
