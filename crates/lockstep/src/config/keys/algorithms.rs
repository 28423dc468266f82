//! The algorithms of `lockstep train`: their names, which sets of keys they read, and the key that chooses one.
//!
//! What an algorithm computes, and what it asks of its keys, is a file of `crate::algorithms`; nothing here knows it.

use crate::config::methods::Methods;

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
            pub(in crate::config) const METHODS: &[Methods] = &[$($method),*];

            /// As runs print it.
            pub(crate) fn label(self) -> &'static str {
                match self { $(Algorithm::$variant => $label),* }
            }
        }

        $(pub(in crate::config) const $method: Methods = Methods::of_bit(Algorithm::$variant as u16);)*
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
}

/// All: completions are generated (or replayed) and scored.
pub(in crate::config) const ONLINE: Methods = Methods::all_of(Algorithm::METHODS);
/// Those that minimise GRPO's family of losses (`loss_type`).
pub(in crate::config) const POLICY_LOSS: Methods = GRPO.and(RPP).and(RPP_BASELINE);
/// Those that can hold the policy near a reference model.
pub(in crate::config) const REFERENCE: Methods = ONLINE;
/// Those that compare completions of a group as GRPO does (`scale_rewards`).
pub(in crate::config) const GROUPS: Methods = GRPO;

macro_rules! algorithms_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Loss" {
    /// How rewards become a gradient: it decides the advantages, the loss, and the defaults of num_generations and
    /// beta. "rloo": against the other completions, whole completions clipped (num_generations 2, beta 0.05).
    /// "reinforce_plus_plus": tokens against the batch, KL in the reward (1, 0.01); "reinforce_plus_plus_baseline":
    /// against the group, then the batch, KL in the loss. "ppo": a value model (1; its keys are under PPO).
    algorithm: Algorithm = Algorithm::Grpo => OURS.trl_has("the trainer's class").read_by(ONLINE);
} } } }
pub(in crate::config) use algorithms_keys;
