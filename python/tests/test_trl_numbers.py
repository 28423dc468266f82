"""Metrics as TRL logs them: last values and means, evaluations, reward models, tokens of environments."""

import math
import os
import shutil

import pytest
from conftest import SMALL, grpo, vowels, weights
from test_given import InMemory
from test_given_objects import PAIRS, make

from lockstep_rl import GRPOConfig, GRPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer


@pytest.fixture(scope="module")
def steps(model, tmp_path_factory):
    """Returns the log of each trainer with an entry for each step."""
    logs = {}
    for kind in ("grpo", "rloo", "ppo", "sft", "dpo", "reward"):
        trainer = make(kind, model, tmp_path_factory.mktemp(kind) / "run", max_steps=5)
        trainer.train()
        logs[kind] = trainer.state.log_history[:5]
    return logs


@pytest.mark.parametrize("kind", ["grpo", "rloo", "ppo", "sft", "dpo", "reward"])
@pytest.mark.parametrize("every, first", [(2, False), (3, False), (9, False), (3, True)])
def test_logged_values_and_the_mean_loss_are_those_of_transformers(model, steps, kind, every, first):
    trainer = make(kind, model, "out", max_steps=5, logging_steps=every, logging_first_step=first)
    output = trainer.train()
    mean = sum(step["loss"] for step in steps[kind]) / 5
    assert output.training_loss == output.metrics["train_loss"] == pytest.approx(mean, rel=1e-9, abs=1e-12)
    assert trainer.state.log_history[-1]["train_loss"] == output.training_loss
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert bool(entries) == (every <= 5)
    for entry in entries:
        own = steps[kind][entry["step"] - 1]
        assert (entry["learning_rate"], entry["grad_norm"]) == (own["learning_rate"], own["grad_norm"])


@pytest.mark.parametrize("every", [1, 2, 3])
def test_training_loss_of_a_resumed_run_is_the_mean_over_its_own_steps(model, steps, every):
    fields = dict(max_steps=5, save_strategy="steps", save_steps=2)
    make("sft", model, "out", **fields).train()
    output = make("sft", model, "out", logging_steps=every, **fields).train(resume_from_checkpoint="out/checkpoint-2")
    own = [step["loss"] for step in steps["sft"]]
    assert output.training_loss == pytest.approx(sum(own[2:]) / 3, rel=1e-9)


EVALUATED = {
    "eval_reward", "eval_reward_std", "eval_frac_reward_zero_std", "eval_num_tokens", "eval_loss", "eval_runtime",
    "eval_rewards/vowels/mean", "eval_rewards/vowels/std",
    *(f"eval_completions/{what}" for what in ("mean_length", "min_length", "max_length", "clipped_ratio")),
    "eval_entropy", *(f"eval_clip_ratio/{what}" for what in (
        "low_mean", "low_min", "high_mean", "high_max", "region_mean")),
}


@pytest.mark.parametrize("when", ["before", "after", "during"])
@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_an_evaluation_logs_the_metrics_of_trl(model, kind, when):
    trainer = make(kind, model, "out", **({"eval_strategy": "steps", "eval_steps": 2} if when == "during" else {}))
    trainer.eval_dataset = [{"prompt": "ab "}, {"prompt": "x "}]
    if when != "before":
        trainer.train()
    if when == "during":
        metrics = [entry for entry in trainer.state.log_history if "eval_reward" in entry][0]
        trained = trainer.state.log_history[1]["num_tokens"]
        assert metrics["eval_num_tokens"] == trained
    else:
        metrics = trainer.evaluate()
        assert (metrics["eval_num_tokens"] > 0) == (when == "after")
    assert EVALUATED <= metrics.keys(), EVALUATED - metrics.keys()
    lengths = [metrics[f"eval_completions/{what}_length"] for what in ("min", "mean", "max")]
    assert lengths == sorted(lengths) and lengths[0] >= 1
    # The vocabulary has 40 tokens. Nothing is clipped, because the policy generated the completions.
    assert 0 < metrics["eval_entropy"] <= math.log(40) + 1e-6 and metrics["eval_clip_ratio/region_mean"] == 0
    assert "epoch" in metrics or when == "before"


