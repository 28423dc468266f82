"""GRPO on two turns: the model guesses a number, is told "higher" or "lower", and guesses again.

`rollout_func` plays the turns. Tokens that the model did not write (the game's answer) have 0 in `env_mask` and are
excluded from the loss. Its other fields (`found`) are passed to the reward.
"""

import os

from lockstep_rl import GRPOConfig, GRPOTrainer, Model

NAME = os.environ.get("MODEL", "Qwen/Qwen2.5-0.5B-Instruct")
TURN = int(os.environ.get("TOKENS", "16"))
ROWS = [
    {"prompt": f"Guess a number from 0 to 9 (game {game}). Guess:", "secret": secret}
    for game, secret in enumerate([3, 8, 5, 1])
]
secret_of = {row["prompt"]: row["secret"] for row in ROWS}

tokenizer = Model(NAME)


def guess(ids):
    digits = [letter for letter in tokenizer.decode(ids) if letter.isdigit()]
    return int(digits[0]) if digits else None


def answer(guessed, secret):
    if guessed is None:
        return " That is no number. Guess:"
    if guessed == secret:
        return " Right. Say it again:"
    return f" It is {'higher' if guessed < secret else 'lower'}. Guess:"


def play(prompts, trainer):
    secrets = [secret_of[prompt] for prompt in prompts]
    first = trainer.generate(prompts, max_new_tokens=TURN)
    told = [answer(guess(one["completion_ids"]), secret) for one, secret in zip(first, secrets)]
    told = [list(map(int, tokenizer.encode(text))) for text in told]
    second = trainer.generate(
        [one["prompt_ids"] + one["completion_ids"] + ids for one, ids in zip(first, told)], max_new_tokens=TURN
    )
    turns = list(zip(first, told, second))
    return {
        "prompt_ids": [a["prompt_ids"] for a, _, _ in turns],
        "completion_ids": [a["completion_ids"] + ids + b["completion_ids"] for a, ids, b in turns],
        "logprobs": [a["logprobs"] + [0.0] * len(ids) + b["logprobs"] for a, ids, b in turns],
        "env_mask": [
            [1] * len(a["completion_ids"]) + [0] * len(ids) + [1] * len(b["completion_ids"]) for a, ids, b in turns
        ],
        "found": [guess(b["completion_ids"]) for _, _, b in turns],
    }


def near(completions, secret, found, **kwargs):
    """Scores 1 for the right number in the second turn, and less for numbers further away."""
    return [0.0 if number is None else 1.0 - abs(number - right) / 10 for number, right in zip(found, secret)]


trainer = GRPOTrainer(
    model=NAME,
    reward_funcs=near,
    args=GRPOConfig(
        "two-turns",
        max_steps=int(os.environ.get("STEPS", "100")),
        max_completion_length=2 * TURN + 64,
        logging_steps=1,
        record_rollouts=True,
    ),
    train_dataset=ROWS,
    rollout_func=play,
)
trainer.train()
