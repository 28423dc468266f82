"""Tests `lockstep serve` with episodes of verifiers, whose program, harness and clients are unmodified.

    pip install verifiers==0.4.0 uv
    python conformance/verifiers_flow.py [PROGRAM]

The script trains a tiny model to answer one question, starts a server, and runs `vf-eval` on a taskset with this
question: once with the client for evaluation (chat completions), and once with that for training, which renders the
conversation itself and asks for tokens (/inference/v1/generate). Episodes must end without an error, with a reward, and
in training with the ids and log-probabilities of every sampled token. `vf-eval` fetches packages of its harness from
PyPI. Each check prints a line; the exit code is 1 if one fails.
"""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from openai_flow import FAILED, LETTERS, Server, check, program, teach

TASKSET = '''
import verifiers.v1 as vf


class HelloTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=1.0)
    async def reward(self, trace: vf.Trace) -> float:
        return float((trace.last_reply or "").strip() == "hello")


class HelloConfig(vf.TasksetConfig):
    pass


class HelloTaskset(vf.Taskset[HelloTask, HelloConfig]):
    def load(self) -> list[HelloTask]:
        data = vf.TaskData(prompt="Reply with exactly: hello")
        return [HelloTask(data, self.config.task) for _ in range(4)]


__all__ = ["HelloTaskset"]
'''


def episodes(home, url, name, *client):
    """The traces of four episodes."""
    out = home / name
    (home / "hello").mkdir(exist_ok=True)
    (home / "hello/__init__.py").write_text(TASKSET)
    command = pathlib.Path(sys.executable).parent
    environment = os.environ | {"PYTHONPATH": str(home), "NO_KEY": "none", "HF_HUB_OFFLINE": "1",
                                "PATH": f"{command}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [command / "vf-eval", "hello", "--model", "model", "--client.base-url", f"{url}/v1", "--client.api-key-var",
         "NO_KEY", *client, "--env.agent.runtime.type", "subprocess", "--env.agent.harness.id", "null", "-n", "4",
         "--sampling.temperature", "0.1", "--no-rich", "--no-push", "--output-dir", out],
        env=environment, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    check(f"{name}: the program ends", done.returncode == 0, done.stdout[-2000:])
    lines = [line for path in out.rglob("traces.jsonl") for line in path.read_text().splitlines()]
    traces = [trace for line in lines for trace in json.loads(line).get("traces", [json.loads(line)])]
    errors = [trace["errors"] for trace in traces if trace["errors"]]
    check(f"{name}: four episodes without an error", len(traces) == 4 and not errors, errors or done.stdout[-2000:])
    return traces


def main():
    binary, began = program(), time.time()
    with tempfile.TemporaryDirectory() as home:
        home = pathlib.Path(home)
        model = teach(binary, home, [("Reply with exactly: hello\n.", "hello")] * 3, LETTERS + "R")
        with Server(binary, model) as server:
            for trace in episodes(home, server.url, "evaluation", "--client.type", "eval"):
                check("evaluation: the reward", trace["rewards"]["reward"]["score"] == 1.0, trace["rewards"])
            renderer = ["--client.renderer-model-name", str(model), "--client.renderer.name", "default"]
            for trace in episodes(home, server.url, "training", "--client.type", "train", *renderer):
                check("training: a reward", "reward" in trace["rewards"], trace["rewards"])
                prompt, *_, answer = trace["nodes"]
                sampled = sum(answer["mask"])
                whole = sampled == len(answer["logprobs"]) > 0 and len(answer["mask"]) == len(answer["token_ids"])
                check("training: ids and log-probabilities of all tokens", whole and prompt["token_ids"], answer)
                finite = all(math.isfinite(logp) and logp <= 0 for logp in answer["logprobs"])
                check("training: log-probabilities are finite", finite, answer["logprobs"])
    print(f"{time.time() - began:.1f} s, {len(FAILED)} failed")
    sys.exit(1 if FAILED else 0)


main()
