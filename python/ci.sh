#!/usr/bin/env bash
# Builds the package into an environment of its own, runs its tests and executes the notebooks of docs/python: what
# `.ci/run` runs of it. Needs CPython 3.10 or newer and PyPI; `datasets` and `transformers` for the scripts that use them,
# `tensorboard` to read event files back, `math-verify` for TRL's accuracy rewards, `openai` and `tinker` for
# conformance/openai_flow.py and tinker_flow.py, and no torch. Shares the workspace's target directory. With `build`, only
# builds; with other arguments, which are pytest's, runs only those tests.
set -euo pipefail
cd "$(dirname "$0")"

target="${CARGO_TARGET_DIR:-$(cd .. && pwd)/target}"
python="${PYTHON:-python3}"
environment="$target/python-ci"
[ -x "$environment/bin/python" ] || "$python" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check "maturin>=1.9,<2" "pytest>=8" "pytest-xdist>=3" "numpy>=2" pyyaml nbclient ipykernel \
  datasets transformers tensorboard math-verify "openai>=3,<4" "tinker==0.38.0"
export CARGO_TARGET_DIR="$target" VIRTUAL_ENV="$environment"
"$environment/bin/maturin" develop --quiet --locked
[ "${1:-}" = build ] && exit
# Most tests use one core: as many at once as there are cores.
"$environment/bin/pytest" -n "$(nproc)" --dist worksteal "$@"
[ $# -gt 0 ] || "$environment/bin/python" tools/notebooks.py
