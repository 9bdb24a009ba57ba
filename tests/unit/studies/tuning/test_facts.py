"""What the launches of a search show of a step, as shares of it."""

import dataclasses
from typing import Any

import pytest

from scalescope.experiment.explanations import breakdown_of, without_communication
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from scalescope.results.traces import step_parts
from scalescope.studies.tuning.facts import absent_needs, parts_of_trial
from tests.builders.results import make_result, make_trial

ONE = make_trial(world_size=1)
TWO = make_trial(world_size=2)


def result(trial: Trial, step_s: float, **host_s: Any) -> Result:
    """A launch with that step, and the host's time by part of it."""
    made = make_result(trial, [[step_s] * 10] * trial.world_size)
    counters = {f"host/{part}_s": time_s for part, time_s in host_s.items()}
    ranks = [dataclasses.replace(record, counters={**record.counters, **counters}) for record in made.ranks]
    return dataclasses.replace(made, ranks=ranks)


def test_nothing_is_known_before_a_launch() -> None:
    assert parts_of_trial([], ONE, ONE) is None
    failed = dataclasses.replace(result(ONE, 0.01), status="failed", ranks=[])
    assert parts_of_trial([failed], ONE, ONE) is None


def test_a_plain_launch_computes_all_the_time() -> None:
    parts = parts_of_trial([result(ONE, 0.01)], ONE, ONE)
    assert parts is not None
    assert parts.device == pytest.approx(1.0)
    assert parts.times["communication"] == 0.0
    assert parts.times["prepare"] == 0.0


def test_waiting_for_input_is_a_share_of_the_step() -> None:
    made = result(ONE, 0.01, input=0.005, optimizer=0.0006)
    counters = {"loader_s": 0.004, "copy_s": 0.001, "loader/workers": 0}
    ranks = [dataclasses.replace(record, counters={**record.counters, **counters}) for record in made.ranks]
    parts = parts_of_trial([dataclasses.replace(made, ranks=ranks)], ONE, ONE)
    assert parts is not None
    assert parts.times["prepare"] == pytest.approx(0.4)  # what copying waits for is not input
    assert parts.device == pytest.approx(0.6)
    assert parts.times["optimizer"] == pytest.approx(0.06)


ON_GPU = make_trial(world_size=1, strategy="single").replace(device="cuda")


def recorded(**counters: float) -> Result:
    """Recorded steps that compute for 8 of 10 ms, and wait for input else."""
    made = make_result(breakdown_of(ON_GPU), [[0.010] * 10])
    times = {"forward_s": 0.004, "backward_s": 0.004, "idle_input_s": 0.002, "step_s": 0.010}
    samples = {f"parts/{name}": [times.get(name, 0.0)] * 10 for name in (*step_parts.PARTS, "step_s")}
    ranks = [dataclasses.replace(record, samples=samples, counters=counters) for record in made.ranks]
    return dataclasses.replace(made, ranks=ranks)


@pytest.mark.parametrize("seen", [(), (recorded(),)], ids=["timed", "recorded"])
def test_what_a_process_takes_for_a_batch_is_known_beside_what_the_rank_takes(seen: tuple[Result]) -> None:
    made = result(ON_GPU, 0.010)
    counters = {"loader_s": 0.002, "loader/prepare_s": 0.002, "loader/process_s": 0.02, "loader/workers": 0}
    ranks = [dataclasses.replace(record, counters={**record.counters, **counters}) for record in made.ranks]
    parts = parts_of_trial([dataclasses.replace(made, ranks=ranks), *seen], ON_GPU, ON_GPU)
    assert parts is not None
    assert parts.times["prepare"] == pytest.approx(0.2)
    assert parts.process_prepare == pytest.approx(2.0)


def test_reordering_images_is_a_part_of_convolutions() -> None:
    seen = recorded(matrix_product_s=0.003, convolution_s=0.002, layout_s=0.001)
    parts = parts_of_trial([result(ON_GPU, 0.010), seen], ON_GPU, ON_GPU)
    assert parts is not None
    assert parts.times["convolutions"] == pytest.approx(0.3)
    assert parts.times["products"] == pytest.approx(0.1)
    assert parts.times["kernels"] == pytest.approx(0.4)


def test_communication_is_what_the_same_without_it_saves() -> None:
    silent = without_communication(TWO)
    assert silent is not None
    measured = [result(TWO, 0.010), result(silent, 0.006)]
    parts = parts_of_trial(measured, TWO, TWO)
    assert parts is not None
    assert parts.times["communication"] == pytest.approx(0.4)
    faster = TWO.replace(precision="bf16")
    parts = parts_of_trial([*measured, result(faster, 0.008)], faster, TWO)
    assert parts is not None
    assert parts.times["communication"] == pytest.approx(0.5)  # the same time of a shorter step


def test_a_launch_without_communication_that_is_slower_shows_none() -> None:
    silent = without_communication(TWO)
    assert silent is not None
    parts = parts_of_trial([result(TWO, 0.010), result(silent, 0.011)], TWO, TWO)
    assert parts is not None and parts.times["communication"] == 0.0


def test_unknown_communication_of_several_ranks_is_not_none() -> None:
    parts = parts_of_trial([result(TWO, 0.010)], TWO, TWO)
    assert parts is not None and parts.times["communication"] > 0.0


@pytest.mark.parametrize(("counted", "absent"), [(0, True), (3, False), (None, False)])
def test_a_model_without_convolutions_is_known_by_its_launch(counted: int | None, absent: bool) -> None:
    launch = result(ONE, 0.1)
    if counted is not None:
        launch.ranks[0].counters["convolutions"] = counted
    assert ("convolutions" in absent_needs([launch], ONE)) is absent
    assert absent_needs([], ONE) == {}
