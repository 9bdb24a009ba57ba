"""The search of `tune`: which launch comes next, and what is the best so far."""

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalescope.analysis.tuning.conclusion import conclude
from scalescope.analysis.tuning.search import NextLaunch, Option, SearchPosition, TuningSearch
from scalescope.analysis.tuning.step_model import LeverEffect, StepModel, parts_of_step
from scalescope.analysis.tuning.tuned_launches import BASELINE, Combination, TunedLaunch, TunedLaunches
from scalescope.results.other_load import OtherLoad
from tests.builders.results import combination, launch, launches

EFFECTS = {
    "a": LeverEffect(factors={"products": 0.5}),
    "a2": LeverEffect(factors={"products": 0.48}),
    "b": LeverEffect(factors={"kernels": 0.5}),
    "c": LeverEffect(factors={"optimizer": 0.5}),
    "slow": LeverEffect(factors={"kernels": 0.6}),
    "useless": LeverEffect(factors={"load": 0.5}),
}
SETTINGS = {"a2": "a"}


def search(*names: str, **options: Any) -> TuningSearch:
    """A search over levers by name; `slow` compiles."""
    return TuningSearch(
        options=[Option(name=name, setting=SETTINGS.get(name, name)) for name in names],
        model=StepModel(parts_of={BASELINE: parts_of_step()}.get, effects=EFFECTS),
        program=lambda levers: levers & {"slow", "a"} if "slow" in levers else None,
        **options,
    )


def explored(names: str, log_rate: float | None, base: str = "", **options: Any) -> TunedLaunch:
    return launch(names, log_rate, base=base, **options)


def following(tuning: TuningSearch, *made: TunedLaunch, remaining_s: float | None = None) -> NextLaunch:
    step = tuning.next_step(launches(*made), remaining_s)
    assert step is not None
    return step


NOW = launch("", 0.0)


def test_the_baseline_comes_first_whatever_time_there_is() -> None:
    for remaining_s in (None, 1000.0, 0.5):
        step = following(search("a"), remaining_s=remaining_s)
        assert (step.levers, step.stage.kind, step.at_most_s) == (BASELINE, "baseline", remaining_s)


def test_the_most_promising_lever_is_tried_first_on_the_best_so_far() -> None:
    levers = search("c", "b", "a")
    first = following(levers, NOW)
    assert (first.levers, first.stage.kind, first.base) == (combination("a"), "explore", BASELINE)
    second = following(levers, NOW, explored("a", 0.36))
    assert (second.levers, second.base) == (combination("a+b"), combination("a"))


def test_what_is_slower_is_not_built_on_and_another_value_takes_the_place_of_one() -> None:
    step = following(search("a", "b"), NOW, explored("a", -0.2))
    assert (step.levers, step.base) == (combination("b"), BASELINE)
    levers = search("a", "a2")
    assert levers.with_option(combination("a"), levers.options[1]) == combination("a2")
    step = following(levers, NOW, explored("a", 0.36))
    assert step.levers == combination("a2")


def test_what_cannot_help_is_never_launched_unless_it_was_asked_for() -> None:
    # Nobody waits for input: the search ends with the baseline.
    assert search("useless").next_step(launches(NOW), None) is None
    asked = dataclasses.replace(search("useless"), options=[Option(name="useless", setting="u", asked=True)])
    assert following(asked, NOW).levers == combination("useless")  # unless it was asked for
    position = SearchPosition(search=search("a", "useless"), measured=launches(NOW))
    assert position.unpromising() == {"useless"}
    position = SearchPosition(search=asked, measured=launches(NOW, explored("useless", 0.0)))
    assert position.explore() is None


def test_what_was_only_explored_under_another_load_promises_what_its_card_says() -> None:
    quiet = OtherLoad(cores=2, other_cores=0.0, rank_waits=(0.0,))
    busy = OtherLoad(cores=2, other_cores=1.5, rank_waits=(0.5,))
    made = launches(launch("", 0.0, load=quiet), explored("a", -0.9, load=busy))
    assert SearchPosition(search=search("a"), measured=made).unpromising() == frozenset()


