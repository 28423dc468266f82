"""Makes crates/train/tests/fixtures/trl: one GRPO step of TRL's GRPOTrainer in each of its variants, as numbers.

    pip install trl==1.16.0 torch==2.15.0 transformers==5.23.0 && python conformance/trl_fixtures.py

The real GRPOTrainer trains a tiny random Qwen3 model (float32, CPU). Fixed prompts, completions, rewards and old
log-probabilities are replayed into it through its `rollout_func`. These parts are not TRL's own:

- In cases named "changed", `old_per_token_logps` are put into the output of `_generate_and_score_completions`, where
TRL would have those of an earlier model. Cases named "on" have none, as TRL has none on policy.
- The shuffle of a generation batch is the identity; a shuffle would only reorder rows.
- The reference model's weights are 0.9 times the policy's, so that the KL divergence is not 0.

Loss, gradient norm and the gradient for each token's log-probability are read before the optimizer step; metrics are
from TRL's log.
"""

import itertools
import json
import os
import pathlib
import shutil
import tempfile

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")

import torch
from datasets import Dataset
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, TrainerCallback
from transformers.optimization import get_scheduler
import transformers
import trl
import trl.trainer.grpo_trainer as grpo_trainer
from trl import GRPOConfig, GRPOTrainer

OUT = pathlib.Path(__file__).resolve().parents[1] / "crates/train/tests/fixtures/trl"
PAD, EOS, VOCAB = 0, 1, 50
GROUPS, G, MAX_LENGTH, TEMPERATURE = 4, 4, 8, 0.7
EPSILON, EPSILON_HIGH = 0.2, 0.28

torch.set_num_threads(1)
grpo_trainer.shuffle_sequence_dict = lambda batch: batch


def tiny_model():
    """Returns a model with weights that make every part matter: matrices N(0, 1.5/sqrt(fan_in)), norms U(0.5, 1.5)."""
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64, tie_word_embeddings=True,
        bos_token_id=EOS, eos_token_id=EOS, pad_token_id=PAD, attn_implementation="eager",
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).float()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.copy_(torch.randn(p.shape, generator=generator) * 1.5 / p.shape[1] ** 0.5)
            else:
                p.copy_(torch.rand(p.shape, generator=generator) + 0.5)
    return model


def tokenizer():
    words = {"<pad>": PAD, "<eos>": EOS} | {f"w{i}": i for i in range(2, VOCAB)}
    inner = Tokenizer(WordLevel(words, unk_token="<pad>"))
    inner.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", padding_side="left")


def rollouts():
    """Returns 4 prompts with 4 completions each, of 1 to 8 tokens. Some end with EOS; those of 8 tokens are cut by the
    limit."""
    g = torch.Generator().manual_seed(2)
    draw = lambda n: torch.randint(2, VOCAB, (n,), generator=g).tolist()
    prompts = [draw(n) for n in (5, 3, 7, 4)]
    completions = []
    for n in (8, 3, 5, 1, 2, 8, 4, 6, 7, 5, 8, 2, 3, 8, 4, 6):
        completions.append(draw(n) if n == MAX_LENGTH else draw(n - 1) + [EOS])
    masks = [[int(t % 3 != 1) for t in range(len(c))] for c in completions]
    # The rewards of the third group are all equal.
    a = [1.0, 0.0, 0.5, 0.25, 2.0, 1.5, -1.0, 0.0, 0.75, 0.75, 0.75, 0.75, 0.1, 0.2, 0.4, 0.8]
    b = [0.0, 3.0, 1.0, 2.0, 0.5, 0.0, 0.0, 4.0, 1.0, 1.0, 1.0, 1.0, -2.0, 1.0, 0.0, 0.3]
    # Some scores are missing; the 7th completion, and all but one of the second group, have no score at all.
    a_none, b_none = list(a), list(b)
    for i in (1, 4, 5, 6, 13):
        a_none[i] = None
    for i in (3, 4, 5, 6, 15):
        b_none[i] = None
    # Log-probabilities of the old policy: the current ones, plus noise for each sequence and each token.
    noise = []
    g = torch.Generator().manual_seed(NOISE_SEED)
    for c in completions:
        shift = torch.randn(1, generator=g) * 0.35
        noise.append((shift + torch.randn(len(c), generator=g) * 0.3).tolist())
    return dict(
        prompts=prompts, completions=completions, env_mask=masks, noise=noise,
        rewards=[a, b], rewards_with_none=[a_none, b_none], reward_weights=[1.0, 0.5],
    )  # fmt: skip


NOISE_SEED = 0  # the first seed that `check_margins` accepts


