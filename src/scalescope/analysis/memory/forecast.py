"""What a strategy makes of the memory forecast for one rank, and what other ways to train would save."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from scalescope.catalog.cards import card, names
from scalescope.catalog.traits import MemoryLayout
from scalescope.experiment.trial import Trial

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
    """What changes would save at a batch near the largest that fits, of a peak of so many bytes."""

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
