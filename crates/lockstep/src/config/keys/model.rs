//! Configuration keys of the model that is trained, and of the run's directory.

macro_rules! model_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Model and run" {
    /// The model to train: a Hugging Face directory, or a Hub id (fetched into the local cache); or the PEFT directory
    /// of a low-rank adapter to continue with, on the model that its adapter_config.json names.
    model_name_or_path: Option<String> = None => TRL.name().on_resume(Warn);
    /// The reference model of the KL term and of DPO, frozen; not set: the model as it was at the start (of an
    /// adapter: ref_adapter). It may be an adapter's directory. Loaded only if beta > 0.
    ref_model: Option<String> = None => OURS.name().read_by(REFERENCE.and(DPO)).on_resume(Warn);
    /// What matmuls read: f32; or bf16, which halves the memory of weights (beside f32 masters of what is trained), of
    /// keys and values, and of what the backward pass keeps. Sums, gradients and moments stay f32.
    dtype: ComputeDType = ComputeDType::F32 => OURS.trl_has("float32 weights, computed with in bfloat16 (bf16 = true)");
    /// The dtype of the weights in OUT/model, to which they are rounded: f32, bf16 or f16; "auto" is that of the files
    /// that the run began with (bf16 where `dtype` is; a new adapter is f32). Checkpoints keep every bit.
    save_dtype: SaveDType = SaveDType::Auto => OURS.trl_has("the dtype of the model in memory").on_resume(Free);
    /// The run's directory. Other files may be there, which the run leaves alone; a run may be there only to be
    /// resumed.
    output_dir: Option<PathBuf> = None => TRL.trl_has("the same; not set, it is trainer_output").on_resume(Free);
    /// A name for the run, kept in its config.toml.
    run_name: Option<String> = None => TRL.on_resume(Free);
    /// The seed of everything random: shuffling, sampling, initial weights.
    seed: u64 = 42 => TRL;
    /// The seed of shuffling alone; not set: `seed`.
    data_seed: Option<u64> = None => TRL;
    /// A preset that fills in columns, system prompt, rewards and what evaluation counts as right, where they are not
    /// set.
    task: Option<Task> = None => OURS;
} } } }
pub(in crate::config) use model_keys;
