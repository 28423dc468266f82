"""Reports the outcomes of TRL's tests, compared with what `table.toml` expects, and makes the page about them."""

import collections
import json
import pathlib
import re
import tomllib

# Kinds of exclusion in `table.toml`, in the order of the page.
KINDS = {
    "another engine": "needs vLLM, Liger, DeepSpeed or another package that trains or generates in the engine's place",
    "torch's internals": "looks at or patches what exists only where torch trains: autograd, data loaders, optimizers",
    "later": "a feature that lockstep_rl refuses and may have later: tools, environments, images, mixtures of experts",
    "TRL's own": "TRL's wording, private names, helpers or logger, which are no part of what a script uses",
    "refused": "refused with an error that says why and what to do instead",
    "differs": "works otherwise, as the table of differences in [from-trl.md](from-trl.md) says",
}
# Kinds whose tests must not pass.
LATEST = ("later", "refused")
BY_ITS_MARK = "skipped by its own mark"
ON_TRL = "fails under TRL itself"
# The test ended before it called lockstep_rl, whatever the table says of it: so it shows nothing about the package.
NOT_REACHED = "not reached"
_BEFORE = {
    r"DatasetNotFoundError|Couldn't find cache for|Couldn't reach|offline mode": "its dataset is not on the machine",
    r"NotImplementedError: TRL \S+ has no": "it uses a name that TRL 1.16.0 lacks",
    r"is not a local folder and is not a valid model|We couldn't connect to": "its model is not on the machine",
}


def outcomes_of(record):
    """Returns the last outcome of every test, in the order of the run. A test that never began is `missing`."""
    outcomes = {}
    for line in pathlib.Path(record).read_text().splitlines() if pathlib.Path(record).exists() else []:
        entry = json.loads(line)
        for test in entry.get("collected", []):
            outcomes.setdefault(test, {"outcome": "missing", "reason": "it never began"})
        if "test" in entry:
            before = outcomes.get(entry["test"], {}).get("outcome")
            # A failure in a test's setup or teardown is not replaced by a pass.
            if before != "failed" or entry["outcome"] != "passed":
                outcomes[entry["test"]] = entry
    return outcomes


class Table:
    """`table.toml`: the tests that are excluded, and why. Also the tests that fail under TRL itself on this machine."""

    def __init__(self, path, on_trl):
        self.on_trl = json.loads(on_trl.read_text()) if on_trl.exists() else {}
        self.entries = []
        for entry in tomllib.loads(path.read_text()).get("excluded", []):
            if entry["kind"] not in KINDS:
                raise SystemExit(f"{path}: kind = {entry['kind']!r}: expected one of {', '.join(KINDS)}")
            patterns = [re.compile(re.escape(test).replace(r"\*", ".*")) for test in entry["tests"]]
            self.entries.append((patterns, entry["kind"], entry["reason"]))

    def of(self, test):
        """Returns kind and reason of an excluded test, or None if the test should pass."""
        for patterns, kind, reason in self.entries:
            if any(pattern.fullmatch(test) for pattern in patterns):
                return kind, reason
        return None

    def unused(self, outcomes):
        """Returns the patterns that match no test of a whole run."""
        patterns = [pattern for entry in self.entries for pattern in entry[0]]
        return [pattern.pattern for pattern in patterns if not any(pattern.fullmatch(test) for test in outcomes)]


def verdicts_of(outcomes, table):
    """Returns test → (verdict, kind, reason). The verdict is passed, excluded, failed, or `passes` for a test that
    passes although the table excludes it as refused or for later. Tests excluded for another reason (they never use
    lockstep_rl, say) may pass and stay excluded."""
    result = {}
    for test, entry in outcomes.items():
        excluded = table.of(test)
        before = [why for pattern, why in _BEFORE.items() if re.search(pattern, entry["reason"])]
        if entry["outcome"] != "passed" and before:
            result[test] = ("excluded", NOT_REACHED, before[0])
            continue
        if excluded is None and entry["outcome"] != "passed" and test in table.on_trl:
            excluded = ON_TRL, _sentence(table.on_trl[test])
        if entry["outcome"] == "passed":
            verdict = "passed" if not excluded else "passes" if excluded[0] in LATEST else "excluded"
            result[test] = (verdict, *(excluded or ("", "")))
        elif excluded:
            result[test] = ("excluded", *excluded)
        elif entry["outcome"] == "skipped":
            result[test] = ("excluded", BY_ITS_MARK, entry["reason"].removeprefix("Skipped: "))
        else:
            result[test] = ("failed", "", entry["reason"])
    return result


def _sentence(reason):
    """Returns a short reason for a failure, without this machine's paths."""
    return re.sub(r"/[^ '\"]*/", "…/", reason)[:120].rstrip(". ")


def _file(test):
    return test.partition("::")[0]


def counts(verdicts):
    """Returns file → a counter of verdicts."""
    files = collections.defaultdict(collections.Counter)
    for test, (verdict, _, _) in verdicts.items():
        files[_file(test)][verdict] += 1
    return files


