"""The search of `tune`: an expert's order, the race, and what may be recommended."""

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.analysis.tuning.launches import BASELINE, Combination, TunedLaunch, TunedLaunches
from scalescope.analysis.tuning.search import (
    LEAST_GAIN,
    Conclusion,
    NextLaunch,
    Option,
    SearchPosition,
    TuningSearch,
    conclude,
)
from scalescope.analysis.tuning.step_model import LeverEffect, StepModel, parts_of_step
from scalescope.results.other_load import OtherLoad
from tests.builders.results import combination, launch, launches

EFFECTS = {
    "half": LeverEffect(factors={"products": 0.3, "host": 1.2}),
    "fused": LeverEffect(factors={"optimizer": 0.5}),
    "workers": LeverEffect(processes=4),
    "compiled": LeverEffect(factors={"kernels": 0.6}),
    "graphs": LeverEffect(factors={"kernels": 0.62, "host": 0.2}),
    "other": LeverEffect(factors={"kernels": 0.8}),
    "single": LeverEffect(factors={"products": 0.35}),
    "worse": LeverEffect(factors={"kernels": 1.3}),
}
BUNDLED, COMPILING = ("half", "fused", "workers"), ("compiled", "graphs")
SETTINGS = {"single": "half", "graphs": "compiled"}
NOW = launch("", 0.0)


def search(*names: str, parts: Any = None, switchable: tuple[str, ...] = (), **options: Any) -> TuningSearch:
    return TuningSearch(
        options=[
            Option(
                name=name,
                setting=SETTINGS.get(name, name),
                in_bundle=name in BUNDLED,
                sets_processes=name == "workers",
                compiles=name in COMPILING,
                switchable=name in switchable,
            )
            for name in names
        ],
        model=StepModel(parts_of={BASELINE: parts or parts_of_step()}.get, effects=EFFECTS),
        program=lambda levers: levers & {"half", *COMPILING} if levers & set(COMPILING) else None,
        **options,
    )


def following(tuning: TuningSearch, *made: TunedLaunch, remaining_s: float | None = None) -> NextLaunch:
    step = tuning.next_step(launches(*made), remaining_s)
    assert step is not None
    return step


def explored(names: str, log_rate: float | None, base: str = "", **rest: Any) -> TunedLaunch:
    return launch(names, log_rate, base=base, **rest)


def raced(names: str, log_rate: float, base: str, **rest: Any) -> TunedLaunch:
    return launch(names, log_rate, base=base, kind="confirm", **rest)


def test_the_baseline_comes_first_whatever_time_there_is() -> None:
    for remaining_s in (None, 1000.0, 0.5):
        step = following(search("half"), remaining_s=remaining_s)
        assert (step.levers, step.stage.kind, step.at_most_s) == (BASELINE, "baseline", remaining_s)


def test_then_what_an_expert_writes_at_once_and_then_the_same_compiled() -> None:
    levers = search("other", "compiled", "graphs", "half", "fused", "workers")
    bundle = following(levers, NOW)
    assert (bundle.levers, bundle.stage.kind) == (
        combination("half+fused"),
        "explore",
    )  # nobody waits for input
    compiled = following(levers, NOW, explored("half+fused", 0.5))
    assert (compiled.levers, compiled.base) == (combination("half+fused+compiled"), bundle.levers)
    again = following(
        levers, NOW, explored("half+fused", 0.5), explored("half+fused+compiled", None, "half+fused")
    )
    assert again.levers == combination("half+fused+graphs")  # the other way to compile


def test_facts_choose_processes_and_the_way_to_compile() -> None:
    waiting = parts_of_step(input_share=0.5)
    step = following(search("half", "workers", parts=waiting), NOW)
    assert step.levers == combination("half+workers")
    idle = parts_of_step(busy_share=0.3)
    step = following(search("compiled", "graphs", "half", parts=idle), NOW, explored("half", 0.05))
    assert step.levers == combination("half+graphs")


@pytest.mark.parametrize("log_rate", [None, -0.1])
def test_a_bundle_that_fails_or_is_slower_is_taken_apart(log_rate: float | None) -> None:
    levers = search("half", "fused", "compiled")
    made = [NOW, explored("half+fused", log_rate)]
    first = following(levers, *made)
    assert (first.levers, first.base) == (combination("half"), BASELINE)
    made.append(explored("half", 0.4))
    assert following(levers, *made).levers == combination("fused")
    made.append(explored("fused", -0.2))
    assert following(levers, *made).levers == combination("half+compiled")


