#!/usr/bin/env bash
# Runs the checks that a GPU must pass before Lockstep's claims about CUDA are trusted, in a limited time: see --help.
# The checks themselves are in checks.sh.
# shellcheck disable=SC2034,SC2329
set -uo pipefail

# The checks in order: name, estimated seconds on a GPU, time limit in seconds, function and arguments.
table=(
  'device 8 60 device_check'
  'load 6 150 kernel_tests device::cuda::tests::load::every_kernel_loads_on_the_device'
  'functions 2 60 kernel_tests device::cuda::tests::functions'
  'operations/residual 2 60 operation residual'
  'operations/lerp 2 60 operation lerp'
  'operations/rows 2 60 operation rows'
  'operations/embedding 2 60 operation embedding'
  'operations/rmsnorm 2 60 operation rmsnorm'
  'operations/qk_norm 2 60 operation qk_norm'
  'operations/rope 2 60 operation rope'
  'operations/softmax 2 60 operation softmax'
  'operations/glu 2 60 operation glu'
  'operations/linear 2 60 operation linear'
  'operations/attention 2 60 operation attention'
  'operations/lm_head 2 60 operation lm_head'
  'operations/sample 2 60 operation sample'
  'operations/lora 2 60 operation lora'
  'operations/grad_norm 2 60 operation grad_norm'
  'operations/adamw 2 60 operation adamw'
  'cpu/grpo 6 120 cpu grpo'
  'cpu/adapter 6 120 cpu adapter'
  'formula 12 120 formula'
  'bf16 6 90 bf16'
  'cpu/7m 15 120 cpu 7m'
  'twice 3 60 twice'
  'resume 6 90 resume'
  'invariance 8 90 kernel_tests device::cuda::tests::invariance'
  'parity 20 120 benchmark parity --shape 7m'
  'bench/gemm 15 60 benchmark gemm'
  'bench/step-7m 12 60 benchmark step --shape 7m'
  'bench/rollout 30 120 bench_rollout'
  'bench/step 40 150 bench_step'
  'torch 25 60 yardstick'
  'profile 40 90 profile'
  'sanitizer/memcheck 40 120 sanitizer memcheck'
  'sanitizer/racecheck 40 120 sanitizer racecheck'
  'sanitizer/initcheck 40 120 sanitizer initcheck'
  'sanitizer/synccheck 40 120 sanitizer synccheck'
  'nvrtc 60 180 nvrtc'
)
# The checks that --small leaves out; the others suffice to test the script on the emulator.
not_small='load|operations/([^rg].*|r[^m].*|grad_norm)|cpu/7m|bf16|invariance|parity|bench/.*|torch|profile|nvrtc'

