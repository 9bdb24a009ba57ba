"""Whether a setting changes what training computes: losses next to those of the current settings."""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.launches import LaunchSummary
from scalescope.analysis.statistics import t_quantile

# ---- Losses: whether two configurations train alike, step by step


_TOLERANCE = 0.02
_STANDS_OUT = 0.99865  # the probability of three standard deviations
_BLOCKS = 8  # of steps that follow each other: the differences of neighbours are alike
_FIRST_STEPS = 4  # that launches of a seeded script have in common
# Of their losses, relative: rounding is below, and other initial values or samples are above in one of them.
_SAME = 5e-4

UnknownLoss = Literal[
    "not seeded",
    "not repeated",  # by launches of the same settings
    "not finite",
    "not seen",
]


class LossComparison(NamedTuple):
    """How much a loss changed, and whether that is a real difference."""

    change: float | None = None
    differs: bool = False
    unknown: UnknownLoss | None = None  # why the losses of a script cannot be compared


def loss_of(baseline: Configuration, configuration: Configuration) -> LossComparison:
    """Relative change of the loss over the later half of the steps both made, and whether it is a real one.

    The same steps see the same samples, so they are compared one by one, from the first step of a launch on;
    in the same time a faster configuration makes more of them. Where they differ to and fro, as by other
    random numbers for dropout, only a difference that stands out from that is one.
    """
    if baseline.trial.is_command:
        was_bad = any(launch.has_bad_loss for launch in baseline.launches)
        if not was_bad and any(launch.has_bad_loss for launch in configuration.launches):
            return LossComparison(differs=True)
        unknown = "not finite" if was_bad else _why_unknown(baseline, configuration)
        if unknown is not None:
            return LossComparison(unknown=unknown)
    both = list(zip(*_aligned(baseline, configuration), strict=False))
    later = both[len(both) // 2 :]
    return LossComparison(*loss_change([left for left, _ in later], [right for _, right in later]))


def _why_unknown(baseline: Configuration, configuration: Configuration) -> UnknownLoss | None:
    """Why the losses of a script say nothing; only what trains from the same start can be compared.

    Launches that repeat each other's losses are evidence; of a single one, whether the script sets a seed.
    """
    begins = [_beginning(launch) for launch in baseline.launches if launch.losses]
    if not begins or not any(launch.losses for launch in configuration.launches):
        return "not seen"
    is_seeded = all(launch.is_seeded for launch in baseline.launches)
    if len(begins) == 1:
        return None if is_seeded else "not seeded"
    if all(_are_same(begins[0], other) for other in begins[1:]):
        return None
    return "not repeated" if is_seeded else "not seeded"


def _beginning(launch: LaunchSummary) -> list[float]:
    return list(itertools.islice((*(launch.warmup_losses or ()), *launch.losses), _FIRST_STEPS))


def _are_same(left: Sequence[float], right: Sequence[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=_SAME) for a, b in zip(left, right, strict=False))


def loss_change(before: Sequence[float], after: Sequence[float]) -> tuple[float | None, bool]:
    """Relative change of the loss over the steps both made, and whether it is a real one.

    Where rounding alone leads training elsewhere, as with two models that learn against each other, losses
    differ to and fro over many steps. So only what stands out from differences between blocks counts.
    """
    steps = min(len(before), len(after))
    before, after = before[:steps], after[:steps]
    # A loss that changes its sign is small in the mean.
    scale = max(abs(statistics.fmean(before)), statistics.pstdev(before)) if before else 0.0
    if scale == 0.0:
        return None, False
    differences = [right - left for left, right in zip(before, after, strict=True)]
    change = statistics.fmean(differences) / scale
    if steps == 1:
        return change, abs(change) > _TOLERANCE
    blocks = min(_BLOCKS, steps)
    ends = [steps * block // blocks for block in range(blocks + 1)]
    means = [statistics.fmean(differences[first:end]) for first, end in itertools.pairwise(ends)]
    error = statistics.stdev(means) / math.sqrt(blocks) / scale
    return change, abs(change) > max(_TOLERANCE, t_quantile(_STANDS_OUT, blocks - 1) * error)


def _aligned(left: Configuration, right: Configuration) -> tuple[list[float], list[float]]:
    """The losses of both from the same step on; empty where nobody knows which steps they are.

    Launches that warm up for a time make different numbers of steps before those they measure.
    """
    launches = [launch for launch in (*left.launches, *right.launches) if launch.losses]
    if all(launch.warmup_losses is not None for launch in launches):
        return _from_the_first(left), _from_the_first(right)
    if len({launch.warmup_steps for launch in launches}) > 1:
        return [], []
    return _measured(left), _measured(right)


def _from_the_first(configuration: Configuration) -> list[float]:
    """The losses of all steps, as a mean over launches."""
    per_launch = [
        (*(launch.warmup_losses or ()), *launch.losses) for launch in configuration.launches if launch.losses
    ]
    return [statistics.fmean(step) for step in zip(*per_launch, strict=False)]


def _measured(configuration: Configuration) -> list[float]:
    """The losses of the window, step by step, as a mean over launches."""
    per_launch = [launch.losses for launch in configuration.launches if launch.losses]
    return [statistics.fmean(step) for step in zip(*per_launch, strict=False)]


# ---- LossCheck: whether the recommended settings train as the current ones do, over many steps of each


LAST_SHARE = 0.25  # of the steps: what training came to


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCheck:
    """The losses of two launches, step by step, and how much they differ at the end."""

    steps: int  # that were asked for
    current: tuple[float, ...] = ()  # with the settings as they are
    winner: tuple[float, ...] = ()
    change: float | None = None  # over the last quarter; None where it is unknown
    differs: bool = False
    failure: str | None = None  # of the launch with the recommended settings
    unknown: str | None = None  # why nothing can be compared

    @property
    def last_steps(self) -> int:
        """How many steps at the end are compared."""
        both = min(len(self.current), len(self.winner))
        return both - _first_of_last(both)

    @property
    def refuses(self) -> bool:
        """Whether what is faster cannot be recommended."""
        return self.differs or self.failure is not None


def check_losses(steps: int, current: Sequence[float], winner: Sequence[float]) -> LossCheck:
    """The losses of the same steps with both settings, compared over the last quarter of them."""
    first = _first_of_last(min(len(current), len(winner)))
    change, differs = loss_change(current[first:], winner[first:])
    return LossCheck(
        steps=steps, current=tuple(current), winner=tuple(winner), change=change, differs=differs
    )


def _first_of_last(steps: int) -> int:
    return steps - max(1, round(steps * LAST_SHARE)) if steps else 0
