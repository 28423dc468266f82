"""Tests that clients of `lockstep serve` that misbehave disturb no others.

    python conformance/tinker_clients.py PROGRAM MODEL [--idle 10000]

The script opens idle connections (beyond the limit of open files with which the server starts), reads a stream slowly,
sends bodies of 100 MB and beginnings of requests, and leaves a stream. Each time it checks that a seeded request of
another client has the same result, and at the end that all pages of the KV cache are free. MODEL needs a context of
1,024 tokens, such as the model of make_tiny.py. Only the standard library is used.
"""

import argparse
import http.client
import json
import resource
import socket
import tempfile
import time

from tinker_common import NAME, STARTED, Server, check, directory, finish, part
from tinker_load import Connection, ask, metrics, peak_mib, samplers, sequences

BEGAN = time.time()
FILES = 256
PROMPT = list(range(40, 100))


def few_files():
    """The usual limit of open files is low; a process may raise it."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


class Witness:
    """Another client, whose seeded request has the same result at any time."""

    def __init__(self, server):
        self.server, self.number = server, 0
        self.sampler = samplers(server, [4])[0]
        self.expected = self.draw()

    def draw(self):
        self.number += 1
        connection = Connection(self.server)
        return sequences(connection.result(ask(connection, self.sampler, self.number, PROMPT, 2, 24, 5)))

    def check(self, name):
        began = time.time()
        same = self.draw() == self.expected
        check(f"{name}: another client has the same result, after {time.time() - began:.2f} s", same)


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=30)


def head(server, path, length, kind="application/json"):
    return (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {length}\r\n\r\n").encode()


def stream_of(server, tokens=900):
    body = json.dumps({"model": NAME, "prompt": PROMPT, "max_tokens": tokens, "n": 8, "stream": True, "logprobs": 1,
                       "ignore_eos": True}).encode()
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stream.settimeout(60)
    stream.connect(("127.0.0.1", server.port))
    stream.sendall(head(server, "/v1/completions", len(body)) + body)
    return stream


def free(server):
    """Waits until all pages are free."""
    until = time.time() + 60
    while time.time() < until:
        counts = metrics(server)
        if counts["lockstep_serve_free_kv_blocks"] == counts["lockstep_serve_kv_blocks"]:
            return True
        time.sleep(0.1)
    return False


def idle(server, witness, count):
    """Idle connections, half of which have sent the beginning of a request."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY:
        count = min(count, hard - 500)
    check(f"{count} idle connections are possible", count > 0, f"the limit of open files is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 200, hard))
    streams = []
    for number in range(count):
        streams.append(connect(server))
        if number % 2:
            streams[-1].sendall(head(server, "/api/v1/asample", 1000) + b"{")
    print(f"{count} idle connections, peak {peak_mib(server):.0f} MiB")
    witness.check(f"{count} idle connections")
    for stream in streams:
        stream.close()


def slow(server, witness):
    """A client that reads its stream slowly holds no pages."""
    stream = stream_of(server)
    start = stream.recv(100)
    check("a slow reader: the stream begins", start.startswith(b"HTTP/1.1 200"), start)
    witness.check("a slow reader")
    check("a slow reader: its pages are free before it has read", free(server))
    text = start
    while not text.endswith(b"\r\n0\r\n\r\n"):
        text += stream.recv(1 << 16)
    check("a slow reader: it gets the whole stream", text.count(b"data: {") == 8 * 900 and b"data: [DONE]" in text)


def leaves(server, witness):
    """A client that disappears in its stream."""
    before = metrics(server)["lockstep_serve_cancelled_prompts_total"]
    stream = stream_of(server)
    stream.recv(1000)
    stream.close()
    check("a client that disappears: its pages are free", free(server))
    cancelled = metrics(server)["lockstep_serve_cancelled_prompts_total"] - before
    check("a client that disappears: its request is cancelled", cancelled == 1, cancelled)
    witness.check("a client that disappears")


def large(server, witness):
    """Bodies of 100 MB."""
    for path, kind in (("/v1/completions", "application/json"), ("/api/v1/forward_backward", "application/x-protobuf")):
        stream, size = connect(server), 100 << 20
        stream.sendall(head(server, path, size, kind))
        for _ in range(size >> 20):
            stream.sendall(bytes(1 << 20))
        answer = http.client.HTTPResponse(stream)
        answer.begin()
        text = answer.read().decode()
        check(f"100 MB to {path}: refused", answer.status == 413 and "MiB" in text, (answer.status, text))
    witness.check("100 MB")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--idle", type=int, default=10_000)
    args = parser.parse_args()
    server = Server(args.program, directory(args.model), tempfile.mkdtemp(), prepare=few_files)
    STARTED.append(server)
    witness = part(Witness, server)
    if witness:
        part(idle, server, witness, args.idle)
        for checks in (slow, leaves, large):
            part(checks, server, witness)
    check("the server runs", server.process.poll() is None)
    finish(BEGAN)


main()
