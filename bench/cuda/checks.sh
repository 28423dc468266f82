# shellcheck shell=bash disable=SC2154
# The checks of first_hour.sh, which reads this file: each is a function, called by the table there. The last line that
# begins with "note: " is a check's note; code 77 means that it was skipped.

on_device() { LOCKSTEP_DEVICE=$device "$@"; }
emulated() { [ "$device" = cuda-emulated ]; }

# Sets the paths of the driver and NVRTC if the loader would not find them, and puts CUDA's tools on the PATH.
find_libraries() {
  local file directory packages='python3*/*-packages/nvidia/*/lib/libnvrtc.so.1[32]'
  for directory in /usr/local/cuda/bin /usr/local/cuda-*/bin /opt/nvidia/nsight-compute/*; do
    [ -d "$directory" ] && PATH=$PATH:$directory
  done
  if [ -z "${LOCKSTEP_LIBCUDA:-}" ] && ! ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1 '; then
    for file in {/usr/local/nvidia,/usr,/usr/local/cuda}/{lib64,lib/x86_64-linux-gnu,lib,lib/wsl/lib,compat}/libcuda.so.1
    do
      [ -e "$file" ] && { export LOCKSTEP_LIBCUDA=$file; break; }
    done
  fi
  if [ -z "${LOCKSTEP_NVRTC:-}" ] && ! ldconfig -p 2>/dev/null | grep -q 'libnvrtc\.so\.1[23] '; then
    for file in /usr/local/cuda*/{lib64,targets/x86_64-linux/lib}/libnvrtc.so.1[32] \
      {/usr,/usr/local,/opt/*,/opt/*/.venv,"${CONDA_PREFIX:-/nowhere}","${VIRTUAL_ENV:-/nowhere}"}/lib/$packages; do
      [ -e "$file" ] && { export LOCKSTEP_NVRTC=$file; break; }
    done
  fi
  return 0
}

device_check() {
  local tool
  uname -a
  grep -h PRETTY_NAME /etc/os-release
  grep -m 1 'model name' /proc/cpuinfo
  echo "$(nproc) cores; $(grep MemTotal /proc/meminfo); $(ldd --version 2>&1 | head -n 1)"
  ls -l /dev/nvidia* 2>&1
  ldconfig -p 2>/dev/null | grep -E 'libcuda\.so|libnvrtc\.so|libcudart\.so'
  env | grep -E '^(LOCKSTEP_|CUDA|NVIDIA|LD_LIBRARY_PATH)'
  ldd "$lockstep" "$tests"
  [ -d "${LOCKSTEP_CUBINS:-}" ] &&
    echo "$(find "$LOCKSTEP_CUBINS" -name '*.cubin' | wc -l) compiled kernels in $LOCKSTEP_CUBINS"
  for tool in nvcc ncu compute-sanitizer python3; do
    echo "$tool: $(command -v "$tool" || echo missing) $(timeout 20 "$tool" --version 2>/dev/null | tail -n 1)"
  done
  timeout 20 nvidia-smi
  timeout 20 nvidia-smi -q | head -n 250
  # Without a device, the command still prints the parts of CUDA that it found.
  on_device "$lockstep" doctor || { "$lockstep" doctor --device cpu; return 1; }
  # The device must compute something.
  kernel_tests device::cuda::tests::functions || return 1
  emulated && echo "note: $where"
  [ -z "$gpu" ] || echo "note: $gpu"
}

# A missing test must not look like a test that passed.
kernel_tests() {
  local log=$work/tests.log code passed
  # Sizes that would be too slow on the emulator.
  emulated || export LOCKSTEP_EMULATOR_FULL=1
  on_device "$tests" --test-threads=1 --nocapture "$@" 2>&1 | tee "$log"
  code=$?
  [ $code = 0 ] || return $code
  if grep -q 'no C++ compiler was found' "$log"; then emulated && return 1; fi
  passed=$(sed -n 's/.*test result: ok\. \([1-9][0-9]*\) passed.*/\1/p' "$log")
  [ -n "$passed" ] || { echo "error: no test ran"; return 1; }
  echo "note: tests: $passed, cases: $(grep -c 'case .*, schedule [0-9]*$' "$log")"
}

# Runs an operation's tests. After an error of the driver, and for the first three failures, it collects more details.
operation() {
  local count
  kernel_tests "ops::$1::cuda::" && return 0
  emulated && return 1
  count=$(cat "$work/failing" 2>/dev/null | wc -l)
  echo "$1" >>"$work/failing"
  [ "$count" -lt 3 ] || return 1
  if grep -qE 'CUDA_ERROR|panicked' "$work/tests.log"; then
    echo "════ again with CUDA_LAUNCH_BLOCKING=1, so that the error names the kernel"
    CUDA_LAUNCH_BLOCKING=1 on_device timeout 20 "$tests" --test-threads=1 --nocapture "ops::$1::cuda::" 2>&1 |
      tail -n 100
  fi
  if command -v compute-sanitizer >/dev/null; then
    echo "════ again under memcheck"
    on_device timeout 25 compute-sanitizer --tool memcheck "$tests" --test-threads=1 "ops::$1::cuda::" 2>&1 |
      head -n 300
  fi
  return 1
}