def test_what_remains_is_tried_by_its_promise_and_never_what_promises_harm() -> None:
    levers = search("worse", "other", "single", "half")
    made = [NOW, explored("half", 0.5)]
    step = following(levers, *made)
    assert step.levers == combination("half+other")
    made.append(explored("half+other", 0.6, "half"))
    step = following(levers, *made)
    assert step.stage.kind == "confirm"  # another value in place of a measured one must promise more
    position = SearchPosition(search=levers, measured=launches(*made))
    assert "worse" not in position.promises()
    asked = TuningSearch(
        options=[Option(name="worse", setting="worse", asked=True)],
        model=StepModel(parts_of=lambda _: None, effects=EFFECTS),
    )
    assert following(asked, NOW).levers == combination("worse")


def test_the_race_has_the_best_the_baseline_and_the_best_without_its_parts() -> None:
    levers = search("half", "fused")
    made = [NOW, explored("half+fused", 0.5)]
    kinds = []
    for _ in range(5):
        step = following(levers, *made)
        assert step.stage.kind == "confirm"
        kinds.append(step.levers)
        made.append(
            raced("+".join(sorted(step.levers)), {0: 0.0, 1: 0.4, 2: 0.5}[len(step.levers)], "half+fused")
        )
    assert kinds[:2] == [combination("half+fused"), BASELINE]
    assert combination("half") in kinds and combination("fused") in kinds


def test_what_is_slower_for_sure_leaves_the_race() -> None:
    levers = search("half", "fused")
    made = [
        NOW,
        explored("half+fused", 0.5),
        raced("half+fused", 0.5, "half+fused"),
        raced("half", 0.1, "half+fused"),
    ]
    position = SearchPosition(search=levers, measured=launches(*made))
    assert combination("half") not in position.runners()
    assert combination("fused") in position.runners()


def test_the_simplest_set_within_a_standard_error_of_the_fastest_is_recommended() -> None:
    levers = search("half", "fused")
    made = [NOW]
    for _ in range(3):
        made += [
            raced("half+fused", 0.501, "half+fused"),
            raced("", 0.0, "half+fused"),
            raced("half", 0.5, "half+fused"),
        ]
    conclusion = conclude(levers, launches(*made))
    assert (conclusion.winner, conclusion.recommended) == (combination("half"), True)
    assert conclusion.dropped == combination("fused")
    assert conclusion.is_confirmed
    assert conclusion.gain is not None and conclusion.gain.value == pytest.approx(0.5)


def test_what_is_proven_goes_before_what_is_simpler_but_is_not_proven() -> None:
    made = [NOW, explored("half+fused", 0.4)]
    for noise in (0.2, -0.1, 0.1, -0.2):
        made += [raced("half+fused", 0.4 + noise, "half+fused"), raced("", 0.0, "half+fused")]
    made.append(raced("half", 0.3, "half+fused"))
    conclusion = conclude(search("half", "fused"), launches(*made))
    position = SearchPosition(search=search("half", "fused"), measured=launches(*made))
    assert position.errors_behind(combination("half"), combination("half+fused")) < 1.0
    assert not position.is_proven(combination("half"))
    assert (conclusion.winner, conclusion.recommended) == (combination("half+fused"), True)


def test_a_noisy_best_set_races_the_current_settings_alone_until_its_gain_is_proven() -> None:
    levers = search("half", "fused")
    made = [NOW, explored("half+fused", 0.4)]
    for log_rate in (0.6, 0.2, 0.6, 0.2):
        made += [raced("half+fused", log_rate, "half+fused"), raced("", 0.0, "half+fused")]
        proven = SearchPosition(search=levers, measured=launches(*made)).is_proven(combination("half+fused"))
        step = following(levers, *made)
        assert step.levers in ({combination("half+fused"), BASELINE} if not proven else {combination("half")})
    assert proven


def test_tries_do_not_widen_what_launches_prove() -> None:
    made = [NOW, explored("half+fused", 0.4), explored("half", 1.2, "half+fused", is_within=True)]
    made += [raced("half", 0.5, "half+fused"), raced("", 0.0, "half+fused")]
    for tries in (made, [made_now for made_now in made if not made_now.is_within]):
        position = SearchPosition(search=search("half", "fused"), measured=launches(*tries))
        assert position.is_proven(combination("half"))


def test_tries_tell_nothing_of_launches_and_are_dropped_once_there_is_one() -> None:
    tried = [explored("half", log_rate, "fused", is_within=True) for log_rate in (0.9, 0.1)]
    assert launches(NOW, *tried).spread() == launches(NOW).spread()
    both = launches(NOW, *tried, explored("half", 0.4))
    assert (both.count(combination("half")), both.mean(combination("half"))) == (1, 0.4)
    quiet = OtherLoad(cores=2, other_cores=0.0, rank_waits=(0.0,))
    busy = OtherLoad(cores=2, other_cores=1.5, rank_waits=(0.5,))
    before = explored("half", 0.5, is_within=True, load=quiet)
    made = launches(launch("", 0.0, load=quiet), before, explored("half", 0.3, load=busy))
    assert made.difference(combination("half"), BASELINE) is None


