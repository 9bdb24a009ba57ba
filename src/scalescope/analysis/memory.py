"""Memory trials read back: rows of measured and forecast bytes, and what each kind of job can hold."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.analysis.memory_fit import Bracket, Line, fit_line, next_batch
from scalescope.analysis.memory_forecast import (
    Forecast,
    Saving,
    forecast_of,
    forecast_points,
    problem_of,
    savings_of,
    unit_of,
    with_strategy,
)
from scalescope.experiment.trial import Trial, identity
from scalescope.results.result import Result
from scalescope.results.run import Run

_NOT_OF_GROUP = ("batch_size", "global_batch_size", "purpose")
_AGREEMENT = 0.25
_CUT_BY_BATCH = ("pipeline",)  # a batch that does not divide evenly would be another job


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """One measured batch: bytes of the rank that takes most, beside the forecast."""

    trial: Trial
    status: str
    reason: str | None
    counters: Mapping[str, float | int | str | None]
    forecast: Forecast | None
    no_forecast: str | None

    @property
    def batch(self) -> int:
        return self.trial.micro_batch_size

    def measured(self, name: str) -> int | None:
        """Bytes of a category; None where it could not be measured."""
        value = self.counters.get(f"measured/{name}")
        return value if isinstance(value, int) else None

    def at_peak(self, name: str) -> int | None:
        """Bytes of a category at the moment of the peak, where the allocator was traced."""
        value = self.counters.get(f"trace/{name}")
        return value if isinstance(value, int) else None

    @property
    def peak(self) -> int | None:
        return self.measured("peak")

    @property
    def highest(self) -> int | None:
        """The most that was ever taken; the first steps may need more than those that follow."""
        sizes = [one for one in (self.peak, self.measured("peak_of_first_steps")) if one is not None]
        return max(sizes, default=None)

    @property
    def difference(self) -> float | None:
        """By which share of the measured peak the forecast is off; positive where it is too high."""
        if self.forecast is None or not self.peak:
            return None
        return self.forecast.peak / self.peak - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGroup:
    """One job at several batches: how its memory grows, and the largest batch that fits."""

    rows: tuple[MemoryRow, ...]  # those that were measured closely, smallest batch first
    line: Line | None
    line_is_forecast: bool
    forecast_line: Line | None
    activations: Line | None
    capacity: int | None
    bracket: Bracket
    tries: int
    savings: tuple[Saving, ...]

    @property
    def trial(self) -> Trial:
        return self.rows[0].trial

    @property
    def is_searched(self) -> bool:
        """Whether batches are tried: never where that would fill a host's memory."""
        settings = self.trial.settings
        bounded = settings["device"] == "cuda" or settings["memory_limit"] is not None
        return bool(settings["search"]) and bounded and settings["strategy"] not in _CUT_BY_BATCH

    @property
    def calculated_batch(self) -> int | None:
        """The largest batch by the line alone."""
        if self.line is None or self.capacity is None:
            return None
        return self.line.largest_batch(self.capacity)

    @property
    def largest_measured(self) -> MemoryRow | None:
        return next((row for row in reversed(self.rows) if row.status == "ok"), None)

    def next_try(self) -> Trial | None:
        """The launch that tells most about the largest batch; None where nothing is left to learn."""
        if not self.is_searched:
            return None
        batch = next_batch(self.bracket, self.calculated_batch, self.tries)
        if batch is None:
            return None
        return self.trial.replace(purpose="search", batch_size=batch, global_batch_size=None)


def memory_rows(results: Iterable[Result]) -> tuple[MemoryRow, ...]:
    """A row for every memory trial, by kind of job and batch; the last launch decides how it ended."""
    grouped: dict[str, list[Result]] = {}
    for result in results:
        if result.settings["benchmark"] == "memory":
            grouped.setdefault(result.trial_id, []).append(result)
    rows = [_row(members) for members in grouped.values()]
    return tuple(sorted(rows, key=lambda row: (row.trial.world_size, _group_key(row.trial), row.batch)))


