"""AsyncGRPOTrainer: worker processes generate and call rewards, and the weights are those of one process."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import HANG, python, weights

import lockstep_rl
from lockstep_rl import AsyncGRPOConfig, AsyncGRPOTrainer

SETUP = """
import os
from lockstep_rl import AsyncGRPOConfig, AsyncGRPOTrainer, GRPOConfig, GRPOTrainer

def distinct(completions, trainer_state, **kwargs):
    with open("scored", "a") as file:
        print(os.getpid(), len(completions), trainer_state.global_step, file=file)
    return [float(len(set(text))) for text in completions]

async def short(completions, **kwargs):
    return [-len(text) / 10 for text in completions]

ROWS = [{"prompt": "ab "}, {"prompt": "sun "}, {"prompt": "moon "}]
SHARED = dict(num_generations=2, per_device_train_batch_size=4, max_completion_length=6, max_steps=6, threads=1,
              learning_rate=0.01, save_steps=2)

def get_trainer(out="out", kind="async", **more):
    config, trainer = (AsyncGRPOConfig, AsyncGRPOTrainer) if kind == "async" else (GRPOConfig, GRPOTrainer)
    return trainer("MODEL", [distinct, short], config(out, **SHARED, **more), ROWS)

if __name__ == "__main__":
    import sys
    trainer = get_trainer(*sys.argv[1:3], **eval(sys.argv[3]))
    trainer.train()
"""


@pytest.fixture
def setup(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "setup_of_run.py").write_text(SETUP.replace("MODEL", str(model)))
    return "setup_of_run.py"


def run(*words):
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=HANG)
    assert ended.returncode == 0, ended.stderr
    return ended


def test_workers_train_the_same_weights_as_one_process(setup):
    run(setup, "one", "sync", "dict(max_staleness=2)")
    run(setup, "two", "async", "dict(max_staleness=2, num_workers=2)")
    assert weights("one/model") == weights("two/model")
    pids = {line.split()[0] for line in open("scored")}
    groups = [line.split()[1:] for line in open("scored")]
    assert len(pids) >= 2 and ["2", "0"] in groups and any(step > "0" for _, step in groups), groups
    lines = [json.loads(line) for line in open("two/metrics.jsonl")]
    assert any("async/lag_mean" in line for line in lines)
    assert run("-m", "lockstep_rl", "status", "two").stdout.count("ended") >= 2


def test_train_and_worker_commands_run_a_file_with_get_trainer(setup):
    run("-m", "lockstep_rl", "train", setup)
    run(setup, "one", "sync", "dict(max_staleness=1)")
    assert weights("one/model") == weights("out/model"), "max_staleness is 1 by default"
    script = setup.replace("_of_run", "_by_hand")
    with open(script, "w") as file:
        file.write(open(setup).read().replace("save_steps=2)", "save_steps=2, num_workers=0, output_dir='hand')")
                   .replace("config(out, ", "config("))
    words = [sys.executable, "-m", "lockstep_rl", "train", script]
    learner = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    run("-m", "lockstep_rl", "worker", "--join", "hand", "--name", "a", "--setup", script)
    assert learner.wait(HANG) == 0, learner.stderr.read()
    assert weights("hand/model") == weights("out/model")


def test_a_killed_worker_is_restarted_and_ctrl_c_ends_all_processes(setup):
    more = "dict(max_steps=100000, save_steps=50000, logging_steps=50000)"
    source = open(setup).read().replace("max_steps=6, ", "").replace("save_steps=2", "num_workers=1")
    with open(setup, "w") as file:
        file.write(source)
    trains = subprocess.Popen([sys.executable, setup, "out", "async", more], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, start_new_session=True)
    until = time.monotonic() + HANG

    def scored_by():
        assert trains.poll() is None and time.monotonic() < until, trains.communicate()
        time.sleep(0.05)
        return {int(line.split()[0]) for line in open("scored")} if os.path.exists("scored") else set()

    while not scored_by():
        pass
    os.kill(next(iter(scored_by())), signal.SIGKILL)
    while len(scored_by()) < 2:
        pass
    os.killpg(trains.pid, signal.SIGINT)
    out, err = trains.communicate(timeout=HANG)
    assert "is restarted" in err and "resume_from_checkpoint=True" in err, err
    while [pid for pid in {int(line.split()[0]) for line in open("scored")} if os.path.exists(f"/proc/{pid}")]:
        assert time.monotonic() < until, "worker processes are still running"
        time.sleep(0.05)


def test_rewards_that_cannot_be_sent_to_workers_are_refused(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": "ab "}]
    with pytest.raises(TypeError, match="cannot be sent to a worker process"):
        AsyncGRPOTrainer(str(model), lambda completions, **kwargs: [0.0], AsyncGRPOConfig("out"), rows)
    with pytest.raises(TypeError, match="did you mean `num_workers`"):
        AsyncGRPOConfig("out", num_worker=2)
    with pytest.warns(UserWarning, match="vllm_server_base_url has no meaning here"):
        AsyncGRPOConfig("out", vllm_server_base_url="http://localhost:8000")
    ended = subprocess.run([sys.executable, "-m", "lockstep_rl", "train", "missing.py"], capture_output=True, text=True)
    assert ended.returncode == 2 and "missing.py: no such file" in ended.stderr


def test_the_program_starts_workers_with_the_python_interpreter(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.jsonl").write_text('{"prompt": "ab "}\n{"prompt": "sun "}\n')
    words = ["--model", str(model), "--dataset", "d.jsonl", "--reward", "unique_chars", "--set", "max_steps=2", "--set",
             "num_generations=2", "--set", "per_device_train_batch_size=4", "--set", "max_completion_length=6"]
    run("-m", "lockstep_rl", "train", *words, "--out", "out", "--distributed", "--workers", "1")
    run("-m", "lockstep_rl", "train", *words, "--out", "one", "--set", "max_staleness=1")
    assert weights("one/model") == weights("out/model")
