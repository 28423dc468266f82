"""Wrong arguments raise one clear exception each, and no file is written."""

import os
import shutil

import pytest
from conftest import SMALL, grpo, vowels

import lockstep_rl
from lockstep_rl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    RewardConfig,
    RewardTrainer,
    RLOOConfig,
    SFTConfig,
    SFTTrainer,
)
from lockstep_rl._refused import REFUSED_ARGUMENTS

FIELDS = [
    (dict(num_generatons=4), TypeError, "did you mean `num_generations`"),
    (dict(num_generations="four"), TypeError, "must be an integer, but is 'four'"),
    (dict(num_generations=True), TypeError, "must be an integer"),
    (dict(num_generations=2.5), TypeError, "must be an integer"),
    (dict(num_generations=1), ValueError, "at least 2"),
    (dict(num_generations=0), ValueError, "at least 1"),
    (dict(per_device_train_batch_size=6, num_generations=4), ValueError, "6 × 1 = 6 completions.*multiple.*4"),
    (dict(generation_batch_size=8, steps_per_generation=2), ValueError, "remove one of them"),
    (dict(generation_batch_size=12, per_device_train_batch_size=8), ValueError, "8 or 16"),
    (dict(learning_rate="fast"), TypeError, "must be a number"),
    (dict(learning_rate=-1.0), ValueError, "`learning_rate`"),
    (dict(learning_rate=float("nan")), ValueError, "finite"),
    (dict(temperature=-1), ValueError, "`temperature` must be at least 0"),
    (dict(top_p=0.0), ValueError, "`top_p` must be above 0"),
    (dict(top_p=1.5), ValueError, "at most 1"),
    (dict(top_k=-1), ValueError, "`top_k`"),
    (dict(min_p=2.0), ValueError, "`min_p`"),
    (dict(loss_type="grpoo"), ValueError, "one of.*grpo"),
    (dict(scale_rewards="most"), ValueError, "group"),
    (dict(importance_sampling_level="word"), ValueError, "token"),
    (dict(lr_scheduler_type="wavy"), ValueError, "linear"),
    (dict(max_steps=0), ValueError, "`max_steps`"),
    (dict(max_completion_length=0), ValueError, "`max_completion_length`"),
    (dict(logging_steps=0), ValueError, "`logging_steps`"),
    (dict(logging_steps="often"), TypeError, "`logging_steps`"),
    (dict(save_strategy="sometimes"), ValueError, "steps"),
    (dict(beta="0.1"), TypeError, "`beta`"),
    (dict(shuffle_dataset="yes"), TypeError, "True or False"),
    (dict(fp16=True), ValueError, "f32 or bf16"),
    (dict(deepspeed="ds.json"), ValueError, "one process"),
    (dict(fsdp="full_shard"), ValueError, "one process"),
    (dict(optim="adafactor"), ValueError, "AdamW"),
    (dict(neftune_noise_alpha=5.0), ValueError, "noise"),
    (dict(label_smoothing_factor=0.1), ValueError, "smoothing"),
    (dict(auto_find_batch_size=True), ValueError, "max_tokens_per_micro_batch"),
    (dict(lr_scheduler_kwargs={"num_cycles": 2}), ValueError, "no arguments"),
    (dict(lr_scheduler_kwargs="num_cycles"), TypeError, "must be a dict"),
    (dict(lr_scheduler_type="cosine", lr_scheduler_kwargs={"power": 2}), ValueError, "its arguments: num_cycles"),
    (dict(lr_scheduler_type="cosine_with_min_lr"), ValueError, "one of min_lr and min_lr_rate"),
    (dict(lr_scheduler_type="warmup_stable_decay"), ValueError, "num_decay_steps"),
    (dict(lr_scheduler_type="reduce_lr_on_plateau"), ValueError, "follows a metric"),
    (dict(lr_scheduler_type="greedy"), ValueError, "follows a metric"),
    (dict(model_init_kwargs={"torch_dtype": "float16"}), ValueError, "float16"),
    (dict(model_init_kwargs={"revision": "x"}), ValueError, "revision"),
    (dict(generation_kwargs={"num_beams": 4}), ValueError, "num_beams"),
    (dict(load_best_model_at_end=True), ValueError, "evaluation"),
    (dict(chat_template_kwargs=[1]), TypeError, "a dict"),
    (dict(stop=[""]), ValueError, "`stop`"),
    (dict(sync_ref_model=True), ValueError, "beta"),
    (dict(threads=0), ValueError, "`threads`"),
    (dict(report_to="wandbb"), ValueError, "one or several of.*wandb"),
    (dict(report_to="http://me:hush@h.example/"), ValueError, "a user or a password before"),
    (dict(report_to=["wandb", "htps://me:hush@h.example/"]), ValueError, "'htps': expected one or several of"),
]