def print_summary(outcomes, table):
    """Prints counts, and the tests that differ from the table. Returns the number of such tests."""
    verdicts = verdicts_of(outcomes, table)
    for file, count in counts(verdicts).items():
        print(f"{file}: {sum(count.values())} tests, " + ", ".join(f"{n} {word}" for word, n in sorted(count.items())))
    for test, (verdict, kind, reason) in verdicts.items():
        if verdict == "failed":
            print(f"FAILED {test}: {reason}")
        elif verdict == "passes":
            print(f"PASSES, and is excluded ({kind}): {test}")
    return sum(verdict in ("failed", "passes") for verdict, _, _ in verdicts.values())


def of_trl(outcomes, path, whole):
    """Prints and records the tests that fail under TRL itself. After a run of some tests, what is recorded about the
    others stays."""
    bad = ("failed", "died", "missing")
    failed = {test: entry["reason"][:200] for test, entry in outcomes.items() if entry["outcome"] in bad}
    for test, reason in failed.items():
        print(f"FAILED {test}: {reason}")
    passed = sum(entry["outcome"] == "passed" for entry in outcomes.values())
    print(f"TRL itself: {len(outcomes)} tests, {passed} passed, {len(failed)} failed")
    before = json.loads(path.read_text()) if path.exists() and not whole else {}
    kept = {test: reason for test, reason in before.items() if test not in outcomes}
    path.write_text(json.dumps({**kept, **failed}, indent=1, sort_keys=True) + "\n")
    return 0


def page(outcomes, table, state):
    """Returns the text of docs/python/trl-suite.md."""
    verdicts = verdicts_of(outcomes, table)
    lines = [
        "# TRL's own tests, on lockstep_rl",
        "",
        "Made by `python conformance/trl_suite/run.py --trl CHECKOUT --write`: TRL's black-box tests of its trainers "
        f"(commit {state}) with `from trl import …` changed to `from lockstep_rl import …`, tiny models and TRL's "
        "datasets made on the machine, and nothing else changed. *Passed* is by that change alone. *Excluded* has "
        "a kind and a reason, below, test by test.",
        "",
        "*Failed* is 0 by construction: a test that fails is either repaired, or gets a line with a kind and a reason "
        "in `table.toml`; the script fails on any other. So read the kinds. Excluded tests are run, too. The tests are "
        f"those of commit {state} (version 1.10.0.dev0): the package of TRL 1.16.0 that is published has none, and a "
        "newer clone was out of reach.",
        "",
    ]
    kinds = [*KINDS, NOT_REACHED, BY_ITS_MARK, ON_TRL]
    lines += [f"| file | tests | passed | failed | {' | '.join(kinds)} |"]
    lines += ["|---" * (len(kinds) + 4) + "|"]
    total = collections.Counter()
    for file, count in counts(verdicts).items():
        of_kind = collections.Counter(kind for test, (verdict, kind, _) in verdicts.items()
                                      if _file(test) == file and verdict == "excluded")
        cells = [sum(count.values()), count["passed"] + count["passes"], count["failed"]]
        cells += [of_kind[kind] for kind in kinds]
        total.update(dict(enumerate(cells)))
        lines.append(f"| `{file}` | " + " | ".join(map(str, cells)) + " |")
    lines.append("| all | " + " | ".join(str(total[i]) for i in range(len(kinds) + 3)) + " |")
    lines += ["", "The kinds:", ""]
    lines += [f"- **{kind}**: {words}." for kind, words in KINDS.items()]
    lines += [f"- **{NOT_REACHED}**: the test ends before it calls lockstep_rl, and shows nothing about it: its data "
              "are not on the machine, or TRL 1.16.0 lacks a name that it uses."]
    lines += [f"- **{BY_ITS_MARK}**: TRL's own condition (hardware, or a package that is not installed)."]
    lines += [f"- **{ON_TRL}**: the same test, unchanged, fails on TRL 1.16.0 with the same models on the same "
              "machine; the tests are of another commit than that version."]
    for title, wanted in (("Failed", "failed"), ("Excluded", "excluded"), ("Passed", "passed")):
        chosen = {test: verdict for test, verdict in verdicts.items() if verdict[0] == wanted}
        if not chosen:
            continue
        lines += ["", f"## {title}", ""]
        groups = collections.defaultdict(list)
        for test, (_, kind, reason) in chosen.items():
            groups[(_file(test), kind, reason)].append(test)
        for (file, kind, reason), tests in sorted(groups.items(), key=lambda item: item[0][0]):
            names = ", ".join(f"`{_short(test)}`" for test in tests)
            why = f" **{kind}**: {reason}." if kind else f" {reason}:" if reason else ""
            lines.append(f"- `{file}`:{why.rstrip('.')}{'.' if kind else ''} {names}")
    return "\n".join(lines) + "\n"


def _short(test):
    return test.partition("::")[2].replace("trl-internal-testing/", "")
