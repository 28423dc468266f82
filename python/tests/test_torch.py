"""With torch and transformers: models in and out, PEFT's models, the O-GRPO document's script. Run with `-m torch`."""

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
    """The engine's own log-probabilities of IDS after its first token."""
    from lockstep_rl import Model

    return torch.tensor(Model(directory).score([(IDS[0][:1], IDS[0][1:])])[0].logprobs)


def of_torch(model):
    """The same by torch."""
    logps = torch.log_softmax(logits(model)[0], -1)
    return torch.tensor([logps[at, token] for at, token in enumerate(IDS[0][1:])])


def test_a_model_goes_in_and_comes_back(model, rows):
    given = load(model)
    before = logits(given)
    trainer = GRPOTrainer(given, vowels, GRPOConfig("out", **SMALL), rows, processing_class=tokenizer(model))
    trainer.train()
    assert trainer.model is given
    assert (logits(given) - before).abs().max() > 1e-3
    assert (logits(given) - logits(load("out/model"))).abs().max() <= 1e-5
    assert (of_torch(given) - scores("out/model")).abs().max() <= 1e-5


def test_a_peft_model_goes_in_and_comes_back(model, rows):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    torch.manual_seed(0)
    given = peft.get_peft_model(load(model), config)
    # An adapter whose training goes on: its product is not zero.
    for name, parameter in given.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    below = {name: tensor.clone() for name, tensor in given.state_dict().items() if "lora_" not in name}
    before = logits(given)
    trainer = GRPOTrainer(given, vowels, GRPOConfig("out", **SMALL), rows, processing_class=tokenizer(model))
    trainer.train()
    assert trainer.model is given
    assert all(torch.equal(below[name], given.state_dict()[name]) for name in below), "the model below is frozen"
    assert (logits(given) - before).abs().max() > 1e-4
    loaded = peft.PeftModel.from_pretrained(load(model), "out/model")
    assert (logits(given) - logits(loaded)).abs().max() <= 1e-5


def test_no_step_leaves_a_peft_model_as_it_was(model, rows):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    given = peft.get_peft_model(load(model), config)
    before = logits(given)
    args = GRPOConfig("out", **{**SMALL, "learning_rate": 0.0, "weight_decay": 0.0})
    trainer = GRPOTrainer(given, vowels, args, rows, processing_class=tokenizer(model))
    trainer.train()
    assert torch.equal(logits(trainer.model), before)


def test_what_a_peft_model_cannot_be(model, rows):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    given = peft.get_peft_model(load(model), config)
    with pytest.raises(ValueError, match="is a PeftModel already"):
        GRPOTrainer(given, vowels, GRPOConfig("out", **SMALL), rows, peft_config=config,
                    processing_class=tokenizer(model))
    given.add_adapter("second", config)
    with pytest.raises(ValueError, match="adapters default, second"):
        GRPOTrainer(given, vowels, GRPOConfig("out", **SMALL), rows, processing_class=tokenizer(model))
    assert not os.path.exists("out")


def test_a_lora_config_of_peft(model):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    args = SFTConfig("out", max_steps=2, per_device_train_batch_size=2, learning_rate=0.01, disable_tqdm=True)
    SFTTrainer(model, args, [{"text": "ab sun"}] * 4, peft_config=config).train()
    loaded = peft.PeftModel.from_pretrained(load(model), "out/model")
    assert sum(p.abs().sum().item() for name, p in loaded.named_parameters() if "lora_B" in name) > 0


def test_callbacks_of_transformers(model, rows):
    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 2

    trainer = GRPOTrainer(model, vowels, GRPOConfig("out", **SMALL), rows, callbacks=[Stop])
    assert trainer.train().global_step == 2


SHARED = pathlib.Path(os.environ.get("LOCKSTEP_SHARED", pathlib.Path(__file__).parents[3] / "shared"))


@pytest.mark.skipif(not (SHARED / "data/scripts").exists(), reason="../shared is missing")
def test_the_script_of_the_o_grpo_document(bytes_model, place):
    pytest.importorskip("datasets")
    text = (SHARED / "data/scripts/train_grpo_v100.py").read_text()
    text = text.replace("from trl import", "from lockstep_rl import")
    text = text.replace('"trl-lib/chatbot_arena_completions"', '"json", data_files="rows.jsonl"')
    (place / "script.py").write_text(text)
    (place / "rows.jsonl").write_text('{"prompt": "Hello there"}\n' * 8)
    said = python("script.py", env={**os.environ, "MODEL": bytes_model, "MAX_NEW_TOKENS": "8", "MAX_SAMPLES": "8"})
    assert said.returncode == 0, said.stderr
    assert "[train(grpo)]" in said.stdout and "`gen_kwargs` is old" in said.stderr
