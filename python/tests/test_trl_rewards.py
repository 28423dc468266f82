"""Rewards with TRL's names have TRL's scores (recorded by conformance/trl_rewards_fixtures.py) and signatures."""

import functools
import importlib.util
import json
import pathlib
import pickle

import pytest
from conftest import SMALL, grpo

from lockstep_rl import GRPOConfig, GRPOTrainer, rewards

ROWS = json.loads((pathlib.Path(__file__).parent / "fixtures/trl_rewards.json").read_text())
HAS_PACKAGE = importlib.util.find_spec("math_verify") is not None
needs_package = pytest.mark.skipif(not HAS_PACKAGE, reason="math_verify, which TRL's accuracy rewards need, is missing")


def conversation(text):
    return [{"role": "assistant", "content": text}]


@needs_package
@pytest.mark.parametrize("text, solution, value", ROWS["accuracy"])
def test_accuracy_reward_equals_trls(text, solution, value):
    assert rewards.accuracy_reward([conversation(text)], [solution]) == [value]
    assert rewards.accuracy_reward(completions=[text], solution=[solution], trainer_state=None) == [value]


@needs_package
@pytest.mark.parametrize("text, solution, delimiters, value", ROWS["reasoning"])
def test_reasoning_accuracy_reward_equals_trls(text, solution, delimiters, value):
    given = [conversation(text)]
    assert rewards.reasoning_accuracy_reward(given, [solution], reasoning_delimiters=delimiters) == [value]


@pytest.mark.parametrize("text, value", ROWS["format"])
def test_think_format_reward_equals_trls(text, value):
    assert rewards.think_format_reward([conversation(text)]) == [value]


@pytest.mark.parametrize("most, cache, length, value", ROWS["overlong"])
def test_the_soft_overlong_punishment_equals_trls(most, cache, length, value):
    punish = rewards.get_soft_overlong_punishment(max_completion_len=most, soft_punish_cache=cache)
    assert punish([[1] * length]) == punish(completion_ids=[[1] * length], prompts=["a"]) == [pytest.approx(value)]
    assert punish.__name__ == "soft_overlong_punishment_reward"


@needs_package
@pytest.mark.parametrize("length, text, solution, value", ROWS["cosine"])
def test_the_cosine_scaled_reward_equals_trls(length, text, solution, value):
    scaled = rewards.get_cosine_scaled_reward(max_len=100)
    expected = value if value is None else pytest.approx(value)
    assert scaled([conversation(text)], [solution], [[1] * length]) == [expected]


@pytest.mark.parametrize("size, ids, value", ROWS["repetition"])
def test_the_repetition_penalty_equals_trls(size, ids, value):
    assert rewards.get_repetition_penalty_reward(ngram_size=size)([ids]) == [pytest.approx(value)]


@needs_package
def test_parsed_answers_are_logged_as_in_trl():
    logged = {}
    texts = [r"\boxed{3}", "3", r"\boxed{3}"]
    given = [conversation(text) for text in texts]
    rewards.accuracy_reward(given, ["3", "3", "none"], log_extra=logged.__setitem__)
    assert logged == {
        "solution": ["3", "3", "none"], "gold_parsed": ["[3, '3']", "[3, '3']", "[unparseable]"],
        "answer_parsed": ["[3, '3']", "[unparseable]", "[skipped]"],
    }
    with pytest.raises(ValueError, match="zip"):
        rewards.accuracy_reward(given, ["3"])


@needs_package
def test_a_trainer_logs_rewards_under_the_names_of_trl(model, rows):
    rows = [{**row, "solution": "$3$" if i % 2 else "no math"} for i, row in enumerate(rows)]
    punish = rewards.get_soft_overlong_punishment(6, 3)
    given = [rewards.accuracy_reward, rewards.think_format_reward, punish]
    trainer = GRPOTrainer(model, given, GRPOConfig("out", **{**SMALL, "max_steps": 1}), rows)
    trainer.train()
    names = ["accuracy_reward", "think_format_reward", "soft_overlong_punishment_reward"]
    assert trainer.reward_func_names == names
    assert {f"rewards/{name}/mean" for name in names} <= trainer.state.log_history[0].keys()


@pytest.mark.parametrize("reward", [
    rewards.accuracy_reward, rewards.reasoning_accuracy_reward, rewards.get_cosine_scaled_reward(9),
    rewards.get_soft_overlong_punishment(3, 1), rewards.get_repetition_penalty_reward(), rewards.think_format_reward,
])
def test_rewards_can_be_pickled_for_worker_processes(reward):
    assert pickle.loads(pickle.dumps(reward)).__name__ == reward.__name__


@pytest.mark.parametrize("reward", [
    rewards.accuracy_reward, rewards.reasoning_accuracy_reward, rewards.get_cosine_scaled_reward(9),
])
def test_the_error_names_a_missing_package_before_training(model, rows, reward, monkeypatch):
    monkeypatch.setattr(rewards.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install math-verify.*builtin"):
        grpo(model, rows, reward)
    with pytest.raises(ImportError, match="pip install math-verify"):
        reward(completions=[conversation("3")], solution=["3"], completion_ids=[[1]])


def test_the_attribute_requires_of_a_users_reward_is_ignored(model, rows):
    def fn(completions, **kwargs):
        return [0.0] * len(completions)

    fn.requires = "no_such_package"
    grpo(model, rows, [fn, functools.partial(fn)])
