"""Stored profile: the counters and tables of a rank record that say what its step consists of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from scalescope.worker.rank_profile.timed_steps import PassTimes, TimedStep
from scalescope.worker.rank_profile.units import UnitMarks

GRADIENTS, UNITS = "gradients", "units"
FAILED = "profile/failed"  # why there is no profile
_DIGITS = 9  # nanoseconds

Row = dict[str, float | int | str | None]


@dataclass(kw_only=True)
class StoredProfile:
    """What goes into the rank record."""

    counters: Row = field(default_factory=dict)
    tables: dict[str, list[Row]] = field(default_factory=dict)


def stored_profile(
    step: TimedStep, steps: int, parameters: Sequence[torch.Tensor], units: UnitMarks | None
) -> StoredProfile:
    """The profile of a typical step; units are left out where their passes could not be marked.

    Without gradients there is no profile: it would promise a step without communication.
    """
    if not step.gradients_s:
        return StoredProfile(counters={FAILED: "no parameter got a gradient in a backward pass"})
    times_s = {
        name: getattr(step, name)
        for name in ("input_s", "forward_s", "backward_s", "optimizer_s", "rest_s", "step_s")
    }
    profile = StoredProfile(
        counters={
            **{f"profile/{name}": round(time_s, _DIGITS) for name, time_s in times_s.items()},
            "profile/steps": steps,
            "profile/micro_batches": step.micro_batches,
        },
        tables={GRADIENTS: _gradient_rows(step.gradients_s, parameters)},
    )
    if units is not None:
        profile.tables[UNITS] = _unit_rows(step, units)
    return profile


def _gradient_rows(ready_s: Mapping[int, float], parameters: Sequence[torch.Tensor]) -> list[Row]:
    """In the order in which they become ready; `parameter` is its number in the model."""
    return [
        {
            "parameter": number,
            "size_bytes": parameters[number].numel() * parameters[number].element_size(),
            "ready_s": round(time_s, _DIGITS),
        }
        for number, time_s in ready_s.items()
    ]


def _unit_rows(step: TimedStep, units: UnitMarks) -> list[Row]:
    """The root first, which is gathered first and has what no unit has; then as the forward pass goes."""
    known = {number: step.units.get(number, PassTimes()) for number in units.numbers}
    rest = PassTimes(
        forward_s=max(0.0, step.forward_s - sum(unit.forward_s for unit in known.values())),
        backward_s=max(0.0, step.backward_s - sum(unit.backward_s for unit in known.values())),
    )
    rows = [(units.root(), rest), *((units.unit(number), times) for number, times in known.items())]
    return [
        {
            "name": unit.name,
            "parameter_bytes": unit.parameter_bytes,
            "forward_s": round(times.forward_s, _DIGITS),
            "backward_s": round(times.backward_s, _DIGITS),
            "activation_bytes": unit.activation_bytes,
        }
        for unit, times in rows
    ]
