#!/usr/bin/env bash
# Installs the pinned peers into a virtual environment and runs them beside Lockstep on the same work, in one go:
#   bench/peers/run.sh [7m|92m|0.5b]…      (default: 7m)
# Prints one line of JSON for each run and, at the end, the ratio of each peer's fastest configuration to ours.
# Run it on an idle machine: the figures of a busy one say nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=${LOCKSTEP_PEERS:-target/peers}
mkdir -p "$work"
if [ ! -x "$work/venv/bin/python" ]; then
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet --requirement bench/peers/requirements.txt
fi
python=$work/venv/bin/python
cargo build --release --quiet
lockstep=${CARGO_TARGET_DIR:-target}/release/lockstep
# The peer is bound by page faults unless the allocator keeps its memory.
tuned=glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=34359738368:glibc.malloc.trim_threshold=34359738368:glibc.malloc.top_pad=268435456

for shape in "${@:-7m}"; do
  case $shape in
    7m) completions=64 tokens=128 cuts="64 16" ;;
    92m) completions=32 tokens=128 cuts="32 8" ;;
    0.5b) completions=16 tokens=64 cuts="16 4" ;;
    *) echo "unknown shape $shape: 7m, 92m or 0.5b" >&2; exit 2 ;;
  esac
  model=$work/model-$shape
  if [ ! -f "$model/model.safetensors" ]; then
    "$lockstep" bench shape --shape "$shape" > "$work/$shape.json"
    "$lockstep" init --config "$work/$shape.json" --seed 1 --out "$model"
  fi
  results=$work/$shape.jsonl
  : > "$results"
  "$lockstep" bench step --shape "$shape" --json > "$work/$shape-ours.json"
  for dtype in f32 bf16; do
    for cut in $cuts; do
      for checkpointing in "" --checkpointing; do
        GLIBC_TUNABLES=$tuned "$python" bench/peers/trl_step.py --model "$model" --completions "$completions" \
          --tokens "$tokens" --dtype "$dtype" --micro-batch "$cut" $checkpointing 2>/dev/null | tail -1 | tee -a "$results"
      done
    done
  done
  "$lockstep" bench step --shape "$shape" --json > "$work/$shape-ours-again.json"
  "$python" bench/peers/ratio.py "$work/$shape-ours.json" "$work/$shape-ours-again.json" "$results"
done
