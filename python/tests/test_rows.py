"""Rows of SFT, DPO and reward models in the formats of TRL: ids, masks, tools. Equal data train equal weights."""

import json

import pytest
from conftest import LETTERS, WORDS, grpo, weights
from test_forms import OFFLINE, sft

from lockstep_rl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    PPOConfig,
    RewardConfig,
    RewardTrainer,
    RLOOConfig,
    SFTConfig,
    SFTTrainer,
)

TEXTS = [word for word in WORDS if len(word) > 1]


def ids(text, end=True):
    return [1 + LETTERS.index(letter) for letter in text] + [0] * end


def test_sft_accepts_token_ids_with_labels_or_masks(model):
    whole = sft(model, [{"text": text} for text in TEXTS], "whole")
    assert sft(model, [{"input_ids": ids(text)} for text in TEXTS], "ids") == whole != weights(model)
    split = sft(model, [{"prompt": text[:2], "completion": text[2:] + "a"} for text in TEXTS], "split")
    rows = [ids(text + "a") for text in TEXTS]
    masks = [{"input_ids": row, "completion_mask": [0, 0] + [1] * (len(row) - 2)} for row in rows]
    assert sft(model, masks, "masks", completion_only_loss=True) == split != whole
    labels = [{"input_ids": row, "labels": [-100, -100, *row[2:]]} for row in rows]
    assert sft(model, labels, "labels") == split
    everything = sft(model, masks, "everything", completion_only_loss=False)
    assert everything == sft(model, [{"input_ids": row} for row in rows], "all") != split
    assert sft(model, masks, "unused") == everything  # as in TRL, where rows have no prompt and completion
    with pytest.raises(ValueError, match="row 1: `input_ids` must be a list of token ids from 0 to 30"):
        sft(model, [{"input_ids": [1, 99]}], "bad")


def conversation(*words):
    roles = ("user", "assistant") * len(words)
    return [{"role": role, "content": word} for role, word in zip(roles, words)]


def test_assistant_only_loss_trains_on_the_messages_of_the_assistant(bytes_model):
    def of(rows, out, **fields):
        return sft(bytes_model, rows, out, **fields)

    talk = [{"messages": conversation("hi", word)} for word in WORDS]
    split = [{"prompt": conversation("hi"), "completion": [{"role": "assistant", "content": word}]} for word in WORDS]
    said = of(talk, "said", assistant_only_loss=True)
    assert said == of(split, "both", assistant_only_loss=True)
    assert said not in (of(talk, "whole"), of(split, "split"))  # the line feed after the message has no label
    shared = [{"conversations": [{"from": m["role"], "value": m["content"]} for m in row["messages"]]} for row in talk]
    assert of(shared, "shared", assistant_only_loss=True) == said
    with pytest.raises(ValueError, match="assistant_only_loss is for conversations"):
        of([{"text": "abc"}] * 2, "text", assistant_only_loss=True)


def test_tools_of_a_row_are_passed_to_the_chat_template(model, tmp_path):
    import shutil

    place = tmp_path / "with-tools"
    shutil.copytree(model, place)
    config = json.loads((place / "tokenizer_config.json").read_text())
    config["chat_template"] = "{% if tools %}{{ tools[0]['name'] }}{% endif %}" + config["chat_template"]
    (place / "tokenizer_config.json").write_text(json.dumps(config))
    plain = [{"messages": conversation(word, "a<e>")} for word in WORDS]
    tools = [{"name": "tree"}]
    with_tools = sft(str(place), [{**row, "tools": tools} for row in plain], "tools")
    assert with_tools == sft(str(place), [{**row, "tools": json.dumps(tools)} for row in plain], "text")
    assert with_tools == sft(model, [{"text": f"tree{word}a"} for word in WORDS], "same")
    assert with_tools != sft(str(place), [{**row, "tools": None} for row in plain], "none")


def test_dynamic_fine_tuning_changes_the_loss(model):
    rows = [{"text": text} for text in TEXTS]
    nll, dft = (SFTTrainer(model, SFTConfig(loss, loss_type=loss, **OFFLINE), rows, rows) for loss in ("nll", "dft"))
    losses = [trainer.evaluate()["eval_loss"] for trainer in (nll, dft)]
    assert 0 < losses[1] < 0.2 * losses[0], losses
    nll.train(), dft.train()
    assert weights("nll/model") != weights("dft/model")
    with pytest.raises(ValueError, match="nll, dft"):
        SFTConfig("x", loss_type="mse")


PAIRS = [{"prompt": "ab", "chosen": word, "rejected": "y" + word} for word in WORDS]


@pytest.mark.parametrize("trainer, config", [(DPOTrainer, DPOConfig), (RewardTrainer, RewardConfig)])
def test_pairs_of_token_ids_train_the_same_weights_as_texts(model, trainer, config):
    def trained(rows, out):
        trainer(model=model, args=config(out, **OFFLINE), train_dataset=rows).train()
        return weights(f"{out}/model")

    texts = trained(PAIRS, "texts")
    rows = [
        {"prompt_ids": ids("ab", False), "chosen_ids": ids(row["chosen"]), "rejected_ids": ids(row["rejected"])}
        for row in PAIRS
    ]
    assert trained(rows, "ids") == texts != weights(model)
    whole = [{"chosen_ids": row["prompt_ids"] + row["chosen_ids"],
              "rejected_ids": row["prompt_ids"] + row["rejected_ids"]} for row in rows]
    old = [{"chosen_input_ids": row["chosen_ids"], "rejected_input_ids": row["rejected_ids"]} for row in whole]
    with pytest.warns(FutureWarning, match="chosen_input_ids"):
        assert trained(old, "old") == trained(whole, "whole")


def test_every_configuration_has_the_fields_of_training_arguments(model, rows):
    for config in (GRPOConfig, RLOOConfig, PPOConfig, SFTConfig, DPOConfig, RewardConfig):
        assert config("out", per_device_eval_batch_size=3).per_device_eval_batch_size == 3
        for name in ("per_device_train_batch_size", "eval_accumulation_steps", "dataloader_num_workers", "optim"):
            assert name in config._fields, (config, name)


def test_dispatch_batches_is_false_for_a_stream(model, rows):
    def stream():
        class Stream:
            def __iter__(self):
                return iter(rows)

        return Stream()

    trainer = grpo(model, stream())
    assert trainer.args.accelerator_config.dispatch_batches is False
    assert grpo(model, rows).args.accelerator_config.dispatch_batches is None
    with pytest.raises(ValueError, match="require `dispatch_batches=False`"):
        grpo(model, stream(), accelerator_config={"dispatch_batches": True})
    with pytest.raises(TypeError, match="no field `dispatch`"):
        grpo(model, rows, accelerator_config={"dispatch": True})


def test_each_evaluation_set_has_its_own_log_entry(model):
    rows = [{"text": text} for text in TEXTS]
    args = SFTConfig("out", **{**OFFLINE, "eval_strategy": "steps", "eval_steps": 3})
    trainer = SFTTrainer(model, args, rows, {"a": rows, "ab": rows[:2]})
    trainer.train()
    first, second = trainer.state.log_history[-3:-1]
    assert "eval_a_loss" in first and not any(key.startswith("eval_ab_") for key in first)
    assert "eval_ab_loss" in second and "eval_runtime" in second
    assert {"eval_a_loss", "eval_ab_loss"} <= trainer.evaluate().keys()
