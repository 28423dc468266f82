"""Compares Lockstep's matmuls with torch's on this CPU: forward, input and weight gradient of a linear layer.

    python compare_torch.py --lockstep target/release/lockstep [--dtype bf16] [--threads 2] [--pairs 7]

Lockstep's times are those of `lockstep bench gemm`: activations in the layout in which other operations leave them, and
the weight packed once. torch computes `linear(x, W)`, `d_y @ W` and `d_yᵀ @ x`, with all operands in the dtype. Both
print medians; measurements are interleaved pairs.
"""

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path

import pairs

PRODUCTS = ["forward", "d_x", "d_w"]

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--lockstep", help="the program")
parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
parser.add_argument("--threads", type=int, required=True)
parser.add_argument("--pairs", type=int, default=7)
parser.add_argument("--json", action="store_true")
parser.add_argument("--torch", metavar="SHAPES", help=argparse.SUPPRESS)  # for the child that times torch
args = parser.parse_args()


def seconds_of(call, least=5, budget=0.3):
    call()
    times, begin = [], time.perf_counter()
    while len(times) < least or time.perf_counter() - begin < budget:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def time_torch(shapes):
    import torch

    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    rows = []
    for m, k, n in shapes:
        x, w, d_y = (torch.randn(*dims).to(dtype) for dims in [(m, k), (n, k), (m, n)])
        calls = [lambda: torch.nn.functional.linear(x, w), lambda: d_y @ w, lambda: d_y.t() @ x]
        flops = 2e-9 * m * k * n
        rows.append({f"{name}_gflops": flops / seconds_of(call) for name, call in zip(PRODUCTS, calls)})
    print(json.dumps(dict(peer=f"torch {torch.__version__}", rows=rows)))


if args.torch:
    time_torch([[int(i) for i in shape.split("×")] for shape in args.torch.split(",")])
    sys.exit()
if not args.lockstep:
    parser.error("--lockstep: the program is missing")

gemm = [args.lockstep, "bench", "gemm", "--json", "--dtype", args.dtype, "--threads", args.threads]
shapes = [row["shape"].replace(" ", "") for row in pairs.run(gemm)["rows"]]
child = [sys.executable, Path(__file__), "--torch", ",".join(shapes), "--dtype", args.dtype, "--threads", args.threads]
machine = pairs.machine()
mine, peers = [], []
for pair in range(args.pairs):
    runs = [(mine, gemm), (peers, child)]
    for results, command in runs if pair % 2 == 0 else reversed(runs):
        results.append(pairs.run(command))
    print(f"  pair {pair + 1} of {args.pairs}", file=sys.stderr, flush=True)
machine["load_at_end"] = pairs.machine()["load_at_start"]

matmuls = []
for i, shape in enumerate(shapes):
    for name in PRODUCTS:
        ours, theirs = ([run["rows"][i][f"{name}_gflops"] for run in runs] for runs in (mine, peers))
        summary = pairs.summary([a / b for a, b in zip(ours, theirs)])
        matmuls.append(
            dict(shape=shape, matmul=name, ours_gflops=statistics.median(ours), torch_gflops=statistics.median(theirs), **summary)
        )
geometric = {
    name: math.exp(statistics.mean(math.log(p["ratio"]) for p in matmuls if p["matmul"] == name)) for name in MATMULS
}
report = dict(
    benchmark="matmuls beside torch", dtype=args.dtype, threads=args.threads, machine=machine, peer=peers[0]["peer"],
    matmuls=matmuls, geometric_mean=geometric,
)  # fmt: skip
if args.json:
    print(json.dumps(report, indent=1))
else:
    print(
        f"{args.dtype}, {args.threads} threads, {machine['processor']} ({', '.join(machine['flags'])}), load average "
        f"{machine['load_at_start']:.1f} before and {machine['load_at_end']:.1f} after; {report['peer']}\n"
    )
    rows = [
        [p["shape"], p["matmul"], f"{p['ours_gflops']:.0f}", f"{p['torch_gflops']:.0f}", pairs.ratio_cell(p)] for p in matmuls
    ]
    print(pairs.table(["M×K×N", "matmul", "ours, GFLOP/s", "torch, GFLOP/s", "ours / torch"], rows))
    means = ", ".join(f"{name} {mean:.2f}" for name, mean in geometric.items())
    print(f"\nMedians of {args.pairs} interleaved pairs, with the interval of the median ratio. Geometric means: {means}.")
