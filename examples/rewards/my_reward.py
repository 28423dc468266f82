#!/usr/bin/env python3
"""A reward of your own: 1 if the last word of the completion is the dataset's answer, else 0.

Use it with `--reward "command:python3 examples/rewards/my_reward.py"`. The program is started once; each line that it reads
is one batch, each line that it prints is the answer. Print anything else to stderr.
"""
import json
import sys


def text(completion):
    """A completion is a string, or a list of chat messages."""
    if isinstance(completion, str):
        return completion
    return "\n".join(message["content"] for message in completion)


def reward(completions, answer, **others):
    """One score for each completion; None leaves a completion out. `others`: prompts, completion_ids, more columns."""
    return [
        None if right is None else float(text(completion).split()[-1:] == [str(right)])
        for completion, right in zip(completions, answer)
    ]


for line in sys.stdin:
    try:
        request = json.loads(line)
        # With the number of the request, a line too many is noticed.
        result = {"rewards": reward(**request), "request": request["trainer_state"].get("request")}
    except Exception as error:  # said instead of a score: this batch has none, and the run continues
        result = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(result), flush=True)
