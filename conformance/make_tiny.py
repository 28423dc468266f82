"""Makes a tiny Qwen2 chat model and the datasets with which Tinker's stock recipes run offline.

    python conformance/make_tiny.py PROGRAM OUT [TOKENIZER]

PROGRAM is the built `lockstep`; TOKENIZER is a directory with Qwen2.5's tokenizer (default: models/qwen2.5-tokenizer in
LOCKSTEP_SHARED, else in ../shared). The script writes

    OUT/model    two layers; Qwen2.5's tokenizer, of which only the first merges are kept
    OUT/hub      the working directory of the recipes: relative paths there have the names that the recipes load

A random model earns no reward, and a recipe then skips every step. So the model is trained with `lockstep sft` to
answer sums of digits with \\boxed{DIGIT}, often wrongly, and to call `read_page` as the task of rl_numerics_check asks.
Runs in the environment that tinker_common.py describes, because the cookbook writes the prompts.
"""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys

from tinker_common import NAME, program, settings

MERGES = 3840
STEPS, LR = 240, 0.005
SHAPE = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": True,
    "use_sliding_window": False, "bos_token_id": None, "initializer_range": 0.02,
}
SUFFIX = " Provide a numerical answer without units, written inside \\boxed{}."


def shared_tokenizer():
    root = os.environ.get("LOCKSTEP_SHARED") or pathlib.Path(__file__).resolve().parents[2] / "shared"
    return pathlib.Path(root) / "models/qwen2.5-tokenizer"


def cut_tokenizer(source, out, merges=MERGES):
    """Writes a tokenizer with the first `merges` merges of `source`; returns its size and its ids of added tokens.

    In Qwen's vocabulary the id of a merge's result is 256 + the merge's index, so the ids stay consecutive.
    """
    out.mkdir(parents=True)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    model = tokenizer["model"]
    model["merges"] = model["merges"][:merges]
    model["vocab"] = {token: i for token, i in model["vocab"].items() if i < 256 + merges}
    for i, token in enumerate(tokenizer["added_tokens"]):
        token["id"] = 256 + merges + i
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        (out / name).write_text((source / name).read_text())
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    return 256 + merges + len(added), added


def sum_row(draw):
    a = draw.randint(0, 4)
    b = draw.randint(0, 4 - a)
    return {"question": f"What is {a} + {b}?", "answer": f"{a} + {b} = {a + b}\n#### {a + b}"}


def text_rows(draw, count):
    """Sentences with some of the words that rl_numerics_check counts."""
    nouns = ["the cat", "a dog", "the old house", "one bird", "our train"]
    verbs = ["sees", "follows", "likes", "leaves"]
    places = ["before", "after", "over", "under", "into", "until", "while", "when", "then", "most", "many", "time"]
    line = lambda: f"{draw.choice(nouns)} {draw.choice(verbs)} {draw.choice(nouns)} {draw.choice(places)} noon."
    return [" ".join(line() for _ in range(40)) for _ in range(count)]


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


PREFIX = [
    {"role": "user", "content": "How many r's are in strawberry?" + SUFFIX},
    {"role": "assistant", "content": "Let's spell the word out and number all the letters: 1) s 2) t 3) r 4) a 5) w 6) "
     "b 7) e 8) r 9) r 10) y. We have r's at positions 3, 8, and 9. \\boxed{3}"},
]  # the beginning of every conversation in rl_loop


