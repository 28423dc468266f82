"""A model object holds the trained weights when `train()` ends, however it ends, and a second trainer continues with
them. A stand-in replaces the torch model: it reads the weights from the same files."""

import os
import pathlib
import threading

import pytest
from conftest import SMALL, vowels, weights
from test_given import InMemory, given

import lockstep_rl
from lockstep_rl import TrainerCallback, _live


class Loaded(InMemory):
    """A stand-in for a loaded model with weights in memory."""

    def __init__(self, directory):
        super().__init__(directory)
        self.bytes = weights(directory)
        self.synced = 0

    def state_dict(self):
        return {}

    def save_pretrained(self, target):
        super().save_pretrained(target)
        pathlib.Path(target, "model.safetensors").write_bytes(self.bytes)


@pytest.fixture(autouse=True)
def sync(monkeypatch):
    def copy(model, directory, file=None):
        model.bytes = weights(directory)
        model.synced += 1

    monkeypatch.setattr(_live, "sync_weights", copy)


@pytest.fixture(scope="module")
def scorer(model, tmp_path_factory):
    """Returns the directory of a trained reward model."""
    out = tmp_path_factory.mktemp("scorer")
    make("reward", model, out / "run").train()
    return str(out / "run/model")


PAIRS = [{"prompt": "ab ", "chosen": "sun", "rejected": "moon"}, {"prompt": "x ", "chosen": "tree", "rejected": "a"}]
ROWS = {
    "grpo": [{"prompt": f"{word} "} for word in ("ab", "sun", "moon", "x")], "sft": [{"text": "ab sun moon"}] * 4,
    "dpo": PAIRS * 2, "reward": PAIRS * 2,
}
CLASSES = {
    "grpo": "GRPO", "rloo": "RLOO", "ppo": "PPO", "sft": "SFT", "dpo": "DPO", "reward": "Reward",
}


def make(kind, model, out, callbacks=None, reward=vowels, **fields):
    few = {name: value for name, value in SMALL.items() if name != "num_generations"}
    few = {**few, "save_strategy": "no", "max_steps": 3, "output_dir": os.fspath(out), **fields}
    online = kind in ("grpo", "rloo", "ppo")
    if not online:
        few.pop("max_completion_length")
        few["per_device_train_batch_size"] = 2
    elif kind != "ppo":
        few["num_generations"] = 2
    name = CLASSES[kind]
    more = {"reward_funcs": reward} if online else {}
    return getattr(lockstep_rl, f"{name}Trainer")(
        model=model, args=getattr(lockstep_rl, f"{name}Config")(**few),
        train_dataset=ROWS["grpo" if online else kind], callbacks=callbacks, **more,
    )


class Ends(TrainerCallback):
    """Ends training after two steps, in the way `how`."""

    def __init__(self, how):
        self.how = how

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step < 2:
            return
        if self.how == "callback":
            control.should_training_stop = True
        elif self.how == "exception":
            raise RuntimeError("enough")
        elif self.how == "interrupt":
            raise KeyboardInterrupt
        elif self.how == "stop":
            self.trainer.stop()


ERRORS = {"exception": RuntimeError, "interrupt": KeyboardInterrupt, "stop": KeyboardInterrupt}
KINDS = list(CLASSES)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["end", "callback", "exception", "interrupt", "stop"])
def test_the_model_object_has_the_trained_weights(model, scorer, kind, how):
    source = scorer if kind == "reward" else model
    loaded, before = Loaded(source), weights(source)
    ends = Ends(how)
    trainer = make(kind, loaded, "out", callbacks=[ends])
    ends.trainer = trainer
    if how in ERRORS:
        with pytest.raises(ERRORS[how]):
            trainer.train()
    else:
        trainer.train()
    by_hand = make(kind, source, "named", max_steps=3)
    if how != "end":
        by_hand.add_callback(Ends("callback"))
    by_hand.train()
    assert loaded.bytes == weights("named/model") != before
    assert loaded.synced == 1 and trainer.model is loaded and loaded.synced == 1, "expected the weights to be read once"
    trainer.save_model("saved")
    assert weights("saved") == loaded.bytes
    # Later changes of the object are kept.
    loaded.bytes = before
    assert trainer.model.bytes == before


