"""Conclusion: what a search found, from its launches alone."""

import math
from dataclasses import dataclass
from typing import Literal

from scalescope.analysis.tuning.confirmation import Confirmation
from scalescope.analysis.tuning.search import SearchPosition, TuningSearch
from scalescope.analysis.tuning.tuned_launches import BASELINE, Combination, SpeedDifference, TunedLaunches

_ERROR = 0.05  # of the bound on everything that was tried
_END_OF_INTERVAL = 0.025  # of an interval of 95 %: the bound is not below one of those that tables show

Support = Literal["confirmed", "when added", "untested"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What to use, how sure that is, and what is still possible."""

    winner: Combination  # empty: the settings as they are
    recommended: bool
    gain: SpeedDifference | None  # of the winner, in the launches that confirm it; else in all
    is_confirmed: bool  # in new launches
    support: dict[str, Support]  # of each lever of the winner
    dropped: Combination  # levers that helped when added, and gave nothing in the end
    unpromising: frozenset[str]  # levers of which nothing is expected here
    at_most: float | None  # nothing that was tried is faster than the baseline by more than this share


def conclude(search: TuningSearch, measured: TunedLaunches) -> Conclusion:
    """What the launches so far allow to say."""
    position = SearchPosition(search=search, measured=measured)
    if not measured.count(BASELINE):
        return Conclusion(
            winner=BASELINE,
            recommended=False,
            gain=None,
            is_confirmed=False,
            support={},
            dropped=BASELINE,
            unpromising=frozenset(),
            at_most=None,
        )
    confirmation = _latest_confirmation(position)
    winner = _without_unproven(confirmation)
    gain = confirmation.total(winner) if winner else None
    confirmed = gain is not None
    if winner and gain is None:
        gain = measured.difference(winner, BASELINE)
    recommended = bool(winner) and (
        confirmation.is_claimed(winner)
        if confirmed
        else gain is not None and gain.low(_alpha(len(measured.combinations) - 1)) > 0.0
    )
    return Conclusion(
        winner=winner,
        recommended=recommended,
        gain=gain,
        is_confirmed=confirmed,
        support={lever: _support(confirmation, lever, winner) for lever in sorted(winner)},
        dropped=position.best - winner,
        unpromising=position.unpromising(),
        at_most=None if recommended else _at_most(position),
    )


def _latest_confirmation(position: SearchPosition) -> Confirmation:
    """Of the best; or of what was confirmed before, where the best was not."""
    latest = position.confirmed
    if latest.total(latest.winner) is not None:
        return latest
    earlier = [launch.base for launch in position.measured.launches if launch.stage.kind == "confirm"]
    for chosen in reversed(earlier):
        confirmation = position.confirmation_of(chosen)
        if confirmation.is_claimed(confirmation.winner):
            return confirmation
    return latest


def _without_unproven(confirmation: Confirmation) -> Combination:
    """The winner without levers whose gain two launches of each side could not show."""
    winner = confirmation.winner
    for lever in sorted(winner, key=lambda lever: confirmation.evidence(lever)):
        if len(winner) == 1:
            break
        difference = confirmation.difference(winner, winner - {lever})
        measured = difference is not None and difference.launches > 1
        if measured and not confirmation.helps(lever, winner):
            winner -= {lever}
    return winner


def _support(confirmation: Confirmation, lever: str, winner: Combination) -> Support:
    if confirmation.helps(lever, winner):
        return "confirmed"
    return "when added" if confirmation.evidence(lever) > 0.0 else "untested"


def _at_most(position: SearchPosition) -> float | None:
    """What the fastest of all that was tried may gain at most, by the most doubtful of them."""
    measured = position.measured
    tried = [levers for levers in measured.combinations if levers and levers not in measured.failed]
    differences = [
        difference
        for levers in tried
        for among in (measured, position.confirmed.launches)  # a table shows either of them
        if (difference := measured.difference(levers, BASELINE, among)) is not None
    ]
    if not differences:
        return None
    alpha = _alpha(len(tried))
    return max(0.0, math.expm1(max(difference.high(alpha) for difference in differences)))


def _alpha(tried: int) -> float:
    """The error of a bound on one of several: that of an interval, or less."""
    return min(_END_OF_INTERVAL, _ERROR / max(1, tried))
