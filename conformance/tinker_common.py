"""Shared by the scripts tinker_*.py: starting `lockstep serve`, checks, and the environment of the stock client.

The scripts need a virtual environment. tinker_flow.py needs only the SDK, the others torch, and the recipes the
cookbook, whose own requirements cannot all be installed from PyPI:

    python -m venv VENV
    VENV/bin/pip install tinker==0.38.0
    VENV/bin/pip install torch==2.15.0 transformers==5.23.0 datasets==5.2.0 chz==0.4.0 aiohttp==3.14.5 \\
        math-verify==0.9.0 blobfile termcolor tiktoken cloudpickle pillow pyrage sympy pylatexenc safetensors
    VENV/bin/pip install --no-deps tinker-cookbook==0.6.1
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

NAME = "Qwen/Qwen3-4B-Instruct-2507"
FAILED = []
STARTED = []


def check(name, passes, shown=""):
    print("ok  " if passes else "FAIL", name, "" if passes else str(shown)[:600], flush=True)
    if not passes:
        FAILED.append(name)
    return passes


def part(function, *arguments, limit=240):
    """Runs some checks; an exception, or more than `limit` seconds, is a failed check, and the next part runs."""
    def late(*_):
        raise TimeoutError(f"no end after {limit} s")
    signal.signal(signal.SIGALRM, late)
    signal.alarm(limit)
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is reported)
        traceback.print_exc(limit=-3)
        check(f"{function.__name__} ends", False, repr(error))
        return None
    finally:
        signal.alarm(0)


def finish(began):
    print(f"{time.time() - began:.1f} s, {len(FAILED)} failed")
    sys.stdout.flush()
    for server in STARTED:
        server.kill()
    # The SDK's threads of open sessions would keep the process alive.
    os._exit(1 if FAILED else 0)


def settings(url):
    """The environment of a client of the server at `url`: no telemetry, and nothing from a hub."""
    key = os.environ.get("LOCKSTEP_API_KEY", "tml-local")
    return {
        "TINKER_BASE_URL": url, "TINKER_API_KEY": key, "TINKER_TELEMETRY": "0", "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        "WANDB_MODE": "disabled",
    }


def program():
    """The built `lockstep`: the first argument, else LOCKSTEP_BIN, else target/release or target/debug."""
    root = pathlib.Path(__file__).resolve().parent.parent
    named = [path for path in (*sys.argv[1:2], os.environ.get("LOCKSTEP_BIN")) if path and not path.startswith("-")]
    found = [pathlib.Path(path) for path in named] + [root / f"target/{kind}/lockstep" for kind in ("release", "debug")]
    path = next((path for path in found if path.is_file()), None)
    return str(path.resolve()) if path else sys.exit("no program: give its path")


def directory(model):
    """The directory of a model: the given one, or its part `model`, as make_tiny.py writes it."""
    path = pathlib.Path(model).resolve()
    return path / "model" if (path / "model").is_dir() else path


class Server:
    """`lockstep serve` of one model, with its Tinker state in the directory `state`."""

    def __init__(self, binary, model, state, seed=7, port=0, log=None, prepare=None):
        arguments = [binary, "serve", "--model", f"{NAME}={model}", "--listen", f"127.0.0.1:{port}", "--state", state,
                     "--seed", seed]
        self.state = pathlib.Path(state)
        self.lines = []
        self.process = subprocess.Popen(list(map(str, arguments)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, preexec_fn=prepare)
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r" at (http://\S+)", line)
            if found:
                self.url = found.group(1)
                break
        else:
            sys.exit("the server did not start:\n" + "".join(self.lines))
        self.port = int(self.url.rsplit(":", 1)[1])
        threading.Thread(target=self.read, args=(log,), daemon=True).start()

    def read(self, log):
        with open(log or os.devnull, "a") as file:
            for line in self.process.stdout:
                self.lines.append(line)
                print(line, end="", file=file, flush=True)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def target():
    """URL, model and state directory from the arguments: URL MODEL [STATE], or PROGRAM DIRECTORY to start a server."""
    first, second, *rest = sys.argv[1:]
    if first.startswith("http"):
        return first, second, rest[0] if rest else None
    STARTED.append(Server(first, directory(second), tempfile.mkdtemp()))
    return STARTED[0].url, NAME, STARTED[0].state


def adapter(state, path):
    """The bytes of the PEFT adapter that `path` (tinker://RUN/sampler_weights/NAME) names."""
    run, kind, name = path.removeprefix("tinker://").split("/")
    return (pathlib.Path(state) / run / kind / name / "adapter_model.safetensors").read_bytes()
