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
        _own("per_device_eval_batch_size", 8, "Number of rows whose outputs compute_metrics, "
             "preprocess_logits_for_metrics and predict receive at once. (max_tokens_per_micro_batch limits the memory "
             "of the evaluation itself.)",
             type="integer"),
        _own("batch_eval_metrics", False, "compute_metrics is called with each batch, and compute_result=True with the "
             "last.", type="boolean"),
        _own("include_for_metrics", [], "Values that compute_metrics receives in addition to predictions and labels: "
             "inputs (token ids), loss (of each batch).", type="array", items={"type": "string"}),
        _own("prediction_loss_only", False, "compute_metrics is not called, and predict returns only metrics.",
             type="boolean"),
        _own("eval_do_concat_batches", True, "Outputs of batches are concatenated, padded with -100; otherwise "
             "compute_metrics and predict receive a list of them.", type="boolean"),
    )
}
# Fields of every trainer that this package reads.
OF_PAGES = {
    row["name"]: row
    for row in (
        _own("dashboard", False, "Whether a page at http://127.0.0.1:7860 shows the run while it trains; a number is "
             "another port.", anyOf=[{"type": "boolean"}, {"type": "integer"}], type="boolean"),
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
        _own("num_workers", 1, "Number of worker processes that the trainer starts on this machine. With 0, start "
             "workers by hand: `python -m lockstep_rl worker --join OUTPUT_DIR --name NAME --setup setup.py`.",
             type="integer"),
        _own("max_restarts", 10, "Maximum number of restarts per minute of workers that exited unexpectedly.",
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
        ("sync_ref_model", "refused", "the reference of DPO is the initial model, or ref_model, and stays the same"),
        ("ref_model_mixup_alpha", "ignored", "it belongs to sync_ref_model, which is refused"),
        ("ref_model_sync_steps", "ignored", "it belongs to sync_ref_model, which is refused"),
    )
}
# Fields of trainers that generate completions in evaluations.
WITHOUT_METRICS = {
    "per_device_eval_batch_size": {
        "name": "per_device_eval_batch_size", "status": "ignored",
        "doc": "the engine decides how many completions are generated or scored at once: max_tokens_per_micro_batch",
    },
}


def _without_patience(row: dict) -> dict:
    """Returns the field `reward_patience` with the default None: as in TRL, a reward that scores nothing causes
    warnings and does not end training."""
    schema = {"anyOf": [row["schema"], {"type": "null"}]}
    doc = f"{row['doc']} Not set: no limit, and a warning for each such batch."
    return {**row, "default": None, "schema": schema, "doc": doc}


def _of_the_model(row: dict) -> dict:
    """Returns the field `ref_adapter` with the default None: the model then determines it."""
    return {**row, "default": None, "schema": {"anyOf": [row["schema"], {"type": "null"}]}}


def _kept_as_in_trl(row: dict) -> dict:
    """Returns the field `dataloader_drop_last` with TRL's default. The engine keeps the default of older runs."""
    return {**row, "default": False}


def _as_it_was_given(row: dict) -> dict:
    """Returns the field `save_dtype` with the default None."""
    doc = f"{row['doc']} Not set: f32 if the model was given by name, which TRL loads as float32; else auto."
    return {**row, "default": None, "doc": doc, "schema": {"anyOf": [row["schema"], {"type": "null"}]}}


def _with_services(row: dict) -> dict:
    """Returns the field `report_to`, with the services that Python packages provide."""
    doc = (
        "Destinations of metrics: TensorBoard's files (the default); wandb, trackio and mlflow through their "
        "own packages; and receivers of each logged line of metrics and each alarm, as JSON: "
        "\"command:PROGRAM ARGUMENTS\" reads lines on its standard input, \"http://HOST/PATH\" and "
        "\"https://HOST/PATH\" get POST requests (docs/runs.md)."
    )
    return {**row, "doc": doc}


# Fields whose default or meaning differs from the engine's. Most of these defaults are None, which is not a value of
# the engine's key.
OWN_DEFAULTS = {
    "reward_patience": _without_patience, "ref_adapter": _of_the_model, "dataloader_drop_last": _kept_as_in_trl,
    "save_dtype": _as_it_was_given, "report_to": _with_services,
}
