"""Makes a fixture of steps of torch.optim.Muon, both as it is (iterations in bf16) and with its iterations in f32.

    pip install torch==2.15.*
    python conformance/muon_fixtures.py crates/train/tests/fixtures

Writes muon.json. Each case has the optimizer's arguments, a matrix [rows, cols], the gradients of its steps, and the
matrix after each step, with iterations in bf16 (`torch`) and in f32 (`f32`). Numbers are row-major.
"""

import json
import sys
from pathlib import Path

import torch
import torch.optim._muon as muon

LR, DECAY, STEPS = 0.02, 0.1, 2
CASES = [
    (8, 8, dict()),
    (24, 16, dict(momentum=0.9)),
    (16, 40, dict(nesterov=False)),
    (40, 16, dict(adjust_lr_fn="match_rms_adamw", ns_steps=4)),
]


def numbers(matrix):
    return [float(f"{x:.9g}") for x in matrix.flatten().tolist()]


def steps(start, grads, arguments):
    parameter = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.Muon([parameter], lr=LR, weight_decay=DECAY, **arguments)
    out = []
    for grad in grads:
        parameter.grad = grad.clone()
        optimizer.step()
        out.append(numbers(parameter.detach()))
    return out


def in_f32(update, coefficients, ns_steps, eps):
    a, b, c = coefficients
    x = update.T if update.size(0) > update.size(1) else update
    x = x / x.norm().clamp(min=eps)
    for _ in range(ns_steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if update.size(0) > update.size(1) else x


def main(directory):
    generator = torch.Generator().manual_seed(1)
    cases, in_bf16 = [], muon._zeropower_via_newtonschulz
    for rows, cols, arguments in CASES:
        start = torch.randn(rows, cols, generator=generator)
        grads = [torch.randn(rows, cols, generator=generator) for _ in range(STEPS)]
        muon._zeropower_via_newtonschulz = in_bf16
        by_torch = steps(start, grads, arguments)
        muon._zeropower_via_newtonschulz = in_f32
        exact = steps(start, grads, arguments)
        args = ",".join(f"{name}={value}" for name, value in arguments.items())
        lists = [numbers(grad) for grad in grads]
        cases.append(dict(rows=rows, cols=cols, optim_args=args, start=numbers(start), grads=lists,
                          torch=by_torch, f32=exact))
    made = dict(torch_version=torch.__version__, learning_rate=LR, weight_decay=DECAY, cases=cases)
    (Path(directory) / "muon.json").write_text(json.dumps(made) + "\n")


main(*sys.argv[1:])