def _row(members: list[Result]) -> MemoryRow:
    good = [one for one in members if one.status == "ok"]
    trial = Trial(settings=members[0].settings)
    last = good[-1] if good else members[-1]
    counters = _most(good)
    forecast, reason = None, problem_of(counters)
    alone = forecast_of(counters)
    if alone is not None:
        forecast, reason = with_strategy(alone, trial.settings, unit_of(counters))
    return MemoryRow(
        trial=trial,
        status=last.status,
        reason=last.reason,
        counters=counters,
        forecast=forecast,
        no_forecast=reason,
    )


def _most(results: list[Result]) -> dict[str, float | int | str | None]:
    """Every counter of the rank that has most of it; free memory where there is least."""
    found: dict[str, float | int | str | None] = {}
    for record in (record for result in results for record in result.ranks):
        for name, value in record.counters.items():
            before = found.get(name)
            pick: Callable[..., Any] = min if name == "device/free" else max
            numbers = isinstance(before, int | float) and isinstance(value, int | float)
            if before is None or numbers:
                found[name] = pick(before, value) if numbers else value
    return found


def _group_key(trial: Trial) -> str:
    kept = {name: one for name, one in identity(trial.settings).items() if name not in _NOT_OF_GROUP}
    return json.dumps(kept, sort_keys=True)


def memory_groups(run: Run) -> tuple[MemoryGroup, ...]:
    """The jobs of a run, each with all of its batches."""
    grouped: dict[str, list[MemoryRow]] = {}
    for row in memory_rows(run.results):
        grouped.setdefault(_group_key(row.trial), []).append(row)
    machine = run.environment.get("machine", {})
    host = machine.get("memory_bytes") if isinstance(machine, dict) else None
    groups = [_group(rows, host if isinstance(host, int) else None) for rows in grouped.values()]
    return tuple(group for group in groups if group is not None)


def _group(rows: list[MemoryRow], host_bytes: int | None) -> MemoryGroup | None:
    looked_at = tuple(row for row in rows if row.trial.settings["purpose"] == "measure")
    if not looked_at:
        return None
    measured = fit_line([(row.batch, row.highest) for row in rows if row.highest is not None])
    best = max((row for row in looked_at if row.status == "ok"), key=lambda row: row.batch, default=None)
    forecast = None if best is None else fit_line(forecast_points(best.counters, best.trial.settings))
    by_forecast = forecast is not None and not _agrees(measured, forecast)
    held = [(row.batch, size) for row in looked_at if (size := row.measured("activations")) is not None]
    ok = [row for row in rows if row.status == "ok"]
    fails = min((row.batch for row in rows if row.status == "oom"), default=None)
    # Luck decides near the edge: above a batch that failed, none is said to fit.
    fits = max((row.batch for row in ok if fails is None or row.batch < fails), default=0)
    return MemoryGroup(
        rows=looked_at,
        line=forecast if by_forecast else measured,
        line_is_forecast=by_forecast,
        forecast_line=forecast,
        activations=fit_line(held),
        capacity=_capacity(looked_at[0].trial, ok, host_bytes),
        bracket=Bracket(fits=fits, fails=fails),
        tries=len(rows) - len(looked_at),
        savings=() if best is None else savings_of(best.counters, best.trial.settings),
    )


def _agrees(measured: Line | None, forecast: Line) -> bool:
    """Whether measured batches were large enough to see what a sample costs: the peak of small ones may lie
    in the optimizer, and pages hide it on the CPU."""
    if measured is None or measured.slope <= 0:
        return False
    if measured.largest * measured.slope >= measured.base:
        return True
    return abs(measured.slope / forecast.slope - 1.0) <= _AGREEMENT if forecast.slope > 0 else True


def _capacity(trial: Trial, rows: list[MemoryRow], host_bytes: int | None) -> int | None:
    """How much a rank's peak may become: its limit, what the GPU still has, or its share of the host."""
    limit = trial.settings["memory_limit"]
    library = max((row.measured("library") or 0 for row in rows), default=0)
    if limit is not None:
        return int(limit) + library
    if trial.device == "cuda":
        room = [
            free + reserved
            for row in rows
            if isinstance(free := row.counters.get("device/free"), int)
            and (reserved := row.measured("reserved")) is not None
        ]
        return min(room, default=None)
    return None if host_bytes is None else host_bytes // trial.world_size
