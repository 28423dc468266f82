"""Tests the losses and the optimizer of `lockstep serve` with Tinker's own SDK.

    python conformance/tinker_losses.py URL MODEL [STATE]
    python conformance/tinker_losses.py PROGRAM DIRECTORY

The value of each loss is computed again with torch from the log-probabilities in the response. Its gradient is compared
with that of `forward_backward_custom`, for which torch differentiates the same formula on this side. STATE, the
server's state directory, allows to compare the files of adapters; without it, only log-probabilities are compared.
"""

import os
import time

import numpy as np

from tinker_common import adapter, check, finish, part, settings, target

URL, MODEL, STATE = target()
os.environ.update(settings(URL))

import tinker  # noqa: E402 (reads the environment)
import torch  # noqa: E402
from tinker import types  # noqa: E402
from tinker_calls import logprobs_of, ready, same, sampler_of  # noqa: E402

RATIO = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.15}
CONFIGS = {"importance_sampling": {}, "ppo": RATIO, "cispo": RATIO, "dro": {"beta": 0.3}, "gspo": RATIO}
PROMPTS = [[40, 41, 42, 43, 44, 45, 46, 47], [40, 41, 42, 43, 44, 45, 46, 47], [60, 61, 62]]
# AdamW divides a gradient by its own size, which hides a wrong scale; with a large epsilon the update is linear.
LINEAR = types.AdamParams(learning_rate=10.0, beta1=0.0, beta2=0.0, eps=1000.0)


def formula(name, lp, q, a, mask, config):
    """The loss of one datum: sums over tokens, as docs of Tinker define them."""
    low, high = config.get("clip_low_threshold", 0.8), config.get("clip_high_threshold", 1.2)
    ratio = torch.exp(lp - q)
    if name == "importance_sampling":
        return -(ratio * a).sum()
    if name == "cispo":
        return -(ratio.clamp(low, high).detach() * lp * a).sum()
    if name == "dro":
        # A token with advantage 0 adds nothing: prompts have no log-probability q.
        return -(lp * a - 0.5 * config["beta"] * (lp - q) ** 2 * (a != 0)).sum()
    if name == "gspo":
        # The sequence's ratio has no gradient; each token has that of its own log-probability.
        ratio = torch.exp(((lp - q) * mask).sum() / mask.sum()).detach() * torch.exp(lp - lp.detach())
    return -torch.minimum(ratio * a, ratio.clamp(low, high) * a).sum()


def vector(values):
    return torch.tensor(np.asarray(values), dtype=torch.float32)


class Rows:
    """Sampled completions with perturbed log-probabilities of a sampler, advantages and masks."""

    def __init__(self, sampler):
        noise = np.random.default_rng(4)
        self.inputs, self.targets, self.columns = [], [], []
        for n, prompt in enumerate(PROMPTS):
            params = types.SamplingParams(max_tokens=10, seed=20 + n, stop=[])
            sequence = sampler.sample(types.ModelInput.from_ints(prompt), 1, params).result().sequences[0]
            ids = prompt + list(sequence.tokens)
            before = [0.0] * (len(prompt) - 1)
            q = np.asarray(sequence.logprobs) + noise.normal(0, 0.2, len(sequence.tokens))
            self.inputs.append(ids[:-1])
            self.targets.append(ids[1:])
            self.columns.append({
                "logprobs": before + [float(np.float32(x)) for x in q],
                "advantages": before + [float(np.float32(x)) for x in noise.normal(0, 1, len(q))],
                "sequence_ratio_mask": before + [1.0] * len(q),
            })

    def data(self, *names, **more):
        def inputs(n):
            chosen = {name: self.columns[n][name] for name in names} | {key: value[n] for key, value in more.items()}
            tensors = {key: types.TensorData.from_torch(vector(value)) for key, value in chosen.items()}
            return tensors | {"target_tokens": types.TensorData.from_torch(torch.tensor(self.targets[n]))}
        return [types.Datum(model_input=types.ModelInput.from_ints(ids), loss_fn_inputs=inputs(n))
                for n, ids in enumerate(self.inputs)]

    def weights(self, seed=9):
        draw = np.random.default_rng(seed)
        return [draw.normal(0, 1, len(ids)).astype(np.float32).tolist() for ids in self.inputs]

    def total(self, name, logprobs, config):
        """The loss of all rows; f64 where the log-probabilities are."""
        columns = [{key: vector(value).to(logprobs[n].dtype) for key, value in row.items()}
                   for n, row in enumerate(self.columns)]
        return sum(formula(name, lp, row["logprobs"], row["advantages"], row["sequence_ratio_mask"], config)
                   for lp, row in zip(logprobs, columns))