def test_time_that_is_left_narrows_what_nothing_may_gain() -> None:
    """Nothing helps: launches in turns with the baseline, until the bound is below the threshold."""
    levers = search("a")
    so_far = [NOW, explored("a", 0.0)]
    kinds = []
    while (step := levers.next_step(launches(*so_far), None)) is not None:
        kinds.append((step.stage.kind, step.levers))
        so_far.append(dataclasses.replace(NOW, levers=step.levers, stage=step.stage, base=step.base))
    assert kinds[0] == ("refine", NOW.levers)
    assert set(kinds) == {("refine", NOW.levers), ("refine", combination("a"))}
    bound = conclude(levers, launches(*so_far)).at_most
    before = conclude(levers, launches(*so_far[:2])).at_most
    assert bound is not None and before is not None and bound < before


def test_a_lever_that_failed_changes_the_loss_or_cannot_run_is_passed_over() -> None:
    step = following(search("a", "b"), NOW, explored("a", None), explored("b", 0.2))
    assert "a" not in step.levers
    step = following(search("a", "b"), NOW, explored("a", 0.5, refused=True))
    assert step.levers == combination("b")
    position = SearchPosition(
        search=search("a", "b"), measured=launches(NOW, explored("a", 0.5, refused=True))
    )
    assert position.best == BASELINE
    step = following(search("a", "b", can_run=lambda levers: "a" not in levers), NOW)
    assert step.levers == combination("b")


def test_what_is_unclear_gets_more_launches_in_turns_with_the_best() -> None:
    """0.03 is between nothing and the threshold, by far not sure at a spread of 0.05."""
    made = launches(NOW, explored("c", 0.035), deviation=0.05)
    tuning = dataclasses.replace(
        search("c"), model=StepModel(parts_of={BASELINE: parts_of_step()}.get, effects={})
    )
    step = tuning.next_step(made, None)
    assert step is not None
    assert (step.stage.kind, step.levers) == ("refine", BASELINE)
    more = launches(*made.launches, launch("", 0.0, kind="refine"), deviation=0.05)
    again = tuning.next_step(more, None)
    assert again is not None
    assert (again.stage.kind, again.levers) == ("refine", combination("c"))


def test_the_winner_is_confirmed_in_new_launches_against_the_baseline_and_without_each_lever() -> None:
    made = [NOW, explored("a", 0.36), explored("a+b", 0.6, base="a")]
    tuning = search("a", "b")
    confirmed: list[Combination] = []
    speeds = {"": 0.0, "a": 0.36, "b": 0.24, "a+b": 0.6}
    rates = {combination(names): speed for names, speed in speeds.items()}
    while (step := tuning.next_step(launches(*made), None)) is not None:
        assert step.stage.kind == "confirm"
        assert step.base == combination("a+b")
        confirmed.append(step.levers)
        rate = rates[step.levers]
        made.append(
            dataclasses.replace(NOW, levers=step.levers, log_rate=rate, stage=step.stage, base=step.base)
        )
    assert set(confirmed) == set(rates)
    assert confirmed[:2] == [combination("a+b"), BASELINE]


def test_a_lever_that_gives_nothing_when_confirmed_is_dropped() -> None:
    made = [NOW, explored("a", 0.36), explored("a+b", 0.5, base="a")]
    for _ in range(2):
        made += [
            launch(names, rate, kind="confirm", base="a+b")
            for names, rate in (("a+b", 0.36), ("", 0.0), ("a", 0.36), ("b", 0.0))
        ]
    position = SearchPosition(search=search("a", "b"), measured=launches(*made))
    assert position.best == combination("a+b")
    assert position.confirmed.winner == combination("a")


def test_a_measurement_that_contradicts_the_card_counts() -> None:
    """Nothing is expected of `useless`; several standard errors of gain make it part of the best."""
    position = SearchPosition(search=search("a", "useless"), measured=launches(NOW, explored("useless", 0.2)))
    assert position.best == combination("useless")


