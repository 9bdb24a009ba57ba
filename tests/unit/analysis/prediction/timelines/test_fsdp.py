"""The timeline of FSDP2: the closed formula where it applies, and what it never beats."""

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.analysis.prediction.profiles import RankProfile, Unit
from scalescope.analysis.prediction.setup import Fitted, Setup, StepTimeline
from scalescope.analysis.prediction.timelines import simulate_fsdp
from tests.builders.profiles import MIB, PerMib, profile_of, profiles, unit

SETUP = Setup(world_size=4, strategy="fsdp")


def simulated(
    profile: RankProfile, per_mib: float, setup: Setup = SETUP, kappa: float | None = None
) -> StepTimeline:
    return simulate_fsdp(profile, PerMib(per_mib), setup, Fitted(overlap_slowdown=kappa))


def names(line: StepTimeline) -> list[str]:
    return [event.name for event in line.events if event.lane == "communication"]


def formula_s(profile: RankProfile, units: Sequence[Unit], per_mib: float, reshards: bool) -> float:
    """AG_1 + Σ max(F_l, AG_{l+1}) + AG_L + Σ max(B_l, AG_{l-1} + RS_{l+1}) + RS_1."""
    comm = [per_mib * part.parameter_bytes / MIB for part in units]
    behind = [*comm[1:], 0.0]
    before = [0.0, *comm[:-1]] if reshards else [0.0] * len(comm)
    forward_s = sum(max(part.forward_s, gather) for part, gather in zip(units, behind, strict=True))
    backward_s = sum(
        max(part.backward_s, gather + reduce)
        for part, gather, reduce in zip(units, before, behind, strict=True)
    )
    again = comm[-1] if reshards else 0.0
    network_and_compute_s = comm[0] + forward_s + again + backward_s + comm[0]
    return profile.input_s + network_and_compute_s + profile.optimizer_s / SETUP.world_size


@settings(max_examples=25)
@given(profiles, st.floats(0.0, 2.0), st.booleans())
def test_the_closed_formula(profile: RankProfile, per_mib: float, reshards: bool) -> None:
    setup = dataclasses.replace(SETUP, reshard_after_forward=reshards)
    line = simulated(profile, per_mib, setup)
    assert line.step_s == pytest.approx(formula_s(profile, profile.units, per_mib, reshards))


def test_short_collectives_are_hidden_but_for_the_first_and_last() -> None:
    profile = profile_of(*[unit("block", 1.0, 2.0)] * 3)
    line = simulated(profile, 0.25, dataclasses.replace(SETUP, reshard_after_forward=False))
    assert line.exposed_s == pytest.approx(2 * 0.25)
    assert names(line) == ["all_gather"] * 3 + ["reduce_scatter"] * 3
    line = simulated(profile, 0.25)
    assert names(line).count("all_gather") == 6
    assert line.exposed_s == pytest.approx(3 * 0.25)
    line = simulated(profile, 0.25, dataclasses.replace(SETUP, backend="gloo"))
    assert line.exposed_s == pytest.approx(9 * 0.25)
    assert line.step_s == pytest.approx(profile.compute_s - 0.75 + 9 * 0.25)


@pytest.mark.parametrize(("reshards", "gathers"), [(None, 3), (True, 4), (False, 2)])
def test_the_root_has_what_is_in_no_unit(reshards: bool | None, gathers: int) -> None:
    """Left alone, it is gathered once: its parameters are needed first when the backward pass begins."""
    whole = profile_of(unit("embedding", 0.0, 0.0, mib=3.0), unit("block", 1.0, 2.0))
    profile = dataclasses.replace(whole, units=whole.units[1:])
    line = simulated(profile, 0.25, dataclasses.replace(SETUP, reshard_after_forward=reshards))
    assert names(line).count("all_gather") == gathers
    assert names(line).count("reduce_scatter") == 2
    first = next(event for event in line.events if event.lane == "communication")
    assert first.size_bytes == 3 * MIB


def test_units_and_what_is_outside_them_take_as_long_as_the_passes() -> None:
    whole = profile_of(unit("block", 1.0, 2.0))
    profile = dataclasses.replace(whole, forward_s=1.5, backward_s=2.5)
    assert simulated(profile, 0.0).step_s == pytest.approx(profile.compute_s - 0.75)
    whole = profile_of(*[unit("block", 1.0, 2.0)] * 2)
    profile = dataclasses.replace(whole, forward_s=1.0)
    assert simulated(profile, 0.0).step_s == pytest.approx(profile.compute_s - 0.75)
    profile = dataclasses.replace(profile_of(unit("block", 1.0, 2.0)), units=())
    line = simulated(profile, 0.5)
    assert line.exposed_s == pytest.approx(1.0)


def test_half_precision_halves_what_is_gathered_and_accumulation_reduces_once() -> None:
    profile = profile_of(unit("block", 1.0, 2.0))
    line = simulated(profile, 0.5, dataclasses.replace(SETUP, fsdp_param_dtype="bf16"))
    sizes = {event.name: event.size_bytes for event in line.events if event.lane == "communication"}
    assert sizes == {"all_gather": MIB // 2, "reduce_scatter": MIB}
    profile = profile_of(*[unit("block", 1.0, 2.0)] * 2)
    line = simulated(profile, 0.25, dataclasses.replace(SETUP, accumulation_steps=3))
    assert names(line).count("all_gather") == 3 * 4
    assert names(line).count("reduce_scatter") == 2


def test_compute_that_communication_slows_takes_longer() -> None:
    profile = profile_of(*[unit("block", 1.0, 2.0)] * 2)
    setup = dataclasses.replace(SETUP, reshard_after_forward=False)
    plain, slowed = simulated(profile, 0.5, setup), simulated(profile, 0.5, setup, kappa=0.5)
    overlapped_s = 0.5 + 0.5  # the second unit's gathering, and its reducing
    assert slowed.step_s == pytest.approx(plain.step_s + 0.5 * overlapped_s)


@settings(max_examples=25)
@given(profiles, st.floats(0.0, 2.0), st.sampled_from(["nccl", "gloo"]), st.sampled_from([None, True, False]))
def test_never_faster_than_compute_or_the_network_alone(
    profile: RankProfile, per_mib: float, backend: str, reshards: bool | None
) -> None:
    setup = dataclasses.replace(SETUP, backend=backend, reshard_after_forward=reshards)
    line = simulated(profile, per_mib, setup)
    compute_s = simulated(profile, 0.0, setup).step_s
    network_s = sum(event.end_s - event.begin_s for event in line.events if event.lane == "communication")
    assert line.step_s >= compute_s - 1e-9
    assert line.step_s >= network_s - 1e-6
    assert line.step_s == pytest.approx(compute_s + line.exposed_s)
    assert line.step_s <= compute_s + network_s + 1e-6
