"""Display of a run in a notebook, and access to it from other cells."""

import sys
import types

import pytest
from conftest import HANG, grpo, vowels


class Display:
    def __init__(self):
        self.shown = []

    def update(self, page):
        self.shown.append(page)


@pytest.fixture
def display(monkeypatch):
    """A stand-in for a kernel that records what it displays."""
    handle = Display()
    module = types.ModuleType("IPython.display")
    module.HTML = str
    module.display = lambda page, display_id: handle.shown.append(page) or handle
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return handle


def test_a_notebook_shows_a_progress_bar_and_a_table(model, rows, display, capsys):
    grpo(model, rows, disable_tqdm=False).train()
    first, last = display.shown[0], display.shown[-1]
    assert 'value="0"' in first and "<table>" not in first
    assert '<progress value="4" max="4"' in last and "step 4 of 4" in last
    assert last.count("<tr>") == 5 and "<th>reward</th>" in last and "<th>rewards/vowels/mean</th>" in last
    assert capsys.readouterr().out == ""


def test_a_notebook_shows_nothing_with_disable_tqdm(model, rows, display):
    grpo(model, rows).train()
    assert display.shown == []


def test_names_of_rewards_are_escaped_in_html(model, rows, display):
    def reward(completions, **kwargs):
        return [0.0] * len(completions)

    reward.__name__ = "<b>"
    grpo(model, rows, reward, disable_tqdm=False).train()
    assert "rewards/&lt;b&gt;/mean" in display.shown[-1] and "<b>" not in display.shown[-1]


def test_metrics_of_a_running_run_can_be_read_in_another_cell(model, rows):
    import threading

    reached, released = threading.Event(), threading.Event()

    def reward(completions, trainer_state, **kwargs):
        if trainer_state.global_step == 2:
            reached.set()
            assert released.wait(HANG)
        return vowels(completions)

    run = grpo(model, rows, reward).start()
    assert reached.wait(HANG)
    assert run.is_running and run.step == 2 and run.metrics["step"] == 2 and "reward" in run.metrics
    with pytest.raises(TimeoutError, match="step 2 of 4"):
        run.result(timeout=0.01)
    assert repr(run) == "<running: step 2 of 4>"
    released.set()
    assert run.result(HANG).global_step == 4 and not run.is_running


def test_a_background_run_can_be_stopped_and_raises_its_error(model, rows):
    import threading

    begun = threading.Event()

    def slow(completions, **kwargs):
        begun.set()
        return vowels(completions)

    run = grpo(model, rows, slow, max_steps=100000, logging_steps=1000).start()
    assert begun.wait(HANG)
    run.stop()
    with pytest.raises(KeyboardInterrupt, match="stopped after"):
        run.result(HANG)

    def broken(completions, **kwargs):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        grpo(model, rows, broken, output_dir="other").start().result(HANG)


def cell(client, code, output=None):
    """Runs a cell and returns its output and its error. `output` is called with each part of the output."""
    printed = []

    def hear(message):
        if message["msg_type"] == "stream":
            printed.append(message["content"]["text"])
            if output is not None:
                output(message["content"]["text"])

    reply = client.execute_interactive(code, timeout=HANG, output_hook=hear)["content"]
    error = (reply["ename"], reply["evalue"]) if reply["status"] == "error" else None
    return "".join(printed), error


@pytest.mark.parametrize("where", ["engine", "reward"])
def test_interrupting_a_cell_leaves_the_kernel_usable(model, place, where):
    """The interrupt arrives while the engine computes a step, or while a reward of the cell runs."""
    pytest.importorskip("ipykernel")
    manager = pytest.importorskip("jupyter_client").KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(place))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=HANG)
        _, error = cell(client, f"""
import time
from lockstep_rl import GRPOConfig, GRPOTrainer, TrainerCallback

def reward(completions, trainer_state, **kwargs):
    if {where == "reward"} and trainer_state.global_step == 2 and slow:
        print("now", flush=True)
        time.sleep(100_000)
    return [float(len(set(text))) for text in completions]

class Tell(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if {where == "engine"} and state.global_step == 2 and slow:
            print("now", flush=True)

slow = True
args = GRPOConfig("out", num_generations=2, per_device_train_batch_size=4, max_completion_length=6, threads=1,
                  learning_rate=0.01, max_steps=10**6 if {where == "engine"} else 4, logging_steps=1)
trainer = GRPOTrainer({model!r}, reward, args, [{{"prompt": "ab "}}] * 8, callbacks=[Tell()])
""")
        assert error is None, error

        def interrupt(text):
            if "now" in text:
                manager.interrupt_kernel()

        _, error = cell(client, "trainer.train()", interrupt)
        assert error is not None and error[0] == "KeyboardInterrupt", error
        said, error = cell(client, "print(1 + 1, trainer.state.global_step >= 2)")
        assert (said, error) == ("2 True\n", None)
        assert list((place / "out/checkpoints").iterdir()), "expected a checkpoint of the interrupted run"
        said, error = cell(client, """
slow = False
done = trainer.state.global_step

class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= done + 2

trainer.add_callback(Stop())
print("steps", trainer.train(resume_from_checkpoint=True).global_step - done)
""")
        assert error is None and "steps 2" in said, (said, error)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