def test_time_for_confirming_is_kept_back_and_what_fits_is_tried() -> None:
    tuning = search("a")
    assert tuning.next_step(launches(NOW), 35.0) is not None
    step = following(tuning, NOW, explored("a", 0.36), remaining_s=25.0)
    assert step.stage.kind == "confirm"
    slow = search("a", "slow")
    limited = following(slow, NOW, explored("a", 0.36), remaining_s=300.0)
    assert limited.levers == combination("a+slow")
    assert limited.at_most_s is not None and limited.at_most_s < 300.0 - 20.0
    # Compiling is expected to take 40 s.
    step = following(search("slow", "c"), NOW, remaining_s=40.0)
    assert step.levers == combination("c")
    made = (NOW, explored("a", None, cut_short=True, duration_s=30.0))
    tuning = search("a")
    assert tuning.next_step(launches(*made), 40.0) is None
    assert following(tuning, *made, remaining_s=200.0).levers == combination("a")


def test_levers_that_are_not_combined_are_each_added_to_the_baseline() -> None:
    tuning = search("a", "b", "c", combine=False)
    made = [NOW, explored("a", 0.36), explored("b", 0.2), explored("c", 0.03)]
    step = following(tuning, *made)
    assert len(step.levers) < 2
    assert SearchPosition(search=tuning, measured=launches(*made)).best == combination("a")


def test_what_is_compiled_is_tried_together_with_a_precision_that_is_sure_to_help() -> None:
    neighbours = SearchPosition(search=search("slow", "a"), measured=launches(NOW))._neighbours(BASELINE)
    assert neighbours == {combination("slow"), combination("a"), combination("a+slow")}


PAIRS = ("", "a+b") * 4


def test_an_obvious_gain_is_measured_again_where_time_is_left() -> None:
    """A launch takes more than a tenth of the time, and nothing else is to do."""
    made = [NOW, explored("a", 0.36), explored("a+b", 0.6, base="a")]
    made += [launch("a+b", 0.6, kind="confirm", base="a+b"), launch("", 0.0, kind="confirm", base="a+b")]
    made += [launch("a", 0.36, kind="confirm", base="a+b")]
    step = following(search("a", "b"), *made, remaining_s=50.0)
    assert (step.levers, step.stage.kind) == (BASELINE, "confirm")  # the second pair, in turn
    made += [launch(levers, 0.0 if not levers else 0.6, kind="confirm", base="a+b") for levers in PAIRS]
    step = following(search("a", "b"), *made, remaining_s=50.0)
    assert (step.levers, step.stage.kind) == (combination("b"), "confirm")


# Any job


@dataclasses.dataclass(frozen=True)
class Job:
    """A job whose truth is drawn: what each lever multiplies the step by, and which fail."""

    factors: Mapping[str, float]
    fails: frozenset[str]
    refused: frozenset[str]
    launch_s: float
    compiling_s: float
    noise: float
    seed: int

    def launched(self, step: NextLaunch, limit_s: float, draw: random.Random) -> TunedLaunch:
        duration_s = self.launch_s + (self.compiling_s if "slow" in step.levers else 0.0)
        cut, failed = duration_s > limit_s, bool(step.levers & self.fails)
        rate = 0.0
        for lever in sorted(step.levers):
            rate -= self.factors[lever]
        return TunedLaunch(
            levers=step.levers,
            log_rate=None if cut or failed else rate + draw.gauss(0.0, self.noise),
            duration_s=min(duration_s, limit_s),
            stage=step.stage,
            base=step.base,
            refused=bool(step.levers & self.refused) and not (cut or failed),
            cut_short=cut,
        )


NAMES = ("a", "a2", "b", "c", "slow", "useless")
JOBS = st.builds(
    Job,
    factors=st.fixed_dictionaries({name: st.floats(-0.8, 0.5) for name in NAMES}),
    fails=st.frozensets(st.sampled_from(NAMES), max_size=3),
    refused=st.frozensets(st.sampled_from(NAMES), max_size=2),
    launch_s=st.floats(0.5, 20.0),
    compiling_s=st.floats(1.0, 100.0),
    noise=st.floats(0.001, 0.1),
    seed=st.integers(0, 1000),
)


