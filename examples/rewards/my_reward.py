#!/usr/bin/env python3
"""An example of your own reward: 1 if the last word of the completion is the dataset's answer, else 0.

Use it with `--reward "command:python3 examples/rewards/my_reward.py"`. The program is started once. Each line
that it reads is one batch, and each line that it prints is one answer. Print everything else to stderr.
"""
import json
import sys


def text(completion):
    """A completion is a string, or a list of chat messages."""
    if isinstance(completion, str):
        return completion
    return "\n".join(message["content"] for message in completion)


def reward(completions, answer, **others):
    """Returns a score for each completion; None means no score. `others`: prompts, completion_ids, other columns."""
    return [
        None if right is None else float(text(completion).split()[-1:] == [str(right)])
        for completion, right in zip(completions, answer)
    ]


for line in sys.stdin:
    try:
        request = json.loads(line)
        # The number of the request shows if a line was printed that is not an answer.
        result = {"rewards": reward(**request), "request": request["trainer_state"].get("request")}
    except Exception as error:  # reported instead of scores: the batch has no scores, and the run continues
        result = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(result), flush=True)
