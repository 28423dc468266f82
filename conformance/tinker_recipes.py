"""Runs three recipes of Tinker's cookbook, unmodified and offline, against `lockstep serve`.

    python conformance/tinker_recipes.py PROGRAM TINY [rl] [losses] [sl] [numerics] [resume]

TINY is the directory that make_tiny.py wrote. By default all parts run:

    rl        rl_loop: rewards between 0 and 1, every step trains; a second run with a new server has the same adapter
    losses    one step of rl_loop with each of its losses: at ratio 1 all have the same gradient
    sl        sl_loop: every step has a loss; a second run has the same adapter
    numerics  rl_numerics_check: its own comparison of the sampler with the trainer is exactly 0
    resume    the server is killed (SIGKILL) in rl_loop; a new one with the same state, and the same command, end with
              the adapter of a run that was not interrupted
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from tinker_common import NAME, Server, adapter, check, finish, program, settings

STEPS = 3


class Recipe:
    """A recipe as a process, in the directory of datasets."""

    def __init__(self, url, tiny, module, log_path, *more):
        self.log_path = pathlib.Path(log_path)
        self.output = self.log_path.parent / (self.log_path.name + ".txt")
        arguments = [sys.executable, "-m", f"tinker_cookbook.recipes.{module}", f"base_url={url}", f"model_name={NAME}",
                     f"log_path={log_path}", "lora_rank=8", "save_every=1", *more]
        # A proxy of the surroundings is not for this machine's own server.
        environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        self.process = subprocess.Popen(arguments, cwd=tiny / "hub", env=environment | settings(url),
                                        stdout=open(self.output, "a"), stderr=subprocess.STDOUT)

    def wait(self, timeout=900):
        code = self.process.wait(timeout)
        if code != 0:
            print(self.output.read_text()[-3000:])
        return code == 0

    def metrics(self):
        path = self.log_path / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def checkpoints(self):
        path = self.log_path / "checkpoints.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def final(self, state):
        """The bytes of the last adapter."""
        return adapter(state, self.checkpoints()[-1]["sampler_path"])


def rl_loop(url, tiny, log_path, steps=STEPS, loss="stable_reinforce"):
    return Recipe(url, tiny, "rl_loop", log_path, "batch_size=4", "group_size=4", f"max_steps={steps}", "max_tokens=24",
                  f"loss_fn={loss}")


def sl_loop(url, tiny, log_path):
    return Recipe(url, tiny, "sl_loop", log_path, "batch_size=4", f"max_steps={STEPS}")


def numerics(url, tiny, log_path):
    return Recipe(url, tiny, "rl_numerics_check.train", log_path, "renderer_name=qwen3_instruct", "group_size=2",
                  "groups_per_batch=2", "max_tokens=64", "task.num_pages_min=2", "task.num_pages_max=3",
                  "task.page_chars=400", "max_steps=2", "behavior_if_log_dir_exists=delete")


def one(start, binary, tiny, home, name):
    """Runs a recipe with a server of its own; returns the recipe and the bytes of its last adapter."""
    with Server(binary, tiny / "model", home / f"{name}-state", log=home / f"{name}-server.txt") as server:
        recipe = start(server.url, tiny, home / name)
        if not check(f"{name}: the recipe ends", recipe.wait()):
            return recipe, None
        return recipe, recipe.final(server.state)


def mismatches(recipe):
    """Tokens whose log-probability in training is not the sampler's, of every step that reports them."""
    return [value for row in recipe.metrics() for key, value in row.items() if "logp_mismatch_tokens" in key]


def rl(binary, tiny, home):
    first, one_adapter = one(rl_loop, binary, tiny, home, "rl_loop")
    rewards = [row["reward/total"] for row in first.metrics() if "reward/total" in row]
    check("rl_loop: all steps have a reward between 0 and 1",
          len(rewards) == STEPS and all(0 < reward < 1 for reward in rewards), rewards)
    counts = mismatches(first)
    check("rl_loop: the sampler's log-probabilities are the trainer's",
          len(counts) == STEPS and not any(counts), counts)
    _, other = one(rl_loop, binary, tiny, home, "rl_loop again")
    check("rl_loop: a new server and session, the same adapter", one_adapter is not None and one_adapter == other)
    return one_adapter


