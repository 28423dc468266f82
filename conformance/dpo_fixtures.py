"""Makes crates/train/tests/fixtures/dpo: one step of TRL's DPOTrainer for each loss, as numbers.

    pip install trl==1.16.0 torch==2.15.0 transformers==5.23.0 && python conformance/dpo_fixtures.py

The real DPOTrainer (float32, CPU) trains on preference pairs of token ids, with the tiny random model that
conformance/trl_fixtures.py made (crates/train/tests/fixtures/trl). The reference model's weights are 0.9 times the
policy's, so that the rewards are not 0. Two pairs share a prompt. The dataset has token ids, in columns with the names
that TRL's own preparation writes.
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
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM, TrainerCallback
from trl import DPOConfig, DPOTrainer

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "crates/train/tests/fixtures"
PAD, EOS, VOCAB, SCALE = 0, 1, 50, 0.9
LOSSES = (
    "sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "apo_zero", "apo_down",
    "discopop", "sigmoid_norm",
)  # fmt: skip

torch.set_num_threads(1)


def tokenizer():
    words = {"<pad>": PAD, "<eos>": EOS} | {f"w{i}": i for i in range(2, VOCAB)}
    inner = Tokenizer(WordLevel(words, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")


def pairs():
    g = torch.Generator().manual_seed(4)
    draw = lambda n: torch.randint(2, VOCAB, (n,), generator=g).tolist()
    rows = []
    for p, c, r in ((5, 8, 3), (3, 1, 6), (7, 4, 4), (7, 2, 9), (4, 7, 5)):
        rows.append(dict(prompt_ids=draw(p), chosen_ids=draw(c - 1) + [EOS], rejected_ids=draw(r - 1) + [EOS]))
    rows[3]["prompt_ids"] = rows[2]["prompt_ids"]
    return rows


class Noting(DPOTrainer):
    def _prepare_dataset(self, dataset, *args, **kwargs):
        return dataset

    def _compute_loss(self, model, inputs, return_outputs):
        loss = super()._compute_loss(model, inputs, return_outputs)
        self.noted = loss.item()
        return loss


class Gradient(TrainerCallback):
    norm = None

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.norm = sum(p.grad.double().pow(2).sum() for p in model.parameters() if p.grad is not None).sqrt().item()


def digits(x):
    return float(f"{x:.9g}")


def load(scale=1.0):
    from safetensors.torch import load_file

    config = transformers.AutoConfig.from_pretrained(FIXTURES / "trl", attn_implementation="eager")
    model = Qwen3ForCausalLM(config).float()
    missing = model.load_state_dict(load_file(FIXTURES / "trl/model.safetensors"), strict=False)
    assert missing.missing_keys in ([], ["lm_head.weight"]) and not missing.unexpected_keys, missing
    model.tie_weights()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(scale)
    return model


def run(rows, **config):
    with tempfile.TemporaryDirectory() as out:
        args = DPOConfig(
            output_dir=out, per_device_train_batch_size=len(rows), gradient_accumulation_steps=1, max_steps=1,
            logging_steps=1, report_to=[], save_strategy="no", bf16=False, use_cpu=True, gradient_checkpointing=False,
            learning_rate=1e-3, lr_scheduler_type="constant", disable_tqdm=True, seed=0, max_grad_norm=1e9, **config,
        )  # fmt: skip
        gradient = Gradient()
        trainer = Noting(
            model=load(), ref_model=load(SCALE), args=args, processing_class=tokenizer(),
            train_dataset=Dataset.from_list(rows), callbacks=[gradient],
        )  # fmt: skip
        trainer.train()
        log = trainer.state.log_history[0]
        assert abs(log["grad_norm"] - gradient.norm) < 1e-3 * gradient.norm
        keys = ["entropy"] + [k for k in log if k.startswith(("rewards/", "logps/"))]
        metrics = {k: digits(log[k]) for k in keys}
        return dict(config=config, loss=digits(trainer.noted), grad_norm=digits(gradient.norm), metrics=metrics)


def main():
    rows = pairs()
    cases = []
    for loss_type in LOSSES:
        for beta in (0.1, 0.5):
            smoothing = dict(label_smoothing=0.1) if loss_type in ("robust", "exo_pair") else {}
            cases.append(run(rows, loss_type=[loss_type], beta=beta, **smoothing))
    versions = dict(trl=trl.__version__, transformers=transformers.__version__, torch=torch.__version__.split("+")[0])
    out = FIXTURES / "dpo"
    out.mkdir(exist_ok=True)
    fixture = dict(versions=versions, reference_scale=SCALE, pairs=rows, cases=cases)
    (out / "cases.json").write_text(json.dumps(fixture, separators=(",", ":")) + "\n")
    print(len(cases), "cases,", (out / "cases.json").stat().st_size, "bytes")


main()
