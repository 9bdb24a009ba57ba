"""Own workloads on two real ranks: what works, and that misuse ends in one line and exit code 2."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.gloo.conftest import Start
from tests.gloo.real_runs import FinishedRun, RunsHere

pytestmark = pytest.mark.gloo

_EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model.py"
_SHORT = ("--device=cpu", "--world-size=2", "--steps-per-epoch=8", "--warmup-steps=3")
_IMPORTS = "import sys\nimport torch\nfrom torch import nn\n\n"
_LINE = 5  # of the first line of a source below

# Refused before anything is launched.
_SEEN_AT_ONCE = {
    "nowhere.py:build": "nowhere.py: No such file or directory",
    "torn.py:build": "torn.py:6: invalid syntax: model = = 5",
    "good.py:biuld": "there is no biuld in it; functions there: build",
}

# Refused by a rank: source and what is said of it.
_MISUSES = {
    "raises": (
        "def build():\n    raise ValueError('no data here')",
        f"line {_LINE + 1}: ValueError: no data here",
    ),
    "breaks_on_import": ("WIDTH = 1 // 0\ndef build(): pass", f"line {_LINE}: ZeroDivisionError: "),
    "returns_else": (
        "def build():\n    return nn.Linear(2, 2)",
        "returned a Linear; expected (model, data, loss)",
    ),
    "no_parameters": (
        "def build():\n    return nn.ReLU(), [1], nn.functional.mse_loss",
        "returned a model without parameters to train",
    ),
    "not_callable": ("build = 5", "build is an int, not a function"),
    "unknown_arguments": (
        "def build(config, rank): pass",
        "it asks for config; on offer are rank, world_size, batch_size, device",
    ),
    "exits": ("def build():\n    sys.exit(0)", f"line {_LINE + 1}: called sys.exit(0)"),
    "exits_on_one_rank": (
        "def build(rank):\n    if rank == 1:\n        sys.exit(0)\n"
        "    return nn.Linear(2, 2), [(torch.zeros(2), torch.zeros(2))] * 8, nn.functional.mse_loss",
        f"line {_LINE + 2}: called sys.exit(0)",
    ),
    "other_batch": (
        "class Ready:\n    def __iter__(self):\n        yield torch.zeros(3, 2), torch.zeros(3, 2)\n"
        "def build():\n    return nn.Linear(2, 2), Ready(), nn.functional.mse_loss",
        "hold 3 samples and a rank's batch is 4; --batch-size 3 fits",
    ),
}

_NAMED = """
from types import SimpleNamespace

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))

    def forward(self, input_ids, labels):
        return SimpleNamespace(loss=(self.weight.sum() + 1) * labels.float().mean())

def build():
    return Model(), [{"input_ids": torch.zeros(5), "labels": 7}] * 16, lambda output, batch: output.loss
"""

_LOADER = """
def loss(output, numbers):
    return output.sum() * 0 + numbers.float().mean()

def build():
    numbers = torch.arange(16)
    data = torch.utils.data.TensorDataset(torch.zeros(16, 2), numbers)
    return nn.Linear(2, 1), torch.utils.data.DataLoader(data, batch_size=3, num_workers=1), loss
"""

_ITERABLE = """
class Batches:
    def __init__(self, rank, world_size, batch_size):
        self.rank, self.world_size, self.batch_size = rank, world_size, batch_size

    def __iter__(self):
        value = float(self.rank * 10 + self.world_size)
        yield torch.zeros(self.batch_size, 2), torch.full((self.batch_size,), value)

def build(rank, world_size, batch_size):
    data = Batches(rank, world_size, batch_size)
    return nn.Linear(2, 1), data, lambda output, values: output.sum() * 0 + values.mean()
"""

_PRINTING = """
print('{"exited": 1, "status": 0}')

def build():
    print("out of build")
    print('{"ready": true}', flush=True)
    data = torch.utils.data.TensorDataset(torch.zeros(16, 2), torch.zeros(16, 2))
    return nn.Linear(2, 2), data, nn.functional.mse_loss, torch.optim.Adagrad
