"""The scripts that a TRL user brings: only the import is another. Models and data are tiny and local."""

import json
import os
import pathlib
import shutil

import pytest
from conftest import python

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
QUESTIONS = [
    {"question": f"What is {a} + {b}?", "answer": f"{a} + {b} = {a + b}\n#### {a + b}"}
    for a in range(4)
    for b in (1, 2)
]


def run(script, **values):
    return python(os.fspath(script), env={**os.environ, **values})


def logged(directory):
    with open(os.path.join(directory, "metrics.jsonl")) as file:
        return [json.loads(line) for line in file]


def test_the_quickstart(bytes_model):
    with open("rows.jsonl", "w") as file:
        for a in range(8):
            prompt = [{"role": "user", "content": f"{a} + 1 = ?"}]
            file.write(json.dumps({"prompt": prompt, "solution": f"${a + 1}$"}) + "\n")
    said = run(EXAMPLES / "quickstart.py", MODEL=bytes_model, DATA="rows.jsonl", STEPS="2", TOKENS="16")
    assert said.returncode == 0, said.stderr
    assert "rewards/accuracy_reward/mean" in logged("quickstart")[0]


def test_gsm8k_with_xml_rewards(bytes_model):
    with open("gsm8k.jsonl", "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in QUESTIONS)
    said = run(EXAMPLES / "gsm8k_xml.py", MODEL=bytes_model, DATA="gsm8k.jsonl", STEPS="2", TOKENS="16")
    assert said.returncode == 0, said.stderr
    metrics = logged("gsm8k-xml")[1]
    names = ["xmlcount", "soft_format", "strict_format", "int", "correctness"]
    assert all(f"rewards/{name}_reward/mean" in metrics for name in names)
    assert os.path.exists("gsm8k-xml/model/adapter_model.safetensors")


def test_what_the_xml_rewards_say():
    demo = {"__name__": "demo"}
    exec((EXAMPLES / "gsm8k_xml.py").read_text(), demo)
    whole = "<reasoning>\n1 + 1\n</reasoning>\n<answer>\n2\n</answer>\n"
    loose = "well <reasoning>1</reasoning> <answer>two</answer> and more"
    completions = [[{"content": text}] for text in (whole, loose, "2")]
    says = {name: demo[f"{name}_reward"] for name in ("xmlcount", "soft_format", "strict_format", "int")}
    assert demo["correctness_reward"](completions, answer=["2", "2", "2"]) == [2.0, 0.0, 2.0]
    assert says["int"](completions) == [0.5, 0.0, 0.5]
    assert says["strict_format"](completions) == [0.5, 0.0, 0.0]
    assert says["soft_format"](completions) == [0.5, 0.5, 0.0]
    assert says["xmlcount"](completions) == pytest.approx([0.5, 0.492, 0.0])
