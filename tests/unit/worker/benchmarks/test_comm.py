"""The communication benchmark in a group of one: which sizes it still takes up."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.trial import Trial
from scalescope.launch.fake import TWO_CORES
from scalescope.worker.benchmarks import comm
from scalescope.worker.group import Group, join
from scalescope.worker.position import Position
from tests.unit.experiment.asking import flags

CPU = torch.device("cpu")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Group]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    group = join(store, backend="gloo", rank=0, world_size=1, device=CPU, timeout_s=10)
    yield group
    group.leave()


def trial(longest_exchange: float | None, **asked: str) -> Trial:
    wanted = flags(device="cpu", world_size="2", min_bytes="1K", max_bytes="16K", iters="1", **asked)
    (found,) = expand(build_experiment("comm", "comm", {}, wanted, {}), TWO_CORES).trials
    return found.replace(longest_exchange=longest_exchange)


def keys(trial: Trial, group: Group, taken_s: list[float], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is measured where the slowest rank's first iterations take this long, one after the other."""
    left = iter(taken_s)
    monkeypatch.setattr(comm, "_slowest", lambda time_s, device: next(left))
    return list(comm.measure(trial, group, CPU, Position(None, 0, 1), None).samples)


def test_sizes_end_with_the_first_that_takes_longer(alone: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    found = keys(trial(0.05, collective="all_reduce"), alone, [0.01, 0.05, 0.06], monkeypatch)
    assert found == [f"all_reduce/in/{size}" for size in (1024, 2048, 4096)]


def test_without_a_limit_every_size_is_measured(alone: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    found = keys(trial(None, collective="all_reduce"), alone, [1.0] * 5, monkeypatch)
    assert len(found) == 5


def test_every_collective_ends_by_itself(alone: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = trial(0.05, collective="all_reduce").replace(collective="all_reduce,broadcast")
    found = keys(asked, alone, [0.06, 0.01, 0.06], monkeypatch)
    assert found == ["all_reduce/in/1024", "broadcast/in/1024", "broadcast/in/2048"]


@pytest.mark.filterwarnings("ignore:.*all_gather_into_tensor:FutureWarning")
def test_the_slower_of_both_places_ends_a_collective(alone: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = trial(0.05, collective="all_gather")
    found = keys(asked, alone, [0.06, 0.01], monkeypatch)
    assert {key.rpartition("/")[2] for key in found} == {"1024"}
    assert len(found) == 2
