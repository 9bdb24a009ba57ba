"""The search of `tune` on jobs whose truth is known: always an answer, and a good one."""

import functools
import importlib
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
simulation = importlib.import_module("tuning.simulation")

JOBS = simulation.load_jobs()[:20]  # two of each kind
HELPS = 1.0005  # less than that is rounding of the truth
BUDGETS_S = (30.0, 180.0)


@functools.cache
def outcomes(budget_s: float) -> list[tuple[Any, Any]]:
    """What the search comes to on every job."""
    return [(job, simulation.simulate(job, budget_s, seed=3)) for job in JOBS]


def recommended(outcome: Any) -> frozenset[str]:
    winner: frozenset[str] = outcome.conclusion.winner
    return winner if outcome.conclusion.recommended else frozenset()


def is_measurable(job: Any, budget_s: float) -> bool:
    """Whether the budget has room for the job as it is."""
    window_s = min(3.0, max(0.3, budget_s / 180.0))
    return bool(2.0 + job.duration_s(frozenset(), window_s, set()) < budget_s)


@pytest.mark.parametrize("budget_s", BUDGETS_S)
def test_there_is_always_an_answer_within_the_budget(budget_s: float) -> None:
    for job, outcome in outcomes(budget_s):
        spent_s = 2.0 + sum(launch.duration_s for launch in outcome.launches)
        assert spent_s <= budget_s + 1e-6
        assert outcome.launches[0].levers == frozenset()
        measured = {launch.levers for launch in outcome.launches if launch.log_rate is not None}
        assert (frozenset() in measured) == is_measurable(job, budget_s)
        conclusion = outcome.conclusion
        if conclusion.recommended:
            assert conclusion.winner in measured
            assert job.can_run(conclusion.winner) and not job.fails(conclusion.winner)
        elif len(measured) > 1:
            assert conclusion.at_most is not None


@pytest.mark.parametrize("budget_s", BUDGETS_S)
def test_no_time_is_left_where_a_promising_lever_would_fit(budget_s: float) -> None:
    wasted = [outcome.unused_s / budget_s for _, outcome in outcomes(budget_s) if outcome.affordable]
    assert max(wasted, default=0.0) <= 0.1


@pytest.mark.parametrize("budget_s", BUDGETS_S)
def test_nothing_that_failed_is_launched_again(budget_s: float) -> None:
    for job, outcome in outcomes(budget_s):
        failed = [
            launch.levers - launch.base
            for launch in outcome.launches
            if launch.stage.kind == "explore" and job.fails(launch.levers) and not launch.cut_short
        ]
        assert len(failed) == len(set(failed))


def test_three_minutes_find_nearly_all_there_is() -> None:
    """Loose bounds: the benchmark has the figures."""
    helped = [(job, recommended(outcome)) for job, outcome in outcomes(180.0) if job.best_gain() > HELPS]
    regrets = [job.best_gain() / job.gain(levers) for job, levers in helped]
    assert len(regrets) > 5
    assert statistics.median(regrets) < 1.05
    assert statistics.fmean(regrets) < 1.25


def test_levers_that_are_recommended_help() -> None:
    pairs = [(job, recommended(outcome)) for job, outcome in outcomes(180.0)]
    useful = [
        job.step_s(levers - {lever}) > HELPS * job.step_s(levers) for job, levers in pairs for lever in levers
    ]
    assert sum(useful) > 0.85 * len(useful)
    assert sum(bool(levers) for job, levers in pairs if job.best_gain() <= HELPS) <= 2


def test_a_larger_budget_finds_more() -> None:
    found = {
        budget_s: statistics.fmean(job.gain(recommended(outcome)) for job, outcome in outcomes(budget_s))
        for budget_s in BUDGETS_S
    }
    assert found[30.0] < found[180.0]
