"""Plan: all launches of a run, in their order."""

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scalescope.experiment.experiment import Experiment
from scalescope.experiment.explanations import SPREAD, Phase, job_key, strategy_settings
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.report.section import Section
from scalescope.results.result import Stage


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a trial, by the number that tells it from the trial's other launches."""

    trial: Trial
    number: int = 0
    stage: Stage | None = None  # of a search
    at_most_s: float | None = None  # it is stopped then, to leave time for others
    label: str | None = None  # what it is for, in words: "trying precision bf16"
    # Launches of one number and one block are held against each other: they are made next to each other.
    block: str = ""
    explains: bool = False  # what other launches answer
    phases: tuple[Phase, ...] = ()  # what it measures after its window, besides what the plan says

    @property
    def key(self) -> tuple[str, int]:
        return self.trial.trial_id, self.number


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All trials of a run and the request they come from."""

    experiment: Experiment
    trials: tuple[Trial, ...]
    machine: Machine
    notes: tuple[str, ...] = ()
    preview: tuple[Section, ...] = ()  # what --dry-run shows, where it is not the list of trials
    once: tuple[Trial, ...] = ()  # launched once, after the first round
    # Launched first in every round, by id: what was asked for, before what only explains it.
    first: frozenset[str] = frozenset()
    explains_failures: bool = True  # False: a job that failed is not launched again with a part removed
    continues: bool = False  # only the first round is planned: its results decide on the others
    chosen: tuple[Launch, ...] | None = None  # these launches in this order, instead of rounds
    only: tuple[int, ...] | None = None  # the launch numbers to make, where several commands share a run
    only_next: bool = False  # the study's next launch, where several commands make them in turn
    budget_since: str | None = None  # launches that started before do not count against the budget
    # Without a budget: when no further round is begun; the first one is always complete.
    usual_s: float | None = None
    started_s: float | None = None  # on the monotonic clock: when the budget began; None: with the campaign
    # By the id of a trial, what its launches measure after their window in the same start.
    phases: Mapping[str, tuple[Phase, ...]] = field(default_factory=dict)
    environment: str | None = None  # id of the machine that began the run, where another of its kind goes on

    @property
    def all_trials(self) -> tuple[Trial, ...]:
        return (*self.trials, *self.once)

    def phases_of(self, launch: Launch) -> tuple[Phase, ...]:
        """What a launch measures after its window in the same start."""
        phases = (*launch.phases, *self.phases.get(launch.trial.trial_id, ()))
        return tuple(phase for phase in phases if launch.number == 0 or not phase.once)

    def launches(self) -> list[Launch]:
        """Every launch in order: round after round, each round in a random order of its own.

        Rounds keep the comparison fair when the machine changes over time, and balanced when a budget
        ends the run early. What was asked for comes first in each, so that a budget costs explanations
        before it costs answers; what is compared with each other is launched next to each other.
        """
        if self.chosen is not None:
            return list(self.chosen)
        launches = [
            Launch(
                trial,
                block=job_key(trial, ignoring=SPREAD | strategy_settings()),
                explains=bool(self.first) and trial.trial_id not in self.first,
            )
            for trial in self.trials
        ]
        ordered: list[Launch] = []
        for number in range(1 if self.continues else self.experiment.measuring.repeats):
            chance = random.Random(f"{self.experiment.measuring.order_seed}/{number}")
            ordered.extend(dataclasses.replace(launch, number=number) for launch in _mixed(launches, chance))
            if number == 0:
                ordered.extend(Launch(trial, number, explains=True) for trial in self.once)
        return ordered

    def launches_to_make(self) -> list[tuple[int, Launch]]:
        """The launches that this command makes, with their position in the order of all."""
        numbered = enumerate(self.launches())
        return [(order, launch) for order, launch in numbered if self.includes(launch.number)]

    def includes(self, number: int) -> bool:
        """Whether this command makes the launches of that number."""
        return self.only is None or number in self.only

    def has_new_answer(self, ordered: Sequence[tuple[int, Launch]], index: int) -> bool:
        """Whether what was asked for in a round is complete with this launch, and more launches follow."""
        following = [launch for _, launch in ordered[index : index + 2]]
        if len(following) < 2:
            return self.continues or self.chosen is not None
        launch, after = following
        return not launch.explains and (after.explains or launch.number != after.number)

    @property
    def is_shared(self) -> bool:
        """Whether other commands make launches of this run too."""
        return self.only_next or self.only is not None

    @property
    def is_last(self) -> bool:
        """Whether all launches have been made once those of this command are."""
        return self.only is None or self.experiment.measuring.repeats - 1 in self.only


def _mixed(launches: Sequence[Launch], chance: random.Random) -> list[Launch]:
    """A random order of blocks, and of the launches in each; answers before explanations."""
    by_id = sorted(launches, key=lambda launch: launch.trial.trial_id)
    chance.shuffle(by_id)
    blocks = list(dict.fromkeys(launch.block for launch in by_id))
    return sorted(by_id, key=lambda launch: (launch.explains, blocks.index(launch.block)))
