//! Configuration keys of the model that is trained, and of the run's directory.

macro_rules! model_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Model and run" {
    /// The model to train: a Hugging Face directory, or a Hub id (fetched into the local cache); or the PEFT directory
    /// of a low-rank adapter to continue training, on the model named in its adapter_config.json.
    model_name_or_path: Option<String> = None => TRL.name().on_resume(Warn);
    /// The frozen reference model of the KL term and of DPO; not set: the model as it was at the start (for an adapter,
    /// see ref_adapter). It may be an adapter's directory. Loaded only if beta > 0.
    ref_model: Option<String> = None => OURS.name().read_by(REFERENCE.and(DPO)).on_resume(Warn);
    /// The dtype of matmul inputs: f32; or bf16, which halves the memory of weights (trained weights also have f32
    /// masters), of the KV cache, and of activations. Sums, gradients and moments stay f32.
    dtype: ComputeDType = ComputeDType::F32 => OURS.trl_has("float32 weights, computed with in bfloat16 (bf16 = true)");
    /// The dtype to which the weights in OUT/model are rounded: f32, bf16 or f16; "auto": the dtype of the files that
    /// the run began with (bf16 if `dtype` is bf16; f32 for a new adapter). Checkpoints keep every bit.
    save_dtype: SaveDType = SaveDType::Auto => OURS.trl_has("the dtype of the model in memory").on_resume(Free);
    /// The run's directory. Other files in it are left alone. If it already contains a run, that run can only be
    /// resumed.
    output_dir: Option<PathBuf> = None => TRL.trl_has("the same; not set, it is trainer_output").on_resume(Free);
    /// A name for the run, kept in its config.toml.
    run_name: Option<String> = None => TRL.on_resume(Free);
    /// The seed of everything random: shuffling, sampling, initial weights.
    seed: u64 = 42 => TRL;
    /// The seed of shuffling alone; not set: `seed`.
    data_seed: Option<u64> = None => TRL;
    /// A preset for columns, system prompt, rewards and the criterion of evaluations; it fills in keys that are not
    /// set.
    task: Option<Task> = None => OURS;
} } } }
pub(in crate::config) use model_keys;