@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_an_evaluation_logs_the_kl_divergence(model, kind):
    """It is 0 before training and not 0 afterwards; without a reference it is not logged."""
    fields = dict(beta=0.1, eval_strategy="steps", eval_steps=4, eval_on_start=True, max_steps=4)
    trainer = make(kind, model, "out", **fields)
    trainer.eval_dataset = [{"prompt": "ab "}, {"prompt": "x "}]
    trainer.train()
    kl = [entry["eval_kl"] for entry in trainer.state.log_history if "eval_reward" in entry]
    assert kl[0] == 0.0 and kl[1] != 0.0 and len(kl) == 2
    plain = make(kind, model, "plain", beta=0.0, eval_on_start=True, max_steps=1)
    plain.eval_dataset = [{"prompt": "ab "}]
    assert "eval_kl" not in plain.evaluate() and "eval_entropy" in plain.evaluate()


def test_the_mean_length_of_no_completion_is_not_logged(model, rows):
    trainer = grpo(model, rows, max_completion_length=1, max_steps=2)
    trainer.train()
    for entry in trainer.state.log_history[:2]:
        assert ("completions/mean_terminated_length" in entry) == (entry["completions/clipped_ratio"] < 1)


def test_the_third_positional_argument_is_the_dataset(model):
    rows = [{"text": "ab"}, {"text": "sun"}]
    trainer = SFTTrainer(model, SFTConfig("out"), rows)
    assert trainer.train_dataset is rows


def _generated(completions, **kwargs):
    for text in completions:
        yield float(len(text))


@pytest.mark.parametrize("given", [
    _generated, lambda completions, **kwargs: map(len, completions),
    lambda completions, **kwargs: (len(text) for text in completions),
    lambda completions, **kwargs: tuple(map(len, completions)),
], ids=["generator", "map", "expression", "tuple"])
def test_a_reward_may_return_any_iterable_of_scores(model, rows, given):
    def listed(completions, **kwargs):
        return [float(len(text)) for text in completions]

    logs = []
    for number, function in enumerate((given, listed)):
        function.__name__ = "given"
        trainer = grpo(model, rows, function, output_dir=f"out{number}", max_steps=2)
        trainer.train()
        logs.append([entry["rewards/given/mean"] for entry in trainer.state.log_history[:2]])
    assert logs[0] == logs[1]
    with pytest.raises(ValueError, match="gave 1 scores for 4 completions"):
        grpo(model, rows, lambda completions, **kwargs: iter([1.0]), output_dir="short").train()


def test_top_k_none_means_no_limit(model, rows):
    logs = []
    for top_k in (None, 0):
        trainer = grpo(model, rows, output_dir=f"out{top_k}", top_k=top_k, max_steps=1)
        trainer.train()
        logs.append(trainer.state.log_history[0]["reward"])
    assert logs[0] == logs[1]


# Rows, batch size, epochs, dataloader_drop_last, and the tokens of each step: row i has i + 1 letters and an end token.
LAST = [
    (10, 4, 2, False, [14, 30, 21] * 2), (10, 4, 2, True, [14, 30] * 2), (8, 4, 1, False, [14, 30]),
    (9, 4, 1, False, [14, 30, 10]), (3, 4, 2, False, [9, 9]), (1, 8, 3, False, [2, 2, 2]), (5, 2, 1, False, [5, 9, 6]),
    (5, 2, 1, True, [5, 9]), (4, 4, 2, False, [14, 14]), (7, 3, 1, False, [9, 18, 8]),
]


@pytest.mark.parametrize("count, batch, epochs, drops, tokens", LAST)
def test_the_last_incomplete_batch_of_an_epoch_is_trained_on(model, count, batch, epochs, drops, tokens):
    rows = [{"text": "a" * (i + 1)} for i in range(count)]
    more = {"dataloader_drop_last": True} if drops else {}
    args = SFTConfig("out", per_device_train_batch_size=batch, num_train_epochs=epochs, shuffle_dataset=False,
                     logging_steps=1, threads=1, disable_tqdm=True, **more)
    trainer = SFTTrainer(model, args, rows)
    trainer.train()
    seen = [entry["num_tokens"] for entry in trainer.state.log_history if "loss" in entry]
    assert [b - a for a, b in zip([0, *seen], seen)] == tokens
    assert trainer.state.max_steps == len(tokens)
    assert trainer.state.log_history[-1]["epoch"] == epochs


