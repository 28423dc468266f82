"""compute_metrics receives the same values as in TRL, for the same rows and model. Needs trl (`-m torch`)."""

import json

import pytest
from conftest import WORDS, grpo

import lockstep_rl

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")

SOLVED = [{"prompt": f"{word} ", "completion": f"{word}."} for word in WORDS]
TEXTS = [{"text": f"{word} and {word[::-1]}"} for word in WORDS]
PAIRS = [{"prompt": f"{word} ", "chosen": word + "z", "rejected": word[::-1] + "zz"} for word in WORDS]
# From an incomplete last batch of pairs, TRL 1.16 passes on only half of the sequences.
PAIRS = [*PAIRS, *PAIRS[:2]]


def given(package, method, model, rows, **more):
    """Returns the predictions that compute_metrics gets from a package's trainer, and the names of its metrics."""
    seen = []

    def compute(prediction):
        seen.append(prediction)
        return {"mine": np.float32(1.5), "eval_other": 2}

    of_trl = package is trl
    fields = dict(report_to="none", per_device_eval_batch_size=4, include_for_metrics=["inputs", "loss"], max_length=64)
    fields |= dict(use_cpu=True, bf16=False, model_init_kwargs={"dtype": "float32"}) if of_trl else dict(threads=1)
    data = datasets.Dataset.from_list(rows) if of_trl else rows
    args = getattr(package, f"{method}Config")("out", **fields)
    trainer = getattr(package, f"{method}Trainer")(
        model=model, args=args, train_dataset=data, eval_dataset=data, compute_metrics=compute, **more,
        **(dict(processing_class=transformers.AutoTokenizer.from_pretrained(model)) if of_trl else {}),
    )
    metrics = trainer.evaluate()
    [one] = seen
    return one, {key for key in metrics if "mine" in key or "other" in key}


@pytest.mark.parametrize("method, rows", [("SFT", SOLVED), ("SFT", TEXTS), ("DPO", PAIRS), ("Reward", PAIRS)],
                         ids=["completions", "texts", "pairs", "scores"])
def test_compute_metrics_gets_the_values_of_trl(model, method, rows, place):
    if method == "Reward":
        # TRL would create another random head.
        args = lockstep_rl.RewardConfig("judge", max_steps=2, per_device_train_batch_size=2, learning_rate=0.01,
                                        threads=1, disable_tqdm=True)
        lockstep_rl.RewardTrainer(model, args, rows).train()
        model = str(place / "judge/model")
        # transformers needs it for batches; it is the tokenizer's.
        assert json.loads((place / "judge/model/config.json").read_text())["pad_token_id"] == 0
    theirs, their_names = given(trl, method, model, rows)
    ours, our_names = given(lockstep_rl, method, model, rows)
    assert our_names == their_names == {"eval_mine", "eval_other"}
    assert type(ours) is type(theirs) is transformers.EvalPrediction
    assert ours.predictions.shape == theirs.predictions.shape and ours.predictions.dtype == theirs.predictions.dtype
    assert len(ours.elements) == len(theirs.elements)
    if method != "Reward":  # inputs differ there if the end token is also the padding token
        assert (ours.inputs == theirs.inputs).all()
    if method != "DPO":
        assert ours.losses == pytest.approx(theirs.losses, abs=1e-4)
    if method == "Reward":
        assert ours.label_ids == theirs.label_ids == ()
        assert np.ptp(theirs.predictions) > 1e-3 and np.abs(ours.predictions - theirs.predictions).max() <= 1e-4
        return
    assert (ours.label_ids == theirs.label_ids).all() and ours.label_ids.dtype == theirs.label_ids.dtype
    # PyTorch also computes logits for padding.
    real = (ours.predictions != -100).all(-1)
    assert 0.5 < real.mean() < 1
    assert np.abs(ours.predictions[real] - theirs.predictions[real]).max() <= 1e-4


# Times, and keys that only the first call has.
MEASURED = {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "eval_model_preparation_time", "epoch"}


@pytest.mark.parametrize("method, rows", [("SFT", SOLVED), ("SFT", TEXTS), ("DPO", PAIRS), ("Reward", PAIRS)],
                         ids=["completions", "texts", "pairs", "scores"])
