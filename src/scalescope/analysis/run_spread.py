"""Run-to-run spread: by how much runs of one configuration differ beyond what their launches explain.

Launches inside a run share its hour: the machine's temperature, its neighbours, where memory landed. Two runs
of the same configuration therefore differ more than the intervals of either say.
"""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

LEAST_RUNS = 5  # of the same configurations: fewer say too little about how runs differ


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMean:
    """One configuration in one run: the mean of ln(samples per second), and that mean's variance."""

    job: str  # equal where the same thing was measured
    run: str
    mean: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpread:
    """Standard deviation of ln(rate) between runs, and what it was estimated from."""

    deviation: float
    freedom: float
    runs: int | None = None  # made on this hardware; None is the default

    @property
    def of_a_difference(self) -> tuple[float, float]:
        """The variance that it adds to the difference of two runs, and its degrees of freedom."""
        return 2.0 * self.deviation**2, self.freedom


# Where a machine has too few runs of its own: measured by benchmarks/aa_runs.py, a series of 40 runs of one
# configuration on two shared cores (docs/measurements/2026-11-16-runs-over-time.md).
DEFAULT_SPREAD = RunSpread(deviation=0.006, freedom=39.0)


def run_spread(means: Iterable[RunMean]) -> RunSpread:
    """The spread that runs of the same jobs show together, or the default where they are too few."""
    jobs: dict[str, list[RunMean]] = {}
    for mean in means:
        jobs.setdefault(mean.job, []).append(mean)
    repeated = [members for members in jobs.values() if len(members) > 1]
    runs = len({member.run for members in repeated for member in members})
    if runs < LEAST_RUNS:
        return DEFAULT_SPREAD
    return RunSpread(
        deviation=math.sqrt(between_variance(repeated)),
        freedom=float(sum(len(members) - 1 for members in repeated)),
        runs=runs,
    )


def between_variance(jobs: Iterable[list[RunMean]]) -> float:
    """One-way random effects by the method of moments: the variance of a job's means over its runs is that
    between runs plus the means' own; pooled over jobs by degrees of freedom, and never below zero."""
    weighted, freedom = 0.0, 0
    for members in jobs:
        of_means = statistics.variance([member.mean for member in members])
        within = statistics.fmean(member.variance for member in members)
        weighted += (len(members) - 1) * (of_means - within)
        freedom += len(members) - 1
    return max(0.0, weighted / freedom) if freedom else 0.0