formula() {
  local all=0 seed log each=$((products < 2000000 ? products : 2000000))
  for ((seed = 1; all < products; seed++, all += each)); do
    log=$(LOCKSTEP_PRODUCTS=$each LOCKSTEP_SEED=$seed on_device "$tests" --exact --nocapture \
      device::cuda::tests::self_test::the_requested_dot_products_equal_the_formula 2>&1) ||
      { echo "$log"; echo "DIFFERS: $(grep -aE -m 1 ' differ$' <<<"$log")"; return 1; }
    echo "$log"
    [[ $log == *" differ"* ]] || { echo "note: nothing was compared: no products in bf16 here"; return 77; }
  done
  echo "note: $all products of 16 terms in bf16 equal the formula"
}

bf16() {
  kernel_tests ops::linear::tensor_core_tests || return
  grep -q 'skipped 1: ' "$work/tests.log" || return 0
  echo "note: the tensor cores of this GPU do not multiply bf16"
  return 77
}

# Makes a directory with a tiny model of random weights, a model of 7 million parameters, and their data.
models() {
  [ ! -d "$work/shape" ] || return 0
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

# Trains a short GRPO run. Arguments: the device, its directory, more keys. Writes the program's process id to a file.
grpo() {
  local device=$1 to=$2 key keys=()
  shift 2
  for key in num_generations=4 per_device_train_batch_size=8 max_completion_length=6 learning_rate=0.01 beta=0.04 \
    logging_steps=1 save_steps=2 log_completions=true num_completions_to_print=0 record_rollouts=true threads=2 "$@"; do
    keys+=(--set "$key")
  done
  (
    cd "$work" && echo $BASHPID >"$to.pid" &&
      LOCKSTEP_DEVICE=$device exec "$lockstep" train --model "${model:-model}" --dataset d.jsonl --reward unique_chars \
        --out "$to" "${keys[@]}"
  )
}

# Checks that two runs wrote the same tensors and rollouts (at least one of each), and that no log-probability differed.
same() {
  local a=$work/$1 b=$work/$2 file count=0 differ=0 difference
  while IFS= read -r file; do
    count=$((count + 1))
    difference=$(cmp "$a/$file" "$b/$file" 2>&1) && continue
    differ=$((differ + 1))
    echo "DIFFERS: ${difference//$work\//}"
  done < <(cd "$a" && find . -name '*.safetensors' -o -name rollouts.bin | sort)
  [ "$count" -ge 3 ] || { echo "error: only $count files to compare in $1"; return 1; }
  local mismatch='"sampling/logp_mismatch_tokens": *'
  grep -q "$mismatch" "$b/metrics.jsonl" || { echo "error: metrics.jsonl says nothing of log-probabilities"; return 1; }
  if grep -E "$mismatch(0*[1-9]|0\.0*[1-9])" "$b/metrics.jsonl"; then
    echo "DIFFERS: log-probabilities of sampler and trainer in $2"
    return 1
  fi
  if [ $differ != 0 ]; then
    echo "$differ of $count files differ; the first steps of $1, then of $2:"
    head -n 3 "$a/metrics.jsonl" "$b/metrics.jsonl" | cut -c 1-3000
    return 1
  fi
  echo "$count files of $1 and $2 are the same"
}

steps=$([ "$small" ] && echo 4 || echo 12)
cpu() {
  local run=$1 model=model keys=(max_steps="$steps")
  models || return 1
  case $run in
    adapter) keys+=(use_peft=true lora_r=2 lora_dropout=0.0) ;;
    7m)
      model='model-7m'
      keys=(max_steps=2 num_generations=8 per_device_train_batch_size=16 max_completion_length=40)
      (
        cd "$work" && mkdir -p shape-7m && cp shape/tokenizer* shape-7m &&
          "$lockstep" bench shape --shape 7m >shape-7m/config.json &&
          "$lockstep" init --config shape-7m/config.json --tokenizer shape-7m --seed 1 --out model-7m
      ) || return 1 ;;
  esac
  grpo cpu "$run-cpu" "${keys[@]}" && grpo "$device" "$run" "${keys[@]}" && same "$run-cpu" "$run" || return 1
  echo "note: GRPO, $run: the CPU's bits"
}

# The run with which other runs are compared.
reference() {
  models && { [ -e "$work/grpo/metrics.jsonl" ] || grpo "$device" grpo max_steps="$steps"; }
}
twice() { reference && grpo "$device" again max_steps="$steps" && same grpo again; }

resume() {
  local run=$work/killed try job
  reference || return 1
  rm -f "$work/killed.pid"
  grpo "$device" killed max_steps="$steps" &
  job=$!
  for ((try = 0; try < 30000; try++)); do
    [ -d "$run/checkpoints/step-000002" ] && break
    kill -0 "$job" 2>/dev/null || break
    sleep 0.02
  done
  kill -KILL "$(<"$work/killed.pid")" 2>/dev/null
  wait "$job"
  [ -d "$run/checkpoints/step-000002" ] || { echo "error: no checkpoint was written"; return 1; }
  if [ -d "$run/model" ]; then echo "note: it ended before it was killed"; return 77; fi
  (cd "$work" && on_device "$lockstep" train --resume killed) && same grpo killed || return 1
  echo "note: killed after step 2 or later, then resumed"
}

