"""What a strategy makes of the memory forecast for one rank, and what other ways to train would save."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Counters = Mapping[str, float | int | str | None]

RANKS_OF_SAVINGS = (2, 4, 8)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """How many bytes of a rank's peak a change would save; None where nobody knows, with the reason."""

    name: str
    ranks: int | None
    saved_bytes: int | None
    reason: str | None = None


def forecast_of(counters: Counters, variant: str = "as_asked") -> Forecast | None:
    """The forecast a rank has written down for one rank alone."""
    found: dict[str, int] = {}
    for one in dataclasses.fields(Forecast):
        size = counters.get(f"forecast/{variant}/{one.name}")
        if isinstance(size, int):
            found[one.name] = size
    if "parameters" not in found:
        return None
    library = counters.get("measured/library")
    return Forecast(**found | {"library": library if isinstance(library, int) else 0})


def forecast_points(counters: Counters, settings: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(batch, peak) as forecast for batches far larger than the measured one."""
    batches = {int(name.split("/")[2]) for name in counters if name.startswith("forecast/at/")}
    found = []
    for batch in sorted(batches):
        alone = forecast_of(counters, f"at/{batch}")
        if alone is not None:
            whole, _ = with_strategy(alone, settings, unit_of(counters))
            found += [] if whole is None else [(batch, whole.peak)]
    return found


def unit_of(counters: Counters) -> int | None:
    """Parameter bytes of the largest part that FSDP gathers at a time."""
    unit = counters.get("forecast/largest_unit")
    return unit if isinstance(unit, int) else None


def problem_of(counters: Counters) -> str | None:
    """Why there is no forecast."""
    reason = counters.get("forecast/as_asked/problem")
    return None if reason is None else str(reason)


def with_strategy(
    alone: Forecast, settings: Mapping[str, Any], largest_unit: int | None
) -> tuple[Forecast | None, str | None]:
    """The forecast for a rank of the trial's strategy, or why there is none.

    Arithmetic on one rank's forecast. It already holds gradients that stay in DDP's buckets.
    """
    name, ranks = str(settings["strategy"]), int(settings["world_size"])
    if name in ("single", "scratch_ddp"):
        return alone, None
    if name in ("ddp", "zero1"):
        views = settings.get("gradient_as_bucket_view")
        buckets = 0 if views else alone.parameters  # a second copy of all gradients
        own = _share(alone.optimizer, ranks) if name == "zero1" else alone.optimizer
        return dataclasses.replace(alone, strategy=buckets, optimizer=own), None
    if name == "fsdp":
        return _sharded(alone, ranks, largest_unit)
    return None, f"nobody has written down how {name} changes memory"


def _sharded(alone: Forecast, ranks: int, largest_unit: int | None) -> tuple[Forecast | None, str | None]:
    """FSDP: everything that lasts is cut, and the largest block is there as a whole while it computes."""
    if largest_unit is None:
        return None, "the size of FSDP's blocks is unknown"
    cut = {name: _share(getattr(alone, name), ranks) for name in ("parameters", "gradients", "optimizer")}
    return dataclasses.replace(alone, strategy=largest_unit, **cut), None


def _share(size: int, ranks: int) -> int:
    return -(-size // ranks)


def savings_of(counters: Counters, settings: Mapping[str, Any]) -> tuple[Saving, ...]:
    """What each change would save of the peak, one at a time; changes already made are left out."""
    alone = forecast_of(counters)
    if alone is None:
        return ()
    unit = unit_of(counters)
    now, reason = with_strategy(alone, settings, unit)
    found = []
    if settings["strategy"] not in ("fsdp", "pipeline"):
        for ranks in RANKS_OF_SAVINGS:
            cut, why = _sharded(alone, ranks, unit)
            saved = None if now is None or cut is None else now.peak - cut.peak
            found.append(Saving(name="fsdp", ranks=ranks, saved_bytes=saved, reason=why or reason))
    if settings["strategy"] in ("single", "ddp", "scratch_ddp"):
        for ranks in RANKS_OF_SAVINGS:
            saved = alone.optimizer - _share(alone.optimizer, ranks)
            found.append(Saving(name="zero1", ranks=ranks, saved_bytes=saved))
    if settings.get("precision") in ("fp32", "tf32"):
        found.append(_variant(counters, alone, "bf16"))
    found.append(_variant(counters, alone, "checkpointing"))
    return tuple(found)


def _variant(counters: Counters, alone: Forecast, name: str) -> Saving:
    other = forecast_of(counters, name)
    if other is not None:
        return Saving(name=name, ranks=None, saved_bytes=alone.peak - other.peak)
    problem = counters.get(f"forecast/{name}/problem")
    reason = "the model has no blocks that could be checkpointed" if problem is None else str(problem)
    return Saving(name=name, ranks=None, saved_bytes=None, reason=reason)
