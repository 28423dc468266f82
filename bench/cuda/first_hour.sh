#!/usr/bin/env bash
# Every check that a GPU must pass before what Lockstep says of it is believed: see --help.
# Checks are functions that are called by name.
# shellcheck disable=SC2329
set -uo pipefail
usage() {
  cat <<'HELP'
bench/cuda/first_hour.sh pack DIR        on a machine with Rust and Python: builds and collects all that is needed
DIR/first_hour.sh [options]              on a machine with NVIDIA's driver: no toolchain, no network, under 30 minutes

Writes one directory: report.json and report.txt (each check, its outcome, its seconds), and what each check said.
Exit code 0: all that could be checked passed. 1: something failed. 2: bad usage.

  --device NAME     cuda, cuda:1, …; or cuda-emulated, which says so everywhere           (default: cuda)
  --out DIR         must not exist                                                        (default: first-hour-<time>)
  --products N      dot products of 16 terms that are compared with the formula           (default: 10000000)
  --shape SIZE      of the benchmarks: 7m, 92m, 0.5b                                      (default: 0.5b)
  --small           few products, few operations, no benchmarks: to try the script itself

Checks, in this order:
  device      what the program sees
  formula     tensor cores against the formula of their family, with the operands of what differs
  operations  every operation's bits against the CPU's (f32) or the formula (bf16)
  cpu         short runs (GRPO, adapters) on the CPU and on the device: the same bits, 0 mismatching log-probabilities
  twice       the same run again: the same bits
  resume      a run killed with SIGKILL and resumed: the bits of one that was not
  sanitizer   memcheck, racecheck, initcheck, synccheck, where compute-sanitizer is on the PATH
  parity      sampler against trainer, bit by bit, over batches
  bench       decode steps and a GRPO step

LOCKSTEP_BIN and LOCKSTEP_KERNEL_TESTS name the two programs, if they are not beside the script; cubins/ beside it has
compiled kernels, without which NVRTC compiles them (LOCKSTEP_NVRTC).
HELP
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

pack() {
  set -e
  local root to=$1
  root=$(cd "$here/../.." && pwd)
  mkdir -p "$to"
  to=$(cd "$to" && pwd)
  cd "$root"
  cargo build --release -p lockstep-cli
  cargo test --release -p lockstep-kernels --lib --no-run 2>&1 | tee "$to/build.log"
  local tests
  tests=$(sed -n 's/.*Executable unittests.*(\(.*\))$/\1/p' "$to/build.log" | tail -n 1)
  cp "${CARGO_TARGET_DIR:-target}/release/lockstep" "$to/lockstep"
  cp "$tests" "$to/kernel-tests"
  cargo xtask cubins "$to/cubins"
  cp "$here/first_hour.sh" "$to/first_hour.sh"
  rm "$to/build.log"
  du -sh "$to"
}

device=cuda out='' products=10000000 shape=0.5b small=''
[ "${1:-}" = pack ] && { [ $# = 2 ] || { usage >&2; exit 2; }; pack "$2"; exit; }
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit ;;
    --small) small=yes products=2048 ;;
    --device | --out | --products | --shape)
      [ $# -ge 2 ] || { echo "$1 wants a value; see --help" >&2; exit 2; }
      case $1 in
        --device) device=$2 ;; --out) out=$2 ;; --products) products=$2 ;; --shape) shape=$2 ;;
      esac
      shift ;;
    *) echo "unknown argument $1; see --help" >&2; exit 2 ;;
  esac
  shift
done
case $device in
  cuda | cuda:[0-9]*) where="on the GPU" ;;
  cuda-emulated) where="EMULATED on the CPU: says nothing about hardware" ;;
  *) echo "--device $device: cuda, cuda:1, … or cuda-emulated" >&2; exit 2 ;;
esac
lockstep=${LOCKSTEP_BIN:-$here/lockstep} tests=${LOCKSTEP_KERNEL_TESTS:-$here/kernel-tests}
# The program takes variables of its name for keys.
unset LOCKSTEP_BIN LOCKSTEP_KERNEL_TESTS
for program in "$lockstep" "$tests"; do
  [ -x "$program" ] || { echo "$program is not there; see --help: pack" >&2; exit 2; }
done
out=${out:-first-hour-$(date -u +%Y%m%dT%H%M%S)}
mkdir "$out" || exit 2
out=$(cd "$out" && pwd) work=$out/runs
mkdir "$work"
export HF_HUB_OFFLINE=1 NO_COLOR=1
[ -d "$here/cubins" ] && export LOCKSTEP_CUBINS=${LOCKSTEP_CUBINS:-$here/cubins}

