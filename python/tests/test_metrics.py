"""compute_metrics and predict: their predictions are checked against the engine's own metrics."""

import json
import os

import pytest
from conftest import WORDS, grpo, weights

from lockstep_rl import (
    DPOConfig,
    DPOTrainer,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
    TrainerCallback,
)

np = pytest.importorskip("numpy")

OFFLINE = dict(per_device_train_batch_size=2, max_steps=4, logging_steps=1, learning_rate=0.01, threads=1,
               disable_tqdm=True, per_device_eval_batch_size=4)
PAIRS = [{"prompt": f"{word} ", "chosen": word, "rejected": word[::-1] + "zz"} for word in WORDS]
SOLVED = [{"prompt": f"{word} ", "completion": f"{word}."} for word in WORDS]

pytestmark = pytest.mark.filterwarnings("ignore:compute_metrics and predict are given whole logits:FutureWarning")


class Seen:
    """A compute_metrics function that records its predictions."""

    def __init__(self, metrics=None):
        self.all = []
        self.metrics = metrics or (lambda prediction: {"rows": len(prediction.predictions)})

    def __call__(self, prediction):
        self.all.append(prediction)
        return self.metrics(prediction)


def log_softmax(logits):
    logits = logits.astype("float64")
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def token_logps(prediction):
    """Returns the log-probability of each token after the first; NaN for tokens without a label."""
    labels = prediction.label_ids[:, 1:]
    logps = log_softmax(prediction.predictions[:, :-1])
    taken = np.take_along_axis(logps, np.maximum(labels, 0)[..., None], -1)[..., 0]
    return np.where(labels == -100, np.nan, taken)


def sft(model, seen, rows=None, evaluation=None, more=None, **fields):
    args = SFTConfig(**{"output_dir": "out", **OFFLINE, **fields})
    return SFTTrainer(model=model, args=args, train_dataset=rows or SOLVED, eval_dataset=evaluation or SOLVED[1:],
                      compute_metrics=seen, **(more or {}))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_loss_computed_from_logits_equals_eval_loss(model, dtype):
    def nll(prediction):
        """Averages over batches of four as in TRL, where each batch has the weight of its rows."""
        logps = token_logps(prediction)
        batches = [logps[:4], logps[4:]]
        assert abs(np.nanmean(logps) - np.nanmean(batches[0])) > 1e-5
        return {"nll": -sum(len(batch) * np.nanmean(batch) for batch in batches) / len(logps)}

    seen = Seen(nll)
    trainer = sft(model, seen, dtype=dtype, eval_strategy="steps", eval_steps=2)
    trainer.train()
    found = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert [entry["step"] for entry in found] == [2, 4] and len(seen.all) == 2
    for entry in found:
        assert entry["eval_nll"] == pytest.approx(entry["eval_loss"], abs=1e-5)
    given = seen.all[0]
    longest = max(len(row["prompt"] + row["completion"]) for row in SOLVED[1:])
    assert given.predictions.shape[:2] == given.label_ids.shape == (5, given.predictions.shape[1])
    assert given.predictions.shape[1] >= longest and given.predictions.shape[2] == 40
    assert given.predictions.dtype == np.float32 and given.label_ids.dtype == np.int64
    # "x x.": the prompt has no labels, and the rest of the row is padding.
    row = [row["prompt"] for row in SOLVED[1:]].index("x ")
    assert (given.label_ids[row, :2] == -100).all() and (given.label_ids[row, 2:4] > 0).all()
    assert (given.predictions[row, -1] == -100).all() and (given.label_ids[row, -1] == -100)
    assert given.inputs is None and [len(part) for part in given] == [5, 5] and given[1] is given.label_ids
    with pytest.raises(IndexError):
        given[2]


