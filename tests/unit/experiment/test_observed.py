"""What launches of a command show: its batch, and whether ranks bring or share it."""

from typing import Any

import pytest

from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.observed import (
    ObservedLaunch,
    as_observed,
    observations,
    without_observations,
)
from scalescope.experiment.trial import Trial
from scalescope.experiment.yaml_file import Given
from scalescope.launch.fake import TWO_CORES

COMMAND = "torchrun --nproc-per-node={world_size} train.py"


def trial_of(ranks: int, command: str = COMMAND, **settings: object) -> Trial:
    texts = {"command": command, "world_size": ranks, **settings}
    flags = {name: (Given(str(value), f"--{name}"),) for name, value in texts.items()}
    (trial,) = expand(build_experiment("scale", "train", {}, flags, {}), TWO_CORES).trials
    return trial


def launch_of(trial: Trial, samples: float | None, **observed: object) -> ObservedLaunch:
    """A launch whose ranks counted so many samples per step."""
    counters: dict[str, Any] = {f"observed/{name}": value for name, value in observed.items()}
    counters |= {"measured_steps": 10}
    counters |= {} if samples is None else {"measured_samples": 10 * samples}
    return ObservedLaunch(trial=trial, ranks=[counters] * trial.world_size)


def observed_trials(*launches: ObservedLaunch) -> list[Trial]:
    facts = observations(launches)
    return [as_observed(launch.trial, facts) for launch in launches]


def test_samples_say_whether_scaling_is_weak_or_strong() -> None:
    one, two = observed_trials(launch_of(trial_of(1), 32), launch_of(trial_of(2), 32.1))
    assert (one.mode, two.mode) == ("weak", "weak")
    assert (one.rank_batch_size, two.rank_batch_size, two.samples_per_step) == (32, 32, 64)
    one, two = observed_trials(launch_of(trial_of(1), 64), launch_of(trial_of(2), 32))
    assert (one.mode, two.mode) == ("strong", "strong")
    assert (two.given_batch_size, two.rank_batch_size, two.samples_per_step) == (64, 32, 64)
    (two,) = observed_trials(launch_of(trial_of(2), 16))
    assert (two.mode, two.rank_batch_size) == ("weak", 16)
    one, two = observed_trials(launch_of(trial_of(1), 64), launch_of(trial_of(2), 48))
    assert (one.rank_batch_size, two.rank_batch_size) == (64, 48)
    other = as_observed(trial_of(4), observations([launch_of(trial_of(1), 64), launch_of(trial_of(2), 48)]))
    assert not other.has_known_batch


def test_a_batch_that_was_given() -> None:
    trial = trial_of(2, f"{COMMAND} --batch {{global_batch_size}}", global_batch_size=64)
    (two,) = observed_trials(launch_of(trial, 32))
    assert (two.mode, two.global_batch_size, two.rank_batch_size) == ("strong", 64, 32)
    trial = trial_of(1, f"{COMMAND} --batch {{batch_size}}", batch_size=8)
    (accumulating,) = observed_trials(launch_of(trial, 32))
    assert (accumulating.batch_size, accumulating.rank_batch_size) == (8, 32)
    launches = [launch_of(trial_of(ranks, samples_per_step=24), None) for ranks in (1, 2)]
    assert [trial.rank_batch_size for trial in observed_trials(*launches)] == [24, 24]


def test_without_a_count_of_every_rank_nothing_is_known() -> None:
    (trial,) = observed_trials(launch_of(trial_of(2), None))
    assert not trial.has_known_batch
    assert (trial.rank_batch_size, trial.given_batch_size, trial.samples_per_step) == (0, 0, 0)
    assert (trial.mode, trial.label) == ("weak", "script, 2 ranks")
    known = launch_of(trial_of(2), 32)
    partly = ObservedLaunch(trial=known.trial, ranks=[known.ranks[0], {"measured_steps": 10}])
    (trial,) = observed_trials(partly)
    assert not trial.has_known_batch


def test_the_unit_and_the_wrapper_are_named() -> None:
    (trial,) = observed_trials(launch_of(trial_of(2), 4096, unit="tokens"))
    assert trial.settings["observed_unit"] == "tokens"
    assert trial.label == "script, 2 ranks, batch 4096 tokens"
    one, two = observed_trials(
        launch_of(trial_of(1), 8, wrapper="none"), launch_of(trial_of(2), 8, wrapper="fsdp2")
    )
    assert one.settings["observed_wrapper"] == two.settings["observed_wrapper"] == "fsdp2"


@pytest.mark.parametrize(("values", "expected"), [((0, 0), False), ((0, 1), True)])
def test_a_loader_is_one_that_any_launch_showed(values: tuple[int, int], expected: bool) -> None:
    launches = [launch_of(trial_of(n), 8, loader=value) for n, value in zip((1, 2), values, strict=True)]
    assert observed_trials(*launches)[0].settings["observed_loader"] is expected


def test_jobs_with_other_values_are_apart() -> None:
    small = trial_of(1, f"{COMMAND} -b {{batch_size}}", batch_size=8)
    large = trial_of(1, f"{COMMAND} -b {{batch_size}}", batch_size=64)
    assert [t.rank_batch_size for t in observed_trials(launch_of(small, 8), launch_of(large, 64))] == [8, 64]


def test_observations_leave_the_identity_and_can_be_taken_away() -> None:
    asked = trial_of(2)
    (trial,) = observed_trials(launch_of(asked, 8, wrapper="ddp", unit="samples", loader=1))
    assert trial.trial_id == asked.trial_id
    assert trial.settings != asked.settings
    assert without_observations(trial).settings == asked.settings
