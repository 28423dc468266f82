"""Compares a GRPO step of Lockstep with TRL's fastest on this CPU: same shape, prompt length, completions, threads.

    python compare_trl.py --lockstep target/release/lockstep --python VENV/bin/python --shape 7m --model DIR [--completions 64] …

TRL's configuration is searched: first dtype × micro-batch × gradient checkpointing, with an allocator that keeps its
memory; then the fastest of these with the default allocator. The fastest of all is measured in interleaved pairs with
Lockstep.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path

import pairs

# TRL's step is bound by page faults unless glibc keeps freed memory and asks for huge pages.
TUNED = ":".join(
    [
        "glibc.malloc.hugetlb=1",
        "glibc.malloc.mmap_threshold=34359738368",
        "glibc.malloc.trim_threshold=34359738368",
        "glibc.malloc.top_pad=268435456",
    ]
)

here = Path(__file__).parent
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--lockstep", required=True, help="the program")
parser.add_argument("--python", required=True, help="a Python with TRL")
parser.add_argument("--shape", required=True, help="7m, 92m or 0.5b")
parser.add_argument("--model", type=Path, required=True, help="Hugging Face directory of that shape: `lockstep init --seed 1`")
parser.add_argument("--completions", type=int, required=True)
parser.add_argument("--new-tokens", type=int, required=True)
parser.add_argument("--micro-batches", required=True, help="completions at once that are tried: 64,16")
parser.add_argument("--dtypes", default="f32,bf16", help="that TRL may use")
parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="ours")
parser.add_argument("--pairs", type=int, default=5)
parser.add_argument("--steps", type=int, default=3, help="timed steps of a run")
parser.add_argument("--search-steps", type=int, default=1, help="timed steps of the runs that search TRL's configuration")
parser.add_argument("--threads", type=int, required=True)
parser.add_argument("--json", action="store_true")
args = parser.parse_args()


def say(text):
    print(text, file=sys.stderr, flush=True)


def trl(configuration, steps):
    environment = {"GLIBC_TUNABLES": TUNED} if configuration["allocator"] == "tuned" else {}
    command = [args.python, here / "trl_step.py", "--model", args.model, "--completions", args.completions]
    command += ["--tokens", args.new_tokens, "--threads", args.threads, "--steps", steps]
    command += ["--dtype", configuration["dtype"], "--micro-batch", configuration["micro_batch"]]
    return pairs.run([*command, *["--checkpointing"] * configuration["checkpointing"]], **environment)


def ours():
    command = [args.lockstep, "bench", "step", "--shape", args.shape, "--completions", args.completions, "--json"]
    command += ["--new-tokens", args.new_tokens, "--repeats", args.steps, "--threads", args.threads]
    said = pairs.run([*command, *([] if args.dtype == "f32" else ["--dtype", args.dtype])])
    # The last row keeps the activations of the rollout, as a run does by default.
    return said["rows"][-1] | dict(peak_rss_bytes=said["peak_rss_bytes"])


def words(c):
    return f"{c['dtype']}, micro-batch {c['micro_batch']}, {'' if c['checkpointing'] else 'no '}checkpointing, {c['allocator']} allocator"


machine = pairs.machine()
tried = []


def attempt(configuration):
    step = trl(configuration, args.search_steps)["step_s"]
    tried.append(dict(configuration, step_s=step))
    say(f"  TRL {words(configuration)}: {step:.2f} s a step")


say(f"{args.shape}, {args.completions} × {args.new_tokens}: TRL's configurations")
micros = [int(m) for m in args.micro_batches.split(",")]
for dtype, micro, checkpointing in itertools.product(args.dtypes.split(","), micros, [False, True]):
    attempt(dict(dtype=dtype, micro_batch=micro, checkpointing=checkpointing, allocator="tuned"))
best = min(tried, key=lambda t: t["step_s"])
attempt({k: best[k] for k in ("dtype", "micro_batch", "checkpointing")} | dict(allocator="default"))
best = min(tried, key=lambda t: t["step_s"])

say(f"pairs, TRL with {words(best)}")
mine, peers, ratios = pairs.interleaved(
    ours, lambda: trl(best, args.steps), args.pairs, "step_s", higher_is_better=False
)  # fmt: skip
machine["load_at_end"] = pairs.machine()["load_at_start"]
summary = pairs.summary(ratios)
report = dict(
    benchmark="GRPO step beside TRL", shape=args.shape, completions=args.completions, new_tokens=args.new_tokens,
    dtype=args.dtype, threads=args.threads, machine=machine, searched=tried, fastest=best, ours=mine, trl=peers, step=summary,
)  # fmt: skip
if args.json:
    print(json.dumps(report, indent=1))
else:
    mib = lambda runs: f"{max(r['peak_rss_bytes'] for r in runs) / 2**20:.0f}"  # noqa: E731
    s = lambda runs, key: f"{pairs.middle(runs, key):.2f}"  # noqa: E731
    rows = [
        [f"lockstep, {args.dtype}", s(mine, "step_s"), s(mine, "rollout_s"), mib(mine), ""],
        [f"TRL 1.16.0, {words(best)}", s(peers, "step_s"), s(peers, "generation_s"), mib(peers), pairs.ratio_cell(summary)],
    ]
    print(
        f"{args.shape}, {args.completions} × {args.new_tokens} tokens, {args.threads} threads, {machine['processor']} "
        f"({', '.join(machine['flags'])}), load average {machine['load_at_start']:.1f} before and {machine['load_at_end']:.1f} after\n"
    )
    print(pairs.table(["", "step s", "of it generation s", "peak MiB", "TRL's time / ours"], rows))
    print(
        f"\nMedians of {args.pairs} interleaved pairs of {args.steps} steps; in brackets the interval of the median ratio "
        f"({100 * summary['coverage']:.0f} %). TRL's fastest of {len(tried)} configurations: "
        + "; ".join(f"{words(t)} {t['step_s']:.2f} s" for t in sorted(tried, key=lambda t: t["step_s"]))
    )