def of_tokens(prediction):
    """Returns entropy, accuracy and mean logit of the tokens with labels."""
    learned = prediction.label_ids[:, 1:] != -100
    logits = prediction.predictions[:, :-1][learned].astype("float64")
    logps = log_softmax(logits)
    return {
        "h": -(np.exp(logps) * logps).sum(-1).mean(),
        "right": (logits.argmax(-1) == prediction.label_ids[:, 1:][learned]).mean(),
        "logit": logits.mean(),
    }


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_entropy_and_accuracy_from_logits_equal_the_logged_ones(model, dtype):
    sft(model, None, max_steps=20, learning_rate=0.02).train()
    trainer = sft("out/model", of_tokens, output_dir="more", dtype=dtype, per_device_eval_batch_size=8)
    metrics = trainer.evaluate()
    assert 0 < metrics["eval_right"] < 1
    assert metrics["eval_mean_token_accuracy"] == pytest.approx(metrics["eval_right"], abs=1e-9)
    assert metrics["eval_entropy"] == pytest.approx(metrics["eval_h"], abs=1e-4 if dtype == "f32" else 0.01)
    assert metrics["eval_num_tokens"] == 0
    trainer.train()
    trained = [entry["num_tokens"] for entry in trainer.state.log_history if "num_tokens" in entry][-1]
    assert trainer.evaluate()["eval_num_tokens"] == trained > 0


def test_token_accuracy_rises_during_training(model):
    def accuracy(prediction):
        labels = prediction.label_ids[:, 1:]
        right = prediction.predictions[:, :-1].argmax(-1) == labels
        return {"accuracy": right[labels != -100].mean()}

    trainer = sft(model, accuracy, evaluation=SOLVED, max_steps=60, learning_rate=0.05, eval_strategy="steps",
                  eval_steps=60, eval_on_start=True)
    trainer.train()
    found = [entry["eval_accuracy"] for entry in trainer.state.log_history if "eval_accuracy" in entry]
    assert len(found) == 2 and found[0] < 0.3 and found[1] > 0.8, found


def test_all_tokens_of_a_text_are_labels(model):
    seen = Seen()
    texts = [{"text": "ab sun"}, {"text": "moon"}] * 2
    trainer = sft(model, seen, rows=texts, evaluation=texts[:2], include_for_metrics=["inputs", "loss"])
    trainer.evaluate()
    [given] = seen.all
    assert (given.label_ids[0] == given.inputs[0]).all(), "expected a label for the first token, too"
    assert (given.label_ids[1] == -100).sum() == 2 and len(list(given)) == 4
    nll = -np.nanmean(token_logps(given))
    assert given.losses.shape == (2,) and given.losses == pytest.approx(nll, abs=1e-5)


def test_logps_of_pairs_from_logits_equal_the_logged_ones(model):
    rows = [{"prompt": f"{word} ", "chosen": "abc", "rejected": "bcd"} for word in ("xx", "yy") * 3]

    def of_pairs(prediction):
        # All ids have labels, including the three of the prompt. In each batch, the chosen answers are before the
        # rejected ones.
        answers = token_logps(prediction)[:, 2:].sum(-1)
        chosen = [0, 1, 2, 3, 8, 9]
        return {"chosen": answers[chosen].mean(), "rejected": np.delete(answers, chosen).mean()}

    trainer = DPOTrainer(model, None, DPOConfig("out", **OFFLINE), rows, rows, compute_metrics=of_pairs)
    trainer.train()
    metrics = trainer.evaluate()
    assert metrics["eval_chosen"] == pytest.approx(metrics["eval_logps/chosen"], abs=1e-4)
    assert metrics["eval_rejected"] == pytest.approx(metrics["eval_logps/rejected"], abs=1e-4)
    assert metrics["eval_chosen"] > metrics["eval_rejected"]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_scores_of_pairs_give_the_logged_accuracy_and_margin(model, dtype):
    def accuracy(prediction):
        scores = prediction.predictions[:, 0]
        assert prediction.label_ids == () and prediction.predictions.shape == (12, 1)
        chosen, rejected = np.r_[scores[:4], scores[8:10]], np.r_[scores[4:8], scores[10:]]
        return {"right": (chosen > rejected).mean(), "gap": (chosen - rejected).mean(), "mean": scores.mean()}

    args = RewardConfig("out", **OFFLINE, dtype=dtype)
    trainer = RewardTrainer(model, args, PAIRS, PAIRS, compute_metrics=accuracy)
    trainer.train()
    metrics = trainer.evaluate()
    assert metrics["eval_right"] == metrics["eval_accuracy"] and 0 < metrics["eval_gap"]
    assert metrics["eval_gap"] == pytest.approx(metrics["eval_margin"], abs=1e-6)
    assert metrics["eval_mean"] == pytest.approx(metrics["eval_mean_reward"], abs=1e-6)