@pytest.mark.parametrize("kind", ["dpo", "reward"])
def test_the_last_incomplete_batch_of_pairs_is_trained_on(model, kind):
    trainer = make(kind, model, "out", max_steps=-1, num_train_epochs=2)
    trainer.train_dataset = PAIRS * 3 + PAIRS[:1]
    trainer.train()
    batch = trainer.args.per_device_train_batch_size
    assert trainer.state.global_step == 2 * (len(trainer.train_dataset) // batch + 1)


def test_a_run_that_dropped_incomplete_batches_still_drops_them_when_resumed(model):
    """The configuration of an older run has no dataloader_drop_last."""
    rows = [{"text": f"{'ab' * (i + 1)}"} for i in range(5)]

    def args(**more):
        return SFTConfig("out", per_device_train_batch_size=2, num_train_epochs=3, shuffle_dataset=False,
                         logging_steps=1, save_strategy="steps", save_steps=1, threads=1, disable_tqdm=True, **more)

    SFTTrainer(model, args(dataloader_drop_last=True), rows).train()
    config = open("out/config.toml").read()
    assert "dataloader_drop_last = true" in config
    kept = [line for line in config.splitlines() if not line.startswith("dataloader_drop_last")]
    open("out/config.toml", "w").write("\n".join(kept))
    trained = weights("out/model")
    again = SFTTrainer(model, args(), rows)
    again.train(resume_from_checkpoint="out/checkpoint-3")
    assert again.state.global_step == 6 and weights("out/model") == trained


@pytest.fixture(scope="module")
def scorer(model, tmp_path_factory):
    """Returns the directory of a reward model."""
    out = str(tmp_path_factory.mktemp("reward") / "run")
    args = RewardConfig(out, per_device_train_batch_size=2, max_steps=1, threads=1, disable_tqdm=True)
    RewardTrainer(model, args, PAIRS * 2).train()
    return os.path.join(out, "model")


class Scorer(InMemory):
    """A stand-in for a loaded reward model."""

    config = None

    def __init__(self, directory, name):
        self.directory, self.name_or_path = directory, name

    def state_dict(self):
        return {}

    def save_pretrained(self, target):
        InMemory(self.directory).save_pretrained(target)


def named(scorer, names):
    """Copies the model into directories with these names."""
    for name in set(names):
        if not os.path.exists(name):
            shutil.copytree(scorer, name)
    return names


@pytest.mark.parametrize("names, logged", [
    (["Skywork-Reward"], ["Skywork-Reward"]),
    (["org/rm-a", "org/rm-b"], ["rm-a", "rm-b"]),
    (["one/rm", "two/rm"], ["rm", "rm_2"]),
    (["rm.v1-7B_x"], ["rm.v1-7B_x"]),
    (["vowels"], ["vowels"]),
    (["a/reward"], ["reward"]),
])
@pytest.mark.parametrize("given", ["named", "loaded"])
def test_metrics_of_a_reward_model_have_the_name_of_its_directory(model, rows, scorer, names, logged, given):
    names = named(scorer, names)
    models = [Scorer(name, os.path.abspath(name)) for name in names] if given == "loaded" else names
    trainer = grpo(model, rows, [*models], max_steps=1)
    assert trainer.reward_func_names == logged
    trainer.train()
    assert {f"rewards/{name}/mean" for name in logged} <= trainer.state.log_history[0].keys()
    assert f"eval_rewards/{logged[0]}/mean" in trainer.evaluate(rows)


def test_rewards_with_equal_names_are_numbered(model, rows, scorer):
    (name,) = named(scorer, ["vowels"])
    trainer = grpo(model, rows, [vowels, name, Scorer(scorer, os.path.abspath(name))], max_steps=1)
    assert trainer.reward_func_names == ["vowels", "vowels_2", "vowels_3"]
    trainer.train()
    assert {"rewards/vowels_2/mean", "rewards/vowels_3/mean"} <= trainer.state.log_history[0].keys()


def test_a_run_whose_configuration_has_no_reward_names_is_resumed(model, rows, scorer):
    """Configurations of older runs have no name for a reward model."""
    saved = dict(save_strategy="steps", save_steps=1, max_steps=3)
    grpo(model, rows, [scorer], **saved).train()
    with open("out/config.toml") as file:
        text = file.read()
    (line,) = [line for line in text.splitlines() if line.startswith("reward_funcs")]
    older = text.replace(line, f'reward_funcs = ["model:{scorer}"]')
    with open("out/config.toml", "w") as file:
        file.write(older)
    trainer = grpo(model, rows, [scorer], **saved)
    trainer.train(resume_from_checkpoint="out/checkpoint-1")
    assert trainer.state.global_step == 3


def played(env_mask, logprobs):
    """Returns a rollout function with completions of four tokens, some of them from an environment."""
    def play(prompts, trainer):
        count = len(prompts)
        return {
            "prompt_ids": [[1, 2, 3]] * count, "completion_ids": [[4 + i, 5, 6, 7] for i in range(count)],
            "logprobs": None if logprobs is None else [logprobs] * count,
            **({} if env_mask is None else {"env_mask": [env_mask] * count}),
        }
    return play


@pytest.mark.parametrize("env_mask, tokens", [
    (None, 4), ([1, 1, 1, 1], 4), ([1, 0, 0, 1], 2), ([1, 1, 1, 0], 3), ([0, 0, 0, 1], 1),
    ([True, False, True, True], 3),
])
def test_tokens_written_by_an_environment_are_not_counted(model, rows, env_mask, tokens):
    args = GRPOConfig("out", **{**SMALL, "max_steps": 1})
    trainer = GRPOTrainer(model, vowels, args, [rows[0]] * 4, rollout_func=played(env_mask, None))
    trainer.train()
    logged = trainer.state.log_history[0]
    lengths = [logged[f"completions/{what}_length"] for what in ("mean", "min", "max")]
    assert lengths == [tokens] * 3 and logged["num_tokens"] == 4 * (3 + tokens)


@pytest.mark.parametrize("env_mask", [None, [1, 0, 1, 1]])
@pytest.mark.parametrize("logprobs, is_placeholder", [
    ([0.0] * 4, True), ([-0.0] * 4, True), ([0, 0, 0, 0], True), ([0.0, 0.0, 0.0, -1.0], False), ([-2.0] * 4, False),
    ([0.0, -3.0, 0.0, 0.0], "where the environment wrote it"),
])
def test_log_probabilities_that_are_all_0_are_ignored(model, rows, env_mask, logprobs, is_placeholder):
    """As in TRL without vLLM, the current policy's log-probabilities replace them."""
    is_placeholder = is_placeholder is True or (bool(is_placeholder) and env_mask is not None)

    def norm(out, logprobs):
        args = GRPOConfig(out, **{**SMALL, "max_steps": 1})
        trainer = GRPOTrainer(model, vowels, args, [rows[0]] * 4, rollout_func=played(env_mask, logprobs))
        trainer.train()
        return trainer.state.log_history[0]["grad_norm"]

    if is_placeholder:
        with pytest.warns(UserWarning, match="all 0.0, which are placeholders"):
            assert norm("placeholders", logprobs) == norm("none", None) > 0
    else:
        assert norm("given", logprobs) != norm("none", None)


SCHEDULES = [
    ("cosine_with_min_lr", {"min_lr_rate": 0.1}, None),
    ("cosine_with_min_lr", '{"min_lr": 0.005, "num_cycles": 0.5}', None),
    ("cosine_with_restarts", {"num_cycles": 2}, None),
    ("polynomial", {"power": 2.0, "lr_end": 0.001}, None),
    ("inverse_sqrt", {"timescale": None}, [0.0, 0.5, 1.0, (2 / 3) ** 0.5, 0.5**0.5, 0.4**0.5]),
    ("warmup_stable_decay", {"num_decay_steps": 2, "decay_type": "linear"}, [0.0, 0.5, 1.0, 1.0, 1.0, 0.5]),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2}, None),
]


@pytest.mark.parametrize("kind, arguments, factors", SCHEDULES, ids=[row[0] for row in SCHEDULES])
def test_learning_rate_schedules_equal_those_of_transformers(model, kind, arguments, factors):
    """Compared with transformers if torch is installed; some values are computed by hand."""
    trainer = make("sft", model, "out", max_steps=6, learning_rate=0.01, warmup_steps=2, lr_scheduler_type=kind,
                   lr_scheduler_kwargs=arguments)
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(rates) == 6 and len(set(rates)) >= 3
    if factors is not None:
        assert rates == pytest.approx([0.01 * factor for factor in factors], rel=1e-12)
    try:
        import torch
        from transformers.optimization import get_scheduler
    except ImportError:
        return
    given = trainer.args.lr_scheduler_kwargs
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
    schedule = get_scheduler(kind, optimizer, 2, 6, scheduler_specific_kwargs=given)
    for rate in rates:
        assert rate == pytest.approx(schedule.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        schedule.step()
