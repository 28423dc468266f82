"""Base class of TRL's trainers, which starts the engine's training and evaluation."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
import warnings
from typing import Any, NamedTuple

from . import _native
from ._calling import note
from ._callbacks import CallbackList, TrainerControl, TrainerState
from ._config import warn_once
from ._data import is_stream
from ._datasets import EVAL_KEYS, EvalData, WithDatasets
from ._ended import Ended, run_of
from ._given import GivenFiles
from ._late import ReadLate
from ._launch import launched, print_batch, samples_per_step
from ._live import LiveModel, opened
from ._models import check_path, name_of, source_of, write_given
from ._new_run import of_new_run
from ._notebook import NotebookProgress
from ._observer import Observer
from ._peft import config_of, is_peft_model, lora_values
from ._overrides import REFUSED_METHODS, check_class
from ._refused import REFUSED_ARGUMENTS, with_gen_kwargs
from ._reporters import reporters
from ._rewards import OF_MODEL, RewardSet, logger
from ._script_methods import OF_ARGS, ScriptMethods
from ._signals import Interrupts, in_notebook


class TrainOutput(NamedTuple):
    """Result of `train`, as in transformers: number of optimizer steps, mean loss, and metrics."""

    global_step: int
    training_loss: float
    metrics: dict


class PredictionOutput(NamedTuple):
    """Result of `predict`, as in transformers."""

    predictions: Any
    label_ids: Any
    metrics: dict


class Trainer(ReadLate, WithDatasets, Ended, ScriptMethods):
    """Base class of the trainers: a model, data and callbacks. The engine trains or evaluates for a trainer once at a
    time."""

    config_class: Any = None
    # The wrapped `rollout_func`, which the engine calls instead of generating.
    _rollout_function: Any = None
    # Whether the trained model has a score head.
    _trains_scores = False
    # URL of the page, with `dashboard`.
    dashboard_url: str | None = None
    # Whether worker processes generate the completions.
    _is_distributed = False
    # Whether the rows of a stream are trained on in their order.
    _reads_in_order = False
    # TRL's attribute for mixture-of-experts models, which are not supported.
    aux_loss_enabled = False

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        callbacks: list | None = None,
        peft_config: Any = None,
        **others: Any,
    ):
        kind = type(self).__name__
        check_class(self)
        if "tokenizer" in others:
            warnings.warn("`tokenizer` is deprecated: use the argument processing_class", FutureWarning, stacklevel=3)
            processing_class = processing_class or others.pop("tokenizer")
        gen_kwargs = others.pop("gen_kwargs", None)
        self._refuse(kind, others)
        if model is None:
            raise TypeError(f"{kind} needs a model: a directory, a Hub id or a transformers model")
        if args is None:
            args = self.config_class(f"{_short_name(model)}-{kind.removesuffix('Trainer')}")
        if is_training_arguments(args):
            args = self.config_class.of_training_arguments(args)
        if not isinstance(args, self.config_class):
            raise TypeError(
                f"`args` must be a {self.config_class.__name__} of lockstep_rl, but is {type(args).__module__}."
                f"{type(args).__name__}: import it from lockstep_rl, too"
            )
        self.args = args if gen_kwargs is None else with_gen_kwargs(args, gen_kwargs)
        self._given_model = model = opened(model)
        self.processing_class = processing_class
        self._values = self._first_values()
        of_adapter = is_peft_model(model)
        if of_adapter:
            if peft_config is not None:
                raise ValueError("`model` is already a PeftModel: give its base model, or no `peft_config`")
            peft_config = config_of(model)
        self._peft_config = peft_config
        self._values.update(lora_values(peft_config, has_weights=of_adapter, has_scores=self._trains_scores))
        self._values["output_dir"] = self._output_dir(model)
        # Name or directory that the engine can read; None if files must be written before the first use.
        self._source = source_of(model, processing_class)
        self._values["model_name_or_path"] = self._source
        self._written: Any = None
        self._given_of: str | None = None
        # The engine's model while it calls this trainer, whether training is running, the stop signal, and the result.
        self._live: Any = None
        self._trains_now = False
        self._stop: Any = None
        self._result: dict | None = None
        # Warnings of the engine that were already shown.
        self._warned: set[str] = set()
        self._pending: dict | None = None
        self._tail: dict = {}
        self._model = LiveModel(self)
        self.train_dataset = train_dataset
        self.eval_dataset = eval_dataset
        self.state = TrainerState(
            logging_steps=self.args.logging_steps,
            save_steps=self.args.save_steps,
            eval_steps=self.args.eval_steps,
            num_train_epochs=self.args.num_train_epochs,
            train_batch_size=self.args.per_device_train_batch_size,
        )
        self.control = TrainerControl()
        self.is_trained = self.is_in_train = False
        shown = [NotebookProgress()] if in_notebook() and not getattr(self.args, "disable_tqdm", False) else []
        self._callbacks = CallbackList([*reporters(self.args), *shown, *(callbacks or [])], self)
        self._callbacks.call("on_init_end")

    def _refuse(self, kind: str, others: dict) -> None:
        """Raises an error for arguments of TRL that are not supported, and for unknown ones."""
        for name, value in others.items():
            why = REFUSED_ARGUMENTS.get(name)
            if why is None:
                raise TypeError(f"{kind} has no argument `{name}`")
            empty = value is None or value == (None, None) or (isinstance(value, (list, dict)) and not value)
            if not empty:
                raise ValueError(f"{kind}: `{name}` is not supported: {why}")

    def _output_dir(self, model: Any) -> str:
        """Returns `output_dir`. If it is not set, returns `trainer_output`, or the first `trainer_output-N` that does
        not exist."""
        name = self._values.get("output_dir")
        if name is not None:
            return os.path.abspath(os.fspath(name))
        name = os.path.abspath("trainer_output")
        number = 2
        while os.path.exists(name):
            name, number = os.path.abspath(f"trainer_output-{number}"), number + 1
        return name

    # Public methods.

    def train(self, resume_from_checkpoint: str | bool | None = None, **others: Any) -> TrainOutput:
        """Trains to the end. `resume_from_checkpoint` continues training after the newest checkpoint of `output_dir`
        (True), or after the checkpoint in a directory."""
        for name in others:
            raise TypeError(f"train() has no argument `{name}`")
        check_class(self)
        with launched():
            return self._run_training(resume_from_checkpoint)

    def _run_training(self, resume_from_checkpoint: str | bool | None) -> TrainOutput:
        self._warn_of_torch_contexts()
        self._model.check()
        self._read_args()
        resume = resume_from_checkpoint
        if resume is None or resume is False:
            resume = getattr(self.args, "resume_from_checkpoint", None) or None
        if resume is True:
            resume = self._values["output_dir"]
        elif resume is not None:
            resume = check_path(os.fspath(resume), "resume_from_checkpoint")
        print_batch(self.args)
        began = time.monotonic()
        self._resumes_from = resume
        self.is_in_train, self._tail, self._losses = True, {}, []
        try:
            self._result = self._run(resume=resume, eval_metrics=self._eval_metrics("eval", predicts=False))
        finally:
            self.is_in_train = False
        self._model.settle()
        self.is_trained = True
        if self._result["best"] is not None:
            self.state.best_global_step, self.state.best_metric = self._result["best"]
        seconds = time.monotonic() - began
        loss = self._mean_loss()
        steps = self.state.global_step - self._first_step
        metrics = {
            "train_runtime": seconds,
            "train_samples_per_second": steps * self._samples_per_step() / seconds,
            "train_steps_per_second": steps / seconds,
            "train_loss": loss,
        }
        # As in TRL, the entry also has the metrics of the steps since the last logged step.
        self.log({**self._tail, **metrics})
        self._callbacks.call("on_train_end")
        return TrainOutput(self.state.global_step, loss, metrics)

    def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> dict:
        """Evaluates the model with its current weights, logs the metrics and returns them. During training, it is
        called for each evaluation that is due, and takes the metrics that the engine has computed."""
        if self._pending is not None:
            if eval_dataset is not None and eval_dataset is not self.eval_dataset:
                raise RuntimeError("evaluate: during training, only the trainer's eval_dataset can be evaluated")
            metrics, self._pending = self._pending, None
        else:
            own = self._eval_metrics(metric_key_prefix, predicts=False)
            metrics = self._evaluated(eval_dataset, metric_key_prefix, own)
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        for of_set in by_set(metrics, data, metric_key_prefix):
            self.log(of_set)
            self._callbacks.call("on_evaluate", metrics=of_set)
        if self.state.epoch is not None:
            metrics.setdefault("epoch", self.state.epoch)
        return metrics

    def log(self, logs: dict, start_time: float | None = None) -> None:
        """Adds an entry to `state.log_history`, and calls `on_log` of the callbacks. It is called for everything that
        is logged."""
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch  # as in transformers, evaluate() also returns it
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self._callbacks.call("on_log", logs=logs)

    def predict(
        self, test_dataset: Any, ignore_keys: Any = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Returns the metrics of a dataset, without logging them. `predictions` and `label_ids` are the values
        that `compute_metrics` receives (dicts by name, for a dict of datasets). They are None in trainers that generate
        completions, and with `prediction_loss_only`."""
        if test_dataset is None:
            raise ValueError("predict: `test_dataset` is missing")
        own = self._eval_metrics(metric_key_prefix, predicts=True)
        metrics = self._evaluated(test_dataset, metric_key_prefix, own)
        self._callbacks.call("on_predict", metrics=metrics)
        results = {} if own is None else own.results
        if isinstance(test_dataset, dict):
            predictions, labels = ({name: both[i] for name, both in results.items()} or None for i in (0, 1))
        else:
            predictions, labels = results.get("", (None, None))
        return PredictionOutput(predictions, labels, metrics)

    def _evaluated(self, eval_dataset: Any, metric_key_prefix: str, own: Any) -> dict:
        if not self._trains_now:
            self._read_args()
        values = self._evaluation_values()
        data = self._eval if eval_dataset is None else self._eval_data(eval_dataset)
        given = {key: self._values[key] for key in EVAL_KEYS if key in self._values}
        values.update(given if eval_dataset is None else data.values)
        if not EVAL_KEYS & values.keys():
            raise ValueError("evaluate: eval_dataset is missing: pass it here or to the trainer")
        metrics: dict = {}
        with tempfile.TemporaryDirectory(prefix="lockstep-evaluate-") as place:
            # A run without optimizer steps evaluates the current weights, in a temporary directory.
            values.update(output_dir=os.path.join(place, "run"), model_name_or_path=self._current_model())
            for key, write in self._objects().items():
                if key.startswith(OF_MODEL) and key not in values:  # its files do not exist yet
                    values[key] = os.path.join(place, key)
                    os.makedirs(values[key])
                    write(values[key])
            values.update(eval_strategy="steps", load_best_model_at_end=False, tensorboard=False)
            values.pop("metric_for_best_model", None), values.pop("early_stopping_patience", None)
            self._run(values=values, evaluation=data, only_evaluate=metrics, eval_metrics=own)
        if "eval_num_tokens" in metrics:
            # The number of tokens that were trained on, which this evaluation does not change.
            metrics["eval_num_tokens"] = 0 if self._result is None else self._result["num_tokens"]
        if metric_key_prefix != "eval":
            metrics = {metric_key_prefix + key.removeprefix("eval"): value for key, value in metrics.items()}
        return metrics

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes the model with its current weights, and its tokenizer, into `output_dir` (by default that of the
        arguments). During training, it is called for each checkpoint, after the engine has written it."""
        if not _internal_call:
            self._model.save(os.fspath(output_dir or self.args.output_dir or "trainer_output"))

    def end(self) -> None:
        """Does nothing: files and reporters are closed when training ends."""

    def add_callback(self, callback: Any) -> None:
        """Adds a callback, given as an object or a class."""
        self._callbacks.add(callback)

    def remove_callback(self, callback: Any) -> None:
        """Removes a callback: the object given, or the first one of a class."""
        self._callbacks.pop(callback)

    def pop_callback(self, callback: Any) -> Any:
        """Removes a callback as `remove_callback` does, and returns it."""
        return self._callbacks.pop(callback)

    def stop(self) -> None:
        """Asks training to stop with a checkpoint, as Ctrl-C does. It may be called from any thread."""
        if self._stop is not None:
            self._stop.request()

    @property
    def model(self) -> Any:
        """The model with its current weights. It is the transformers model that was given (with its new adapter, if
        `peft_config` was given), or one that is loaded at first use. During training, its weights are current inside
        callbacks."""
        return self._model.get()

    @property
    def callback_handler(self) -> CallbackList:
        """The callbacks, under transformers' name."""
        return self._callbacks

    def __getattr__(self, name: str) -> Any:
        if name in REFUSED_METHODS:
            raise AttributeError(f"{type(self).__name__} has no `{name}`: {REFUSED_METHODS[name]}")
        field = OF_ARGS.get(name)
        if field is not None and "args" in vars(self) and field in self.args._fields:
            return getattr(self.args, field)
        raise AttributeError(f"{type(self).__name__} has no `{name}`")

    # Internal methods.

    def _rewards(self) -> RewardSet | None:
        return None

    def _eval_metrics(self, prefix: str, predicts: bool) -> Any:
        """Returns the object that receives the outputs of evaluations from the engine, or None."""
        return None

    def _samples_per_step(self) -> int:
        return samples_per_step(self.args)

    def _objects(self) -> dict[str, Any]:
        """Returns functions that write the files of in-memory objects, by the engine's key. Each function writes into a
        directory."""
        model = self._model.to_train()
        if self._source is not None and model is self._given_model:
            return {}
        tokenizer = self._tokenizer
        if tokenizer is None and model is not self._given_model and self._source is not None:
            tokenizer = self._source
        return {"model_name_or_path": lambda place: write_given(model, tokenizer, place)}

    @contextlib.contextmanager
    def _files(self, resume: str | None) -> Any:
        """Context manager that writes in-memory objects into directories of the run, and yields the engine's keys for
        them. The files stay once training has begun."""
        objects = self._objects()
        if not objects:
            yield {}
            return
        root = self._values["output_dir"]
        if resume is None or run_of(resume) != os.path.realpath(root):
            _native.check_fresh(root)
        elif self._given_of == root:
            yield {key: self._values[key] for key in objects}
            return
        files = GivenFiles(root)
        try:
            for key, write in objects.items():
                write(files.place(key))
            weights = "adapter_model" if is_peft_model(self._given_model) else "model"
            keeps_base = self._values.get("use_peft") and weights == "model"
            trained = None if resume is None or keeps_base else f"model_name_or_path/{weights}*.safetensors"
            path = files.or_earlier(trained)
            values = {key: os.path.join(path, key) for key in objects}
            self._values.update(values)
            self._given_of = root
            yield values
        finally:
            files.close()
            if not os.path.exists(os.path.join(root, "config.toml")):
                files.remove()

    def _run(
        self,
        resume: str | None = None,
        values: dict | None = None,
        evaluation: EvalData | None = None,
        only_evaluate: dict | None = None,
        eval_metrics: Any = None,
    ) -> dict:
        if only_evaluate is None:
            with self._files(resume) as given:
                values = {**({} if resume else of_new_run(self)), **self._values, **given}
                if is_stream(self._given_train):
                    values = self._with_stream(values, resume)
                return self._driven(values, resume, evaluation, None, eval_metrics)
        return self._driven(dict(values or {}), None, evaluation, only_evaluate, eval_metrics)

    def _with_stream(self, values: dict, resume: str | None) -> dict:
        """Returns the engine's keys of a run whose rows come from a stream."""
        if resume is not None:
            self._read_as_in(run_of(resume))
            return values
        own = {} if self._stream_rows is None else {"max_samples": self._stream_rows}
        return {**({"shuffle_dataset": False} if self._reads_in_order else {}), **own, **values}

    def _driven(
        self, values: dict, resume: str | None, evaluation: EvalData | None, only_evaluate: dict | None,
        eval_metrics: Any,
    ) -> dict:
        evaluation = self._eval if evaluation is None else evaluation
        before = (self._stop, self._live, self._trains_now)
        if before[0] is not None and (only_evaluate is None or before[1] is None or before[1].version() is None):
            raise RuntimeError(
                "this trainer is already training: call evaluate() in callbacks, or create another trainer to "
                "train at the same time"
            )
        rewards = self._rewards()
        given = []
        kept = None if rewards is None else (rewards.sources, rewards.state)
        if rewards is not None:
            sets = [evaluation.rows, *evaluation.sets.values()]
            sets = [self._train, *sets] if only_evaluate is None else sets
            rewards.sources = [one.source for one in sets if one.texts and rewards.functions]
            rewards.state = self.state
            given = [(function.name, function, function.by_group) for function in rewards.functions]
            places = {key: values.pop(key) for key in list(values) if key.startswith(OF_MODEL)}
            values["reward_funcs"] = rewards.specs_at(places, None if resume is None else run_of(resume))
        observer = Observer(self, rewards, only_evaluate, eval_metrics)
        self._stop, self._trains_now = _native.StopSignal(), only_evaluate is None or before[2]
        silent = only_evaluate is not None or bool(getattr(self.args, "disable_tqdm", False)) or in_notebook()
        try:
            with Interrupts(self._stop):
                ended = _native.run(
                    self.args.method,
                    json.dumps(values),
                    rewards=given,
                    observer=observer,
                    stop=self._stop,
                    rollout_function=self._rollout_function,
                    eval_metrics=eval_metrics,
                    train_rows=self._train.texts if only_evaluate is None else None,
                    eval_rows=evaluation.rows.texts,
                    eval_sets=[(name, rows.texts) for name, rows in evaluation.sets.items()],
                    resume=resume,
                    silent=silent,
                    only_evaluate=only_evaluate is not None,
                    distributed=self._is_distributed and only_evaluate is None,
                )
                # Lets Python raise KeyboardInterrupt for a signal that arrived while the engine was working.
                time.sleep(0)
        except KeyboardInterrupt as interrupt:
            if only_evaluate is None:
                # `state` may lack the last step, if a callback was interrupted.
                self.state.global_step = self._stop.steps_done()
                place = values["output_dir"]
                note(interrupt, f"stopped after step {self.state.global_step}; "
                                f"train(resume_from_checkpoint=True) continues in {place}")
            raise
        finally:
            if only_evaluate is None:
                self._ended()
            self._stop, self._live, self._trains_now = before
            if rewards is not None and before[0] is not None:  # training continues
                rewards.sources, rewards.state = kept
        ended = {**ended, "model": os.fspath(ended["model"]), "dir": os.fspath(ended["dir"])}
        if ended["stop_reason"] == "interrupted" and only_evaluate is None:
            raise KeyboardInterrupt(
                f"stopped after step {ended['step']}; train(resume_from_checkpoint=True) continues in {ended['dir']}"
            )
        return ended

    def _begun(self, directory: str) -> None:
        """Called when the run's directory exists, before the first step."""
        self._run_dir, self._stopped_in = directory, None
        wanted = self.args.dashboard
        if wanted is False:
            return
        port = 7860 if wanted is True else wanted
        try:
            self.dashboard_url = _native.show(directory, port)
            logger.warning("the run's page: %s", self.dashboard_url)
        except OSError as error:
            logger.warning("no page on port %s: %s; `python -m lockstep_rl dashboard %s --port 0` shows the run, too",
                           port, error, directory)

    def _ended(self) -> None:
        """Called when the engine has finished, even after an error."""

    @staticmethod
    def _warn_of_torch_contexts() -> None:
        torch = sys.modules.get("torch")
        if torch is not None and not torch.is_grad_enabled():
            warn_once("train() is called under torch.no_grad(), which has no effect: the engine computes gradients")


def is_training_arguments(args: Any) -> bool:
    """Whether `args` are transformers' own TrainingArguments, and not a subclass such as TRL's configurations."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and type(args) is transformers.TrainingArguments


def by_set(metrics: dict, datasets: Any, prefix: str) -> list[dict]:
    """Splits the metrics of an evaluation by dataset, as transformers logs them. Metrics of all datasets together are
    with the last one."""
    if not isinstance(datasets, dict):
        return [metrics]
    names = sorted(datasets, key=len, reverse=True)
    parts: dict = {name: {} for name in datasets}
    for key, value in metrics.items():
        of_all = list(datasets)[-1]
        parts[next((name for name in names if key.startswith(f"{prefix}_{name}_")), of_all)][key] = value
    return list(parts.values())


def _short_name(model: Any) -> str:
    name = model if isinstance(model, (str, os.PathLike)) else name_of(model) or "model"
    return os.path.basename(os.path.normpath(os.fspath(name)))