def test_logits_are_preprocessed_one_batch_at_a_time(model):
    shapes, seen = [], Seen(lambda prediction: {"ok": 1})

    def preprocess(logits, labels):
        shapes.append((tuple(logits.shape), tuple(labels.shape)))
        return np.asarray(logits).argmax(-1)

    trainer = sft(model, seen, evaluation=SOLVED, more=dict(preprocess_logits_for_metrics=preprocess))
    trainer.evaluate()
    assert [shape[0][0] for shape in shapes] == [4, 2] and all(logits[:2] == labels for logits, labels in shapes)
    [given] = seen.all
    assert given.predictions.shape == given.label_ids.shape == (6, max(labels[1] for _, labels in shapes))
    whole = Seen()
    sft(model, whole, evaluation=SOLVED, output_dir="other").evaluate()
    learned = given.label_ids != -100
    assert (given.predictions[learned] == whole.all[0].predictions.argmax(-1)[learned]).all()


def test_nested_outputs_of_preprocessing_are_concatenated(model):
    seen = Seen()
    more = dict(preprocess_logits_for_metrics=lambda logits, labels: (
        np.asarray(logits).max(-1), {"rows": np.ones(len(logits))}))
    sft(model, seen, evaluation=SOLVED, more=more).evaluate()
    highest, named = seen.all[0].predictions
    assert highest.shape[0] == 6 and named["rows"].tolist() == [1.0] * 6
    apart = Seen(lambda prediction: {})
    sft(model, apart, evaluation=SOLVED, more=more, eval_do_concat_batches=False).evaluate()
    assert [len(batch[0]) for batch in apart.all[0].predictions] == [4, 2] == [len(b) for b in apart.all[0].label_ids]


def test_batch_eval_metrics_calls_compute_metrics_for_each_batch(model):
    calls, rows = [], []

    def compute(prediction, compute_result):
        calls.append((len(prediction.label_ids), compute_result))
        rows.append(prediction)
        return {"rows": sum(count for count, _ in calls)} if compute_result else None

    trainer = sft(model, compute, evaluation=SOLVED, batch_eval_metrics=True, include_for_metrics=["inputs"])
    assert trainer.evaluate()["eval_rows"] == 6
    assert calls == [(4, False), (2, True)]
    assert set(rows[0].inputs) == {"input_ids", "attention_mask"}
    with pytest.raises(ValueError, match="must take `compute_result`"):
        sft(model, lambda prediction: {}, batch_eval_metrics=True)


def test_metrics_of_compute_metrics_get_the_prefix_of_their_set(model):
    heard = []

    class Hear(TrainerCallback):
        def on_evaluate(self, args, state, control, metrics, **kwargs):
            heard.append(metrics)

    seen = Seen(lambda prediction: {"a": np.float32(0.5), "eval_b": 2, "eval_one_c": True, "list": np.arange(2),
                                    "text": "ab"})
    sets = {"one": SOLVED[:2], "two": SOLVED[2:]}
    trainer = sft(model, seen, evaluation=sets, more=dict(callbacks=[Hear]), eval_strategy="steps", eval_steps=4)
    trainer.train()
    entry = {}
    for of_set in trainer.state.log_history:
        entry.update(of_set if any(key.startswith("eval_") for key in of_set) else {})
    assert entry["eval_one_a"] == entry["eval_two_a"] == 0.5 and entry["eval_one_eval_b"] == 2
    assert entry["eval_one_c"] == 1 and entry["eval_two_eval_one_c"] == 1
    assert entry["eval_one_list"] == [0, 1] and entry["eval_two_text"] == "ab"
    assert len(heard) == 2 and heard[0]["eval_one_a"] == heard[1]["eval_two_a"] == 0.5
    json.dumps(trainer.state.log_history)
    assert trainer.evaluate(SOLVED[:1], metric_key_prefix="held")["held_a"] == 0.5


