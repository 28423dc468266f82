//! The algorithms that `lockstep bench algorithms` compares: their names, and the configuration keys that differ from
//! the shared configuration.

/// One row of the table: a training run that starts from the SFT model.
#[derive(Clone, Copy, Debug)]
pub struct Arm {
    /// The name of the run's directory, and the value for `--only`.
    pub name: &'static str,
    /// The row's label in the table.
    pub label: &'static str,
    /// The keys of this run; they override [`SHARED`].
    pub settings: &'static [(&'static str, &'static str)],
}

/// Configuration keys of all runs. Each generation is used for two optimizer steps. The second step is off-policy, so
/// ratios and clipping take effect.
pub const SHARED: &[(&str, &str)] = &[
    ("per_device_train_batch_size", "256"),
    ("steps_per_generation", "2"),
    // Without warm-up, AdamW's first steps at the full rate would damage the fine-tuned model.
    ("learning_rate", "3e-4"),
    ("warmup_steps", "20"),
    ("log_completions", "false"),
    ("tensorboard", "false"),
];

/// All algorithms, each with the settings of its paper.
pub const ALGORITHMS: &[Arm] = &[
    Arm { name: "grpo", label: "GRPO", settings: &[("loss_type", "grpo")] },
    Arm { name: "dr_grpo", label: "Dr. GRPO", settings: &[("loss_type", "dr_grpo"), ("scale_rewards", "none")] },
    Arm {
        name: "dapo",
        label: "DAPO",
        settings: &[
            ("loss_type", "dapo"),
            ("epsilon_high", "0.28"),
            ("dynamic_sampling", "true"),
            ("dynamic_sampling_max_rounds", "4"),
        ],
    },
    Arm {
        name: "gspo",
        label: "GSPO",
        settings: &[
            ("loss_type", "grpo"),
            ("importance_sampling_level", "sequence"),
            // The paper's 3e-4 and 4e-4 suit long answers and small learning rates. On this task they would clip every
            // second step.
            ("epsilon", "0.1"),
            ("epsilon_high", "0.1"),
        ],
    },
    Arm { name: "cispo", label: "CISPO", settings: &[("loss_type", "cispo"), ("epsilon_high", "5")] },
    Arm { name: "rloo", label: "RLOO", settings: &[("algorithm", "rloo"), ("beta", "0")] },
    Arm {
        name: "reinforce_plus_plus",
        label: "REINFORCE++",
        settings: &[("algorithm", "reinforce_plus_plus"), ("num_generations", "1"), ("beta", "0.01")],
    },
    Arm {
        name: "ppo",
        label: "PPO, value model",
        settings: &[
            ("algorithm", "ppo"),
            ("num_generations", "1"),
            // The same 512 completions are used for two optimizer steps: one epoch of two mini-batches.
            ("steps_per_generation", "none"),
            ("num_ppo_epochs", "1"),
            ("num_mini_batches", "2"),
            ("kl_coef", "0"),
        ],
    },
    Arm {
        name: "grpo_lora",
        label: "GRPO + LoRA (r = 16)",
        settings: &[
            ("loss_type", "grpo"),
            ("use_peft", "true"),
            ("lora_r", "16"),
            ("lora_target_modules", "all-linear"),
            // LoRA uses a higher learning rate than full fine-tuning.
            ("learning_rate", "2e-3"),
        ],
    },
];

/// GRPO with and without the KL term (β as in the GRPO paper).
pub const KL: &[Arm] = &[
    Arm { name: "grpo_kl", label: "GRPO, KL (β = 0.04)", settings: &[("loss_type", "grpo"), ("beta", "0.04")] },
    Arm { name: "grpo", label: "GRPO, no KL (β = 0)", settings: &[("loss_type", "grpo"), ("beta", "0")] },
];

/// GRPO on completions sampled with weights that are up to k generation batches old. The ratio uses the sampler's own
/// log-probabilities; k = 4 also runs with truncated importance sampling.
pub const STALENESS: &[Arm] = &[
    Arm { name: "k0", label: "k = 0", settings: &[("loss_type", "grpo"), ("max_staleness", "0")] },
    Arm { name: "k1", label: "k = 1", settings: &[("loss_type", "grpo"), ("max_staleness", "1")] },
    Arm { name: "k2", label: "k = 2", settings: &[("loss_type", "grpo"), ("max_staleness", "2")] },
    Arm { name: "k4", label: "k = 4", settings: &[("loss_type", "grpo"), ("max_staleness", "4")] },
    Arm {
        name: "k4_tis",
        label: "k = 4, truncated importance sampling",
        settings: &[("loss_type", "grpo"), ("max_staleness", "4"), ("vllm_importance_sampling_correction", "true")],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep::config::{Layers, Purpose};
    use std::collections::BTreeSet;

    #[test]
    fn arms_resolve_without_notes_and_have_unique_names() {
        let base = [("model_name_or_path", "m"), ("dataset_name", "d"), ("task", "prompt_answer")];
        for table in [ALGORITHMS, KL, STALENESS] {
            let mut seen = BTreeSet::new();
            for arm in table {
                let set = base.iter().chain(SHARED).chain(arm.settings);
                let set = set.map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
                let resolved = Layers { purpose: Purpose::Grpo, set, ..Layers::default() }.resolve().unwrap();
                assert!(resolved.notes.is_empty(), "{}: {:?}", arm.name, resolved.notes);
                assert!(seen.insert(arm.name) && seen.insert(arm.label), "duplicate arm {}", arm.name);
            }
        }
    }
}