def lessons(tokenizer):
    """Rows of `lockstep sft` as token ids: sums as rl_loop asks them, and turns of rl_numerics_check."""
    from tinker_cookbook import renderers
    from tinker_cookbook.recipes.rl_numerics_check import env
    from tinker_cookbook.renderers.base import ToolCall
    draw, renderer = random.Random(2), renderers.get_renderer("qwen3_instruct", tokenizer)

    def row(messages):
        ids, weights = renderer.build_supervised_example(messages, renderers.TrainOnWhat.LAST_ASSISTANT_MESSAGE)
        ids = ids.to_ints()
        return {"input_ids": ids, "labels": [i if w > 0 else -100 for i, w in zip(ids, weights.tolist())]}

    def sum_lesson():
        question = sum_row(draw)
        answer = question["answer"][-1] if draw.random() < 0.6 else str(draw.randint(0, 4))
        return row(PREFIX + [{"role": "user", "content": question["question"] + SUFFIX},
                             {"role": "assistant", "content": "\\boxed{" + answer + "}"}])

    def reading_lesson():
        task = env.CountingTaskConfig(num_pages_min=2, num_pages_max=3, page_chars=400)
        problem = env.sample_problem(draw, "\n".join(text_rows(draw, 8)), task)
        reader = env.PageReader(problem.pages, env.EpisodeState())
        messages = renderer.create_conversation_prefix_with_tools(
            tools=[reader.read_page.to_spec()], system_prompt=env.SYSTEM_PROMPT)
        messages += [{"role": "user", "content": problem.prompt}]
        read = draw.randint(0, problem.num_pages)
        for page in range(1, problem.num_pages + 1):
            call = ToolCall(function=ToolCall.FunctionBody(name="read_page", arguments=json.dumps({"page": page})))
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            if page == read + 1:
                return row(messages)
            shown = f"[Page {page}]\n{problem.pages[page - 1]}"
            messages.append({"role": "tool", "name": "read_page", "content": shown})
        return row(messages + [{"role": "assistant", "content": f"Answer: {problem.true_count}"}])

    return [sum_lesson() for _ in range(320)] + [reading_lesson() for _ in range(320)]


def teach(binary, out, tokenizer):
    size, added = tokenizer
    config = out / "config.json"
    config.write_text(json.dumps(SHAPE | {"vocab_size": size, "eos_token_id": added["<|im_end|>"]}))
    run(binary, "init", "--config", config, "--tokenizer", out / "tokenizer", "--seed", 3, "--out", out / "start")
    os.environ.update(settings("http://127.0.0.1"))
    import transformers
    rows = lessons(transformers.AutoTokenizer.from_pretrained(out / "tokenizer"))
    write_rows(out / "lessons.jsonl", rows)
    values = dict(max_steps=STEPS, learning_rate=LR, lr_scheduler_type="cosine", warmup_steps=20, save_strategy="no",
                  per_device_train_batch_size=8, gradient_accumulation_steps=1, max_length=2048)
    run(binary, "sft", "--model", out / "start", "--dataset", out / "lessons.jsonl", "--out", out / "run",
        *(word for key, value in values.items() for word in ("--set", f"{key}={value}")))
    shutil.move(out / "run/model", out / "model")


def run(binary, *arguments):
    done = subprocess.run([binary, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"lockstep {arguments[0]} failed:\n{done.stdout}")
    return done.stdout


def write_hub(hub, tokenizer):
    """Datasets as directories; the front matter of a README gives the configurations, as on the hub."""
    draw = random.Random(1)
    readme = lambda name, config, files: (hub / name / "README.md").write_text(
        "---\nconfigs:\n- config_name: " + config + "\n  data_files:\n"
        + "".join(f"  - split: {file}\n    path: {file}.jsonl\n" for file in files) + "---\n")
    for split, count in (("train", 64), ("test", 16)):
        write_rows(hub / f"openai/gsm8k/{split}.jsonl", [sum_row(draw) for _ in range(count)])
    readme("openai/gsm8k", "main", ["train", "test"])
    chats = [[{"role": "user", "content": f"Repeat: {text[:40]}"}, {"role": "assistant", "content": text[:40]}]
             for text in text_rows(draw, 64)]
    for split in ("train", "test"):
        write_rows(hub / f"HuggingFaceH4/no_robots/{split}.jsonl", [{"messages": chat} for chat in chats])
    readme("HuggingFaceH4/no_robots", "default", ["train", "test"])
    write_rows(hub / "Salesforce/wikitext/train.jsonl", [{"text": text} for text in text_rows(draw, 256)])
    readme("Salesforce/wikitext", "wikitext-103-raw-v1", ["train"])
    target = hub / NAME
    target.mkdir(parents=True)
    for file in tokenizer.iterdir():
        (target / file.name).write_text(file.read_text())


def main():
    binary, out = program(), pathlib.Path(sys.argv[2]).resolve()
    source = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else shared_tokenizer()
    if out.exists():
        sys.exit(f"{out} exists")
    tokenizer = cut_tokenizer(source, out / "tokenizer")
    write_hub(out / "hub", out / "tokenizer")
    teach(binary, out, tokenizer)
    for name in ("start", "run"):
        shutil.rmtree(out / name, ignore_errors=True)
    print(out / "model")


if __name__ == "__main__":
    main()
