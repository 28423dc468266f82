#!/usr/bin/env bash
# Builds the package into an environment of its own and runs its tests: what `.ci/run` runs of it. Needs CPython 3.10 or
# newer and PyPI; no torch. Shares the workspace's target directory.
set -euo pipefail
cd "$(dirname "$0")"

target="${CARGO_TARGET_DIR:-$(cd .. && pwd)/target}"
python="${PYTHON:-python3}"
environment="$target/python-ci"
[ -x "$environment/bin/python" ] || "$python" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check "maturin>=1.9,<2" "pytest>=8"
export CARGO_TARGET_DIR="$target" VIRTUAL_ENV="$environment"
cargo fmt --check
"$environment/bin/maturin" develop --quiet
"$environment/bin/pytest" "$@"
