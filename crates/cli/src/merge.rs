//! `lockstep merge`: merges a LoRA adapter into its base model.

use crate::new_directory::new_directory;
use crate::output;
use lockstep::Policy;
use lockstep::StopSignal;
use lockstep::config::{ComputeDType, SaveDType};
use lockstep::context;
use lockstep::error::OrBadInput;
use lockstep::weights::check_base;
use model::io::dtype_of_files;
use std::path::PathBuf;

/// Merges a LoRA adapter into the model that it was trained on, and writes the result as a model (a reward model, if
/// the adapter belongs to a reward model).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model: a Hugging Face directory.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// The adapter: a PEFT directory.
    #[arg(long, value_name = "DIR")]
    pub adapter: PathBuf,
    /// Allows an adapter that was trained on other base weights.
    #[arg(long)]
    pub other_base: bool,
    /// The dtype of the written weights: auto (the dtype of the model's files), f32, bf16 or f16.
    #[arg(long, value_name = "DTYPE", default_value = "auto", value_parser = ["auto", "f32", "bf16", "f16"])]
    pub save_dtype: String,
    /// The directory to create; must be empty or not exist.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if !args.other_base {
        check_base(&args.adapter, &args.model, &StopSignal::new(), output::warn)?;
    }
    let loaded = dtype_of_files(&args.model).or_bad_input()?;
    let dtype = SaveDType::from(&*args.save_dtype).file_dtype(false, false, Some(loaded));
    let ctx = context(None, None, ComputeDType::F32)?;
    new_directory(&args.out, |dir| {
        let mut policy = Policy::load_below(&ctx, &args.model, &args.adapter, ComputeDType::F32)?;
        if let Some(adapter) = policy.weights.adapter.take() {
            policy.weights.base.overwrite(|weights| weights.merge(adapter.current()));
        }
        policy.exported = dtype;
        policy.export(dir)
    })?;
    output::note(format_args!(
        "{}: {} with {} added",
        args.out.display(),
        args.model.display(),
        args.adapter.display()
    ));
    Ok(())
}
