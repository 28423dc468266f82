"""Times one rollout of llama.cpp on this machine's CPU: the same work as a row of `lockstep bench rollout
--completions`.

    python llama_rollout.py --gguf FILE --prompt-ids FILE --completions N --new-tokens N [--kv f16] [--flash] [--split]

The prompt is computed once, and all completions share its keys and values (llama_memory_seq_cp). After that, each
decode step computes one token of every completion. Decoding is greedy, by numpy over the logits: llama.cpp's own
samplers are slower, because they first build a list of the whole vocabulary for each token. Prints one line of JSON.
"""

import argparse
import json
import time

import llama_cpp.llama_cpp as ll
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--gguf", required=True)
parser.add_argument("--prompt-ids", required=True, help="file with a JSON array")
parser.add_argument("--completions", type=int, required=True)
parser.add_argument("--new-tokens", type=int, required=True)
parser.add_argument("--threads", type=int, required=True)
parser.add_argument("--kv", choices=["f32", "f16", "bf16"], default="f32", help="type of keys and values")
parser.add_argument("--flash", action="store_true", help="flash attention")
parser.add_argument("--split", action="store_true", help="keys and values apart for each sequence, the prompt's copied")
parser.add_argument("--logprobs", action="store_true", help="print the first completion's ids and log-probabilities")
args = parser.parse_args()

prompt = json.load(open(args.prompt_ids))
G, P, N = args.completions, len(prompt), args.new_tokens
quiet = ll.llama_log_callback(lambda *_: None)
ll.llama_log_set(quiet, None)
ll.llama_backend_init()
model = ll.llama_model_load_from_file(args.gguf.encode(), ll.llama_model_default_params())
assert model, f"{args.gguf}: not loaded"
V = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(model))

params = ll.llama_context_default_params()
each = (P + N + 255) // 256 * 256
params.n_ctx = G * each if args.split else (P + G * N + 255) // 256 * 256
params.n_seq_max = G
params.n_batch = max(P, G)
params.n_ubatch = 512
params.n_outputs_max = G
params.n_threads = params.n_threads_batch = args.threads
# 30 is GGML_TYPE_BF16, which the bindings do not name.
params.type_k = params.type_v = {"f32": ll.GGML_TYPE_F32, "f16": ll.GGML_TYPE_F16, "bf16": 30}[args.kv]
params.flash_attn_type = ll.LLAMA_FLASH_ATTN_TYPE_ENABLED if args.flash else ll.LLAMA_FLASH_ATTN_TYPE_DISABLED
params.kv_unified = not args.split
params.no_perf = True
context = ll.llama_init_from_model(model, params)
assert context, "no context"
memory = ll.llama_get_memory(context)

batch = ll.llama_batch_init(max(P, G), 0, 1)
room = max(P, G)
view = lambda pointer: np.ctypeslib.as_array(pointer, (room,))  # noqa: E731
tokens, positions, counts, wanted = view(batch.token), view(batch.pos), view(batch.n_seq_id), view(batch.logits)
counts[:] = 1


def decode(n):
    batch.n_tokens = n
    assert ll.llama_decode(context, batch) == 0, "llama_decode failed"


def rollout(new_tokens):
    """Returns token ids [completions, new_tokens], the log-probabilities of the first completion if requested, and the
    seconds of prefill and of decode."""
    ll.llama_memory_clear(memory, False)
    ids, logprobs = np.zeros((G, new_tokens), np.int32), []

    def draw(rows, column):
        logits = np.ctypeslib.as_array(ll.llama_get_logits(context), (rows, V))
        ids[:, column] = logits.argmax(1)
        if args.logprobs:
            z = logits[0].astype(np.float64)
            logprobs.append(float(-np.log(np.exp(z - z.max()).sum())))

    start = time.perf_counter()
    tokens[:P], positions[:P], wanted[:P] = prompt, np.arange(P), 0
    wanted[P - 1] = 1
    for i in range(P):
        batch.seq_id[i][0] = 0
    decode(P)
    draw(1, 0)
    for sequence in range(1, G):
        ll.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
    first = time.perf_counter()
    for i in range(G):
        batch.seq_id[i][0] = i
    wanted[:G] = 1
    for step in range(1, new_tokens):
        tokens[:G], positions[:G] = ids[:, step - 1], P + step - 1
        decode(G)
        draw(G, step)
    return ids, logprobs, first - start, time.perf_counter() - first


rollout(min(N, 2))  # allocates memory before the measurement
ids, logprobs, prompt_s, decode_s = rollout(N)
out = dict(
    completions=G, prompt_tokens=P, new_tokens=N, rollout_s=prompt_s + decode_s, decode_s=decode_s,
    tokens_per_s=G * N / (prompt_s + decode_s), decode_tokens_per_s=G * (N - 1) / decode_s if N > 1 else None,
    same=bool((ids == ids[0]).all()), system=ll.llama_print_system_info().decode(),
)  # fmt: skip
if args.logprobs:
    out |= dict(ids=ids[0].tolist(), logprobs=logprobs)
print(json.dumps(out))
