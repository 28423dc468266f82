"""Tests `lockstep serve` with OpenAI's own Python client.

    pip install openai
    python conformance/openai_flow.py [PROGRAM]

PROGRAM is the built `lockstep` (or LOCKSTEP_BIN; else target/release or target/debug). The script makes a tiny random
chat model, starts a server on a free port of this machine, and needs no network. Each check prints a line; the exit
code is 1 if one fails. Tested with openai 3.57.0.
"""

import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import openai

LETTERS = "abcdefghijklmnopqrstuvwxyz .,?\n"
SHAPE = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 40, "hidden_size": 16,
    "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": True, "attention_bias": False, "bos_token_id": None, "eos_token_id": 0,
    "initializer_range": 0.5,
}
TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}.{% endif %}"
MESSAGES = [{"role": "user", "content": "once upon a time"}]
FAILED = []


def program():
    root = pathlib.Path(__file__).resolve().parent.parent
    named = sys.argv[1:2] or [os.environ.get("LOCKSTEP_BIN")]
    found = [pathlib.Path(path) for path in named if path] + [root / f"target/{kind}/lockstep" for kind in ("release", "debug")]
    return next(str(path.resolve()) for path in found if path.exists())


def make_model(binary, home):
    tokenizer = home / "tokenizer"
    tokenizer.mkdir()
    end = {"id": 0, "content": "<e>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
           "special": True}
    split = {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False}
    vocab = {token: i for i, token in enumerate(["<e>", *LETTERS])}
    (tokenizer / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
        "pre_tokenizer": split, "post_processor": None, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": ""},
    }))
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<e>", "chat_template": TEMPLATE}))
    (home / "config.json").write_text(json.dumps(SHAPE))
    arguments = ["init", "--config", home / "config.json", "--tokenizer", tokenizer, "--seed", "3", "--out", home / "tiny"]
    subprocess.run([binary, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)
    return home / "tiny"


def check(name, passes, shown=""):
    print("ok  " if passes else "FAIL", name, "" if passes else shown)
    if not passes:
        FAILED.append(name)


def refused(name, kind, call, *words):
    try:
        call()
        check(name, False, "no error")
    except openai.APIStatusError as error:
        shown = f"{error} {error.code} {error.param}"
        check(name, isinstance(error, kind) and all(word in shown for word in words), shown)


def chat_stream(client, **more):
    """The text, log-probabilities, ids, finish reason and usage of a streamed chat."""
    text, logprobs, ids, reason, usage = "", [], [], None, None
    chunks = client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **more)
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            logprobs += [entry.logprob for entry in (choice.logprobs.content if choice.logprobs else [])]
            ids += getattr(choice, "token_ids", None) or []
            reason = choice.finish_reason or reason
    return text, logprobs, ids, reason, usage


