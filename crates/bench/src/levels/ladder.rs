//! The levels of optimization of `lockstep bench levels`. Each adds one idea to the level before it.

use kernels::{Context, Isa};
use lockstep::config::ComputeDType;
use serde_json::{Value, json};

/// The way in which a level generates completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generation {
    /// No KV cache: every token recomputes its whole sequence.
    WithoutCache,
    /// Static batches: a batch runs until its longest completion ends.
    Static,
    /// Continuous batching: when a completion ends, the next completion takes its slot.
    Continuous,
    /// Continuous batching in which the completions of a prompt share its KV-cache pages.
    SharedPrompt,
}

/// The way in which a level computes the update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Update {
    /// Completions are padded to the longest one, and full logits are stored in memory.
    Padded,
    /// No padding, but full logits are stored in memory.
    Packed,
    /// No padding. Log-probabilities and their gradient are computed in one fused pass over the lm head, so that logits
    /// are never stored.
    FusedHead,
    /// The lm head is fused, and each prompt is computed once for all its completions.
    SharedPrompt,
}

/// One level of optimization.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    /// The level's name on the command line.
    pub id: &'static str,
    /// The idea that the level adds, in a few words.
    pub name: &'static str,
    /// The named level to which this level belongs: baseline, basic, advanced or optimal.
    pub stage: &'static str,
    /// The idea that the level adds, in a sentence.
    pub idea: &'static str,
    /// The source file that implements the idea.
    pub code: &'static str,
    pub(super) generation: Generation,
    pub(super) update: Update,
    /// Whether vector instructions are used.
    pub(super) vectors: bool,
    /// Whether all threads are used, instead of one.
    pub(super) threads: bool,
    /// Whether matmuls compute in bf16, instead of f32.
    pub(super) bf16: bool,
    /// Whether the first update on a generation reuses the activations that were kept from it.
    pub(super) keeps: bool,
}

/// A named level: a group of consecutive levels. It is measured by the last level of the group, which includes all
/// earlier optimizations.
#[derive(Clone, Copy, Debug)]
pub struct NamedLevel {
    /// The name: baseline, basic, advanced or optimal.
    pub id: &'static str,
    /// A description of the named level's settings, in one line.
    pub says: &'static str,
    /// The level that is measured: the last of the group.
    pub level: Level,
}

impl NamedLevel {
    /// The named level's description as JSON.
    pub fn json(&self) -> Value {
        json!({ "id": self.id, "says": self.says, "level": self.level.id })
    }
}

/// The first level, without optimizations. Every other level adds one idea to the previous level.
const NOTHING: Level = Level {
    id: "none",
    name: "nothing",
    stage: "baseline",
    idea: "Every token recomputes its whole sequence, on one thread, with scalar instructions.",
    code: "crates/bench/src/levels/naive.rs",
    generation: Generation::WithoutCache,
    update: Update::Padded,
    vectors: false,
    threads: false,
    bf16: false,
    keeps: false,
};

const CACHE: Level = Level {
    id: "cache",
    name: "key-value cache",
    stage: "basic",
    idea: "Keys and values of earlier tokens are cached: a new token computes one row.",
    code: "crates/rollout/src/blocks.rs",
    generation: Generation::Static,
    ..NOTHING
};

const VECTORS: Level = Level {
    id: "vectors",
    name: "vector instructions",
    stage: "basic",
    idea: "AVX2 or AVX-512 instructions multiply and add 8 or 16 numbers at once.",
    code: "crates/kernels/src/gemm/mod.rs",
    vectors: true,
    ..CACHE
};

const THREADS: Level = Level {
    id: "threads",
    name: "threads",
    stage: "basic",
    idea: "Outputs are divided among cores. Sums are not divided, so results keep the same bits.",
    code: "crates/kernels/src/pool.rs",
    threads: true,
    ..VECTORS
};

const BATCHING: Level = Level {
    id: "batching",
    name: "continuous batching and packing",
    stage: "advanced",
    idea: "When a completion ends, the next one takes its slot. Padding is not computed.",
    code: "crates/rollout/src/scheduler/mod.rs",
    generation: Generation::Continuous,
    update: Update::Packed,
    ..THREADS
};

const FUSED: Level = Level {
    id: "fused",
    name: "fused head",
    stage: "advanced",
    idea: "One pass over the lm head computes log-probabilities and their gradient; logits are never stored.",
    code: "crates/kernels/src/ops/lm_head/mod.rs",
    update: Update::FusedHead,
    ..BATCHING
};

const SHARED: Level = Level {
    id: "shared",
    name: "shared prompt",
    stage: "optimal",
    idea: "A prompt is computed once for all of its completions, in generation and in the update.",
    code: "crates/rollout/src/prefix.rs",
    generation: Generation::SharedPrompt,
    update: Update::SharedPrompt,
    ..FUSED
};

