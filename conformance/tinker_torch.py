"""Compares five supervised steps of `lockstep serve` with the same steps in torch and transformers.

    python conformance/tinker_torch.py PROGRAM TINY

TINY is the directory that make_tiny.py wrote. The server makes the initial adapter (rank 4, alpha 32), which torch
reads from the saved PEFT directory. Both sides then minimise −Σ w·log p with AdamW and settings like Tinker's. The loss
of each step is compared, and the adapter at the end.
"""

import json
import os
import pathlib
import random
import sys
import tempfile
import time

from tinker_common import NAME, Server, check, finish, program, settings

TINY = pathlib.Path(sys.argv[2])
ADAM = dict(learning_rate=1e-3, beta1=0.9, beta2=0.95, eps=1e-12, weight_decay=0.01)
CLIP = 0.5


def rows():
    """Token ids and weights: some zero, some negative, as Tinker allows; two rows share their beginning."""
    draw = random.Random(3)
    ids = [[draw.randrange(20, 400) for _ in range(length)] for length in (24, 31, 9, 70)]
    ids.append(ids[1][:20] + [draw.randrange(20, 400) for _ in range(12)])
    return [(row, [draw.choice([0.0, 0.0, 1.0, 1.0, 0.5, -0.25]) for _ in row[1:]]) for row in ids]


def with_lockstep(binary, home):
    with Server(binary, TINY / "model", home / "state") as server:
        os.environ.update(settings(server.url))
        import tinker
        from tinker import types
        service = tinker.ServiceClient()
        client = service.create_lora_training_client(base_model=NAME, rank=4, seed=11, train_unembed=False).result()

        def saved(name):
            path = client.save_weights_for_sampler(name).result().path
            return server.state / path.removeprefix("tinker://")
        start = saved("start")
        data = [types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]),
                            loss_fn_inputs={"target_tokens": ids[1:], "weights": weights}) for ids, weights in rows()]
        losses, norms = [], []
        for _ in range(5):
            backward = client.forward_backward(data, "cross_entropy")
            stepped = client.optim_step(types.AdamParams(**ADAM, grad_clip_norm=CLIP)).result()
            losses.append(backward.result().metrics["loss:sum"])
            norms.append(stepped.metrics or {})
        return start, saved("end"), losses, norms


def add_adapter(model, start):
    """Adds the adapter in `start` to a model of transformers; returns its parameters by PEFT's names."""
    import safetensors.torch
    import torch
    config = json.loads((start / "adapter_config.json").read_text())
    check("alpha is 32, the rank 4", (config["lora_alpha"], config["r"]) == (32, 4), config)
    tensors = safetensors.torch.load_file(start / "adapter_model.safetensors")
    parameters = {name: torch.nn.Parameter(value.double()) for name, value in tensors.items()}
    scale = config["lora_alpha"] / config["r"]
    for name in tensors:
        if not name.endswith("lora_A.weight"):
            continue
        module = model.get_submodule(name.removeprefix("base_model.model.").removesuffix(".lora_A.weight"))
        a, b = parameters[name], parameters[name.replace("lora_A", "lora_B")]
        module.register_forward_hook(lambda _, inputs, output, a=a, b=b: output + scale * (inputs[0] @ a.T) @ b.T)
    return parameters


def with_torch(start):
    import torch
    import transformers
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        TINY / "model", dtype=torch.float32, attn_implementation="eager").double()
    model.requires_grad_(False)
    parameters = add_adapter(model, start)
    optimizer = torch.optim.AdamW(parameters.values(), lr=ADAM["learning_rate"], betas=(ADAM["beta1"], ADAM["beta2"]),
                                  eps=ADAM["eps"], weight_decay=ADAM["weight_decay"])
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        total = 0.0
        for ids, weights in rows():
            logits = model(torch.tensor([ids[:-1]])).logits[0]
            logprobs = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
            total = total - (torch.tensor(weights, dtype=torch.float64) * logprobs).sum()
        total.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), CLIP)
        optimizer.step()
        losses.append(total.item())
    return parameters, losses


def main():
    began = time.time()
    with tempfile.TemporaryDirectory() as home:
        start, end, losses, _ = with_lockstep(program(), pathlib.Path(home))
        parameters, expected = with_torch(start)
        import safetensors.torch
        first, last = (safetensors.torch.load_file(path / "adapter_model.safetensors") for path in (start, end))
    tokens = sum(len(weights) for _, weights in rows())
    for step, (loss, wanted) in enumerate(zip(losses, expected)):
        check(f"step {step}: the loss of a token", abs(loss - wanted) < 1e-5 * tokens, (loss, wanted))
    check("the loss falls", losses[-1] < losses[0], losses)
    moved = max((last[name] - first[name]).abs().max().item() for name in first)
    worst = {name: (last[name].double() - parameters[name]).abs().max().item() for name in first}
    check("the adapter has moved", moved > 1e-3, moved)
    check("the adapter is torch's", max(worst.values()) < 1e-4, sorted(worst.items(), key=lambda item: -item[1])[:3])
    print(f"largest difference of the adapter {max(worst.values()):.1e}, of a loss "
          f"{max(abs(a - b) for a, b in zip(losses, expected)):.1e}")
    finish(began)


if __name__ == "__main__":
    main()
