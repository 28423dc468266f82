"""Runs TRL's own black-box tests on lockstep_rl, with the import changed, and reports the outcome of each.

    python conformance/trl_suite/run.py --trl CHECKOUT --tokenizer DIRECTORY [-k EXPRESSION] [FILE …]

CHECKOUT is a clone of TRL (with or without a work tree), or a directory with its `tests/`, `scripts/` and
`trl/chat_templates/`; none of it is part of this repository. DIRECTORY has Qwen2.5's tokenizer. The Python environment
needs torch, transformers, peft, datasets, pytest, jmespath, TRL of the pinned version (whose helpers the tests import)
and lockstep_rl.

In a copy of the tests, `from trl import …` becomes `from lockstep_rl import …`; nothing else is changed. Models and
datasets are made here (prepare.py). `table.toml` says what each test is expected to do. The script fails if a test that
should pass does not, or if a test passes that is listed as refused or for later. `--write` makes
docs/python/trl-suite.md from a whole run.

`--package trl` runs the unchanged files on TRL itself; the page marks tests that fail there on this machine.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import report

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FILES = ("grpo", "rloo", "sft", "dpo", "reward")
# Parts of the checkout that are copied.
PARTS = ("tests", "scripts", "pyproject.toml", "trl/chat_templates")


def take(source, ref, target):
    """Copies the parts of TRL's checkout that are needed, and returns the name of its commit."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    git = ["git", "-C", str(source)] if (source / ".git").exists() else ["git", f"--git-dir={source}"]
    if not ((source / ".git").exists() or (source / "HEAD").exists()):
        for part in PARTS:
            copy = shutil.copytree if (source / part).is_dir() else shutil.copy
            (target / part).parent.mkdir(parents=True, exist_ok=True)
            copy(source / part, target / part)
        return source.name
    archive = subprocess.run([*git, "archive", ref, *PARTS], check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "x", "-C", str(target)], input=archive, check=True)
    described = subprocess.run([*git, "rev-parse", ref], check=True, capture_output=True, text=True)
    return described.stdout.strip()[:10]


def rewrite(checkout, package, target):
    """Makes a copy of TRL's tests that imports the trainers from `package`."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(checkout / "tests", target / "tests", ignore=shutil.ignore_patterns("experimental", "distributed"))
    for file in FILES:
        path = target / "tests" / f"test_{file}_trainer.py"
        text = path.read_text()
        changed, count = re.subn(r"^(\s*)from trl import ", rf"\1from {package} import ", text, flags=re.M)
        if count == 0:
            sys.exit(f"{path}: no line `from trl import …`")
        path.write_text(changed)
    (target / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: long\n    low_priority: seldom\n")


def run_file(file, options, place, suite, record):
    """Runs the tests of one file. If the process dies in a test, a new one continues after that test."""
    name = f"tests/test_{file}_trainer.py"
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": str(place / "hub"),
        "HF_DATASETS_CACHE": str(place / "cache"),
        "TRL_SUITE_PLACE": str(place),
        "TRL_SUITE_RECORD": str(record),
        "TRL_SUITE_LIMIT_S": str(options.limit),
        "PYTHONPATH": str(HERE),
        "TOKENIZERS_PARALLELISM": "false",
    }
    left_out: list[str] = []
    names = [name]
    if options.failed:
        failed = [test for test in options.failed if test.startswith(f"test_{file}_")]
        names = [f"tests/{test}" for test in failed]
        if not names:
            return
    while True:
        deselect = [word for test in left_out for word in ("--deselect", f"tests/{test}")]
        selected = ["-k", options.k] if options.k else []
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "plugin", "-q", "-x" if options.x else "--tb=short", "--no-header",
             "-p", "no:cacheprovider", "-W", "ignore", *names, *selected, *deselect],
            cwd=suite, env=environment, stdout=None if options.verbose else subprocess.DEVNULL,
        )
        outcomes = report.outcomes_of(record)
        seen = [test for test in outcomes if test.startswith(f"test_{file}_")]
        if done.returncode in (0, 1) and seen or done.returncode == 5:
            return
        died = [test for test in seen if outcomes[test]["outcome"] == "died"]
        if not died or set(seen) <= set(left_out):
            sys.exit(f"pytest ended with {done.returncode} in {name}: run again with --verbose")
        left_out = seen


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", choices=[[], *FILES], help=f"of {', '.join(FILES)}; all without any")
    parser.add_argument("--trl", type=pathlib.Path, default=os.environ.get("TRL_CHECKOUT"), help="a checkout of TRL")
    parser.add_argument("--ref", default="HEAD", help="the commit of a clone")
    parser.add_argument("--tokenizer", type=pathlib.Path, default=ROOT.parent / "shared/models/qwen2.5-tokenizer")
    parser.add_argument("--package", default="lockstep_rl", help="what trains: lockstep_rl, or trl itself")
    parser.add_argument("--place", type=pathlib.Path, default=ROOT / "target" / "trl-suite", help="for what is made")
    parser.add_argument("--limit", type=int, default=300, help="seconds that a test may take")
    parser.add_argument("-k", help="pytest's expression: some of the tests")
    parser.add_argument("--failed", type=pathlib.Path, metavar="RECORD", help="the tests that failed in this record")
    parser.add_argument("-x", action="store_true", help="end at the first failure")
    parser.add_argument("-v", "--verbose", action="store_true", help="show pytest's output")
    parser.add_argument("--write", action="store_true", help="make docs/python/trl-suite.md of this run")
    options = parser.parse_args()
    if options.trl is None:
        parser.error("--trl (or TRL_CHECKOUT) is missing: a checkout of TRL")
    some = bool(options.k or options.files or options.failed)
    if options.failed:
        outcomes = report.outcomes_of(options.failed)
        options.failed = [test for test, entry in outcomes.items() if entry["outcome"] not in ("passed", "skipped")]
    if options.write and some:
        parser.error("--write needs a whole run")
    place = options.place.resolve()
    checkout = place / "trl"
    state = take(options.trl.resolve(), options.ref, checkout)
    subprocess.run([sys.executable, HERE / "prepare.py", checkout, options.tokenizer.resolve(), place], check=True)
    suite, record = place / f"suite-{options.package}", place / f"record-{options.package}.jsonl"
    rewrite(checkout, options.package, suite)
    record.unlink(missing_ok=True)
    for file in options.files or FILES:
        run_file(file, options, place, suite, record)
    outcomes = report.outcomes_of(record)
    if options.package == "trl":
        return report.of_trl(outcomes, HERE / "on_trl.json", whole=not some)
    table = report.Table(HERE / "table.toml", HERE / "on_trl.json")
    wrong = report.print_summary(outcomes, table)
    if options.write:
        (ROOT / "docs" / "python" / "trl-suite.md").write_text(report.page(outcomes, table, state))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
