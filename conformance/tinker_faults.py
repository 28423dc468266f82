"""Tests that `lockstep serve` gives the same adapter if the network loses, repeats and reorders.

    python conformance/tinker_faults.py PROGRAM TINY [DROP]

TINY is the directory that make_tiny.py wrote. rl_loop of Tinker's cookbook runs directly, and through a proxy that

    forwards a request, and closes the connection instead of answering, with probability DROP (default 0.2)
    forwards a request again, up to half a second later, with probability DROP
    waits up to 0.2 s before it forwards a request, so that requests overtake each other

Both runs must end with the same adapter, bit for bit.
"""

import asyncio
import pathlib
import random
import sys
import tempfile
import threading
import time

import aiohttp
from aiohttp import web

from tinker_common import Server, check, finish, program
from tinker_recipes import one, rl_loop

DROP = float(sys.argv[3]) if len(sys.argv) > 3 else 0.2
HOP = {"connection", "content-length", "transfer-encoding", "keep-alive", "date", "server"}


class Proxy:
    """A faulty proxy before `target`, in a thread of its own."""

    def __init__(self, target, seed=1):
        self.target, self.random = target, random.Random(seed)
        self.requests = self.dropped = self.repeated = 0
        self.tasks = set()
        started = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self.serve(started)), daemon=True).start()
        started.wait(30)

    async def serve(self, started):
        self.client = aiohttp.ClientSession(auto_decompress=False, timeout=aiohttp.ClientTimeout(total=120),
                                            connector=aiohttp.TCPConnector(limit=0))
        application = web.Application(client_max_size=256 << 20)
        application.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = "http://127.0.0.1:%d" % runner.addresses[0][1]
        started.set()
        await asyncio.Event().wait()

    async def forward(self, request, body):
        headers = {key: value for key, value in request.headers.items() if key.lower() not in HOP | {"host"}}
        url = self.target + request.raw_path
        async with self.client.request(request.method, url, headers=headers, data=body) as answer:
            return answer.status, dict(answer.headers), await answer.read()

    async def again(self, request, body, delay):
        await asyncio.sleep(delay)
        try:
            await self.forward(request, body)
        except aiohttp.ClientError:
            pass

    async def handle(self, request):
        body = await request.read()
        self.requests += 1
        await asyncio.sleep(self.random.uniform(0, 0.2))
        if self.random.random() < DROP:
            self.repeated += 1
            self.tasks.add(asyncio.create_task(self.again(request, body, self.random.uniform(0, 0.5))))
        status, headers, answer = await self.forward(request, body)
        if self.random.random() < DROP:
            self.dropped += 1
            request.transport.abort()
        headers = {key: value for key, value in headers.items() if key.lower() not in HOP}
        return web.Response(status=status, body=answer, headers=headers)


def main():
    began = time.time()
    binary, tiny, home = program(), pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(tempfile.mkdtemp())
    _, expected = one(rl_loop, binary, tiny, home, "directly")
    with Server(binary, tiny / "model", home / "state", log=home / "server.txt") as server:
        proxy = Proxy(server.url)
        recipe = rl_loop(proxy.url, tiny, home / "proxied")
        if check("through the proxy: the recipe ends", recipe.wait(1800)):
            check("through the proxy: the same adapter", recipe.final(server.state) == expected)
    check("the proxy did its work", proxy.dropped > 5 and proxy.repeated > 5)
    print(f"{proxy.requests} requests, {proxy.dropped} answers lost, {proxy.repeated} requests repeated")
    finish(began)


main()