def test_compute_metrics_can_replace_eval_loss(model):
    trainer = sft(model, lambda prediction: {"loss": 7})
    assert trainer.evaluate()["eval_loss"] == 7


def test_the_best_model_can_be_chosen_by_a_metric_of_compute_metrics(model):
    worst_last = iter([3.0, 9.0, 1.0, 0.5])
    trainer = sft(model, lambda prediction: {"mine": next(worst_last)}, eval_strategy="steps", eval_steps=1,
                  metric_for_best_model="mine", load_best_model_at_end=True, save_steps=1)
    trainer.train()
    assert (trainer.state.best_global_step, trainer.state.best_metric) == (2, 9.0)
    assert weights("out/model") == weights("out/checkpoints/step-000002") != weights("out/checkpoints/step-000004")
    other = sft(model, lambda prediction: {"mine": 1}, output_dir="other", eval_strategy="steps", eval_steps=2,
                metric_for_best_model="yours")
    with pytest.raises(ValueError, match="yours: no such evaluation metric; the metrics are eval_loss, .*eval_mine"):
        other.train()
    assert os.listdir("other/checkpoints") == ["step-000002"]


def test_predict_returns_the_predictions_passed_to_compute_metrics(model):
    seen = Seen()
    trainer = sft(model, seen)
    given = trainer.predict(SOLVED[:3])
    assert given.predictions is seen.all[0].predictions and given.label_ids is seen.all[0].label_ids
    assert given.metrics["test_rows"] == 3 and given.metrics["test_loss"] > 0 and trainer.state.log_history == []
    bare = SFTTrainer(model, SFTConfig("bare", **OFFLINE), SOLVED)
    again = bare.predict(SOLVED[:3])
    assert (again.predictions == given.predictions).all() and (again.label_ids == given.label_ids).all()
    by_name = bare.predict({"a": SOLVED[:2], "b": SOLVED[2:]})
    assert by_name.predictions["b"].shape[0] == 4 and by_name.label_ids["a"].shape[0] == 2
    nothing = SFTTrainer(model, SFTConfig("none", **OFFLINE, prediction_loss_only=True), SOLVED, compute_metrics=seen)
    given = nothing.predict(SOLVED[:3])
    assert given.predictions is None and given.label_ids is None
    assert "test_loss" in given.metrics and "test_rows" not in given.metrics
    assert len(seen.all) == 1
    scores = RewardTrainer(model, RewardConfig("judge", **OFFLINE), PAIRS).predict(PAIRS[:2])
    assert scores.predictions.shape == (4, 1) and scores.label_ids == ()


def test_compute_metrics_does_not_change_the_trained_weights(model):
    sft(model, Seen(), eval_strategy="steps", eval_steps=1).train()
    sft(model, None, output_dir="bare", eval_strategy="steps", eval_steps=1).train()
    assert weights("out/model") == weights("bare/model")


def test_an_exception_in_compute_metrics_leaves_a_checkpoint(model):
    calls = []

    def broken(prediction):
        calls.append(1)
        if len(calls) == 2:
            raise LookupError("no such column")
        return {"calls": len(calls)}

    trainer = sft(model, broken, eval_strategy="steps", eval_steps=1)
    with pytest.raises(LookupError, match="no such column") as caught:
        trainer.train()
    frames = []
    trace = caught.value.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert "broken" in frames
    if hasattr(caught.value, "__notes__"):
        assert any("stopped after step 2" in text for text in caught.value.__notes__)
    assert os.listdir("out/checkpoints") == ["step-000002"]
    sft(model, broken, eval_strategy="steps", eval_steps=1).train(resume_from_checkpoint=True)
    sft(model, None, output_dir="whole", eval_strategy="steps", eval_steps=1).train()
    assert weights("out/model") == weights("whole/model")
    assert len(calls) == 5, "expected the failed evaluation to be repeated"


