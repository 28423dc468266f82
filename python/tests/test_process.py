"""The package as a process: the program, Ctrl-C, fork, and imports."""

import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import HANG, python, weights

SCRIPT = """
import sys, time
from lockstep_rl import GRPOConfig, GRPOTrainer

def slow(completions, **kwargs):
    print("scored", flush=True)
    for _ in range(int(sys.argv[2])):
        time.sleep(0.01)
    return [float(len(set(text))) for text in completions]

args = GRPOConfig("out", num_generations=2, per_device_train_batch_size=4, max_completion_length=int(sys.argv[3]),
                  max_steps=100000, logging_steps=1000, threads=1)
trainer = GRPOTrainer(sys.argv[1], slow, args, [{"prompt": "ab "}, {"prompt": "sun "}])
try:
    trainer.train()
except KeyboardInterrupt:
    print("stopped after", trainer.state.global_step, flush=True)
    raise
"""


def start(*arguments):
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, *map(str, arguments)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    for _ in range(4):
        assert process.stdout.readline() == "scored\n", process.stderr.read()
    return process


@pytest.mark.parametrize("reward", [0, 100_000], ids=["while the engine works", "inside a reward"])
def test_ctrl_c_saves_a_checkpoint_and_stops(model, reward):
    process = start(model, 0 if reward == 0 else 1, 6)
    if reward:
        process.kill()
        process.wait()
        os.rename("out", "killed")
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, model, str(reward), "6"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "scored\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANG)
    assert process.returncode == -signal.SIGINT, err
    assert "Ctrl-C: the run writes a checkpoint and stops" in err and "KeyboardInterrupt" in err
    steps = int(out.rsplit("stopped after ", 1)[1])
    if reward:
        assert steps == 0
    else:
        assert os.listdir("out/checkpoints") == [f"step-{steps:06}"] and steps >= 3
        assert f"stopped after step {steps}" in err and "resume_from_checkpoint=True" in err


def test_a_second_ctrl_c_ends_the_process_immediately(model):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.replace("time.sleep(0.01)", "hold()").replace("def slow", '''
def hold():
    said = False
    while True:  # A reward that swallows the first Ctrl-C.
        try:
            if not said:
                said = True
                print("holding", flush=True)
            time.sleep(1)
        except KeyboardInterrupt:
            print("swallowed", flush=True)

def slow'''), model, "1", "6"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert [process.stdout.readline() for _ in range(2)] == ["scored\n", "holding\n"]
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "swallowed\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG)
    assert process.returncode == 128 + signal.SIGINT


def test_stop_can_be_called_from_another_thread(model):
    said = python("-c", SCRIPT.replace("try:\n", """
import threading
threading.Timer(1.0, trainer.stop).start()
try:
"""), model, "0", "6")
    assert "stopped after" in said.stdout and "KeyboardInterrupt" in said.stderr, said


def test_the_package_runs_the_commands_of_the_program(model):
    said = python("-m", "lockstep_rl", "config", "explain", "num_generations")
    assert said.returncode == 0 and "Completions per prompt" in said.stdout
    said = python("-m", "lockstep_rl", "train", "--model", "nowhere/at/all")
    assert said.returncode == 2 and said.stderr.startswith("error: ")
    said = python("-m", "lockstep_rl", "generate", "--model", model, "--prompt", "ab ", "--max-new-tokens", "4")
    assert said.returncode == 0, said.stderr


def test_importing_the_package_imports_no_heavy_packages(model):
    said = python("-c", """
import sys, lockstep_rl
lockstep_rl.GRPOConfig()
heavy = {"torch", "transformers", "trl", "peft", "datasets", "numpy", "pandas"} & set(sys.modules)
assert not heavy, heavy
""")
    assert said.returncode == 0, said.stderr


RUNS = """
import os, shutil, sys
from lockstep_rl import GRPOConfig, GRPOTrainer

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def reward(completions, **kwargs):
    return [float(len(text)) for text in completions]

sizes = []
for _ in range(4):
    for _ in range(50):
        args = GRPOConfig("out", num_generations=2, per_device_train_batch_size=4, max_completion_length=6, max_steps=2,
                          save_strategy="no", threads=1)
        GRPOTrainer(sys.argv[1], reward, args, [{"prompt": "ab "}, {"prompt": "sun "}]).train()
        shutil.rmtree("out")
    sizes.append(resident())
print("SIZES", *sizes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_over_200_short_runs(model):
    said = python("-c", RUNS, model)
    assert said.returncode == 0, said.stderr
    _, *sizes = next(line for line in said.stdout.splitlines() if line.startswith("SIZES")).split()
    first, *_, last = map(int, sizes)
    # 150 runs: a leak of 40 KiB per run would fail.
    assert last - first < 6 << 20, sizes


def test_training_works_after_a_fork(model):
    said = python("-c", SCRIPT.replace("max_steps=100000", "max_steps=2").replace("try:\n", """
import os
if os.fork() == 0:
    os._exit(len("ab"))
