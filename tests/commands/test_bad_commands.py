"""Commands that cannot be measured: one clear line, the right exit code, nothing left running."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gloo.real_runs import reset_signal_handlers
from tests.speed import patience

pytestmark = [pytest.mark.gloo]

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
TRAINING = """
import itertools, sys, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def started(folder: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "scalescope", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "400"},
        cwd=folder,
        preexec_fn=reset_signal_handlers,
    )


def trained(folder: Path, script: str, *flags: str) -> tuple[int, str]:
    """The exit code of `train` on a script, and everything that it printed."""
    (folder / "script.py").write_text(script)
    given = flags or ("--", sys.executable, "script.py")
    process = started(
        folder,
        "train",
        "--device",
        "cpu",
        "--window",
        "0.2s",
        "--no-breakdown",
        "--output-dir",
        "run",
        *given,
    )
    output, errors = process.communicate(timeout=patience(120))
    assert left_running(folder) == []
    return process.returncode, output + errors


def left_running(folder: Path) -> list[str]:
    """Processes whose working folder is that of the test, after a moment."""
    for _ in range(50):
        running = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "cwd") == str(folder):
                    running.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        if not running:
            return []
        time.sleep(0.1)
    return running


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("print('nothing')", 2, "torch"),
        ("import torch\nprint(torch.ones(1))", 2, "optimizer"),
        (TRAINING, 2, "step"),
        (TRAINING + "step()", 2, "1 optimizer step"),
        (TRAINING + "step()\nraise ValueError('the data is gone')", 4, "the data is gone"),
        (TRAINING + "for _ in range(3): step()\nsys.exit(7)", 4, "7"),
    ],
    ids=["no torch", "no optimizer", "never steps", "steps once", "crash", "exit code"],
)
def test_scripts_that_cannot_be_measured(tmp_path: Path, script: str, code: int, words: str) -> None:
    exit_code, text = trained(tmp_path, script)
    assert words in text
    assert "Traceback" not in text
    assert exit_code in (code, 2, 4), text
    assert exit_code != 0


def test_a_script_that_ignores_the_world_size(tmp_path: Path) -> None:
    endless = TRAINING + "while True: step()"
    (tmp_path / "script.py").write_text(endless)
    exit_code, text = trained(tmp_path, endless, "--world-size", "2", "--", sys.executable, "script.py")
    assert exit_code != 0
    assert "{world_size}" in text


def test_steps_in_no_repeating_order(tmp_path: Path) -> None:
    script = TRAINING + (
        "import random\nrandom.seed(1)\n"
        "others = [torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1) for _ in range(2)]\n"
        "while True:\n    step()\n    random.choice(others).step()\n"
    )
    exit_code, text = trained(tmp_path, script)
    assert exit_code != 0
    assert "scalescope.step()" in text


def test_marked_steps_are_measured_whatever_the_order(tmp_path: Path) -> None:
    script = TRAINING + (
        "import random, scalescope\n"
        "others = [torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1) for _ in range(2)]\n"
        "while True:\n    step()\n    random.choice(others).step()\n    scalescope.step()\n"
    )
    exit_code, text = trained(tmp_path, script)
    assert exit_code == 0, text
    assert "scalescope.step()" in text


def test_much_output_and_a_loader_without_length(tmp_path: Path) -> None:
    script = TRAINING + (
        "class Endless(torch.utils.data.IterableDataset):\n"
        "    def __iter__(self):\n"
        "        while True: yield torch.ones(8)\n"
        "for batch in torch.utils.data.DataLoader(Endless(), batch_size=4):\n"
        "    print('x' * 1_000_000)\n    step()\n"
    )
    exit_code, text = trained(tmp_path, script)
    assert exit_code == 0, text[-2000:]
    assert sum(file.stat().st_size for file in (tmp_path / "run").rglob("*") if file.is_file()) < 100 << 20


def test_a_script_that_ends_inside_the_window_counts(tmp_path: Path) -> None:
    script = TRAINING + "import time\nfor _ in range(60):\n    step()\n    time.sleep(0.02)\n"
    flags = ("--window", "30s", "--", sys.executable, "script.py")
    (tmp_path / "script.py").write_text(script)
    process = started(tmp_path, "train", "--device", "cpu", "--no-breakdown", "--output-dir", "run", *flags)
    output, errors = process.communicate(timeout=patience(120))
    assert process.returncode == 0, output + errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_nothing_is_left_when_we_are_stopped(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "script.py").write_text((SCRIPTS / "plain_ddp.py").read_text())
    process = started(
        *(
            tmp_path,
            "train",
            "--device",
            "cpu",
            "--window",
            "60s",
            "--world-size",
            "2",
            "--output-dir",
            "run",
        ),
        *("--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "script.py"),
    )
    deadline = time.monotonic() + patience(90)
    while not list(tmp_path.glob("run/ranks/*.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, number)
    output, errors = process.communicate(timeout=patience(30))
    assert "Traceback" not in errors
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "resume" in output + errors
    assert left_running(tmp_path) == []
