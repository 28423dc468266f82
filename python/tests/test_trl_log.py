"""The log of replayed rollouts has the keys and values of TRL, recorded by conformance/trl_log_fixtures.py."""

import json
import pathlib

import pytest
from conftest import vowels

from lockstep_rl import GRPOConfig, GRPOTrainer

FIXTURE = json.loads((pathlib.Path(__file__).parent / "fixtures/trl_log.json").read_text())
# Keys that are not compared: a replayed file counts as one epoch, and times differ.
OTHERS = {"epoch", "step_time"}


@pytest.fixture(scope="module")
def log(model, tmp_path_factory):
    place = tmp_path_factory.mktemp("replay")
    with open(place / "rollouts.jsonl", "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in FIXTURE["rollouts"])
    args = GRPOConfig(str(place / "out"), replay=str(place / "rollouts.jsonl"), threads=1, disable_tqdm=True,
                      **FIXTURE["fields"])

    def lengths(completions, **kwargs):
        raise AssertionError("the scores of the file must be used")

    trainer = GRPOTrainer(model, [vowels, lengths], args, [{"prompt": "ab "}] * 8)
    trainer.train()
    return trainer.state.log_history


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_the_log_of_a_step_equals_trls(log, step):
    expected, found = FIXTURE["log_history"][step - 1], log[step - 1]
    assert expected["step"] == found["step"] == step and len(expected) >= 13
    assert expected.keys() <= found.keys()
    for name in expected.keys() - OTHERS:
        assert found[name] == pytest.approx(expected[name], abs=1e-4), name


def test_the_last_log_entry_has_the_keys_of_trl(log):
    assert {"train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss"} <= log[-1].keys()
