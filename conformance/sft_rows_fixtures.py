"""Writes crates/lockstep/tests/fixtures/rows: rows of training data, and the ids and labels that TRL makes of them.

    pip install trl==1.16.0 torch==2.15.0 transformers==5.23.0
    python conformance/sft_rows_fixtures.py [SHARED]        from the repository's root

The real SFTTrainer, DPOTrainer and RewardTrainer prepare each row, with a model of a few numbers. SFTTrainer does so
for each value of `completion_only_loss` and `assistant_only_loss`. A row that TRL does not take is noted as refused.

The tokenizers are made here, from a text of a few sentences: byte-level BPE with the special tokens of Qwen's and
Llama 3's kind, Unigram and BPE that put a space before a text as SentencePiece does, and one with the tags of
reasoning as special tokens. `own.json` has chat templates that were written for this script. `shared.json` has rows for
the templates and the tokenizer in SHARED (default: ../shared), by name only. `known.json` has rows for all templates of
which TRL has a training version, by name only, too: the test reads the templates from TRL's directory `chat_templates`,
if LOCKSTEP_TEMPLATES names it.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import warnings

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", PYTHONHASHSEED="0")
warnings.filterwarnings("ignore")

import torch
import transformers
import trl
from datasets import IterableDataset
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer
from sft_rows_inputs_fixtures import CONVERSATIONS, IDS, KNOWN, PAIRS, TEMPLATES, TEXTS, TOKENIZER_TEXT

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUT = ROOT / "crates/lockstep/tests/fixtures/rows"
SHARED = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "../shared").resolve()

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def save(name, inner, **config):
    folder = OUT / name
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(inner.to_str()), ensure_ascii=False))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def bytes_bpe(special, plain=(), prefix_space=False, trim=False, begin=None):
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        TOKENIZER_TEXT, trainers.BpeTrainer(vocab_size=380, special_tokens=list(special), initial_alphabet=alphabet)
    )
    inner.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    last = processors.ByteLevel(trim_offsets=trim)
    if begin:
        pair = (begin, inner.token_to_id(begin))
        starts = processors.TemplateProcessing(single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[pair])
        last = processors.Sequence([last, starts])
    inner.post_processor = last
    return inner


def around(inner, begin, end=None):
    pieces = [begin, "$A"] + ([end] if end else [])
    special = [(token, inner.token_to_id(token)) for token in (begin, end) if token]
    inner.post_processor = processors.TemplateProcessing(single=" ".join(pieces), special_tokens=special)
    return inner


def unigram(scheme):
    inner = Tokenizer(models.Unigram())
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    inner.decoder = decoders.Metaspace(prepend_scheme=scheme)
    letters = sorted(set("".join(TOKENIZER_TEXT)) - {" "})
    inner.train_from_iterator(
        TOKENIZER_TEXT,
        trainers.UnigramTrainer(
            vocab_size=160, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", initial_alphabet=letters
        ),
    )
    return inner


def sentencepiece_bpe():
    """As Llama 2's: a dummy prefix, spaces as U+2581, and bytes for unknown characters."""
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    inner = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.train_from_iterator(TOKENIZER_TEXT, trainers.BpeTrainer(vocab_size=380, special_tokens=special))
    written = json.loads(inner.to_str())
    written["added_tokens"] = [token for token in written["added_tokens"] if not token["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(written))


def make_tokenizers():
    shutil.rmtree(OUT, ignore_errors=True)
    qwen = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tags = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    ends = dict(pad_token="<|endoftext|>", additional_special_tokens=["<|im_start|>"])
    save("bytes", bytes_bpe(qwen, tags), eos_token="<|im_end|>", **ends)
    save("bytes_other_end", bytes_bpe(qwen, tags), eos_token="<|endoftext|>", **ends)
    boxes = ["<answer>", "</answer>", "<|box_start|>", "<|box_end|>"]
    save("tags", bytes_bpe(qwen + tags + boxes), eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    llama = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    begin = dict(bos_token="<|begin_of_text|>", eos_token="<|eot_id|>", pad_token="<|end_of_text|>")
    save("bytes_begin", bytes_bpe(llama, trim=True, begin="<|begin_of_text|>"), **begin)
    spaced = bytes_bpe(["<|endoftext|>"], prefix_space=True, trim=True)
    save("bytes_prefix", spaced, bos_token="<|endoftext|>", eos_token="<|endoftext|>")
    named = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    save("pieces", around(unigram("always"), "<s>"), **named)
    save("pieces_first", around(unigram("first"), "<s>"), **named)
    save("pieces_end", around(unigram("first"), "<s>", "</s>"), **named)
    save("pieces_bytes", around(sentencepiece_bpe(), "<s>"), **named)


def model_config(tokenizer):
    return LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, num_labels=1, pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id,
    )  # fmt: skip


def rows_dataset(row):
    """A dataset of one row as it is: `Dataset` would fill in the keys that another message has."""
    return IterableDataset.from_generator(lambda: iter([json.loads(json.dumps(row))]))


MODES = {
    "default": dict(),
    "completion": dict(completion_only_loss=True),
    "all": dict(completion_only_loss=False),
    "assistant": dict(assistant_only_loss=True),
    "assistant_all": dict(assistant_only_loss=True, completion_only_loss=False),
}
SAMPLES = {
    (False, False): {"text": "a"},
    (True, False): {"prompt": "a", "completion": "b"},
    (False, True): {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    (True, True): {
        "prompt": [{"role": "user", "content": "a"}],
        "completion": [{"role": "assistant", "content": "b"}],
    },
}
BASE = dict(output_dir=tempfile.mkdtemp(), report_to="none", use_cpu=True, max_steps=1, bf16=False, disable_tqdm=True)


def refused(error):
    return f"refused: {type(error).__name__}"


class Trainers:
    """TRL's trainers for one tokenizer and one chat template, each made when it is first needed."""

    def __init__(self, tokenizer):
        self.tokenizer, self.made = tokenizer, {}

    def made_once(self, key, make):
        if key not in self.made:
            try:
                self.made[key] = make()
            except Exception as error:
                self.made[key] = refused(error)
        return self.made[key]

    def prepared(self, trainer, row, *more):
        if isinstance(trainer, str):
            return trainer
        try:
            found = list(trainer._prepare_dataset(rows_dataset(row), self.tokenizer, trainer.args, *more))
        except Exception as error:
            return refused(error)
        return found[0] if found else "left out"

    def sft(self, row, mode):
        whole = not ("prompt" in row and "completion" in row)
        talk = any(isinstance(row.get(name), list) for name in ("prompt", "messages", "conversations"))

        def make():
            args = SFTConfig(**BASE, **MODES[mode], max_length=4096)
            model = LlamaForCausalLM(model_config(self.tokenizer))
            sample = rows_dataset(row if "input_ids" in row else SAMPLES[not whole, talk])
            return SFTTrainer(model, args, train_dataset=sample, processing_class=self.tokenizer)

        trainer = self.made_once((mode, whole, talk, "input_ids" in row), make)
        return self.prepared(trainer, row, False, None, "train")

    def dpo(self, row):
        def make():
            model, reference = (LlamaForCausalLM(model_config(self.tokenizer)) for _ in range(2))
            sample = rows_dataset({"prompt": "a", "chosen": "b", "rejected": "c"})
            return DPOTrainer(
                model, reference, args=DPOConfig(**BASE, max_length=4096), train_dataset=sample,
                processing_class=self.tokenizer,
            )  # fmt: skip

        return self.prepared(self.made_once("dpo", make), row, "train")

    def reward(self, row):
        def make():
            model = LlamaForSequenceClassification(model_config(self.tokenizer))
            sample = rows_dataset({"prompt": "a", "chosen": "b", "rejected": "c"})
            return RewardTrainer(
                model, args=RewardConfig(**BASE, max_length=4096), train_dataset=sample,
                processing_class=self.tokenizer,
            )  # fmt: skip

        return self.prepared(self.made_once("reward", make), row, "train")


def stretches(labels):
    """The stretches of learned tokens, as a list of numbers: begin, end, begin, end, …"""
    out = []
    for at, label in enumerate(labels):
        if label == -100:
            continue
        if out and out[-1] == at:
            out[-1] = at + 1
        else:
            out += [at, at + 1]
    return out


def sft_case(trainers, row, modes=MODES):
    ids, results = [], {}
    for mode in modes:
        found = trainers.sft(row, mode)
        if isinstance(found, str):
            results[mode] = found
            continue
        if found["input_ids"] not in ids:
            ids.append(found["input_ids"])
        results[mode] = [ids.index(found["input_ids"]), stretches(found["labels"])]
        differ = [(a, b) for a, b in zip(found["input_ids"], found["labels"]) if b not in (a, -100)]
        if differ:
            results[mode] = "labels of other tokens"
    return {"ids": ids, "sft": results}


def pair_case(trainers, row):
    out = {}
    for name in ("dpo", "reward"):
        found = getattr(trainers, name)(row)
        keys = ("prompt_ids", "chosen_ids", "rejected_ids") if name == "dpo" else ("chosen_ids", "rejected_ids")
        out[name] = found if isinstance(found, str) else [found[key] for key in keys]
    return out


def write(name, rows, groups, templates):
    """Writes a fixture. Lists of ids are in one list, once each, and the results have their places in it. Modes of SFT
    that give the same are written together."""
    pool = {}

    def place(ids):
        return pool.setdefault(json.dumps(ids, separators=(",", ":")), len(pool))

    lines = []
    for tokenizer, template, cases in groups:
        made = {}
        for row, case in cases.items():
            made[row] = {key: [place(ids) for ids in v] if isinstance(v, list) else v for key, v in case.items() if key != "sft"}
            together = {}
            for mode, result in case.get("sft", {}).items():
                if isinstance(result, list):
                    result = [made[row]["ids"][result[0]], result[1]]
                together.setdefault(json.dumps(result), []).append(mode)
            made[row] |= {" ".join(modes): json.loads(result) for result, modes in together.items()}
            made[row].pop("ids", None)
        group = {"tokenizer": tokenizer, "template": template, "rows": made}
        lines.append(json.dumps(group, ensure_ascii=False, separators=(",", ":")).replace('},"', '},\n"'))
    content = {
        "made with": f"trl {trl.__version__}, transformers {transformers.__version__}",
        "templates": templates,
        "rows": rows,
    }
    text = json.dumps(content, ensure_ascii=False, indent=0)[:-2]
    text += ',\n"ids": [\n' + ",\n".join(pool) + '\n],\n"groups": [\n' + ",\n".join(lines) + "\n]}\n"
    (OUT / name).write_text(text)
    print(name, sum(len(cases) for *_, cases in groups), "cases,", len(text) >> 10, "KiB", flush=True)


def tokenizer_of(name, template=None):
    where = SHARED / "models/qwen2.5-tokenizer" if name == "qwen2.5" else OUT / name
    tokenizer = AutoTokenizer.from_pretrained(where)
    tokenizer.chat_template = template
    return tokenizer


def group_of(tokenizer_name, template_name, template, rows, pairs, modes=MODES):
    trainers = Trainers(tokenizer_of(tokenizer_name, template))
    cases = {name: sft_case(trainers, row, modes) for name, row in rows.items()}
    return tokenizer_name, template_name, cases | {name: pair_case(trainers, row) for name, row in pairs.items()}


def is_talk(row):
    return any(isinstance(value, list) and value and isinstance(value[0], dict) for value in row.values())


def main():
    make_tokenizers()
    text_pairs = {name: row for name, row in PAIRS.items() if not is_talk(row)}
    talk_pairs = {name: row for name, row in PAIRS.items() if is_talk(row)}

    groups = []
    for tokenizer in sorted(path.name for path in OUT.iterdir() if path.is_dir()):
        texts = TEXTS | (IDS if tokenizer == "bytes" else {})
        groups.append(group_of(tokenizer, None, None, texts, text_pairs, ["default", "completion", "all"]))
    for name, (source, tokenizers) in TEMPLATES.items():
        groups += [group_of(tokenizer, name, source, CONVERSATIONS, talk_pairs) for tokenizer in tokenizers]
    templates = {name: source for name, (source, _) in TEMPLATES.items()}
    write("own.json", TEXTS | IDS | CONVERSATIONS | PAIRS, groups, templates)

    groups = []
    for template in ("llama3", "llama3_2", "qwen2_5", "qwen2_5_training", "qwen3", "qwen3_training"):
        source = (SHARED / f"data/chat_templates/{template}.jinja").read_text()
        tokenizer = "bytes_begin" if template.startswith("llama") else "bytes_other_end"
        groups.append(group_of(tokenizer, template, source, CONVERSATIONS, talk_pairs))
        if template in ("qwen2_5", "qwen3"):
            groups.append(group_of("qwen2.5", template, source, CONVERSATIONS, talk_pairs))
    write("shared.json", CONVERSATIONS | talk_pairs, groups, {})

    groups = []
    directory = pathlib.Path(trl.__file__).parent / "chat_templates"
    for template in sorted(path.name.removesuffix("_training.jinja") for path in directory.glob("*_training.jinja")):
        source = (directory / f"{template}.jinja").read_text()
        groups.append(group_of("bytes_other_end", template, source, KNOWN, {}, ["assistant"]))
    write("known.json", KNOWN, groups, {})


if __name__ == "__main__":
    main()
