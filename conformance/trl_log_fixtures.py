"""Makes python/tests/fixtures/trl_log.json: what TRL's GRPOTrainer logs over four steps with given rollouts.

    pip install trl==1.16.0 torch==2.15.0 transformers==5.23.0 lockstep-rl && python conformance/trl_log_fixtures.py

`lockstep init` makes a tiny random Qwen3 model (float32, CPU) and its tokenizer, as in python/tests/conftest.py.
Training with lockstep_rl writes rollouts; TRL's real GRPOTrainer replays their token ids through its `rollout_func`,
with the same rewards and the same configuration. One part is not TRL's own: the shuffle of a generation batch is the
identity.
"""

import json
import os
import pathlib
import sys
import tempfile

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python/tests"))

import recorded
import torch
import trl
import trl.trainer.grpo_trainer as grpo_trainer
from conftest import SHAPE, WORDS, init, vowels, write_tokenizer
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

import lockstep_rl

OUT = ROOT / "python/tests/fixtures/trl_log.json"
FIELDS = dict(
    num_generations=4, per_device_train_batch_size=8, max_completion_length=6, learning_rate=0.01, max_steps=4,
    logging_steps=1, beta=0.04, temperature=0.9, num_iterations=2, shuffle_dataset=False, save_strategy="no",
)  # fmt: skip
torch.set_num_threads(1)
grpo_trainer.shuffle_sequence_dict = lambda batch: batch


def lengths(completions, **kwargs):
    """Reward function: minus the number of characters."""
    return [-float(len(text)) for text in completions]


def replayed(model, place, rollouts):
    """Returns TRL's log over the rollouts, one generation batch after another."""
    batches = [rollouts[at : at + 8] for at in range(0, len(rollouts), 8)]

    def rollout(prompts, trainer):
        batch = batches.pop(0)
        tokenizer = trainer.processing_class
        assert prompts == [tokenizer.decode(line["prompt_ids"]) for line in batch], (prompts, batch)
        return {key: [line[key] for line in batch] for key in ("prompt_ids", "completion_ids", "logprobs")}

    args = trl.GRPOConfig(output_dir=f"{place}/trl", report_to=[], bf16=False, use_cpu=True, disable_tqdm=True,
                          gradient_checkpointing=False, **FIELDS)  # fmt: skip
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    trainer = trl.GRPOTrainer(
        model=loaded, reward_funcs=[vowels, lengths], args=args, processing_class=AutoTokenizer.from_pretrained(model),
        train_dataset=Dataset.from_list([{"prompt": f"{word} "} for word in WORDS]), rollout_func=rollout,
    )  # fmt: skip
    trainer.train()
    return trainer.state.log_history


def main():
    with tempfile.TemporaryDirectory() as place:
        root = pathlib.Path(place)
        write_tokenizer(root / "tokenizer")
        (root / "config.json").write_text(json.dumps(SHAPE))
        model = init(root)
        args = lockstep_rl.GRPOConfig(f"{place}/own", record_rollouts=True, threads=1, disable_tqdm=True, **FIELDS)
        rows = [{"prompt": f"{word} "} for word in WORDS]
        lockstep_rl.GRPOTrainer(model, [vowels, lengths], args, rows).train()
        lines = recorded.lines(f"{place}/own/rollouts.bin")
        log = replayed(model, place, lines)
    versions = dict(trl=trl.__version__, torch=torch.__version__.split("+")[0])
    OUT.parent.mkdir(exist_ok=True)
    lines = "[\n" + ",\n".join(json.dumps(line, separators=(",", ":")) for line in lines) + "\n]"
    entries = "[\n" + ",\n".join(json.dumps(entry) for entry in log[:-1]) + "\n]"
    head = json.dumps(dict(versions=versions, fields=FIELDS))[:-1]
    OUT.write_text(f'{head},\n"rollouts": {lines},\n"log_history": {entries}}}\n')
    print(len(log) - 1, "entries")


if __name__ == "__main__":
    main()
