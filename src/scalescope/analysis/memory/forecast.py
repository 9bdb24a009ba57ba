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
    if "parameters" not in sizes:
        return None
    library = counters.get("measured/library")
    return Forecast(**sizes | {"library": library if isinstance(library, int) else 0})


def forecast_points(counters: Counters, settings: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(batch, peak) as forecast for batches far larger than the measured one."""
    batches = {int(name.split("/")[2]) for name in counters if name.startswith("forecast/at/")}
    points = []
    for batch in sorted(batches):
        alone = forecast_of(counters, f"at/{batch}")
        if alone is not None:
            whole, _ = with_strategy(alone, settings, gathered_of(counters))
            points += [] if whole is None else [(batch, whole.peak)]
    return points


def gathered_of(counters: Counters) -> int | None:
    """Parameter bytes that FSDP has whole at a time, at most."""
    size = counters.get("forecast/gathered")
    return size if isinstance(size, int) else None


def problem_of(counters: Counters) -> str | None:
    """Why there is no forecast."""
    return _why_not(counters, "as_asked")


def with_strategy(
    alone: Forecast, settings: Mapping[str, Any], gathered: int | None
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
        with_buckets = dataclasses.replace(alone, strategy=buckets)
        return (_zero1(with_buckets, ranks) if name == "zero1" else with_buckets), None
    if name == "fsdp":
        return _sharded(alone, ranks, gathered, settings)
    return None, f"nobody has written down how {name} changes memory"


def _zero1(alone: Forecast, ranks: int) -> Forecast:
    return dataclasses.replace(alone, optimizer=_share(alone.optimizer, ranks))


def _sharded(
    alone: Forecast, ranks: int, gathered: int | None, settings: Mapping[str, Any]
) -> tuple[Forecast | None, str | None]:
    """FSDP at most: everything that lasts is cut; blocks are whole while they compute, or from then on."""
    if gathered is None:
        return None, "the size of FSDP's blocks is unknown"
    whole = gathered if settings.get("reshard_after_forward", True) else alone.parameters
    if settings.get("fsdp_param_dtype") == "bf16":
        whole //= 2
    cut = {name: _share(getattr(alone, name), ranks) for name in ("parameters", "gradients", "optimizer")}
    return dataclasses.replace(alone, strategy=whole, **cut), None


def _share(size: int, ranks: int) -> int:
    return -(-size // ranks)


def savings_of(counters: Counters, settings: Mapping[str, Any]) -> Savings | None:
    """What each change would save of the peak, one at a time; changes already made are left out."""
    alone, batch = forecast_of(counters, "now"), counters.get("forecast/other_ways_batch")
    if alone is None or not isinstance(batch, int):
        return None
    now, _ = with_strategy(alone, settings, gathered_of(counters))
    if now is None:
        return None
    changes = [] if settings["strategy"] == "fsdp" else _by_fsdp(counters, alone, now)
    if settings["strategy"] in ("single", "ddp", "scratch_ddp") and alone.optimizer:
        changes += _by_zero1(counters, alone, settings)
    if settings.get("precision") in ("fp32", "tf32"):
        changes.append(_variant(counters, alone, "bf16"))
    changes.append(_variant(counters, alone, "checkpointing"))
    return Savings(batch=batch, peak=now.peak, has_state=alone.optimizer > 0, changes=tuple(changes))


def _by_fsdp(counters: Counters, alone: Forecast, now: Forecast) -> list[Saving]:
    savings = []
    for ranks in RANKS_OF_SAVINGS:
        cut, reason = _sharded(alone, ranks, gathered_of(counters), {})
        saved = None if cut is None else now.peak - cut.peak
        savings.append(Saving(name="fsdp", ranks=ranks, saved_bytes=saved, reason=reason))
    return savings


def _by_zero1(counters: Counters, alone: Forecast, settings: Mapping[str, Any]) -> list[Saving]:
    """ZeRO-1 works within DDP, whose buckets hold the gradients also while there are activations."""
    kept = forecast_of(counters, "kept") if settings["strategy"] == "single" else alone
    reason = None if kept is not None else _why_not(counters, "kept") or "it was not computed"
    return [
        Saving(
            name="zero1",
            ranks=ranks,
            saved_bytes=None if kept is None else alone.peak - _zero1(kept, ranks).peak,
            reason=reason,
        )
        for ranks in RANKS_OF_SAVINGS
    ]


def _variant(counters: Counters, alone: Forecast, name: str) -> Saving:
    other = forecast_of(counters, name)
    if other is not None:
        return Saving(name=name, ranks=None, saved_bytes=alone.peak - other.peak)
    reason = _why_not(counters, name) or "the model has no blocks that could be checkpointed"
    return Saving(name=name, ranks=None, saved_bytes=None, reason=reason)


def _why_not(counters: Counters, variant: str) -> str | None:
    problem = counters.get(f"forecast/{variant}/problem")
    return None if problem is None else str(problem)
