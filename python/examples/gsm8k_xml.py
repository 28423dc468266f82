"""GRPO on GSM8K with rewards for an XML format, as TRL's users write it: five Python functions, LoRA, 16 completions
per question. With TRL, only the import differs.

    python examples/gsm8k_xml.py                                  # Qwen2.5-0.5B-Instruct on openai/gsm8k
    MODEL=dir DATA=train.jsonl STEPS=10 TOKENS=64 python examples/gsm8k_xml.py
"""

import json
import os
import re

from lockstep_rl import GRPOConfig, GRPOTrainer

SYSTEM = """Think first, then answer, in this form:
<reasoning>
...
</reasoning>
<answer>
...
</answer>
"""
TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")


def read_gsm8k(name):
    """Returns rows with a conversation and the number after `####` in the solution."""
    if os.path.exists(name):
        with open(name) as file:
            rows = [json.loads(line) for line in file]
    else:
        from datasets import load_dataset

        rows = load_dataset(name, "main", split="train")
    return [
        {
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": row["question"]}],
            "answer": row["answer"].rpartition("####")[2].strip().replace(",", ""),
        }
        for row in rows
    ]


def answer_of(text):
    """Returns the text between the last <answer> and the next </answer>."""
    return text.rpartition("<answer>")[2].partition("</answer>")[0].strip()


def texts_of(completions):
    return [completion[0]["content"] for completion in completions]


def correctness_reward(completions, answer, **kwargs):
    """Scores 2 for the right answer."""
    return [2.0 * (answer_of(text) == right) for text, right in zip(texts_of(completions), answer)]


def int_reward(completions, **kwargs):
    """Scores ½ for an integer as the answer."""
    return [0.5 * answer_of(text).isdigit() for text in texts_of(completions)]


def strict_format_reward(completions, **kwargs):
    """Scores ½ for exactly this format, including line breaks."""
    form = re.compile(r"<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n?", re.DOTALL)
    return [0.5 * bool(form.fullmatch(text)) for text in texts_of(completions)]


def soft_format_reward(completions, **kwargs):
    """Scores ½ for both parts in this order, anywhere in the text."""
    form = re.compile(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>", re.DOTALL)
    return [0.5 * bool(form.search(text)) for text in texts_of(completions)]


def xmlcount_reward(completions, **kwargs):
    """Scores ⅛ for each tag that occurs once, minus a penalty for text after the last tag."""
    scores = []
    for text in texts_of(completions):
        tail = text.rpartition("</answer>")[2] if "</answer>" in text else ""
        scores.append(sum(0.125 for tag in TAGS if text.count(tag) == 1) - 0.001 * len(tail.strip()))
    return scores


def main():
    args = GRPOConfig(
        output_dir="gsm8k-xml",
        learning_rate=5e-6,
        adam_beta1=0.9,
        adam_beta2=0.99,
        weight_decay=0.1,
        warmup_ratio=0.1,
        lr_scheduler_type="cosine",
        logging_steps=1,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=1,
        num_generations=16,
        max_prompt_length=512,
        max_completion_length=int(os.environ.get("TOKENS", "256")),
        max_steps=int(os.environ.get("STEPS", "250")),
        save_steps=100,
        max_grad_norm=0.1,
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=os.environ.get("MODEL", "Qwen/Qwen2.5-0.5B-Instruct"),
        reward_funcs=[
            xmlcount_reward,
            soft_format_reward,
            strict_format_reward,
            int_reward,
            correctness_reward,
        ],
        args=args,
        train_dataset=read_gsm8k(os.environ.get("DATA", "openai/gsm8k")),
        # This may also be a peft.LoraConfig.
        peft_config={
            "r": 16,
            "lora_alpha": 64,
            "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"],
            "task_type": "CAUSAL_LM",
            "lora_dropout": 0.05,
        },
    )
    trainer.train()


if __name__ == "__main__":
    main()
