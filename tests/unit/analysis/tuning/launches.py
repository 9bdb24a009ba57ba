"""Launches of a search, made up: every speed in them is known."""

from collections.abc import Iterable

from scalescope.analysis.tuning.tuned_launches import BASELINE, Combination, TunedLaunch, TunedLaunches
from scalescope.results.result import Stage, StageKind


def combination(names: str) -> Combination:
    """`a+b` as a combination; empty: the settings as they are."""
    return frozenset(name for name in names.split("+") if name)


def launch(
    names: str,
    log_rate: float | None = 0.0,
    *,
    kind: StageKind = "explore",
    base: str = "",
    duration_s: float = 10.0,
    refused: bool = False,
    cut_short: bool = False,
    counts: bool = True,
) -> TunedLaunch:
    return TunedLaunch(
        levers=combination(names),
        log_rate=log_rate,
        duration_s=duration_s,
        stage=Stage("baseline" if not names and kind == "explore" else kind),
        base=combination(base),
        refused=refused,
        cut_short=cut_short,
        counts=counts,
    )


def launches(*made: TunedLaunch | Iterable[TunedLaunch], deviation: float = 0.01) -> TunedLaunches:
    flat: list[TunedLaunch] = []
    for member in made:
        flat += [member] if isinstance(member, TunedLaunch) else list(member)
    return TunedLaunches(flat, deviation)


__all__ = ["BASELINE", "combination", "launch", "launches"]