@pytest.mark.parametrize("given, kind, text", [
    (dict(compute_metrics=3), TypeError, "`compute_metrics` must be a function"),
    (dict(preprocess_logits_for_metrics="x"), TypeError, "`preprocess_logits_for_metrics` must be a function"),
    (dict(compute_metrics=lambda prediction: None), TypeError, "must return a dict, but returned None"),
    (dict(compute_metrics=print, include_for_metrics=["labels"]), ValueError, "`include_for_metrics` has 'labels'"),
    (dict(compute_metrics=print, per_device_eval_batch_size=0), ValueError, "per_device_eval_batch_size"),
    (dict(per_device_eval_batch_size="8"), TypeError, "per_device_eval_batch_size"),
])
def test_wrong_arguments_for_metrics_raise_a_clear_error(model, given, kind, text):
    fields = {name: given.pop(name) for name in [*given] if name in SFTConfig._fields}
    with pytest.raises(kind, match=text):
        args = SFTConfig("out", **{**OFFLINE, **fields})
        SFTTrainer(model, args, SOLVED, SOLVED, **given).evaluate()


def test_compute_metrics_with_logits_warns_as_in_trl(model):
    with pytest.warns(FutureWarning, match="which TRL deprecates"):
        sft(model, Seen()).evaluate()


def test_grpo_refuses_compute_metrics(model, rows):
    for name in ("compute_metrics", "preprocess_logits_for_metrics"):
        with pytest.raises(ValueError, match=f"{name}.*TRL's trainer does not have this argument"):
            grpo(model, rows, trainer={name: print})


@pytest.mark.parametrize("make", [
    lambda model, train, held_out: SFTTrainer(model, SFTConfig("out", **OFFLINE), train, held_out),
    lambda model, train, held_out: DPOTrainer(model, None, DPOConfig("out", **OFFLINE), train, held_out),
    lambda model, train, held_out: grpo(model, train, trainer=dict(eval_dataset=held_out)),
], ids=["sft", "dpo", "grpo"])
def test_an_evaluation_does_not_encode_the_training_set(model, make):
    """The training rows cannot be encoded: the vocabulary has no Ω."""
    train = [{"prompt": "Ω", "completion": "Ω", "chosen": "Ω", "rejected": "ΩΩ"}] * 8
    held_out = [{**solved, **pair} for solved, pair in zip(SOLVED, PAIRS)]
    trainer = make(model, train, held_out)
    assert any(key.startswith("eval_") for key in trainer.evaluate())
    with pytest.raises(ValueError, match="Ω"):
        trainer.train()


def test_formatting_func_makes_the_text_of_each_row(model):
    facts = [{"question": word, "answer": word[::-1]} for word in WORDS]

    def text(row):
        return f"{row['question']}, {row['answer']}"

    SFTTrainer(model, SFTConfig("out", **OFFLINE), facts, facts[:2], formatting_func=text).train()
    made = [{"text": text(row)} for row in facts]
    SFTTrainer(model, SFTConfig("other", **OFFLINE), made, made[:2]).train()
    assert weights("out/model") == weights("other/model")
    named = SFTConfig("named", **OFFLINE, dataset_text_field="body")
    SFTTrainer(model, named, facts, formatting_func=text).train()
    assert weights("named/model") == weights("other/model")


@pytest.mark.parametrize("function, rows, kind, said", [
    (3, SOLVED, TypeError, "`formatting_func` must be a function"),
    (lambda row: ["ab"], [{"a": 1}], TypeError, "`train_dataset`, row 0: formatting_func must return a text, but"),
    (lambda row: row["nowhere"], [{"a": 1}], KeyError, "nowhere"),
    (lambda row: "ab", SOLVED, ValueError, "only the completion is in the loss"),
    (lambda row: "ab", "rows.jsonl", ValueError, "needs rows in memory"),
])
def test_wrong_formatting_functions_raise_a_clear_error(model, function, rows, kind, said, place):
    (place / "rows.jsonl").write_text('{"text": "ab"}\n')
    with pytest.raises(kind, match=said):
        SFTTrainer(model, SFTConfig("out", **OFFLINE), rows, formatting_func=function)