_, status = os.wait()
assert os.waitstatus_to_exitcode(status) == 2
try:
"""), model, "0", "6")
    assert said.returncode == 0, said.stderr


def test_using_the_engine_in_a_forked_child_raises_a_clear_error(model):
    said = python("-c", SCRIPT.replace("max_steps=100000", "max_steps=2").replace("try:\n", """
import os, shutil
trainer.train()
shutil.rmtree("out")
read, write = os.pipe()
if os.fork() == 0:
    try:
        lockstep_rl.GRPOConfig("out", num_generations=4)
        trainer.train()
    except RuntimeError as error:
        os.write(write, str(error).encode())
    os._exit(0)
os.wait()
print("CHILD", os.read(read, 4096).decode())
try:
""").replace("import os", "import os, lockstep_rl", 1), model, "0", "6")
    assert "was forked from one" in said.stdout and "spawn" in said.stdout, said


def test_datasets_can_be_mapped_by_forked_processes_after_a_run(model):
    pytest.importorskip("datasets")
    said = python("-c", SCRIPT.replace("max_steps=100000", "max_steps=2").replace("try:\n", '''
import datasets, shutil
trainer.train()
shutil.rmtree("out")
words = datasets.Dataset.from_list([{"prompt": f"{word} "} for word in ("ab", "sun", "moon", "tree")])
words = words.map(lambda row: {"length": len(row["prompt"])}, num_proc=2)
assert words["length"][:] == [3, 4, 5, 5]
trainer = GRPOTrainer(sys.argv[1], slow, args, words)
try:
'''), model, "0", "6")
    assert said.returncode == 0, said.stderr


def test_many_runs_leak_neither_memory_nor_threads(model, rows):
    said = python("-c", """
import os, shutil, sys, time
from lockstep_rl import GRPOConfig, GRPOTrainer

def pages():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])

def run():
    args = GRPOConfig("out", num_generations=2, per_device_train_batch_size=4, max_completion_length=6, max_steps=1,
                      threads=1, disable_tqdm=True, save_strategy="no")
    GRPOTrainer(sys.argv[1], lambda completions, **kwargs: [len(c) for c in completions], args,
                [{"prompt": "ab "}, {"prompt": "sun "}]).train()
    shutil.rmtree("out")

def threads():
    return len(os.listdir("/proc/self/task"))

for _ in range(20):
    run()
before, threads_before = pages(), threads()
for _ in range(180):
    run()
grown = (pages() - before) * os.sysconf("SC_PAGE_SIZE")
# The system may list a thread that has been joined for a moment longer.
deadline = time.monotonic() + 30
while threads() > threads_before and time.monotonic() < deadline:
    time.sleep(0.01)
assert threads() == threads_before, (threads(), threads_before)
assert grown < 8 << 20, grown
""", model)
    assert said.returncode == 0, said.stderr


INTERRUPTED = """
import os, signal, sys, threading
from lockstep_rl import GRPOConfig, GRPOTrainer, TrainerCallback

where, delay = sys.argv[2], float(sys.argv[3])
sent = []

def ctrl_c(place, step):
    if place == where and step == 2 and not sent:
        sent.append(place)
        if delay:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            os.kill(os.getpid(), signal.SIGINT)

class Callback(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        ctrl_c("begin", state.global_step)
    def on_step_end(self, args, state, control, **kwargs):
        ctrl_c("end", state.global_step)
    def on_evaluate(self, args, state, control, **kwargs):
        ctrl_c("evaluate", state.global_step)

def reward(completions, trainer_state, **kwargs):
    ctrl_c("reward", trainer_state.global_step)
    return [float(len(set(text))) for text in completions]

def trainer(out):
    args = GRPOConfig(out, num_generations=2, per_device_train_batch_size=4, max_completion_length=24, max_steps=200,
                      learning_rate=0.01, threads=1, eval_strategy="steps", eval_steps=2, save_strategy="no")
    rows = [{"prompt": f"{word} "} for word in ("ab", "sun", "moon", "tree")]
    return GRPOTrainer(sys.argv[1], reward, args, rows, rows[:2], callbacks=[Callback])

try:
    trainer("out").train()
except KeyboardInterrupt:
    print("CHECKPOINTS", os.listdir("out/checkpoints"))
    if not os.path.exists("out/model"):  # the signal may arrive after the run ended
        trainer("out").train(resume_from_checkpoint=True)
assert sent
where = None
trainer("whole").train()
print("DONE", sent)
"""


@pytest.mark.parametrize("where, delay", [
    ("begin", 0), ("begin", 0.01), ("reward", 0), ("reward", 0.002), ("reward", 0.01), ("end", 0), ("evaluate", 0),
])
def test_a_run_interrupted_at_any_stage_resumes_to_the_same_weights(model, where, delay):
    """With a delay, the signal arrives while the engine computes, at an arbitrary stage."""
    said = python("-c", INTERRUPTED, model, where, str(delay))
    assert "DONE" in said.stdout, said.stderr
    if not delay:
        assert "CHECKPOINTS ['step-000002']" in said.stdout, said.stdout
    assert weights("out/model") == weights("whole/model")
