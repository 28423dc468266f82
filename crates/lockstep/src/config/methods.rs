//! The methods of post-training: the algorithms of `lockstep train`, and the other commands. Sets of them say which
//! keys each reads and what it defaults them to.
//!
//! What an algorithm computes, and what it asks of its keys, is a file of `crate::algorithms`; nothing here knows it.

use std::fmt;

/// What the configuration is for; it decides defaults and checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// Reinforcement learning.
    #[default]
    Grpo,
    /// Supervised fine-tuning.
    Sft,
    /// Training a reward model.
    Reward,
    /// Direct preference optimization.
    Dpo,
    /// Evaluating a model as a run of reinforcement learning evaluates its own.
    Eval,
    /// To be looked at only: nothing need be complete.
    Show,
}

impl Purpose {
    /// The subcommand that it is of.
    pub fn command(self) -> &'static str {
        match self {
            Purpose::Grpo | Purpose::Show => "train",
            Purpose::Eval => "eval",
            Purpose::Sft => "sft",
            Purpose::Reward => "reward",
            Purpose::Dpo => "dpo",
        }
    }
}

/// From a row for each algorithm: the type, its names, and the set of methods that is this algorithm alone.
macro_rules! algorithms {
    ($($(#[$attribute:meta])+ $variant:ident = $name:literal, $method:ident, $label:literal;)*) => {
        /// How rewards become a gradient.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum Algorithm {
            $($(#[$attribute])+ $variant,)*
        }

        impl Algorithm {
            /// All, with their names in configurations.
            pub(crate) const NAMES: &[(&str, Algorithm)] = &[$(($name, Algorithm::$variant)),*];
            /// The keys that each reads.
            pub(super) const METHODS: &[Methods] = &[$($method),*];

            /// As runs print it.
            pub(crate) fn label(self) -> &'static str {
                match self { $(Algorithm::$variant => $label),* }
            }
        }

        $(pub(super) const $method: Methods = Methods::of_bit(Algorithm::$variant as u16);)*
    };
}

algorithms! {
    /// Group-relative policy optimisation and its family (`loss_type`).
    #[default]
    Grpo = "grpo", GRPO, "grpo";
    /// REINFORCE leave-one-out.
    Rloo = "rloo", RLOO, "rloo";
    /// REINFORCE++: advantages of tokens, normalised over the batch.
    ReinforcePlusPlus = "reinforce_plus_plus", RPP, "reinforce++";
    /// REINFORCE++ with the group's mean as baseline.
    ReinforcePlusPlusBaseline = "reinforce_plus_plus_baseline", RPP_BASELINE, "reinforce++ baseline";
    /// Proximal policy optimisation with a value model.
    Ppo = "ppo", PPO, "ppo";
    /// On-policy distillation: a teacher scores the policy's own tokens.
    Distillation = "distillation", DISTILLATION, "distillation";
}

/// All: completions are generated (or replayed) and scored.
pub(super) const ONLINE: Methods = Methods::all_of(Algorithm::METHODS);
/// The algorithms that minimise GRPO's family of losses (`loss_type`).
pub(super) const POLICY_LOSS: Methods = GRPO.and(RPP).and(RPP_BASELINE).and(DISTILLATION);
/// The algorithms that can hold the policy near a reference model.
pub(super) const REFERENCE: Methods = ONLINE.but(DISTILLATION);
/// The algorithms that compare completions of a group as GRPO does (`scale_rewards`).
pub(super) const GROUPS: Methods = GRPO.and(DISTILLATION);

/// A set of methods: the algorithms of `train`, and the other commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Methods(u16);

pub(super) const SFT: Methods = Methods::of_bit(13);
pub(super) const DPO: Methods = Methods::of_bit(14);
pub(super) const REWARD: Methods = Methods::of_bit(15);
const _: () = assert!(Algorithm::METHODS.len() <= 13, "an algorithm has the bit of another command: widen Methods");

/// The commands that learn from pairs of answers.
pub(super) const PAIRS: Methods = DPO.and(REWARD);
pub(super) const ALL: Methods = Methods(u16::MAX);

/// Each method by itself, with its name.
pub(super) fn each() -> impl Iterator<Item = (Methods, &'static str)> {
    let of_train = Algorithm::METHODS.iter().zip(Algorithm::NAMES).map(|(method, (name, _))| (*method, *name));
    of_train.chain([(SFT, "sft"), (DPO, "dpo"), (REWARD, "reward")])
}

impl Methods {
    pub(super) const fn of_bit(bit: u16) -> Methods {
        Methods(1 << bit)
    }

    /// The union of these sets.
    pub(super) const fn all_of(methods: &[Methods]) -> Methods {
        let (mut all, mut i) = (Methods(0), 0);
        while i < methods.len() {
            all = all.and(methods[i]);
            i += 1;
        }
        all
    }

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
            (Purpose::Grpo | Purpose::Eval | Purpose::Show, algorithm) => Methods::of_bit(algorithm as u16),
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
            let only: Vec<&str> = each().filter(|(m, _)| ONLINE.contain(*m) && self.contain(*m)).map(|e| e.1).collect();
            parts.push(format!("train ({})", only.join(", ")));
        }
        parts.extend(each().filter(|(m, _)| !ONLINE.contain(*m) && self.contain(*m)).map(|e| e.1.to_owned()));
        f.write_str(&parts.join(", "))
    }
}
