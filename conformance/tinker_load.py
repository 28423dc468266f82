"""Loads `lockstep serve` with 64 clients, 16 adapters of different ranks, and conversations of several turns.

    python conformance/tinker_load.py PROGRAM MODEL [--clients 64] [--samples 8] [--turns 4] [--tokens 32]

Each client is a conversation. In each turn it draws SAMPLES sequences of TOKENS tokens, so that CLIENTS × SAMPLES
sequences are open. Its first prompt has ten pages of the KV cache; the next prompt is the old one, the first sequence,
and 16 new tokens. The script checks that every request succeeds, that a seeded request alone has the bits that it has
among the others, that the prefix cache has none of the first prompts and at least 90 % of the tokens of later ones, and
that all pages are free at the end. It prints tokens per second, the peak memory, and the time until a result, first
without adapters, then with 16. MODEL needs a context of 1,024 tokens, such as the model of make_tiny.py. Only the
standard library is used; requests are those of Tinker's client.
"""

import argparse
import concurrent.futures
import http.client
import json
import pathlib
import random
import re
import statistics
import tempfile
import threading
import time

from tinker_common import NAME, STARTED, Server, check, directory, finish, part

PROMPT, ADDED = 10 * 64, 16
BEGAN = time.time()


class Connection:
    """A kept connection to the server."""

    def __init__(self, server):
        self.port = server.port
        self.http = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)

    def call(self, method, path, body=None):
        text = None if body is None else json.dumps(body)
        self.http.request(method, path, text, {"Content-Type": "application/json"} if text else {})
        response = self.http.getresponse()
        return response.status, response.read()

    def post(self, route, body):
        status, data = self.call("POST", f"/api/v1/{route}", body)
        if status != 200:
            raise RuntimeError(f"{route}: {status} {data[:200]!r}")
        return json.loads(data)

    def result(self, promise):
        while True:
            status, data = self.call("POST", "/api/v1/retrieve_future", {"request_id": promise["request_id"]})
            if status == 200:
                return data
            if status != 408:
                raise RuntimeError(f"retrieve_future: {status} {data[:200]!r}")


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(data):
    """The fields of a protobuf message whose values are numbers or bytes."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        value, at = varint(data, at)
        if tag & 7 == 2:
            value, at = data[at:at + value], at + value
        yield tag >> 3, value


def sequences(data):
    """The sequences of a sample's result, as bytes."""
    return [value for number, value in fields(data) if number == 1]


def cached_tokens(data):
    """The number of the prompt's tokens that the prefix cache had."""
    return next((value for number, value in fields(data) if number == 4), 0)


def first_tokens(data):
    """The token ids of the first sequence of a sample's result."""
    sequence = sequences(data)[0]
    tokens = next(value for number, value in fields(sequence) if number == 2)
    return [int.from_bytes(tokens[i:i + 4], "little") for i in range(0, len(tokens), 4)]


def metrics(server):
    _, text = Connection(server).call("GET", "/metrics")
    return {name: float(value) for name, value in re.findall(r"^(lockstep_serve_\w+)\{\} (\S+)$", text.decode(), re.M)}


def peak_mib(server):
    text = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", text)[1]) / 1024


def samplers(server, ranks):
    """A sampler for each rank, whose adapter was trained for a step; rank 0 is the base."""
    connection = Connection(server)
    session = connection.post("create_session", {"tags": []})["session_id"]
    out = []
    for number, rank in enumerate(ranks):
        if rank == 0:
            body = {"session_id": session, "sampling_session_seq_id": number, "base_model": NAME}
            out.append(connection.post("create_sampling_session", body)["sampling_session_id"])
            continue
        body = {"session_id": session, "model_seq_id": number, "base_model": NAME, "lora_config": {"rank": rank}}
        model = connection.post("create_model", body)
        connection.result(model)
        body = {"model_id": model["model_id"], "seq_id": 1, "sampling_session_seq_id": number, "kind": "snapshot"}
        saved = json.loads(connection.result(connection.post("save_weights_for_sampler", body)))
        out.append(saved["sampling_session_id"])
    return out


