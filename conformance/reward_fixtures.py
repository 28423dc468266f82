"""Makes crates/train/tests/fixtures/reward: one step of TRL's RewardTrainer for each of its options, as numbers.

    pip install trl==1.16.0 torch==2.15.0 transformers==5.23.0 && python conformance/reward_fixtures.py

The real RewardTrainer (float32, CPU) trains on preference pairs of token ids. The model is the tiny random one that
conformance/trl_fixtures.py made (crates/train/tests/fixtures/trl), with a score head, which is part of the fixture. Two
pairs share a prompt, one pair has answers of equal length, and the margins are 0, small, and larger than any difference
of scores. The dataset has token ids, in columns with the names that TRL's own preparation writes.
"""

import json
import os
import pathlib
import tempfile

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")

import torch
import transformers
import trl
from datasets import Dataset
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3ForSequenceClassification, TrainerCallback
from trl import RewardConfig, RewardTrainer

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "crates/train/tests/fixtures"
PAD, EOS, VOCAB = 0, 1, 50

torch.set_num_threads(1)


def tokenizer():
    words = {"<pad>": PAD, "<eos>": EOS} | {f"w{i}": i for i in range(2, VOCAB)}
    inner = Tokenizer(WordLevel(words, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")


def pairs():
    g = torch.Generator().manual_seed(6)
    draw = lambda n: torch.randint(2, VOCAB, (n,), generator=g).tolist()
    rows = []
    shapes = ((5, 8, 3, 0.5), (3, 1, 6, 0.0), (7, 4, 4, 4.0), (7, 2, 9, 1.5), (4, 7, 5, 3.0), (9, 3, 2, 0.25))
    for p, c, r, margin in shapes:
        sides = dict(prompt_ids=draw(p), chosen_ids=draw(c - 1) + [EOS], rejected_ids=draw(r - 1) + [EOS])
        rows.append(sides | dict(margin=margin))
    rows[3]["prompt_ids"] = rows[2]["prompt_ids"]
    return rows


def dataset(rows, margins):
    out = []
    for row in rows:
        prompt = row["prompt_ids"]
        one = dict(chosen_ids=prompt + row["chosen_ids"], rejected_ids=prompt + row["rejected_ids"])
        out.append(one | (dict(margin=row["margin"]) if margins else {}))
    return Dataset.from_list(out)


class Gradient(TrainerCallback):
    norm = None

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.norm = sum(p.grad.double().pow(2).sum() for p in model.parameters() if p.grad is not None).sqrt().item()


class Noting(RewardTrainer):
    """RewardTrainer that records the loss of every micro-batch, because TRL's log has it rounded."""

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        out = super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)
        self.noted = getattr(self, "noted", []) + [(out[0] if return_outputs else out).item()]
        return out


def digits(x):
    return float(f"{x:.9g}")


def head():
    return 0.15 * torch.randn((1, 32), generator=torch.Generator().manual_seed(11))


def load():
    config = transformers.AutoConfig.from_pretrained(FIXTURES / "trl", attn_implementation="eager", num_labels=1)
    model = Qwen3ForSequenceClassification(config).float()
    trunk = {k: v for k, v in load_file(FIXTURES / "trl/model.safetensors").items() if k != "lm_head.weight"}
    result = model.load_state_dict(trunk | {"score.weight": head()}, strict=True)
    assert not result.missing_keys and not result.unexpected_keys, result
    return model


def run(rows, margins, accumulation=1, **config):
    with tempfile.TemporaryDirectory() as out:
        args = RewardConfig(
            output_dir=out, per_device_train_batch_size=len(rows) // accumulation, max_steps=1, logging_steps=1,
            gradient_accumulation_steps=accumulation, report_to=[], save_strategy="no", bf16=False, use_cpu=True,
            gradient_checkpointing=False, learning_rate=1e-3, lr_scheduler_type="constant", disable_tqdm=True, seed=0,
            max_grad_norm=1e9, max_length=None, **config,
        )  # fmt: skip
        gradient = Gradient()
        trainer = Noting(
            model=load(), args=args, processing_class=tokenizer(), train_dataset=dataset(rows, margins),
            callbacks=[gradient],
        )  # fmt: skip
        trainer.train()
        log = trainer.state.log_history[0]
        assert abs(log["grad_norm"] - gradient.norm) < 1e-3 * gradient.norm
        assert len(trainer.noted) == accumulation
        loss = sum(trainer.noted) / accumulation
        assert abs(log["loss"] - loss) < 1e-3 * abs(loss), (log, trainer.noted)
        keys = ["accuracy", "margin", "mean_reward"]
        # With several micro-batches, TRL logs the mean of their extremes, not the extremes of the whole batch.
        keys += ["min_reward", "max_reward"] if accumulation == 1 else []
        metrics = {k: digits(log[k]) for k in keys}
        config |= dict(margins=margins, gradient_accumulation_steps=accumulation)
        return dict(config=config, loss=digits(loss), grad_norm=digits(gradient.norm), metrics=metrics)


def main():
    rows = pairs()
    cases = []
    for margins in (False, True):
        for centre in ({}, dict(center_rewards_coefficient=0.01), dict(center_rewards_coefficient=0.7)):
            cases.append(run(rows, margins, **centre))
    cases.append(run(rows, True, accumulation=3, center_rewards_coefficient=0.01))
    versions = dict(trl=trl.__version__, transformers=transformers.__version__, torch=torch.__version__.split("+")[0])
    out = FIXTURES / "reward"
    out.mkdir(exist_ok=True)
    fixture = dict(versions=versions, head=head()[0].tolist(), pairs=rows, cases=cases)
    (out / "cases.json").write_text(json.dumps(fixture, separators=(",", ":")) + "\n")
    print(len(cases), "cases,", (out / "cases.json").stat().st_size, "bytes")


main()
