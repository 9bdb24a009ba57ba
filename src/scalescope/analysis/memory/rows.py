"""Memory trials read back, one row for each: measured bytes of the rank that takes most, and the forecast."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.analysis.memory.capacity import room_of
from scalescope.analysis.memory.forecast import (
    Forecast,
    forecast_of,
    gathered_of,
    problem_of,
    with_strategy,
)
from scalescope.experiment.same_job import BATCH, job_key
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result

# Measured with small models: libraries and the allocator add 4 to 35 MiB to a process, and not the same at
# every batch. Resident memory below this says little about the tensors in it.
LEAST_ON_CPU = 64 << 20
_IGNORED = BATCH | {"purpose"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """One measured batch: bytes of the rank that takes most, beside the forecast."""

    trial: Trial
    status: str
    reason: str | None
    counters: Mapping[str, float | int | str | None]
    room: int | None  # how much a rank's peak may become
    forecast: Forecast | None
    no_forecast: str | None

    @property
    def batch(self) -> int:
        return self.trial.micro_batch_size

    @property
    def all_samples(self) -> int | None:
        """How many samples the data has for a rank, where that is less than the batch."""
        return _number(self.counters.get("data/samples"))

    @property
    def samples_per_rank(self) -> int | None:
        """How many samples the data has for a rank; None where they do not end, or it does not say."""
        samples = (_number(self.counters.get("data/samples_per_rank")), self.all_samples)
        return min((number for number in samples if number is not None), default=None)

    @property
    def is_search(self) -> bool:
        return self.trial.purpose == "search"

    def measured(self, name: str) -> int | None:
        """Bytes of a category; None where it could not be measured."""
        return _number(self.counters.get(f"measured/{name}"))

    def at_peak(self, name: str) -> int | None:
        """Bytes of a category at the moment of the peak, where the allocator was traced."""
        return _number(self.counters.get(f"trace/{name}"))

    @property
    def peak(self) -> int | None:
        return self.measured("peak")

    @property
    def highest(self) -> int | None:
        """The most that was ever taken; the first steps may need more than those that follow."""
        sizes = [size for size in (self.peak, self.measured("peak_of_first_steps")) if size is not None]
        return max(sizes, default=None)

    @property
    def is_too_small_to_compare(self) -> bool:
        """Whether libraries and the allocator take more of a process than the tensors that are forecast."""
        return not self.trial.on_gpu and self.forecast is not None and self.forecast.peak < LEAST_ON_CPU

    @property
    def difference(self) -> float | None:
        """By which share of the measured peak the forecast is off; positive where it is too high."""
        if self.forecast is None or not self.peak:
            return None
        return self.forecast.peak / self.peak - 1.0


def memory_rows(results: Iterable[Result]) -> tuple[MemoryRow, ...]:
    """A row for every memory trial, by kind of job and batch; the last launch decides how it ended."""
    grouped: dict[str, list[Result]] = {}
    for result in results:
        if result.trial.benchmark == "memory":
            grouped.setdefault(result.trial_id, []).append(result)
    rows = [_row(members) for members in grouped.values()]
    return tuple(sorted(rows, key=lambda row: (row.trial.world_size, memory_job(row.trial), row.batch)))


def memory_job(trial: Trial) -> str:
    """What trials of the same job have in common, whatever their batch."""
    return job_key(trial, ignoring=_IGNORED)


def _row(members: list[Result]) -> MemoryRow:
    good = [member for member in members if member.status == "ok"]
    trial = members[0].trial
    last = good[-1] if good else members[-1]
    counters = _most(good)
    forecast, reason = None, problem_of(counters)
    alone = forecast_of(counters)
    if alone is not None:
        forecast, reason = with_strategy(alone, trial, gathered_of(counters))
    rooms = [room for result in good if (room := room_of(result.ranks)) is not None]
    return MemoryRow(
        trial=trial,
        status=last.status,
        reason=last.reason,
        counters=counters,
        room=min(rooms, default=None),
        forecast=forecast,
        no_forecast=reason,
    )


def _most(results: list[Result]) -> dict[str, float | int | str | None]:
    """Every counter of the rank that has most of it; free memory where there is least."""
    counters: dict[str, float | int | str | None] = {}
    for record in (record for result in results for record in result.ranks):
        for name, value in record.counters.items():
            before = counters.get(name)
            pick: Callable[..., Any] = min if name == "device/free" else max
            numbers = isinstance(before, int | float) and isinstance(value, int | float)
            if before is None or numbers:
                counters[name] = pick(before, value) if numbers else value
    return counters


def _number(value: float | str | None) -> int | None:
    return value if isinstance(value, int) else None
