//! The training methods: the algorithms of `lockstep train`, and the other training commands. Sets of methods list the
//! readers of a key, or the methods that share a default.
//!
//! The computations of an algorithm, and the key values that it refuses, are in `crate::algorithms`, not here.

use std::fmt;

/// The command that a configuration is for, which determines defaults and checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// Reinforcement learning with any algorithm (`lockstep train`).
    #[default]
    Grpo,
    /// Supervised fine-tuning (`lockstep sft`).
    Sft,
    /// Training a reward model (`lockstep reward`).
    Reward,
    /// Direct preference optimization (`lockstep dpo`).
    Dpo,
    /// Evaluating a model as a reinforcement-learning run evaluates its own.
    Eval,
    /// Showing the configuration; required keys may be missing.
    Show,
}

impl Purpose {
    /// The name of the subcommand.
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

/// Generates three items from one row per algorithm: the enum, the names in configurations, and a set of methods with
/// this algorithm alone.
macro_rules! algorithms {
    ($($(#[$attribute:meta])+ $variant:ident = $name:literal, $method:ident, $label:literal;)*) => {
        /// The algorithm that turns rewards into a gradient.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum Algorithm {
            $($(#[$attribute])+ $variant,)*
        }

        impl Algorithm {
            /// All algorithms, with their names in configurations.
            pub(crate) const NAMES: &[(&str, Algorithm)] = &[$(($name, Algorithm::$variant)),*];
            /// For each algorithm, the set that contains only it.
            pub(super) const METHODS: &[Methods] = &[$($method),*];

            /// The algorithm's name in a run's output.
            pub(crate) fn label(self) -> &'static str {
                match self { $(Algorithm::$variant => $label),* }
            }
        }

        $(pub(super) const $method: Methods = Methods::from_bit(Algorithm::$variant as u16);)*
    };
}

algorithms! {
    /// GRPO, group-relative policy optimisation, and its family of losses (`loss_type`).
    #[default]
    Grpo = "grpo", GRPO, "grpo";
    /// RLOO, REINFORCE with a leave-one-out baseline.
    Rloo = "rloo", RLOO, "rloo";
    /// REINFORCE++: each token has an advantage, normalised over the batch.
    ReinforcePlusPlus = "reinforce_plus_plus", RPP, "reinforce++";
    /// REINFORCE++ with the group's mean reward as baseline.
    ReinforcePlusPlusBaseline = "reinforce_plus_plus_baseline", RPP_BASELINE, "reinforce++ baseline";
    /// PPO, proximal policy optimisation with a value model.
    Ppo = "ppo", PPO, "ppo";
    /// On-policy distillation: a teacher scores the policy's own tokens.
    Distillation = "distillation", DISTILLATION, "distillation";
}

/// All algorithms of `train`: they generate (or replay) completions and score them.
pub(super) const ONLINE: Methods = Methods::all_of(Algorithm::METHODS);
/// The algorithms that minimise GRPO's family of losses (`loss_type`).
pub(super) const POLICY_LOSS: Methods = GRPO.and(RPP).and(RPP_BASELINE).and(DISTILLATION);
/// The algorithms that can keep the policy near a reference model by a KL term.
pub(super) const REFERENCE: Methods = ONLINE.but(DISTILLATION);
/// The algorithms that compare the completions of a group as GRPO does (`scale_rewards`).
pub(super) const GROUPS: Methods = GRPO.and(DISTILLATION);

/// A set of training methods, one bit each: the algorithms of `train`, and the commands `sft`, `dpo` and `reward`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Methods(u16);

pub(super) const SFT: Methods = Methods::from_bit(13);
pub(super) const DPO: Methods = Methods::from_bit(14);
pub(super) const REWARD: Methods = Methods::from_bit(15);
const _: () = assert!(
    Algorithm::METHODS.len() <= 13,
    "the bits of algorithms overlap those of commands: give Methods a wider integer"
);

/// The commands that learn from preference pairs.
pub(super) const PAIRS: Methods = DPO.and(REWARD);
pub(super) const ALL: Methods = Methods(u16::MAX);

/// Each method as a set of one, with its name.
pub(super) fn each() -> impl Iterator<Item = (Methods, &'static str)> {
    let train_methods = Algorithm::METHODS.iter().zip(Algorithm::NAMES).map(|(method, (name, _))| (*method, *name));
    train_methods.chain([(SFT, "sft"), (DPO, "dpo"), (REWARD, "reward")])
}

impl Methods {
    pub(super) const fn from_bit(bit: u16) -> Methods {
        Methods(1 << bit)
    }

    /// The union of these sets of methods.
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

    /// Whether this set contains all of `others`.
    pub(super) const fn contain(self, others: Methods) -> bool {
        self.0 & others.0 == others.0
    }

    /// Whether this set has a method in common with `others`.
    pub(super) const fn meet(self, others: Methods) -> bool {
        self.0 & others.0 != 0
    }

    /// The method of a command; for `train` it is the algorithm.
    pub(super) fn of(purpose: Purpose, algorithm: Algorithm) -> Methods {
        match (purpose, algorithm) {
            (Purpose::Sft, _) => SFT,
            (Purpose::Dpo, _) => DPO,
            (Purpose::Reward, _) => REWARD,
            (Purpose::Grpo | Purpose::Eval | Purpose::Show, algorithm) => Methods::from_bit(algorithm as u16),
        }
    }

    /// All methods of a command, as one set.
    pub(super) fn for_command(purpose: Purpose) -> Methods {
        match purpose {
            Purpose::Grpo | Purpose::Eval | Purpose::Show => ONLINE,
            Purpose::Sft => SFT,
            Purpose::Dpo => DPO,
            Purpose::Reward => REWARD,
        }
    }
}

/// Prints the commands of the set; for `train` with only some algorithms, the algorithms' names.
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
