"""The communication benchmark in a group of one: which sizes it still takes up."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from scalescope.catalog.benchmarks.comm import Comm
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.trial import Trial
from scalescope.worker.benchmarks import comm
from scalescope.worker.process.group import Group, join
from scalescope.worker.process.position import Position
from scalescope.worker.training.measurements import Measurements
from tests.builders.requests import flags
from tests.simulated.launcher import TWO_CORES

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def alone() -> Iterator[Group]:
    store = dist.HashStore()
    group = join(store, backend="gloo", rank=0, world_size=1, device=CPU, timeout_s=10)
    yield group
    group.leave()


def trial(longest_exchange: float | None, **asked: str) -> Trial:
    wanted = flags(device="cpu", world_size="2", min_bytes="1K", max_bytes="16K", iters="1", **asked)
    (only_trial,) = expand(build_experiment("comm", "comm", {}, wanted, {}), TWO_CORES).trials
    return only_trial.replace(longest_exchange=longest_exchange)


def keys(trial: Trial, group: Group, taken_s: list[float], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is measured where iterations of the slowest rank take this long, size by size."""
    left = iter([time_s for time_s in taken_s for _ in ("first", "warmed up")])
    monkeypatch.setattr(Group, "largest", lambda self, value, device: next(left))
    return list(comm.measure(trial, group, CPU, Position(None, 0, 1), None).samples)


@pytest.mark.parametrize(
    ("limit_s", "collectives", "taken_s", "sizes"),
    [
        (0.05, "all_reduce", [0.01, 0.05, 0.06], {"all_reduce": (1024, 2048, 4096)}),
        (None, "all_reduce", [1.0] * 5, {"all_reduce": (1024, 2048, 4096, 8192, 16384)}),
        (  # every collective ends on its own
            0.05,
            "all_reduce,broadcast",
            [0.06, 0.01, 0.06],
            {"all_reduce": (1024,), "broadcast": (1024, 2048)},
        ),
    ],
)
def test_sizes_end_with_the_first_that_takes_longer(
    alone: Group,
    monkeypatch: pytest.MonkeyPatch,
    limit_s: float | None,
    collectives: str,
    taken_s: list[float],
    sizes: dict[str, tuple[int, ...]],
) -> None:
    asked = trial(limit_s, collective="all_reduce").replace(collective=collectives)
    measured = [f"{name}/in/{size}" for name, counts in sizes.items() for size in counts]
    assert keys(asked, alone, taken_s, monkeypatch) == measured


@pytest.mark.filterwarnings("ignore:.*all_gather_into_tensor:FutureWarning")
def test_the_slower_of_both_places_ends_a_collective(alone: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = trial(0.05, collective="all_gather")
    measured = keys(asked, alone, [0.06, 0.01], monkeypatch)
    assert {key.rpartition("/")[2] for key in measured} == {"1024"}
    assert len(measured) == 2


@pytest.mark.parametrize(
    ("typical_s", "iterations"),
    [(1e-6, 500), (0.001, 200), (0.1, 5), (0.199, 5), (0.3, 3), (60.0, 3)],
)
def test_iterations_fill_the_time_for_a_size(typical_s: float, iterations: int) -> None:
    options = trial(None, time_per_size="0.2").replace(iters=None).options(Comm)
    assert comm._iterations(options, typical_s) == iterations
    assert comm._iterations(trial(None).options(Comm), typical_s) == 1  # a given number is kept


@pytest.mark.parametrize(("asked", "measured"), [(None, 10), (2, 10), (25, 25)])
def test_a_pair_is_measured_at_least_ten_times(
    alone: Group, monkeypatch: pytest.MonkeyPatch, asked: int | None, measured: int
) -> None:
    monkeypatch.setattr(dist, "P2POp", lambda *arguments: arguments)
    monkeypatch.setattr(dist, "batch_isend_irecv", lambda transfers: [])
    run = comm.CommRun(
        options=trial(None).replace(iters=asked).options(Comm),
        group=alone,
        device=CPU,
        position=Position(None, 0, 1),
        fault=None,
        measurements=Measurements(),
    )
    assert len(comm._time_pair(run, 64, 1)) == measured
