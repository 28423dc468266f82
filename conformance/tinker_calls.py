"""Short calls of Tinker's SDK for the scripts tinker_*.py. The environment must name the server before the import."""

import numpy as np
from tinker import types

PROMPT = list(range(40, 52))


def ready(client):
    """A client, or the client of a future: SDKs before 0.38 return clients at once."""
    return client.result() if hasattr(client, "result") else client


def text(ids):
    return types.ModelInput.from_ints(list(ids))


def params(**more):
    return types.SamplingParams(**({"max_tokens": 12, "seed": 3, "stop": [], "temperature": 1.0} | more))


def draw(sampler, prompt=PROMPT, count=1, **more):
    return sampler.sample(text(prompt), count, params(**more)).result().sequences


def bits(sequences):
    return [(list(s.tokens), np.asarray(s.logprobs, np.float32).tobytes(), str(s.stop_reason)) for s in sequences]


def supervised(ids, weights=None):
    """A datum that learns ids[1:], each token after those before it."""
    weights = [1.0] * (len(ids) - 1) if weights is None else weights
    return types.Datum(model_input=text(ids[:-1]), loss_fn_inputs={"target_tokens": list(ids[1:]), "weights": weights})


def scores(client, ids):
    output = client.forward([supervised(ids)], "cross_entropy").result()
    return np.asarray(output.loss_fn_outputs[0]["logprobs"].to_numpy(), np.float32)


def snapshot(client):
    return ready(client.save_weights_and_get_sampling_client())


def sampler_of(service, **source):
    return ready(service.create_sampling_client(**source))


def logprobs_of(output):
    """The log-probabilities of each datum in a response of training."""
    return [np.asarray(row["logprobs"].to_numpy(), np.float32) for row in output.loss_fn_outputs]


def same(a, b):
    """Whether two lists of arrays have the same bits."""
    return len(a) == len(b) and all(x.tobytes() == y.tobytes() for x, y in zip(a, b))
