"""Models of torch and PEFT in trainers, callbacks of transformers, and the O-GRPO script. Run with `-m torch`."""

import os
import pathlib

import pytest
from conftest import SMALL, python, vowels

from lockstep_rl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IDS = [[1, 2, 3, 4, 5, 6, 7, 8]]


def load(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def tokenizer(directory):
    return transformers.AutoTokenizer.from_pretrained(directory)


def logits(model):
    with torch.no_grad():
        return model(torch.tensor(IDS)).logits


def scores(directory):
    """Returns the engine's log-probabilities of IDS after its first token."""
    from lockstep_rl import Model

    return torch.tensor(Model(directory).score([(IDS[0][:1], IDS[0][1:])])[0].logprobs)


def of_torch(model):
    """Returns torch's log-probabilities of the same tokens."""
    logps = torch.log_softmax(logits(model)[0], -1)
    return torch.tensor([logps[at, token] for at, token in enumerate(IDS[0][1:])])


def test_a_loaded_model_holds_the_trained_weights_after_training(model, rows):
    given = load(model)
    before = logits(given)
    trainer = GRPOTrainer(given, vowels, GRPOConfig("out", **SMALL), rows, processing_class=tokenizer(model))
    trainer.train()
    assert trainer.model is given
    assert (logits(given) - before).abs().max() > 1e-3
    assert (logits(given) - logits(load("out/model"))).abs().max() <= 1e-5
    assert (of_torch(given) - scores("out/model")).abs().max() <= 1e-5


def test_a_peft_model_holds_the_trained_adapter_after_training(model, rows):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    torch.manual_seed(0)
    given = peft.get_peft_model(load(model), config)
    # As in an adapter that was trained before, lora_B is not zero.
    for name, parameter in given.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    below = {name: tensor.clone() for name, tensor in given.state_dict().items() if "lora_" not in name}
    before = logits(given)
    trainer = GRPOTrainer(given, vowels, GRPOConfig("out", **SMALL), rows, processing_class=tokenizer(model))
    trainer.train()
    assert trainer.model is given
    assert all(torch.equal(below[name], given.state_dict()[name]) for name in below), "the base model must be frozen"
    assert (logits(given) - before).abs().max() > 1e-4
    loaded = peft.PeftModel.from_pretrained(load(model), "out/model")
    assert (logits(given) - logits(loaded)).abs().max() <= 1e-5


def test_a_peft_model_is_unchanged_at_a_learning_rate_of_0(model, rows):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    given = peft.get_peft_model(load(model), config)
    before = logits(given)
    args = GRPOConfig("out", **{**SMALL, "learning_rate": 0.0, "weight_decay": 0.0})
    trainer = GRPOTrainer(given, vowels, args, rows, processing_class=tokenizer(model))
    trainer.train()
    assert torch.equal(logits(trainer.model), before)


def test_peft_models_with_two_adapters_or_a_peft_config_are_refused(model, rows):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    given = peft.get_peft_model(load(model), config)
    with pytest.raises(ValueError, match="is already a PeftModel"):
        GRPOTrainer(given, vowels, GRPOConfig("out", **SMALL), rows, peft_config=config,
                    processing_class=tokenizer(model))
    given.add_adapter("second", config)
    with pytest.raises(ValueError, match="adapters default, second"):
        GRPOTrainer(given, vowels, GRPOConfig("out", **SMALL), rows, processing_class=tokenizer(model))
    assert not os.path.exists("out")


def test_a_lora_config_of_peft_is_accepted(model):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    args = SFTConfig("out", max_steps=2, per_device_train_batch_size=2, learning_rate=0.01, disable_tqdm=True)
    SFTTrainer(model, args, [{"text": "ab sun"}] * 4, peft_config=config).train()
    loaded = peft.PeftModel.from_pretrained(load(model), "out/model")
    assert sum(p.abs().sum().item() for name, p in loaded.named_parameters() if "lora_B" in name) > 0


def test_callbacks_of_transformers_can_stop_training(model, rows):
    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 2

    trainer = GRPOTrainer(model, vowels, GRPOConfig("out", **SMALL), rows, callbacks=[Stop])
    assert trainer.train().global_step == 2


SHARED = pathlib.Path(os.environ.get("LOCKSTEP_SHARED", pathlib.Path(__file__).parents[3] / "shared"))


@pytest.mark.skipif(not (SHARED / "data/scripts").exists(), reason="../shared is missing")
def test_the_o_grpo_script_runs_with_torch(bytes_model, place):
    pytest.importorskip("datasets")
    text = (SHARED / "data/scripts/train_grpo_v100.py").read_text()
    text = text.replace("from trl import", "from lockstep_rl import")
    text = text.replace('"trl-lib/chatbot_arena_completions"', '"json", data_files="rows.jsonl"')
    (place / "script.py").write_text(text)
    (place / "rows.jsonl").write_text('{"prompt": "Hello there"}\n' * 8)
    said = python("script.py", env={**os.environ, "MODEL": bytes_model, "MAX_NEW_TOKENS": "8", "MAX_SAMPLES": "8"})
    assert said.returncode == 0, said.stderr
    assert "[train(grpo)]" in said.stdout and "`gen_kwargs` is deprecated" in said.stderr


def total(model):
    return sum(p.detach().double().abs().sum().item() for p in model.parameters())


def test_callbacks_get_the_current_weights_however_the_model_was_passed(model, rows):
    """The model is passed by name, loaded, or as a PeftModel, with or without an adapter; callbacks get it as a
    parameter, in kwargs, or from the trainer."""
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    ways = {
        "name": (model, None),
        "name and dict": (model, {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}),
        "name and adapter": (model, lora),
        "loaded": (load(model), None),
        "loaded and adapter": (load(model), lora),
        "PeftModel": (peft.get_peft_model(load(model), lora), None),
    }
    for way, (given, config) in ways.items():
        seen = {"parameter": [], "kwargs": [], "trainer": []}

        class Looks(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, model=None, **kwargs):
                seen["parameter"].append(total(model))

        class LooksToo(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                seen["kwargs"].append(total(kwargs["model"]))

        class LooksAtTheTrainer(transformers.TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                seen["trainer"].append(total(trainer.model))

        out = way.replace(" ", "-")
        trainer = GRPOTrainer(given, vowels, GRPOConfig(out, **{**SMALL, "max_steps": 3}), rows, peft_config=config,
                              processing_class=tokenizer(model), callbacks=[Looks, LooksToo, LooksAtTheTrainer])
        trainer.train()
        after = total(trainer.model)
        assert seen["parameter"] == seen["kwargs"] == seen["trainer"], way
        assert len(set(seen["trainer"])) == 3 and seen["trainer"][-1] == after, way
        adapted = config is not None or way == "PeftModel"
        assert isinstance(trainer.model, peft.PeftModel) == adapted, way
        loaded = peft.PeftModel.from_pretrained(load(model), f"{out}/model") if adapted else load(f"{out}/model")
        assert (logits(trainer.model) - logits(loaded)).abs().max() <= 1e-5, way
        assert trainer.model.config.model_type == "qwen3" and trainer.model.get_parameter is not None
        ids = trainer.model.generate(torch.tensor(IDS), max_new_tokens=2, do_sample=False)
        assert ids.shape[1] in (9, 10)
        trainer.save_model(f"{out}-saved")
        assert os.path.exists(f"{out}-saved/adapter_model.safetensors") == adapted


def test_weights_are_not_copied_for_callbacks_that_do_not_read_the_model(model, rows, monkeypatch):
    from lockstep_rl import _live

    class Quiet(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            self.last = state.global_step

    synced = []
    monkeypatch.setattr(_live, "sync_weights", lambda *args, **kwargs: synced.append(args))
    trainer = GRPOTrainer(load(model), vowels, GRPOConfig("out", **SMALL), rows, callbacks=[Quiet],
                          processing_class=tokenizer(model))
    trainer.train()
    assert len(synced) == 1, "expected one copy, when training ends"


def test_training_starts_from_the_changed_weights_of_trainer_model(model, rows):
    """Also if the model was passed by name."""
    results = []
    for out, given, changes in [("plain", model, False), ("name", model, True), ("loaded", load(model), True)]:
        args = GRPOConfig(out, **{**SMALL, "learning_rate": 0.0, "weight_decay": 0.0, "max_steps": 1})
        trainer = GRPOTrainer(given, vowels, args, rows, processing_class=tokenizer(model))
        if changes:
            with torch.no_grad():
                trainer.model.get_parameter("model.norm.weight").mul_(2)
        trainer.train()
        results.append(logits(load(f"{out}/model")))
    assert (results[0] - results[1]).abs().max() > 1e-3 and torch.equal(results[1], results[2])


def test_a_changed_tokenizer_object_is_used_instead_of_its_files(bytes_model):
    """It was loaded from the directory of the model, and then changed."""
    rows = [{"prompt": [{"role": "user", "content": "ab"}]}] * 4
    for out, given in [("named", bytes_model), ("loaded", load(bytes_model))]:
        own = tokenizer(bytes_model)
        own.chat_template = "{% for m in messages %}<{{ m['content'] }}>{% endfor %}"
        own.add_tokens(["<tool>"])
        trainer = GRPOTrainer(given, vowels, GRPOConfig(out, **{**SMALL, "max_steps": 1}), rows, processing_class=own)
        trainer.train()
        saved = tokenizer(f"{out}/model")
        assert saved.chat_template == own.chat_template and "<tool>" in saved.get_vocab()


def test_a_reward_model_in_memory_scores_like_its_directory(model, bytes_model, rows):
    config = transformers.AutoConfig.from_pretrained(model, num_labels=1)
    torch.manual_seed(3)
    judge = transformers.AutoModelForSequenceClassification.from_config(config)
    judge.save_pretrained("judge"), tokenizer(model).save_pretrained("judge")
    histories = []
    for out, reward, classes in [("a", "judge", None), ("b", judge, tokenizer(model)), ("c", ["judge"], [None])]:
        trainer = GRPOTrainer(model, reward, GRPOConfig(out, **SMALL), rows, reward_processing_classes=classes)
        trainer.train()
        assert len(trainer.reward_processing_classes) == 1
        histories.append([entry["reward"] for entry in trainer.state.log_history if "reward" in entry])
    assert histories[0] == histories[1] == histories[2]
    with pytest.raises(ValueError, match="must match"):
        GRPOTrainer(model, ["judge", vowels], GRPOConfig("d", **SMALL), rows,
                    reward_processing_classes=tokenizer(model))


def test_early_stopping_of_transformers_stops_training(model, rows):
    def falls(completions, trainer_state, **kwargs):
        return [1.0 if trainer_state.global_step == 1 else 0.5] * len(completions)

    args = GRPOConfig("out", **{**SMALL, "max_steps": 9}, eval_strategy="steps", eval_steps=1, save_strategy="steps",
                      save_steps=1, metric_for_best_model="eval_reward", greater_is_better=True)
    trainer = GRPOTrainer(model, falls, args, rows, rows[:2],
                          callbacks=[transformers.EarlyStoppingCallback(early_stopping_patience=2)])
    trainer.train()
    assert trainer.state.global_step == 3 and trainer.state.best_metric == 1.0
    from transformers.trainer_utils import get_last_checkpoint

    assert get_last_checkpoint("out") == os.path.join("out", "checkpoint-3")


def test_ref_model_follows_the_policy_with_sync_ref_model(model, rows):
    args = GRPOConfig("out", **SMALL, beta=0.1, sync_ref_model=True, ref_model_sync_steps=2)
    trainer = GRPOTrainer(model, vowels, args, rows)
    before = {name: p.clone() for name, p in trainer.ref_model.named_parameters()}
    trainer.train()
    assert all(not torch.equal(p, trainer.ref_model.get_parameter(name)) for name, p in before.items())
    assert GRPOTrainer(model, vowels, GRPOConfig("b", **SMALL), rows).ref_model is None


def test_the_gsm8k_demo_trains_a_loaded_model_with_lora(bytes_model):
    """As in the well-known GSM8K script: a loaded model in bf16, a tokenizer with a pad token, a LoraConfig, and five
    rewards on chat messages."""
    peft = pytest.importorskip("peft")
    demo: dict = {"__name__": "demo"}
    exec((pathlib.Path(__file__).parents[1] / "examples/gsm8k_xml.py").read_text(), demo)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        bytes_model, dtype=torch.bfloat16, attn_implementation="eager", device_map=None
    )
    words = tokenizer(bytes_model)
    words.pad_token = words.eos_token
    rows = [
        {"prompt": [{"role": "system", "content": "in a form"}, {"role": "user", "content": f"{a} and {a}?"}],
         "answer": str(2 * a)}
        for a in range(8)
    ]
    args = GRPOConfig(
        output_dir="gsm8k", run_name="gsm8k", learning_rate=5e-3, adam_beta1=0.9, adam_beta2=0.99, weight_decay=0.1,
        warmup_ratio=0.1, lr_scheduler_type="cosine", logging_steps=1, bf16=True, per_device_train_batch_size=4,
        gradient_accumulation_steps=1, num_generations=4, max_prompt_length=256, max_completion_length=12, max_steps=3,
        save_steps=100, max_grad_norm=0.1, report_to="none", log_on_each_node=False, use_vllm=False, disable_tqdm=True,
    )
    names = "xmlcount_reward soft_format_reward strict_format_reward int_reward correctness_reward".split()
    config = peft.LoraConfig(
        r=16, lora_alpha=64,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"],
        task_type="CAUSAL_LM", lora_dropout=0.05,
    )
    trainer = GRPOTrainer(
        model=loaded, processing_class=words, reward_funcs=[demo[name] for name in names], args=args,
        train_dataset=rows, peft_config=config,
    )
    before = {name: tensor.clone() for name, tensor in trainer.model.named_parameters() if "lora_B" in name}
    trainer.train()
    assert before and trainer.state.global_step == 3
    assert {f"rewards/{name}/mean" for name in names} <= trainer.state.log_history[-2].keys()
    trainer.save_model("adapter")
    assert peft.PeftConfig.from_pretrained("adapter").r == 16
    after = dict(trainer.model.named_parameters())
    assert set(before) <= set(after)


def test_training_arguments_of_transformers_are_accepted(model):
    """As in TRL's SFTTrainer, their values are used even if TRL has other defaults."""
    arguments = transformers.TrainingArguments("out", max_steps=2, per_device_train_batch_size=2, report_to="none")
    trainer = SFTTrainer(model, arguments, [{"text": word} for word in ("abc", "def", "ghi")])
    assert isinstance(trainer.args, SFTConfig) and trainer.args.learning_rate == arguments.learning_rate == 5e-5
    assert trainer.args.max_steps == 2 and trainer.args.max_length == SFTConfig("x").max_length
    trainer.train()
    assert trainer.state.global_step == 2


def test_an_adapter_of_a_reward_model_is_trained_with_its_head(model):
    """Both for new adapters and for a PeftModel; the saved adapter can be loaded by PEFT."""
    peft = pytest.importorskip("peft")
    from lockstep_rl import RewardConfig, RewardTrainer

    rows = [{"prompt": "ab", "chosen": word, "rejected": word + "x"} for word in ("sun", "moon", "tree")]
    fields = dict(per_device_train_batch_size=3, max_steps=2, learning_rate=0.1, report_to="none", disable_tqdm=True)
    kind = transformers.AutoModelForSequenceClassification
    own = kind.from_pretrained(model, num_labels=1, dtype=torch.float32)
    own.config.pad_token_id = 0
    lora = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="SEQ_CLS", modules_to_save=["score"])
    plain = peft.get_peft_model(kind.from_pretrained(model, num_labels=1, dtype=torch.float32),
                                peft.LoraConfig(r=2, target_modules=["q_proj"]))
    for given, more in ((model, {"peft_config": lora}), (own, {"peft_config": lora}), (plain, {})):
        out = f"out-{type(given).__name__}"
        trainer = RewardTrainer(given, RewardConfig(out, **fields), rows, processing_class=tokenizer(model), **more)
        before = {name: tensor.clone() for name, tensor in trainer.model.named_parameters()}
        trainer.train()
        changed = {name for name, tensor in trainer.model.named_parameters() if not torch.equal(tensor, before[name])}
        assert any("lora_" in name for name in changed) and any("score" in name for name in changed), (out, changed)
        assert not any("embed" in name or "base_layer" in name for name in changed), changed
        trainer.save_model(f"{out}-adapter")
        assert peft.PeftConfig.from_pretrained(f"{out}-adapter").task_type == "SEQ_CLS"
    with pytest.raises(ValueError, match="num_labels=2"):
        two = kind.from_pretrained(model, num_labels=2)
        RewardTrainer(two, RewardConfig("two", **fields), rows, processing_class=tokenizer(model))