def test_where_nothing_is_proven_the_fastest_is_named() -> None:
    made = [NOW, explored("half+fused", 0.03), explored("half", 0.025)]
    conclusion = conclude(search("half", "fused"), launches(*made, deviation=0.05))
    assert (conclusion.winner, conclusion.recommended) == (combination("half+fused"), False)


def test_a_try_confirms_no_lever() -> None:
    made = [NOW, explored("half+fused", 0.9), explored("fused", 0.1, "half+fused", is_within=True)]
    made += [raced("half+fused", 0.9, "half+fused"), raced("", 0.0, "half+fused")]
    assert conclude(search("half", "fused"), launches(*made)).support == {
        "half": "when added",
        "fused": "untested",
    }


def test_what_helps_once_compiled_is_written_at_once() -> None:
    levers = search("half", "fused", "graphs", parts=parts_of_step(busy_share=0.4))
    options = [dataclasses.replace(o, needs_promise=o.name == "half") for o in levers.options]
    for names, bundled in ((("half", "fused", "graphs"), True), (("half", "fused"), False)):
        chosen = dataclasses.replace(levers, options=[o for o in options if o.name in names])
        position = SearchPosition(search=chosen, measured=launches(NOW))
        assert ("half" in position.bundle) == bundled


def test_what_cannot_be_compiled_is_compiled_without_one_of_its_parts_where_that_promises_more() -> None:
    for busy_share, wanted in ((0.3, "fused+graphs"), (0.9, None)):  # half is part of what failed
        levers = search("half", "fused", "graphs", parts=parts_of_step(busy_share=busy_share))
        made = [NOW, explored("half+fused", 0.5), explored("half+fused+graphs", None, "half+fused")]
        step = following(levers, *made)
        if wanted is None:
            assert step.stage.kind == "confirm"
            continue
        assert (step.levers, step.base) == (combination(wanted), combination("half+fused"))
        made.append(explored(wanted, 0.9, "half+fused"))
        assert following(levers, *made).stage.kind == "confirm"  # nothing else with half is compiled


def test_a_noisy_gain_is_not_recommended_and_bounds_what_was_tried() -> None:
    made = [NOW, explored("half", 0.02)]
    conclusion = conclude(search("half"), launches(*made))
    assert not conclusion.recommended
    assert conclusion.at_most is not None and conclusion.at_most > 0.02
    assert conclude(search("half"), launches()) == Conclusion(support={})


def test_where_nothing_helps_the_search_ends_by_half_of_the_time() -> None:
    levers = search("half", budget_s=100.0)
    made = [launch("", 0.0, duration_s=10.0), explored("half", -0.05, duration_s=10.0)]
    while (step := levers.next_step(launches(*made), 100.0 - 10.0 * len(made))) is not None:
        made.append(raced("+".join(step.levers), -0.05 if step.levers else 0.0, "", duration_s=10.0))
    assert len(made) <= 4


def test_what_failed_or_trains_to_another_loss_is_not_built_on() -> None:
    levers = search("half", "other")
    made = [NOW, explored("half", 0.9, refused=True)]
    assert following(levers, *made).levers == combination("other")
    assert conclude(levers, launches(*made)).winner == BASELINE


def test_what_was_measured_under_another_load_alone_is_unknown() -> None:
    quiet = OtherLoad(cores=2, other_cores=0.0, rank_waits=(0.0,))
    busy = OtherLoad(cores=2, other_cores=1.5, rank_waits=(0.5,))
    made = launches(launch("", 0.0, load=quiet), explored("half", 0.9, load=busy))
    assert SearchPosition(search=search("half"), measured=made).best == BASELINE
    assert not conclude(search("half"), made).recommended


def test_what_was_only_tried_under_alike_load_is_not_claimed() -> None:
    quiet = OtherLoad(cores=2, other_cores=0.0, rank_waits=(0.0,))
    busy = OtherLoad(cores=2, other_cores=1.5, rank_waits=(0.5,))
    tries = [explored("half", 0.5, is_within=True, load=quiet) for _ in range(2)]
    made = launches(launch("", 0.0, load=quiet), *tries, explored("half", 0.3, load=busy))
    assert not conclude(search("half"), made).recommended


def test_no_launch_is_begun_that_leaves_no_time_for_the_race() -> None:
    made = [launch("", 0.0, duration_s=10.0), explored("half", 0.5, duration_s=10.0)]
    step = search("half", "compiled").next_step(launches(*made), 45.0)
    assert step is not None and step.stage.kind == "confirm"  # compiling takes longer
    assert search("half", "compiled").next_step(launches(*made), 5.0) is None


