"""Compares reward against processor seconds when groups without a gradient are computed, left out or replaced; and TRL.

    python bench/peers/skip_curves.py --lockstep target/release/lockstep --out DIR [--gsm8k TRAIN.jsonl --model DIR]

There are two tasks. For the demo's sums, `lockstep demo` makes the initial model and the problems. With --gsm8k, there
are also GSM8K's questions, with a small pretrained model that cannot solve them: the reward is 1 if the completion
contains the word "happy". The last pair of runs uses GSM8K's own reward, under which no group has a gradient. Every run
is a process of its own with one thread. Seconds are processor seconds without evaluations, so other work on the machine
hardly changes them. If the script is started again with the same directory, it only makes the missing runs. It writes
curves.json, curves.svg and table.md into the directory. Needs requirements-trl.txt and `datasets`.
"""

import argparse
import json
import math
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import time

ARMS = {
    "all groups computed": ["skip_zero_gradients=false"],
    "left out": [],
    "dynamic_sampling": ["dynamic_sampling=true"],
    "TRL": None,
}
COLOURS = dict(zip(ARMS, ("#0072b2", "#d55e00", "#009e73", "#000000"), strict=True))
TASKS = {
    "sums": dict(batch=512, tokens=4, reward="task=prompt_answer", label="the demo's sums, 512 completions a step"),
    "questions": dict(batch=64, tokens=48, pattern=r"\bhappy\b", label="GSM8K's questions, stories260k, 64"),
    "graded questions": dict(batch=64, tokens=48, reward='reward_funcs=["gsm8k"]'),
}
RATE = 5e-4
COMMON = dict(num_generations=8, lr_scheduler_type="linear", logging_steps=1)


def trl(task, model, data, seed, steps, out):
    """Trains with TRL once, in this process. Prints rewards and processor seconds of each step as JSON."""
    import torch
    import transformers
    from datasets import load_dataset
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    pattern = task.get("pattern")

    def exact_match(completions, answer, **_):
        return [float(text.strip() == wanted) for text, wanted in zip(completions, answer, strict=True)]

    def contains(completions, **_):
        return [float(bool(re.search(pattern, text))) for text in completions]

    class Clock(transformers.TrainerCallback):
        """Records the processor seconds at the end of each step."""

        def __init__(self):
            self.seconds = []

        def on_step_end(self, *_, **__):
            self.seconds.append(time.process_time())

    clock = Clock()
    args = GRPOConfig(
        out, seed=seed, max_steps=steps, per_device_train_batch_size=task["batch"], learning_rate=RATE,
        max_completion_length=task["tokens"], report_to="none", save_strategy="no", bf16=False, use_cpu=True,
        disable_tqdm=True, gradient_checkpointing=False, **COMMON,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model, reward_funcs=contains if pattern else exact_match, args=args,
        train_dataset=load_dataset("json", data_files=data, split="train"), callbacks=[clock],
    )  # fmt: skip
    begun = time.process_time()
    trainer.train()
    history = [entry for entry in trainer.state.log_history if "reward" in entry]
    print(
        json.dumps(
            dict(
                rewards=[entry["reward"] for entry in history],
                seconds=[second - begun for second in clock.seconds],
                skipped=[entry["frac_reward_zero_std"] for entry in history],
            )
        )
    )


