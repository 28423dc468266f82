"""Tests the sessions, sampling, checkpoints and errors of `lockstep serve` with Tinker's own SDK.

    python conformance/tinker_flow.py URL MODEL [STATE]
    python conformance/tinker_flow.py PROGRAM DIRECTORY

MODEL is a name that the server serves, and STATE the server's state directory, if its files are to be compared, too.
The second form starts PROGRAM, the built `lockstep`, with the model in DIRECTORY. Any model with a tokenizer will do.
Each check prints a line; the exit code is 1 if one fails. The losses are tested by tinker_losses.py.
"""

import concurrent.futures
import os
import pickle
import time

import numpy as np

from tinker_common import adapter, check, finish, part, settings, target

URL, MODEL, STATE = target()
os.environ.update(settings(URL))

import tinker  # noqa: E402 (reads the environment)
from tinker import types  # noqa: E402
from tinker_calls import PROMPT, bits, draw, params, ready, sampler_of, scores, snapshot, supervised, text  # noqa: E402

ADAM = types.AdamParams(learning_rate=0.01)


def train(client, ids=range(60, 80), params=ADAM):
    backward = client.forward_backward([supervised(list(ids))], "cross_entropy")
    client.optim_step(params).result()
    return backward.result()


def new(service, rank=4, seed=5, **more):
    chosen = {"base_model": MODEL, "rank": rank, "seed": seed, "train_unembed": False} | more
    return ready(service.create_lora_training_client(**chosen))


def refused(name, call, *words):
    """The call fails with one of the SDK's errors whose text has all the words."""
    try:
        call()
    except (tinker.RequestFailedError, tinker.APIStatusError) as error:
        shown = f"{type(error).__name__}: {error}"
        return check(f"refused: {name}", all(word.lower() in shown.lower() for word in words), shown)
    except Exception as error:  # noqa: BLE001 (any other exception is the failure that this looks for)
        return check(f"refused: {name}", False, f"not an error of the API: {error!r}")
    return check(f"refused: {name}", False, "no error")


def sampling(service, client):
    sampler, base = snapshot(client), sampler_of(service, base_model=MODEL)
    three = draw(sampler, count=3)
    check("sample: lengths, finish reason", all(len(s.tokens) == len(s.logprobs) == 12 for s in three)
          and all(s.stop_reason == "length" for s in three), three)
    check("sample: samples of one seed differ", len({tuple(s.tokens) for s in three}) == 3)
    check("sample: the same seed has the same bits", bits(three) == bits(draw(sampler, count=3)))
    check("sample: sample 0 is the single one", bits(three)[:1] == bits(draw(sampler)))
    check("sample: another seed differs", bits(three)[:1] != bits(draw(sampler, seed=4)))
    free = draw(sampler, count=4, seed=None) + draw(sampler, count=4, seed=None)
    check("sample: without a seed all differ", len({tuple(s.tokens) for s in free}) == 8)
    check("sample: a new adapter is the base", bits(three) == bits(draw(base, count=3)))
    train(client)
    moved = snapshot(client)
    check("sample: an old snapshot keeps its weights", bits(three) == bits(draw(sampler, count=3)))
    check("sample: a new snapshot has the new weights", bits(three) != bits(draw(moved, count=3)))

    # Log-probabilities: of the sampler, of the trainer, of compute_logprobs.
    for name, count in (("a short prompt", 12), ("a prompt of several pages", 200)):
        prompt = [30 + n % 90 for n in range(count)]
        one = draw(moved, prompt=prompt)[0]
        whole = prompt + list(one.tokens)
        trained = scores(client, whole)
        check(f"logprobs: trainer and sampler have the same bits after {name}",
              trained[count - 1:].tobytes() == np.asarray(one.logprobs, np.float32).tobytes(),
              (trained[count - 1:], one.logprobs))
        computed = moved.compute_logprobs(text(whole)).result()
        check(f"logprobs: compute_logprobs has them, too, after {name}",
              computed[0] is None and np.asarray(computed[1:], np.float32).tobytes() == trained.tobytes(),
              (computed[:4], trained[:3]))
    check("logprobs: a prompt of one token", moved.compute_logprobs(text([40])).result() == [None])
    pieces = types.ModelInput(chunks=[types.EncodedTextChunk(tokens=ids) for ids in (PROMPT[:5], PROMPT[5:])])
    check("sample: a prompt in chunks", bits(moved.sample(pieces, 1, params()).result().sequences) == bits(draw(moved)))

    asked = moved.sample(text(PROMPT), 1, params(), include_prompt_logprobs=True, topk_prompt_logprobs=3).result()
    top, own = asked.topk_prompt_logprobs, asked.prompt_logprobs
    check("prompt: the first token has no log-probability", own[0] is None and not top[0], (own[:2], top[:2]))
    check("prompt: three alternatives, most likely first",
          all(len(row) == 3 and row[0][1] >= row[1][1] >= row[2][1] for row in top[1:]), top[1:3])
    both = [(dict(row).get(token), value) for row, token, value in zip(top[1:], PROMPT[1:], own[1:])]
    check("prompt: alternatives have the bits of the token", all(a is None or a == b for a, b in both), both)
    greedy = draw(moved, temperature=0.0, max_tokens=5)[0]
    path, ids = [], list(PROMPT)
    for token in greedy.tokens:
        row = moved.sample(text(ids + [token]), 1, params(max_tokens=1), include_prompt_logprobs=True,
                           topk_prompt_logprobs=1).result().topk_prompt_logprobs[-1]
        path, ids = path + [row[0][0]], ids + [token]
    check("temperature 0: the most likely tokens", path == list(greedy.tokens), (path, greedy.tokens))
    hot, cold = (draw(moved, temperature=t, max_tokens=1, top_k=1)[0].logprobs[0] for t in (2.0, 0.5))
    check("log-probabilities scale with the temperature", hot < cold, (hot, cold))
    check("top_k 1: the most likely token", draw(moved, top_k=1)[0].tokens[0] == greedy.tokens[0])


