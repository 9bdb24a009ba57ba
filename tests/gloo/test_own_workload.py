"""User workloads on two real ranks: what works, and that misuse ends in one line and exit code 2."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.gloo.real_runs import FinishedRun, RunsHere

pytestmark = pytest.mark.gloo

_EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model.py"
_SHORT = ("--device=cpu", "--world-size=2", "--steps-per-epoch=8", "--warmup-steps=3")
_IMPORTS = "import sys\nimport torch\nfrom torch import nn\n\n"
_LINE = 5  # of the first line of a source below

# Refused before anything is launched.
_BAD_REFERENCES = {
    "nowhere.py:build": "nowhere.py: No such file or directory",
    "torn.py:build": "torn.py:6: invalid syntax: model = = 5",
    "good.py:biuld": "biuld",
}

# Refused by a rank: source and what is said of it. More mistakes are in the worker's own tests.
_MISUSES = {
    "raises": (
        "def build():\n    raise ValueError('no data here')",
        f"line {_LINE + 1}: ValueError: no data here",
    ),
    "exits_on_one_rank": (
        "def build(rank):\n    if rank == 1:\n        sys.exit(0)\n"
        "    return nn.Linear(2, 2), [(torch.zeros(2), torch.zeros(2))] * 8, nn.functional.mse_loss",
        f"line {_LINE + 2}: called sys.exit(0)",
    ),
    "too_large": (
        "def build():\n    model = nn.Sequential(*(nn.Linear(100_000, 100_000) for _ in range(1000)))\n"
        "    return model, [(torch.zeros(1), torch.zeros(1))] * 8, nn.functional.mse_loss",
        f"line {_LINE + 1}: ModelTooLarge: the model has at least 37253",
    ),
    "other_batch": (
        "class Ready:\n    def __iter__(self):\n        yield torch.zeros(3, 2), torch.zeros(3, 2)\n"
        "def build():\n    return nn.Linear(2, 2), Ready(), nn.functional.mse_loss",
        "--batch-size 3",
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


_HOOKED = """
def build():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def report(optimizer, arguments, keywords):
        print("hook of", sum(len(group["params"]) for group in optimizer.param_groups), flush=True)

    optimizer.register_step_pre_hook(report)
    return model, [(torch.zeros(2), torch.zeros(2))] * 32, nn.functional.mse_loss, optimizer"""


_BAD_BATCH = """
class Samples(torch.utils.data.IterableDataset):
    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        for number in range(10_000):
            value = float("nan") if (self.rank, number) == (1, 9) else 0.5
            yield torch.full((2,), value), torch.zeros(2)

def build(rank):
    return nn.Linear(2, 2), Samples(rank), nn.functional.mse_loss"""


_UNUSED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, inputs):
        return self.used(inputs)

def build():
    return Model(), [(torch.zeros(2), torch.zeros(2))] * 64, nn.functional.mse_loss"""


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


def test_bad_references_are_refused_before_a_launch(run_here: RunsHere) -> None:
    _write(run_here.directory, "torn.py", "def build():\n    model = = 5")
    _write(run_here.directory, "good.py", "def build(): pass")
    for reference, message in _BAD_REFERENCES.items():
        finished = _refused(run_here, f"--workload={reference}")
        assert message in finished.stderr
        assert finished.stderr.startswith("scalescope: --workload: ")
        assert not finished.folder.exists()


@pytest.mark.parametrize("name", _MISUSES)
def test_errors_of_the_workload_in_a_rank_are_one_line(run_here: RunsHere, name: str) -> None:
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
    assert "differs between ranks" in finished.stderr
    assert "2 parameters of 6 elements" in finished.stderr
    assert "2 parameters of 9 elements" in finished.stderr


def test_data_whose_length_differs_between_ranks_is_refused(run_here: RunsHere) -> None:
    data = "[(torch.zeros(2), torch.zeros(2))] * (32 + 64 * rank)"
    differs = f"def build(rank):\n    return nn.Linear(2, 2), {data}, nn.functional.mse_loss"
    _write(run_here.directory, "lengths.py", differs)
    flags = ("--workload=lengths.py:build", "--steps-per-epoch=all", "--batch-size=4", "--warmup-steps=3")
    finished = run_here("train", "--device=cpu", "--world-size=2", *flags)
    assert finished.returncode == 2
    assert "rank 0 has 4 batches, rank 1 has 12 batches" in finished.stderr


def test_modules_that_fail_are_refused(run_here: RunsHere) -> None:
    _write(run_here.directory, "package/torn.py", "def build(:\n    pass")
    torn = _refused(run_here, "--workload=package.torn:build")
    assert f"line {_LINE}: SyntaxError: invalid syntax: def build(:" in torn.stderr
    missing = _refused(run_here, "--workload=no_such.module:build")
    assert f"no_such in {run_here.directory}" in missing.stderr


def _losses(result: dict[str, Any]) -> list[list[float]]:
    return [rank["samples"]["loss"] for rank in result["ranks"]]


