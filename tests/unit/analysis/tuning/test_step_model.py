"""The step model: what levers promise follows from the shares of the parts that they change."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.analysis.tuning.step_model import Gain, LeverEffect, Parts, StepModel, parts_of_step

NOTHING: frozenset[str] = frozenset()
EFFECTS = {
    "bf16": LeverEffect(factors={"products": 0.5}),
    "workers": LeverEffect(factors={"load": 0.25}),
    "hook": LeverEffect(factors={"communication": 0.5}),
    "graphs": LeverEffect(factors={"host": 0.2}),
    "nothing": LeverEffect(factors={}),
    "format": LeverEffect(company=frozenset({"bf16"}), together={"products": 0.8}),
}


def model(parts: Parts, **others: Parts) -> StepModel:
    """A model of a baseline, and of launches with one lever."""
    known = {NOTHING: parts, **{frozenset({name}): shown for name, shown in others.items()}}
    return StepModel(parts_of=known.get, effects=EFFECTS)


def speedup(parts: Parts, *levers: str) -> float:
    return math.exp(model(parts).gain(frozenset(levers)).mean)


COMPUTE = parts_of_step(products_share=0.6, optimizer_share=0.1)


def test_a_lever_gives_what_the_share_of_its_part_allows() -> None:
    assert speedup(COMPUTE, "bf16") == pytest.approx(1.0 / 0.7)
    half = parts_of_step(products_share=0.3, optimizer_share=0.1)
    assert speedup(half, "bf16") == pytest.approx(1.0 / 0.85)
    assert speedup(parts_of_step(communication_share=0.4), "hook") == pytest.approx(1.0 / 0.8)
    assert speedup(COMPUTE, "hook") == 1.0
    assert speedup(COMPUTE, "format") == 1.0
    assert speedup(COMPUTE, "format", "bf16") == pytest.approx(1.0 / (0.4 + 0.6 * 0.5 * 0.8))


def test_the_host_is_the_limit_of_faster_products() -> None:
    waiting = parts_of_step(busy_share=0.4)
    assert waiting["host"] == 1.0
    assert speedup(waiting, "bf16") == 1.0
    assert speedup(waiting, "graphs") == pytest.approx(1.0 / 0.4)
    assert speedup(waiting, "graphs", "bf16") > speedup(waiting, "graphs")


def test_loading_matters_only_where_somebody_waits_for_it() -> None:
    assert speedup(COMPUTE, "workers") == 1.0
    starving = parts_of_step(input_share=0.5)
    assert starving["load"] == 1.0
    assert speedup(starving, "workers") == pytest.approx(2.0)  # then computing is the limit
    assert speedup(starving, "bf16") == 1.0  # and before that, loading is


def test_gains_are_relative_to_what_levers_are_added_to() -> None:
    both = model(COMPUTE).gain(frozenset({"bf16", "format"}))
    first = model(COMPUTE).gain(frozenset({"bf16"}))
    then = model(COMPUTE).gain(frozenset({"bf16", "format"}), frozenset({"bf16"}))
    assert both.mean == pytest.approx(first.mean + then.mean)
    limited = {**parts_of_step(busy_share=0.5)}
    shown = model(COMPUTE, bf16=limited)
    assert shown.gain(frozenset({"bf16", "format"}), frozenset({"bf16"})).mean == 0.0
    assert shown.gain(frozenset({"bf16", "graphs"}), frozenset({"bf16"})).mean == pytest.approx(math.log(2.0))


def test_what_is_known_of_a_lever_makes_its_gain_less_doubtful() -> None:
    assert model(COMPUTE).gain(frozenset({"nothing"})) == Gain(0.0, 0.0)
    assert model(COMPUTE).gain(frozenset({"hook"})).deviation < 1e-9
    unknown = model(COMPUTE).gain(frozenset({"somebody's lever"}))
    assert unknown.mean == 0.0
    assert unknown.deviation > 0.05
    effects = {**EFFECTS, "fp16": LeverEffect(factors={"products": 0.45})}
    known = StepModel(parts_of={NOTHING: COMPUTE}.get, effects=effects)
    replacing = known.gain(frozenset({"fp16"}), frozenset({"bf16"}))
    assert 0.0 < replacing.mean < 0.1
    assert replacing.deviation > 0.1 * math.log(1.0 / 0.7)


def test_the_share_of_the_host_is_read_from_a_launch_that_it_limited() -> None:
    shown = model(COMPUTE, bf16=parts_of_step(busy_share=0.5))
    bf16 = frozenset({"bf16"})
    assert shown.host_share(bf16, NOTHING, 0.8) == pytest.approx(0.8)
    assert shown.host_share(NOTHING, NOTHING, 1.0) is None  # the device is the limit there
    assert shown.host_share(frozenset({"hook"}), NOTHING, 1.0) is None  # nothing is known of it
    less = shown.gain(bf16, NOTHING, host=0.8)
    assert math.exp(less.mean) == pytest.approx(1.0 / 0.8)


def test_parts_are_shares_of_the_step() -> None:
    parts = parts_of_step(input_share=0.2, communication_share=0.3, busy_share=0.4)
    device = sum(parts[name] for name in ("products", "kernels", "optimizer"))
    assert device == pytest.approx(0.4)
    assert parts["host"] == pytest.approx(0.5)  # what is neither input nor communication
    assert parts["load"] == pytest.approx(0.7)
    assert parts["communication"] == 0.3
    assert parts_of_step(busy_share=5.0)["products"] <= 1.0


SHARES = st.floats(0.0, 1.0)
LEVERS = st.frozensets(st.sampled_from(sorted(EFFECTS)))


@settings(max_examples=30)
@given(
    shares=st.fixed_dictionaries(dict.fromkeys(("input_share", "communication_share"), SHARES)),
    known=st.fixed_dictionaries(
        {name: st.none() | SHARES for name in ("busy_share", "products_share", "optimizer_share")}
    ),
    levers=LEVERS,
    base=LEVERS,
)
def test_gains_are_finite_whatever_a_launch_showed(
    shares: dict[str, float], known: dict[str, float | None], levers: frozenset[str], base: frozenset[str]
) -> None:
    parts = parts_of_step(**shares, **known)
    assert all(-1e-12 <= share <= 2.0 for share in parts.values())
    gain = model(parts).gain(levers, base)
    assert math.isfinite(gain.mean) and math.isfinite(gain.deviation) and gain.deviation >= 0.0
    assert math.isfinite(model(parts).gain(NOTHING, levers).mean)


def test_a_measurement_moves_what_is_expected_by_how_sure_it_is() -> None:
    expected = Gain(0.1, 0.05)
    assert expected.given(0.3, 0.0) == Gain(0.3, 0.0)
    assert Gain(0.1, 0.0).given(0.3, 0.1) == Gain(0.1, 0.0)
    equal = expected.given(0.3, 0.05)
    assert equal.mean == pytest.approx(0.2)
    assert equal.deviation == pytest.approx(0.05 / math.sqrt(2.0))
    assert expected.given(0.3, 0.5).mean < equal.mean < expected.given(0.3, 0.01).mean
    assert Gain(0.2, 0.0).improvement(0.05) == pytest.approx(0.15)
    assert Gain(-0.2, 0.0).improvement() == 0.0
    assert Gain(0.0, 0.1).improvement() == pytest.approx(0.1 / math.sqrt(2.0 * math.pi))
    assert 0.0 < Gain(-0.1, 0.1).improvement() < Gain(0.0, 0.1).improvement() < Gain(0.0, 0.2).improvement()