class Trainer:
    """A training client whose adapter can be compared with another's."""

    def __init__(self, service, rank=4, seed=5):
        self.client = ready(service.create_lora_training_client(
            base_model=MODEL, rank=rank, seed=seed, train_unembed=False))

    def step(self, data, loss, config=None, params=LINEAR):
        backward = self.client.forward_backward(data, loss, config)
        stepped = self.client.optim_step(params)
        return backward.result(), stepped.result()

    def custom(self, data, loss):
        output = self.client.forward_backward_custom(data, lambda _, logprobs: (loss(logprobs), {})).result()
        self.client.optim_step(LINEAR).result()
        return output

    def forward(self, data):
        return logprobs_of(self.client.forward(data, "cross_entropy").result())

    def tensors(self):
        """The adapter's bytes and tensors; None without STATE."""
        path = self.client.save_weights_for_sampler("adapter").result().path
        if STATE is None:
            return None, None
        import safetensors.numpy
        data = adapter(STATE, path)
        return data, safetensors.numpy.load(data)


def equal(name, a, b, data):
    """Compares two trainers: by bits."""
    check(f"{name}: the same log-probabilities", same(a.forward(data), b.forward(data)))
    (first, _), (second, _) = a.tensors(), b.tensors()
    if first is not None:
        check(f"{name}: the same adapter file", first == second)


def near(name, a, b, data, started):
    """Compares the updates of two trainers: the difference is small beside the update."""
    pairs = list(zip(a.forward(data), b.forward(data), started))
    moved = max(np.abs(x - s).max() for x, _, s in pairs)
    difference = max(np.abs(x - y).max() for x, y, _ in pairs)
    check(f"{name}: the same update", moved > 1e-3 and difference < 1e-3 * moved, (moved, difference))
    (_, first), (_, second) = a.tensors(), b.tensors()
    if first is not None:
        # B starts at 0, so B is its own update.
        size = max(np.abs(value).max() for key, value in first.items() if "lora_B" in key)
        worst = max(np.abs(first[key] - second[key]).max() for key in first)
        check(f"{name}: nearly the same adapter", size > 1e-4 and worst < 1e-3 * size, (size, worst))


