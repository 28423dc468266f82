"""Makes python/tests/fixtures/trl_rewards.json: the values of TRL's rewards for given completions.

    pip install trl==1.16.0 math-verify==0.9.0 torch==2.15.0 transformers==5.23.0
    python conformance/trl_rewards_fixtures.py
"""

import json
import pathlib

from trl import rewards

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUT = ROOT / "python/tests/fixtures/trl_rewards.json"

ACCURACY = [
    (r"\boxed{3}", "$3$"), ("the answer is 0.5", r"$\frac{1}{2}$"), ("72", "72"), (r"\boxed{4} or \boxed{5}", "5"),
    (r"\boxed{3}", "no math here"), (r"\boxed{72}", "72"), (r"so $x = 7$", "7"), ("$7$", "7"),
    (r"\[ \frac{2}{4} \]", r"\frac{1}{2}"), (r"\boxed{\frac{1}{2}}", "0.5"), (r"\boxed{50\%}", "0.5"),
    (r"\boxed{0.333}", r"\frac{1}{3}"), (r"\boxed{x+1}", "$1+x$"), (r"\boxed{(1, 2)}", "$(1,2)$"),
    (r"\boxed{\{1,2\}}", r"$\{2,1\}$"), (r"\boxed{3 \text{ cm}}", "3"), (r"\boxed{1{,}000}", "1000"), ("", "4"),
    (r"\boxed{}", "4"), (r"<think>\boxed{4}</think> \boxed{5}", "5"), (r"\boxed{5} and then \boxed{4}", "5"),
    ("The final answer is $4$. I hope it is correct.", "4"), (r"\boxed{\sqrt{8}}", r"$2\sqrt{2}$"),
    (r"\boxed{A}", "A"), (r"\boxed{4}", ""), (r"\boxed{x=4}", "4"), (r"\boxed{[0,1)}", "$[0,1)$"),
    (r"\boxed{-2}", "$2$"),
]
REASONING = [
    (r"<think>\boxed{4}</think> \boxed{3}", "$3$", None), (r"\boxed{3}", "$3$", None),
    (r"<think>a</think> 3", "3", None), (r"<think>a</think> \boxed{3} </think> \boxed{4}", "4", None),
    ("no end", "no math here", None), (r"<think>a</think> \boxed{3}", "no math here", None), ("</think>", "3", None),
    (r"<think>a</think> $\frac{6}{2}$", "3", None), (r"a END \boxed{3}", "3", ["END"]),
    (r"a </think> \boxed{3}", "3", ["END"]), (r"a </think> b END \boxed{3}", "3", ["</think>", "END"]),
]
FORMAT = [
    "<think>a</think>b", "<think>a<think>b</think>c", "a <think>b</think>", "<think>\na\n</think>\nb", "<think>a",
    "\n<think>a</think>", "<think></think>", "<think>a</think><think>", "<think>a</think>\n\n", "",
    "<think>a</think>b</think>",
]
OVERLONG = [
    (100, 20, 50), (100, 20, 80), (100, 20, 81), (100, 20, 90), (100, 20, 100), (100, 20, 101), (100, 0, 100),
    (100, 0, 101), (10, 10, 0), (10, 10, 1),
]
COSINE = [(n, r"\boxed{3}", "3") for n in (0, 50, 100, 150)] + [(n, "3", "3") for n in (0, 25, 100)]
COSINE += [(9, "3", "none")]
REPETITION = [(2, [1, 2, 3, 4]), (2, [5] * 5), (3, [1, 2]), (3, [1, 2] * 3), (1, [1, 1, 2])]


def conversation(text: str) -> list[dict]:
    return [{"role": "assistant", "content": text}]


def judged(reward, text: str, *more, **kwargs):
    return reward([conversation(text)], *([one] for one in more), **kwargs)[0]


def main() -> None:
    values = {
        "accuracy": [(*row, judged(rewards.accuracy_reward, *row)) for row in ACCURACY],
        "reasoning": [
            (text, right, ends, judged(rewards.reasoning_accuracy_reward, text, right, reasoning_delimiters=ends))
            for text, right, ends in REASONING
        ],
        "format": [(text, judged(rewards.think_format_reward, text)) for text in FORMAT],
        "overlong": [
            (most, cache, n, rewards.get_soft_overlong_punishment(most, cache)([[1] * n])[0])
            for most, cache, n in OVERLONG
        ],
        "cosine": [
            (n, text, right, judged(rewards.get_cosine_scaled_reward(max_len=100), text, right, [1] * n))
            for n, text, right in COSINE
        ],
        "repetition": [
            (size, ids, rewards.get_repetition_penalty_reward(size)([ids])[0]) for size, ids in REPETITION
        ],
    }
    OUT.write_text("".join(
        ("{" if i == 0 else ",") + f"\n{json.dumps(name)}: [\n" + ",\n".join(json.dumps(row) for row in rows) + "]"
        for i, (name, rows) in enumerate(values.items())
    ) + "\n}\n")


if __name__ == "__main__":
    main()
