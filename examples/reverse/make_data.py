"""Writes the data of a toy task: reverse a word. The answers in pairs.jsonl are from a careless teacher; the answers in
the other files are right."""

import json
import random

LETTERS = "abcdefghijklmnopqrstuvwxyz"
draw = random.Random(0)
words = {"".join(draw.choices(LETTERS, k=draw.randint(3, 6))) for _ in range(6000)}
words = sorted(words)
draw.shuffle(words)


def careless(answer):
    """Swaps two neighbouring letters in 40 % of the answers."""
    at = draw.randrange(len(answer) - 1)
    swapped = answer[:at] + answer[at + 1] + answer[at] + answer[at + 2 :]
    return swapped if draw.random() < 0.4 else answer


def write(name, rows):
    with open(name, "w") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


write("pairs.jsonl", ({"prompt": w + ">", "completion": careless(w[::-1])} for w in words[:3000]))
write("problems.jsonl", ({"prompt": w + ">", "answer": w[::-1]} for w in words[3000:5000]))
write("heldout.jsonl", ({"prompt": w + ">", "answer": w[::-1]} for w in words[5000:5500]))