# A feature that the program reports as missing on this device is not a failure.
benchmark() {
  local log=$work/bench.log code
  on_device "$lockstep" bench "$@" 2>&1 | tee "$log"
  code=$?
  if [ $code != 0 ] && grep -qE "is not (there|supported) yet" "$log"; then
    echo "note: bench $1: $(grep -E 'is not (there|supported) yet' "$log" | tail -n 1)"
    return 77
  fi
  return $code
}
bench_rollout() {
  local most
  # One size at a time, so that earlier results are printed even if the next size takes too long.
  for most in 1 8 64; do benchmark rollout --shape "$shape" --completions "$most" || return; done
}
bench_step() { benchmark step --shape "$shape" --repeats 1; }

yardstick() {
  emulated && { echo "note: nothing to compare an emulation with"; return 77; }
  python3 -c 'import torch' || { echo "note: python3 cannot import torch"; return 77; }
  python3 - "$device" <<'PYTHON'
import sys, torch
device = torch.device(sys.argv[1])
torch.backends.cuda.matmul.allow_tf32 = False
print("torch", torch.__version__, "CUDA", torch.version.cuda, torch.cuda.get_device_name(device))
def seconds(run):
    for _ in range(3):
        run()
    times = []
    for _ in range(10):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record(); run(); end.record(); end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return sorted(times)[5]
best = {}
for dtype in (torch.float32, torch.bfloat16):
    # The shapes of `lockstep bench gemm`, and a large shape.
    for m, k, n in [(1, 896, 4864), (16, 896, 4864), (64, 896, 4864), (512, 896, 4864), (2048, 896, 896),
                    (512, 4864, 896), (4096, 4096, 4096), (8192, 8192, 8192)]:
        x, w = torch.randn(m, k, device=device, dtype=dtype), torch.randn(n, k, device=device, dtype=dtype)
        rate = 2 * m * k * n / seconds(lambda: x @ w.t()) / 1e12
        best[dtype] = max(rate, best.get(dtype, 0))
        print(f"{str(dtype):16} {m:5} x {k:5} x {n:5}  {rate:8.2f} TFLOP/s")
x = torch.empty(1 << 28, device=device)
y = torch.empty_like(x)
copy = 2 * 4 * x.numel() / seconds(lambda: y.copy_(x)) / 1e9
print(f"copy {copy:.0f} GB/s")
print(f"note: torch: f32 {best[torch.float32]:.1f}, bf16 {best[torch.bfloat16]:.1f} TFLOP/s, copy {copy:.0f} GB/s")
PYTHON
}

profile() {
  local step=(bench step --shape 7m --completions 8 --new-tokens 16 --repeats 1) log=$work/ncu.log
  command -v ncu >/dev/null || { echo "note: ncu is not on the PATH"; return 77; }
  emulated && { echo "note: nothing to profile in an emulation"; return 77; }
  # Decode kernels, then kernels of the update.
  on_device ncu --clock-control none --set basic --launch-skip 60 --launch-count 40 "$lockstep" "${step[@]}" 2>&1 |
    tee "$log"
  if grep -qE 'ERR_NVGPUCTRPERM|Failed to initialize the profiler' "$log"; then
    echo "note: ncu may not read the counters here"
    return 77
  fi
  on_device ncu --clock-control none --set basic --kernel-name 'regex:backward|adamw|logits' --launch-count 40 \
    "$lockstep" "${step[@]}" 2>&1 || return
  echo "note: $(grep -c 'Section: GPU Speed' "$log") decode launches; see log.txt"
}

sanitizer() {
  local log=$work/sanitizer.log
  command -v compute-sanitizer >/dev/null || { echo "note: compute-sanitizer is not on the PATH"; return 77; }
  emulated && { echo "note: nothing to look at in an emulation"; return 77; }
  on_device compute-sanitizer --tool "$1" --error-exitcode 1 "$tests" --test-threads=1 --nocapture \
    ops::linear::cuda ops::attention::cuda ops::softmax::cuda ops::rmsnorm::cuda ops::lm_head::cuda 2>&1 | tee "$log"
  local code=$?
  if grep -q 'Device not supported' "$log"; then echo "note: compute-sanitizer refuses this device"; return 77; fi
  [ $code = 0 ] && grep -q 'ERROR SUMMARY: 0 errors' "$log" || return 1
  echo "note: $1 found nothing"
}

nvrtc() {
  emulated && { echo "note: the emulator has no NVRTC"; return 77; }
  if "$lockstep" doctor | grep -q 'NVRTC.*cannot be used'; then echo "note: this machine has no NVRTC"; return 77; fi
  # Without compiled kernels, and without the cache of an earlier process.
  export LOCKSTEP_CUBINS=/nowhere LOCKSTEP_KERNEL_CACHE=$work/cache
  kernel_tests device::cuda::tests::functions ops::linear::cuda
}
