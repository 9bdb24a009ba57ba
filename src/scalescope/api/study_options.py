"""Arguments of measuring calls that are not settings, with the bounds that their flags have."""

from collections.abc import Sequence
from typing import Any

from scalescope.catalog.setting import threshold_from
from scalescope.errors import BadInput
from scalescope.studies.trace import Profiling
from scalescope.studies.tuning.tune import TuneStudy, levers_from


def profiling_of(steps: int) -> Profiling:
    """A trace of this many steps of all ranks."""
    return Profiling(steps=_whole_number("profile_steps", steps, 1, 100))


def tune_study(
    levers: str | Sequence[str],
    threshold: str,
    combine: bool,
    verify_loss: int | None,
    keep_numerics: bool,
) -> TuneStudy:
    """The study of `tune` with its own options."""
    words = (levers,) if isinstance(levers, str) else tuple(levers)
    steps = None if verify_loss is None else _whole_number("verify_loss", verify_loss, 8, 1_000_000)
    return TuneStudy(
        levers=levers_from(words),
        threshold=threshold_from(threshold, "threshold="),
        combine=combine,
        verify_loss=steps,
        keep_numerics=keep_numerics,
    )


def _whole_number(name: str, value: Any, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadInput(f"{name}=: expected a whole number from {low} to {high:,}, got {value!r}")
    return value
