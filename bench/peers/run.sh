#!/usr/bin/env bash
# Compares Lockstep with its peers on the same work: see --help.
set -euo pipefail
usage() {
  cat <<'HELP'
bench/peers/run.sh [options] [trl|llama|torch]…        (default: all)

Builds Lockstep, installs each pinned peer into its own virtual environment, runs Lockstep and each peer
on the same work in interleaved pairs, and prints one table for each peer and size. Nothing is written
outside the work directory. Run it on an idle machine; the tables have the load.

  trl      a GRPO step of TRL (torch, CPU) in its fastest configuration: dtype × micro-batch ×
           checkpointing × allocator are searched
  llama    rollout of llama.cpp (built from source for this CPU): the same weights as GGUF, a shared
           prompt, 1, 8 and 64 completions, and the fastest settings of llama.cpp; first the script
           checks that both compute the same model
  torch    the matmuls of a linear layer, forward and both gradients, at shapes of a 0.5 B model

  --sizes LIST        7m, 92m, 0.5b                        (default: 7m,92m)
  --dtype f32|bf16    dtype of Lockstep, of torch's matmuls and of llama.cpp's weights  (default: f32)
  --pairs N           pairs for each figure                (default: 5 for TRL, 7 for the others)
  --threads N         threads of each program              (default: all cores)
  --completions LIST  llama: numbers of completions        (default: 1,8,64)
  --prompt-length N   llama: tokens of the shared prompt   (default: 512)
  --new-tokens N      llama: tokens of each completion     (default: 128)
  --step N×M          trl: completions × tokens of a step  (default: 64x128, 32x128, 16x64 by size)
  --micro-batches L   trl: micro-batch sizes to try    (default: all, a half and a quarter of the step)
  --json              reports as JSON instead of tables
  --install-only      install and build, run nothing

A test that takes minutes:  bench/peers/run.sh --sizes 7m --pairs 1 --completions 1,2 --prompt-length 64 --new-tokens 20 --step 8x16

Environment: LOCKSTEP_PEERS   the work directory (default: target/peers)
             LOCKSTEP_BIN     a Lockstep already built
             TRL_PYTHON, LLAMA_PYTHON   a Python in which the peer is already installed
             LOCKSTEP_SHARED  the directory with models/stories260k (default: ../shared); without it, this check is skipped
HELP
}

sizes=7m,92m dtype=f32 pairs= threads=$(nproc) completions=1,8,64 prompt=512 tokens=128 step= micro= json= install=
peers=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit ;;
    --json) json=--json ;;
    --install-only) install=yes ;;
    --sizes | --dtype | --pairs | --threads | --completions | --prompt-length | --new-tokens | --step | --micro-batches)
      [ $# -ge 2 ] || { echo "$1 needs a value; see --help" >&2; exit 2; }
      case $1 in
        --sizes) sizes=$2 ;; --dtype) dtype=$2 ;; --pairs) pairs=$2 ;; --threads) threads=$2 ;;
        --completions) completions=$2 ;; --prompt-length) prompt=$2 ;; --new-tokens) tokens=$2 ;;
        --step) step=${2/×/x} ;; --micro-batches) micro=$2 ;;
      esac
      shift ;;
    trl | llama | torch) peers+=("$1") ;;
    *) echo "unknown argument $1; see --help" >&2; exit 2 ;;
  esac
  shift
done
[ ${#peers[@]} -gt 0 ] || peers=(torch trl llama)
for size in ${sizes//,/ }; do
  case $size in 7m | 92m | 0.5b) ;; *) echo "unknown size $size: 7m, 92m or 0.5b" >&2; exit 2 ;; esac
done

cd "$(dirname "$0")/../.."
work=$(realpath -m "${LOCKSTEP_PEERS:-target/peers}")
mkdir -p "$work"
say() { echo "· $*" >&2; }

# install NAME PYTHON: installs the peer NAME, unless PYTHON is given, and prints the path of its Python.
install() {
  local venv=$work/venv-$1 wanted=bench/peers/requirements-$1.txt
  if [ -n "$2" ]; then echo "$2"; return; fi
  if ! cmp -s "$wanted" "$venv/installed.txt"; then
    say "installing $(paste -sd' ' "$wanted") into $venv"
    python3 -m venv "$venv"
    # llama.cpp is compiled here, for this CPU; cmake and ninja come as packages.
    export CMAKE_BUILD_PARALLEL_LEVEL=$(nproc)
    export CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DCMAKE_PROJECT_llama.cpp_INCLUDE=$PWD/bench/peers/llama-only.cmake"
    nice -n 10 "$venv/bin/pip" install --quiet --no-binary llama-cpp-python --requirement "$wanted" >&2
    cp "$wanted" "$venv/installed.txt"
  fi
  echo "$venv/bin/python"
}

for peer in "${peers[@]}"; do
  case $peer in
    trl | torch) trl_python=$(install trl "${TRL_PYTHON:-}") ;;  # torch comes with TRL
    llama) llama_python=$(install llama "${LLAMA_PYTHON:-}") ;;
  esac
done
lockstep=${LOCKSTEP_BIN:-}
if [ -z "$lockstep" ]; then
  say "building Lockstep"
  cargo build --release --quiet
  lockstep=${CARGO_TARGET_DIR:-target}/release/lockstep
fi
[ -z "$install" ] || exit 0
# The program reads every LOCKSTEP_* variable as a configuration key.
unset LOCKSTEP_BIN LOCKSTEP_PEERS

stories=${LOCKSTEP_SHARED:-../shared}/models/stories260k
[ -d "$stories" ] || { say "$stories is missing: greedy tokens of a pretrained model are not compared"; stories=; }

for peer in "${peers[@]}"; do
  [ "$peer" = torch ] || continue
  "$trl_python" bench/peers/compare_torch.py --lockstep "$lockstep" --dtype "$dtype" --pairs "${pairs:-7}" --threads "$threads" $json
  echo
done
[ "${peers[*]}" != torch ] || exit 0
for size in ${sizes//,/ }; do
  model=$work/model-$size
  if [ ! -f "$model/model.safetensors" ]; then
    "$lockstep" bench shape --shape "$size" > "$work/$size.json"
    "$lockstep" init --config "$work/$size.json" --seed 1 --out "$model"
  fi
  for peer in "${peers[@]}"; do
    case $peer in
      trl)
        case $size in 7m) own=64x128 ;; 92m) own=32x128 ;; 0.5b) own=16x64 ;; esac
        this=${step:-$own}
        n=${this%x*}
        [ -n "$micro" ] && cuts=$micro || cuts=$n,$((n / 2)),$((n / 4))
        "$trl_python" bench/peers/compare_trl.py --lockstep "$lockstep" --python "$trl_python" --shape "$size" --model "$model" \
          --completions "$n" --new-tokens "${this#*x}" --micro-batches "$cuts" --dtype "$dtype" --pairs "${pairs:-5}" --threads "$threads" $json ;;
      llama)
        "$llama_python" bench/peers/compare_llama.py --lockstep "$lockstep" --model "$model" --work "$work" ${stories:+--stories "$stories"} \
          --dtype "$dtype" --completions "$completions" --prompt-length "$prompt" --new-tokens "$tokens" --pairs "${pairs:-7}" --threads "$threads" $json ;;
    esac
    echo
  done
done