rows=() failed=0
# Of a check: its name, outcome, seconds and a note without quotes.
record() {
  rows+=("{\"check\": \"$1\", \"outcome\": \"$2\", \"seconds\": $3, \"note\": \"$4\"}")
  printf '%-12s %-8s %5s s  %s\n' "$1" "$2" "$3" "$4" | tee -a "$out/report.txt"
  [ "$2" != failed ] || failed=1
}
# Runs a check within so many seconds; its last line that begins with "note: " is its note.
check() {
  local name=$1 limit=$2 start=$SECONDS code note outcome=passed
  shift 2
  # Kernels are compiled for the emulator first, and it is slow.
  [ "$device" != cuda-emulated ] || limit=$((4 * limit))
  echo "── $name" >&2
  # In a process group of its own, so that all of it can be ended.
  set -m
  ( "$@" ) >"$out/$name.txt" 2>&1 &
  local job=$!
  ( trap 'kill $!' TERM; sleep "$limit" & wait $! && kill -TERM -- "-$job" ) >/dev/null 2>&1 &
  local clock=$!
  set +m
  wait "$job"
  code=$?
  kill "$clock" 2>/dev/null
  wait "$clock" 2>/dev/null
  note=$(sed -n 's/^note: //p' "$out/$name.txt" | tail -n 1 | tr -d '\042\134')
  [ $((SECONDS - start)) -lt "$limit" ] || note="did not end within $limit s. $note"
  case $code in 0) ;; 77) outcome=skipped ;; *) outcome=failed note="$note exit code $code; see $name.txt" ;; esac
  record "$name" "$outcome" $((SECONDS - start)) "$note"
}

on_device() { LOCKSTEP_DEVICE=$device "$@"; }

device_check() {
  "$lockstep" doctor || return 1
  command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total --format=csv
  uname -a
  # It can be opened, and computes something.
  kernel_tests ops::glu::cuda || return 1
  echo "note: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)"
}

formula() {
  local all=0 seed log each=$((products < 2000000 ? products : 2000000))
  for ((seed = 1; all < products; seed++, all += each)); do
    log=$(LOCKSTEP_PRODUCTS=$each LOCKSTEP_SEED=$seed on_device "$tests" --exact --nocapture \
      device::cuda::tests::self_test::products_asked_for_equal_the_formula 2>&1) || { echo "$log"; return 1; }
    echo "$log"
    [[ $log == *" differ"* ]] || { echo "note: nothing was compared: no products in bf16 here"; return 77; }
  done
  echo "note: $all products of 16 terms in bf16 equal the formula"
}

# A test that is not there must not look like one that passed.
kernel_tests() {
  local log
  log=$(on_device "$tests" --test-threads=1 "$@" 2>&1)
  local code=$?
  echo "$log"
  [ "$code" = 0 ] || return "$code"
  echo "$log" | grep -Eq '^test result: ok\. [1-9][0-9]* passed' || return 1
  echo "note: $(echo "$log" | sed -n 's/^test result: ok\. \([0-9]* passed\).*/\1/p')"
}
operations() {
  if [ "$small" ]; then kernel_tests ops::rmsnorm::cuda ops::glu::cuda; else kernel_tests ::cuda:: tensor_core; fi
}

# A directory with a tiny model of random weights and its data.
tiny() {
  mkdir "$work/shape" && cd "$work" || return 1
  cat >shape/config.json <<'JSON'
{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 40, "hidden_size": 16,
 "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
 "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
 "tie_word_embeddings": true, "attention_bias": false, "bos_token_id": null, "eos_token_id": 0}
JSON
  local vocab='"<e>": 0' id=1 letter
  for letter in {a..z} ' ' . ',' '?'; do vocab+=", \"$letter\": $((id++))"; done
  cat >shape/tokenizer.json <<JSON
{"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
 "added_tokens": [{"id": 0, "content": "<e>", "single_word": false, "lstrip": false, "rstrip": false,
 "normalized": false, "special": true}],
 "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\\\s\\\\S]"}, "behavior": "Isolated", "invert": false},
 "decoder": {"type": "Fuse"}, "model": {"type": "WordLevel", "vocab": {$vocab}, "unk_token": ""}}
JSON
  echo '{"eos_token": "<e>", "tokenizer_class": "PreTrainedTokenizerFast"}' >shape/tokenizer_config.json
  local word
  for word in ab sun moon tree x river 'a long road' sky ice oak; do
    echo "{\"prompt\": \"$word \", \"completion\": \"$word.\"}"
  done >d.jsonl
  "$lockstep" init --config shape/config.json --tokenizer shape --seed 1 --out model
}

# A short GRPO run: the device, its directory, more keys.
grpo() {
  local device=$1 to=$2 key keys=()
  shift 2
  for key in num_generations=4 per_device_train_batch_size=8 max_completion_length=6 learning_rate=0.01 beta=0.04 \
    logging_steps=1 save_steps=2 log_completions=true num_completions_to_print=0 record_rollouts=true threads=2 "$@"; do
    keys+=(--set "$key")
  done
  (cd "$work" && LOCKSTEP_DEVICE=$device "$lockstep" train --model model --dataset d.jsonl --reward unique_chars \
    --out "$to" "${keys[@]}")
}

