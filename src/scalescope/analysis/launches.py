"""One launch of a training trial, summarised from the raw samples of its ranks."""

import math
import statistics
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime

from scalescope.analysis.epochs import Epoch, epochs_of
from scalescope.analysis.events import Note, StepSeries
from scalescope.analysis.stability import drifting_ranks
from scalescope.analysis.statistics import mean_of_known, median_of_known
from scalescope.analysis.telemetry import TelemetrySummary, telemetry_summary
from scalescope.experiment.observed import replicas_of
from scalescope.experiment.trial import Trial
from scalescope.results.ranks import AGAIN, OBSERVED
from scalescope.results.result import EVENTS, RankRecord, Result, number_in

_OUTLIER_MADS = 10 * 1.4826  # MAD times 1.4826 estimates a standard deviation
# A calm GPU repeats steps to 0.01 %; without a floor every second launch would have "outliers" of 0.2 %.
_LEAST_DEVIATION = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSummary:
    """One launch of a trial, in a few figures."""

    step_times_s: tuple[float, ...]
    window_s: float
    samples: int | None  # None is unknown, which it is of some commands
    started_s: float
    rank_means_s: tuple[float, ...]  # of each rank separately: they differ where nothing makes them wait
    drifting_ranks: tuple[int, ...]  # whose steps changed during the window beyond their own noise
    outliers: tuple[tuple[int | None, int], ...]  # (rank, measured step); no rank where several share it
    product_changes: tuple[float | None, ...]  # of each rank's bare matrix product, ln(after ÷ before)
    matmul_flops_per_s: float | None
    epochs: tuple[Epoch, ...] = ()
    losses: tuple[float, ...] = ()  # of every measured step, the mean over ranks
    warmup_losses: tuple[float, ...] | None = None  # of all steps before; None where they were not recorded
    warmup_steps: int | None = None
    is_seeded: bool | None = None  # of a command: whether its script set torch's seed; None is unknown
    has_bad_loss: bool = False  # of a command: whether a loss was not finite
    own_optimizer: str | None = None  # what an own workload brought along; the settings did not decide then
    wrapper: str | None = None  # of a command's model: ddp, fsdp2, fsdp1, deepspeed or none; None is unknown
    peak_memory_bytes: int | None = None  # of the rank that took most; None where it was not counted
    flops_per_sample: float | None = None  # counted by the ranks, where no formula knows
    telemetry: TelemetrySummary = field(default_factory=TelemetrySummary)
    is_disturbed: bool = False  # by other load
    hook_s: float | None = None  # per step, of the hook that replaces communication; the mean over ranks
    soak_reached: bool | None = (
        None  # whether nothing changed any more before the window; None without a soak
    )
    clock_change: float | None = None  # of the GPU that changed most, from the start of the window to its end
    hosts: tuple[str, ...] = ()  # of each rank
    round: Hashable = None  # launches made next to each other; None where they are made one by one
    round_effect: float = 0.0  # what its round adds to the logarithm of its speed
    again_step_s: float | None = None  # the mean step after what explains it, in the same start
    gpu: str | None = None  # the model's name, of the first rank
    threads_per_rank: int | None = None  # of torch, the most of any rank; None where it was not recorded
    series: StepSeries = field(default_factory=StepSeries)  # of one rank, in which events are looked for

    @property
    def samples_per_s(self) -> float | None:
        return None if self.samples is None else self.samples / self.window_s

    @property
    def log_rate(self) -> float:
        """y = ln(samples ÷ window time): the quantity that statistics are made of; of steps where samples are
        unknown."""
        rate = self.samples_per_s
        return self.log_step_rate if rate is None else math.log(rate)

    @property
    def log_step_rate(self) -> float:
        """ln(steps ÷ window time)."""
        return -math.log(self.mean_step_s)

    @property
    def mean_step_s(self) -> float:
        return self.window_s / len(self.step_times_s)


def summarise(result: Result, round_: Hashable = None) -> LaunchSummary:
    """Combine the ranks: a step takes as long as its slowest rank."""
    trial = result.trial
    per_rank = [_times_s(record) for record in result.ranks]
    steps = tuple(max(times) for times in zip(*per_rank, strict=True))
    return LaunchSummary(
        step_times_s=steps,
        window_s=max(math.fsum(times) for times in per_rank),
        samples=_samples(result, trial, len(steps)),
        started_s=datetime.fromisoformat(result.started_at).timestamp(),
        rank_means_s=tuple(math.fsum(times) / len(times) for times in per_rank),
        drifting_ranks=drifting_ranks(per_rank),
        outliers=_outliers(steps, per_rank),
        product_changes=tuple(map(_product_change, result.ranks)),
        hosts=tuple(record.host for record in result.ranks),
        matmul_flops_per_s=_matmul_rate(result),
        losses=_losses(result, "loss"),
        warmup_losses=_losses(result, "warmup_loss") or None,
        warmup_steps=len(result.ranks[0].samples.get("warmup_step_time_s", ())) or None,
        is_seeded=_is_seeded(result),
        has_bad_loss=any(record.whole(f"{OBSERVED}first_bad_loss") is not None for record in result.ranks),
        own_optimizer=_own_optimizer(result),
        wrapper=_wrapper(result),
        peak_memory_bytes=_most(result, "peak_memory_bytes"),
        epochs=epochs_of(result),
        flops_per_sample=result.ranks[0].number("model_flops_per_sample"),
        telemetry=telemetry_summary(result.telemetry),
        is_disturbed=result.is_disturbed,
        hook_s=_hook_s(result),
        clock_change=_clock_change(result),
        soak_reached=_soak_reached(result),
        round=round_,
        again_step_s=result.ranks[0].number(AGAIN),
        gpu=_text(result, "gpu"),
        threads_per_rank=_most(result, "threads"),
        series=_series(result),
    )