def lockstep(program, task, model, data, seed, steps, out, more):
    """Trains with Lockstep once. Returns rewards and processor seconds of each step."""
    format = f'[{{ kind = "format", pattern = \'{task.get("pattern")}\', name = "happy" }}]'
    reward = f"reward_funcs={format}" if task.get("pattern") else task["reward"]
    settings = [
        f"per_device_train_batch_size={task['batch']}", f"max_completion_length={task['tokens']}", f"max_steps={steps}",
        f"learning_rate={RATE}", f"seed={seed}", "save_steps=100000", "eval_strategy=no",
        reward, *(f"{k}={v}" for k, v in COMMON.items()),
    ]  # fmt: skip
    command = [program, "train", "--model", model, "--dataset", data, "--out", out, "--threads", "1"]
    done = subprocess.run(
        [*command, *(word for setting in [*settings, *more] for word in ("--set", setting))],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    lines = [json.loads(line) for line in pathlib.Path(out, "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "reward" in line]
    seconds = 0.0
    found = dict(rewards=[], seconds=[], skipped=[])
    for line in lines:
        seconds += line["cpu_time_s"]
        # The mean reward of all sampled groups, also of those that dynamic sampling replaced.
        found["rewards"].append(line.get("dynamic_sampling/reward", line["reward"]))
        found["seconds"].append(seconds)
        found["skipped"].append(line["frac_reward_zero_std"])
    return found


def smoothed(values, width):
    """Returns moving averages, each over the last `width` values."""
    return [statistics.mean(values[max(0, i + 1 - width) : i + 1]) for i in range(len(values))]


def picture(found, width):
    """Returns curves.svg: a panel for each task, and a line for each way to train."""
    wide, high, left, top, gap = 430, 300, 56, 44, 56
    tasks = [name for name in TASKS if "label" in TASKS[name] and any(key[0] == name for key in found)]
    total = left + len(tasks) * (wide + gap)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {top + high + 70}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for n, name in enumerate(tasks):
        runs = {key: run for key, run in found.items() if key[0] == name}
        seconds = [second for run in runs.values() for second in run["seconds"]]
        least, most = math.floor(math.log10(min(seconds))), math.log10(max(seconds))
        place = lambda second, least=least, most=most: (math.log10(second) - least) / (most - least) * wide
        best = max(max(smoothed(run["rewards"], width)) for run in runs.values()) * 1.05
        base = left + n * (wide + gap)
        out.append(f'<text x="{base}" y="{top - 8}">{TASKS[name]["label"]}</text>')
        for power in range(least, math.floor(most) + 1):
            x = base + place(10.0**power)
            out.append(f'<line x1="{x}" x2="{x}" y1="{top}" y2="{top + high}" stroke="#ddd"/>')
            out.append(f'<text x="{x}" y="{top + high + 16}" text-anchor="middle">{10.0**power:g}</text>')
        for share in (0, 0.25, 0.5, 0.75, 1):
            y = top + high - share * high
            out.append(f'<line x1="{base}" x2="{base + wide}" y1="{y}" y2="{y}" stroke="#ddd"/>')
            out.append(f'<text x="{base - 6}" y="{y + 4}" text-anchor="end">{best * share:.2f}</text>')
        for (_, arm, _), run in runs.items():
            points = [
                f"{base + place(second):.1f},{top + high - reward / best * high:.1f}"
                for second, reward in zip(run["seconds"], smoothed(run["rewards"], width), strict=True)
            ]
            line = f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLOURS[arm]}" stroke-width="1.4"/>'
            out.append(line)
    out.append(
        f'<text x="{left}" y="{top + high + 36}">processor seconds; mean reward of the last {width} steps</text>'
    )
    for n, arm in enumerate(ARMS):
        place = f'x="{left + 150 * n}" y="{top + high + 56}"'
        out.append(f'<text {place} fill="{COLOURS[arm]}">{arm}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def table(found, width):
    """Returns table.md: means over the seeds."""
    lines = [
        "| task | | share of groups without spread | processor s of all steps | reward, last steps | s to its reward |",
        "|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(key[0] for key in found):
        end = lambda arm, name=name: statistics.mean(
            smoothed(run["rewards"], width)[-1] for (n, a, _), run in found.items() if (n, a) == (name, arm)
        )
        wanted = end("all groups computed") * 0.95
        for arm in dict.fromkeys(key[1] for key in found if key[0] == name):
            runs = [run for (n, a, _), run in found.items() if (n, a) == (name, arm)]
            first = [
                next((s for s, r in zip(run["seconds"], smoothed(run["rewards"], width)) if r >= wanted), None)
                for run in runs
            ]
            until = "—" if None in first or not wanted else f"{statistics.mean(first):.0f}"
            mean = lambda of: statistics.mean(of(run) for run in runs)
            lines.append(
                f"| {name} | {arm} | {mean(lambda run: statistics.mean(run['skipped'])):.2f} "
                f"| {mean(lambda run: run['seconds'][-1]):.1f} | {end(arm):.3f} | {until} |"
            )
    return "\n".join(lines) + "\n"


def short_questions(source, out):
    """Writes GSM8K's questions of at most 200 bytes, because the model of 260 thousand parameters reads at most 512
    positions."""
    rows = [json.loads(line) for line in pathlib.Path(source).read_text().splitlines()]
    rows = [row for row in rows if len(row["question"].encode()) <= 200]
    lines = [json.dumps({"prompt": row["question"] + "\n", "answer": row["answer"]}) for row in rows]
    random.Random(0).shuffle(lines)
    pathlib.Path(out).write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lockstep", default="target/release/lockstep", help="the program")
    parser.add_argument("--out", required=True, help="the directory of the results")
    parser.add_argument("--gsm8k", help="GSM8K's train.jsonl")
    parser.add_argument("--model", help="a small pretrained model's directory, for GSM8K's questions")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--trl-run", nargs=6, metavar="…", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.trl_run:
        name, model, data, seed, steps, out = args.trl_run
        return trl(TASKS[name], model, data, int(seed), int(steps), out)
    if bool(args.gsm8k) != bool(args.model):
        parser.error("--gsm8k and --model belong together")
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    program = str(pathlib.Path(args.lockstep).resolve())
    demo = out / "demo"
    if not (demo / "grpo/record.json").exists():
        subprocess.run([program, "demo", "--steps", "1", "--out", demo], check=True)
    places = {"sums": (str(demo / "sft/model"), str(demo / "problems.jsonl"))}
    if args.gsm8k:
        short_questions(args.gsm8k, out / "questions.jsonl")
        places["questions"] = places["graded questions"] = (args.model, str(out / "questions.jsonl"))
    cache = out / "curves.json"
    found = {tuple(key): run for key, run in json.loads(cache.read_text())} if cache.exists() else {}
    planned = [(name, arm, int(seed)) for seed in args.seeds.split(",") for name in places for arm in ARMS]
    for name, arm, seed in planned:
        # Without a gradient only the seconds of the first two are compared, so the others are not run.
        if (name, arm, seed) in found or ("label" not in TASKS[name] and arm not in list(ARMS)[:2]):
            continue
        (model, data), task = places[name], TASKS[name]
        place = str(out / f"{name}-{list(ARMS).index(arm)}-{seed}")
        if ARMS[arm] is None:
            words = [sys.executable, __file__, "--out", "-", "--trl-run", name, model, data, str(seed)]
            environment = dict(os.environ, OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
            done = subprocess.run(
                [*words, str(args.steps), place], capture_output=True, text=True, env=environment, check=False
            )
            if done.returncode:
                raise SystemExit(done.stderr)
            run = json.loads(done.stdout.splitlines()[-1])
        else:
            shutil.rmtree(place, ignore_errors=True)
            run = lockstep(program, task, model, data, seed, args.steps, place, ARMS[arm])
        found[name, arm, seed] = run
        cache.write_text(json.dumps([[list(key), run] for key, run in found.items()]))
        print(f"{name}, {arm}, seed {seed}: {run['seconds'][-1]:.1f} s of the processor", flush=True)
    (out / "curves.svg").write_text(picture(found, 10))
    (out / "table.md").write_text(table(found, 10))
    print((out / "table.md").read_text())


if __name__ == "__main__":
    main()
