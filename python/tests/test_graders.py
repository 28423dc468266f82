"""`lockstep_rl.rewards`: the engine's graders as functions, and as rewards that run inside the engine."""

import pytest
from conftest import SMALL, grpo, weights

from lockstep_rl import GRPOConfig, GRPOTrainer, rewards


@pytest.mark.parametrize("reward, completion, columns, score", [
    (rewards.gsm8k, "so it is 8", {"answer": "4 + 4\n#### 8"}, 1.0),
    (rewards.gsm8k, "so it is 9", {"answer": "4 + 4\n#### 8"}, 0.0),
    (rewards.math, r"\boxed{\frac{2}{4}}", {"answer": "1/2"}, 1.0),
    (rewards.multiple_choice, "The answer is (B)", {"answer": "B"}, 1.0),
    (rewards.countdown, "<answer>(1 + 2) * 3</answer>", {"nums": [1, 2, 3], "target": 9}, 1.0),
    (rewards.think_answer, "<think>a</think><answer>b</answer>", {}, 1.0),
    (rewards.exact_match, "yes", {"answer": "yes"}, 1.0),
    (rewards.unique_chars, "abab", {}, 2.0),
    (rewards.builtin("format:a+"), "baab", {}, 1.0),
    (rewards.builtin("keyword", words=["red", "green"], match="share"), "a red door", {}, 0.5),
    (rewards.accuracy_reward, r"\boxed{3}", {"solution": "$3$"}, 1.0),
    (rewards.think_format_reward, "<think>a</think>b", {}, 1.0),
    (rewards.think_format_reward, "<think>a<think>b</think>c", {}, 0.0),
    (rewards.think_format_reward, "a <think>b</think>", {}, 0.0),
    (rewards.reasoning_accuracy_reward, r"<think>\boxed{4}</think> \boxed{3}", {"solution": "$3$"}, 1.0),
    (rewards.reasoning_accuracy_reward, r"\boxed{3}", {"solution": "$3$"}, 0.0),
])
def test_a_grader_can_be_called_as_a_function(reward, completion, columns, score):
    columns = {name: [value] for name, value in columns.items()}
    given = [[{"role": "assistant", "content": completion}]]
    assert reward(completions=given, trainer_state=None, **columns) == [score]
    assert reward(completions=given * 2, **{name: values * 2 for name, values in columns.items()}) == [score] * 2


def test_a_row_without_a_valid_answer_scores_none_with_a_warning():
    with pytest.warns(UserWarning, match="gsm8k"):
        assert rewards.gsm8k(completions=["8", "8"], answer=["#### 8", "eight"]) == [1.0, None]


@pytest.mark.parametrize("call, error, words", [
    (lambda: rewards.builtin("gsm9k"), ValueError, "gsm9k.*gsm8k"),
    (lambda: rewards.builtin("length", most=3), ValueError, "most"),
    (lambda: rewards.builtin(3), TypeError, "name of a grader"),
    (lambda: rewards.gsm8k(completions=["8"]), TypeError, "needs the column `answer`"),
    (lambda: rewards.gsm8k(completions=["8"], answer=["1", "2"]), ValueError, "2 values for 1"),
    (lambda: rewards.unique_chars(completions=[{"a": 1}]), ValueError, "completions"),
])
def test_wrong_arguments_of_graders_raise_a_clear_error(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_a_grader_passed_to_a_trainer_runs_inside_the_engine(model, rows):
    grader = rewards.builtin("unique_chars", name="chars")
    trainer = GRPOTrainer(model, [grader], GRPOConfig("inside", **SMALL), rows)
    trainer.train()
    assert "rewards/chars/mean" in trainer.state.log_history[0]
    assert not any("gil_wait" in key for key in trainer.state.log_history[0])
    grpo(model, rows, lambda completions, **kwargs: grader(completions=completions)).train()
    assert weights("inside/model") == weights("out/model")