def options(service, client):
    """Options of sampling that a server may refuse, but not ignore."""
    sampler, count = snapshot(client), len(PROMPT)
    ask = lambda **more: sampler.sample(text(PROMPT), 1, params(), **more).result()
    whole = ask(include_prompt_logprobs=True, topk_prompt_logprobs=2)

    def option(name, test):
        try:
            passes = test()
        except (tinker.RequestFailedError, tinker.APIStatusError) as error:
            return check(f"option {name}: refused by its name", name in str(error), error)
        except Exception as error:  # noqa: BLE001 (a wrong shape of the response)
            if "unexpected keyword" in str(error):
                return print("skip", f"option {name}: this SDK has none")
            return check(f"option {name}", False, repr(error))
        return check(f"option {name}", passes)
    option("topk_sample_logprobs", lambda: all(
        len(row) == 2 and row[0][1] >= max(row[1][1], own) for s in ask(topk_sample_logprobs=2).sequences
        for row, own in zip(s.topk_logprobs, s.logprobs)))
    last = lambda: ask(include_prompt_logprobs=True, prompt_logprobs_last_n=3).prompt_logprobs
    option("prompt_logprobs_last_n", lambda: last() == [None] * (count - 3) + whole.prompt_logprobs[-3:])
    targets = np.full((count - 1, 2), -1, np.int64)
    targets[4] = [row[0] for row in whole.topk_prompt_logprobs[5]]
    scored = lambda: ask(target_prompt_logprobs=types.TensorData.from_numpy(targets)).target_prompt_logprobs.to_numpy()
    option("target_prompt_logprobs", lambda: scored()[4].tolist() == [row[1] for row in whole.topk_prompt_logprobs[5]])
    others = lambda: ask(prompt_alt_tokens_k=3).prompt_alt_tokens.tokens.shape
    option("prompt_alt_tokens_k", lambda: list(others()) == [count - 1, 3])
    future = sampler.sample(text(PROMPT), 8, params(max_tokens=300))
    (future.future() if hasattr(future, "future") else future).cancel()
    check("a cancelled sample disturbs no other", bits(ask().sequences) == bits(draw(sampler)))


def stops(service, client):
    sampler, tokenizer = snapshot(client), client.get_tokenizer()
    whole = list(draw(sampler, max_tokens=40)[0].tokens)
    place = next(n for n in range(3, 40) if whole[n] not in whole[:n])
    one = draw(sampler, max_tokens=40, stop=[whole[place]])[0]
    check("stop ids: ends with the id", (list(one.tokens), one.stop_reason) == (whole[:place + 1], "stop"),
          (one, whole))
    decode = lambda count: tokenizer.decode(whole[:count], skip_special_tokens=True)
    wanted = next(one for one in decode(40) if one.isalpha() and one.isascii() and one not in decode(3))
    end = next(count for count in range(1, 41) if wanted in decode(count))
    for name, stop in (("a string", wanted), ("a list of strings", ["\u0000never", wanted])):
        one = draw(sampler, max_tokens=40, stop=stop)[0]
        check(f"stop: {name}", list(one.tokens) == whole[:end] and one.stop_reason == "stop", (one, whole, wanted, end))
    ends = [s for n in range(8) for s in draw(sampler, count=8, seed=n, max_tokens=200, stop=None)]
    eos = tokenizer.eos_token_id
    finished = [s for s in ends if s.stop_reason == "stop"]
    check("stop: without one, the model's EOS", all(list(s.tokens)[-1] == eos for s in finished)
          and all(eos not in list(s.tokens)[:-1] for s in ends), f"{len(finished)} of {len(ends)} ended")


