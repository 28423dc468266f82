"""Arguments and results of reward functions. The engine's own interpreter is tested with the same cases
(crates/rewards/src/python/tests.rs)."""

import importlib.util
import json
import pathlib
import traceback
from types import SimpleNamespace

import pytest

from lockstep_rl._rewards import RewardSet

HERE = pathlib.Path(__file__).parent / "calling"
CASES = json.loads((HERE / "cases.json").read_text())


def function_of(name):
    spec = importlib.util.spec_from_file_location("functions", HERE / "functions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["function"])
def test_reward_functions_are_called_as_the_table_of_cases_says(case):
    rewards = RewardSet(function_of(case["function"]))
    rewards.state = SimpleNamespace(global_step=case["batch"]["step"])
    [function] = rewards.functions
    function.name = case["function"]
    if "answer" in case:
        assert json.loads(function(case["batch"])) == case["answer"]
        return
    with pytest.raises(Exception) as raised:
        function(case["batch"])
    words = "".join(traceback.format_exception(raised.value)) + "".join(map(str, raised.value.args))
    for word in case["error"]:
        # Python 3.10 has no notes: the note is part of the message there, and a KeyError shows its message quoted.
        assert (word if hasattr(raised.value, "add_note") else word.removesuffix("'zz'")) in words
