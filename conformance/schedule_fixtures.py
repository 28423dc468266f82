"""Makes a fixture of the learning rates of transformers' schedules.

    pip install torch==2.15.* transformers==5.23.*
    python conformance/schedule_fixtures.py crates/lockstep/tests/fixtures

Writes schedules.json. Each case has the configuration's keys (lr_scheduler_type, lr_scheduler_kwargs, learning_rate), the
steps of warm-up and of the run, and the learning rate of each step, some after the end, too.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers.optimization import get_scheduler

WSD = "warmup_stable_decay"
# Kind, learning rate, steps of warm-up, steps, arguments.
CASES = [
    ("constant", 0.5, 3, 10, {}),
    ("constant_with_warmup", 0.5, 3, 10, {}),
    ("linear", 1e-6, 3, 10, {}),
    ("linear", 0.5, 0, 7, {}),
    ("cosine", 0.5, 3, 10, {}),
    ("cosine", 2e-5, 0, 25, {}),
    ("cosine", 0.5, 2, 20, {"num_cycles": 1.5}),
    ("cosine", 0.5, 0, 9, {"num_cycles": 0.25}),
    ("cosine", 0.5, 1, 9, {"num_cycles": 2}),
    ("cosine_with_restarts", 0.5, 3, 20, {}),
    ("cosine_with_restarts", 1e-6, 0, 30, {"num_cycles": 3}),
    ("cosine_with_restarts", 0.5, 5, 24, {"num_cycles": 4}),
    ("cosine_with_restarts", 0.5, 9, 9, {"num_cycles": 2}),
    ("polynomial", 0.5, 0, 10, {}),
    ("polynomial", 1e-6, 3, 20, {}),
    ("polynomial", 0.5, 2, 12, {"power": 2.0}),
    ("polynomial", 0.5, 2, 12, {"power": 0.5, "lr_end": 0.1}),
    ("polynomial", 2e-5, 0, 8, {"power": 3, "lr_end": 0.0}),
    ("inverse_sqrt", 0.5, 0, 10, {}),
    ("inverse_sqrt", 0.5, 4, 20, {}),
    ("inverse_sqrt", 1e-6, 4, 20, {"timescale": 10}),
    ("inverse_sqrt", 0.5, 0, 12, {"timescale": 3}),
    ("cosine_with_min_lr", 0.5, 3, 10, {"min_lr_rate": 0.1}),
    ("cosine_with_min_lr", 1e-6, 1, 20, {"min_lr": 1e-7}),
    ("cosine_with_min_lr", 2e-5, 0, 15, {"min_lr_rate": 0.5, "num_cycles": 1.5}),
    ("cosine_with_min_lr", 0.5, 2, 12, {"min_lr_rate": 0}),
    ("cosine_warmup_with_min_lr", 0.5, 3, 10, {"min_lr_rate": 0.1}),
    ("cosine_warmup_with_min_lr", 1e-6, 4, 20, {"min_lr": 1e-7, "warmup_lr_rate": 0.05}),
    ("cosine_warmup_with_min_lr", 0.5, 0, 9, {"min_lr_rate": 0.2}),
    ("cosine_warmup_with_min_lr", 0.5, 1, 9, {"min_lr": 0.0, "warmup_lr_rate": 0.5, "num_cycles": 1}),
    (WSD, 0.5, 3, 20, {"num_decay_steps": 6}),
    (WSD, 1e-6, 2, 20, {"num_decay_steps": 18}),
    (WSD, 0.5, 4, 20, {"num_decay_steps": 5, "min_lr_ratio": 0.1, "decay_type": "linear", "warmup_type": "cosine"}),
    (WSD, 0.5, 4, 20, {"num_decay_steps": 5, "min_lr_ratio": 0.2, "decay_type": "1-sqrt", "warmup_type": "1-sqrt"}),
    (WSD, 0.5, 2, 20, {"num_decay_steps": 6, "num_stable_steps": 4, "min_lr_ratio": 0.05}),
    (WSD, 0.5, 0, 12, {"num_decay_steps": 8, "num_cycles": 1.5}),
    # The decay is longer than what the warm-up leaves.
    (WSD, 0.5, 4, 10, {"num_decay_steps": 9}),
    (WSD, 0.5, 3, 9, {"num_decay_steps": 0, "min_lr_ratio": 0.3}),
]


def rates(kind, learning_rate, warmup, total, arguments):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=learning_rate)
    schedule = get_scheduler(kind, optimizer, warmup, total, scheduler_specific_kwargs=arguments)
    out = []
    for _ in range(total + 3):
        out.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return out


def main(directory):
    names = ("lr_scheduler_type", "learning_rate", "warmup", "total", "lr_scheduler_kwargs")
    cases = [dict(zip(names, case), rates=rates(*case)) for case in CASES]
    made_with = dict(torch=torch.__version__.partition("+")[0], transformers=transformers.__version__)
    text = ",\n  ".join(json.dumps(case) for case in cases)
    (Path(directory) / "schedules.json").write_text(
        f'{{"made_with": {json.dumps(made_with)},\n "cases": [\n  {text}\n ]}}\n')


if __name__ == "__main__":
    main(sys.argv[1])
