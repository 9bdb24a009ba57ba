"""The main figures of a launch, for tables that fill up during a run."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scalescope.analysis.collectives import collective_rows
from scalescope.analysis.launches import summarise
from scalescope.analysis.statistics import median_of_known
from scalescope.report.numbers import data_rate, data_size, in_ms, significant
from scalescope.results.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFigures:
    """The main figures of one launch; None for what its benchmark does not measure."""

    step_s: float | None = None
    samples_per_s: float | None = None
    busbw_bytes_per_s: float | None = None  # the best of all sizes
    peak_bytes: float | None = None  # of the rank that takes most


def figures_of(result: Result) -> LaunchFigures | None:
    """The figures of a successful launch; None for others."""
    if result.status != "ok" or not result.ranks:
        return None
    read = _READERS.get(result.trial.benchmark_card.launch_figure)
    return LaunchFigures() if read is None else read(result)


def _step_time(result: Result) -> LaunchFigures:
    launch = summarise(result)
    return LaunchFigures(step_s=statistics.median(launch.step_times_s), samples_per_s=launch.samples_per_s)


def _bus_bandwidth(result: Result) -> LaunchFigures:
    rates = [row.busbw_bytes_per_s for row in collective_rows([result]) if row.size_bytes]
    return LaunchFigures(busbw_bytes_per_s=max(rates, default=None))


def _peak_memory(result: Result) -> LaunchFigures:
    peaks = [record.counters.get("measured/peak") for record in result.ranks]
    return LaunchFigures(peak_bytes=max((float(peak) for peak in peaks if peak), default=None))


# How to read the figure that a benchmark's card names.
_READERS: dict[str | None, Callable[[Result], LaunchFigures]] = {
    "step time": _step_time,
    "bus bandwidth": _bus_bandwidth,
    "peak memory": _peak_memory,
}


def main_figure(launches: Sequence[LaunchFigures]) -> str | None:
    """The median over launches of what the benchmark is about: time per step, bus bandwidth or memory."""
    step_s = median_of_known(launch.step_s for launch in launches)
    busbw = median_of_known(launch.busbw_bytes_per_s for launch in launches)
    peak = median_of_known(launch.peak_bytes for launch in launches)
    if step_s is not None:
        return in_ms(step_s)
    if busbw is not None:
        return data_rate(busbw)
    return None if peak is None else data_size(peak)


def sample_rate(launches: Sequence[LaunchFigures]) -> str | None:
    """The median over launches of the samples per second."""
    rate = median_of_known(launch.samples_per_s for launch in launches)
    return None if rate is None else significant(rate)
