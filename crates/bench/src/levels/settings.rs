//! The settings of the training runs of `lockstep bench levels`: algorithm, sizes and hyperparameters, and named
//! presets.

use super::ladder::{GRPO_LEVELS, GRPO_NAMED, Level, NamedLevel, PPO_LEVELS, PPO_NAMED};
use crate::{Shape, Workload};
use serde_json::{Value, json};
use train::loss::ppo::{PpoConfig, ValueConfig};

/// The RL algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// GRPO: the completions of a prompt are compared with each other.
    Grpo,
    /// PPO: a value model estimates the expected reward at each token.
    Ppo,
}

/// PPO's hyperparameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ppo {
    /// The number of passes over each generation.
    pub epochs: usize,
    /// The discount factor γ.
    pub gamma: f64,
    /// GAE's λ.
    pub lam: f64,
    /// The settings of the policy's loss.
    pub policy: PpoConfig,
    /// The settings of the value model's loss.
    pub value: ValueConfig,
}

/// The settings of a level's training run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Number of prompts in a step.
    pub prompts: usize,
    /// Tokens of each prompt.
    pub prompt_tokens: usize,
    /// Completions per prompt.
    pub generations: usize,
    /// The number of tokens of the longest completion.
    pub new_tokens: usize,
    /// The maximum number of sequences generated at the same time.
    pub slots: usize,
    /// The learning rate of the policy and of the value model.
    pub learning_rate: f64,
    /// The settings of PPO; `None` for GRPO.
    pub ppo: Option<Ppo>,
}

/// Settings with a name.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The preset's name on the command line.
    pub id: &'static str,
    /// A short title.
    pub name: &'static str,
    /// The algorithm of the preset.
    pub algorithm: Algorithm,
    /// The size of the preset's model.
    pub shape: Shape,
    /// The training settings of the preset.
    pub settings: Settings,
}

/// High enough that the rewards of a model with random weights change within a few steps.
const LEARNING_RATE: f64 = 1e-3;

const GRPO: Settings = Settings {
    prompts: 2,
    prompt_tokens: 32,
    generations: 4,
    new_tokens: 16,
    slots: 4,
    learning_rate: LEARNING_RATE,
    ppo: None,
};

const PPO: Settings = Settings {
    prompts: 8,
    generations: 1,
    ppo: Some(Ppo {
        epochs: 4,
        gamma: 1.0,
        lam: 0.95,
        policy: PpoConfig { cliprange: 0.2, entropy_coef: 0.01 },
        value: ValueConfig { cliprange_value: 0.2, vf_coef: 0.1 },
    }),
    ..GRPO
};

/// The settings of `examples/ppo_preset.toml`, whose model has 4 layers with 8 heads.
const PPO_DOCUMENT: Settings = Settings {
    new_tokens: 128,
    learning_rate: 3e-4,
    ppo: Some(Ppo {
        epochs: 4,
        gamma: 0.99,
        lam: 0.95,
        policy: PpoConfig { cliprange: 0.2, entropy_coef: 0.01 },
        value: ValueConfig { cliprange_value: 0.2, vf_coef: 0.5 },
    }),
    ..PPO
};

/// All presets.
pub const PRESETS: [Preset; 1] = [Preset {
    id: "ppo-document",
    name: "the PPO document's",
    algorithm: Algorithm::Ppo,
    shape: Shape::M4,
    settings: PPO_DOCUMENT,
}];

impl Algorithm {
    /// Both algorithms.
    pub const ALL: [Algorithm; 2] = [Algorithm::Grpo, Algorithm::Ppo];

    /// The name on the command line.
    pub fn id(self) -> &'static str {
        match self {
            Algorithm::Grpo => "grpo",
            Algorithm::Ppo => "ppo",
        }
    }

    /// The name as written in text.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Grpo => "GRPO",
            Algorithm::Ppo => "PPO",
        }
    }

    /// The levels of this algorithm, from no optimization to all.
    pub fn levels(self) -> &'static [Level] {
        match self {
            Algorithm::Grpo => &GRPO_LEVELS,
            Algorithm::Ppo => &PPO_LEVELS,
        }
    }

    /// The named levels of this algorithm, from the baseline to the optimal one.
    pub fn named(self) -> &'static [NamedLevel] {
        match self {
            Algorithm::Grpo => &GRPO_NAMED,
            Algorithm::Ppo => &PPO_NAMED,
        }
    }

    /// The level with this name, if the algorithm has it.
    pub fn level(self, id: &str) -> Option<Level> {
        self.levels().iter().copied().find(|level| level.id == id)
    }

    /// The default settings, without a preset.
    pub fn settings(self) -> Settings {
        match self {
            Algorithm::Grpo => GRPO,
            Algorithm::Ppo => PPO,
        }
    }

    /// The algorithm with its levels and default settings, as JSON.
    pub fn json(self) -> Value {
        let levels: Vec<Value> = self.levels().iter().map(Level::json).collect();
        let named: Vec<Value> = self.named().iter().map(NamedLevel::json).collect();
        let says = self.settings().says();
        json!({ "id": self.id(), "name": self.name(), "says": says, "levels": levels, "named": named })
    }
}

impl Preset {
    /// The preset with this name.
    pub fn find(id: &str) -> Option<Preset> {
        PRESETS.into_iter().find(|preset| preset.id == id)
    }

    /// The levels that run by default: the named levels, starting with the baseline.
    pub fn levels(&self) -> Vec<Level> {
        self.algorithm.named().iter().map(|named| named.level).collect()
    }

    /// The preset's description as JSON.
    pub fn json(&self) -> Value {
        let levels: Vec<&str> = self.levels().iter().map(|level| level.id).collect();
        json!({
            "id": self.id, "name": self.name, "algorithm": self.algorithm.id(), "shape": self.shape.name(),
            "levels": levels, "says": self.settings.says(),
        })
    }
}

impl Settings {
    /// Describes the settings in words.
    pub fn says(&self) -> String {
        let Settings { prompts, prompt_tokens, generations, new_tokens, slots, learning_rate, ppo } = self;
        let completions = match generations {
            1 => format!("one completion per prompt, of up to {new_tokens} tokens"),
            n => format!("{n} completions per prompt, of up to {new_tokens} tokens each"),
        };
        let sizes = format!("{prompts} prompts of {prompt_tokens} tokens, {completions}, in {slots} slots");
        let Some(Ppo { epochs, gamma, lam, policy, value }) = ppo else {
            return format!("{sizes}; learning rate {learning_rate}");
        };
        format!(
            "{sizes}; learning rate {learning_rate}, {epochs} passes over each generation, γ {gamma}, λ {lam}, ratios \
             clipped to 1 ± {}, value changes to ± {}, value loss × {}, entropy bonus {}",
            policy.cliprange, value.cliprange_value, value.vf_coef, policy.entropy_coef
        )
    }

    pub(super) fn workload(&self) -> Workload {
        Workload {
            prompts: self.prompts,
            prompt_tokens: self.prompt_tokens,
            generations: self.generations,
            max_num_seqs: self.slots,
            ..Workload::grpo(self.prompts * self.generations, self.new_tokens)
        }
    }
}
