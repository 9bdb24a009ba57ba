"""Recording: what a launch of the benchmark `breakdown` tells about the step of one rank on a GPU."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scalescope.experiment.explanations import records_breakdown, timed_training_of
from scalescope.results.result import RankRecord, Result, number_in, undisturbed
from scalescope.results.traces import step_parts
from scalescope.results.traces.products import FORMATS, PADDED_PRODUCTS
from scalescope.results.traces.replay import REPLAYS
from scalescope.results.traces.step_parts import PREFIX, STEP

SYNCHRONIZATIONS = "synchronizations"
_OFTEN = 0.5  # per step
_USUAL_HOST = 0.5  # of its times under a profiler, which slows a host by 1.2 to 3 times
_SAME = 0.03  # steps that differ by less are the same
_PRODUCTS = "matmul_flops_per_s/"
_MOST_UNLINKED = 0.05  # of the time in products: beyond that too much is not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSite:
    """A line of code at which the host waits for the GPU."""

    file: str  # of the first frame outside torch
    line: int
    function: str
    code: str  # the text of the line; empty where it could not be read
    operation: str  # what waits, such as aten::item
    per_step: float
    time_s: float | None = None  # of the host on this line per step, without a profiler
    from_trace: bool = False  # found in the trace alone: only the operation is known

    @property
    def location(self) -> str:
        """`model.py:31`; empty where only the operation is known."""
        return f"{self.file}:{self.line}" if self.file else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedProduct:
    """A matrix product whose shapes do not fill rows of matrix units, timed alone, unchanged and padded."""

    operation: str
    shapes: str
    number_format: str
    odd: str  # the extents that do not fit
    per_step: float
    step_s: float  # all of them, in the recorded steps
    time_s: float
    padded_s: float

    @property
    def saved_s(self) -> float:
        """Per step: what padding saved when it was timed, of the time in recorded steps."""
        return self.step_s * max(0.0, 1.0 - self.padded_s / self.time_s) if self.time_s > 0.0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStep:
    """The recorded step run again as a model of host and GPU, with a host of some speed: how long it would
    take if something were otherwise. Estimates."""

    step_s: float
    without_sync_s: float  # if the host never waited for the GPU
    fast_host_s: float  # if launching took no time, too
    without_allocation_s: float  # if no memory were requested from the driver or given back
    fast_gpu_s: float  # if kernels took no time
    fused_optimizer_s: float  # if few kernels updated all parameters
    without_recomputation_s: float  # if no activation were computed again
    host_factor: float = 1.0  # on the recorded times of the host

    @property
    def sync_cost_s(self) -> float:
        return max(0.0, self.step_s - self.without_sync_s)

    @property
    def allocation_cost_s(self) -> float:
        return max(0.0, self.step_s - self.without_allocation_s)

    @property
    def optimizer_cost_s(self) -> float:
        return max(0.0, self.step_s - self.fused_optimizer_s)

    @property
    def recomputation_cost_s(self) -> float:
        return max(0.0, self.step_s - self.without_recomputation_s)

    @property
    def host_cost_s(self) -> float:
        """What slow launches cost beyond waiting for the GPU: together they are the step less that of a fast
        host."""
        return max(0.0, self.without_sync_s - self.fast_host_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFlops:
    """Floating-point operations of one rank's step, counted by the shapes of its products."""

    model: float  # what the model needs
    device: float  # what the GPU computes: with activations that are computed again
    by_format: Mapping[str, float]  # of the device
    unlinked: float  # the share of time in products with unknown shapes

    @property
    def is_whole(self) -> bool:
        return self.unlinked <= _MOST_UNLINKED

    @property
    def number_format(self) -> str:
        """In which most of the operations are done."""
        return max(self.by_format, key=lambda name: self.by_format[name])


def fitted(replays: Sequence[ReplayedStep], step_s: float) -> ReplayedStep | None:
    """The replay with the host of a step that was timed: between the two that are nearest to it.

    A step that is shorter than all of them has the fastest host, a longer one the slowest. Where the GPU
    decides how long a step takes, hosts of many speeds fit, and a usual one is taken.
    """
    ordered = sorted(replays, key=lambda replay: replay.host_factor)
    if not ordered:
        return None
    usual = _between(ordered, lambda replay: replay.host_factor, _USUAL_HOST)
    if usual is not None and (1.0 - _SAME) * step_s <= usual.step_s <= step_s:
        return usual
    longer = next((n for n, replay in enumerate(ordered) if replay.step_s > step_s), len(ordered))
    if longer in (0, len(ordered)):
        return ordered[0 if longer == 0 else -1]
    return _between(ordered[longer - 1 : longer + 1], lambda replay: replay.step_s, step_s)