usage() {
  cat <<'HELP'
bench/cuda/first_hour.sh pack DIR     on a machine with Rust and Python: builds the programs and writes one archive
first_hour.sh [options]               on the machine with the GPU: needs its driver, no toolchain, no network

The most important checks run first. The budget may end at any time: the report is complete after every check,
and names the running check. Checks that do not fit are listed, with a command that runs them later.

  --budget SECONDS  for all checks together; at its end the running check is stopped, within 10 s (default: 540)
  --only NAME,…     run only these checks, or groups of checks (operations, cpu, bench, sanitizer)
  --out DIR         a new or empty directory                        (default: $OUT if set, else first-hour-<time>)
  --device NAME     cuda, cuda:1, …; or cuda-emulated, which every report then mentions           (default: cuda)
  --products N      dot products of 16 terms that are compared with the formula                   (default: 10000000)
  --shape SIZE      for bench/rollout and bench/step: 7m, 92m, 0.5b                                (default: 0.5b)
  --small           few products, few operations, no benchmarks: to test the script on the emulator

The output directory has only a few files:
  report.json       state, the running check, and for each check its outcome, seconds, estimate and a note;
                    replaced atomically after each check
  report.txt        the lines of the terminal
  log.txt           the output of each check (a very long output is truncated in the middle)
  running.txt       the output of the running check
  runs.tar.gz       the training runs that were compared, if a comparison failed

Outcomes: passed; failed; skipped (the note names what is missing on this machine); stopped (the budget ended);
does not fit (not started, because its estimate is longer than the rest of the budget).
Exit code: 0 all checks passed or were skipped, 1 a check failed, 2 bad usage,
3 no check failed, but some were stopped or did not fit, 128 + n ended by signal n.

Checks:
  device      driver, GPU, tools and libraries; `lockstep doctor` opens the device and measures its peaks
  load        every kernel can be loaded: compiled kernels (cubins/), or NVRTC
  functions   exp, ln, sigmoid, rounding, sums, random numbers give the CPU's bits
  operations  every operation in f32, forward and backward, gives the CPU's bits. One process for each
  cpu         short GRPO runs on the CPU and on the device (grpo, adapter, and 7m, a model of 7 million parameters)
              give the same weights, optimizer state and rollouts, with 0 mismatching log-probabilities
  formula     tensor cores against the formula of their family; if they differ, the parameters that come closest
  bf16        matmuls in bf16 give the formula's bits
  twice       the GRPO run gives the same bits again
  resume      a GRPO run killed with SIGKILL and resumed gives the bits of an undisturbed run
  invariance  a row's bits do not depend on the rows beside it
  parity      sampler and trainer give the same bits for all batches
  bench       gemm (matmuls), step-7m and step (a GRPO step), rollout (a group's completions)
  torch       matmuls and copies of PyTorch on the same GPU, if it is installed
  profile     kernels of a GRPO step under ncu, if it is installed
  sanitizer   memcheck, racecheck, initcheck and synccheck of compute-sanitizer, if it is installed
  nvrtc       functions and matmuls without the compiled kernels, if this machine has NVRTC

The order: all other checks need the device and its kernels. Functions and operations come next, because their
failures name one kernel, one shape and one element, whereas those of a training run name none. Then come the
project's promises (the CPU's bits, the formula, twice, resume). Speed comes after bits, because the time of a wrong
result is useless. The sanitizer is slow, and most faults that it finds are found earlier as wrong bits.

LOCKSTEP_BIN and LOCKSTEP_KERNEL_TESTS name the two programs, if they are not beside the script (`pack` then copies
them instead of building them, and also LOCKSTEP_CUBINS, if set). cubins/ beside the script has the compiled kernels;
without them NVRTC compiles the kernels (LOCKSTEP_NVRTC). The driver and NVRTC are also searched in directories that
the loader does not search. Temporary files are in TMPDIR.
HELP
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# Writes DIR/first-hour.tar.gz.
pack() {
  set -e
  local root to=$1 limit=40000000 stage tests built='' cubins=${LOCKSTEP_CUBINS:-}
  root=$(cd "$here/../.." && pwd)
  mkdir -p "$to"
  to=$(cd "$to" && pwd)
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  stage=$scratch/first-hour
  mkdir "$stage"
  if [ -z "${LOCKSTEP_BIN:-}" ] || [ -z "${LOCKSTEP_KERNEL_TESTS:-}" ]; then
    built=yes
    cd "$root"
    cargo build --release -p lockstep-cli
    cargo test --release -p lockstep-kernels --lib --no-run 2>&1 | tee "$scratch/build.log"
    tests=$(sed -n 's/.*Executable unittests.*(\(.*\))$/\1/p' "$scratch/build.log" | tail -n 1)
    LOCKSTEP_BIN=${CARGO_TARGET_DIR:-target}/release/lockstep LOCKSTEP_KERNEL_TESTS=$tests
  fi
  cp "$LOCKSTEP_BIN" "$stage/lockstep"
  cp "$LOCKSTEP_KERNEL_TESTS" "$stage/kernel-tests"
  strip "$stage/lockstep" "$stage/kernel-tests"
  if [ "$built" ] && [ -z "$cubins" ]; then
    (unset LOCKSTEP_BIN LOCKSTEP_KERNEL_TESTS && cargo xtask cubins "$stage/cubins")
  elif [ "$cubins" ]; then
    cp -r "$cubins" "$stage/cubins"
  else
    echo "without compiled kernels (LOCKSTEP_CUBINS): the other machine needs NVRTC" >&2
  fi
  cp "$here/first_hour.sh" "$here/checks.sh" "$stage"
  tar -C "$scratch" --sort=name --owner=0 --group=0 --numeric-owner -cf "$scratch/first-hour.tar" first-hour
  gzip "$scratch/first-hour.tar"
  local bytes
  bytes=$(wc -c <"$scratch/first-hour.tar.gz")
  (cd "$stage" && du -ab --apparent-size . | sort -rn | sed -n '1,20p')
  # The newest version of the C library that a program needs.
  grep -aoh 'GLIBC_2\.[0-9]*' "$stage/lockstep" "$stage/kernel-tests" | sort -uV | tail -n 1 | sed 's/^/needs /'
  mv "$scratch/first-hour.tar.gz" "$to/first-hour.tar.gz"
  echo "$to/first-hour.tar.gz: $bytes bytes"
  if [ "$bytes" -ge "$limit" ]; then
    echo "it is larger than $limit bytes, which are as much as should be carried" >&2
    exit 1
  fi
}

bad_usage() { echo "$1; see --help" >&2; exit 2; }

device=cuda out='' products=10000000 shape=0.5b small='' budget=540 only=''
[ "${1:-}" = pack ] && { [ $# = 2 ] || { usage >&2; exit 2; }; pack "$2"; exit; }
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit ;;
    --small) small=yes ;;
    --device | --out | --products | --shape | --budget | --only)
      [ $# -ge 2 ] || bad_usage "$1 wants a value"
      declare "${1#--}=$2"
      shift ;;
    *) bad_usage "unknown argument $1" ;;
  esac
  shift
done
case $device in
  cuda | cuda:[0-9]*) where="on the GPU" ;;
  cuda-emulated) where="EMULATED on the CPU: says nothing about hardware" ;;
  *) bad_usage "--device $device: cuda, cuda:1, … or cuda-emulated" ;;
