"""Rounds: which launches are held against each other, and what a round adds to all of its launches."""

import math

import pytest

from scalescope.analysis.configurations import configurations
from scalescope.analysis.rounds import Cell, comparable, round_effects
from scalescope.analysis.scaling.rows import OTHER_LOAD, not_compared, scaling_rows
from scalescope.results.other_load import OtherLoad
from scalescope.results.result import Result
from tests.builders.results import make_result, make_trial

QUIET = OtherLoad(cores=2, other_cores=0.05, rank_waits=(0.0,))
BESIDE_ONE = OtherLoad(cores=2, other_cores=1.0, rank_waits=(0.01,))  # a busy loop beside one rank
BESIDE_TWO = OtherLoad(cores=2, other_cores=0.67, rank_waits=(0.33, 0.33))  # the same loop beside two
BUILD = OtherLoad(cores=2, other_cores=1.6, rank_waits=(0.6, 0.6))

ONE, TWO = make_trial(), make_trial(strategy="ddp", world_size=2)


def cell(name: str, number: int, load: OtherLoad, *, threads: int = 1) -> Cell:
    return Cell(configuration=name, round=number, load=load, threads=threads)


def result(step_s: float, number: int, ranks: int, load: OtherLoad) -> Result:
    trial = ONE if ranks == 1 else TWO
    made = make_result(trial, [[step_s] * 10] * ranks, launch=number)
    made.telemetry["load"] = load.to_json()
    return made


def test_the_same_load_beside_one_and_two_ranks_is_alike() -> None:
    assert BESIDE_ONE.demand_of_others(1) == pytest.approx(1.0)
    assert BESIDE_TWO.demand_of_others(2) == pytest.approx(1.0, abs=0.02)
    one, two = cell("1", 0, BESIDE_ONE), cell("2", 0, BESIDE_TWO, threads=2)
    assert not BESIDE_ONE.disturbs and BESIDE_TWO.disturbs
    assert one.is_alike(two) and two.is_alike(one)


def test_a_launch_counts_next_to_alike_ones_of_its_round_alone() -> None:
    cells = [
        cell("1", 0, QUIET), cell("2", 0, QUIET, threads=2),
        cell("1", 1, QUIET), cell("2", 1, BUILD, threads=2),
        cell("1", 2, BESIDE_ONE), cell("2", 2, BESIDE_TWO, threads=2),
    ]  # fmt: skip
    assert comparable(cells) == [True, True, False, False, True, True]


def test_undisturbed_rounds_alone_count_where_there_are_enough() -> None:
    quiet = [cell(name, number, QUIET) for number in range(3) for name in "12"]
    busy = [cell("1", 3, BESIDE_ONE), cell("2", 3, BESIDE_TWO, threads=2)]
    assert comparable([*quiet, *busy])[-1] is False
    assert comparable([*quiet[:4], *busy]) == [True] * 6


def test_round_and_configuration_effects_are_separated_where_launches_are_missing() -> None:
    rounds, levels = (0.0, -1.2, 0.3, 0.9), {"a": 1.0, "b": 2.5, "c": -0.5}
    missing = {(1, "a"), (2, "c"), (3, "b")}
    values = {
        (number, name): effect + level
        for number, effect in enumerate(rounds)
        for name, level in levels.items()
        if (number, name) not in missing
    }
    mean = sum(rounds) / len(rounds)
    found = round_effects(values)
    assert [found[number] for number in range(4)] == pytest.approx([effect - mean for effect in rounds])


def test_what_shares_no_round_is_left_as_it_was_measured() -> None:
    assert round_effects({(0, "a"): 1.0, (1, "a"): 2.0}) == {}
    (alone,) = configurations([result(0.01, 0, 1, QUIET), result(0.03, 1, 1, QUIET)])
    assert list(alone.mean_steps_s) == pytest.approx([0.01, 0.03])


def test_a_busy_machine_is_compared_round_by_round() -> None:
    """The rounds of decision 32: two quiet, two under load, one in which only two ranks met another job."""
    one = (93, 92, 328, 338, 324)
    two = (169, 132, 360, 488, 4246)
    loads = (QUIET, QUIET, BESIDE_ONE, BESIDE_ONE, BESIDE_ONE), (QUIET, QUIET, BESIDE_TWO, BESIDE_TWO, BUILD)
    results = [result(ms / 1e3, number, 1, loads[0][number]) for number, ms in enumerate(one)]
    results += [result(ms / 1e3, number, 2, loads[1][number]) for number, ms in enumerate(two)]
    known = configurations(results)
    *_, row = scaling_rows(known)
    ratios = [math.log(2 * alone / both) for alone, both in list(zip(one, two, strict=True))[:4]]
    assert row.speedup.value == pytest.approx(math.exp(sum(ratios) / 4))
    assert row.speedup.low is not None and 0.9 < row.speedup.low < 1.1
    speeds = [configuration.speed.value for configuration in known]
    assert speeds[1] / speeds[0] == pytest.approx(row.speedup.value)  # the table agrees with itself


def test_a_ratio_is_unknown_where_no_round_had_alike_load() -> None:
    results = [result(0.1, number, 1, QUIET) for number in range(3)]
    results += [result(0.4, number, 2, BUILD) for number in range(3)]
    known = configurations(results)
    assert [row.ranks for row in scaling_rows(known)] == [1]
    (left_out,) = not_compared(known)
    assert left_out.reason == OTHER_LOAD and [m.trial.world_size for m in left_out.members] == [2]
