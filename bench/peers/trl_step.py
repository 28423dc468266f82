"""Times one GRPO step of TRL on this machine's CPU: the same work as `lockstep bench step`.

    python bench/peers/trl_step.py --model DIR --completions 64 --tokens 128 [--dtype bf16] [--micro-batch 16] [--checkpointing]

DIR is a Hugging Face directory with random weights (`lockstep init`). Prompts are 88 random token ids, completions have
exactly --tokens tokens, rewards are random, and beta is 0. The first step is not measured. Prints one line of JSON: the
median seconds of a step, of its generation and of its other parts, and the peak of resident memory.
"""

import argparse
import json
import os
import random
import resource
import statistics
import tempfile
import time

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--completions", type=int, required=True)
parser.add_argument("--tokens", type=int, required=True)
parser.add_argument("--dtype", choices=["f32", "bf16"], default="bf16")
parser.add_argument("--micro-batch", type=int, default=None)
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--threads", type=int, default=os.cpu_count())
args = parser.parse_args()
torch.set_num_threads(args.threads)

PROMPT, GROUP = 88, 8
dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
vocabulary = model.config.vocab_size
words = {f"w{i}": i for i in range(vocabulary)}
inner = Tokenizer(WordLevel(words, unk_token="w0"))
inner.pre_tokenizer = WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="w0", eos_token="w1", padding_side="left")
random.seed(0)
count = args.completions // GROUP * (args.steps + 2)
prompts = [" ".join(f"w{random.randrange(2, vocabulary)}" for _ in range(PROMPT)) for _ in range(count)]


def reward(completions, **_):
    return [random.random() for _ in completions]


class Timed(GRPOTrainer):
    """GRPOTrainer that records when generation begins and ends, and when a step ends."""

    generations, ends = [], []

    def _generate(self, *a, **k):
        start = time.perf_counter()
        out = super()._generate(*a, **k)
        self.generations.append(time.perf_counter() - start)
        return out

    def log(self, *a, **k):
        self.ends.append(time.perf_counter())
        return super().log(*a, **k)


micro = args.micro_batch or args.completions
with tempfile.TemporaryDirectory() as out:
    config = GRPOConfig(
        output_dir=out, per_device_train_batch_size=micro, gradient_accumulation_steps=args.completions // micro,
        num_generations=GROUP, max_completion_length=args.tokens, max_steps=args.steps + 1, logging_steps=1, beta=0.0,
        report_to=[], save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=args.checkpointing,
        learning_rate=1e-6, disable_tqdm=True, generation_kwargs=dict(min_new_tokens=args.tokens),
    )  # fmt: skip
    trainer = Timed(
        model=model, reward_funcs=reward, args=config, processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
    )  # fmt: skip
    begin = time.perf_counter()
    trainer.train()
    ends = [begin, *trainer.ends[: args.steps + 1]]
    steps = [b - a for a, b in zip(ends, ends[1:])][1:]
    generation = trainer.generations[1 : args.steps + 1]
print(
    json.dumps(
        dict(
            peer="trl 1.16.0", dtype=args.dtype, micro_batch=micro, checkpointing=args.checkpointing,
            completions=args.completions, tokens=args.tokens, step_s=statistics.median(steps),
            generation_s=statistics.median(generation),
            peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )
    )
)  # fmt: skip