esac
whole_number='^[0-9]{1,9}$'
[[ $budget =~ $whole_number ]] || bad_usage "--budget $budget: a whole number of seconds"
[[ $products =~ $whole_number ]] && [ "$((10#$products))" -gt 0 ] || bad_usage "--products $products: a number above 0"
budget=$((10#$budget)) products=$((10#$products))
case $shape in tiny | 4m | 7m | 92m | 0.5b) ;; *) bad_usage "--shape $shape: tiny, 4m, 7m, 92m or 0.5b" ;; esac
[ -z "$small" ] || products=2048

# The requested checks, in the order of the table.
names=() estimates=() limits=() commands=()
chosen() {
  local name=$1 asked
  [ -n "$only" ] || return 0
  for asked in "${asked_for[@]}"; do [ "$name" = "$asked" ] || [ "${name%%/*}" = "$asked" ] && return 0; done
  return 1
}
IFS=', ' read -r -a asked_for <<<"${only//,/ }"
[ -z "$only" ] || [ ${#asked_for[@]} -gt 0 ] || bad_usage "--only names no check"
for row in "${table[@]}"; do
  read -r name estimate limit command <<<"$row"
  chosen "$name" || continue
  names+=("$name") estimates+=("$estimate") limits+=("$limit") commands+=("$command")
done
unknown=()
for asked in ${asked_for[@]+"${asked_for[@]}"}; do
  found=''
  for name in ${names[@]+"${names[@]}"}; do [ "$name" = "$asked" ] || [ "${name%%/*}" = "$asked" ] && found=yes; done
  [ "$found" ] || unknown+=("$asked")
done
if [ ${#unknown[@]} -gt 0 ]; then
  echo "--only: there is no check ${unknown[*]}; there are:" >&2
  printf '%s\n' "${table[@]}" | cut -d ' ' -f 1 | paste -s -d ' ' | fold -s -w 100 >&2
  exit 2
fi

lockstep=${LOCKSTEP_BIN:-$here/lockstep} tests=${LOCKSTEP_KERNEL_TESTS:-$here/kernel-tests}
# The program reads every LOCKSTEP_* variable as a configuration key.
unset LOCKSTEP_BIN LOCKSTEP_KERNEL_TESTS
# With CI set, tests of the emulator fail if there is no C++ compiler; a GPU needs none.
[ "$device" = cuda-emulated ] || unset CI
for program in "$lockstep" "$tests"; do
  [ -x "$program" ] || { echo "$program is not there; see --help: pack" >&2; exit 2; }
done
out=${out:-${OUT:-first-hour-$(date -u +%Y%m%dT%H%M%S)}}
if [ -d "$out" ] && [ -n "$(ls -A "$out")" ]; then
  echo "--out $out: the directory is not empty; name a new one" >&2
  exit 2
fi
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd) || exit 2
work=$(mktemp -d "${TMPDIR:-/tmp}/first-hour.XXXXXX") || exit 2
export HF_HUB_OFFLINE=1 NO_COLOR=1
[ -d "$here/cubins" ] && export LOCKSTEP_CUBINS=${LOCKSTEP_CUBINS:-$here/cubins}

# ---------------------------------------------------------------------------------------------------------------------
# Running checks, and writing the report.

script=$$ from=0 state=running current='' failed=0 missing=0 job='' scale=1
outcomes=() seconds=() notes=()
for i in "${!names[@]}"; do outcomes[i]=waiting seconds[i]=null notes[i]=''; done
# The emulator compiles kernels first, and is slow.
[ "$device" != cuda-emulated ] || scale=4
began=$SECONDS started=$(date -u +%Y-%m-%dT%H:%M:%SZ) gpu='' version=''

left() {
  local rest=$((budget - (SECONDS - began)))
  echo $((rest > 0 ? rest : 0))
}
# One line without characters that JSON must escape.
plain() { tr -c '\40-\176' ' ' | tr -d '\42\134' | sed 's/  */ /g; s/ $//' | cut -c "1-${1:-400}"; }
say() { printf '%s\n' "$*" | tee -a "$out/report.txt"; }

list_of() {
  local i all=''
  for i in "${!names[@]}"; do [[ ${outcomes[i]} =~ ^($1)$ ]] && all+="${all:+, }\"${names[i]}\""; done
  echo "[$all]"
}
write_report() {
  local i comma='' emulated=false passed=false
  [ "$device" != cuda-emulated ] || emulated=true
  [ "$state" != ended ] || [ $failed = 1 ] || [ $missing = 1 ] || passed=true
  {
    echo "{\"state\": \"$state\", \"running\": ${current:+\"}${current:-null}${current:+\"},"
    echo " \"device\": \"$device\", \"emulated\": $emulated, \"gpu\": \"$gpu\", \"version\": \"$version\","
    echo " \"started\": \"$started\", \"written\": \"$(date -u +%Y-%m-%dT%H:%M:%SZ)\","
    echo " \"budget_s\": $budget, \"seconds\": $((SECONDS - began)), \"only\": \"$only\", \"passed\": $passed,"
    echo " \"failed\": $(list_of failed),"
    echo " \"not_checked\": $(list_of 'waiting|running|stopped|does not fit'),"
    echo " \"checks\": ["
    for i in "${!names[@]}"; do
      printf '%s  {"check": "%s", "outcome": "%s", "seconds": %s, "estimate_s": %s, "note": "%s"}' "$comma" \
        "${names[i]}" "${outcomes[i]}" "${seconds[i]}" "${estimates[i]}" "${notes[i]}"
      comma=$',\n'
    done
    printf '\n]}\n'
  } >"$out/.report.json" && mv -f "$out/.report.json" "$out/report.json"
}

# Records the result of a check: its number, outcome, seconds and a note.
record() {
  outcomes[$1]=$2 seconds[$1]=$3 notes[$1]=$(plain <<<"$4") current=''
  case $2 in failed) failed=1 ;; stopped | 'does not fit') missing=1 ;; esac
  say "$(printf '%-20s %-12s %6s s  %s' "${names[$1]}" "$2" "$3" "${notes[$1]}")"
  write_report
}

# Ends the process group of the running check, without waiting: a process that hangs in the driver may remain.
end_job() {
  local try
  [ -n "$job" ] || return 0
  kill -TERM -- "-$job" 2>/dev/null
  for ((try = 0; try < 20; try++)); do kill -0 -- "-$job" 2>/dev/null || break; sleep 0.1; done
  kill -KILL -- "-$job" 2>/dev/null
  for ((try = 0; try < 50; try++)); do kill -0 -- "-$job" 2>/dev/null || return 0; sleep 0.1; done
  echo "process group $job does not end: the driver may hold it" >>"$out/running.txt"
}

# Appends the output of the last check to the log, at most a megabyte of it.
keep_log() {
  local file=$out/running.txt most=500000
  {
    echo "════ $1 ════ $(date -u +%H:%M:%SZ)"
    if [ "$(wc -c <"$file")" -gt $((2 * most)) ]; then
      head -c $most "$file" && printf '\n… left out …\n' && tail -c $most "$file"
    else
      cat "$file"
    fi
    echo
  } >>"$out/log.txt"
  rm -f "$file"
}

# The lines of the check's output with the cause of its failure. A panic's message is on the line after its location.
faults() {
  sed '/panicked at/{N;s/\n/ /}' "$out/running.txt" | grep -aE 'DIFFERS|REFUSED|CUDA_ERROR|panicked|[Ee]rror|ERROR'
}

# Milliseconds since the running check began.
elapsed_ms() { echo $((($(date +%s%N) - from) / 1000000)); }

# Runs check number i.
check() {
  local i=$1 limit=${limits[$1]} code note outcome=passed over='' rest took
  rest=$(left)
  # The emulator compiles kernels first, and is slow, so the limit is long enough that only a hanging check reaches it.
  [ "$device" != cuda-emulated ] || limit=$((20 * limit))
  [ "$limit" -le "$rest" ] || { limit=$rest over=yes; }
  current=${names[i]} outcomes[i]=running
  echo "── $current (about ${estimates[i]} s, $rest s left)" >&2
  : >"$out/running.txt"
  write_report
  from=$(date +%s%N)
  # In a separate process group, so that all its processes can be ended, even if the script itself is killed.
  set -m
  (
    trap - TERM INT HUP EXIT
    { while kill -0 "$script"; do sleep 1; done; kill -KILL 0; } </dev/null >/dev/null 2>&1 &
    # shellcheck disable=SC2086
    ${commands[i]}
  ) </dev/null >"$out/running.txt" 2>&1 &
  job=$!
  set +m
  code=''
  while kill -0 "$job" 2>/dev/null; do
    sleep 0.1
    [ $(($(elapsed_ms) / 1000)) -lt "$limit" ] || { code=late; break; }
  done
  [ "$code" ] || { wait "$job" 2>/dev/null; code=$?; }
  took=$(elapsed_ms)
  end_job
  job=''
  note=$(sed -n 's/^note: //p' "$out/running.txt" | tail -n 1)
  case $code in
    0) ;;
    77) outcome=skipped ;;
    late)
      if [ "$over" ]; then
        outcome=stopped note="the budget ended after $limit s of it${note:+; $note}"
      else
        outcome=failed note="did not end within $limit s${note:+; $note}"
      fi ;;
    *)
      note=$(faults | sed -n '1s/.*\(DIFFERS\|REFUSED\)/\1/;1p' | cut -c 1-300)
      outcome=failed note="${note:+$note; }exit code $code" ;;
  esac
  if [ $outcome = failed ] || [ $outcome = stopped ]; then
    # The last lines of the terminal must be enough to start the search for the cause.
    { if [ -n "$(faults)" ]; then faults; else tail -n 8 "$out/running.txt"; fi; } |
      head -n 12 | cut -c 1-300 | sed 's/^/    /'
  fi
  keep_log "${names[i]}"
  record "$i" "$outcome" "$((took / 1000)).$((took / 100 % 10))" "$note"
  learn "$i" "$took" "$outcome"
}

