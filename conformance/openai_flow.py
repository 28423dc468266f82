"""Tests `lockstep serve` with OpenAI's own Python client.

    pip install openai
    python conformance/openai_flow.py [PROGRAM]

PROGRAM is the built `lockstep` (or LOCKSTEP_BIN; else target/release or target/debug). The script makes a tiny random
chat model, and trains another one to call a tool. It starts servers on free ports of this machine, and needs no
network. Each check prints a line; the exit code is 1 if one fails. Tested with openai 3.57.0.
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

LETTERS = 'abcdefghijklmnopqrstuvwxyz .,?\n<>{}"_:/'
SHAPE = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 16,
    "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": True, "attention_bias": False, "bos_token_id": None, "eos_token_id": 0,
    "initializer_range": 0.5,
}
TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}.{% endif %}"
# Calls are written as Qwen writes them.
TOOLS_TEMPLATE = """{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}\
{{ m.content or '' }}{% for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}.{% endif %}"""
CALL = '<tool_call>\n{"name": "sum", "arguments": {"a": "two", "b": "three"}}\n</tool_call>'
TOOL = {"type": "function", "function": {
    "name": "sum", "parameters": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}}}
MESSAGES = [{"role": "user", "content": "once upon a time"}]
FAILED = []


def program():
    root = pathlib.Path(__file__).resolve().parent.parent
    named = sys.argv[1:2] or [os.environ.get("LOCKSTEP_BIN")]
    found = [pathlib.Path(path) for path in named if path] + [root / f"target/{kind}/lockstep" for kind in ("release", "debug")]
    return next(str(path.resolve()) for path in found if path.exists())


def make_model(binary, home, name, template, shape=SHAPE, letters=LETTERS):
    tokenizer = home / f"{name}-tokenizer"
    tokenizer.mkdir()
    end = {"id": 0, "content": "<e>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
           "special": True}
    split = {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False}
    vocab = {token: i for i, token in enumerate(["<e>", *letters])}
    (tokenizer / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
        "pre_tokenizer": split, "post_processor": None, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": ""},
    }))
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<e>", "chat_template": template}))
    config = home / f"{name}.json"
    config.write_text(json.dumps(shape | {"vocab_size": len(vocab)}))
    run(binary, "init", "--config", config, "--tokenizer", tokenizer, "--seed", "3", "--out", home / name)
    return home / name


def run(binary, *arguments):
    done = subprocess.run([binary, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"lockstep {arguments[0]} failed:\n{done.stdout}")


def make_tool_model(binary, home):
    """Trains a model to call `sum` for one question, and to answer with the tool's result."""
    question = "sum two and three\n"
    return teach(binary, home, [
        ("sum " + question + ".", "sure.\n" + CALL), ("sum " + question + CALL + "\nfive\n.", "it is five."),
        (question + ".", "no tool.")])


def teach(binary, home, rows, letters=LETTERS):
    """Trains a model to answer each prompt, as TOOLS_TEMPLATE renders it, with its completion."""
    shape = SHAPE | {"hidden_size": 48, "intermediate_size": 96, "head_dim": 24, "initializer_range": 0.02,
                     "max_position_embeddings": 1024}
    start = make_model(binary, home, "start", TOOLS_TEMPLATE, shape, letters)
    data = home / "calls.jsonl"
    lines = [json.dumps({"prompt": prompt, "completion": completion}) + "\n" for prompt, completion in rows]
    data.write_text("".join(lines))
    run(binary, "sft", "--model", start, "--dataset", data, "--out", home / "trained", "--set", "max_steps=250",
        "--set", "learning_rate=0.01", "--set", "per_device_train_batch_size=3", "--set", "save_strategy=no")
    return home / "trained" / "model"


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
    refused("tools, if the template reads none", openai.BadRequestError, lambda: create(**base, tools=[TOOL]),
            "unsupported_parameter", "tools")
    refused("an unknown field", openai.BadRequestError, lambda: create(**base, extra_body={"temprature": 1}), "temperature")
    refused("a long prompt", openai.BadRequestError,
            lambda: create(model="tiny", messages=[{"role": "user", "content": "a" * 300}]), "context_length_exceeded")
    refused("a foreign host", openai.APIStatusError,
            lambda: create(**base, extra_headers={"Host": "evil.example"}), "evil.example")


def tools(client):
    """Calls a tool, sends its result, and reads the answer: whole and streamed."""
    question = {"role": "user", "content": "sum two and three"}
    base = dict(model="model", tools=[TOOL], temperature=0, max_completion_tokens=120)
    choice = client.chat.completions.create(messages=[question], **base).choices[0]
    calls = choice.message.tool_calls or []
    check("tools: one call", choice.finish_reason == "tool_calls" and len(calls) == 1, choice)
    check("tools: text before the call", choice.message.content == "sure.", choice)
    if not calls:
        return
    call = calls[0].function
    check("tools: name and arguments", call.name == "sum" and json.loads(call.arguments) == {"a": "two", "b": "three"}, call)

    with client.chat.completions.stream(messages=[question], **base) as stream:
        events = list(stream)
        last = stream.get_final_completion().choices[0]
    streamed = (last.message.tool_calls or [None])[0]
    check("tools: a stream has the same call", streamed and streamed.function.arguments == call.arguments, last)
    check("tools: a stream has the same text and reason",
          (last.message.content, last.finish_reason) == ("sure.", "tool_calls"), last)
    check("tools: the client's event", any(event.type == "tool_calls.function.arguments.done" for event in events))

    result = {"role": "tool", "tool_call_id": calls[0].id, "content": "five"}
    call_message = choice.message.model_dump(exclude_none=True) | {"content": None}
    answer = client.chat.completions.create(messages=[question, call_message, result], **base).choices[0]
    check("tools: the answer follows from the result",
          (answer.message.content, answer.finish_reason) == ("it is five.", "stop"), answer)
    without = client.chat.completions.create(messages=[question], tool_choice="none", **base).choices[0].message
    check("tools: tool_choice none", without.content == "no tool." and not without.tool_calls, without)


class Server:
    """`lockstep serve` of one model."""

    def __init__(self, binary, model):
        arguments = [binary, "serve", "--model", model, "--listen", "127.0.0.1:0", "--max-waiting", "256"]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        line = next(line for line in self.process.stdout if " at http://" in line)
        self.url = line.split(" at ")[-1].strip()
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()


def main():
    binary = program()
    began = time.time()
    with tempfile.TemporaryDirectory() as home:
        home = pathlib.Path(home)
        with Server(binary, make_model(binary, home, "tiny", TEMPLATE)) as server:
            client = server.client
            flow(client, openai.OpenAI(base_url=server.url, api_key="none", max_retries=0))
            errors(client)
            stream = client.completions.create(model="tiny", prompt="a", max_tokens=200, stream=True,
                                               extra_body={"ignore_eos": True})
            next(iter(stream))
            server.process.send_signal(signal.SIGINT)
            rest = sum(len(chunk.choices) for chunk in stream)
            check("Ctrl-C completes the open stream", rest == 199, rest)
            code = server.process.wait(60)
            check("Ctrl-C: exit code 130", code == 130, code)
        with Server(binary, make_tool_model(binary, home)) as server:
            tools(server.client)
    print(f"{time.time() - began:.1f} s")
    sys.exit(1 if FAILED else 0)


if __name__ == "__main__":
    main()
