"""Units: the parts of a model with their times made to sum up to those of the whole step."""

import dataclasses

from scalescope.analysis.prediction.profile import RankProfile, Unit


def fitted_units(profile: RankProfile) -> tuple[Unit, ...]:
    """The profile's units, shortened alike where timing each of them took longer than the whole pass."""
    forward = _at_most(profile.forward_s, sum(unit.forward_s for unit in profile.units))
    backward = _at_most(profile.backward_s, sum(unit.backward_s for unit in profile.units))
    return tuple(
        dataclasses.replace(unit, forward_s=unit.forward_s * forward, backward_s=unit.backward_s * backward)
        for unit in profile.units
    )


def remainder(profile: RankProfile, units: tuple[Unit, ...]) -> Unit:
    """What the model has and does outside its units; of no length where they are all of it."""
    return Unit(
        name="remainder",
        parameter_bytes=max(0, profile.gradient_bytes - sum(unit.parameter_bytes for unit in units)),
        forward_s=_rest(profile.forward_s, sum(unit.forward_s for unit in units)),
        backward_s=_rest(profile.backward_s, sum(unit.backward_s for unit in units)),
    )


def _at_most(whole_s: float, sum_s: float) -> float:
    return whole_s / sum_s if sum_s > whole_s else 1.0


def _rest(whole_s: float, sum_s: float) -> float:
    rest_s = whole_s - sum_s
    return rest_s if rest_s > 1e-9 * whole_s else 0.0
