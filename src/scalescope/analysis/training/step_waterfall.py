"""The waterfall of one rank's step: what it consists of, in terms that add up to the measured step.

On a GPU the terms come from recorded steps: each instant of the GPU's timeline belongs to one of them. The
profiler slows the host and not the kernels, so the time of kernels and copies is taken as recorded, and idle
time is what the step without a profiler leaves, divided as in the recorded steps. On the CPU the host's clock
around each part gives the terms. What an ablation measures replaces what a trace says.
"""

from dataclasses import dataclass
from typing import Literal

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.statistics import Estimate
from scalescope.analysis.training.activity import RankActivity
from scalescope.analysis.training.recording import StepRecording
from scalescope.experiment.trial import Trial

FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
OTHER_KERNELS = "other kernels"
COMMUNICATION = "communication"  # of several ranks
COPIES = "copies"
IDLE_INPUT = "idle: waiting for input"
IDLE_SYNC = "idle: after a synchronization"
IDLE_HOST = "idle: host too slow"
IDLE_UNKNOWN = "idle: unknown"
INPUT = "input"  # on the CPU, which is not idle meanwhile
REST = "rest"

TermSource = Literal["trace", "ablation", "clock", "rest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTerm:
    """A part of the step."""

    name: str
    time_s: Estimate
    source: TermSource


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWaterfall:
    """A measured step and its terms, which add up to it."""

    trial: Trial
    step_s: float
    ideal_s: float | None  # the model's operations at the speed of a bare matrix product in this precision
    terms: tuple[StepTerm, ...]
    bottleneck_rank: int | None = None  # whose recording it is, of several

    def term(self, name: str) -> StepTerm | None:
        return next((term for term in self.terms if term.name == name), None)

    def time_s(self, name: str) -> float:
        """Of a term; 0 where the step has none of that name."""
        term = self.term(name)
        return 0.0 if term is None else term.time_s.value


def step_waterfall(
    configuration: Configuration,
    recording: StepRecording | None,
    activities: tuple[RankActivity, ...],
    *,
    preloaded: Configuration | None = None,
    without_optimizer: Configuration | None = None,
) -> StepWaterfall | None:
    """The waterfall of a configuration; None where nothing tells what its steps consist of."""
    return None
