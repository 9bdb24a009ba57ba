"""What the processes of a command measure after its window: planned for what they may turn out to be."""

from collections.abc import Iterable

from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.explanations import (
    BREAKDOWN,
    NO_COMM,
    PRELOADED,
    Phase,
    arrivals_of,
    breakdown_of,
    with_preloaded_input,
    without_communication,
)
from scalescope.experiment.given import Given
from scalescope.experiment.observed import without_observations
from scalescope.experiment.trial import Trial
from scalescope.studies.commands import phases_of
from scalescope.studies.plan import Launch, Plan
from tests.builders.commands import make_command
from tests.simulated.launcher import TWO_CORES

ONE, TWO = (without_observations(make_command(ranks=ranks)) for ranks in (1, 2))


def explained(asked: tuple[Trial, ...]) -> Iterable[Trial]:
    for trial in asked:
        preloaded = with_preloaded_input(trial)
        yield preloaded
        silent = without_communication(preloaded)
        if silent is not None:
            yield silent
            yield arrivals_of(preloaded)


def recorded(asked: tuple[Trial, ...]) -> Iterable[Trial]:
    return [breakdown_of(trial) for trial in asked if trial.world_size == 1]


def named(phase: Phase) -> tuple[str, frozenset[str], bool | None, bool]:
    return phase.trial.benchmark, phase.trial.ablations, phase.needs_loader, phase.once


def test_what_follows_from_a_loader_is_planned_for_scripts_with_and_without_one() -> None:
    phases = phases_of((ONE, TWO), explained, recorded)
    assert [named(phase) for phase in phases[ONE.trial_id]] == [
        ("train", frozenset({PRELOADED}), True, False),
        (BREAKDOWN, frozenset(), None, True),
    ]
    both = frozenset({PRELOADED, NO_COMM})
    assert [named(phase) for phase in phases[TWO.trial_id]] == [
        ("train", frozenset({PRELOADED}), True, False),
        ("arrivals", frozenset({PRELOADED}), True, False),
        ("arrivals", frozenset(), False, False),
        ("train", both, True, False),
        ("train", frozenset({NO_COMM}), False, False),
    ]


def test_trials_are_those_that_a_launch_of_their_own_would_have() -> None:
    seen = TWO.replace(observed_loader=True, observed_wrapper="ddp")
    phases = phases_of((TWO,), explained)[TWO.trial_id]
    assert {trial.trial_id for trial in explained((seen,))} == {
        phase.trial.trial_id for phase in phases if phase.needs_loader
    }


def test_what_is_recorded_once_belongs_to_the_first_launch() -> None:
    experiment = build_experiment("train", "train", {}, {"command": (Given("python train.py", "--"),)}, {})
    phases = phases_of((ONE,), explained, recorded)
    plan = Plan(experiment=experiment, trials=(ONE,), machine=TWO_CORES, phases=phases)
    assert [len(plan.phases_of(Launch(ONE, number))) for number in (0, 1)] == [2, 1]
    assert plan.phases_of(Launch(TWO)) == ()
