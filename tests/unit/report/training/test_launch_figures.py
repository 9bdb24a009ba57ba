"""The short figures of one launch."""

import dataclasses
from typing import Any

import pytest

from scalescope.report.training.launch_figures import LaunchFigures, figures_of, main_figure, sample_rate
from scalescope.results.result import RankRecord
from tests.builders.results import make_result, make_trial

TRAINED = make_result(make_trial(batch_size=10), [[0.1] * 10])


def record(**content: Any) -> RankRecord:
    return RankRecord(rank=0, host="here", device="cpu", placement="", **content)


def test_a_training_launch_has_a_step_time_and_samples() -> None:
    figures = figures_of(TRAINED)
    assert figures == LaunchFigures(step_s=0.1, samples_per_s=pytest.approx(100.0))


def test_a_collective_has_the_best_bandwidth_over_sizes() -> None:
    samples = {"all_reduce/out/1000": [0.001], "all_reduce/out/2000": [0.001], "barrier/out/0": [0.001]}
    settings = {"benchmark": "comm", "dtype": "float32", "world_size": 2}
    result = dataclasses.replace(TRAINED, settings=settings, ranks=[record(samples=samples)] * 2)
    assert figures_of(result) == LaunchFigures(busbw_bytes_per_s=pytest.approx(2e6))


def test_memory_is_that_of_the_rank_that_takes_most() -> None:
    ranks = [record(counters={"measured/peak": peak}) for peak in (1 << 20, 3 << 20, None)]
    result = dataclasses.replace(TRAINED, settings={"benchmark": "memory"}, ranks=ranks)
    assert figures_of(result) == LaunchFigures(peak_bytes=3 << 20)


def test_a_trace_has_no_figures() -> None:
    figures = figures_of(dataclasses.replace(TRAINED, settings={"benchmark": "profile"}))
    assert figures is not None
    assert (main_figure([figures]), sample_rate([figures])) == (None, None)


@pytest.mark.parametrize("change", [{"status": "failed"}, {"status": "oom"}, {"ranks": []}])
def test_a_launch_that_did_not_end_well_has_none(change: dict[str, Any]) -> None:
    assert figures_of(dataclasses.replace(TRAINED, **change)) is None


@pytest.mark.parametrize(
    ("launches", "figure", "samples"),
    [
        ([], None, None),
        ([LaunchFigures(step_s=s, samples_per_s=1 / s) for s in (0.2, 0.1, 0.4)], "200 ms", "5.00"),
        ([LaunchFigures(busbw_bytes_per_s=1.25e9)], "1.25 GB/s", None),
        ([LaunchFigures(peak_bytes=3 << 20), LaunchFigures()], "3.00 MiB", None),
    ],
)
def test_medians_over_launches_are_shown(
    launches: list[LaunchFigures], figure: str | None, samples: str | None
) -> None:
    assert (main_figure(launches), sample_rate(launches)) == (figure, samples)