def losses(service, rows, started):
    plain = rows.data(weights=rows.weights())
    for name, config in CONFIGS.items():
        # The custom loss is differentiated by torch.
        needs = ["logprobs", "advantages"] + (["sequence_ratio_mask"] if name == "gspo" else [])
        built_in, custom = Trainer(service), Trainer(service)
        for step in range(2):
            output, _ = built_in.step(rows.data(*needs), name, config)
            logprobs = [torch.tensor(row.astype(np.float64)) for row in logprobs_of(output)]
            expected = float(rows.total(name, logprobs, config))
            value = output.metrics["loss:sum"]
            check(f"{name}: the value of step {step}", abs(value - expected) < 1e-5 * max(1, abs(expected)),
                  (value, expected))
            custom.custom(plain, lambda logprobs: rows.total(name, [row.flatten() for row in logprobs], config))
        near(name, built_in, custom, plain, started)
    a, b = Trainer(service), Trainer(service)
    a.step(rows.data("logprobs", "advantages"), "ppo")
    b.step(rows.data("logprobs", "advantages"), "ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2})
    equal("ppo: the default range is 0.8 to 1.2", a, b, plain)


def cross_entropy(service, rows, started):
    weights = rows.weights()
    data = rows.data(weights=weights)
    plain, custom = Trainer(service), Trainer(service)
    for step in range(3):
        output, _ = plain.step(data, "cross_entropy")
        logprobs = logprobs_of(output)
        expected = -sum(float(np.dot(lp.astype(np.float64), w)) for lp, w in zip(logprobs, weights))
        value = output.metrics["loss:sum"]
        check(f"cross_entropy: the value of step {step}", abs(value - expected) < 1e-5 * max(1, abs(expected)),
              (value, expected))
        custom.custom(data, lambda logprobs: -sum((vector(w) * lp.flatten()).sum() for w, lp in zip(weights, logprobs)))
    equal("custom: −Σ w·lp is cross_entropy", plain, custom, data)

    whole, parts = Trainer(service), Trainer(service)
    whole.step(data, "cross_entropy")
    for datum in data:
        parts.client.forward_backward([datum], "cross_entropy")
    parts.client.optim_step(LINEAR).result()
    near("the sum of several forward_backward", whole, parts, data, started)

    # Importance sampling at ratio 1 has the gradient of cross entropy with the advantages as weights.
    a, b = Trainer(service), Trainer(service)
    now = [row.tolist() for row in a.forward(data)]
    a.step(rows.data(logprobs=now, advantages=weights), "importance_sampling")
    b.step(data, "cross_entropy")
    moved = [np.abs(x - y).max() for x, y in zip(a.forward(data), b.forward(data))]
    check("importance_sampling at ratio 1 is cross_entropy", max(moved) < 1e-6, moved)


def many(service):
    """More data than one request of the SDK holds: it sends several, perhaps at once."""
    rng, trainer = np.random.default_rng(8), Trainer(service)
    ids = rng.integers(20, 200, (1100, 4)).tolist()
    data = [types.Datum(model_input=types.ModelInput.from_ints(row[:-1]), loss_fn_inputs={
        "target_tokens": row[1:], "weights": [1.0, 0.5, 0.25]}) for row in ids]
    output, _ = trainer.step(data, "cross_entropy")
    rows = logprobs_of(output)
    expected = -sum(float(np.dot(row.astype(np.float64), [1.0, 0.5, 0.25])) for row in rows)
    check("1100 data: all outputs, the value of all", len(rows) == 1100 and
          abs(output.metrics["loss:sum"] - expected) < 1e-5 * expected, (len(rows), output.metrics, expected))
    alone = Trainer(service).forward(data[1090:1091])
    check("1100 data: outputs are in the order of the data", same(alone, rows[1090:1091]), (alone, rows[1090]))


def several_targets(service, rows):
    """N×K targets, as in the distillation of the k most likely tokens."""
    k, trainer, single = 3, Trainer(service), Trainer(service)
    targets = [torch.tensor([[t, (t + 1) % 200, (t + 2) % 200] for t in ids]) for ids in rows.targets]
    weights = [vector(np.random.default_rng(n).random((len(ids), k))) for n, ids in enumerate(rows.targets)]
    data = [types.Datum(model_input=types.ModelInput.from_ints(ids), loss_fn_inputs={
        "target_tokens": types.TensorData.from_torch(t), "weights": types.TensorData.from_torch(w)})
        for ids, t, w in zip(rows.inputs, targets, weights)]
    output, _ = trainer.step(data, "cross_entropy")
    logprobs = [row.reshape(-1, k) for row in logprobs_of(output)]
    plain = rows.data(weights=rows.weights())
    first = single.forward(plain)
    column = [np.ascontiguousarray(row[:, 0]) for row in logprobs]
    check("N×K targets: column 0 is that of N targets", same(column, first), (column[0], first[0]))
    expected = -sum(float((torch.tensor(lp).double() * w.double()).sum()) for lp, w in zip(logprobs, weights))
    check("N×K targets: the value", abs(output.metrics["loss:sum"] - expected) < 1e-5 * abs(expected), output.metrics)
    columns = [types.Datum(model_input=types.ModelInput.from_ints(ids), loss_fn_inputs={
        "target_tokens": types.TensorData.from_torch(t[:, n].contiguous()),
        "weights": types.TensorData.from_torch(w[:, n].contiguous())})
        for ids, t, w in zip(rows.inputs, targets, weights) for n in range(k)]
    started = single.forward(plain)
    single.step(columns, "cross_entropy")
    near("N×K targets, and K data with N targets", trainer, single, plain, started)


def optimizer(service, rows):
    """Every setting of AdamW is read at each step."""
    data, seen = rows.data(weights=rows.weights()), {}
    base = dict(learning_rate=0.01, beta1=0.9, beta2=0.95, eps=1e-8)
    variants = {"as it is": {}, "beta1": {"beta1": 0.5}, "beta2": {"beta2": 0.5}, "eps": {"eps": 0.1},
                "decay": {"weight_decay": 0.3}, "clip": {"grad_clip_norm": 1e-6, "eps": 1e-3}}
    for name, change in variants.items():
        trainer = Trainer(service)
        for _ in range(2):
            _, stepped = trainer.step(data, "cross_entropy", params=types.AdamParams(**(base | change)))
        seen[name] = trainer.forward(data)
    for name in list(variants)[1:]:
        check(f"optim_step: {name} has an effect", not same(seen[name], seen["as it is"]))
    moved = max(np.abs(a - b).max() for a, b in zip(seen["clip"], Trainer(service).forward(data)))
    check("optim_step: a small clip norm makes a small step", moved < 1e-2, moved)
    values = (stepped.metrics or {}).values()
    check("optim_step: metrics are finite", all(np.isfinite(value) for value in values), stepped)


def main():
    began = time.time()
    service = tinker.ServiceClient()
    rows = Rows(sampler_of(service, base_model=MODEL))
    started = Trainer(service).forward(rows.data(weights=rows.weights()))
    part(cross_entropy, service, rows, started)
    part(losses, service, rows, started)
    part(many, service)
    part(several_targets, service, rows)
    part(optimizer, service, rows)
    finish(began)


main()