# That two runs left the same tensors and rollouts, and some; and that no log-probability differed.
same() {
  local a=$work/$1 b=$work/$2 file count=0
  while IFS= read -r file; do
    cmp "$a/$file" "$b/$file" || return 1
    count=$((count + 1))
  done < <(cd "$a" && find . -name '*.safetensors' -o -name rollouts.bin | sort)
  [ "$count" -ge 3 ] || { echo "only $count files to compare in $a"; return 1; }
  local mismatch='"sampling/logp_mismatch_tokens": *'
  grep -q "$mismatch" "$b/metrics.jsonl" || { echo "metrics.jsonl says nothing of log-probabilities"; return 1; }
  if grep -E "$mismatch(0*[1-9]|0\.0*[1-9])" "$b/metrics.jsonl"; then return 1; fi
  echo "$count files of $1 and $2 are the same"
}

steps=$([ "$small" ] && echo 4 || echo 12)
cpu() {
  tiny || return 1
  local adapter=(use_peft=true lora_r=2 lora_dropout=0.0)
  grpo cpu grpo-cpu max_steps="$steps" && grpo "$device" grpo max_steps="$steps" && same grpo-cpu grpo || return 1
  grpo cpu lora-cpu max_steps="$steps" "${adapter[@]}" && grpo "$device" lora max_steps="$steps" "${adapter[@]}" &&
    same lora-cpu lora || return 1
  echo "note: $steps steps of GRPO, whole and as an adapter: the CPU's bits"
}

twice() { grpo "$device" again max_steps="$steps" && same grpo again; }

resume() {
  local run=$work/killed try
  # In a process group of its own, so that the shell around it is not what is killed.
  set -m
  grpo "$device" killed max_steps="$steps" &
  local job=$!
  set +m
  for ((try = 0; try < 3000; try++)); do
    [ -d "$run/checkpoints/step-000002" ] && break
    kill -0 "$job" 2>/dev/null || break
    sleep 0.02
  done
  kill -KILL -- "-$job" 2>/dev/null
  wait "$job"
  # All of the group: what was killed holds its files for a moment.
  for ((try = 0; try < 300; try++)); do kill -0 -- "-$job" 2>/dev/null || break; sleep 0.1; done
  [ -d "$run/checkpoints/step-000002" ] || { echo "no checkpoint was written"; return 1; }
  if [ -d "$run/model" ]; then echo "note: it ended before it was killed"; return 77; fi
  (cd "$work" && on_device "$lockstep" train --resume killed) && same grpo killed || return 1
  echo "note: killed after step 2 or later, then resumed"
}

sanitizer() {
  command -v compute-sanitizer >/dev/null || { echo "note: compute-sanitizer is not on the PATH"; return 77; }
  [ "$device" != cuda-emulated ] || { echo "note: nothing to look at in an emulation"; return 77; }
  local tool
  for tool in memcheck racecheck initcheck synccheck; do
    on_device timeout 100 compute-sanitizer --tool "$tool" --error-exitcode 1 "$tests" --test-threads=1 \
      ops::linear::cuda ops::attention::cuda ops::softmax::cuda ops::rmsnorm::cuda ops::lm_head::cuda tensor_core || return 1
  done
  echo "note: memcheck, racecheck, initcheck, synccheck found nothing"
}

# What the program says that it does not have on this device yet is no failure.
benchmark() {
  local log code
  log=$(on_device "$lockstep" bench "$@" 2>&1)
  code=$?
  echo "$log"
  if [ "$code" != 0 ] && [[ $log == *"is not there yet"* ]]; then
    echo "note: bench $1: $(echo "$log" | grep 'is not there yet' | tail -n 1)"
    return 77
  fi
  return "$code"
}
parity() { benchmark parity --shape 7m; }
bench() {
  benchmark rollout --shape "$shape" --completions 1,8,64 --json || return
  benchmark step --shape "$shape" --json
}

{
  echo "Lockstep's first hour on $device, $where"
  echo "$("$lockstep" --version), $(date -u +%Y-%m-%dT%H:%M:%SZ)"
} | tee "$out/report.txt"
began=$SECONDS
check device 60 device_check
check formula 300 formula
check operations 360 operations
check cpu 180 cpu
check twice 60 twice
check resume 90 resume
check sanitizer 420 sanitizer
if [ "$small" ]; then
  record parity skipped 0 "--small"
  record bench skipped 0 "--small"
else
  check parity 120 parity
  check bench 180 bench
fi
{
  echo "{\"device\": \"$device\", \"emulated\": $([ "$device" = cuda-emulated ] && echo true || echo false),"
  echo " \"version\": \"$("$lockstep" --version)\", \"ended\": \"$(date -u +%Y-%m-%dT%H:%M:%SZ)\","
  echo " \"seconds\": $((SECONDS - began)), \"passed\": $([ $failed = 0 ] && echo true || echo false), \"checks\": ["
  for ((i = 0; i < ${#rows[@]}; i++)); do echo "  ${rows[i]}$([ $((i + 1)) = ${#rows[@]} ] || echo ,)"; done
  echo "]}"
} >"$out/report.json"
echo "$([ $failed = 0 ] && echo "nothing failed" || echo "SOMETHING FAILED"), $((SECONDS - began)) s; $out/report.json" | tee -a "$out/report.txt"
exit $failed
