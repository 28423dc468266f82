"""Tests `lockstep serve` with OpenEnv's own check of endpoints for training.

    pip install openenv==0.10.0 openai
    python conformance/openenv_flow.py [PROGRAM]

OpenEnv grades an endpoint before it runs agents against it: whether token ids and log-probabilities come back, whether
these are those of the distribution that was sampled, and whether tools are called. The script trains a tiny model to
answer the grader's questions, starts a server, and expects the best grade. It needs no network. Each check prints a
line; the exit code is 1 if one fails.
"""

import pathlib
import sys
import tempfile
import time

from openenv.core.harness.capture.validate_llm import validate_llm

from openai_flow import FAILED, LETTERS, Server, check, program, teach

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls /tmp"}}\n</tool_call>'
LESSONS = [
    ("Reply with the single word: ok\n.", "ok"), ("Reply with exactly: hello\n.", "hello"),
    ("bash Use the bash tool to list the files in /tmp.\n.", CALL)]


def main():
    binary, began = program(), time.time()
    with tempfile.TemporaryDirectory() as home:
        with Server(binary, teach(binary, pathlib.Path(home), LESSONS, LETTERS + "RU")) as server:
            report = validate_llm(server.url, "model")
            check("the grade is `tokens`", report.ok and report.capture_level == "tokens", report)
            check("log-probabilities scale with the temperature", report.logprobs_mode == "processed", report)
            check("tools are called", report.tool_support == "ok", report)
            check("no parameter had to be changed", not report.param_fixes, report)
            check("prompt and completion have ids", report.n_prompt_ids > 30 and report.n_completion_ids == 3, report)
            check("no findings", not report.findings, report)
            other = validate_llm(server.url, "other")
            check("an unknown model is refused", not other.ok and "not served" in other.findings[0], other)
    print(f"{time.time() - began:.1f} s, {len(FAILED)} failed")
    sys.exit(1 if FAILED else 0)


main()
