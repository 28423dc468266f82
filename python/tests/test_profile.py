"""What a run of the package says about its own time."""

import json
import statistics
import sys
import threading
import time

from conftest import grpo, vowels

from lockstep_rl import TrainerCallback


class StopAfter(TrainerCallback):
    """Ends training after so many seconds: what takes less is not judged."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = time.monotonic() > self.end


def waits(trainer):
    return statistics.median(entry["rewards/vowels/gil_wait_s"] for entry in trainer.state.log_history[:-1])


def test_the_profile_finds_rewards_that_wait_for_the_interpreter_lock(model, rows):
    """A thread of the user's that computes in Python holds the interpreter, and the reward waits for it."""
    done = threading.Event()
    thread = threading.Thread(target=lambda: [None for _ in iter(done.is_set, True)])
    before = sys.getswitchinterval()
    # Whoever asks for the interpreter while the thread counts has to wait for so long.
    sys.setswitchinterval(0.05)
    thread.start()
    try:
        # Completions long enough for the thread to begin while they are written.
        size = dict(max_completion_length=48, per_device_train_batch_size=64, max_steps=100_000, save_strategy="no")
        trainer = grpo(model, rows * 8, vowels, [StopAfter(15)], **size)
        trainer.train()
    finally:
        done.set()
        sys.setswitchinterval(before)
        thread.join()
    with open("out/profile.json") as file:
        profile = json.load(file)
    waited_s, held_s = profile["measured"]["interpreter"]["vowels"]
    assert waited_s > held_s > 0
    # On a slow machine the steps take so long that the waits are a small part of them.
    found = {finding["id"]: finding for finding in profile["findings"]}
    with open("out/lockstep-0.log") as file:
        assert ("interpreter_lock" in found) == ("Rewards in Python wait for the interpreter" in file.read())

    # Without the thread it waits for less time.
    alone = grpo(model, rows, vowels, max_steps=20, output_dir="alone")
    alone.train()
    assert waits(alone) < waits(trainer)
