"""Confirmation: what new launches say of the best combination, and which of them are still missing."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from scalescope.analysis.tuning.launch_costs import LaunchCosts
from scalescope.analysis.tuning.tuned_launches import (
    BASELINE,
    Combination,
    SpeedDifference,
    TunedLaunch,
    TunedLaunches,
)
from scalescope.analysis.verdicts import LEAST_EFFECT

LEAST_GAIN = math.log1p(LEAST_EFFECT)
OBVIOUS = math.log(1.25)  # a gain that need not be measured again lever by lever
CLAIM = 0.01  # the error of a claim, in each of the few looks that are taken at it
LEAST_LAUNCHES = 2  # of each side for a claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What new launches say of the chosen combination and of each of its levers."""

    measured: TunedLaunches  # all launches of the search
    deciding: TunedLaunches  # those by which the best was chosen
    chosen: Combination
    most_launches: int
    can_run: Callable[[Combination], bool]
    costs: LaunchCosts
    remaining_s: float | None = None

    @property
    def launches(self) -> TunedLaunches:
        return self.measured.of_stages(("confirm",))

    @property
    def winner(self) -> Combination:
        """The chosen levers without those that are measured to give nothing."""
        winner = self.chosen
        while len(winner) > 1:
            useless = [lever for lever in sorted(winner) if self.is_useless(lever, winner)]
            if not useless:
                return winner
            winner -= {min(useless, key=lambda lever: self._gain(lever, winner))}
        return winner

    def difference(self, levers: Combination, base: Combination) -> SpeedDifference | None:
        return self.measured.difference(levers, base, among=self.launches)

    def _gain(self, lever: str, winner: Combination) -> float:
        difference = self.difference(winner, winner - {lever})
        return math.inf if difference is None else difference.value

    def is_useless(self, lever: str, winner: Combination) -> bool:
        """Whether the winner was measured without a lever and no gain was seen."""
        difference = self.difference(winner, winner - {lever})
        if difference is None or difference.launches < LEAST_LAUNCHES:
            return False
        return not self.helps(lever, winner) and (
            difference.value < LEAST_GAIN or difference.launches >= self.most_launches
        )

    def helps(self, lever: str, winner: Combination) -> bool:
        """Whether the winner without the lever is slower, for sure."""
        difference = self.difference(winner, winner - {lever})
        if difference is None:
            return False
        alpha = 0.05 / max(1, len(winner))
        return difference.value > LEAST_GAIN and difference.low(alpha) > 0.0

    def total(self, winner: Combination) -> SpeedDifference | None:
        """The winner against the settings as they are."""
        return self.difference(winner, BASELINE)

    def is_claimed(self, winner: Combination) -> bool:
        difference = self.total(winner)
        return (
            bool(winner)
            and difference is not None
            and difference.value > LEAST_GAIN
            and difference.low(CLAIM) > 0.0
        )

    def missing(self) -> list[Combination]:
        """What to launch next, the most needed first; empty where everything is settled."""
        winner = self.winner
        if not winner:
            return []
        most = self.most_launches
        wanted = [winner, BASELINE] if self._needs_more(winner) else []
        for lever in sorted(winner, key=lambda lever: self.evidence(lever)):
            without = winner - {lever}
            if without and self.can_run(without) and self._lever_needs_more(lever, winner):
                wanted += [without] if self._can_wait(lever, winner) else [winner, without]
        late = [winner - {lever} for lever in winner if self._can_wait(lever, winner)]
        counts = {levers: self.launches.made(levers) for levers in wanted}
        turns = counts.get(winner, 0) % 2  # the other one first in every second round
        ordered = sorted(
            dict.fromkeys(wanted), key=lambda levers: (levers in late, counts[levers], bool(levers) == turns)
        )
        disturbed = self.launches.made(winner) - len(self.launches.pairs(winner, BASELINE))
        return [levers for levers in ordered if counts[levers] < most + min(most, max(0, disturbed))]

    def _needs_more(self, winner: Combination) -> bool:
        """Whether there are fewer pairs than planned; what they show does not decide that."""
        return len(self.launches.pairs(winner, BASELINE)) < self.most_launches

    def _lever_needs_more(self, lever: str, winner: Combination) -> bool:
        return not (self.helps(lever, winner) or self.is_useless(lever, winner))

    def _can_wait(self, lever: str, winner: Combination) -> bool:
        """Whether a lever is measured again only with time that nothing else needs."""
        without = winner - {lever}
        return bool(without) and self._is_obvious(lever) and self._is_costly(without)

    def _is_costly(self, levers: Combination) -> bool:
        """Whether a launch takes more than a tenth of what is left."""
        remaining_s = self.remaining_s
        return remaining_s is not None and self.costs.of(levers) > 0.1 * remaining_s

    def evidence(self, lever: str) -> float:
        """How much faster a launch was when the lever was added."""
        pairs = [(launch.levers, launch.base) for launch in self._additions(lever)]
        differences = [self.measured.difference(*pair, among=self.deciding) for pair in pairs]
        known = [difference.value for difference in differences if difference is not None]
        return known[-1] if known else 0.0

    def _is_obvious(self, lever: str) -> bool:
        return self.evidence(lever) > OBVIOUS

    def _additions(self, lever: str) -> list[TunedLaunch]:
        return [
            launch
            for launch in self.measured.launches
            if launch.stage.kind == "explore" and lever in launch.levers - launch.base
        ]
