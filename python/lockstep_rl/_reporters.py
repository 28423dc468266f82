"""`report_to`: callbacks that send metrics to wandb, trackio and mlflow through their own packages, with transformers'
names.

TensorBoard's files are written by the engine.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

from ._callbacks import TrainerCallback


def reporters(args: Any) -> list[TrainerCallback]:
    """Returns a callback for each service that `args.report_to` names."""
    names = args.report_to or []
    names = [names] if isinstance(names, str) else list(names)
    if "all" in names:
        names = [name for name in _REPORTERS if importlib.util.find_spec(name) is not None]
    return [_REPORTERS[name](_package(name), args) for name in names if name in _REPORTERS]


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(f"report_to={name!r} needs the package {name}: pip install {name}") from None


def grouped(logs: dict) -> dict:
    """Returns the metrics under transformers' names: `eval/…` for evaluations, `train/…` for all others."""
    named = {}
    for key, value in logs.items():
        named[f"eval/{key.removeprefix('eval_')}" if key.startswith("eval_") else f"train/{key}"] = value
    return named


class _Reporter(TrainerCallback):
    """Base class of callbacks that report to a service. The service's run starts only once, even if training is
    resumed."""

    def __init__(self, package: Any, args: Any):
        self.package = package
        self.begun = False

    def on_train_begin(self, args, state, control, **kwargs):
        """Begins the service's run when training begins."""
        if not self.begun:
            self.begun = True
            self.begin(args)

    def on_log(self, args, state, control, logs, **kwargs):
        """Reports logged metrics."""
        if not self.begun:  # an evaluation before training
            self.on_train_begin(args, state, control)
        self.log({key: value for key, value in logs.items() if value is not None}, state.global_step)

    def begin(self, args: Any) -> None:
        """Begins a run of the service."""
        raise NotImplementedError

    def log(self, logs: dict, step: int) -> None:
        """Reports the metrics of a step."""
        raise NotImplementedError


class _Wandb(_Reporter):
    def begin(self, args: Any) -> None:
        if self.package.run is None:
            project = os.environ.get("WANDB_PROJECT") or getattr(args, "project", None) or "huggingface"
            self.package.init(project=project, name=args.run_name, config=args.to_dict())

    def log(self, logs: dict, step: int) -> None:
        self.package.log({**grouped(logs), "train/global_step": step})


class _Trackio(_Reporter):
    def begin(self, args: Any) -> None:
        project = os.environ.get("TRACKIO_PROJECT") or getattr(args, "project", None) or "huggingface"
        self.package.init(project=project, name=args.run_name, config=args.to_dict(), resume="allow")

    def log(self, logs: dict, step: int) -> None:
        self.package.log({**grouped(logs), "train/global_step": step})

    def on_train_end(self, args, state, control, **kwargs):
        """Ends the service's run."""
        self.package.finish()
        self.begun = False


class _MLflow(_Reporter):
    # MLflow's limits: number of parameters in a call, and number of characters in a value.
    MOST, LONGEST = 100, 500

    def begin(self, args: Any) -> None:
        self.owns = self.package.active_run() is None
        if self.owns:
            self.package.start_run(run_name=args.run_name)
        fields = [(key, str(value)) for key, value in args.to_dict().items() if len(str(value)) <= self.LONGEST]
        for at in range(0, len(fields), self.MOST):
            self.package.log_params(dict(fields[at : at + self.MOST]))

    def log(self, logs: dict, step: int) -> None:
        # MLflow does not allow an @ in the name of a metric.
        self.package.log_metrics({key.replace("@", "_at_"): float(value) for key, value in logs.items()}, step=step)

    def on_train_end(self, args, state, control, **kwargs):
        """Ends the service's run."""
        if self.begun and self.owns:
            self.package.end_run()
        self.begun = False


_REPORTERS = {"wandb": _Wandb, "trackio": _Trackio, "mlflow": _MLflow}