def searched(
    tuning: TuningSearch, job: Job, budget_s: float, check: Callable[[list[TunedLaunch], NextLaunch], None]
) -> tuple[TunedLaunches, float]:
    """All launches of a search within a budget, and the time they took."""
    draw = random.Random(job.seed)
    made: list[TunedLaunch] = []
    spent_s = 0.0
    while spent_s < budget_s and len(made) < 200:
        step = tuning.next_step(TunedLaunches(made), budget_s - spent_s)
        if step is None:
            break
        check(made, step)
        assert step.at_most_s is not None
        made.append(job.launched(step, step.at_most_s, draw))
        spent_s += made[-1].duration_s
    assert len(made) < 200
    return TunedLaunches(made), spent_s


def check_next(made: list[TunedLaunch], step: NextLaunch) -> None:
    """What holds for every launch of every search."""
    assert step.at_most_s is not None and step.at_most_s > 0.0
    if not made:
        assert step.levers == BASELINE
    failed = {done.levers for done in made if done.log_rate is None and not done.cut_short}
    alone = {
        lever
        for done in made
        if done.stage.kind == "explore" and done.levers in failed and len(done.levers - done.base) == 1
        for lever in done.levers - done.base
    }
    if step.stage.kind == "explore":
        assert step.levers not in failed - {BASELINE}
        assert not (step.levers - step.base) & alone
        assert step.levers not in {done.levers for done in made if done.log_rate is not None} - {BASELINE}


@settings(max_examples=25)
@given(job=JOBS, budget_s=st.floats(5.0, 300.0), combine=st.booleans())
def test_any_search_keeps_its_rules(job: Job, budget_s: float, combine: bool) -> None:
    tuning = search(*NAMES, combine=combine)
    measured, spent_s = searched(tuning, job, budget_s, check_next)
    assert spent_s <= budget_s * (1.0 + 1e-9)
    conclusion = conclude(tuning, measured)
    if conclusion.winner:
        assert measured.count(conclusion.winner) > 0
        assert conclusion.winner not in measured.failed
        assert not conclusion.winner & job.refused
    if conclusion.recommended:
        assert conclusion.winner
        assert conclusion.gain is not None and conclusion.gain.value > 0.0
        assert set(conclusion.support) == conclusion.winner
    elif len(measured.combinations) > 1:
        usable = [levers for levers in measured.combinations if levers not in measured.failed]
        assert (conclusion.at_most is not None) == (len(usable) > 1)
    if combine is False:
        assert len(conclusion.winner) < 2


@settings(max_examples=8)
@given(job=JOBS, cut=st.integers(0, 12))
def test_a_search_remembers_nothing_but_its_launches(job: Job, cut: int) -> None:
    """Interrupted after any launch and begun anew, it goes on as it would have."""
    first, _ = searched(search(*NAMES), job, 120.0, check_next)
    made = list(first.launches[:cut])
    left_s = 120.0 - sum(done.duration_s for done in made)
    if cut < len(first.launches):
        step = search(*NAMES).next_step(TunedLaunches(made), left_s)
        assert step is not None
        then = first.launches[cut]
        assert (step.levers, step.stage, step.base) == (then.levers, then.stage, then.base)


@pytest.mark.parametrize("seed", range(2))
def test_what_truly_helps_is_found(seed: int) -> None:
    factors = {"a": -0.5, "a2": -0.45, "b": -0.2, "c": 0.0, "slow": 0.3, "useless": 0.0}
    times = {"launch_s": 5.0, "compiling_s": 30.0, "noise": 0.01}
    job = Job(factors=factors, fails=frozenset(), refused=frozenset(), seed=seed, **times)
    tuning = search(*NAMES)
    # `factors` are of the logarithm of the step: below zero is faster.
    measured, _ = searched(tuning, job, 300.0, check_next)
    conclusion = conclude(tuning, measured)
    assert conclusion.winner == combination("a+b")
    assert conclusion.recommended and conclusion.is_confirmed