def test_an_evaluation_has_the_keys_and_values_of_trl(model, method, rows):
    """In one batch, because TRL averages over batches, and lockstep over all tokens or pairs."""
    trained = dict(max_steps=6, per_device_train_batch_size=2, learning_rate=0.02, threads=1, disable_tqdm=True)
    if method == "Reward":
        lockstep_rl.RewardTrainer(model, lockstep_rl.RewardConfig("before", **trained), rows).train()
    else:
        lockstep_rl.SFTTrainer(model, lockstep_rl.SFTConfig("before", **trained), SOLVED).train()
    found = {}
    for package in (trl, lockstep_rl):
        of_trl = package is trl
        fields = dict(report_to="none", per_device_eval_batch_size=16, max_length=64)
        fields |= dict(use_cpu=True, bf16=False, model_init_kwargs={"dtype": "float32"}) if of_trl else dict(threads=1)
        more = {}
        if method == "DPO":
            more["ref_model"] = transformers.AutoModelForCausalLM.from_pretrained(model) if of_trl else model
        if of_trl:
            more["processing_class"] = transformers.AutoTokenizer.from_pretrained(model)
        data = datasets.Dataset.from_list(rows) if of_trl else rows
        args = getattr(package, f"{method}Config")("out", **fields)
        trainer = getattr(package, f"{method}Trainer")(
            model="before/model", args=args, train_dataset=data, eval_dataset=data, **more
        )
        found[package] = trainer.evaluate()
    theirs, ours = found[trl], found[lockstep_rl]
    assert theirs.keys() - MEASURED <= ours.keys() and len(theirs.keys() - MEASURED) >= 4, theirs.keys() - ours.keys()
    assert {"eval_runtime", "eval_samples_per_second"} <= ours.keys()
    for name in theirs.keys() - MEASURED:
        assert ours[name] == pytest.approx(theirs[name], abs=1e-4), name


def test_logits_are_preprocessed_as_torch_tensors(model):
    shapes = []

    def preprocess(logits, labels):
        assert isinstance(logits, torch.Tensor) and isinstance(labels, torch.Tensor)
        shapes.append(tuple(logits.shape))
        return logits.argmax(dim=-1)

    more = dict(preprocess_logits_for_metrics=preprocess)
    theirs, _ = given(trl, "SFT", model, SOLVED, **more)
    ours, _ = given(lockstep_rl, "SFT", model, SOLVED, **more)
    assert shapes[:2] == shapes[2:]
    learned = ours.label_ids != -100
    assert (ours.predictions == theirs.predictions)[learned].all()


def test_scores_of_a_reward_model_equal_those_of_transformers(model, rows, place):
    """As in TRL's GRPOTrainer, also without pad_token_id in config.json: the tokenizer pads with its end token."""
    args = lockstep_rl.RewardConfig("judge", max_steps=4, per_device_train_batch_size=2, learning_rate=0.02, threads=1,
                                    disable_tqdm=True)
    lockstep_rl.RewardTrainer(model, args, PAIRS).train()
    config = json.loads((place / "judge/model/config.json").read_text())
    del config["pad_token_id"]
    (place / "judge/model/config.json").write_text(json.dumps(config))
    texts = []

    def keep(prompts, completions, **kwargs):
        texts.extend(prompt + completion for prompt, completion in zip(prompts, completions))
        return [0.0] * len(prompts)

    trainer = grpo(model, rows, ["judge/model", keep], max_steps=1)
    trainer.train()
    judge = transformers.AutoModelForSequenceClassification.from_pretrained("judge/model", dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained("judge/model")
    judge.config.pad_token_id = tokenizer.pad_token_id
    batch = tokenizer(text=texts, padding=True, padding_side="right", add_special_tokens=False, return_tensors="pt")
    batch.pop("token_type_ids", None)
    with torch.no_grad():
        scores = judge(**batch).logits[:, 0]
    assert len(texts) == 4 and scores.std() > 1e-3
    logged = trainer.state.log_history[0]
    assert logged["rewards/model/mean"] == pytest.approx(scores.mean().item(), abs=1e-4)
