"""eval_loss of online trainers: the policy loss of the completions generated in an evaluation."""

import math

import pytest
from conftest import SMALL, grpo

import lockstep_rl


def counted(seen):
    """Returns a reward with varied scores that records scores and lengths in `seen`."""

    def length(completions, completion_ids, **kwargs):
        scores = [float(sum(map(ord, text)) % 7) for text in completions]
        seen.append((scores, [len(ids) for ids in completion_ids]))
        return scores

    return length


def of_groups(scores, size):
    """Returns advantages: the difference from the group's mean, divided by its standard deviation."""
    advantages = []
    for first in range(0, len(scores), size):
        group = scores[first : first + size]
        mean = sum(group) / size
        deviation = math.sqrt(sum((score - mean) ** 2 for score in group) / (size - 1))
        advantages += [(score - mean) / (deviation + 1e-4) for score in group]
    return advantages


@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo"])
def test_eval_loss_is_the_policy_loss_at_a_ratio_of_1(model, rows, loss_type):
    seen = []
    trainer = grpo(model, rows, counted(seen), trainer={"eval_dataset": rows}, loss_type=loss_type, seed=5)
    loss = trainer.evaluate()["eval_loss"]
    (scores, lengths), = seen
    advantages = of_groups(scores, 2)
    total = sum(advantage * length for advantage, length in zip(advantages, lengths))
    expected = {
        "dapo": -total / sum(lengths),
        "grpo": -sum(advantages) / len(advantages),
        "dr_grpo": -total / (len(lengths) * SMALL["max_completion_length"]),
    }[loss_type]
    assert loss == pytest.approx(expected, abs=1e-6)
    assert loss_type == "grpo" or abs(loss) > 1e-4, "expected completions of different lengths"


def test_eval_loss_includes_the_kl_and_entropy_terms(model, rows):
    """Before the first step the policy equals its reference, so that the KL term is 0."""
    def zero(completions, **kwargs):
        return [0.0] * len(completions)

    trainer = grpo(model, rows, zero, trainer={"eval_dataset": rows}, beta=0.5, entropy_coef=0.25)
    loss = trainer.evaluate()["eval_loss"]
    entropy = -loss / 0.25
    assert 0.5 < entropy < math.log(40), "the vocabulary has 40 tokens"
    plain = grpo(model, rows, zero, trainer={"eval_dataset": rows}, beta=0.5, output_dir="plain")
    assert plain.evaluate()["eval_loss"] == 0.0
    letters = grpo(model, rows, lambda completions, **kwargs: [float(len(text)) for text in completions],
                   trainer={"eval_dataset": rows}, beta=0.5, output_dir="moves", eval_strategy="steps", eval_steps=1,
                   scale_rewards="none", learning_rate=0.05)
    letters.train()
    losses = [entry["eval_loss"] for entry in letters.state.log_history if "eval_loss" in entry]
    assert len(losses) == 4 and all(math.isfinite(loss) for loss in losses) and len(set(losses)) == 4


def test_eval_loss_is_logged_for_named_sets_and_rloo_but_not_ppo(model, rows):
    metrics = grpo(model, rows).evaluate({"a": rows[:2], "b": rows[2:4]})
    assert {"eval_a_loss", "eval_b_loss"} <= metrics.keys()
    for kind in ("RLOO", "PPO"):
        args = getattr(lockstep_rl, f"{kind}Config")(kind, **SMALL)
        trainer = getattr(lockstep_rl, f"{kind}Trainer")(model, "unique_chars", args, rows)
        assert ("eval_loss" in trainer.evaluate(rows[:2])) == (kind == "RLOO")
    greedy = grpo(model, rows, eval_sampling="greedy", output_dir="greedy").evaluate(rows[:2])
    assert greedy["eval_loss"] == 0.0, "equal completions have advantages of 0"
    assert "eval_loss" not in grpo(model, rows, eval_loss=False, output_dir="off").evaluate(rows[:2])


def test_the_best_model_can_be_chosen_by_eval_loss(model, rows):
    trainer = grpo(model, rows, trainer={"eval_dataset": rows}, eval_strategy="steps", eval_steps=2,
                   save_strategy="steps", save_steps=2, metric_for_best_model="loss", load_best_model_at_end=True)
    trainer.train()
    losses = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    assert trainer.state.best_metric == min(losses.values())
