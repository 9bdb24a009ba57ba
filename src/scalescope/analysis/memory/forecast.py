"""How much memory a job needs, part by part, beside what was measured."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from scalescope.analysis.memory.capacity import Bracket, FittedLine, fit_line, next_batch, room_of
from scalescope.catalog.cards import card, names
from scalescope.catalog.traits import MemoryLayout
from scalescope.experiment.explanations import BATCH, job_key
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from scalescope.results.run import Run

# ---- What a strategy makes of the memory forecast for one rank, and what other ways to train would save


Counters = Mapping[str, float | int | str | None]

RANKS_OF_SAVINGS = (2, 4, 8)
_LONGEST_BATCH = 18  # digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Bytes that live at the peak of a step, by what they are for."""

    parameters: int
    buffers: int
    gradients: int
    optimizer: int
    activations: int
    temporary: int
    inputs: int
    library: int = 0
    strategy: int = 0  # buckets, or a block's parameters gathered from all ranks

    @property
    def peak(self) -> int:
        return sum(dataclasses.astuple(self))


_REQUIRED = {
    field.name for field in dataclasses.fields(Forecast) if field.default is dataclasses.MISSING
}  # of what a rank writes down


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """How many bytes of a rank's peak a change would save; None where it is not known, with the reason."""

    name: str
    ranks: int | None
    saved_bytes: int | None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """What changes would save at a batch near the largest that fits, with a peak of this many bytes."""

    batch: int
    peak: int
    has_state: bool  # the optimizer's, which ZeRO-1 cuts
    changes: tuple[Saving, ...]


def forecast_of(counters: Counters, variant: str = "as_asked") -> Forecast | None:
    """The forecast a rank has written down for one rank alone."""
    sizes: dict[str, int] = {}
    for field in dataclasses.fields(Forecast):
        size = counters.get(f"forecast/{variant}/{field.name}")
        if isinstance(size, int):
            sizes[field.name] = size
    if not set(sizes) >= _REQUIRED:
        return None
    library = counters.get("measured/library")
    return Forecast(**sizes | {"library": library if isinstance(library, int) else 0})


def forecast_points(counters: Counters, trial: Trial) -> list[tuple[int, int]]:
    """(batch, peak) as forecast for batches far larger than the measured one."""
    parts = (name.split("/") for name in counters if name.startswith("forecast/at/"))
    batches = {int(part[2]) for part in parts if part[2].isdecimal() and len(part[2]) <= _LONGEST_BATCH}
    points = []
    for batch in sorted(batches):
        alone = forecast_of(counters, f"at/{batch}")
        if alone is not None:
            whole, _ = with_strategy(alone, trial, gathered_of(counters))
            points += [] if whole is None else [(batch, whole.peak)]
    return points


def gathered_of(counters: Counters) -> int | None:
    """Parameter bytes that are whole at a time, at most, where blocks are gathered from all ranks."""
    size = counters.get("forecast/gathered")
    return size if isinstance(size, int) else None


def problem_of(counters: Counters) -> str | None:
    """Why there is no forecast."""
    return _why_not(counters, "as_asked")


def with_strategy(alone: Forecast, trial: Trial, gathered: int | None) -> tuple[Forecast | None, str | None]:
    """The forecast for a rank of the trial's strategy, or why there is none."""
    layout = trial.memory_layout
    if layout is None:
        return None, f"there is no memory formula for strategy {trial.strategy}"
    return _with_layout(alone, layout, trial.world_size, gathered)


