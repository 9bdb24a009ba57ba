"""Communication, a slow rank and random skew: what was put in comes out, with or without a plain rank."""

import random
import statistics
from collections.abc import Sequence

import pytest

from scalescope.analysis.configurations import configurations
from scalescope.analysis.scaling.communication import CommunicationCost, communication_cost
from scalescope.analysis.scaling.rows import scaling_rows
from scalescope.analysis.scaling.waterfall import COMMUNICATION, RANDOM_SKEW, STRAGGLERS
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from tests.builders.results import make_result, make_trial
from tests.builders.traces import recorded_result

TRANSFER_S = 0.020
BASE_S = 0.100


def _trial(ranks: int, *, silent: bool = False) -> Trial:
    return make_trial(world_size=ranks, strategy="ddp", oversubscribe=ranks > 1, without_communication=silent)


def _launches(
    ranks: int,
    jitter: float,
    late: dict[int, float],
    launches: int = 5,
    *,
    seed: int = 0,
    recorded: bool = True,
) -> list[Result]:
    """Normal training, the same ranks without communication, and recorded steps; each step all wait for the
    last and then exchange."""
    noise = random.Random(0)

    def compute() -> list[float]:
        return [BASE_S + late.get(rank, 0.0) + abs(noise.gauss(0.0, jitter)) for rank in range(ranks)]

    results = []
    for launch in range(launches):
        normal = [max(compute()) + TRANSFER_S for _ in range(40)]
        results.append(make_result(_trial(ranks), [normal] * ranks, launch=launch))
        silent = [compute() for _ in range(40)]
        by_rank = [list(times) for times in zip(*silent, strict=True)]
        results.append(make_result(_trial(ranks, silent=True), by_rank, launch=launch))
        if recorded:
            results.append(_recorded(_trial(ranks), [compute() for _ in range(40)], launch))
    return results


def _recorded(trial: Trial, steps: Sequence[Sequence[float]], launch: int) -> Result:
    """One launch of several different steps."""
    first, *others = [recorded_result(trial, step, TRANSFER_S, launch=launch) for step in steps]
    for record in first.ranks:
        for name in record.samples:
            record.samples[name] = record.samples[name][:1] + [
                other.ranks[record.rank].samples[name][0] for other in others
            ]
    return first


def _cost(results: list[Result], ranks: int) -> CommunicationCost:
    by_id = {configuration.trial.trial_id: configuration for configuration in configurations(results)}
    return communication_cost(by_id[_trial(ranks).trial_id], by_id[_trial(ranks, silent=True).trial_id])


@pytest.mark.parametrize("ranks", [2, 16])
def test_jitter_is_neither_a_straggler_nor_communication(ranks: int) -> None:
    cost = _cost(_launches(ranks, 0.010, {}), ranks)
    assert cost.communication_s.value == pytest.approx(TRANSFER_S, abs=0.0025)
    assert cost.delay_s is not None and abs(cost.delay_s.value) < 0.003
    assert cost.straggler is not None and not cost.straggler.persistent
    noise = random.Random("reference")
    steps = [[abs(noise.gauss(0.0, 0.010)) for _ in range(ranks)] for _ in range(1000)]
    typical = 0.00798  # the mean of |N(0, σ)| is 0.798 σ
    truth = statistics.fmean(max(step) for step in steps) - typical
    assert cost.random_skew_s is not None
    assert cost.random_skew_s.value == pytest.approx(truth, abs=0.003)


def test_a_slow_rank_is_separated_from_both() -> None:
    cost = _cost(_launches(8, 0.002, {5: 0.030}), 8)
    assert cost.straggler is not None
    assert (cost.straggler.rank, cost.straggler.persistent) == (5, True)
    assert cost.delay_s is not None
    assert cost.delay_s.value == pytest.approx(0.030, abs=0.002)
    assert cost.random_skew_s is not None and abs(cost.random_skew_s.value) < 0.003
    assert cost.communication_s.value == pytest.approx(TRANSFER_S, abs=0.002)


def test_of_two_ranks_the_slow_one_is_behind_the_other() -> None:
    cost = _cost(_launches(2, 0.0, {1: 0.030}), 2)
    assert cost.delay_s is not None
    assert cost.delay_s.value == pytest.approx(0.030)
    assert cost.random_skew_s is not None
    assert cost.random_skew_s.value == pytest.approx(0.0, abs=1e-9)
    assert cost.communication_s.value == pytest.approx(TRANSFER_S)


def test_without_a_record_communication_includes_random_skew() -> None:
    results = _launches(8, 0.010, {}, recorded=False)
    cost = _cost(results, 8)
    assert cost.random_skew_s is None and cost.split is None
    assert cost.communication_s.value > TRANSFER_S + 0.005


def test_one_launch_has_no_straggler_and_random_skew_includes_it() -> None:
    results = [
        make_result(make_trial(), [[BASE_S] * 10]),
        make_result(make_trial(strategy="ddp"), [[BASE_S] * 10]),
        *_launches(8, 0.0, {5: 0.030}, launches=1),
    ]
    row = scaling_rows(configurations(results))[-1]
    assert row.waterfall is not None
    assert row.waterfall.term(STRAGGLERS) is None
    skew = row.waterfall.term(RANDOM_SKEW)
    assert skew is not None and skew.includes == (STRAGGLERS,)
    assert skew.time_s is not None and skew.time_s.value == pytest.approx(0.030)
    assert skew.time_s.low is None


def test_the_definition_is_the_same_without_a_plain_rank() -> None:
    between = _launches(8, 0.005, {5: 0.030})
    alone = [
        make_result(trial, [[BASE_S] * 10], launch=launch)
        for launch in range(5)
        for trial in (make_trial(), make_trial(strategy="ddp"))
    ]
    (row,) = scaling_rows(configurations(between))
    with_plain = scaling_rows(configurations([*alone, *between]))[-1]
    assert row.waterfall is None and with_plain.waterfall is not None
    term = with_plain.waterfall.term(COMMUNICATION)
    assert term is not None and row.communication_s is not None and term.time_s is not None
    assert row.communication_s.value == pytest.approx(term.time_s.value, rel=1e-3)


def test_communication_is_exposed_or_slows_compute() -> None:
    ranks = 4
    trial, silent = _trial(ranks), _trial(ranks, silent=True)
    results = []
    for launch in range(5):
        results.append(make_result(trial, [[BASE_S + 0.03] * 10] * ranks, launch=launch))
        results.append(make_result(silent, [[BASE_S] * 10] * ranks, launch=launch))
        # Compute takes 0.01 longer while gradients travel; 0.02 of the exchange is exposed.
        results.append(recorded_result(trial, [BASE_S + 0.01] * ranks, 0.02, launch=launch))
    split = _cost(results, ranks).split
    assert split is not None
    assert split.exposed_s.value == pytest.approx(0.02)
    assert split.slowed_compute_s.value == pytest.approx(0.01)