def losses(binary, tiny, home):
    """One step: the samples of later steps depend on the requests before, and so on the loss."""
    adapters = {}
    for loss in ("stable_reinforce", "importance_sampling", "cispo", "gspo"):
        start = lambda *arguments, chosen=loss: rl_loop(*arguments, steps=1, loss=chosen)
        _, adapters[loss] = one(start, binary, tiny, home, f"rl_loop {loss}")
    first, *others = adapters.values()
    check("rl_loop: all losses have the same first step", first is not None and all(other == first for other in others),
          [name for name, value in adapters.items() if value != first])


def sl(binary, tiny, home):
    first, one_adapter = one(sl_loop, binary, tiny, home, "sl_loop")
    losses = [row["train_mean_nll"] for row in first.metrics() if "train_mean_nll" in row]
    check("sl_loop: every step has a loss", len(losses) == STEPS, losses)
    _, other = one(sl_loop, binary, tiny, home, "sl_loop again")
    check("sl_loop: a new server and session, the same adapter", one_adapter is not None and one_adapter == other)


def numeric(binary, tiny, home):
    recipe, _ = one(numerics, binary, tiny, home, "rl_numerics_check")
    rows = recipe.metrics()
    for key in ("optim/kl_sample_train_v1", "optim/kl_sample_train_v2"):
        values = [row[key] for row in rows if key in row]
        check(f"rl_numerics_check: {key} is 0", len(values) == 2 and all(value == 0.0 for value in values), values)
    turns = [row["env/all/turns_per_episode"] for row in rows if "env/all/turns_per_episode" in row]
    check("rl_numerics_check: episodes have several turns", bool(turns) and max(turns) >= 2, turns)
    rates = [row["env/all/extension_rate"] for row in rows if "env/all/extension_rate" in row]
    check("rl_numerics_check: turns extend the sequence", bool(rates) and all(rate == 1 for rate in rates), rates)


def resume(binary, tiny, home, expected):
    if expected is None:
        _, expected = one(rl_loop, binary, tiny, home, "rl_loop for resume")
    name = "rl_loop killed"
    with Server(binary, tiny / "model", home / "killed-state", log=home / "killed-1.txt") as server:
        recipe = rl_loop(server.url, tiny, home / name)
        end = time.time() + 600
        while not recipe.checkpoints() and recipe.process.poll() is None and time.time() < end:
            time.sleep(0.05)
        server.kill()
        recipe.process.send_signal(signal.SIGKILL)
        recipe.process.wait()
    done = len(recipe.checkpoints())
    check("resume: the kill was between the first and the last checkpoint", 0 < done < STEPS, recipe.checkpoints())
    with Server(binary, tiny / "model", home / "killed-state", log=home / "killed-2.txt") as server:
        recipe = rl_loop(server.url, tiny, home / name)
        if check("resume: the recipe ends", recipe.wait()):
            check("resume: it did not begin again", re.search("[Rr]esum", recipe.output.read_text()) is not None)
            check("resume: the adapter of an uninterrupted run", recipe.final(server.state) == expected)


def main():
    began = time.time()
    binary, tiny = program(), pathlib.Path(sys.argv[2]).resolve()
    parts = sys.argv[3:] or ["rl", "losses", "sl", "numerics", "resume"]
    home = pathlib.Path(tempfile.mkdtemp())
    expected = rl(binary, tiny, home) if "rl" in parts else None
    if "losses" in parts:
        losses(binary, tiny, home)
    if "sl" in parts:
        sl(binary, tiny, home)
    if "numerics" in parts:
        numeric(binary, tiny, home)
    if "resume" in parts:
        resume(binary, tiny, home, expected)
    shutil.rmtree(home, ignore_errors=True)
    finish(began)


if __name__ == "__main__":
    main()
