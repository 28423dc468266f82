//! What the training runs of levels are: algorithm, sizes and hyperparameters, and named sets of them.

use super::ladder::{GRPO_LEVELS, Level, PPO_LEVELS};
use crate::{Shape, Workload};
use serde_json::{Value, json};
use train::loss::ppo::{PpoConfig, ValueConfig};

/// What is trained with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Groups of completions of a prompt are compared with each other.
    Grpo,
    /// A value model says what was to be expected of each token.
    Ppo,
}

/// PPO's hyperparameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ppo {
    /// Times that a generation is trained on.
    pub epochs: usize,
    /// The discount γ.
    pub gamma: f64,
    /// GAE's λ.
    pub lam: f64,
    /// The policy's loss.
    pub policy: PpoConfig,
    /// The value model's loss.
    pub value: ValueConfig,
}

/// A training run of a level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Prompts of a step.
    pub prompts: usize,
    /// Tokens of each.
    pub prompt_tokens: usize,
    /// Completions of each.
    pub generations: usize,
    /// Tokens of the longest completion.
    pub new_tokens: usize,
    /// Sequences that are generated at once.
    pub slots: usize,
    /// Of the policy and of the value model.
    pub learning_rate: f64,
    /// None: GRPO.
    pub ppo: Option<Ppo>,
}

/// Settings that have a name.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// As on the command line.
    pub id: &'static str,
    /// In a few words.
    pub name: &'static str,
    /// What it is for.
    pub algorithm: Algorithm,
    /// Its model.
    pub shape: Shape,
    /// The levels that are run if none are named: those whose steps take seconds.
    pub first_level: &'static str,
    /// All else.
    pub settings: Settings,
}

/// Of a model that has learned nothing; its rewards should move within a few steps.
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

/// `examples/ppo_preset.toml`, whose model has 4 layers with 8 heads.
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

/// All of them.
pub const PRESETS: [Preset; 1] = [Preset {
    id: "ppo-document",
    name: "the PPO document's",
    algorithm: Algorithm::Ppo,
    shape: Shape::M4,
    first_level: "vectors",
    settings: PPO_DOCUMENT,
}];

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 2] = [Algorithm::Grpo, Algorithm::Ppo];

    /// As on the command line.
    pub fn id(self) -> &'static str {
        match self {
            Algorithm::Grpo => "grpo",
            Algorithm::Ppo => "ppo",
        }
    }

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Grpo => "GRPO",
            Algorithm::Ppo => "PPO",
        }
    }

    /// Its levels, from the slowest to everything on.
    pub fn levels(self) -> &'static [Level] {
        match self {
            Algorithm::Grpo => &GRPO_LEVELS,
            Algorithm::Ppo => &PPO_LEVELS,
        }
    }

    /// Its level of this name.
    pub fn level(self, id: &str) -> Option<Level> {
        self.levels().iter().copied().find(|level| level.id == id)
    }

    /// What is run unless a preset says otherwise.
    pub fn settings(self) -> Settings {
        match self {
            Algorithm::Grpo => GRPO,
            Algorithm::Ppo => PPO,
        }
    }

    /// What people choose from: it, its levels and what a run of them is.
    pub fn json(self) -> Value {
        let levels: Vec<Value> = self.levels().iter().map(Level::json).collect();
        json!({ "id": self.id(), "name": self.name(), "says": self.settings().says(), "levels": levels })
    }
}

impl Preset {
    /// The one of this name.
    pub fn find(id: &str) -> Option<Preset> {
        PRESETS.into_iter().find(|preset| preset.id == id)
    }

    /// The levels that are run if none are named.
    pub fn levels(&self) -> Vec<Level> {
        self.algorithm.levels().iter().copied().skip_while(|level| level.id != self.first_level).collect()
    }

    /// What people read of it.
    pub fn json(&self) -> Value {
        let levels: Vec<&str> = self.levels().iter().map(|level| level.id).collect();
        json!({
            "id": self.id, "name": self.name, "algorithm": self.algorithm.id(), "shape": self.shape.name(),
            "levels": levels, "says": self.settings.says(),
        })
    }
}

impl Settings {
    /// As sentences have them.
    pub fn says(&self) -> String {
        let Settings { prompts, prompt_tokens, generations, new_tokens, slots, learning_rate, ppo } = self;
        let completions = match generations {
            1 => format!("one completion each, of up to {new_tokens}"),
            n => format!("{n} completions of each, of up to {new_tokens}"),
        };
        let sizes = format!("{prompts} prompts of {prompt_tokens} tokens, {completions}, in {slots} slots");
        let Some(Ppo { epochs, gamma, lam, policy, value }) = ppo else {
            return format!("{sizes}; learning rate {learning_rate}");
        };
        format!(
            "{sizes}; learning rate {learning_rate}, {epochs} passes over each generation, γ {gamma}, λ {lam}, ratio \
             clipped at ± {}, values at ± {}, value loss × {}, entropy bonus {}",
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
