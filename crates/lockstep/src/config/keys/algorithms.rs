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
    /// On-policy distillation: a teacher scores the policy's own tokens.
    Distillation = "distillation", DISTILLATION, "distillation";
}

/// All: completions are generated (or replayed) and scored.
pub(in crate::config) const ONLINE: Methods = Methods::all_of(Algorithm::METHODS);
/// Those that minimise GRPO's family of losses (`loss_type`).
pub(in crate::config) const POLICY_LOSS: Methods = GRPO.and(RPP).and(RPP_BASELINE).and(DISTILLATION);
/// Those that can hold the policy near a reference model.
pub(in crate::config) const REFERENCE: Methods = ONLINE.but(DISTILLATION);
/// Those that compare completions of a group as GRPO does (`scale_rewards`).
pub(in crate::config) const GROUPS: Methods = GRPO.and(DISTILLATION);

macro_rules! algorithms_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Loss" {
    /// How rewards become a gradient: it decides the advantages, the loss, and the defaults of num_generations and
    /// beta. "rloo": against the other completions, whole completions clipped (num_generations 2, beta 0.05).
    /// "reinforce_plus_plus": tokens against the batch, KL in the reward (1, 0.01); "reinforce_plus_plus_baseline":
    /// against the group, then the batch, KL in the loss. "ppo": a value model (1; its keys are under PPO).
    /// "distillation": a teacher scores the policy's own tokens, with rewards or without.
    algorithm: Algorithm = Algorithm::Grpo => OURS.trl_has("the trainer's class").read_by(ONLINE);
    /// algorithm "distillation": the teacher, a Hugging Face directory or a Hub id; of any shape, with the policy's
    /// vocabulary.
    teacher_model_name_or_path: Option<String> = None
        => OURS.trl_has("the same in GKD's and DistillationTrainer's configurations").name().read_by(DISTILLATION)
            .on_resume(Warn);
    /// algorithm "distillation": the weight of log π_teacher − log π in a token's advantage, beside that of rewards.
    distillation_coef: f64 = 1.0 => OURS.range(at_least(0.0)).read_by(DISTILLATION).on_resume(Warn);
    /// algorithm "distillation": how much a token answers for those after it: 0 for itself alone, 1 for all of them.
    distillation_discount: f64 = 0.0
        => OURS.range(at_least(0.0).at_most(1.0)).read_by(DISTILLATION).on_resume(Warn);
} } } }
pub(in crate::config) use algorithms_keys;