def together(service, client):
    """Clients at once get the bits of one alone; trainers side by side have the adapters of one alone."""
    others = [new(service, rank=rank) for rank in (2, 8)]
    for other in others:
        train(other)
    samplers = [snapshot(trainer) for trainer in (client, *others)]
    one = lambda n: bits(draw(samplers[n % 3], prompt=[30 + (n * 7 + i) % 90 for i in range(1 + 4 * n)], seed=n))
    alone = [one(n) for n in range(48)]
    with concurrent.futures.ThreadPoolExecutor(48) as pool:
        check("48 requests with three adapters at once", list(pool.map(one, range(48))) == alone)
    single = new(service, rank=8)
    for n in range(3):
        train(single, range(60 + n, 90))
    pair = [new(service, rank=8), new(service, rank=2)]
    queued = [future for n in range(3) for other in pair for future in (
        other.forward_backward([supervised(list(range(60 + n, 90)))], "cross_entropy"), other.optim_step(ADAM))]
    busy = one(9)
    [future.result() for future in queued]
    beside, by_itself = (scores(trainer, list(range(50, 80))).tobytes() for trainer in (pair[0], single))
    check("a trainer beside others", beside == by_itself)
    check("a sampler beside trainers", busy == alone[9])


def states(service, client):
    rest, ids = service.create_rest_client(), list(range(50, 80))
    saved = client.save_state("state-1").result().path
    check("save_state: the path", saved == f"tinker://{client.model_id}/weights/state-1", saved)
    before = scores(client, ids)
    train(client)
    after, changed = scores(client, ids), lambda c: scores(c, ids).tobytes()
    whole = ready(service.create_training_client_from_state_with_optimizer(saved))
    check("load with optimizer: rank", whole.get_info().lora_rank == 4)
    check("load with optimizer: the saved weights", changed(whole) == before.tobytes() != after.tobytes())
    train(whole)
    check("load with optimizer: the next step has the same bits", changed(whole) == after.tobytes())
    bare = ready(service.create_training_client_from_state(saved))
    check("load: the saved weights", changed(bare) == before.tobytes())
    train(bare)
    check("load: a step begins with new moments", changed(bare) != after.tobytes())
    legacy = new(service, seed=1)
    legacy.load_state_with_optimizer(saved).result()
    check("load_state into a client", changed(legacy) == before.tobytes())
    train(legacy)
    check("load_state into a client: the next step has the same bits", changed(legacy) == after.tobytes())

    path = client.save_weights_for_sampler("sampler-1").result().path
    check("save_weights_for_sampler: the path", path == f"tinker://{client.model_id}/sampler_weights/sampler-1", path)
    named, ephemeral = sampler_of(service, model_path=path), snapshot(client)
    check("a sampler of a path is the snapshot", bits(draw(named, count=2)) == bits(draw(ephemeral, count=2)))
    check("a sampler of a path: its base", named.get_base_model() == MODEL, named.get_base_model())
    clone = pickle.loads(pickle.dumps(named))
    check("a pickled sampler", bits(draw(clone, count=2)) == bits(draw(named, count=2)))
    if STATE:
        check("the adapter is in the state directory", len(adapter(STATE, path)) > 1000)

    run = rest.get_training_run(client.model_id).result()
    check("REST: the training run", (run.training_run_id, run.base_model, run.is_lora, run.lora_rank)
          == (client.model_id, MODEL, True, 4), run)
    check("REST: by path", rest.get_training_run_by_tinker_path(saved).result().training_run_id == client.model_id)
    runs = rest.list_training_runs().result().training_runs
    check("REST: the list of runs", client.model_id in [run.training_run_id for run in runs])
    listed = {c.tinker_path: c.checkpoint_type for c in rest.list_checkpoints(client.model_id).result().checkpoints}
    check("REST: checkpoints", listed.get(saved) == "training" and listed.get(path) == "sampler", listed)
    info = rest.get_weights_info_by_tinker_path(saved).result()
    check("REST: weights_info", (info.base_model, info.is_lora, info.lora_rank) == (MODEL, True, 4), info)
    if hasattr(rest, "set_checkpoint_ttl_from_tinker_path"):
        soon = client.save_state("soon", ttl_seconds=3600).result().path
        listed = lambda: rest.list_checkpoints(client.model_id).result().checkpoints
        expires = lambda: {checkpoint.tinker_path: checkpoint.expires_at for checkpoint in listed()}
        rest.set_checkpoint_ttl_from_tinker_path(path, 86_400).result()
        times = expires()
        check("ttl: of the request, and set later", times[path] > times[soon] and not times[saved], times)
        rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
        check("ttl: removed", expires()[path] is None, expires())
        short = lambda: client.save_state("short", ttl_seconds=60).result()
        refused("a ttl below an hour", short, "ttl_seconds", "3600")
    rest.delete_checkpoint_from_tinker_path(saved).result()
    listed = [c.tinker_path for c in rest.list_checkpoints(client.model_id).result().checkpoints]
    check("REST: delete", saved not in listed and path in listed, listed)
    gone = lambda: ready(service.create_training_client_from_state(saved))
    refused("loading a deleted checkpoint", gone, "state-1")


