//! The configuration key that chooses an algorithm, and the keys of distillation.

macro_rules! algorithms_keys { ($collect:ident $($rows:tt)*) => { $collect! { $($rows)* "Loss" {
    /// The algorithm; it decides the advantages, the loss, and the defaults of num_generations and beta. "rloo"
    /// compares each reward with those of the group's other completions, and clips whole completions (num_generations
    /// 2, beta 0.05). "reinforce_plus_plus" normalises each token's advantage over the batch, with the KL term in the
    /// reward (1, 0.01); "reinforce_plus_plus_baseline" first subtracts the group's mean reward, with the KL term in
    /// the loss. "ppo" trains a value model (1; PPO has keys of its own). "distillation": a teacher scores the policy's
    /// own tokens, with or without rewards.
    algorithm: Algorithm = Algorithm::Grpo => OURS.trl_has("the trainer's class").read_by(ONLINE);
    /// algorithm "distillation": the teacher model, a Hugging Face directory or a Hub id. It may have any architecture,
    /// but must have the policy's vocabulary.
    teacher_model_name_or_path: Option<String> = None
        => OURS.trl_has("the same in GKD's and DistillationTrainer's configurations").name().read_by(DISTILLATION)
            .on_resume(Warn);
    /// algorithm "distillation": the weight of log π_teacher − log π in a token's advantage, added to the rewards'
    /// advantage.
    distillation_coef: f64 = 1.0 => OURS.range(at_least(0.0)).read_by(DISTILLATION).on_resume(Warn);
    /// algorithm "distillation": the discount of later tokens' terms in a token's advantage: 0 for its own term alone,
    /// 1 for the plain sum.
    distillation_discount: f64 = 0.0
        => OURS.range(at_least(0.0).at_most(1.0)).read_by(DISTILLATION).on_resume(Warn);
} } } }
pub(in crate::config) use algorithms_keys;
