"""GRPO on a math dataset in a few lines. With TRL: `from trl import …`, `from trl.rewards import …`.
`accuracy_reward` is the same as TRL's and needs math_verify: `pip install math-verify`."""

import os

from lockstep_rl import GRPOConfig, GRPOTrainer
from lockstep_rl.rewards import accuracy_reward

trainer = GRPOTrainer(
    model=os.environ.get("MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
    reward_funcs=accuracy_reward,
    args=GRPOConfig(
        "quickstart",
        max_steps=int(os.environ.get("STEPS", "100")),
        max_completion_length=int(os.environ.get("TOKENS", "256")),
        max_prompt_length=512,
        logging_steps=1,
    ),
    # Rows with a prompt and a solution: a file, a directory, a Hub id or a datasets.Dataset.
    train_dataset=os.environ.get("DATA", "trl-lib/DeepMath-103K"),
)
trainer.train()
