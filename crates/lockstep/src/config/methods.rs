//! The methods of post-training: which keys each reads, and what it defaults them to.

use super::keys::algorithms::{Algorithm, ONLINE};
use super::layers::Purpose;
use std::fmt;

/// A set of methods: the algorithms of `train`, and the other commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Methods(u16);

pub(super) const SFT: Methods = Methods::of_bit(13);
pub(super) const DPO: Methods = Methods::of_bit(14);
pub(super) const REWARD: Methods = Methods::of_bit(15);
const _: () = assert!(Algorithm::METHODS.len() <= 13, "an algorithm has the bit of another command: widen Methods");

/// Those that learn from pairs of answers.
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

    /// Their union.
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
