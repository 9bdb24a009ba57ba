"""What each kind of job takes with the batch, and the largest batch it can hold."""

from dataclasses import dataclass
from itertools import pairwise

from scalescope.analysis.memory.fit import Bracket, FittedLine, fit_line, next_batch
from scalescope.analysis.memory.forecast import Savings, forecast_points, savings_of
from scalescope.analysis.memory.rows import LEAST_ON_CPU, MemoryRow, memory_job, memory_rows
from scalescope.experiment.trial import Trial
from scalescope.results.run import Run

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
        """Whether a batch has to divide evenly, so that not every batch can be tried."""
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