"""


def _write(directory: Path, name: str, source: str) -> None:
    (directory / name).parent.mkdir(exist_ok=True)
    (directory / name).write_text(_IMPORTS + source + "\n")


def _refused(run_here: RunsHere, *flags: str) -> FinishedRun:
    """A command that ends with one line and leaves no rank behind."""
    finished = run_here("train", *_SHORT, *flags)
    assert run_here.leftovers() == []
    assert finished.returncode == 2
    (line,) = finished.stderr.splitlines()
    assert line.startswith("scalescope: ")
    assert "Traceback" not in finished.stdout
    return finished


def test_what_can_be_seen_at_once_is_refused_before_a_launch(run_here: RunsHere) -> None:
    _write(run_here.directory, "torn.py", "def build():\n    model = = 5")
    _write(run_here.directory, "good.py", "def build(): pass")
    for reference, message in _SEEN_AT_ONCE.items():
        finished = _refused(run_here, f"--workload={reference}")
        assert message in finished.stderr
        assert finished.stderr.startswith("scalescope: --workload: ")
        assert not finished.folder.exists()


@pytest.mark.parametrize("name", _MISUSES)
def test_what_a_rank_meets_is_refused_in_one_line(run_here: RunsHere, name: str) -> None:
    source, message = _MISUSES[name]
    _write(run_here.directory, f"{name}.py", source)
    finished = _refused(run_here, "--batch-size=4", "--repeats=2", f"--workload={name}.py:build")
    assert message in finished.stderr
    (failed,) = finished.results  # it would fail again: no second launch
    assert failed["status"] == "failed"
    assert f"(log: {failed['log']})" in finished.stderr


def test_models_that_differ_between_ranks_are_refused(run_here: RunsHere) -> None:
    differs = "def build(rank):\n    return nn.Linear(2, 2 + rank), [1], nn.functional.mse_loss"
    _write(run_here.directory, "differs.py", differs)
    finished = _refused(run_here, "--workload=differs.py:build")
    assert "the model differs between ranks: rank " in finished.stderr
    assert "has 2 parameters of 6 elements" in finished.stderr
    assert "has 2 parameters of 9 elements" in finished.stderr


def test_modules_that_fail_are_refused(run_here: RunsHere) -> None:
    _write(run_here.directory, "package/torn.py", "def build(:\n    pass")
    torn = _refused(run_here, "--workload=package.torn:build")
    assert f"line {_LINE}: SyntaxError: invalid syntax: def build(:" in torn.stderr
    missing = _refused(run_here, "--workload=no_such.module:build")
    assert f"there is no module no_such in {run_here.directory}" in missing.stderr


def _losses(result: dict[str, Any]) -> list[list[float]]:
    return [rank["samples"]["loss"] for rank in result["ranks"]]


def test_own_workloads_of_every_kind_train(start: Start, tmp_path: Path) -> None:
    """By relative path and as a module; with mappings, a loader, an iterable; and one that prints."""
    (tmp_path / "examples").mkdir()
    shutil.copy(_EXAMPLE, tmp_path / "examples")
    _write(tmp_path, "package/named.py", _NAMED)
    _write(tmp_path, "below/loader.py", _LOADER)
    _write(tmp_path, "iterable.py", _ITERABLE)
    _write(tmp_path, "printing.py", _PRINTING)
    references = (
        "examples/own_model.py:build",
        "package.named:build",
        "below/loader.py:build",
        f"{tmp_path}/iterable.py:build",
        "printing.py:build",
    )
    run = start("train", *_SHORT, "--batch-size=4", "--repeats=1", f"--workload={','.join(references)}")
    finished = run.finish()
    assert run.leftovers() == []
    assert (finished.returncode, finished.stderr) == (0, "")
    example, named, loader, iterable, printing = (finished.only(workload=one) for one in references)
    for result in (example, named, loader, iterable, printing):
        assert result["status"] == "ok"
        assert len({rank["counters"]["parameter_checksum"] for rank in result["ranks"]}) == 1
    assert example["ranks"][0]["counters"]["parameters"] == 64 * 256 + 256 + 256 * 10 + 10
    assert all(loss < 7 for losses in _losses(named) for loss in losses)  # it was 7 before the first step
    assert _losses(iterable) == [[2.0] * 5, [12.0] * 5]
    first, second = _losses(loader)  # epochs of two steps; the first measured step is the fourth
    assert [sum(first[n : n + 2] + second[n : n + 2]) for n in (1, 3)] == [30.0, 30.0]
    assert "out of build" in finished.log(printing, 0) and "out of build" in finished.log(printing, 1)
    assert "out of build" not in finished.stdout
