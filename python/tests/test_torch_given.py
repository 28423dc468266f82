"""Models of torch after training, compared with TRL if it is installed. Run with `-m torch`."""

import pytest
from conftest import WORDS

from lockstep_rl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer, SFTConfig, SFTTrainer

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

FEW = dict(per_device_train_batch_size=4, max_steps=3, learning_rate=0.01, logging_steps=1, save_strategy="no",
           disable_tqdm=True, report_to="none", lr_scheduler_type="constant")
TEXTS = [{"text": f"{word} sun moon"} for word in WORDS] * 2
PAIRS = [{"prompt": f"{word} ", "chosen": "sun", "rejected": "moon"} for word in WORDS] * 2
PROMPTS = [{"prompt": f"{word} "} for word in WORDS]


def load(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def tokenizer(directory):
    return transformers.AutoTokenizer.from_pretrained(directory)


def lora(**more):
    return peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **more)


def same(one, other):
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.allclose(mine[key], theirs[key], atol=1e-6) for key in mine)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_save_pretrained_of_the_object_saves_the_trained_weights(model, dtype):
    given = load(model).to(dtype)
    SFTTrainer(given, SFTConfig("out", **FEW), TEXTS, processing_class=tokenizer(model)).train()
    given.save_pretrained("saved")
    assert same(load("saved"), load("out/model").to(dtype).float()) and not same(load("saved"), load(model))


def test_a_new_adapter_is_added_to_the_base_model_object(model):
    """As in TRL, PEFT adds its layers to the model object passed to the trainer."""
    given = load(model)
    before = given(torch.tensor([[1, 2, 3]])).logits
    trainer = SFTTrainer(given, SFTConfig("out", **FEW), TEXTS, processing_class=tokenizer(model), peft_config=lora())
    trainer.train()
    loaded = peft.PeftModel.from_pretrained(load(model), "out/model")
    after = given(torch.tensor([[1, 2, 3]])).logits
    assert torch.allclose(after, loaded(torch.tensor([[1, 2, 3]])).logits, atol=1e-5) and not torch.equal(after, before)
    # A second trainer accepts the PeftModel with its trained adapter, but not the base model.
    second = DPOTrainer(trainer.model, None, DPOConfig("two", **FEW), PAIRS, processing_class=tokenizer(model))
    second.train()
    first = second.state.log_history[0]
    assert first["loss"] == pytest.approx(0.6931472, abs=1e-6) and first["rewards/margins"] == 0.0
    with pytest.raises(ValueError, match="has an adapter inside"):
        SFTTrainer(given, SFTConfig("three", **FEW), TEXTS, processing_class=tokenizer(model)).train()


def test_adapters_are_trained_on_by_later_trainers(model):
    first = SFTTrainer(model, SFTConfig("one", **FEW), TEXTS, peft_config=lora())
    first.train()
    second = DPOTrainer(first.model, None, DPOConfig("two", **FEW), PAIRS, processing_class=tokenizer(model))
    second.train()
    assert second.state.log_history[0]["rewards/margins"] == 0.0
    third = SFTTrainer(second.model, SFTConfig("three", **FEW), TEXTS, processing_class=tokenizer(model))
    third.train()
    losses = [trainer.state.log_history[0]["loss"] for trainer in (first, third)]
    assert losses[1] < losses[0], "expected training to continue"


def trained_adapter(model):
    torch.manual_seed(0)
    given = peft.get_peft_model(load(model), lora())
    for name, parameter in given.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return given


def reward(completions, **kwargs):
    return [float(len(set(text))) for text in completions]


@pytest.mark.parametrize("given", ["model", "adapter"])
def test_two_trainers_on_one_object_have_the_losses_of_trl(model, given):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    logs = []
    for library in (trl, None):
        one = load(model) if given == "model" else trained_adapter(model)
        log = []
        for stage in range(2):
            fields = dict(FEW, output_dir=f"{library is None}-{stage}")
            if library is None:
                trainer_class, config_class, more = SFTTrainer, SFTConfig, {}
            else:
                trainer_class, config_class = trl.SFTTrainer, trl.SFTConfig
                more = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}
            # The batch has all rows, so that their order does not matter.
            rows = datasets.Dataset.from_list(TEXTS[:4])
            args = config_class(**fields, **more)
            trainer = trainer_class(model=one, args=args, train_dataset=rows, processing_class=tokenizer(model))
            trainer.train()
            log += [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        logs.append(log)
    assert len(logs[0]) == 6 and logs[1] == pytest.approx(logs[0], abs=2e-3)


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_the_kl_divergence_of_a_continued_adapter_starts_at_0(model, kind):
    classes = {"GRPO": (GRPOTrainer, GRPOConfig), "RLOO": (RLOOTrainer, RLOOConfig)}[kind]
    args = classes[1]("out", num_generations=2, max_completion_length=6, beta=0.1, **FEW)
    trainer = classes[0](trained_adapter(model), reward, args, PROMPTS, processing_class=tokenizer(model))
    trainer.train()
    kl = [entry["kl"] for entry in trainer.state.log_history if "kl" in entry]
    assert kl[0] == 0.0 and kl[-1] > 0.0
