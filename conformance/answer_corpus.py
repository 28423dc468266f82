"""Scores the corpus of answers (crates/rewards/src/builtin/corpus) with Lockstep and with math-verify, and counts the
scores that are not as decided by hand.

    pip install math-verify==0.9.0
    python conformance/answer_corpus.py [--lockstep PROGRAM] [--math500 math500.jsonl] [--list]

The corpus has pairs decided by hand (answers.tsv), markup around an answer (markup.tsv, for every grader) and, with
--math500, the answers of MATH-500 in six rewritings (rewritings.tsv), each also with its last digit changed. math-verify
scores the rows of the graders `math` and `gsm8k`, with its default settings. --list prints each wrong score. The test
`builtin::corpus` of the crate `lockstep-rewards` reads the same tables.
"""

import argparse
import json
import logging
import pathlib
import re
import subprocess
import tempfile

CORPUS = pathlib.Path(__file__).resolve().parents[1] / "crates/rewards/src/builtin/corpus"
# Grader, answer of the dataset, right answer, wrong answer: as in corpus.rs.
ANSWERS = [
    ("math", "73", "73", "74"),
    ("math", r"\frac{3}{4}", r"\frac{3}{4}", r"\frac{3}{5}"),
    ("gsm8k", "73", "73", "37"),
    ("exact_match", "Paris", "Paris", "Rome"),
    ("multiple_choice", "B", "B", "C"),
    ("countdown", "14", "(3 + 4) * 2", "3 + 4 * 2"),
]


def lines(name):
    text = (CORPUS / name).read_text(encoding="utf-8")
    return [line.split("\t") for line in text.split("\n") if line and not line.startswith("#")]


def answers():
    for grader, truth, answer, completion in lines("answers.tsv"):
        text = rf"\boxed{{{completion}}}" if grader == "box" else completion.replace("⏎", "\n")
        yield ("by hand", "math" if grader == "box" else grader, truth == "=", answer, text)


def markup():
    for which, truth, template in lines("markup.tsv"):
        for grader, answer, good, bad in ANSWERS:
            if which == "last" and grader not in ("math", "gsm8k"):
                continue
            text = "First, 12 of 42 remain.\n" + template.replace("⏎", "\n")
            yield ("markup", grader, truth == "=", answer, text.replace("%", good))
            yield ("markup", grader, False, answer, text.replace("%", bad))


def near_miss(answer, other):
    digits = [i for i, c in enumerate(answer) if c in "0123456789"]
    if not digits:
        return other
    at = digits[-1]
    return f"{answer[:at]}{(int(answer[at]) + 1) % 10}{answer[at + 1:]}"


def rewritten(answer, how):
    if how == "dfrac":
        return answer.replace(r"\frac", r"\dfrac")
    if how == "spaces":
        return answer.replace(" ", "")
    if how == "value":
        if re.fullmatch("-?[0-9]+", answer):
            return answer + ".0"
        if fraction := re.fullmatch(r"(-?)\\frac\{([0-9]+)\}\{([0-9]+)\}", answer):
            return "{}{}/{}".format(*fraction.groups())
        return answer.replace(r"\left", "").replace(r"\right", "")
    return answer


def math500(path):
    golds = [json.loads(line)["answer"] for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()]
    for i, gold in enumerate(golds):
        wrong = near_miss(gold, golds[(i + 1) % len(golds)])
        for how, template in lines("rewritings.tsv"):
            yield ("MATH-500", "math", True, gold, template.replace("%", rewritten(gold, how)))
            yield ("MATH-500", "math", False, gold, template.replace("%", rewritten(wrong, how)))


def of_lockstep(program, cases):
    """Scores each case with the program; no score counts as 0."""
    scores = [None] * len(cases)
    for grader in dict.fromkeys(case[1] for case in cases):
        places = [i for i, case in enumerate(cases) if case[1] == grader]
        with tempfile.TemporaryDirectory() as folder:
            rows, out = pathlib.Path(folder, "in.jsonl"), pathlib.Path(folder, "out.jsonl")
            with rows.open("w", encoding="utf-8") as file:
                for i in places:
                    row = {"prompt": "q", "completion": cases[i][4], "answer": cases[i][3]}
                    file.write(json.dumps(row | {"nums": [3, 4, 2], "target": 14}) + "\n")
            words = [program, "score-rewards", "--input", str(rows), "--reward", grader, "--out", str(out)]
            subprocess.run(words, check=True, capture_output=True)
            for line in out.read_text(encoding="utf-8").split("\n"):
                if line:
                    row = json.loads(line)
                    scores[places[row["row"]]] = list(row["rewards"].values())[0] == 1
    return scores


def of_math_verify(cases):
    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    scores = []
    for _, grader, _, answer, completion in cases:
        if grader not in ("math", "gsm8k"):
            scores.append(None)
            continue
        gold = answer.removeprefix("#### ")
        gold = gold if "$" in gold else f"${gold}$"
        scores.append(bool(verify(parse(gold), parse(completion))))
    return scores


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--lockstep")
    flags.add_argument("--math500")
    flags.add_argument("--list", action="store_true")
    flags = flags.parse_args()
    cases = [*answers(), *markup(), *(math500(flags.math500) if flags.math500 else [])]
    judges = {"math-verify": of_math_verify(cases)}
    if flags.lockstep:
        judges = {"lockstep": of_lockstep(flags.lockstep, cases)} | judges
    print("| part | right | wrong | " + " | ".join(f"{name}: false positives | false negatives" for name in judges) + " |")
    print("|---|---|---|" + "---|---|" * len(judges))
    # The graders that both judges score, then the others.
    for part, graders in [(part, graders) for part in ("by hand", "markup", "MATH-500")
                          for graders in (("math", "gsm8k"), ("exact_match", "multiple_choice", "countdown"))]:
        places = [i for i, case in enumerate(cases) if case[0] == part and case[1] in graders]
        if not places:
            continue
        right = sum(cases[i][2] for i in places)
        row = [f"{part} ({', '.join(graders)})", str(right), str(len(places) - right)]
        for scores in judges.values():
            if scores[places[0]] is None:
                row += ["-", "-"]
                continue
            row += [str(sum(scores[i] and not cases[i][2] for i in places)),
                    str(sum(cases[i][2] and not scores[i] for i in places))]
        print("| " + " | ".join(row) + " |")
    if flags.list:
        for name, scores in judges.items():
            for case, score in zip(cases, scores):
                if score is not None and score != case[2]:
                    print(f"{name}: {case[1]} gave {int(score)}: {case[3]} | {case[4]!r}")


main()