class Replay(GRPOTrainer):
    """GRPOTrainer that replays old log-probabilities, and records what it computes."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self.replayed_old is not None:
            output["old_per_token_logps"] = self.replayed_old
        self.seen.update(advantages=output["advantages"].tolist(), ref_logps=output.get("ref_per_token_logps"))
        return output

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        logps, entropies, aux = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if logps.requires_grad:
            logps.retain_grad()
            self.seen.update(logps=logps, entropies=entropies)
        return logps, entropies, aux

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        self.seen["loss"] = loss.item()
        return loss


class Gradient(TrainerCallback):
    """Callback that records the gradient norm after clipping, in f64."""

    norm = None

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.norm = sum(p.grad.double().pow(2).sum() for p in model.parameters() if p.grad is not None).sqrt().item()


def digits(x):
    """Rounds numbers to nine significant digits, which is all that an f32 has."""
    if isinstance(x, list):
        return [digits(v) for v in x]
    return float(f"{x:.9g}") if isinstance(x, float) else x


def ragged(tensor, completions):
    return digits([row[: len(c)].tolist() for row, c in zip(tensor.detach(), completions)])


def run(data, model_dir, old, *, none_rewards=False, env_mask=False, keep_weights=False, **config):
    completions = data["completions"]
    table = data["rewards_with_none" if none_rewards else "rewards"]

    def reward(k):
        def scores(prompts, completions, completion_ids, **_):
            assert completion_ids == data["completions"]
            return table[k]

        scores.__name__ = ["first", "second"][k]
        return scores

    def rollout(prompts, trainer):
        ids = [p for p in data["prompts"] for _ in range(G)]
        out = dict(prompt_ids=ids, completion_ids=completions, logprobs=[[0.0] * len(c) for c in completions])
        return out | (dict(env_mask=data["env_mask"]) if env_mask else {})

    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out, per_device_train_batch_size=GROUPS * G, num_generations=G, gradient_accumulation_steps=1,
            max_completion_length=MAX_LENGTH, temperature=TEMPERATURE, epsilon=EPSILON, epsilon_high=EPSILON_HIGH,
            reward_weights=data["reward_weights"], max_steps=1, logging_steps=1, report_to=[], save_strategy="no",
            shuffle_dataset=False, bf16=False, use_cpu=True, gradient_checkpointing=False, learning_rate=1e-3,
            lr_scheduler_type="constant", disable_tqdm=True, seed=0, **{"max_grad_norm": 1e9, **config},
        )  # fmt: skip
        model = Qwen3ForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
        gradient = Gradient()
        trainer = Replay(
            model=model, reward_funcs=[reward(0), reward(1)], args=args, processing_class=tokenizer(),
            train_dataset=Dataset.from_dict({"prompt": [f"w{i + 2}" for i in range(GROUPS)]}),
            rollout_func=rollout, callbacks=[gradient],
        )  # fmt: skip
        if trainer.ref_model is not None:
            with torch.no_grad():
                for p in trainer.ref_model.parameters():
                    p.mul_(0.9)
        trainer.seen = {}
        trainer.replayed_old = None
        if old is not None:
            width = max(len(c) for c in completions)
            trainer.replayed_old = torch.tensor([row + [0.0] * (width - len(row)) for row in old])
        trainer.train()
        log, seen = trainer.state.log_history[0], trainer.seen
        if args.max_grad_norm > 1e6:
            assert abs(log["grad_norm"] - gradient.norm) < 1e-3 * gradient.norm, (log["grad_norm"], gradient.norm)
        keys = ["entropy", "kl", "reward", "reward_std", "frac_reward_zero_std"]
        keys += [k for k in log if k.startswith(("clip_ratio/", "rewards/"))]
        metrics = {k: log[k] for k in keys if k in log}
        case = dict(loss=digits(seen["loss"]), grad_norm=digits(log["grad_norm"]), advantages=digits(seen["advantages"]))
        case["metrics"] = {k: digits(v) for k, v in metrics.items()}
        case["d_logps"] = ragged(seen["logps"].grad, completions)
        if keep_weights:
            case["weights_after"] = {k: v.detach().clone() for k, v in model.state_dict().items() if k != "lm_head.weight"}
        logps = {k: ragged(seen[k], completions) for k in ("logps", "entropies")}
        if seen["ref_logps"] is not None:
            logps["ref_logps"] = ragged(seen["ref_logps"], completions)
        return case, logps


def adamw():
    """Returns four steps of torch's AdamW with gradient clipping, for the optimizer's own test."""
    g = torch.Generator().manual_seed(5)
    p = torch.nn.Parameter(torch.randn(6, generator=g))
    start = p.detach().tolist()
    optimizer = torch.optim.AdamW([p], lr=1e-2, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
    grads, params = [], []
    for scale in (0.1, 3.0, 0.0, 1.0):
        grad = torch.randn(6, generator=g) * scale
        grads.append(grad.tolist())
        p.grad = grad.clone()
        torch.nn.utils.clip_grad_norm_([p], 1.0)
        optimizer.step()
        params.append(p.detach().tolist())
    return dict(start=digits(start), grads=digits(grads), params=digits(params))


def schedules():
    out = {}
    for kind, warmup, total in (("constant", 0, 10), ("constant_with_warmup", 3, 10), ("linear", 3, 10), ("cosine", 3, 10), ("linear", 0, 7), ("cosine", 0, 7)):  # fmt: skip
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
        schedule = get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=total)
        rates = []
        for _ in range(total + 2):
            rates.append(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()
        out[f"{kind} {warmup} {total}"] = rates
    return out


def check_margins(data):
    """Asserts that no ratio is so near a clip bound that a rounding error could decide, and that both sides are
    clipped, for ratios of tokens and of sequences."""
    bounds = torch.tensor([1 - EPSILON, 1 + EPSILON_HIGH, 1.4])
    ratios = [torch.tensor(n).neg() for n in data["noise"]]
    for level in ([r for row in ratios for r in row.tolist()], [r.mean().item() for r in ratios]):
        r = torch.tensor(level).exp()
        assert (r[:, None] - bounds).abs().min() > 1e-4, (r[:, None] - bounds).abs().min()
        assert (r < bounds[0]).any() and (r > bounds[1]).any()


def main():
    data = rollouts()
    check_margins(data)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    model = tiny_model()
    with tempfile.TemporaryDirectory() as model_dir:
        model.save_pretrained(model_dir)
        shutil.copy(pathlib.Path(model_dir) / "config.json", OUT / "config.json")
        save_file({k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}, OUT / "model.safetensors", {"format": "pt"})
        first, shared = run(data, model_dir, None, beta=0.04)
        old = [[l + n for l, n in zip(*row)] for row in zip(shared["logps"], data["noise"])]
        old = [torch.tensor(row).tolist() for row in old]
        cases = []

        def add(policy, name="", **config):
            case, logps = run(data, model_dir, old if policy == "changed" else None, **config)
            weights = case.pop("weights_after", None)
            for key, value in logps.items():
                if not config.get("mask_truncated_completions"):
                    assert value == shared[key], key
            cases.append(dict(name=name, policy=policy, config=config, **case))
            return weights

        grid = itertools.product(
            ("grpo", "bnpo", "dr_grpo", "dapo"), ("token", "sequence"), (0.0, 0.04), ("group", "batch", "none"), ("on", "changed")
        )  # fmt: skip
        for loss_type, level, beta, scale, policy in grid:
            add(policy, loss_type=loss_type, importance_sampling_level=level, beta=beta, scale_rewards=scale)
        for level in ("token", "sequence"):
            base = dict(loss_type="dapo", importance_sampling_level=level)
            add("changed", "delta", delta=1.4, **base)
            for policy in ("on", "changed"):
                add(policy, "plain KL", beta=0.04, use_bias_correction_kl=False, **base)
        for loss_type in ("grpo", "dapo", "dr_grpo"):
            base = dict(loss_type=loss_type, scale_rewards="group")
            add("changed", "truncated masked", mask_truncated_completions=True, **base)
            add("changed", "foreign tokens", env_mask=True, beta=0.04, **base)
        for scale in ("group", "batch", "none"):
            add("changed", "missing rewards", none_rewards=True, loss_type="dapo", scale_rewards=scale)
        after = add("changed", "step", keep_weights=True, loss_type="dapo", max_grad_norm=0.05, weight_decay=0.1)
        save_file(after, OUT / "after.safetensors", {"format": "pt"})

    versions = dict(trl=trl.__version__, transformers=transformers.__version__, torch=torch.__version__.split("+")[0])
    common = dict(
        num_generations=G, max_completion_length=MAX_LENGTH, temperature=TEMPERATURE, epsilon=EPSILON,
        epsilon_high=EPSILON_HIGH, learning_rate=1e-3, reference_scale=0.9,
    )  # fmt: skip
    data = {k: v for k, v in data.items() if k != "noise"}
    fixture = dict(versions=versions, common=common, rollouts=data, old_logps=digits(old), **shared)
    fixture |= dict(adamw=adamw(), schedules=schedules(), cases=cases)
    (OUT / "cases.json").write_text(json.dumps(fixture, separators=(",", ":")) + "\n")
    print(len(cases), "cases", {p.name: p.stat().st_size for p in OUT.iterdir()})


if __name__ == "__main__":
    main()
