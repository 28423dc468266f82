"""Training progress below a notebook cell: a progress bar, and a table of logged metrics."""

from __future__ import annotations

import html
import time
from typing import Any

from ._callbacks import TrainerCallback

# Seconds between updates of the progress bar, and the maximum number of table rows.
_PERIOD_S, _ROWS = 0.25, 20
# Columns of the table, in this order, if the metrics were logged; and the maximum number of reward columns.
_COLUMNS = ("loss", "reward", "reward_std", "kl", "entropy", "completions/mean_length", "eval_loss", "eval_reward")
_REWARDS = 4


class NotebookProgress(TrainerCallback):
    """Shows the progress of training in Jupyter."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.logs: list[dict] = []
        self.began = self.shown = 0.0

    def on_train_begin(self, args, state, control, **kwargs):
        """Shows an empty table when training begins."""
        from IPython.display import HTML, display

        self.logs, self.began = [], time.monotonic()
        self.handle = display(HTML(self.render(state)), display_id=True)

    def on_step_end(self, args, state, control, **kwargs):
        """Updates the progress bar after a step, at most every quarter of a second."""
        if time.monotonic() - self.shown > _PERIOD_S:
            self.update(state)

    def on_log(self, args, state, control, logs, **kwargs):
        """Adds a row of metrics to the table."""
        if "train_runtime" not in logs:
            self.logs.append({"step": state.global_step, **logs})
        self.update(state)

    def on_train_end(self, args, state, control, **kwargs):
        """Shows the final state."""
        self.update(state)

    def update(self, state: Any) -> None:
        """Shows the current state, if training has begun."""
        if self.handle is not None:
            from IPython.display import HTML

            self.shown = time.monotonic()
            self.handle.update(HTML(self.render(state)))

    def render(self, state: Any) -> str:
        """Returns the progress bar and the table as HTML."""
        steps, most = state.global_step, max(state.max_steps, 1)
        seconds = time.monotonic() - self.began
        left = f", about {seconds / steps * (most - steps):.0f} s left" if 0 < steps < most else ""
        bar = f'<progress value="{steps}" max="{most}" style="width:20em"></progress>'
        return f"<div>{bar} step {steps} of {state.max_steps or '…'}, {seconds:.0f} s{left}</div>{self.table()}"

    def table(self) -> str:
        """Returns the last logged rows as an HTML table."""
        rows = self.logs[-_ROWS:]
        if not rows:
            return ""
        seen = {name for row in rows for name, value in row.items() if value is not None}
        rewards = sorted(name for name in seen if name.startswith("rewards/") and name.endswith("/mean"))
        columns = ["step", *(name for name in _COLUMNS if name in seen), *rewards[:_REWARDS]]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{_shown(row.get(name))}</td>" for name in columns) + "</tr>" for row in rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else html.escape(f"{value:.4g}")
