"""A pytest plugin for TRL's tests: it runs them without a network, and records the outcome of each."""

import importlib
import importlib.util
import json
import os
import pathlib
import signal

import datasets
import pytest
import trl

PLACE = pathlib.Path(os.environ["TRL_SUITE_PLACE"])
RECORD = pathlib.Path(os.environ["TRL_SUITE_RECORD"])
LIMIT_S = int(os.environ["TRL_SUITE_LIMIT_S"])

_load_dataset = datasets.load_dataset


def load_dataset(path, name=None, *args, **kwargs):
    """Replaces `datasets.load_dataset`, and finds the datasets of TRL's tests on this machine."""
    organization, _, dataset = path.partition("/")
    place = PLACE / "datasets" / dataset / (name or "default")
    if organization != "trl-internal-testing" or not place.is_dir():
        return _load_dataset(path, name, *args, **kwargs)
    files = {file.stem: str(file) for file in sorted(place.glob("*.parquet"))}
    return _load_dataset("parquet", *args, data_files=files, **kwargs)


def _of_other_version(name):
    """Stands in for a helper or private name that TRL's tests import and the installed version of TRL lacks."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name.startswith("is_") and name.endswith("_available"):
        return lambda: importlib.util.find_spec(name.removeprefix("is_").removesuffix("_available")) is not None

    def absent(*args, **kwargs):
        raise NotImplementedError(f"TRL {trl.__version__} has no `{name}`")

    return absent


# These names are replaced before the tests import them.
datasets.load_dataset = load_dataset
for module in ("trl.import_utils", "trl.trainer.sft_trainer"):
    importlib.import_module(module).__getattr__ = _of_other_version


def _write(**entry):
    with RECORD.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def _reason(report):
    """Returns the line of a failure that says what is wrong."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr or "")
    return " ".join(text.split())[:400]


def pytest_collection_finish(session):
    _write(collected=[_name(item.nodeid) for item in session.items])


def _name(nodeid):
    return nodeid.partition("tests/")[2] or nodeid


def pytest_runtest_logstart(nodeid, location):
    _write(test=_name(nodeid), outcome="died", reason="the process ended in this test")


def pytest_runtest_logreport(report):
    name = _name(report.nodeid)
    if report.when == "call" or report.outcome != "passed":
        reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else _reason(report)
        _write(test=name, outcome=report.outcome, reason=reason, seconds=round(report.duration, 1))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    def late(*_):
        raise TimeoutError(f"the test took more than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
