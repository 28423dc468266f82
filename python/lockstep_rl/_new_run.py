"""Defaults of a new run, which are TRL's instead of the engine's."""

from __future__ import annotations

import os
from typing import Any


def of_new_run(trainer: Any) -> dict:
    """Returns the engine's keys with these defaults. A resumed run keeps its own."""
    args, own = trainer.args, {}
    if args.method in ("sft", "dpo", "reward"):
        own["dataloader_drop_last"] = False
    # A model given by name is loaded and saved as float32, whatever the dtype of its files.
    init = getattr(args, "model_init_kwargs", None) or {}
    chosen = {"dtype", "torch_dtype"} & init.keys() or {"dtype", "save_dtype"} & trainer._values.keys()
    model = trainer._given_model
    if isinstance(model, (str, os.PathLike)) and not chosen:
        if not os.path.exists(os.path.join(model, "adapter_config.json")):
            own["save_dtype"] = "f32"
    return own
