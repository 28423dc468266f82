"""Compares the reward curves of GRPO under TRL and under lockstep_rl, and draws docs/python/trl-curves.svg.

    pip install trl==1.16.0 torch==2.15.0 transformers==5.23.0 lockstep-rl && python bench/peers/trl_curves.py

The same script trains under both, with three seeds each: a tiny random Qwen3 model, in f32 on the CPU, whose tokens are
letters, learns to write vowels. Each run is a process of its own, and the two alternate. Measured are the seconds from
the first step to the end, and the peak memory of the process.
"""

import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEEDS, STEPS = (1, 2, 3), 30
FIELDS = dict(
    num_generations=8, per_device_train_batch_size=32, max_completion_length=8, learning_rate=1e-2, max_steps=STEPS,
    logging_steps=1, lr_scheduler_type="constant", report_to="none", save_strategy="no", bf16=False,
)  # fmt: skip


def run(who, model, seed, out):
    """Trains once, in this process. Prints the reward of each step, seconds and peak memory as JSON."""
    sys.path.insert(0, str(ROOT / "python/tests"))
    from conftest import WORDS, vowels

    if who == "trl":
        import torch
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        torch.set_num_threads(2)
        rows, more = Dataset.from_list([{"prompt": f"{word} "} for word in WORDS]), dict(use_cpu=True)
    else:
        from lockstep_rl import GRPOConfig, GRPOTrainer

        rows, more = [{"prompt": f"{word} "} for word in WORDS], dict(threads=2)
    args = GRPOConfig(out, seed=seed, disable_tqdm=True, gradient_checkpointing=False, **FIELDS, **more)
    trainer = GRPOTrainer(model=model, reward_funcs=vowels, args=args, train_dataset=rows)
    begun, before = time.perf_counter(), os.times()
    trainer.train()
    seconds, after = time.perf_counter() - begun, os.times()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    processor = after.user + after.system - before.user - before.system
    print(json.dumps(dict(rewards=rewards, seconds=seconds, processor_s=processor, peak_mib=peak)))


def plot(found):
    """Draws all curves in one picture."""
    most = max(reward for runs in found.values() for entry in runs for reward in entry["rewards"])
    width, height, left, top = 640, 320, 46, 16
    x = lambda i: left + i * (width - left - 16) / (STEPS - 1)
    y = lambda reward: height - 34 - reward / most * (height - 50 - top)
    colours = dict(trl="#d08030", lockstep_rl="#2060c0")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for share in range(5):
        at = f"{y(most * share / 4):.1f}"
        lines.append(f'<line x1="{left}" x2="{width - 16}" y1="{at}" y2="{at}" stroke="#ddd"/>')
        lines.append(f'<text x="{left - 6}" y="{at}" text-anchor="end" dy="4">{most * share / 4:.1f}</text>')
    for n, (who, runs) in enumerate(found.items()):
        for entry in runs:
            points = " ".join(f"{x(i):.1f},{y(reward):.1f}" for i, reward in enumerate(entry["rewards"]))
            lines.append(f'<polyline points="{points}" fill="none" stroke="{colours[who]}" stroke-width="1.5"/>')
        place = f'x="{left + 20 + 130 * n}" y="{top + 8}"'
        lines.append(f'<text {place} fill="{colours[who]}">{who}, 3 seeds</text>')
    place = f'x="{width / 2}" y="{height - 8}" text-anchor="middle"'
    lines.append(f"<text {place}>optimizer step (reward: vowels)</text></svg>")
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) > 1:
        return run(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
    sys.path.insert(0, str(ROOT / "python/tests"))
    from conftest import SHAPE, init, write_tokenizer

    found = dict(trl=[], lockstep_rl=[])
    with tempfile.TemporaryDirectory() as place:
        root = pathlib.Path(place)
        write_tokenizer(root / "tokenizer")
        shape = {**SHAPE, "vocab_size": 31, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
        (root / "config.json").write_text(json.dumps(shape))
        model = init(root)
        for seed in SEEDS:
            for who, runs in found.items():
                arguments = [__file__, who, model, str(seed), f"{place}/{who}{seed}"]
                said = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
                if said.returncode:
                    raise SystemExit(said.stderr)
                runs.append(json.loads(said.stdout.splitlines()[-1]))
    for runs in found.values():
        for entry in runs:
            entry["rewards"] = [round(reward, 4) for reward in entry["rewards"]]
    (ROOT / "docs/python/trl-curves.svg").write_text(plot(found))
    for who, runs in found.items():
        last = [statistics.mean(entry["rewards"][-5:]) for entry in runs]
        middle = {key: statistics.median(entry[key] for entry in runs) for key in ("seconds", "processor_s", "peak_mib")}
        print(who, "reward of the last five steps:", [round(mean, 2) for mean in last], middle)


if __name__ == "__main__":
    main()
