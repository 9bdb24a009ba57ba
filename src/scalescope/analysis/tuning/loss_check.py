"""LossCheck: whether the recommended settings train as the current ones do, over many steps of each."""

from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.analysis.tuning.losses import loss_change

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
