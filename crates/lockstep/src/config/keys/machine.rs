//! Configuration keys of the machine: device, threads, memory and batching of computations.

use crate::config::keys::Config;

macro_rules! machine_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Machine" {
    /// The device: cpu, cuda (an NVIDIA GPU; cuda:1 is the second), or for tests cpu-checked and cuda-emulated; not
    /// set: LOCKSTEP_DEVICE, else cpu. In f32 no bit depends on it.
    device: Option<Device> = None
        => OURS.trl_has("use_cpu = true for the CPU, else the GPUs that torch finds").on_resume(Free);
    /// Threads; not set: all cores that the process may use. No bit depends on it.
    threads: Option<usize> = None => OURS.range(at_least(1.0).at_most(4096.0)).on_resume(Free);
    /// The most tokens (rows) of one forward and backward pass. A smaller value takes less memory; no bit depends on
    /// it.
    max_tokens_per_micro_batch: usize = 4096 => OURS.range(at_least(1.0).at_most(LONG)).on_resume(Free);
    /// Activation checkpointing: keep only each layer's input, and recompute the rest in the backward pass, for less
    /// memory and more work. No bit depends on it. (TRL's default, true, is for GPUs.)
    gradient_checkpointing: bool = false => TRL.trl_defaults(&[(ALL, "true")]).on_resume(Free);
    /// Compute a prompt once for all completions of its group, in generation and training. Log-probabilities have the
    /// same bits either way; gradients differ in rounding, since their sums run in another order.
    prefix_sharing: bool = true => OURS.on_resume(Warn);
    /// Cut the groups of an optimizer step into this many shares (a power of two), whose gradients are added as a tree.
    /// It decides the last bits of the gradients. Each doubling takes the memory of one more gradient.
    gradient_shares: usize = 1 => OURS.range(at_least(1.0).at_most(64.0)).on_resume(Fixed);
    /// Pack several groups into one training pass, up to max_tokens_per_micro_batch; false: one group per pass. No bit
    /// depends on it.
    packing: bool = true
        => OURS.trl_has("packing of SFTConfig, which splits and joins rows (default false)").on_resume(Free);
    /// The most sequences generated at the same time. No bit depends on it.
    max_num_seqs: usize = 64 => OURS.range(at_least(1.0).at_most(65536.0)).read_by(ONLINE).on_resume(Free);
    /// The size of the KV cache in blocks of 64 tokens; not set: enough for max_num_seqs sequences of max_model_len
    /// tokens.
    kv_cache_blocks: Option<usize> = None
        => OURS.range(at_least(1.0).at_most(67_108_863.0)).read_by(ONLINE).on_resume(Free);
    /// Speculative decoding. auto: while few completions are still being generated, draft their next tokens from
    /// existing text (the prompt, the group, earlier epochs) and verify several in one pass: as many as earlier passes
    /// accepted. No bit depends on it.
    speculative: Speculative = Speculative::Off
        => OURS.read_by(ONLINE).on_resume(Free);
    /// Keep the activations of generated tokens, so that the first update on them needs no forward pass: auto (as much
    /// as fits into half of the memory that the run leaves free), off, or a size such as 2GB. Groups that do not fit
    /// are computed again. No bit depends on it.
    rollout_activations: RolloutActivations = RolloutActivations::Auto => OURS.read_by(ONLINE).on_resume(Free);
    /// The most tokens of prompt + completion; not set: the model's context, or less if no prompt needs it.
    max_model_len: Option<usize> = None => TRL.trl_name("vllm_max_model_length").range(at_least(1.0)).on_resume(Free);
    /// Resume even if this machine's matmuls use another formula, as in bf16 with and without AMX; the last bits then
    /// differ.
    allow_other_isa: bool = false => OURS.on_resume(Free);
    /// Use an adapter even if the model's weights differ from those recorded in the adapter's files.
    allow_other_base: bool = false => OURS.on_resume(Free);
} } } }
pub(in crate::config) use machine_keys;

impl Config {
    /// The most tokens of one training pass. Without packing it is 1, so that every group, which is never split, gets
    /// its own pass.
    pub(crate) fn micro_batch_tokens(&self) -> usize {
        if self.packing { self.max_tokens_per_micro_batch } else { 1 }
    }
}
