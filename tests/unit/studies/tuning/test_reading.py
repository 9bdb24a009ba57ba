"""What is read of a search from its stored launches, whether it is finished or not."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from scalescope.analysis.tuning.launches import BASELINE, Combination
from scalescope.report.tuning.sections import Tuning
from scalescope.results.ranks import BESIDE
from scalescope.results.result import Result, Stage
from scalescope.results.run import Run
from scalescope.studies.tuning.levers import find_levers
from scalescope.studies.tuning.reading import ReadSearch
from tests.builders.requests import ask
from tests.builders.results import make_result
from tests.simulated.launcher import TWO_CORES

BF16, HOOK, JIT = (frozenset({name}) for name in ("precision bf16", "comm_hook fp16", "jit True"))
BOTH = BF16 | JIT
STEP_S = {BASELINE: 0.010, BF16: 0.006, HOOK: 0.0101, JIT: 0.008, BOTH: 0.005}


def make_search(combine: bool = True) -> ReadSearch:
    experiment = ask(world_size="2")
    levers = find_levers(experiment, TWO_CORES, ["precision=bf16", "comm_hook=fp16", "jit"])
    return ReadSearch(experiment, TWO_CORES, levers, threshold=0.03, combine=combine)


class Launches:
    """Results of combinations, as a campaign stores them."""

    def __init__(self, combine: bool = True) -> None:
        self.search = make_search(combine)
        self.results: list[Result] = []

    def add(
        self,
        levers: Combination,
        kind: Any,
        base: Combination = BASELINE,
        *,
        factor: float = 1.0,
        **changes: Any,
    ) -> "Launches":
        trial = self.search.combinations.trial_with(levers)
        base_trial = self.search.combinations.trial_with(base)
        assert trial is not None and base_trial is not None
        number = sum(result.trial_id == trial.trial_id for result in self.results)
        noise = 1.0 + 0.002 * (len(self.results) % 3 - 1)
        steps = [[STEP_S[levers] * factor * noise] * 10] * 2
        result = dataclasses.replace(
            make_result(trial, steps, launch=number),
            stage=Stage(kind, base=base_trial.trial_id),
            order=len(self.results),
            **changes,
        )
        if result.status != "ok":
            result = dataclasses.replace(result, ranks=[])
        self.results.append(result)
        return self

    @property
    def run(self) -> Run:
        return Run(path=Path("run"), environment={}, results=tuple(self.results), warnings=())

    def read(self) -> Tuning:
        return self.search.read(self.run)


def with_try(launches: Launches, levers: Combination, *, took_s: float, beside_s: float) -> Launches:
    """The last launch with another set tried in its start, whose own blocks took as long meanwhile."""
    main = launches.results[-1]
    launches.add(levers, "explore", factor=took_s / STEP_S[levers], started_at=main.started_at)
    tried = launches.results.pop()
    ranks = [
        dataclasses.replace(record, counters={**record.counters, BESIDE: beside_s}) for record in tried.ranks
    ]
    stage = Stage("explore", base=main.trial_id)
    launches.results.append(dataclasses.replace(tried, ranks=ranks, stage=stage))
    return launches


def explored() -> Launches:
    return Launches().add(BASELINE, "baseline").add(BF16, "explore").add(BOTH, "explore", BF16)


def confirmed() -> Launches:
    made = explored()
    for _ in range(2):
        for levers in (BOTH, BASELINE, BF16, JIT):
            made.add(levers, "confirm", BOTH)
    return made


def statuses(tuning: Tuning) -> dict[str, str]:
    return {lever.name: lever.status for lever in tuning.levers}


def test_an_empty_run_says_nothing() -> None:
    tuning = Launches().read()
    assert (tuning.combinations, tuning.winner, tuning.finished) == ((), (), False)
    assert set(statuses(tuning).values()) == {"not measured"}


def test_a_confirmed_search() -> None:
    tuning = confirmed().read()
    assert (tuning.winner, tuning.recommended, tuning.is_confirmed) == (
        ("jit True", "precision bf16"),
        True,
        True,
    )
    assert tuning.gain is not None and tuning.gain.value == pytest.approx(2.0, rel=0.01)
    assert {lever.name: lever.support for lever in tuning.levers if lever.support} == {
        "precision bf16": "confirmed",
        "jit True": "confirmed",
    }
    assert [lever.name for lever in tuning.levers][:2] == ["precision bf16", "jit True"]
    assert tuning.winner_trial is not None
    first = tuning.combinations[0]
    assert tuning.winner_trial.trial_id == first.configuration.trial.trial_id
    assert (first.levers, first.speedup, first.verdict) == (tuning.winner, tuning.gain, "faster")


def test_combinations_are_sorted_and_hold_every_launch() -> None:
    made = confirmed()
    tuning = made.read()
    assert [combination.levers for combination in tuning.combinations] == [
        ("jit True", "precision bf16"),
        ("precision bf16",),
        ("jit True",),
        (),
    ]
    launches = [len(combination.configuration.launches) for combination in tuning.combinations]
    assert launches == [3, 3, 2, 3]
    assert sum(launches) == len(made.results)


def test_what_was_only_tried_has_the_step_that_its_speedup_says() -> None:
    made = Launches().add(BASELINE, "baseline").add(BF16, "explore")
    tuning = with_try(made, BOTH, took_s=0.009, beside_s=0.012).read()
    rows = {combination.levers: combination for combination in tuning.combinations}
    tried, current = rows["jit True", "precision bf16"], rows[()]
    assert (tried.launches, tried.verdict) == (0, None)
    assert tried.step_s == pytest.approx(0.75 * rows[("precision bf16",)].step_s, rel=0.01)
    assert tried.speedup.value == pytest.approx(current.step_s / tried.step_s, rel=1e-6)
    made.add(BOTH, "explore", BF16, status="failed", reason="lost")
    row = next(row for row in made.read().combinations if row.levers == tried.levers)
    assert (row.launches, row.step_s, row.failure) == (0, tried.step_s, "failed: lost")


def test_a_try_does_not_count_once_the_same_set_was_launched() -> None:
    made = Launches().add(BASELINE, "baseline").add(BF16, "explore")
    made = with_try(made, BOTH, took_s=0.002, beside_s=0.006).add(BOTH, "explore", BF16)
    rows = {combination.levers: combination for combination in made.read().combinations}
    launched = rows["jit True", "precision bf16"]
    assert launched.launches == 1
    assert launched.step_s == pytest.approx(STEP_S[BOTH], rel=0.01)
    assert launched.speedup.value == pytest.approx(2.0, rel=0.01)
    interim = made.search.interim(made.run)
    assert interim is not None
    assert {row.name: row.speedup for row in interim.rows}["jit True + precision bf16"] == pytest.approx(
        launched.speedup.value
    )


def test_a_lever_is_what_it_gave_where_it_was_added() -> None:
    tuning = explored().read()
    assert {combination.verdict for combination in tuning.combinations} == {None}  # of single launches
    assert tuning.finished is False
    (jit,) = [lever for lever in tuning.levers if lever.name == "jit True"]
    assert (jit.added_to, jit.launches) == (("precision bf16",), 1)
    assert jit.speedup is not None and jit.speedup.value == pytest.approx(1.2, rel=0.01)


def test_a_lever_that_failed_elsewhere_is_what_it_gave_where_it_worked() -> None:
    tuning = explored().add(JIT, "explore", status="failed", reason="no kernel").read()
    (jit,) = [lever for lever in tuning.levers if lever.name == "jit True"]
    assert (jit.added_to, jit.reason) == (("precision bf16",), None)


@pytest.mark.parametrize(("factor", "status"), [(3.0, "slower"), (1.0, "undecided"), (0.995, "undecided")])
def test_a_lever_that_does_not_help_has_a_status(factor: float, status: str) -> None:
    tuning = Launches().add(BASELINE, "baseline").add(HOOK, "explore", factor=factor).read()
    assert statuses(tuning)["comm_hook fp16"] == status


def test_enough_launches_say_that_there_is_no_gain() -> None:
    made = Launches().add(BASELINE, "baseline").add(HOOK, "explore")
    for _ in range(3):
        made.add(BASELINE, "refine").add(HOOK, "refine")
    assert statuses(made.read())["comm_hook fp16"] == "no gain"


@pytest.mark.parametrize("status", ["failed", "oom"])
def test_a_failed_lever_has_its_reason(status: Any) -> None:
    made = Launches().add(BASELINE, "baseline").add(BF16, "explore", status=status, reason="it broke")
    (bf16,) = [lever for lever in made.read().levers if lever.name == "precision bf16"]
    assert (bf16.status, bf16.reason, bf16.speedup) == ("failed", f"{status}: it broke", None)


def test_a_lever_that_was_cut_short_is_undecided() -> None:
    made = Launches().add(BASELINE, "baseline")
    made.add(BF16, "explore", status="interrupted", stopped_by="budget", duration_s=42.0)
    (bf16,) = [lever for lever in made.read().levers if lever.name == "precision bf16"]
    assert bf16.status == "undecided"
    assert bf16.reason == "ended after 42 s, when its time was up"


def test_a_launch_that_a_signal_ended_is_as_if_never_made() -> None:
    made = Launches().add(BASELINE, "baseline")
    made.add(BF16, "explore", status="interrupted", stopped_by="signal")
    tuning = made.read()
    assert statuses(tuning)["precision bf16"] == "not measured"
    (launch,) = made.search.next_launches(made.run, None)
    assert launch.number == 0  # the facts of several ranks come first, or the same launch again


def test_a_winner_that_failed_later_says_so() -> None:
    made = confirmed().add(BOTH, "confirm", BOTH, status="failed", reason="lost")
    tuning = made.read()
    assert tuning.winner != ("jit True", "precision bf16")
    (row,) = [row for row in tuning.combinations if row.levers == ("jit True", "precision bf16")]
    assert (row.failure, row.is_usable) == ("failed: lost", False)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_baseline_that_never_works_is_the_answer(count: int) -> None:
    made = Launches()
    for _ in range(count):
        made.add(BASELINE, "baseline", status="failed", reason="lost")
    tuning = made.read()
    assert tuning.baseline_failure == ("failed" if count else None)
    assert bool(made.search.next_launches(made.run, None)) == (count < 2)


def test_nothing_is_called_faster_where_nothing_is_recommended() -> None:
    """Launches of jit agree and are 4 % faster; new launches do not show it."""
    made = Launches().add(BASELINE, "baseline").add(JIT, "explore", factor=1.2)
    for _ in range(4):
        made.add(BASELINE, "refine").add(JIT, "refine", factor=1.2)
    for _ in range(5):
        made.add(BASELINE, "confirm", JIT).add(JIT, "confirm", JIT, factor=1.25)
    tuning = made.read()
    assert not tuning.recommended
    assert all(combination.verdict != "faster" for combination in tuning.combinations)
    highs = [row.speedup.high for row in tuning.combinations if row.speedup.high is not None]
    assert tuning.at_most is not None and max(highs) <= 1.0 + tuning.at_most


def test_the_launch_without_communication_is_kept_apart() -> None:
    made = explored()
    silent = next(iter(made.search.next_launches(made.run, None))).trial
    assert silent.settings["without_communication"] is True
    made.results.append(dataclasses.replace(make_result(silent, [[0.009] * 10] * 2), stage=Stage("facts")))
    tuning = made.read()
    assert tuning.without_communication is not None
    assert len(tuning.combinations) == 3


def test_levers_each_alone_are_added_to_the_current_settings() -> None:
    made = Launches(combine=False).add(BASELINE, "baseline").add(BF16, "explore").add(JIT, "explore")
    assert {lever.added_to for lever in made.read().levers} == {()}
    assert made.read().winner == ("precision bf16",)


def test_a_try_is_compared_with_the_steps_beside_it_and_not_with_another_window() -> None:
    """It takes its time from the launch in whose start it was, and says nothing of losses."""
    made = Launches().add(BASELINE, "baseline").add(BF16, "explore")
    main = made.results[-1]
    made.add(BOTH, "explore", BF16, factor=2.0)  # twice as slow, and so were the steps beside it
    counters = {"beside_step_s": 2.0 * STEP_S[BF16], "phase_s": 3.0}
    ranks = [dataclasses.replace(record, counters={**record.counters, **counters}) for record in main.ranks]
    tried = dataclasses.replace(made.results[-1], duration_s=0.0, started_at=main.started_at)
    steps = [
        dataclasses.replace(rank, samples={"step_time_s": tried.ranks[0].samples["step_time_s"]})
        for rank in ranks
    ]
    made.results[-1] = dataclasses.replace(tried, ranks=steps)
    measured = made.search.measured(made.run)
    difference = measured.difference(BOTH, BF16)
    assert difference is not None
    assert difference.value == pytest.approx(math.log(STEP_S[BF16] / STEP_S[BOTH]), abs=0.01)
    assert [launch.is_within for launch in measured.launches] == [False, False, True]
    assert measured.launches[2].duration_s == 3.0
    assert measured.launches[1].duration_s == pytest.approx(main.duration_s - 3.0)
    both = next(row for row in made.read().combinations if row.levers == tuple(sorted(BOTH)))
    assert (both.loss_change, both.loss_unknown) == (None, None)