@pytest.fixture(scope="module")
def trained(run_here: RunsHere) -> FinishedRun:
    """By relative path and as a module; with mappings, a loader, an iterable; and one that prints."""
    directory = run_here.directory
    (directory / "examples").mkdir()
    shutil.copy(_EXAMPLE, directory / "examples")
    _write(directory, "package/named.py", _NAMED)
    _write(directory, "below/loader.py", _LOADER)
    _write(directory, "iterable.py", _ITERABLE)
    _write(directory, "printing.py", _PRINTING)
    references = (*_REFERENCES.values(), f"{directory}/iterable.py:build")
    run = run_here("train", *_SHORT, "--batch-size=4", "--repeats=1", f"--workload={','.join(references)}")
    assert run_here.leftovers() == []
    return run


_REFERENCES = {
    "example": "examples/own_model.py:build",
    "named": "package.named:build",
    "loader": "below/loader.py:build",
    "printing": "printing.py:build",
}


def _result_of(run: FinishedRun, reference: str) -> dict[str, Any]:
    """The result of one of the workloads, which trained alike on both ranks."""
    result = run.only(workload=reference)
    assert result["status"] == "ok", result["reason"]
    assert len({rank["counters"]["parameter_checksum"] for rank in result["ranks"]}) == 1
    return result


def test_workloads_that_train_print_nothing_to_stderr(trained: FinishedRun) -> None:
    assert (trained.returncode, trained.stderr) == (0, "")


@pytest.mark.basic
def test_the_example_trains(trained: FinishedRun) -> None:
    example = _result_of(trained, _REFERENCES["example"])
    assert example["ranks"][0]["counters"]["parameters"] == 64 * 256 + 256 + 256 * 10 + 10


def test_batches_may_be_mappings(trained: FinishedRun) -> None:
    named = _result_of(trained, _REFERENCES["named"])
    assert all(loss < 7 for losses in _losses(named) for loss in losses)  # it was 7 before the first step


def test_an_iterable_is_made_for_its_rank(trained: FinishedRun, run_here: RunsHere) -> None:
    iterable = _result_of(trained, f"{run_here.directory}/iterable.py:build")
    assert _losses(iterable) == [[2.0] * 5, [12.0] * 5]


def test_a_loader_shows_every_sample_once_an_epoch(trained: FinishedRun) -> None:
    loader = _result_of(trained, _REFERENCES["loader"])
    first, second = _losses(loader)  # epochs of two steps; the first measured step is the fourth
    assert [sum(first[n : n + 2] + second[n : n + 2]) for n in (1, 3)] == [30.0, 30.0]


def test_what_a_workload_prints_is_in_the_logs(trained: FinishedRun) -> None:
    printing = _result_of(trained, _REFERENCES["printing"])
    assert "out of build" in trained.log(printing, 0) and "out of build" in trained.log(printing, 1)
    assert "out of build" not in trained.stdout


def test_hooks_of_the_optimizer_run_once_per_step_with_every_strategy(run_here: RunsHere) -> None:
    _write(run_here.directory, "hooked.py", _HOOKED)
    strategies = ("ddp", "scratch_ddp", "zero1", "fsdp")
    flags = ("--batch-size=4", "--repeats=1", "--no-breakdown", "--workload=hooked.py:build")
    run = run_here("train", *_SHORT, *flags, f"--strategy={','.join(strategies)}")
    assert (run.returncode, run.stderr) == (0, "")
    for strategy in strategies:
        lines = run.log(run.only(strategy=strategy), 1).splitlines()
        assert lines.count("hook of 2") == 8, strategy


def test_a_loss_that_is_not_a_number_in_the_warm_up_is_reported_where_it_arose(run_here: RunsHere) -> None:
    _write(run_here.directory, "bad_batch.py", _BAD_BATCH)
    flags = ("--batch-size=4", "--repeats=1", "--workload=bad_batch.py:build")
    for batches, step in ((1, 2), (2, 1)):  # sample 9 is in batch 2: the first of two batches of step 1
        run = run_here("train", *_SHORT, *flags, f"--accumulation-steps={batches}")
        assert run.returncode == 6
        (result,) = run.results
        assert (result["status"], result["rank"], result["step"]) == ("invalid", 1, step)


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_parameters_without_a_gradient_are_named_with_the_flag_that_allows_them(
    run_here: RunsHere, strategy: str
) -> None:
    _write(run_here.directory, "unused.py", _UNUSED)
    flags = ("--batch-size=4", "--repeats=1", "--workload=unused.py:build", f"--strategy={strategy}")
    refused = _refused(run_here, *flags)
    assert (
        "4 of the model's parameters get no gradient (first.weight, first.bias, second.weight and 1 more)"
        in (refused.stderr)
    )
    assert "--find-unused-parameters" in refused.stderr
    assert run_here("train", *_SHORT, *flags, "--find-unused-parameters").returncode == 0
