"""The profile of a run of the package."""

import json
import statistics
import sys
import threading
import time

from conftest import grpo, vowels

from lockstep_rl import TrainerCallback


class StopAfter(TrainerCallback):
    """Ends training after `seconds`; shorter runs have no findings."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = time.monotonic() > self.end


def waits(trainer):
    return statistics.median(entry["rewards/vowels/gil_wait_s"] for entry in trainer.state.log_history[:-1])


def test_the_profile_finds_rewards_that_wait_for_the_interpreter_lock(model, rows):
    """A busy thread of the user holds the interpreter lock, and the reward waits for it."""
    done = threading.Event()
    thread = threading.Thread(target=lambda: [None for _ in iter(done.is_set, True)])
    before = sys.getswitchinterval()
    # A thread that requests the lock waits this long while the other thread is busy.
    sys.setswitchinterval(0.05)
    thread.start()
    try:
        # Completions long enough for the thread to start while they are generated.
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
    # On a slow machine the waits are too small a part of the steps for a finding.
    found = {finding["id"]: finding for finding in profile["findings"]}
    with open("out/lockstep-0.log") as file:
        assert ("interpreter_lock" in found) == ("Rewards in Python wait for the interpreter" in file.read())

    # Without the thread, the reward waits for less time.
    alone = grpo(model, rows, vowels, max_steps=20, output_dir="alone")
    alone.train()
    assert waits(alone) < waits(trainer)