def errors(service, client):
    ids = list(range(50, 60))
    columns = lambda **more: [types.Datum(model_input=text(ids[:-1]), loss_fn_inputs={"target_tokens": ids[1:]} | more)]
    run = lambda data, loss, config=None: lambda: client.forward_backward(data, loss, config).result()
    before = scores(client, ids)
    refused("a missing column", run(columns(logprobs=[0.0] * 9), "ppo"), "advantages")
    refused("a loss that does not exist", run(columns(weights=[1.0] * 9), "reinforce_plus"), "reinforce_plus")
    complete = columns(logprobs=[0.0] * 9, advantages=[1.0] * 9)
    refused("a misspelt setting", run(complete, "ppo", {"clip_lo": 0.5}), "clip_lo")
    refused("weights of another length", run(columns(weights=[1.0] * 4), "cross_entropy"), "weights")
    refused("an id out of the vocabulary", run([supervised([1, 2, 10**6])], "cross_entropy"), "1000000")
    refused("a step without a part of its data", lambda: client.optim_step(ADAM).result(), "advantages", "no step")
    check("nothing has changed", scores(client, ids).tobytes() == before.tobytes())
    train(client)
    check("the next step works", scores(client, ids).tobytes() != before.tobytes())

    # Refused requests without a gradient leave the gradient as it is.
    other, undisturbed = new(service), new(service)
    train(undisturbed)
    other.forward_backward([supervised(list(range(60, 80)))], "cross_entropy").result()
    refused("a forward pass over an id out of the vocabulary", lambda: scores(other, [1, 2, 10**6]), "1000000")
    refused("a name with a slash", lambda: other.save_state("a/b").result(), "a/b")
    refused("a second checkpoint of one name", lambda: [other.save_state("twice").result() for _ in "ab"], "twice")
    if hasattr(other, "save_weights_external"):
        refused("an unsupported request", lambda: other.save_weights_external("c").result(), "external")
    other.optim_step(ADAM).result()
    check("the step after them", scores(other, ids).tobytes() == scores(undisturbed, ids).tobytes())

    sampler = snapshot(client)
    served = service.get_server_capabilities().supported_models
    limit = next(model.max_context_length for model in served if model.model_name == MODEL)
    refused("a prompt beyond the context", lambda: draw(sampler, prompt=[40] * (limit + 1)), "context")
    refused("a temperature below 0", lambda: draw(sampler, temperature=-1.0), "temperature")
    refused("an id out of the vocabulary in a prompt", lambda: draw(sampler, prompt=[10**6]), "1000000")
    check("sampling after errors", len(draw(sampler)[0].tokens) == 12)
    refused("an unknown base model", lambda: new(service, base_model="other/model"), "other/model")
    unknown = "tinker://a:train:0/sampler_weights/b"
    refused("an unknown path", lambda: draw(sampler_of(service, model_path=unknown)), unknown)
    image = types.ModelInput(chunks=[types.ImageChunk(data=b"\x89PNG", format="png", expected_tokens=4)])
    refused("an image", lambda: sampler.sample(image, 1, params()).result(), "image")


def end(service, client):
    """A saved state outlives its session."""
    saved, path = (save("end").result().path for save in (client.save_state, client.save_weights_for_sampler))
    ids, expected = list(range(50, 80)), bits(draw(snapshot(client)))
    before = scores(client, ids)
    if hasattr(service, "close"):
        service.close("success").result()
    other = tinker.ServiceClient()
    restored = ready(other.create_training_client_from_state_with_optimizer(saved))
    check("a saved state after its session's end", scores(restored, ids).tobytes() == before.tobytes())
    check("a saved sampler after its session's end", bits(draw(sampler_of(other, model_path=path))) == expected)


def main():
    began = time.time()
    service = tinker.ServiceClient(user_metadata={"who": "conformance"})
    served = [model.model_name for model in service.get_server_capabilities().supported_models]
    check("capabilities: the model", MODEL in served, served)
    client = new(service, user_metadata={"a": "b"})
    info = client.get_info()
    check("info", (info.lora_rank, info.is_lora, info.model_data.model_name) == (4, True, MODEL), info)
    for checks in (sampling, options, stops, together, states, errors):
        part(checks, service, client)
    part(end, service, client)
    finish(began)


main()
