"""Activity: what a rank's host did during the timed steps of a launch, beside computing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scalescope.experiment.trial import Trial
from scalescope.results.result import HOST_PARTS, RankRecord, Result, number_in, undisturbed

_HOST = "host/"
_GENERATIONS = 3

Row = Mapping[str, float | int | str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageCollection:
    """Python's collector in the timed steps."""

    pause_s: float  # per step
    longest_s: float
    collections: tuple[int, ...]  # by generation, in all steps


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorCalls:
    """What a GPU's caching allocator asked of the driver, per step, and what it held afterwards."""

    retries: float | None = None  # it was full, and freed what it had cached
    allocations: float | None = None  # cudaMalloc
    releases: float | None = None  # cudaFree
    reserved_bytes: float | None = None
    inactive_split_bytes: float | None = None  # unused parts of blocks, which cannot be returned

    @property
    def fragmented(self) -> float | None:
        """The share of reserved memory that is lost between blocks."""
        if not self.reserved_bytes or self.inactive_split_bytes is None:
            return None
        return self.inactive_split_bytes / self.reserved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBreak:
    """A line at which torch.compile could not go on and began another graph."""

    reason: str
    file: str  # empty where the line is torch's or ours
    line: int
    function: str
    count: int  # how often it was met while compiling

    @property
    def location(self) -> str:
        return f"{self.file}:{self.line}" if self.file else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompilation:
    """A function that was compiled again, for other arguments."""

    reason: str
    function: str
    file: str
    line: int
    in_window: bool
    time_s: float

    @property
    def location(self) -> str:
        return f"{self.file}:{self.line}" if self.file else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerCalls:
    """What torch.compile did before and during the timed steps."""

    inside_s: float  # per step
    compilations_inside: int
    recompilations_before: int
    recompilations_inside: int
    given_up: int = 0  # recompilations that failed: the function runs uncompiled from then on
    graph_breaks: tuple[GraphBreak, ...] = ()
    recompilations: tuple[Recompilation, ...] = ()  # the longest first


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWork:
    """What a rank's batches held, padding included."""

    elements: float  # per step
    tokens: float | None  # per step; None where batches are not text
    variation: float  # of elements between steps: their standard deviation over their mean
    by_step: tuple[float, ...] = ()  # elements; empty where all steps have the same


@dataclass(frozen=True, slots=True, kw_only=True)
class LongStep:
    """A step that took far longer than the rank's median, in seconds beyond it."""

    step: int  # from 0
    beyond_s: float
    parts_s: Mapping[str, float]  # the host's, by part of the step
    gc_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankActivity:
    """One rank, in seconds per step unless said otherwise; None is unknown."""

    rank: int
    step_times_s: Sequence[float] = ()  # of every timed step
    host_s: Mapping[str, float] = field(default_factory=dict)  # the host's time by part of the step
    garbage: GarbageCollection | None = None
    allocator: AllocatorCalls | None = None  # on a GPU
    compiler: CompilerCalls | None = None  # where something was compiled
    work: RankWork | None = None
    long_steps: tuple[LongStep, ...] | None = None


def activities_of(results: Iterable[Result], trial: Trial) -> tuple[tuple[RankActivity, ...], ...]:
    """Of each rank, in each undisturbed launch of a trial."""
    members = [r for r in results if r.status == "ok" and r.trial_id == trial.trial_id]
    return tuple(tuple(map(activity_of, result.ranks)) for result in undisturbed(members))


def activity_of(record: RankRecord) -> RankActivity:
    """What the record of a timed launch holds."""
    return RankActivity(
        rank=record.rank,
        step_times_s=record.samples.get("step_time_s", ()),
        host_s={
            part: value for part in HOST_PARTS if (value := record.number(f"{_HOST}{part}_s")) is not None
        },
        garbage=_garbage(record),
        allocator=_allocator(record),
        compiler=_compiler(record),
        work=_work(record),
        long_steps=_long_steps(record),
    )


def _count(values: Row, name: str) -> int:
    return int(number_in(values, name) or 0)


def _text(values: Row, name: str) -> str:
    return str(values.get(name) or "")


def _per_step(record: RankRecord, name: str) -> float | None:
    total = record.number(name)
    steps = len(record.samples.get("step_time_s", ()))
    return None if total is None or not steps else total / steps


def _garbage(record: RankRecord) -> GarbageCollection | None:
    pause_s = _per_step(record, "gc/pause_s")
    if pause_s is None:
        return None
    return GarbageCollection(
        pause_s=pause_s,
        longest_s=record.number("gc/longest_s") or 0.0,
        collections=tuple(_count(record.counters, f"gc/collections_{n}") for n in range(_GENERATIONS)),
    )


def _allocator(record: RankRecord) -> AllocatorCalls | None:
    calls = AllocatorCalls(
        retries=_per_step(record, "allocator/retries"),
        allocations=_per_step(record, "allocator/device_allocations"),
        releases=_per_step(record, "allocator/device_releases"),
        reserved_bytes=record.number("allocator/reserved_bytes"),
        inactive_split_bytes=record.number("allocator/inactive_split_bytes"),
    )
    return None if calls == AllocatorCalls() else calls


def _compiler(record: RankRecord) -> CompilerCalls | None:
    inside_s = _per_step(record, "compile/inside_s")
    if inside_s is None:
        return None
    counters, tables = record.counters, record.tables
    return CompilerCalls(
        inside_s=inside_s,
        compilations_inside=_count(counters, "compile/compilations_inside"),
        recompilations_before=_count(counters, "compile/recompilations_before"),
        recompilations_inside=_count(counters, "compile/recompilations_inside"),
        given_up=_count(counters, "compile/given_up"),
        graph_breaks=tuple(map(_graph_break, tables.get("graph_breaks", ()))),
        recompilations=tuple(map(_recompilation, tables.get("recompilations", ()))),
    )


def _graph_break(row: Row) -> GraphBreak:
    return GraphBreak(
        reason=_text(row, "reason"),
        file=_text(row, "file"),
        line=_count(row, "line"),
        function=_text(row, "function"),
        count=_count(row, "count"),
    )


def _recompilation(row: Row) -> Recompilation:
    return Recompilation(
        reason=_text(row, "reason"),
        function=_text(row, "function"),
        file=_text(row, "file"),
        line=_count(row, "line"),
        in_window=bool(row.get("in_window")),
        time_s=number_in(row, "time_s") or 0.0,
    )


def _work(record: RankRecord) -> RankWork | None:
    elements = record.number("work/elements")
    if not elements:
        return None
    return RankWork(
        elements=elements,
        tokens=record.number("work/tokens"),
        variation=record.number("work/variation") or 0.0,
        by_step=tuple(record.samples.get("work/elements", ())),
    )


def _long_steps(record: RankRecord) -> tuple[LongStep, ...] | None:
    rows = record.tables.get("long_steps")
    return None if rows is None else tuple(map(_long_step, rows))


def _long_step(row: Row) -> LongStep:
    return LongStep(
        step=_count(row, "step"),
        beyond_s=number_in(row, "beyond_s") or 0.0,
        parts_s={
            part: number_in(row, name) or 0.0 for part in HOST_PARTS if (name := f"{part}_beyond_s") in row
        },
        gc_s=number_in(row, "gc_s") or 0.0,
    )
