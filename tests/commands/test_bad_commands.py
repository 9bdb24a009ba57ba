"""Commands that cannot be measured, or hardly: one clear line, the right exit code, nothing left running."""

import signal
import sys
import uuid
from pathlib import Path

import pytest

from tests.gloo.conftest import Start
from tests.gloo.real_runs import FinishedRun, RunsHere

pytestmark = pytest.mark.gloo

SCRIPTS = Path(__file__).parent / "scripts"
_SHORT = ("--device=cpu", "--no-breakdown")
_TRAINING = """
import itertools, random, sys, time, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
others = [torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1) for _ in range(2)]
random.seed(1)
def step():
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def _trained(run_here: RunsHere, script: str, *flags: str, window: str = "0.2s") -> FinishedRun:
    """`train` on a script."""
    name, folder = f"script-{uuid.uuid4().hex}.py", f"run-{uuid.uuid4().hex}"
    (run_here.directory / name).write_text(script)
    flags = (*_SHORT, f"--window={window}", *flags)
    words = ("train", *flags, f"--output-dir={folder}", "--", sys.executable, name)
    run = run_here.reading(*words)
    assert run_here.leftovers() == []
    assert "Traceback" not in run.stdout + run.stderr
    return run


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("print('nothing')", 2, "torch"),
        ("import torch\nprint(torch.ones(1))", 2, "optimizer"),
        (_TRAINING + "step()", 2, "1 optimizer step"),
        (_TRAINING + "step()\nraise ValueError('the data is gone')", 4, "the data is gone"),
        (_TRAINING + "while True:\n    step()\n    random.choice(others).step()\n", 2, "scalescope.step()"),
    ],
    ids=["no torch", "no optimizer", "steps once", "crash", "no repeating order"],
)
def test_scripts_that_cannot_be_measured(run_here: RunsHere, script: str, code: int, words: str) -> None:
    run = _trained(run_here, script)
    assert words in run.stdout + run.stderr
    assert run.returncode == code


def test_a_script_that_ignores_the_world_size(run_here: RunsHere) -> None:
    run = _trained(run_here, _TRAINING + "while True: step()", "--world-size=2")
    assert run.returncode != 0
    assert "{world_size}" in run.stdout + run.stderr


def test_marked_steps_are_measured_whatever_the_order(run_here: RunsHere) -> None:
    script = "import scalescope" + _TRAINING
    script += "while True:\n    step()\n    random.choice(others).step()\n    scalescope.step()\n"
    run = _trained(run_here, script)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "scalescope.step()" in run.stdout + run.stderr


def test_much_output_and_a_loader_without_length(run_here: RunsHere) -> None:
    script = _TRAINING + (
        "class Endless(torch.utils.data.IterableDataset):\n"
        "    def __iter__(self):\n"
        "        while True: yield torch.ones(8)\n"
        "for batch in torch.utils.data.DataLoader(Endless(), batch_size=4):\n"
        "    print('x' * 1_000_000)\n    step()\n"
    )
    run = _trained(run_here, script)
    assert run.returncode == 0, run.stderr[-2000:]
    newest = max(run_here.directory.glob("run-*"), key=lambda path: path.stat().st_mtime_ns)
    assert sum(file.stat().st_size for file in newest.rglob("*") if file.is_file()) < 100 << 20


def test_a_script_that_ends_inside_the_window_counts(run_here: RunsHere) -> None:
    script = _TRAINING + "for _ in range(60):\n    step()\n    time.sleep(0.02)\n"
    assert _trained(run_here, script, window="30s").returncode == 0


def test_nothing_of_torchrun_is_left_when_we_are_stopped(start: Start) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2")
    flags = ("--window=60s", "--world-size=2")
    run = start("train", *_SHORT, *flags, "--", *torchrun, str(SCRIPTS / "plain_ddp.py"))
    run.wait_until(lambda: bool(list(run.folder.glob("ranks/*.json"))), "rank that trains", within_s=90)
    run.send(signal.SIGINT)
    finished = run.finish(30)
    assert "Traceback" not in finished.stderr
    assert finished.returncode == 130
    assert "resume" in finished.stdout + finished.stderr
    assert run.leftovers() == []
