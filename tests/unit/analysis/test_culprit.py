"""Which rank the others wait for."""

from scalescope.analysis.culprit import find_culprit, last_to_arrive


def test_the_rank_that_is_slowest_in_most_launches_is_the_culprit() -> None:
    straggler = find_culprit([(1.0, 1.0, 3.0), (1.0, 1.0, 2.0), (1.5, 1.0, 1.0)])
    assert (straggler.rank, straggler.persistent) == (2, False)
    assert abs(straggler.time_s - (2.0 + 1.0 - 0.25) / 3) < 1e-12


def test_a_rank_that_is_slowest_in_every_launch_is_persistent() -> None:
    assert find_culprit([(2.0, 1.0), (3.0, 1.0)]).persistent


def test_the_rank_that_waits_least_arrives_last() -> None:
    assert last_to_arrive([(3.0, 1.0), (2.0, 1.0), (2.0, 1.5), (1.0, 1.5)]) == 1
    assert last_to_arrive([(3.0, 1.0), (1.0, 2.0)]) is None
    assert last_to_arrive([(3.0,), (1.0,)]) is None
