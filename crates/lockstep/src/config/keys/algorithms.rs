//! The configuration key that chooses an algorithm, and the keys of distillation.

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
