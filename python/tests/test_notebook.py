"""What a notebook shows of a run, and what another cell can read of it."""

import sys
import types

import pytest
from conftest import grpo, vowels


class Display:
    def __init__(self):
        self.shown = []

    def update(self, page):
        self.shown.append(page)


@pytest.fixture
def display(monkeypatch):
    """A kernel that keeps what it is to show."""
    handle = Display()
    module = types.ModuleType("IPython.display")
    module.HTML = str
    module.display = lambda page, display_id: handle.shown.append(page) or handle
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return handle


def test_a_notebook_shows_a_bar_and_a_table(model, rows, display, capsys):
    grpo(model, rows, disable_tqdm=False).train()
    first, last = display.shown[0], display.shown[-1]
    assert 'value="0"' in first and "<table>" not in first
    assert '<progress value="4" max="4"' in last and "step 4 of 4" in last
    assert last.count("<tr>") == 5 and "<th>reward</th>" in last and "<th>rewards/vowels/mean</th>" in last
    assert capsys.readouterr().out == ""


def test_nothing_is_shown_where_that_was_asked(model, rows, display):
    grpo(model, rows).train()
    assert display.shown == []


def test_names_of_rewards_are_no_markup(model, rows, display):
    def reward(completions, **kwargs):
        return [0.0] * len(completions)

    reward.__name__ = "<b>"
    grpo(model, rows, reward, disable_tqdm=False).train()
    assert "rewards/&lt;b&gt;/mean" in display.shown[-1] and "<b>" not in display.shown[-1]


def test_another_cell_reads_a_run_that_goes_on(model, rows):
    import threading

    reached, released = threading.Event(), threading.Event()

    def reward(completions, trainer_state, **kwargs):
        if trainer_state.global_step == 2:
            reached.set()
            assert released.wait(60)
        return vowels(completions)

    run = grpo(model, rows, reward).start()
    assert reached.wait(60)
    assert run.is_running and run.step == 2 and run.metrics["step"] == 2 and "reward" in run.metrics
    with pytest.raises(TimeoutError, match="step 2 of 4"):
        run.result(timeout=0.01)
    assert repr(run) == "<running: step 2 of 4>"
    released.set()
    assert run.result(60).global_step == 4 and not run.is_running


def test_a_run_in_the_background_is_stopped_and_says_what_failed(model, rows):
    import threading

    begun = threading.Event()

    def slow(completions, **kwargs):
        begun.set()
        return vowels(completions)

    run = grpo(model, rows, slow, max_steps=100000, logging_steps=1000).start()
    assert begun.wait(60)
    run.stop()
    with pytest.raises(KeyboardInterrupt, match="stopped after"):
        run.result(60)

    def broken(completions, **kwargs):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        grpo(model, rows, broken, output_dir="other").start().result(60)