class Machine:
    """Launches whose true speed is known, with noise."""

    def __init__(self, gains: Callable[[Combination], float], noise: float, seed: int) -> None:
        self._gains, self._noise, self._draw = gains, noise, random.Random(seed)

    def tuned(self, tuning: TuningSearch, budget_s: float = 180.0) -> tuple[Conclusion, TunedLaunches]:
        made: list[TunedLaunch] = []
        left_s = budget_s
        while (step := tuning.next_step(TunedLaunches(made), left_s)) is not None and left_s > 0.0:
            rate = self._gains(step.levers) + self._noise * self._draw.gauss(0.0, 1.0)
            made.append(
                TunedLaunch(
                    levers=step.levers, log_rate=rate, duration_s=8.0, stage=step.stage, base=step.base
                )
            )
            left_s -= 8.0
        measured = TunedLaunches(made)
        return conclude(tuning, measured), measured


@settings(max_examples=60, deadline=None)
@given(
    gains=st.dictionaries(st.sampled_from(sorted(EFFECTS)), st.floats(-0.3, 0.6), min_size=2),
    noise=st.floats(0.001, 0.1),
    seed=st.integers(0, 10**6),
)
def test_no_measured_set_is_faster_by_a_standard_error_than_the_recommended_one(
    gains: dict[str, float], noise: float, seed: int
) -> None:
    tuning = search(*gains)
    conclusion, measured = Machine(lambda levers: sum(gains[name] for name in levers), noise, seed).tuned(
        tuning
    )
    position = SearchPosition(search=tuning, measured=measured)
    behind = {
        levers: max(position.errors_behind(levers, other) for other in position.values if other != levers)
        for levers in position.values
        if levers and position.is_proven(levers)
    }
    if conclusion.recommended:  # where each is slower than some other one, it is the least so
        assert behind[conclusion.winner] <= max(1.0, min(behind.values())) + 1e-9
    if conclusion.recommended:
        assert conclusion.gain is not None and conclusion.gain.value > LEAST_GAIN


def test_noise_alone_is_hardly_ever_recommended() -> None:
    tuning = search("half", "fused", "compiled", "other")
    for noise in (0.005, 0.02, 0.1):
        claimed = sum(Machine(lambda _: 0.0, noise, seed).tuned(tuning)[0].recommended for seed in range(100))
        assert claimed <= 3, noise


def test_the_fastest_of_all_is_found_where_effects_add_up() -> None:
    gains = {"half": 0.5, "fused": 0.05, "compiled": 0.3, "other": 0.1}
    tuning = search(*gains)
    machine = Machine(lambda levers: sum(gains[name] for name in levers), 0.005, 3)
    conclusion, _ = machine.tuned(tuning, budget_s=400.0)
    assert conclusion.winner == frozenset(gains)
    assert math.isclose(conclusion.gain.value if conclusion.gain else 0.0, 0.95, abs_tol=0.02)


def test_what_can_be_switched_is_tried_in_the_start_of_the_bundle() -> None:
    levers = search("half", "single", "fused", "compiled", switchable=("half", "single", "compiled"))
    step = following(levers, NOW)
    assert step.levers == combination("half+fused")
    assert step.within == tuple(map(combination, ("fused", "half+fused+compiled")))
    within = [
        explored(names, 0.6, "half+fused", is_within=True) for names in ("fused", "half+fused+compiled")
    ]
    after = following(levers, NOW, explored("half+fused", 0.5), *within)
    assert after.levers != combination("half+fused+compiled") or after.stage.kind == "confirm"


def test_no_try_is_begun_that_does_not_fit() -> None:
    levers = search("half", "fused", "compiled", switchable=("half", "compiled"))
    made = launch("", 0.0, duration_s=10.0)
    step = following(levers, made, remaining_s=40.0)
    assert combination("half+fused+compiled") not in step.within  # compiling takes longer


def test_a_bundle_that_was_launched_stays_the_bundle() -> None:
    """Its own facts do not make another one of it."""
    levers = search("half", "fused", "workers", parts=parts_of_step(input_share=0.5, prepare_share=0.5))
    bundle = following(levers, NOW).levers
    assert "workers" in bundle
    position = SearchPosition(search=levers, measured=launches(NOW, explored("half+fused", 0.4)))
    assert position.bundle == combination("half+fused")


def test_what_ran_out_of_time_is_tried_again_with_more() -> None:
    levers = search("half", "compiled")
    made = [NOW, explored("half", 0.5), explored("half+compiled", None, "half", cut_short=True)]
    assert following(levers, *made).levers == combination("half+compiled")