# Estimates are adjusted by measured times: those of earlier checks, and for some checks the run that they repeat.
sum_estimate=0 sum_real=0 grpo_ms=0 operations_ms=0
learn() {
  [ "$3" = passed ] || return 0
  sum_estimate=$((sum_estimate + 1000 * table_estimate[$1])) sum_real=$((sum_real + $2))
  case ${names[$1]} in cpu/grpo) grpo_ms=$2 ;; operations/*) operations_ms=$((operations_ms + $2)) ;; esac
  [ $sum_estimate -lt 10000 ] || scale=$((sum_real / sum_estimate + 1))
}
# The estimate of check number i, in seconds.
estimate() {
  local plain=${table_estimate[$1]} by_ratio=''
  case ${names[$1]} in
    twice) by_ratio=$((grpo_ms * 6 / 10)) ;;
    resume) by_ratio=$((grpo_ms)) ;;
    # Five of sixteen operations, ten to thirty times slower.
    sanitizer/*) by_ratio=$((operations_ms * 6)) ;;
  esac
  if [ -n "$by_ratio" ] && [ "$by_ratio" -gt 0 ]; then echo $((by_ratio / 1000 + 1)); else echo $((plain * scale)); fi
}
table_estimate=("${estimates[@]}")

finish() {
  local code=$1 rest
  trap - EXIT
  if list_of failed | grep -qE 'cpu/|twice|resume' && [ -d "$work/shape" ]; then
    tar -C "$work" -czf "$out/runs.tar.gz" . 2>/dev/null
  fi
  rm -rf "$work"
  rest=$(list_of 'waiting|stopped|does not fit' | tr -d '[]" ')
  write_report
  [ -z "$rest" ] || say "not checked; to make up for it: $0 --device $device --only $rest"
  case $code in
    0) say "nothing failed" ;;
    1) say "FAILED: $(list_of failed | tr -d '[]"')" ;;
    3) say "nothing failed, but not everything was checked" ;;
  esac
  say "$((SECONDS - began)) s; $out/report.json"
  exit "$code"
}
on_signal() {
  trap '' TERM INT HUP
  # This comes first, because another signal may follow soon.
  state="stopped by SIG$1"
  write_report
  end_job
  local i
  for i in "${!names[@]}"; do
    [ "${outcomes[i]}" = running ] || continue
    keep_log "${names[i]}"
    record "$i" stopped $(($(elapsed_ms) / 1000)) "SIG$1 came"
  done
  finish "$2"
}
trap 'on_signal TERM 143' TERM
trap 'on_signal INT 130' INT
trap 'on_signal HUP 129' HUP

# ---------------------------------------------------------------------------------------------------------------------

# shellcheck source=checks.sh
. "$here/checks.sh"
trap 'rm -rf "$work"' EXIT
write_report
find_libraries
# Both may hang if the driver hangs.
version=$(timeout -k 2 20 "$lockstep" --version 2>&1 | head -n 1 | plain 100)
gpu=$(timeout -k 2 20 nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total --format=csv,noheader \
  2>/dev/null | head -n 1 | plain 150)
say "Lockstep's first hour on $device, $where"
say "$version, ${gpu:-no nvidia-smi}, $started, budget $budget s"
write_report
for i in "${!names[@]}"; do
  [ -z "$small" ] || [[ ! ${names[i]} =~ ^($not_small)$ ]] || [[ ,$only, == *",${names[i]},"* ]] ||
    record "$i" skipped 0 "--small"
done
# A check that does not fit by its adjusted estimate is tried again at the end, if it fits by the table's estimate.
for by in measured table; do
  for i in "${!names[@]}"; do
    [ "${outcomes[i]}" = waiting ] || continue
    estimates[i]=$([ $by = measured ] && estimate "$i" || echo "${table_estimate[i]}")
    [ "${estimates[i]}" -gt "$(left)" ] || check "$i"
  done
done
for i in "${!names[@]}"; do
  [ "${outcomes[i]}" = waiting ] || continue
  record "$i" 'does not fit' 0 "needs about ${estimates[i]} s; $(left) s are left"
done
state=ended
if [ $failed = 1 ]; then finish 1; elif [ $missing = 1 ]; then finish 3; else finish 0; fi