const BF16: Level = Level {
    id: "bf16",
    name: "bf16",
    stage: "optimal",
    idea: "Matmuls read 16-bit numbers: half the memory traffic. The arithmetic differs, so the bits differ too.",
    code: "crates/kernels/src/gemm/mod.rs",
    bf16: true,
    ..SHARED
};

const KEPT: Level = Level {
    id: "kept",
    name: "kept activations",
    stage: "optimal",
    idea: "The first update uses the activations that generation has computed, so it has no forward pass. The bits are \
           those of the level before.",
    code: "crates/model/src/net/keep.rs",
    keeps: true,
    ..BF16
};

const PPO_NOTHING: Level = Level {
    idea: "Every token recomputes its whole sequence. Policy and value model are both computed with padding, on one \
           thread, with scalar instructions.",
    ..NOTHING
};

const PPO_BATCHING: Level = Level {
    idea: "When a completion ends, the next one takes its slot. Padding is not computed, neither in generation nor for \
           values nor in the two updates.",
    ..BATCHING
};

const PPO_FUSED: Level = Level {
    idea: "One pass over the policy's lm head computes log-probabilities, entropies and their gradients; logits are \
           never stored. The value head has a single output, so there is nothing to fuse.",
    ..FUSED
};

const PPO_BF16: Level = Level {
    idea: "Matmuls of both models read 16-bit numbers: half the memory traffic. The arithmetic differs, so the bits \
           differ too. (No PPO level shares prompts, since each prompt has one completion.)",
    generation: PPO_FUSED.generation,
    update: PPO_FUSED.update,
    ..BF16
};

const PPO_KEPT: Level = Level {
    idea: "The first update of the policy uses the activations that generation has computed, so it has no forward \
           pass. The bits are those of the level before.",
    generation: PPO_BF16.generation,
    update: PPO_BF16.update,
    ..KEPT
};

const BASELINE: &str = "No optimization: no KV cache, padded batches, scalar instructions on one thread.";
const BASIC: &str = "A key-value cache, vector instructions, and all threads.";
const ADVANCED: &str = "Continuous batching, no padding, and an lm head that does not store logits.";
const OPTIMAL: &str =
    "Prompts computed once for all of their completions, matmuls in bf16, and activations kept from the rollout.";
const PPO_OPTIMAL: &str = "Matmuls of policy and value model in bf16, and activations kept from the rollout.";

/// The named levels of GRPO.
pub const GRPO_NAMED: [NamedLevel; 4] = [
    NamedLevel { id: "baseline", says: BASELINE, level: NOTHING },
    NamedLevel { id: "basic", says: BASIC, level: THREADS },
    NamedLevel { id: "advanced", says: ADVANCED, level: FUSED },
    NamedLevel { id: "optimal", says: OPTIMAL, level: KEPT },
];
/// The named levels of PPO.
pub const PPO_NAMED: [NamedLevel; 4] = [
    NamedLevel { id: "baseline", says: BASELINE, level: PPO_NOTHING },
    NamedLevel { id: "basic", says: BASIC, level: THREADS },
    NamedLevel { id: "advanced", says: ADVANCED, level: PPO_FUSED },
    NamedLevel { id: "optimal", says: PPO_OPTIMAL, level: PPO_KEPT },
];

/// The levels of GRPO, from no optimization to all.
pub const GRPO_LEVELS: [Level; 9] = [NOTHING, CACHE, VECTORS, THREADS, BATCHING, FUSED, SHARED, BF16, KEPT];
/// The levels of PPO, from no optimization to all. A prompt has only one completion, so no level shares prompts.
pub const PPO_LEVELS: [Level; 8] = [PPO_NOTHING, CACHE, VECTORS, THREADS, PPO_BATCHING, PPO_FUSED, PPO_BF16, PPO_KEPT];

impl Level {
    /// The level's description as JSON.
    pub fn json(&self) -> Value {
        let Level { id, name, stage, idea, code, .. } = self;
        json!({ "id": id, "name": name, "stage": stage, "idea": idea, "code": code, "dtype": self.dtype().name() })
    }

    pub(super) fn context(&self, threads: Option<usize>) -> anyhow::Result<Context> {
        let threads = if self.threads { threads } else { Some(1) };
        Ok(if self.vectors {
            lockstep::context(None, threads, self.dtype())?
        } else {
            Context::cpu(Isa::PORTABLE, threads.unwrap_or(1))
        })
    }

    pub(super) fn dtype(&self) -> ComputeDType {
        if self.bf16 { ComputeDType::Bf16 } else { ComputeDType::F32 }
    }
}
