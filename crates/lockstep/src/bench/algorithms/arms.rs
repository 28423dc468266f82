//! What is compared: names, and the keys that make an algorithm of the runs that all share.

/// One row of a table: a run from the SFT model, or none.
#[derive(Clone, Copy, Debug)]
pub struct Arm {
    /// Its directory and the word of `--only`.
    pub name: &'static str,
    /// Its row in the table.
    pub label: &'static str,
    /// Its keys, over [`SHARED`].
    pub settings: &'static [(&'static str, &'static str)],
}

/// Keys of every run: two optimizer steps on each generation, so that the second is off-policy and ratios and clips matter.
pub const SHARED: &[(&str, &str)] = &[
    ("per_device_train_batch_size", "256"),
    ("steps_per_generation", "2"),
    ("learning_rate", "5e-4"),
    ("log_completions", "false"),
    ("tensorboard", "false"),
];

/// Every algorithm, each with its paper's choices.
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
            ("epsilon", "3e-4"),
            ("epsilon_high", "4e-4"),
        ],
    },
];

/// With and without the KL term (β as in the GRPO paper).
pub const KL: &[Arm] = &[
    Arm { name: "grpo_kl", label: "GRPO, KL (β = 0.04)", settings: &[("loss_type", "grpo"), ("beta", "0.04")] },
    Arm { name: "grpo", label: "GRPO, no KL (β = 0)", settings: &[("loss_type", "grpo"), ("beta", "0")] },
];