def _between(
    ordered: Sequence[ReplayedStep], key: Callable[[ReplayedStep], float], value: float
) -> ReplayedStep | None:
    """Between the two replays around a value of a key; None outside of all."""
    pairs = ((low, high) for low, high in itertools.pairwise(ordered) if key(low) <= value <= key(high))
    low, high = next(pairs, (None, None))
    if low is None or high is None:
        return None
    share = (value - key(low)) / ((key(high) - key(low)) or 1.0)
    names = [field.name for field in dataclasses.fields(ReplayedStep)]
    values = {name: (1.0 - share) * getattr(low, name) + share * getattr(high, name) for name in names}
    return ReplayedStep(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecording:
    """One rank's recorded steps, in seconds per step unless said otherwise; None is unknown."""

    rank: int
    parts: Mapping[str, float]  # by the names of results.traces.step_parts; their sum is the recorded step
    recorded_step_s: float
    plain_step_s: float | None  # of steps without a profiler in the same launch
    kernels: float | None = None  # per step
    kernel_median_s: float | None = None
    matrix_product_s: float | None = None  # in kernels of products and convolutions
    matrix_unit_s: float | None = None  # of that, in kernels that use matrix units, by their names
    convolution_s: float | None = None
    layout_s: float | None = None  # in kernels that reorder images between NCHW and NHWC
    elementwise_s: float | None = None  # in kernels that compute element by element, outside the optimizer
    elementwise_kernels: float | None = None  # of these, per step
    optimizer_kernels: float | None = None  # per step
    pageable_copies: float | None = None  # from or to memory that is not page-locked, per step
    pageable_bytes: float | None = None
    pageable_s: float | None = None
    allocations: float | None = None  # cudaMalloc per step
    releases: float | None = None  # cudaFree per step
    recomputed_s: float | None = None  # in kernels that compute activations again in the backward pass
    replays: tuple[ReplayedStep, ...] = ()  # with hosts of several speeds
    padded_products: tuple[PaddedProduct, ...] = ()
    flops: StepFlops | None = None
    product_flops_per_s: Mapping[str, float] | None = None  # of a bare matrix product, by number format
    busy_waits_s: float | None = None  # of the host, waiting for a GPU that is busy: no line is to blame
    syncs: tuple[SyncSite, ...] = ()

    @property
    def step_s(self) -> float:
        """A step without a profiler, where one was measured beside."""
        return self.plain_step_s or self.recorded_step_s

    @property
    def idle_s(self) -> float:
        """Idle time of the GPU in a step without a profiler: what kernels and copies leave of it."""
        return max(0.0, self.step_s - self.recorded_step_s + self._recorded_idle_s)

    @property
    def _recorded_idle_s(self) -> float:
        return math.fsum(self.parts[name] for name in step_parts.IDLE)

    @property
    def frequent_waits(self) -> tuple[SyncSite, ...]:
        """The lines that wait in most steps; rarer ones are logging."""
        return tuple(site for site in self.syncs if site.per_step >= _OFTEN)

    def wait_cost_s(self, step_s: float) -> float:
        """What the lines that wait in most steps cost of a timed step, an estimate: the idle time after their
        waits, or the host's time on them while the GPU had nothing to do, whichever is longer."""
        if not self.frequent_waits:
            return 0.0
        recorded_s = self._recorded_idle_s
        idle_s = max(0.0, step_s - self.recorded_step_s + recorded_s)
        share = self.parts[step_parts.IDLE_SYNC] / recorded_s if recorded_s else 0.0
        replay = fitted(self.replays, step_s)
        saved_s = 0.0 if replay is None else replay.sync_cost_s
        return min(max(saved_s, share * idle_s, self._idle_on_lines_s), idle_s)

    @property
    def _idle_on_lines_s(self) -> float:
        times_s = [site.time_s for site in self.frequent_waits if site.time_s is not None]
        if not times_s or self.busy_waits_s is None:
            return 0.0
        return max(0.0, math.fsum(times_s) - self.busy_waits_s)


def recordings_of(results: Iterable[Result]) -> dict[str, StepRecording]:
    """By the id of the timed trial, what its first recorded rank tells."""
    by_trial: dict[str, StepRecording] = {}
    recorded = [result for result in results if result.status == "ok" and records_breakdown(result.trial)]
    for result in undisturbed(recorded):
        for recording in recordings(result)[:1]:
            by_trial.setdefault(timed_training_of(result.trial).trial_id, recording)
    return by_trial


def recordings(result: Result) -> tuple[StepRecording, ...]:
    """What each rank of a launch recorded; ranks without steps are left out."""
    known = (_recording(record) for record in result.ranks)
    return tuple(recording for recording in known if recording is not None)


def _recording(record: RankRecord) -> StepRecording | None:
    parts = {name: _mean(record, name) for name in step_parts.PARTS}
    step_s = _mean(record, STEP)
    if not step_s:
        return None
    return StepRecording(
        rank=record.rank,
        parts=parts,
        recorded_step_s=step_s,
        plain_step_s=record.number("plain_step_s"),
        kernels=record.number("kernels_per_step"),
        kernel_median_s=record.number("kernel_median_s"),
        matrix_product_s=record.number("matrix_product_s"),
        matrix_unit_s=record.number("matrix_unit_s"),
        convolution_s=record.number("convolution_s"),
        layout_s=record.number("layout_s"),
        elementwise_s=record.number("elementwise_s"),
        elementwise_kernels=record.number("elementwise_kernels"),
        optimizer_kernels=record.number("optimizer_kernels"),
        pageable_copies=record.number("pageable_copies"),
        pageable_bytes=record.number("pageable_bytes"),
        pageable_s=record.number("pageable_s"),
        allocations=record.number("allocations_per_step"),
        releases=record.number("releases_per_step"),
        recomputed_s=record.number("recomputed_s"),
        replays=_replays(record),
        padded_products=_padded(record),
        flops=_flops(record),
        product_flops_per_s=_products(record),
        busy_waits_s=record.number("busy_waits_s"),
        syncs=tuple(_site(row) for row in record.tables.get(SYNCHRONIZATIONS, ())),
    )


def _mean(record: RankRecord, name: str) -> float:
    values = record.samples.get(f"{PREFIX}{name}", ())
    return statistics.fmean(values) if values else 0.0


def _replays(record: RankRecord) -> tuple[ReplayedStep, ...]:
    """All rows that are whole."""
    names = [field.name for field in dataclasses.fields(ReplayedStep)]
    rows = [{name: number_in(row, name) for name in names} for row in record.tables.get(REPLAYS, ())]
    known = [{name: value for name, value in row.items() if value is not None} for row in rows]
    return tuple(ReplayedStep(**row) for row in known if len(row) == len(names))


def _padded(record: RankRecord) -> tuple[PaddedProduct, ...]:
    """All rows that are whole."""
    rows = []
    for row in record.tables.get(PADDED_PRODUCTS, ()):
        per_step, step_s = number_in(row, "per_step"), number_in(row, "step_s")
        time_s, padded_s = number_in(row, "time_s"), number_in(row, "padded_s")
        if per_step is None or step_s is None or time_s is None or padded_s is None:
            continue
        rows.append(
            PaddedProduct(
                operation=str(row.get("operation")),
                shapes=str(row.get("shapes")),
                number_format=str(row.get("number_format")),
                odd=str(row.get("odd")),
                per_step=per_step,
                step_s=step_s,
                time_s=time_s,
                padded_s=padded_s,
            )
        )
    return tuple(rows)


def _flops(record: RankRecord) -> StepFlops | None:
    model, device = record.number("model_flops"), record.number("device_flops")
    linked_s, unlinked_s = record.number("linked_product_s"), record.number("unlinked_product_s")
    counts = {name: record.number(f"device_flops/{name}") for name in FORMATS}
    by_format = {name: count for name, count in counts.items() if count}
    if not model or not device or not linked_s or unlinked_s is None or not by_format:
        return None
    unlinked = unlinked_s / (linked_s + unlinked_s)
    return StepFlops(model=model, device=device, by_format=by_format, unlinked=unlinked)


def _products(record: RankRecord) -> dict[str, float]:
    rates = {name: record.number(f"{_PRODUCTS}{name}") for name in FORMATS}
    return {name: rate for name, rate in rates.items() if rate is not None}


def _site(row: Mapping[str, float | int | str | None]) -> SyncSite:
    return SyncSite(
        file=str(row.get("file") or ""),
        line=int(row.get("line") or 0),
        function=str(row.get("function") or ""),
        code=str(row.get("code") or ""),
        operation=str(row.get("operation") or ""),
        per_step=float(row.get("per_step") or 0.0),
        time_s=number_in(row, "time_s"),
        from_trace=bool(row.get("from_trace")),
    )
