"""Trains with TRL and with lockstep_rl, side by side: every trainer × what it is given × what is done with it afterwards.

    pip install torch==2.15.* trl==1.16.0 transformers==5.23.* peft lockstep-rl
    python conformance/trl_matrix/run.py [--write] [TRAINER …]

Each pair of runs has the same tiny model (float32, CPU), rows in the same order and the same configuration. GRPO and
RLOO of TRL are given the completions that lockstep_rl has sampled. A cell holds if all of its numbers are within the
tolerances below; the script prints the cells that do not, and exits with 1 then. `--write` puts the table of counts into
docs/python/from-trl.md.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import sys
import tempfile
import traceback
import warnings

os.environ.update(TRL_EXPERIMENTAL_SILENCE="1", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", TQDM_DISABLE="1")
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python/tests"))

import datasets
import peft
import recorded
import torch
import transformers
import trl
import trl.trainer.grpo_trainer as grpo_trainer
import trl.trainer.rloo_trainer as rloo_trainer
from conftest import SHAPE, init, vowels, write_tokenizer
from safetensors.torch import load_file

import lockstep_rl

PAGE = ROOT / "docs/python/from-trl.md"
MARKS = ("<!-- trl_matrix -->", "<!-- end of trl_matrix -->")
# Logged numbers differ by at most this, absolutely or relatively.
NUMBERS = 2e-3
# Trained weights differ by at most this share of the way that training took them.
WEIGHTS = 2e-2

torch.set_num_threads(1)
datasets.disable_progress_bars()
transformers.utils.logging.disable_progress_bar()
warnings.simplefilter("ignore")
for module in (grpo_trainer, rloo_trainer):
    # A generation batch is one step: its order decides nothing but which row a number is compared with.
    module.shuffle_sequence_dict = lambda batch: batch

WORDS = ["ab", "sun", "moon", "tree", "x", "river", "stone", "cat", "dog", "wind"]
ONLINE = ("GRPO", "RLOO")
TRAINERS = ("SFT", "DPO", "Reward", *ONLINE)
GIVEN = ("name", "object", "tokenizer", "new adapter", "trained adapter", "adapter directory", "conversations", "stream",
         "incomplete batch", "several evaluation sets")
AFTER = ("train", "evaluate", "save", "second trainer", "resume elsewhere")


def rows_of(trainer, chat, count):
    """The rows of a trainer: texts, or conversations."""

    def turn(text, role):
        return [{"role": role, "content": text}] if chat else text

    if trainer == "SFT":
        texts = [f"{word} and {word[::-1]}." for word in WORDS[:count]]
        return [{"messages": turn(text, "user") + turn("yes", "assistant")} if chat else {"text": text} for text in texts]
    prompts = [{"prompt": turn(f"{word} ", "user")} for word in WORDS[:count]]
    if trainer in ONLINE:
        return prompts
    return [{**row, "chosen": turn("sun moon", "assistant"), "rejected": turn(f"{word} x", "assistant")}
            for row, word in zip(prompts, WORDS)]


class Side:
    """One of the two libraries: its classes, and what its configuration needs beside the common fields."""

    def __init__(self, library, place):
        self.library, self.place = library, place
        self.is_trl = library is trl

    def config(self, trainer, name, fields):
        if self.is_trl:
            in_order = {"shuffle_dataset": False} if trainer in ONLINE else {"train_sampling_strategy": "sequential"}
            own = dict(use_cpu=True, gradient_checkpointing=False, report_to=[], **in_order)
        else:
            own = dict(threads=1, shuffle_dataset=False, record_rollouts=True)
            if trainer not in ONLINE:
                del own["record_rollouts"]
        return getattr(self.library, f"{trainer}Config")(output_dir=str(self.place / name), bf16=False, **own, **fields)

    def trainer(self, trainer, name, model, fields, rows, replay=None, **more):
        cls = getattr(self.library, f"{trainer}Trainer")
        if self.is_trl and trainer in ONLINE:
            cls = replaying(cls, replay)
        if trainer in ONLINE:
            more["reward_funcs"] = vowels
        return cls(model=model, args=self.config(trainer, name, fields), train_dataset=rows, **more)


def replaying(cls, batches):
    """TRL's trainer, with given completions in the place of its generation. In an evaluation it is given those of the
    first batch."""

    class Replaying(cls):
        def _generate_single_turn(self, prompt_ids, *others, **named):
            batch = batches.pop(0) if self.model.training else first[: len(prompt_ids)]
            if self.model.training:
                given = [list(map(int, ids)) for ids in prompt_ids]
                assert given == [line["prompt_ids"] for line in batch], "other prompts"
            ids = [line["completion_ids"] for line in batch]
            return (ids, None) if cls is trl.GRPOTrainer else ids

    first = list(batches[0])
    Replaying.__name__ = cls.__name__
    return Replaying


def rollouts(place, steps, size):
    """The completions that lockstep_rl recorded in its last steps, a list for each."""
    lines = recorded.lines(str(place / "rollouts.bin"))
    batches = [lines[at : at + size] for at in range(0, len(lines), size)]
    return batches[-steps:]


def load(trainer, place):
    kind = "SequenceClassification" if trainer == "Reward" else "CausalLM"
    more = {"num_labels": 1} if trainer == "Reward" else {}
    return getattr(transformers, f"AutoModelFor{kind}").from_pretrained(place, dtype=torch.float32, **more)


def lora(trainer):
    kind = "SEQ_CLS" if trainer == "Reward" else "CAUSAL_LM"
    return peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type=kind,
                           modules_to_save=["score"] if trainer == "Reward" else None)


class Pair:
    """The runs of a trainer with what it is given, by both libraries, and what is compared."""

    def __init__(self, place, models, trainer, given):
        self.trainer, self.given = trainer, given
        self.sides = [Side(lockstep_rl, place / "own"), Side(trl, place / "trl")]
        self.model_dir = models["reward" if trainer == "Reward" else "model"]
        self.adapter_dir = models["reward-adapter" if trainer == "Reward" else "adapter"]
        self.count = 10 if given == "incomplete batch" else 8
        self.size = 8 if trainer in ONLINE else 4
        self.steps = 6 if given == "incomplete batch" else 4
        self.problems: dict = {}

    def fields(self, steps, **more):
        fields = dict(per_device_train_batch_size=self.size, max_steps=steps, learning_rate=5e-3, logging_steps=1,
                      save_strategy="steps", save_steps=2, disable_tqdm=True, per_device_eval_batch_size=8)
        if self.trainer in ONLINE:
            fields |= dict(num_generations=4, max_completion_length=6, beta=0.1)
        elif self.given == "incomplete batch":
            fields |= dict(max_steps=-1, num_train_epochs=2)
        if self.trainer == "DPO":
            fields |= dict(beta=0.1)
        return {**fields, **more}

    def model(self):
        """A model to give, new for each trainer."""
        if self.given in ("object", "tokenizer"):
            return load(self.trainer, self.model_dir)
        if self.given == "trained adapter":
            return peft.PeftModel.from_pretrained(
                load(self.trainer, self.model_dir), self.adapter_dir, is_trainable=True)
        return self.model_dir

    def more(self, side):
        more = {}
        if self.given in ("object", "tokenizer", "trained adapter"):
            more["processing_class"] = transformers.AutoTokenizer.from_pretrained(self.model_dir)
        if self.given == "tokenizer":
            more["processing_class"].chat_template = (
                "{% for m in messages %}{{ m['role'][0] }}.{{ m['content'] }}{% endfor %}"
                "{% if add_generation_prompt %}a.{% endif %}")
        if self.given == "new adapter":
            more["peft_config"] = lora(self.trainer)
        return more

    def rows(self, chat=None):
        chat = self.given in ("conversations", "tokenizer") if chat is None else chat
        rows = datasets.Dataset.from_list(rows_of(self.trainer, chat, self.count))
        return rows.to_iterable_dataset() if self.given == "stream" else rows

    def held_out(self):
        chat = self.given in ("conversations", "tokenizer")
        rows = datasets.Dataset.from_list(rows_of(self.trainer, chat, 2 if self.trainer in ONLINE else 8))
        return {"one": rows, "two": rows} if self.given == "several evaluation sets" else rows

    def make(self, side, name, model, steps, replay=None, more=None, **fields):
        return side.trainer(self.trainer, name, model, self.fields(steps, **fields), self.rows(), replay,
                            eval_dataset=self.held_out(), **(self.more(side) if more is None else more))

    def run(self):
        """Trains with both, and does with both what follows; each part that differs is a problem."""
        own, other = self.sides
        with self.part("train"):
            mine = self.make(own, "a", self.model(), self.steps)
            mine.train()
            batches = self.recorded(own, "a", self.steps)
            theirs = self.make(other, "a", self.model(), self.steps, batches)
            theirs.train()
            self.compare_logs(mine, theirs)
        if "train" in self.problems:
            return
        self.batches = self.recorded(own, "a", 1)
        with self.part("evaluate"):
            self.compare_evaluations(mine.evaluate(), theirs.evaluate())
        with self.part("save"):
            for trainer, side in ((mine, own), (theirs, other)):
                trainer.save_model(str(side.place / "saved"))
            self.compare_weights()
        with self.part("second trainer"):
            more = {key: value for key, value in self.more(own).items() if key != "peft_config"}
            more.setdefault("processing_class", transformers.AutoTokenizer.from_pretrained(self.model_dir))
            first = self.make(own, "second", mine.model, 2, more=dict(more))
            first.train()
            batches = self.recorded(own, "second", 2)
            second = self.make(other, "second", theirs.model, 2, batches, more=dict(more))
            second.train()
            self.compare_logs(first, second, begins=False)
        with self.part("resume elsewhere"):
            first = self.make(own, "b", self.model(), self.steps)
            first.train(resume_from_checkpoint=str(own.place / "a" / "checkpoint-2"))
            batches = self.recorded(own, "b", self.steps - 2)
            second = self.make(other, "b", self.model(), self.steps, batches)
            second.train(resume_from_checkpoint=str(other.place / "a" / "checkpoint-2"))
            self.compare_logs(first, second)

    @contextlib.contextmanager
    def part(self, name):
        is_known = (self.trainer, self.given, name) in DIFFERS
        try:
            yield
            if is_known:
                self.problems[name] = "it agrees, and is listed as different"
        except Exception as error:  # noqa: BLE001: whatever happens is the cell's result
            if is_known:
                return
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.problems[name] = f"{type(error).__name__}: {str(error)[:300]} ({where.name})"

    def recorded(self, side, name, steps):
        return rollouts(side.place / name, steps, self.size) if self.trainer in ONLINE else None

    def compare_logs(self, mine, theirs, begins=True):
        """Compares all that TRL logs of each step. A new adapter is drawn at random: of it, the names and, where it
        `begins`, the first loss, which it does not change yet."""
        logs = [[entry for entry in trainer.state.log_history if "loss" in entry] for trainer in (mine, theirs)]
        assert [e["step"] for e in logs[0]] == [e["step"] for e in logs[1]], "other steps"
        for ours, others in zip(*logs):
            if self.given == "new adapter":
                first = {"loss": others["loss"]} if others["step"] == 1 and begins else {}
                named = [name for name in others if not name.endswith("_terminated_length")]
                others = {name: ours.get(name, "missing") for name in named} | {"step": others["step"], **first}
            self.compare(ours, others, f"step {others['step']}")

    def compare(self, ours, theirs, what):
        for name, value in theirs.items():
            if name in LEFT_OUT or name.endswith(("_runtime", "_per_second")) or not isinstance(value, (float, str)):
                continue
            assert value != "missing" or name in NOT_LOGGED, f"{what}: no {name}"
            if name not in ours:
                # TRL logs 0 for the length of no completion.
                of_none = value == 0.0 and name.endswith("_terminated_length")
                assert of_none or name in NOT_LOGGED, f"{what}: no {name}"
                continue
            if value == ours[name]:
                continue
            near = abs(ours[name] - value) <= NUMBERS * max(1.0, abs(value))
            assert near, f"{what}: {name} = {ours[name]:.6g}, in TRL {value:.6g}"

    def compare_evaluations(self, ours, theirs):
        """Compares the metrics. Of trainers that generate each draws its own completions: their names are compared."""
        if self.trainer in ONLINE:
            names = {name for name, value in theirs.items() if value is not None}
            own = ours.keys() | {name.replace("eval_two_", "eval_") for name in ours}
            missing = {n for n in names - own if not n.endswith(("_per_second", "_terminated_length", "_runtime"))}
            assert not missing - NOT_LOGGED, f"not logged: {sorted(missing)}"
        elif self.given == "several evaluation sets":
            # TRL names a set in the loss alone, and keeps the other metrics of the last set.
            last = {name.replace("eval_two_", "eval_"): value for name, value in ours.items() if "_one_" not in name}
            self.compare({**ours, **last}, theirs, "evaluation")
        elif self.given != "new adapter":
            self.compare(ours, theirs, "evaluation")

    def compare_weights(self):
        name = "adapter_model" if "adapter" in self.given else "model"
        saved = [load_file(str(side.place / "saved" / f"{name}.safetensors")) for side in self.sides]
        keys = [{key for key in tensors if key != "lm_head.weight"} for tensors in saved]
        assert keys[0] == keys[1], f"other tensors: {sorted(keys[0] ^ keys[1])[:4]}"
        if self.given == "new adapter":
            shapes = [{key: saved[i][key].shape for key in keys[0]} for i in (0, 1)]
            assert shapes[0] == shapes[1], "other shapes"
            return
        begin = load_file(f"{self.adapter_dir if name == 'adapter_model' else self.model_dir}/{name}.safetensors")
        apart = sum(float((saved[0][key] - saved[1][key]).pow(2).sum()) for key in keys[0]) ** 0.5
        way = sum(float((saved[1][key] - begin[key]).pow(2).sum()) for key in keys[0]) ** 0.5
        assert apart <= WEIGHTS * way, f"weights differ by {apart / way:.3f} of the way that training took them"


# Logged by transformers' clock or counters, or of another meaning by documentation.
LEFT_OUT = {"step", "epoch", "total_flos", "step_time", "train_runtime", "num_tokens", "eval_num_tokens"}
# TRL's metrics of training batches that are logged for evaluations only (docs/python/from-trl.md).
NOT_LOGGED = {"mean_token_accuracy", "logits/chosen", "logits/rejected"}


def make_models(place):
    """A model, a reward model and an adapter of each whose training has begun."""
    write_tokenizer(place / "tokenizer")
    (place / "config.json").write_text(json.dumps(SHAPE))
    model = init(place)
    made = {"model": model}
    torch.manual_seed(0)
    reward = str(place / "reward")
    loaded = load("Reward", model)
    loaded.config.pad_token_id = 0
    torch.nn.init.normal_(loaded.score.weight, std=0.5)
    loaded.save_pretrained(reward)
    transformers.AutoTokenizer.from_pretrained(model).save_pretrained(reward)
    made["reward"] = reward
    for kind, base in (("adapter", model), ("reward-adapter", reward)):
        trainer = "Reward" if base == reward else "SFT"
        adapted = peft.get_peft_model(load(trainer, base), lora(trainer))
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)
        adapted.save_pretrained(str(place / kind))
        made[kind] = str(place / kind)
    return made


# Parts that differ, and why (docs/python/from-trl.md, or TRL's own limits).
OBJECTS = "TRL's reference of a trained object is that of its files; here the object as it was given"
DIFFERS = {
    **{(trainer, given, "second trainer"): OBJECTS
       for trainer in ("DPO", *ONLINE) for given in ("name", "object", "tokenizer", "conversations", "stream",
                                                     "incomplete batch", "several evaluation sets")},
    **{(trainer, "trained adapter", "second trainer"): "TRL: the adapter `ref` exists already"
       for trainer in ("DPO", *ONLINE)},
}
# What cannot be done on one of both sides, and why.
NOT_A_CELL = {
    **{(trainer, "incomplete batch"): "generation batches are whole in both" for trainer in ONLINE},
    **{(trainer, "adapter directory"): "TRL's trainers load no adapter's directory as one" for trainer in TRAINERS},
}


def table(results):
    lines = ["| given | " + " | ".join(f"{trainer}Trainer" for trainer in TRAINERS) + " |", "|---" * 6 + "|"]
    for given in GIVEN:
        cells = []
        for trainer in TRAINERS:
            problems = results.get((trainer, given))
            if problems is None:
                cells.append("–")
                continue
            parts = [part for part in AFTER if (trainer, given, part) not in DIFFERS]
            held = sum(part not in problems and "train" not in problems for part in parts)
            cells.append(f"{held} of {len(parts)}")
        if set(cells) != {"–"}:
            lines.append(f"| {given} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainers", nargs="*", choices=[[], *TRAINERS])
    parser.add_argument("--given", choices=GIVEN)
    parser.add_argument("--write", action="store_true", help="put the table into docs/python/from-trl.md")
    options = parser.parse_args()
    results: dict = {}
    with tempfile.TemporaryDirectory() as place:
        models = make_models(pathlib.Path(place))
        for trainer in options.trainers or TRAINERS:
            for given in [options.given] if options.given else GIVEN:
                if (trainer, given) in NOT_A_CELL:
                    continue
                room = pathlib.Path(place) / "runs"
                shutil.rmtree(room, ignore_errors=True)
                with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                    pair = Pair(room, models, trainer, given)
                    pair.run()
                results[trainer, given] = pair.problems
                for part, problem in pair.problems.items():
                    print(f"{trainer}, {given}, {part}: {problem}", flush=True)
    print(table(results))
    failed = sum(len(AFTER) if "train" in problems else len(problems) for problems in results.values())
    cells = [(*key, part) for key in results for part in AFTER]
    differ = sum(cell in DIFFERS for cell in cells)
    print(f"{differ} cells differ as documented; {len(cells) - differ - failed} of the other {len(cells) - differ} cells hold")
    if options.write:
        text = PAGE.read_text()
        head, rest = text.split(MARKS[0])
        PAGE.write_text(f"{head}{MARKS[0]}\n{table(results)}\n{MARKS[1]}{rest.split(MARKS[1])[1]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
