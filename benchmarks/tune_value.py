"""What the search of `tune` is worth: on simulated jobs whose truth is known, at several budgets.

    python benchmarks/tune_value.py [--budgets 60,180,600] [--jobs 400] [--half development|held-out]

Prints, by budget: regret (the speed of the best possible set ÷ that of the one recommended), how often
something is recommended that is not faster, useless levers, and how often a measured set is faster than the
recommended one by a standard error. Nothing is launched; the clock is virtual. The simulation
(benchmarks/tuning/simulated_jobs.py) shares no formula with the search. Rules are tuned on the development
half only.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from multiprocessing import Pool
from typing import NamedTuple

from tuning.simulated_jobs import make_job
from tuning.simulation import best_gain, gain, simulate

from scalescope.analysis.tuning.launches import BASELINE, TunedLaunches

_SEED = 7
_HELPS = 1.002  # less than that is nothing
_HALVES = {"development": (0,), "held-out": (1,), "both": (0, 1)}


class Scored(NamedTuple):
    """One job at one budget."""

    job: int
    kind: str
    best: float
    found: float
    levers: int
    useless: int
    launches: int
    broken: bool  # a measured set is faster than the recommended one by a standard error
    unused: float  # of the budget
    misordered: int

    @property
    def regret(self) -> float:
        return self.best / self.found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Score the search of tune on simulated jobs.")
    parser.add_argument("--budgets", default="60,180,600")
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--first", type=int, default=0, help="number of the first job")
    parser.add_argument("--half", choices=tuple(_HALVES), default="both")
    parser.add_argument("--noise", type=float, help="also with so many times the noise of each job")
    parser.add_argument("--worst", type=int, default=0, help="also list the jobs of largest regret")
    options = parser.parse_args(argv)
    numbers = [
        number
        for number in range(options.first, options.first + options.jobs)
        if (number // 8) % 2 in _HALVES[options.half]
    ]
    print(f"{len(numbers)} simulated jobs ({options.half})")
    for budget in options.budgets.split(","):
        began = time.monotonic()
        scores = _scored(numbers, float(budget))
        print(_line(float(budget), scores), f"[{time.monotonic() - began:.0f} s]", flush=True)
        if options.noise:
            noisy = _scored(numbers, float(budget), options.noise)
            print(_noisy_line(options.noise, scores, noisy))
            print(f"  noise ×{options.noise:g}, {_line(float(budget), noisy)}", flush=True)
        for worst in sorted(scores, key=lambda scored: -scored.regret)[: options.worst]:
            print("   ", worst)
    return 0


def _scored(numbers: Sequence[int], budget_s: float, noise: float = 1.0) -> list[Scored]:
    with Pool() as pool:
        return pool.starmap(score, [(number, budget_s, noise) for number in numbers], chunksize=4)


def score(number: int, budget_s: float, noise: float = 1.0) -> Scored:
    """One job at one budget."""
    job = make_job(number)
    outcome = simulate(job, budget_s, _SEED, noise)
    conclusion = outcome.conclusion
    winner = conclusion.winner if conclusion.recommended else BASELINE
    found = gain(job, winner)
    useless = sum(gain(job, winner - {lever}) * _HELPS >= found for lever in winner)
    measured = TunedLaunches(outcome.launches)
    faster = [
        levers
        for levers in measured.combinations
        if levers not in measured.failed
        and conclusion.recommended
        and (difference := measured.difference(levers, winner)) is not None
        and difference.value > difference.contrast.deviation
    ]
    return Scored(
        job=number,
        kind=job.kind,
        best=best_gain(job),
        found=found,
        levers=len(winner),
        useless=useless,
        launches=len(outcome.launches),
        broken=bool(faster),
        unused=outcome.unused_s / budget_s,
        misordered=outcome.misordered,
    )


def _noisy_line(noise: float, usual: Sequence[Scored], noisy: Sequence[Scored]) -> str:
    created = [
        after for before, after in zip(usual, noisy, strict=True) if after.levers and not before.levers
    ]
    false = sum(scored.found < _HELPS for scored in created)
    lost = sum(bool(before.levers and not after.levers) for before, after in zip(usual, noisy, strict=True))
    return f"  noise ×{noise:g}: recommendations created {len(created)}, of them false {false}; lost {lost}"


def _line(budget_s: float, scores: Sequence[Scored]) -> str:
    regrets = sorted(scored.regret for scored in scores)
    recommended = [scored for scored in scores if scored.levers]
    false = sum(scored.found < _HELPS for scored in recommended)
    levers = sum(scored.levers for scored in scores)
    return (
        f"{budget_s:g} s: regret median {statistics.median(regrets):.3f}, "
        f"mean {statistics.fmean(regrets):.3f}, 90 % {regrets[int(0.9 * len(regrets))]:.3f}; "
        f"recommended {len(recommended)}, false {false}; "
        f"useless levers {sum(s.useless for s in scores)} of {levers}; "
        f"broken {sum(s.broken for s in scores)}, misordered {sum(s.misordered for s in scores)}; "
        f"launches {statistics.fmean(s.launches for s in scores):.1f}, "
        f"unused {100 * statistics.fmean(s.unused for s in scores):.0f} %"
    )


if __name__ == "__main__":
    sys.exit(main())
