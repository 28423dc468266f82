"""Fields of configuration classes that the engine does not have: this package reads or refuses them."""

from __future__ import annotations

from typing import Any


def _own(name: str, default: Any, doc: str, **schema: Any) -> dict:
    return {"name": name, "status": "supported", "default": default, "doc": doc, "schema": schema,
            "type": schema["type"]}


# Fields of transformers' TrainingArguments that this package reads itself, in trainers with `compute_metrics`.
OF_METRICS = {
    row["name"]: row
    for row in (
        _own("per_device_eval_batch_size", 8, "Rows whose outputs compute_metrics, preprocess_logits_for_metrics and "
             "predict are given at once. (Memory of the evaluation itself: max_tokens_per_micro_batch.)",
             type="integer"),
        _own("batch_eval_metrics", False, "compute_metrics is called with each batch, and compute_result=True with the "
             "last.", type="boolean"),
        _own("include_for_metrics", [], "What compute_metrics is given beside predictions and labels: inputs (token "
             "ids), loss (of each batch).", type="array", items={"type": "string"}),
        _own("prediction_loss_only", False, "compute_metrics is not called, and predict gives metrics alone.",
             type="boolean"),
        _own("eval_do_concat_batches", True, "Outputs of batches are joined, padded with -100; else compute_metrics "
             "and predict have a list of them.", type="boolean"),
    )
}
# Fields of every trainer that this package reads.
OF_PAGES = {
    row["name"]: row
    for row in (
        _own("dashboard", False, "A page at http://127.0.0.1:7860 that shows the run while it trains: True, or another "
             "port.", anyOf=[{"type": "boolean"}, {"type": "integer"}], type="boolean"),
    )
}
# Fields of every trainer about the actions after a step, which this package handles.
OF_FLOW = {
    row["name"]: row
    for row in (
        _own("logging_strategy", "steps", "When metrics are logged: every logging_steps, at the end of each epoch, or "
             "never. (metrics.jsonl has at least the last step.)", type="string", enum=["no", "steps", "epoch"]),
        _own("eval_delay", 0, "The first step that is evaluated, or the first epoch with eval_strategy=\"epoch\".",
             type="number"),
    )
}
# Fields of trainers with worker processes that this package reads.
OF_WORKERS = {
    row["name"]: row
    for row in (
        _own("num_workers", 1, "Processes of this machine that the trainer starts to generate and score. 0: workers "
             "join by hand, `python -m lockstep_rl worker --join OUTPUT_DIR --name NAME --setup setup.py`.",
             type="integer"),
        _own("max_restarts", 10, "Workers that end by themselves are started again, so often in a minute.",
             type="integer"),
    )
}
# TRL's fields for its vLLM server, which have no effect here.
OF_SERVERS = {
    name: {"name": name, "status": "ignored", "doc": f"workers are started by the trainer and share its memory: {why}"}
    for name, why in (
        ("vllm_server_base_url", "there is no server"),
        ("vllm_server_timeout", "there is no server"),
        ("request_timeout", "there are no requests"),
        ("weight_sync_timeout", "weights are not sent"),
        ("weight_sync_steps", "every generation batch has new weights"),
        ("fork_threshold_tokens", "a shared prompt is computed once, whatever its length"),
        ("token_budget", "nothing is padded: see max_tokens_per_micro_batch"),
    )
}
WITH_METRICS = ("sft", "dpo", "reward")
# TRL's fields for DPO that are keys of other methods here.
OF_REFERENCE = {
    name: {"name": name, "status": status, "doc": doc}
    for name, status, doc in (
        ("sync_ref_model", "refused", "the reference of DPO is what training begins with, or ref_model, and stays it"),
        ("ref_model_mixup_alpha", "ignored", "it is sync_ref_model's, which is refused"),
        ("ref_model_sync_steps", "ignored", "it is sync_ref_model's, which is refused"),
    )
}
# Fields of trainers that generate completions in evaluations.
WITHOUT_METRICS = {
    "per_device_eval_batch_size": {
        "name": "per_device_eval_batch_size", "status": "ignored",
        "doc": "how many completions are generated or scored at once the engine decides: max_tokens_per_micro_batch",
    },
}


def _without_patience(row: dict) -> dict:
    """Returns the field `reward_patience` with the default None: as in TRL, a reward that scores nothing causes
    warnings and does not end training."""
    schema = {"anyOf": [row["schema"], {"type": "null"}]}
    doc = f"{row['doc']} Not set: for ever, with a warning each time."
    return {**row, "default": None, "schema": schema, "doc": doc}


def _of_the_model(row: dict) -> dict:
    """Returns the field `ref_adapter` with the default None: then the model says it."""
    return {**row, "default": None, "schema": {"anyOf": [row["schema"], {"type": "null"}]}}


def _kept_as_in_trl(row: dict) -> dict:
    """Returns the field `dataloader_drop_last` with TRL's default. The engine's own is that of older runs."""
    return {**row, "default": False}


def _as_it_was_given(row: dict) -> dict:
    """Returns the field `save_dtype` with the default None."""
    doc = f"{row['doc']} Not set: f32 if the model was given by name, which TRL loads as float32; else auto."
    return {**row, "default": None, "doc": doc, "schema": {"anyOf": [row["schema"], {"type": "null"}]}}


def _with_services(row: dict) -> dict:
    """Returns the field `report_to`, whose services Python knows, too."""
    doc = (
        "Where metrics go: TensorBoard's files (on by itself) by the engine; wandb, trackio and mlflow through their "
        "own packages; and receivers of each logged line of metrics and each alarm, as JSON: "
        "\"command:PROGRAM ARGUMENTS\" reads lines on its standard input, \"http://HOST/PATH\" and "
        "\"https://HOST/PATH\" get POST requests (docs/runs.md)."
    )
    return {**row, "doc": doc}


# Fields whose default or meaning here is another than the engine's: most defaults are None, which no value of the
# engine's key means.
OWN_DEFAULTS = {
    "reward_patience": _without_patience, "ref_adapter": _of_the_model, "dataloader_drop_last": _kept_as_in_trl,
    "save_dtype": _as_it_was_given, "report_to": _with_services,
}