@pytest.mark.parametrize("fields, error, words", FIELDS, ids=lambda value: str(value)[:40])
def test_a_wrong_field_raises_a_clear_error(fields, error, words):
    with pytest.raises(error, match=words):
        GRPOConfig("out", **fields)
    assert os.listdir() == []


ROWS = [{"prompt": "ab "}] * 8

ARGUMENTS = [
    (dict(model=None), TypeError, "needs a model"),
    (dict(model=3), TypeError, "a directory, a Hub id or a transformers model, but is int"),
    (dict(model="./no/such/model"), FileNotFoundError, "./no/such/model"),
    (dict(model=""), ValueError, "empty"),
    (dict(reward_funcs=None), ValueError, "reward_funcs"),
    (dict(reward_funcs=[]), ValueError, "reward_funcs"),
    (dict(reward_funcs=3), TypeError, "expected a function"),
    (dict(reward_funcs=[vowels, 3]), TypeError, "expected a function"),
    (dict(reward_funcs="/no/such/model"), FileNotFoundError, "/no/such/model"),
    (dict(reward_funcs=""), ValueError, "empty name"),
    (dict(args={"num_generations": 2}), TypeError, "must be a GRPOConfig"),
    (dict(args=SFTConfig("out")), TypeError, "must be a GRPOConfig"),
    (dict(args=GRPOConfig("out", reward_weights=[1.0, 2.0], **SMALL)), ValueError, "one weight per reward"),
    (dict(train_dataset=None), ValueError, "train_dataset"),
    (dict(train_dataset=[]), ValueError, "must have at least one row"),
    (dict(train_dataset=3), TypeError, "sequence of rows"),
    (dict(train_dataset=["ab", "cd"]), TypeError, "row 0: expected a dict"),
    (dict(train_dataset={"train": ROWS}), TypeError, "dict of datasets"),
    (dict(train_dataset=[*ROWS, {"prompt": None}]), ValueError, "row 8: `prompt` is None"),
    (dict(train_dataset="./no.jsonl"), FileNotFoundError, "no.jsonl"),
    (dict(eval_dataset=[]), ValueError, "eval_dataset"),
    (dict(eval_dataset={}), ValueError, "empty dict"),
    (dict(eval_dataset={"easy": []}), ValueError, "eval_dataset.'easy'.* must have at least one row"),
    (dict(callbacks=[3]), TypeError, "has no callback method"),
    (dict(peft_config=3), TypeError, "LoraConfig"),
    (dict(peft_config={"peft_type": "IA3"}), ValueError, "not IA3"),
    (dict(peft_config={"r": 2, "use_dora": True}), ValueError, "use_dora"),
    (dict(peft_config={"bias": "all"}), ValueError, "bias"),
    (dict(processing_class=3), TypeError, "processing_class"),
    (dict(tools=[print]), ValueError, "tools"),
    (dict(environment_factory=print), ValueError, "environment_factory"),
    (dict(optimizers=(1, 2)), ValueError, "AdamW"),
    (dict(quantization_config={}, compute_metrics=print), ValueError, "compute_metrics.*log_metric"),
    (dict(models="x"), TypeError, "no argument `models`"),
    (dict(gen_kwargs={"num_beams": 2}), ValueError, "num_beams"),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("arguments, error, words", ARGUMENTS, ids=lambda value: str(value)[:40])
def test_a_wrong_trainer_argument_raises_a_clear_error(model, arguments, error, words):
    given = dict(model=model, reward_funcs=vowels, args=GRPOConfig("out", **SMALL), train_dataset=ROWS)
    with pytest.raises(error, match=words):
        GRPOTrainer(**{**given, **arguments})
    assert os.listdir() == []


def test_errors_that_appear_only_in_training_are_clear(model, rows):
    def refused(error, words, *arguments, **fields):
        with pytest.raises(error, match=words):
            grpo(*arguments, **fields).train()
        assert not os.path.exists("out")

    os.makedirs("empty")
    refused(FileNotFoundError, "config.json", "empty", rows)
    refused(ValueError, "no column `prompt`.*`question`", model, [{"question": "ab"}] * 8)
    refused(ValueError, "no character 'A'", model, [{"prompt": "AB"}] * 8)
    refused(ValueError, "the prompt is empty", model, [{"prompt": ""}] * 8)
    refused(ValueError, "no `role`", model, [{"prompt": [{"content": "ab"}]}] * 8)
    refused(ValueError, "one step takes 8 rows", model, rows, per_device_train_batch_size=16)
    refused(ValueError, "max_prompt_length = 58", model, [{"prompt": "a" * 60}] * 8)
    refused(ValueError, "gsm8`?.*gsm8k", model, rows, "gsm8")
    refused(ValueError, "column `answer`", model, [{"prompt": "ab "}] * 8, "exact_match")
    refused(ValueError, "no such evaluation metric", model, rows, eval_strategy="steps", eval_steps=1, save_steps=1,
            load_best_model_at_end=True, metric_for_best_model="eval_beauty", trainer={"eval_dataset": rows})


def test_wrong_scores_of_a_reward_raise_a_clear_error(model, rows):
    for answer, error, words in [
        (lambda count: [1.0] * (count + 1), ValueError, "5 scores for 4 completions"),
        (lambda count: 1.0, TypeError, "a list of numbers"),
        (lambda count: ["good"] * count, TypeError, "'good' for completion 0"),
        (lambda count: None, TypeError, "a list of numbers"),
    ]:
        trainer = grpo(model, rows, lambda completions, **kwargs: answer(len(completions)))
        with pytest.raises(error, match=words):
            trainer.train()
        shutil.rmtree("out")
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        grpo(model, rows, lambda completions: [0.0] * len(completions)).train()


def test_a_directory_that_holds_a_run_is_not_overwritten(model, rows):
    grpo(model, rows).train()
    with pytest.raises(ValueError, match="already holds a run; resume it"):
        grpo(model, rows).train()
    with pytest.raises(ValueError, match="num_generations"):
        grpo(model, rows, num_generations=4).train(resume_from_checkpoint=True)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        grpo(model, rows).train(resume_from_checkpoint="./nowhere")
    with pytest.raises(TypeError, match="no argument `trial`"):
        grpo(model, rows).train(trial=3)


def test_unsupported_methods_raise_an_error_with_the_reason(model, rows):
    trainer = grpo(model, rows)
    for name in ["get_train_dataloader", "create_optimizer", "compute_loss", "hyperparameter_search"]:
        with pytest.raises(AttributeError, match=f"no `{name}`: "):
            getattr(trainer, name)
    with pytest.raises(AttributeError, match="accelerator has no `backward`: the engine computes gradients"):
        trainer.accelerator.backward
    with pytest.raises(AttributeError, match="no `trian`"):
        trainer.trian()
    with pytest.raises(ValueError, match="eval_dataset is missing"):
        trainer.evaluate()


def test_wrong_arguments_of_other_trainers_raise_a_clear_error(model):
    with pytest.raises(ValueError, match="row 0: `text` is None"):
        SFTTrainer(model, SFTConfig("out"), [{"text": None}] * 8)
    with pytest.raises(ValueError, match="no column `prompt`.*`body`"):
        SFTTrainer(model, SFTConfig("out"), [{"body": "ab"}] * 8).train()
    with pytest.raises(ValueError, match="eval_dataset.'a'.*row 1: `text` is None"):
        SFTTrainer(model, SFTConfig("out"), [{"text": "ab"}] * 8, {"a": [{"text": "ab"}, {"text": None}]})
    with pytest.raises(ValueError, match="RewardTrainer: `data_collator` is not supported: batches are packed"):
        RewardTrainer(model, RewardConfig("out"), [{"chosen": "a", "rejected": "b"}] * 8, data_collator=print)
    with pytest.raises(ValueError, match="row 0: `chosen` is None"):
        DPOTrainer(model, None, DPOConfig("out"), [{"prompt": "a", "chosen": None, "rejected": "b"}] * 8)
    with pytest.raises(TypeError, match="no field `reward_fns`"):
        RLOOConfig(reward_fns=1)
    with pytest.raises(ValueError, match="one of"):
        DPOConfig(loss_type="kto_pair")
    with pytest.raises(TypeError, match="no field `num_generations`"):
        RewardConfig(num_generations=2)
    assert os.listdir() == []


def test_every_field_of_trl_is_supported_ignored_or_refused():
    for method, count in [("grpo", 191), ("rloo", 165), ("sft", 135), ("dpo", 139), ("reward", 125)]:
        table = lockstep_rl.field_table(method)
        assert len(table) >= count and all(row["doc"] for row in table)
        assert {row["status"] for row in table} == {"supported", "ignored", "refused"}


@pytest.mark.parametrize("name", sorted(REFUSED_ARGUMENTS.keys() - {"tokenizer", "gen_kwargs"}))
def test_an_unsupported_argument_is_accepted_if_it_is_empty(model, rows, name):
    """If it has a value, the error has the reason."""

    def made(value):
        if name in ("compute_metrics", "preprocess_logits_for_metrics"):
            return grpo(model, rows, trainer={name: value})
        pairs = [{"chosen": "a", "rejected": "b"}] * 8
        return RewardTrainer(model, RewardConfig("out"), pairs, **{name: value})

    with pytest.raises(ValueError, match=f"`{name}` is not supported: ") as refused:
        made(object())
    assert str(refused.value).endswith(REFUSED_ARGUMENTS[name])
    made(None)
    made((None, None) if name == "optimizers" else [])
