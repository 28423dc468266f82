"""Event files have the values of the run's other files when TensorBoard's own backend loads them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import grpo

from lockstep_rl import _native

if not os.environ.get("CI"):
    pytest.importorskip("tensorboard")


def read(directory):
    """Loads a directory as the program `tensorboard` does."""
    from tensorboard.backend.event_processing import plugin_event_accumulator as accumulator

    events = accumulator.EventAccumulator(os.fspath(directory), size_guidance={accumulator.TENSORS: 0})
    return events.Reload()


def of_plugin(events, plugin):
    """Returns all values of a plugin by (step, tag)."""
    from tensorboard.util import tensor_util

    return {
        (event.step, tag): tensor_util.make_ndarray(event.tensor_proto)
        for tag in events.PluginTagToContent(plugin) for event in events.Tensors(tag)
    }


def hparams(events):
    from tensorboard.plugins.hparams import plugin_data_pb2

    (content,) = events.PluginTagToContent("hparams").values()
    session = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in session.hparams.items()}


def jsonl(text):
    return [json.loads(line) for line in text.splitlines()]


def logged():
    """Returns all values in metrics.jsonl by (step, name), rounded to f32 as in event files."""
    with open("out/metrics.jsonl") as file:
        lines = [line for line in jsonl(file.read()) if "alarm" not in line]
    return {(line["step"], tag(name)): np.float32(value) for line in lines for name, value in line.items()
            if name not in ("step", "time_s")}


def tag(name):
    """Returns the tag of transformers, so that runs of both are shown in one chart."""
    return f"eval/{name[5:]}" if name.startswith("eval_") else f"train/{name}"


def recorded():
    """Returns the recorded completions by step, with their texts and rewards."""
    program = [sys.executable, "-m", "lockstep_rl", "rollouts", "out"]
    said = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    steps = {}
    for line in jsonl(said):
        steps.setdefault(line["step"], []).append(line)
    return steps


def test_tensorboard_loads_the_events_of_a_run_and_of_lockstep_board(model, rows):
    trained = dict(log_completions=True, record_rollouts=True, eval_strategy="steps", eval_steps=2)
    grpo(model, rows, report_to=["tensorboard"], trainer=dict(eval_dataset=rows[:2]), **trained).train()
    assert _native.main(["lockstep", "board", "out", "--out", "made"]) == 0
    metrics, completions = logged(), recorded()
    assert {step for step, _ in metrics} == {1, 2, 3, 4} and any(name.startswith("eval/") for _, name in metrics)
    for directory in ["out/tensorboard", "made/out"]:
        events = read(directory)
        scalars = of_plugin(events, "scalars")
        assert scalars.keys() == metrics.keys(), directory
        assert all(np.array_equal(scalars[at], metrics[at], equal_nan=True) for at in metrics), directory

        histograms = of_plugin(events, "histograms")
        for step, lines in completions.items():
            rewards = [line["rewards"][0] for line in lines]
            buckets = histograms[step, "distribution/reward"]
            assert buckets[:, 2].sum() == len(rewards) == 4
            assert (buckets[:, 0].min(), buckets[:, 1].max()) == (min(rewards), max(rewards))

        texts = of_plugin(events, "text")
        assert texts
        for (step, _), table in texts.items():
            (text,) = table
            # The table starts with two header lines.
            assert len(text.splitlines()) == 2 + len(completions[step])
            for line in completions[step]:
                assert f"| {line['prompt'].strip()}" in text.decode() and f" {line['rewards'][0]:g} |" in text.decode()

        of_run = hparams(events)
        assert (of_run["learning_rate"], of_run["num_generations"], of_run["log_completions"]) == (0.01, 2, True)
