"""Plan: all launches of a run, in their order."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.experiment.experiment import Experiment
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
    at_most_s: float | None = None  # it is ended then, so that others can still be made
    label: str | None = None  # what it is for, in words: "trying precision bf16"

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
    started_s: float | None = None  # on the monotonic clock: when the budget began; None: with the campaign
    environment: str | None = None  # id of the machine that began the run, where another of its kind goes on

    @property
    def all_trials(self) -> tuple[Trial, ...]:
        return (*self.trials, *self.once)

    def launches(self) -> list[Launch]:
        """Every launch in order: round after round, each round in a random order of its own.

        Rounds keep the comparison fair when the machine changes over time, and balanced when a budget
        ends the run early. What was asked for comes first in each, so that a budget costs explanations
        before it costs answers.
        """
        if self.chosen is not None:
            return list(self.chosen)
        ordered: list[Launch] = []
        for number in range(1 if self.continues else self.experiment.measuring.repeats):
            round_of_trials = sorted(self.trials, key=lambda trial: trial.trial_id)
            random.Random(f"{self.experiment.measuring.order_seed}/{number}").shuffle(round_of_trials)
            round_of_trials.sort(key=lambda trial: trial.trial_id not in self.first)
            ordered.extend(Launch(trial, number) for trial in round_of_trials)
            if number == 0:
                ordered.extend(Launch(trial, number) for trial in self.once)
        return ordered

    def launches_to_make(self) -> list[tuple[int, Launch]]:
        """The launches that this command makes, with their position in the order of all."""
        numbered = enumerate(self.launches())
        return [(order, launch) for order, launch in numbered if self.includes(launch.number)]

    def includes(self, number: int) -> bool:
        """Whether this command makes the launches of that number."""
        return self.only is None or number in self.only

    def ends_part(self, ordered: Sequence[tuple[int, Launch]], index: int) -> bool:
        """Whether a round, or what was asked for in it, is complete with this launch."""
        if index + 1 == len(ordered):
            return True
        (_, launch), (_, following) = ordered[index : index + 2]
        both_asked = (launch.trial.trial_id in self.first) == (following.trial.trial_id in self.first)
        return launch.number != following.number or not both_asked

    @property
    def is_shared(self) -> bool:
        """Whether other commands make launches of this run too."""
        return self.only_next or self.only is not None

    @property
    def is_last(self) -> bool:
        """Whether all launches have been made once those of this command are."""
        return self.only is None or self.experiment.measuring.repeats - 1 in self.only
