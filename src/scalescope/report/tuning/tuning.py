"""Tuning: what a search tried and found, as data that sentences, tables and JSON are made of."""

from dataclasses import dataclass
from typing import Literal

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.statistics import Estimate
from scalescope.analysis.tuning.loss_check import LossCheck
from scalescope.analysis.tuning.losses import UnknownLoss
from scalescope.analysis.tuning.search import Support
from scalescope.analysis.verdicts import Verdict
from scalescope.catalog.setting import Change
from scalescope.experiment.trial import Trial

NOW = ""  # the baseline's name among jobs
LeverStatus = Literal[
    "recommended",  # part of what is recommended
    "kept",  # part of the best, which is not recommended
    "dropped",  # helped when it was added, and gave nothing in the end
    "no gain",
    "slower",
    "undecided",
    "failed",
    "loss differs",
    "not measured",
    "unpromising",  # not launched: nothing is expected of it, by the facts of the job
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedCombination:
    """Settings that were measured together, against the current ones."""

    levers: tuple[str, ...]  # empty: the current settings
    configuration: Configuration
    speedup: Estimate
    verdict: Verdict | None  # None: a single launch, or the current settings themselves
    loss_change: float | None = None
    loss_differs: bool = False
    loss_unknown: UnknownLoss | None = None  # why losses could not be compared, of a script
    is_confirmed: bool = False  # the speedup is that of new launches, made in turns with the current settings
    failure: str | None = None  # of a launch, where others worked

    @property
    def is_usable(self) -> bool:
        """Whether it may be recommended where it is faster."""
        return not self.loss_differs and self.failure is None


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedLever:
    """A lever, and what it gave where it was added."""

    name: str
    trial_id: str  # of the lever alone
    changes: Change
    status: LeverStatus
    added_to: tuple[str, ...] = ()
    speedup: Estimate | None = None  # over what it was added to
    support: Support | None = None  # of a recommended lever
    launches: int = 0  # of the combination in which it was new
    reason: str | None = None  # why it failed
    usual_cause: str | None = None  # of such failures
    may_give: float | None = None  # where it was not measured: the speedup to expect on top of the fastest


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherJob:
    """A job that trains something else, such as a larger batch: compared by sample and by how it scales."""

    name: str  # NOW: the job as it is
    configuration: Configuration
    speedup: Estimate  # of a sample, over the job as it is
    scaling: Estimate | None = None  # all ranks over one


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptArgument:
    """An argument of a training command's own that does what a lever did."""

    setting: str
    text: str  # as it is typed, with its value where that is known
    is_known: bool = False  # rather than guessed from its name


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The results of a tuning run."""

    baseline: Trial
    combinations: tuple[TriedCombination, ...] = ()  # every launch that finished is in one of them
    levers: tuple[TriedLever, ...] = ()
    other_jobs: tuple[OtherJob, ...] = ()
    without_communication: Configuration | None = None  # the current settings, measured to order the levers
    inapplicable: tuple[tuple[str, str], ...] = ()  # (lever, why)
    winner: tuple[str, ...] = ()  # the best levers; empty: the current settings
    recommended: bool = False
    is_confirmed: bool = False
    gain: Estimate | None = None  # of the winner
    at_most: float | None = None  # nothing that was tried is faster than that, as a share
    baseline_failure: str | None = None
    finished: bool = True
    budget_ended: bool = True  # where it is not finished: for want of time, not because launches failed
    winner_trial: Trial | None = None  # the winner as one trial
    one_launch_each: bool = False  # by ranks that stay the same processes: there is no verdict
    loss_steps: int | None = None  # over which losses were to be compared; None: that was not asked for
    loss_check: LossCheck | None = None  # of the winner
    arguments: tuple[ScriptArgument, ...] = ()  # of a command, for what is recommended

    @property
    def tried(self) -> tuple[TriedLever, ...]:
        """The levers that were launched."""
        return tuple(lever for lever in self.levers if lever.status not in ("not measured", "unpromising"))

    @property
    def has_script(self) -> bool:
        """Whether a script or a function of one's own is trained."""
        return self.baseline.workload_card.brings_data or self.baseline.is_command

    def changing_numbers(self, levers: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the levers that change what is computed."""
        changing = {lever.name for lever in self.levers if lever.changes != "nothing"}
        return tuple(name for name in levers if name in changing)

    @property
    def unconfirmed(self) -> tuple[str, ...]:
        """Recommended levers that were not measured again at the end, one by one."""
        return tuple(
            lever.name
            for lever in self.levers
            if lever.status == "recommended" and lever.support != "confirmed"
        )
