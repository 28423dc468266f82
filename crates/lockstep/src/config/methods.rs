//! The methods of post-training: which keys each reads, and what it defaults them to.

use super::{Algorithm, Purpose};
use std::fmt;

/// A set of methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Methods(u8);

pub(super) const GRPO: Methods = Methods(1);
pub(super) const RLOO: Methods = Methods(1 << 1);
/// REINFORCE++.
pub(super) const RPP: Methods = Methods(1 << 2);
/// REINFORCE++ with the group's mean as baseline.
pub(super) const RPP_BASELINE: Methods = Methods(1 << 3);
pub(super) const PPO: Methods = Methods(1 << 4);
pub(super) const SFT: Methods = Methods(1 << 5);
pub(super) const DPO: Methods = Methods(1 << 6);
pub(super) const REWARD: Methods = Methods(1 << 7);

/// Those of `lockstep train`: completions are generated (or replayed) and scored.
pub(super) const ONLINE: Methods = GRPO.and(RLOO).and(RPP).and(RPP_BASELINE).and(PPO);
/// Those that minimise GRPO's family of losses (`loss_type`).
pub(super) const POLICY_LOSS: Methods = GRPO.and(RPP).and(RPP_BASELINE);
/// Those that learn from pairs of answers.
pub(super) const PAIRS: Methods = DPO.and(REWARD);
pub(super) const ALL: Methods = Methods(u8::MAX);

/// Each method by itself, with its name.
pub(super) const EACH: [(Methods, &str); 8] = [
    (GRPO, "grpo"),
    (RLOO, "rloo"),
    (RPP, "reinforce_plus_plus"),
    (RPP_BASELINE, "reinforce_plus_plus_baseline"),
    (PPO, "ppo"),
    (SFT, "sft"),
    (DPO, "dpo"),
    (REWARD, "reward"),
];

impl Methods {
    pub(super) const fn and(self, others: Methods) -> Methods {
        Methods(self.0 | others.0)
    }

    pub(super) const fn but(self, others: Methods) -> Methods {
        Methods(self.0 & !others.0)
    }

    /// Whether all of `others` are among them.
    pub(super) const fn contain(self, others: Methods) -> bool {
        self.0 & others.0 == others.0
    }

    /// Whether any of `others` is among them.
    pub(super) const fn meet(self, others: Methods) -> bool {
        self.0 & others.0 != 0
    }

    /// The method of a command and its algorithm.
    pub(super) fn of(purpose: Purpose, algorithm: Algorithm) -> Methods {
        match (purpose, algorithm) {
            (Purpose::Sft, _) => SFT,
            (Purpose::Dpo, _) => DPO,
            (Purpose::Reward, _) => REWARD,
            (Purpose::Grpo | Purpose::Eval | Purpose::Show, Algorithm::Grpo) => GRPO,
            (Purpose::Grpo | Purpose::Eval | Purpose::Show, Algorithm::Rloo) => RLOO,
            (Purpose::Grpo | Purpose::Eval | Purpose::Show, Algorithm::ReinforcePlusPlus) => RPP,
            (Purpose::Grpo | Purpose::Eval | Purpose::Show, Algorithm::ReinforcePlusPlusBaseline) => RPP_BASELINE,
            (Purpose::Grpo | Purpose::Eval | Purpose::Show, Algorithm::Ppo) => PPO,
        }
    }

    /// All methods of a command.
    pub(super) fn of_command(purpose: Purpose) -> Methods {
        match purpose {
            Purpose::Grpo | Purpose::Eval | Purpose::Show => ONLINE,
            Purpose::Sft => SFT,
            Purpose::Dpo => DPO,
            Purpose::Reward => REWARD,
        }
    }
}

/// The commands that they belong to; for some algorithms of `train` only, these by name.
impl fmt::Display for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == ALL {
            return f.write_str("every command");
        }
        let mut parts = Vec::new();
        if self.contain(ONLINE) {
            parts.push("train".to_owned());
        } else if self.meet(ONLINE) {
            let only: Vec<&str> =
                EACH.iter().filter(|(m, _)| ONLINE.contain(*m) && self.contain(*m)).map(|e| e.1).collect();
            parts.push(format!("train ({})", only.join(", ")));
        }
        parts.extend(EACH.iter().filter(|(m, _)| !ONLINE.contain(*m) && self.contain(*m)).map(|e| e.1.to_owned()));
        f.write_str(&parts.join(", "))
    }
}