def flow(client, raw):
    check("models", [model.id for model in client.models.list()] == ["tiny"])
    one = dict(model="tiny", messages=MESSAGES, seed=5, max_completion_tokens=24, logprobs=True, top_logprobs=2,
               extra_body={"return_token_ids": True})
    whole = client.chat.completions.create(**one)
    choice = whole.choices[0]
    logprobs = [entry.logprob for entry in choice.logprobs.content]
    text, streamed, ids, reason, usage = chat_stream(client, **one)
    check("chat: a stream has the text of the whole response", text == choice.message.content, (text, choice))
    check("chat: the same log-probabilities", streamed == logprobs and len(logprobs) > 1, (streamed, logprobs))
    check("chat: the same ids", ids == choice.token_ids and len(ids) == len(logprobs), (ids, choice.token_ids))
    check("chat: the same finish reason and usage", (reason, usage) == (choice.finish_reason, whole.usage), (reason, usage))
    check("chat: usage counts the prompt's ids", whole.usage.prompt_tokens == len(whole.prompt_token_ids))
    top = [entry.top_logprobs for entry in choice.logprobs.content]
    check("chat: two alternatives, most likely first", all(len(t) == 2 and t[0].logprob >= t[1].logprob for t in top))

    with client.chat.completions.stream(model="tiny", messages=MESSAGES, seed=5, max_completion_tokens=24) as stream:
        helped = "".join(event.delta for event in stream if event.type == "content.delta")
    check("chat: the client's stream helper", helped == text, helped)

    many = client.chat.completions.create(model="tiny", messages=MESSAGES, seed=5, max_completion_tokens=24, n=3)
    texts = [choice.message.content for choice in many.choices]
    check("n: sample 0 is the single one, and samples differ", texts[0] == text and len(set(texts)) == 3, texts)

    by_ids = client.completions.create(model="tiny", prompt=whole.prompt_token_ids, seed=5, max_tokens=24, logprobs=0)
    check("completions: token ids as the prompt", by_ids.choices[0].text == text, by_ids)
    check("completions: the same bits", by_ids.choices[0].logprobs.token_logprobs == logprobs)
    echo = client.completions.create(model="tiny", prompt="once upon", seed=5, max_tokens=1, echo=True, logprobs=0)
    check("completions: echo", echo.choices[0].text.startswith("once upon"), echo)
    generated = raw.post("/inference/v1/generate", cast_to=object, body={
        "token_ids": whole.prompt_token_ids, "sampling_params": {"max_tokens": 24, "seed": 5, "logprobs": 1}})
    check("generate: the same ids", generated["choices"][0]["token_ids"] == ids, generated)

    # Log-probabilities are those of the sampled distribution: at a higher temperature it is flatter.
    def best(temperature):
        answer = client.completions.create(model="tiny", prompt="ab", max_tokens=1, logprobs=5, temperature=temperature)
        return max(answer.choices[0].logprobs.top_logprobs[0].values())
    check("logprobs scale with the temperature", best(1.0) > best(2.0) > best(4.0))

    def alone(number):
        answer = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "a" * (1 + number % 50)}], seed=number, logprobs=True,
            max_completion_tokens=30)
        return answer.choices[0].message.content, [entry.logprob for entry in answer.choices[0].logprobs.content]
    expected = [alone(number) for number in range(32)]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        check("32 clients at once get the bits of one alone", list(pool.map(alone, range(32))) == expected)


def errors(client):
    create = client.chat.completions.create
    base = dict(model="tiny", messages=MESSAGES)
    refused("an unknown model", openai.NotFoundError, lambda: create(**(base | {"model": "other"})), "model_not_found")
    refused("a value out of range", openai.BadRequestError, lambda: create(**base, temperature=-1), "temperature")
    refused("tools", openai.BadRequestError, lambda: create(**base, tools=[{"type": "function", "function": {"name": "f"}}]),
            "unsupported_parameter", "tools")
    refused("an unknown field", openai.BadRequestError, lambda: create(**base, extra_body={"temprature": 1}), "temperature")
    refused("a long prompt", openai.BadRequestError,
            lambda: create(model="tiny", messages=[{"role": "user", "content": "a" * 300}]), "context_length_exceeded")
    refused("a foreign host", openai.APIStatusError,
            lambda: create(**base, extra_headers={"Host": "evil.example"}), "evil.example")


def main():
    binary = program()
    with tempfile.TemporaryDirectory() as home:
        model = make_model(binary, pathlib.Path(home))
        server = subprocess.Popen([binary, "serve", "--model", model, "--listen", "127.0.0.1:0", "--max-waiting", "256"],
                                  stdout=subprocess.PIPE, text=True)
        try:
            line = next(line for line in server.stdout if " at http://" in line)
            url = line.split(" at ")[1].strip()
            began = time.time()
            client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
            flow(client, openai.OpenAI(base_url=url, api_key="none", max_retries=0))
            errors(client)
            stream = client.completions.create(model="tiny", prompt="a", max_tokens=200, stream=True,
                                               extra_body={"ignore_eos": True})
            next(iter(stream))
            server.send_signal(signal.SIGINT)
            rest = sum(len(chunk.choices) for chunk in stream)
            check("Ctrl-C completes the open stream", rest == 199, rest)
            check("Ctrl-C: exit code 130", server.wait(60) == 130, server.returncode)
            print(f"{time.time() - began:.1f} s")
        finally:
            server.kill()
    sys.exit(1 if FAILED else 0)


main()