def ask(connection, sampler, seq_id, prompt, samples, tokens, seed):
    params = {"max_tokens": tokens, "temperature": 1.0, "stop": [], "seed": seed}
    return connection.post("asample", {
        "sampling_session_id": sampler, "seq_id": seq_id, "num_samples": samples, "sampling_params": params,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]}})


def conversation(server, sampler, number, args, barrier, waits, turns):
    """All turns of a client. Returns the result of its last turn, and the request of that turn. `waits` gets the times
    until the results, and `turns` the cached tokens and the tokens of each turn's prompts."""
    connection, noise = Connection(server), random.Random(number)
    prompt, data = [noise.randrange(3, 400) for _ in range(PROMPT)], b""
    for turn in range(args.turns):
        barrier.wait()
        began = time.time()
        request = (sampler, number * 1000 + turn, list(prompt), args.samples, args.tokens, number)
        data = connection.result(ask(connection, *request))
        waits.append(time.time() - began)
        turns[turn].append((cached_tokens(data), len(prompt)))
        prompt += first_tokens(data) + [noise.randrange(3, 400) for _ in range(ADDED)]
    return data, request


def load(server, ids, args):
    """Runs all conversations. Returns results, tokens per second, the waits, and the cached and all prompt tokens of
    each turn."""
    times, waits, turns = [], [], [[] for _ in range(args.turns)]
    barrier = threading.Barrier(args.clients, action=lambda: times.append(time.time()))
    with concurrent.futures.ThreadPoolExecutor(args.clients) as pool:
        runs = [pool.submit(conversation, server, ids[i % len(ids)], i, args, barrier, waits, turns)
                for i in range(args.clients)]
        results = [run.result() for run in runs]
    tokens = args.clients * args.samples * args.tokens * args.turns
    totals = [[sum(column) for column in zip(*turn)] for turn in turns]
    return results, tokens / (time.time() - times[0]), waits, totals


def run(server, args):
    for label, ranks in (("no adapter", [0]), ("16 adapters", [1, 2, 4, 8] * 4)):
        results, rate, waits, turns = load(server, samplers(server, ranks), args)
        shown = ", ".join(f"{cached / tokens:.1%}" for cached, tokens in turns)
        print(f"{label}: {rate:.0f} tokens/s; a result after {statistics.median(waits):.2f} s (median), "
              f"{max(waits):.2f} s at most; cached prompt tokens by turn: {shown}; peak {peak_mib(server):.0f} MiB")
        # The last page of a prompt is not full, and the last token of a sequence has no keys yet.
        cached, tokens = (sum(column) for column in zip(*turns[1:]))
        first = turns[0][0]
        check(f"{label}: cache hits of 90 % from the second turn", first == 0 and cached >= 0.9 * tokens, turns)
        data, (sampler, seq_id, *request) = results[len(results) // 2]
        connection = Connection(server)
        alone = connection.result(ask(connection, sampler, seq_id + 500, *request))
        check(f"{label}: a seeded request has the same bytes alone", sequences(alone) == sequences(data))
    # The counts are those after the engine's latest step.
    until = time.time() + 10
    while True:
        end = metrics(server)
        is_free = end["lockstep_serve_free_kv_blocks"] == end["lockstep_serve_kv_blocks"]
        if is_free or time.time() > until:
            break
        time.sleep(0.1)
    check("all pages are free", is_free, end)
    check("nothing is open", end["lockstep_serve_open_completions"] == 0, end)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model")
    for name, value in (("clients", 64), ("samples", 8), ("turns", 4), ("tokens", 32)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    server = Server(args.program, directory(args.model), tempfile.mkdtemp())
    STARTED.append(server)
    print("".join(server.lines[:3]), end="")
    part(run, server, args, limit=3600)
    finish(BEGAN)


if __name__ == "__main__":
    main()