@pytest.mark.parametrize("first, second", [
    ("sft", "sft"), ("sft", "dpo"), ("sft", "grpo"), ("dpo", "sft"), ("grpo", "grpo"), ("grpo", "rloo"),
    ("rloo", "ppo"),
    ("ppo", "grpo"), ("sft", "ppo"), ("dpo", "rloo"),
])
def test_a_second_trainer_continues_with_the_weights_of_the_first(model, first, second):
    loaded = Loaded(model)
    make(first, loaded, "one").train()
    make(second, loaded, "two").train()
    make(first, model, "named-one").train()
    make(second, "named-one/model", "named-two").train()
    assert loaded.bytes == weights("named-two/model") == weights("two/model")


def test_three_trainers_train_one_object_in_turn(model):
    loaded, named = Loaded(model), model
    for stage in range(3):
        make("sft", loaded, f"stage-{stage}").train()
        make("sft", named, f"named-{stage}").train()
        named = f"named-{stage}/model"
        assert loaded.bytes == weights(named)


@pytest.mark.parametrize("where", ["reward", "log", "save", "begin"])
def test_after_an_exception_the_object_has_the_weights_of_the_last_step(model, where):
    places = [where]

    def ends(place):
        if place in places:
            places.clear()
            raise RuntimeError("enough")

    def fails(completions, trainer_state, **kwargs):
        if trainer_state.global_step == 2:
            ends("reward")
        return vowels(completions)

    class Fails(TrainerCallback):
        def on_log(self, args, state, control, **kwargs):
            if state.global_step == 2:
                ends("log")

        def on_save(self, args, state, control, **kwargs):
            ends("save")

        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 2:
                ends("begin")

    loaded = Loaded(model)
    trainer = make("grpo", loaded, "out", callbacks=[Fails()], reward=fails, save_strategy="steps", save_steps=2)
    with pytest.raises(RuntimeError, match="enough"):
        trainer.train()
    last = sorted(os.listdir("out/checkpoints"))[-1]
    assert last == "step-000002" and trainer.state.global_step == int(last[5:])
    assert loaded.bytes == weights(f"out/checkpoints/{last}") != weights(model)
    named = make("grpo", f"out/checkpoints/{last}", "named")
    assert trainer.evaluate(ROWS["grpo"])["eval_reward"] == named.evaluate(ROWS["grpo"])["eval_reward"]


def test_an_exception_in_the_first_step_leaves_the_object_unchanged(model):
    def fails(completions, **kwargs):
        raise RuntimeError("enough")

    loaded = Loaded(model)
    with pytest.raises(RuntimeError, match="enough"):
        make("grpo", loaded, "out", reward=fails).train()
    assert loaded.bytes == weights(model) and loaded.synced == 0


def test_a_run_resumes_with_the_object_that_it_trained(model):
    """Its reference and weights are those of an uninterrupted run, and the files of the model are not written again."""
    fields = dict(save_strategy="steps", save_steps=1, beta=0.1, max_steps=4)
    make("grpo", model, "whole", **fields).train()
    loaded = Loaded(model)
    make("grpo", loaded, "out", callbacks=[Ends("callback")], **fields).train()
    assert loaded.bytes != weights(model)
    again = make("grpo", loaded, "out", **fields)
    again.train(resume_from_checkpoint=True)
    assert weights("out/model") == weights("whole/model") == loaded.bytes and len(given()) == 1


def test_the_object_is_updated_if_training_runs_on_another_thread(model):
    loaded = Loaded(model)
    trainer = make("sft", loaded, "out")
    trainer.start().result()
    assert loaded.bytes == weights("out/model")
    loaded = Loaded(model)
    thread = threading.Thread(target=make("sft", loaded, "two").train)
    thread.start(), thread.join()
    assert loaded.bytes == weights("two/model")


def test_a_model_passed_by_name_can_be_saved_after_an_exception(model):
    trainer = make("sft", model, "out", callbacks=[Ends("exception")])
    with pytest.raises(RuntimeError, match="enough"):
        trainer.train()
    named = make("sft", model, "named", callbacks=[Ends("callback")])
    named.train()
    trainer.save_model("saved")
    assert weights("saved") == weights("named/model")
