"""Measures what Python costs: the same training through `lockstep_rl.GRPOTrainer` and through `lockstep train`,
alternately. Also measures how much of a slow Python reward's time overlaps with generation. Prints JSON.

    python bench/python_overhead.py MODEL_DIR [PAIRS]
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
from pairs import interval  # noqa: E402

FIELDS = dict(
    num_generations=8, per_device_train_batch_size=32, max_completion_length=64, max_steps=40, logging_steps=1,
    learning_rate=1e-4, save_strategy="no", threads=2,
)  # fmt: skip
PROMPTS = ["Once upon a time", "The little dog", "A big red ball", "Tom and Lily went", "In the park", "One day, a cat"]

TRAIN = """
import json, sys
from lockstep_rl import GRPOConfig, GRPOTrainer
model, out, rows, fields = sys.argv[1:]
args = GRPOConfig(out, disable_tqdm=True, **json.loads(fields))
GRPOTrainer(model, "unique_chars", args, [json.loads(line) for line in open(rows)]).train()
"""


def measured(arguments):
    """Runs a process. Returns its wall-clock seconds and its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def steps_of(out):
    """Returns the seconds of all steps after the first, from the run's metrics."""
    with open(os.path.join(out, "metrics.jsonl")) as file:
        # Lines of alarms have no `step_time`.
        times = [entry["step_time"] for entry in map(json.loads, file) if "step_time" in entry]
    return sum(times[1:])


def overhead(model, place, pairs):
    rows = os.path.join(place, "rows.jsonl")
    with open(rows, "w") as file:
        file.writelines(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS)
    sets = [word for key, value in FIELDS.items() for word in ("--set", f"{key}={value}")]
    found = {"python": [], "program": []}
    for pair in range(pairs):
        for who in ("python", "program") if pair % 2 == 0 else ("program", "python"):
            out = os.path.join(place, f"{who}-{pair}")
            if who == "python":
                arguments = [sys.executable, "-c", TRAIN, model, out, rows, json.dumps(FIELDS)]
            else:
                arguments = [sys.executable, "-m", "lockstep_rl", "train", "--model", model, "--dataset", rows,
                             "--reward", "unique_chars", "--out", out, *sets]  # fmt: skip
            wall, processor = measured(arguments)
            found[who].append(dict(wall_s=wall, processor_s=processor, steps_s=steps_of(out)))
    result = {}
    for key in ("wall_s", "processor_s", "steps_s"):
        python, program = ([run[key] for run in found[who]] for who in ("python", "program"))
        ratios = [a / b for a, b in zip(python, program)]
        result[key] = dict(
            python=statistics.median(python), program=statistics.median(program),
            # The median ratio of the pairs with its confidence interval (low, high, probability), and the ratio of the
            # fastest runs, which other work on the machine disturbs least.
            ratio=statistics.median(ratios), interval=interval(ratios), best_ratio=min(python) / min(program),
        )  # fmt: skip
    return result


def timeline(model, place):
    """Times a reward that takes 50 ms for each completion, called once for each batch, and called by group during
    generation. Eight completions are generated at a time, so that groups end one after another."""
    from lockstep_rl import GRPOConfig, GRPOTrainer, by_group

    result = {}
    for name in ("batch", "group"):
        calls = []

        def slow(completions, **kwargs):
            begun = time.perf_counter()
            for _ in completions:
                end = time.perf_counter() + 0.05
                while time.perf_counter() < end:  # pure Python, which keeps the interpreter's lock
                    pass
            calls.append((begun, time.perf_counter()))
            return [float(len(text)) for text in completions]

        fields = {**FIELDS, "max_completion_length": 400, "max_steps": 3, "max_num_seqs": 8}
        args = GRPOConfig(os.path.join(place, name), disable_tqdm=True, **fields)
        rows = [{"prompt": prompt} for prompt in PROMPTS]
        trainer = GRPOTrainer(model, by_group(slow) if name == "group" else slow, args, rows)
        trainer.train()
        keys = ("rollout_time_s", "reward_time_s", "reward_hidden_time_s", "step_time", "rewards/slow/gil_wait_s")
        entries = [entry for entry in trainer.state.log_history if "reward_time_s" in entry]
        logs = [{key: round(entry[key], 4) for key in keys} for entry in entries]
        last = calls[-len(calls) // 3 :]
        result[name] = dict(steps=logs, last_step=[[round(t - last[0][0], 3) for t in call] for call in last])
    return result


def main():
    model, pairs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10
    with tempfile.TemporaryDirectory() as place:
        costs = overhead(model, place, pairs) if pairs else None
        print(json.dumps(dict(overhead=costs, slow_reward=timeline(model, place)), indent=1))


if __name__ == "__main__":
    main()