def _samples(result: Result, trial: Trial, steps: int) -> int | None:
    """Samples in the window: as the user of a command says; counted where the last batch of an epoch was
    smaller, or by a command; else calculated. None where a command does not show them."""
    of_one_rank = trial.options(trial.workload_card).samples_per_step if trial.is_command else None
    if of_one_rank is not None:
        return int(steps * of_one_rank * trial.world_size)
    counted = [record.counters.get("measured_samples") for record in result.ranks]
    replicas = trial.replicas if not trial.is_command else replicas_of([r.counters for r in result.ranks])
    if replicas is not None and all(isinstance(count, int) for count in counted):
        samples = sum(int(count or 0) for count in counted) * replicas // trial.world_size
        return samples if samples > 0 else None
    return None if trial.is_command else steps * trial.samples_per_step


def _series(result: Result) -> StepSeries:
    """Of the first rank that noted something, or of the slowest: where ranks wait for each other, a step that
    is long on one of them is long on the others too, or their next one is."""
    noting = [record for record in result.ranks if record.tables.get(EVENTS)]
    record = noting[0] if noting else max(result.ranks, key=lambda record: math.fsum(_times_s(record)))
    notes = (
        Note(step=int(number_in(row, "step") or 0), kind=str(row["kind"]), time_s=number_in(row, "time_s"))
        for row in record.tables.get(EVENTS, ())
    )
    return StepSeries(
        times_s=tuple(_times_s(record)), notes=tuple(notes), input_wait_s=record.number("host/input_s")
    )


def _times_s(record: RankRecord) -> list[float]:
    return record.samples["step_time_s"]


def _outliers(steps: tuple[float, ...], per_rank: list[list[float]]) -> tuple[tuple[int | None, int], ...]:
    """Steps far from the median, each with its rank; none is ever left out.

    Ranks that synchronise share a stall, and step times alone cannot tell whose it was.
    """
    middle = statistics.median(steps)
    deviation = statistics.median(abs(step - middle) for step in steps)
    far_s = _OUTLIER_MADS * max(deviation, _LEAST_DEVIATION * middle)
    far = [n for n, step in enumerate(steps) if abs(step - middle) > far_s]
    return tuple((_only_rank([abs(times[n] - middle) > far_s for times in per_rank]), n) for n in far)


def _only_rank(is_far: list[bool]) -> int | None:
    return is_far.index(True) if sum(is_far) == 1 else None


def _product_change(record: RankRecord) -> float | None:
    """How much faster a bare matrix product ran after the window than before, as a logarithm."""
    before, after = (record.number(f"matmul_flops_per_s_{when}") for when in ("before", "after"))
    if before is None or after is None:
        return None
    return math.log(after / before) if before > 0 and after > 0 else None


def _clock_change(result: Result) -> float | None:
    changes = []
    for record in result.ranks:
        before, after = (record.number(f"sm_clock_hz_{when}") for when in ("before", "after"))
        if before is not None and after is not None and before > 0:
            changes.append(after / before - 1.0)
    return max(changes, key=abs, default=None)


def _hook_s(result: Result) -> float | None:
    return mean_of_known(record.number("no_comm_hook_s_per_step") for record in result.ranks)


def _soak_reached(result: Result) -> bool | None:
    reached = [record.counters.get("soak_reached") for record in result.ranks]
    return None if None in reached else all(reached)


def _matmul_rate(result: Result) -> float | None:
    return median_of_known(
        record.number(f"matmul_flops_per_s_{when}") for record in result.ranks for when in ("before", "after")
    )


def _losses(result: Result, name: str) -> tuple[float, ...]:
    """The mean over ranks; of a command with something removed, losses mean nothing."""
    if result.trial.is_command and result.trial.is_ablation:
        return ()
    per_rank = [record.samples.get(name, []) for record in result.ranks]
    if result.trial.is_command:  # of a pipeline only the last rank has a loss
        per_rank = [losses for losses in per_rank if losses]
    if not per_rank or not all(per_rank) or len(set(map(len, per_rank))) > 1:
        return ()
    return tuple(statistics.fmean(step) for step in zip(*per_rank, strict=True))


def _is_seeded(result: Result) -> bool | None:
    known = [record.whole(f"{OBSERVED}seeded") for record in result.ranks]
    return None if None in known or not known else all(known)


def _most(result: Result, name: str) -> int | None:
    """A counter of the rank that has most; None where no rank has it."""
    counts = (record.whole(name) for record in result.ranks)
    return max((count for count in counts if count is not None), default=None)


def _own_optimizer(result: Result) -> str | None:
    return _text(result, "own_optimizer") or _text(result, f"{OBSERVED}optimizers")


def _wrapper(result: Result) -> str | None:
    return _text(result, f"{OBSERVED}wrapper")


def _text(result: Result, name: str) -> str | None:
    """A counter that all ranks should agree in."""
    texts = {record.counters.get(name) for record in result.ranks} - {None}
    return str(min(texts, key=str)) if texts else None