def _with_layout(
    alone: Forecast, layout: MemoryLayout, ranks: int, gathered: int | None
) -> tuple[Forecast | None, str | None]:
    """Arithmetic on one rank's forecast, which already holds gradients that stay in buckets."""
    extra = alone.parameters * (layout.copies_gradients + layout.keeps_first_buckets)
    if layout.gathers != "nothing":
        if gathered is None:
            return None, "the size of the model's blocks is unknown"
        whole = gathered if layout.gathers == "block" else alone.parameters
        extra += whole // 2 if layout.gathers_16_bit else whole
    shares = {state: -(-getattr(alone, state) // ranks) for state in layout.sharded}
    return dataclasses.replace(alone, strategy=extra, **shares), None


def savings_of(counters: Counters, trial: Trial) -> Savings | None:
    """What each change would save of the peak, one at a time; changes already made are left out."""
    alone, batch = forecast_of(counters, "now"), counters.get("forecast/other_ways_batch")
    layout = trial.memory_layout
    if alone is None or layout is None or not isinstance(batch, int):
        return None
    now, _ = with_strategy(alone, trial, gathered_of(counters))
    if now is None:
        return None
    changes: list[Saving] = []
    for name in names("strategies"):
        changes += _by_strategy(name, counters, layout, alone, now)
    if trial.has_setting("precision") and trial.precision in ("fp32", "tf32"):
        changes.append(_variant(counters, alone, "bf16"))
    changes.append(_variant(counters, alone, "checkpointing"))
    return Savings(batch=batch, peak=now.peak, has_state=alone.optimizer > 0, changes=tuple(changes))


def _by_strategy(
    name: str, counters: Counters, current: MemoryLayout, alone: Forecast, now: Forecast
) -> list[Saving]:
    """What changing to a strategy would save; empty where it cuts nothing that is not cut already."""
    layout: MemoryLayout | None = card("strategies", name).saving_layout
    if layout is None:
        return []
    if not any(getattr(alone, state) for state in layout.sharded if state not in current.sharded):
        return []
    # Buckets hold the gradients also while there are activations; without them a rank drops some before.
    starts_keeping = layout.keeps_gradients and not current.keeps_gradients
    base = forecast_of(counters, "kept") if starts_keeping else alone
    if base is None:
        reason = _why_not(counters, "kept") or "it was not computed"
        return [Saving(name=name, ranks=ranks, saved_bytes=None, reason=reason) for ranks in RANKS_OF_SAVINGS]
    if layout.keeps_gradients:
        layout = dataclasses.replace(
            layout,
            copies_gradients=current.copies_gradients,
            keeps_first_buckets=current.keeps_first_buckets,
        )
    savings = []
    for ranks in RANKS_OF_SAVINGS:
        changed, why_not = _with_layout(base, layout, ranks, gathered_of(counters))
        saved = None if changed is None else now.peak - changed.peak
        savings.append(Saving(name=name, ranks=ranks, saved_bytes=saved, reason=why_not))
    return savings


def _variant(counters: Counters, alone: Forecast, name: str) -> Saving:
    other = forecast_of(counters, name)
    if other is not None:
        return Saving(name=name, ranks=None, saved_bytes=alone.peak - other.peak)
    reason = _why_not(counters, name) or "the model has no blocks that could be checkpointed"
    return Saving(name=name, ranks=None, saved_bytes=None, reason=reason)


def _why_not(counters: Counters, variant: str) -> str | None:
    problem = counters.get(f"forecast/{variant}/problem")
    return None if problem is None else str(problem)


# ---- Memory trials read back, one row for each: measured bytes of the rank that takes most, and the forecast


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


# ---- What each kind of job takes with the batch, and the largest batch it can hold


_AGREEMENT = 0.25
# Resident memory comes in pages, and the allocator keeps what it likes.
_VISIBLE_ON_CPU = 4 << 20
_ABOVE_CHANCE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGroup:
    """One job at several batches: how its memory grows, and the largest batch that fits."""

    rows: tuple[MemoryRow, ...]  # those that were measured closely, smallest batch first
    line: FittedLine | None
    line_is_forecast: bool
    forecast_line: FittedLine | None
    activations: FittedLine | None
    capacity: int | None
    bracket: Bracket
    tries: int
    ended_otherwise: tuple[MemoryRow, ...]  # neither measured nor out of memory
    savings: Savings | None

    @property
    def trial(self) -> Trial:
        return self.rows[0].trial

    @property
    def is_divided(self) -> bool:
        """Whether a batch has to divide evenly; not every batch can then be tried."""
        return bool(self.trial.strategy_card.divides_batch)

    @property
    def is_bounded(self) -> bool:
        """Whether running out harms no other process: a host's memory is never filled without a limit."""
        return self.trial.on_gpu or self.trial.memory_limit is not None

    @property
    def is_searched(self) -> bool:
        """Whether batches are tried."""
        return self.trial.searches_batch and self.is_bounded and not self.is_divided

    @property
    def is_tried(self) -> bool:
        """Whether the largest batch is known from launches and not from a line."""
        return self.is_searched or self.bracket.fails is not None or self.bracket.is_all

    @property
    def calculated_batch(self) -> int | None:
        """The largest batch by the line, and no more samples than there are."""
        if self.line is None or self.capacity is None:
            return None
        batch = self.line.largest_batch(self.capacity)
        most = self.bracket.most
        return batch if batch is None or most is None else min(batch, most)

    @property
    def holds_all_samples(self) -> bool:
        """Whether the data set ends before the memory does, by the line."""
        return self.bracket.most is not None and self.calculated_batch == self.bracket.most

    @property
    def largest_measured(self) -> MemoryRow | None:
        return next((row for row in reversed(self.rows) if row.status == "ok"), None)

    def next_try(self) -> Trial | None:
        """The next launch in the search for the largest batch; None once it is over."""
        if not self.is_searched:
            return None
        batch = next_batch(self.bracket, self.calculated_batch, self.tries)
        if batch is None:
            return None
        return self.trial.replace(purpose="search", batch_size=batch, global_batch_size=None)


def memory_groups(run: Run) -> tuple[MemoryGroup, ...]:
    """The jobs of a run, each with all of its batches."""
    grouped: dict[str, list[MemoryRow]] = {}
    for row in memory_rows(run.results):
        grouped.setdefault(memory_job(row.trial), []).append(row)
    machine = run.environment.get("machine", {})
    host = machine.get("memory_bytes") if isinstance(machine, dict) else None
    groups = [_group(rows, host if isinstance(host, int) else None) for rows in grouped.values()]
    return tuple(group for group in groups if group is not None)


def _group(rows: list[MemoryRow], host_bytes: int | None) -> MemoryGroup | None:
    looked_at = tuple(row for row in rows if not row.is_search)
    if not looked_at:
        return None
    whole = [row for row in rows if row.all_samples is None]
    measured = _seen_line(whole)
    points = [points for row in looked_at if (points := forecast_points(row.counters, row.trial))]
    forecast = fit_line(points[-1]) if points else None
    on_gpu = looked_at[0].trial.on_gpu
    by_forecast = forecast is not None and not _agrees(measured, forecast, on_gpu=on_gpu)
    held = [
        (row.batch, size)
        for row in whole
        if not row.is_search and (size := row.measured("activations")) is not None
    ]
    savings = [saving for row in looked_at if (saving := savings_of(row.counters, row.trial)) is not None]
    return MemoryGroup(
        rows=looked_at,
        line=forecast if by_forecast else measured,
        line_is_forecast=by_forecast,
        forecast_line=forecast,
        activations=fit_line(held),
        capacity=_capacity(rows, host_bytes),
        bracket=_bracket(rows),
        tries=len(rows) - len(looked_at),
        ended_otherwise=tuple(row for row in rows if row.status not in ("ok", "oom")),
        savings=savings[-1] if savings else None,
    )


def _seen_line(rows: list[MemoryRow]) -> FittedLine | None:
    """The line through what was measured; on the CPU only where it rises by more than chance."""
    points = [(row.batch, row.highest) for row in rows if row.highest is not None]
    if len(points) > 1 and not rows[0].trial.on_gpu:
        sizes = [size for _, size in sorted(points)]
        chance = max(before - after for before, after in pairwise(sizes))  # more samples take no less
        if sizes[-1] - sizes[0] < max(_VISIBLE_ON_CPU, _ABOVE_CHANCE * chance):
            return None
    return fit_line(points)


def _agrees(measured: FittedLine | None, forecast: FittedLine, *, on_gpu: bool) -> bool:
    """Whether measured batches were large enough to see what a sample costs: the peak of small ones may lie
    in the optimizer, and on the CPU libraries and the allocator hide it."""
    if measured is None or measured.slope <= 0 or measured.base < 0:
        return False
    if not on_gpu and measured.largest * measured.slope < LEAST_ON_CPU:
        return False
    if measured.largest * measured.slope >= measured.base:
        return True
    return abs(measured.slope / forecast.slope - 1.0) <= _AGREEMENT if forecast.slope > 0 else True


def _bracket(rows: list[MemoryRow]) -> Bracket:
    """What was seen to fit and what not; a batch above all samples was a batch of all samples."""
    fails = min((row.batch for row in rows if row.status == "oom"), default=None)
    tried = [row.all_samples or row.batch for row in rows if row.status == "ok"]
    # Luck decides near the edge: above a batch that failed, none is said to fit.
    fits = max((batch for batch in tried if fails is None or batch < fails), default=0)
    samples = [row.samples_per_rank for row in rows if row.samples_per_rank is not None]
    return Bracket(fits=fits, fails=fails, most=min(samples, default=None))


def _capacity(rows: list[MemoryRow], host_bytes: int | None) -> int | None:
    """How much a rank's peak may become: its limit, what the GPU still has, or its share of the host."""
    trial = rows[0].trial
    limit = trial.memory_limit
    if limit is not None:
        return limit + max((row.measured("library") or 0 for row in rows), default=0)
    rooms = [row.room for row in rows if row.room is not None]
    if rooms:
        return min(rooms)
    return None if trial.on_gpu or host_bytes is None else host_bytes // trial.world_size
