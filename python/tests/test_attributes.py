"""Attributes of trainers and arguments that scripts read, warnings, and errors without torch."""

import logging
import os

import pytest
from conftest import SMALL, grpo, vowels

from lockstep_rl import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer, RLOOTrainer, _live


def test_a_trainer_has_the_attributes_that_scripts_read(model, rows):
    trainer = grpo(model, rows, [vowels, "unique_chars"], beta=0.5, num_iterations=2, epsilon_high=0.3,
                   reward_weights=[1.0, 2.0], trainer={"eval_dataset": rows[:2]})
    assert trainer.train_dataset is rows and trainer.eval_dataset == rows[:2]
    assert (trainer.beta, trainer.num_iterations, trainer.epsilon_high, trainer.loss_type) == (0.5, 2, 0.3, "dapo")
    weights = trainer.reward_weights
    assert [float(weight) for weight in weights] == [1.0, 2.0] and trainer.entropy_coef == 0.0
    assert trainer.reward_processing_classes == [None, None] and len(trainer.reward_func_names) == 2
    assert isinstance(trainer.callback_handler.callbacks, list) and not trainer.is_in_train
    assert not trainer.aux_loss_enabled
    with pytest.raises(AttributeError, match="no `nonsense`"):
        trainer.nonsense
    trainer.eval_dataset = {"a": rows[:2], "b": rows[2:4]}
    assert {"eval_a_reward", "eval_b_reward"} <= trainer.evaluate().keys()


def test_entropy_coef_is_the_value_after_the_last_adaptive_step(model, rows):
    trainer = grpo(model, rows, entropy_coef=0.01, use_adaptive_entropy=True, entropy_target=15.0, logging_steps=3)
    trainer.train()
    assert trainer.entropy_coef == pytest.approx(0.01 + 4 * 0.005, abs=1e-9)
    assert trainer.state.log_history[-1]["entropy_coef"] is not None


def test_arguments_have_the_attributes_that_scripts_read():
    args = GRPOConfig("out", warmup_steps=3, per_device_train_batch_size=16)
    assert (args.world_size, args.process_index, args.n_gpu, args.should_save) == (1, 0, 0, True)
    assert args.train_batch_size == 16 and args.get_warmup_steps(100) == 3
    assert GRPOConfig("out", warmup_steps=0.1).get_warmup_steps(105) == 11
    with args.main_process_first(desc="maps"):
        pass
    plain = args.to_sanitized_dict()
    assert plain["train_batch_size"] == 16 and {type(value) for value in plain.values()} <= {bool, int, float, str}


def test_without_torch_the_model_names_the_missing_packages(model, rows, monkeypatch):
    monkeypatch.setattr(_live, "_has_packages", lambda: False)
    trainer = grpo(model, rows)
    for use in (lambda: trainer.model.generate, lambda: trainer.model.parameters(), lambda: trainer.model.config,
                lambda: trainer.model(1)):
        with pytest.raises(AttributeError, match="pip install torch transformers"):
            use()
    assert not hasattr(trainer.model, "hf_device_map") and model in repr(trainer.model)
    trainer.model.save_pretrained("copy")
    assert os.path.exists("copy/model.safetensors") and trainer.model.name_or_path == model


def test_training_warns_and_continues_if_all_rewards_return_none(model, rows, caplog):
    def silent(completions, **kwargs):
        return [None] * len(completions)

    trainer = grpo(model, rows, silent, max_steps=5)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert trainer.state.global_step == 5 and trainer.args.reward_patience is None
    assert "All reward functions returned None for the following kwargs" in caplog.text
    caplog.clear()
    grpo(model, rows, [silent, vowels], output_dir="two").train()
    assert "returned None" not in caplog.text
    with pytest.raises(RuntimeError, match="scored nothing in 2 batches"):
        grpo(model, rows, silent, output_dir="patient", reward_patience=2).train()


@pytest.mark.parametrize("loss_type, warns", [("dapo", True), ("bnpo", True), ("grpo", False)])
def test_a_warning_says_that_sequence_ratios_are_weighted_by_length(model, rows, caplog, loss_type, warns):
    with caplog.at_level(logging.WARNING):
        grpo(model, rows, importance_sampling_level="sequence", loss_type=loss_type)
    assert ("weights each sequence by its completion length" in caplog.text) == warns


def test_errors_name_python_arguments_instead_of_flags(model, rows):
    grpo(model, rows, max_steps=1).train()
    with pytest.raises(ValueError) as error:
        grpo(model, rows).train()
    text = str(error.value)
    assert "resume_from_checkpoint=True" in text and "another output_dir" in text and "--" not in text
    os.makedirs("work/model/of/mine")
    with pytest.raises(ValueError) as error:
        grpo(model, rows, output_dir="work").train()
    assert "--" not in str(error.value)


def test_ppo_accepts_a_reference_model(model, rows):
    args = PPOConfig("ppo", **SMALL)
    trainer = PPOTrainer(model, vowels, args, rows, ref_model=model)
    assert trainer.ref_model is not None
    trainer.train()
    assert issubclass(RLOOTrainer, GRPOTrainer)


def test_the_number_of_reward_processing_classes_must_match(model, rows):
    with pytest.raises(ValueError, match="numbers must match"):
        grpo(model, rows, [vowels, "unique_chars"], trainer={"reward_processing_classes": [None]})


def test_rows_of_a_dataset_keep_its_transform(rows):
    datasets = pytest.importorskip("datasets")
    from lockstep_rl._data import rows_of

    whole = datasets.Dataset.from_list([{"prompt": f"{i}", "answer": i} for i in range(2500)])
    assert rows_of(whole, "d") == [whole[i] for i in range(2500)]
    doubled = whole.with_transform(lambda batch: {"prompt": [text * 2 for text in batch["prompt"]]})
    assert rows_of(doubled, "d")[7] == {"prompt": "77"}
