"""Several processes of a launcher that run the same script."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest
from conftest import HANG

from lockstep_rl import GRPOConfig, SFTConfig

SCRIPT = """
import json, sys
from lockstep_rl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

def letters(completions, **kwargs):
    return [float(len(set(text))) for text in completions]

model, kind, out, more = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
common = dict(max_steps=3, logging_steps=1, save_strategy="no", learning_rate=0.01, threads=2, **more)
if kind == "grpo":
    args = GRPOConfig(out, num_generations=4, max_completion_length=6, **common)
    trainer = GRPOTrainer(model, letters, args, [{"prompt": "ab "}, {"prompt": "sun "}, {"prompt": "a, "}])
else:
    args = SFTConfig(out, **common)
    trainer = SFTTrainer(model, args, [{"prompt": "ab ", "completion": "ba"}, {"prompt": "sun ", "completion": "moon"}])
print("rank", args.process_index, "of", args.world_size, trainer.accelerator.is_main_process)
result = trainer.train()
trainer.save_model(out + "/saved")
print("trained", result.global_step, args.per_device_train_batch_size)
if "again" in sys.argv:
    trainer.train()
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def launch(count, *arguments, **more):
    """Runs the script in `count` processes, as torchrun does. Returns exit code, output and errors of each."""
    common = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": free_port(), "OMP_NUM_THREADS": "1", **more}
    command = [sys.executable, "-c", SCRIPT, *arguments]
    processes = [
        subprocess.Popen(command, env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(count)
    ]
    said = [process.communicate(timeout=HANG) for process in processes]
    return [(process.returncode, out, err) for process, (out, err) in zip(processes, said, strict=True)]


def alone(*arguments):
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def weights_of(out):
    return pathlib.Path(out, "model", "model.safetensors").read_bytes()


@pytest.mark.parametrize("kind", ["grpo", "sft"])
def test_two_processes_train_as_one_with_twice_the_batch(model, kind, tmp_path, monkeypatch):
    """Rank 0 continues after train(); the other process ends there."""
    monkeypatch.chdir(tmp_path)
    batch = 4 if kind == "grpo" else 1
    both = launch(2, model, kind, "both", json.dumps({"per_device_train_batch_size": batch}))
    assert [code for code, _, _ in both] == [0, 0], both
    assert both[0][1] == f"rank 0 of 2 True\ntrained 3 {batch}\n"
    assert both[1][1] == "rank 1 of 2 False\n"
    product = f"per_device_train_batch_size {batch} × gradient_accumulation_steps 1 × 2 processes = {2 * batch} samples"
    assert product in both[0][2]
    alone(model, kind, "one", json.dumps({"per_device_train_batch_size": 2 * batch, "gradient_shares": 2}))
    assert weights_of("both") == weights_of("one")
    assert pathlib.Path("both/saved/model.safetensors").exists()


def test_all_processes_fail_if_training_fails(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.makedirs("used")
    pathlib.Path("used/config.toml").write_text("")
    failed = launch(2, model, "sft", "used", "{}")
    assert [code for code, _, _ in failed] == [1, 1], failed
    assert "used" in failed[0][2] and "Traceback" not in failed[1][2]


def test_a_launch_trains_once(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    twice = launch(2, model, "sft", "out", "{}", "again")
    assert [code for code, _, _ in twice] == [1, 0]
    assert "a launch trains once" in twice[0][2]


def test_wrong_variables_are_named_before_training(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="WORLD_SIZE is set, as by a launcher, but RANK is not"):
        SFTConfig()
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ValueError, match="RANK = 2 must be less than WORLD_SIZE = 2"):
        SFTConfig()


def test_batches_are_multiplied_by_the_processes_as_in_trl(monkeypatch):
    for name, value in [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")]:
        monkeypatch.setenv(name, value)
    args = GRPOConfig("out", per_device_train_batch_size=2, gradient_accumulation_steps=3, num_generations=8)
    assert (args.world_size, args.process_index, args.should_save) == (4, 1, False)
    assert (args.steps_per_generation, args.generation_batch_size) == (3, 24)
    assert args.values()["per_device_train_batch_size"] == 8
