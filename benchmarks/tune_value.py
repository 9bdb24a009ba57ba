"""What the search of `tune` is worth: on simulated jobs whose truth is known, at three budgets.

    python benchmarks/tune_value.py [--budgets 60,180,600] [--jobs 600] [--half development|held-out]

Prints, by budget: regret (the speed of the best possible combination ÷ that of the one recommended), how many
of the recommended levers truly help, how often something is recommended where nothing helps, and the share of
the budget that was left unused while an untried lever would have fitted. Nothing is launched; the clock is
virtual. The jobs are in benchmarks/tuning/jobs.jsonl and were committed before the search was written; rules
were tuned on the development half only.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from multiprocessing import Pool
from typing import NamedTuple

from tuning.simulation import Outcome, SimulatedJob, load_jobs, simulate

_SEED = 7
_HELPS = 1.0005  # less than that is rounding of the truth


class Scored(NamedTuple):
    """One job at one budget."""

    job: int
    best: float
    found: float
    levers: int
    useful: int
    launches: int
    wasted: float  # of the budget: unused although a lever was affordable
    unused: float
    baseline_measured: bool

    @property
    def regret(self) -> float:
        return self.best / self.found

    @property
    def nothing_helps(self) -> bool:
        return self.best < _HELPS


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Score the search of tune on simulated jobs.")
    parser.add_argument("--budgets", default="60,180,600")
    parser.add_argument("--jobs", type=int, default=600)
    parser.add_argument("--half", choices=("development", "held-out", "both"), default="both")
    parser.add_argument("--worst", type=int, default=0, help="also list the jobs of largest regret")
    options = parser.parse_args(argv)
    halves = {"development": (0,), "held-out": (1,), "both": (0, 1)}[options.half]
    jobs = [job for job in load_jobs()[: options.jobs] if (job.data["id"] // 10) % 2 in halves]
    print(f"{len(jobs)} simulated jobs ({options.half})")
    for budget in options.budgets.split(","):
        began = time.monotonic()
        with Pool() as pool:
            scores = pool.starmap(score, [(job, float(budget)) for job in jobs], chunksize=8)
        print(_line(float(budget), scores), f"[{time.monotonic() - began:.0f} s]", flush=True)
        for worst in sorted(scores, key=lambda scored: -scored.regret)[: options.worst]:
            print("   ", worst)
    return 0


def score(job: SimulatedJob, budget_s: float) -> Scored:
    """One job at one budget."""
    outcome = simulate(job, budget_s, _SEED)
    winner = outcome.conclusion.winner if outcome.conclusion.recommended else frozenset()
    useful = sum(job.step_s(winner - {lever}) > _HELPS * job.step_s(winner) for lever in winner)
    return Scored(
        job=job.data["id"],
        best=job.best_gain(),
        found=job.gain(winner),
        levers=len(winner),
        useful=useful,
        launches=len(outcome.launches),
        wasted=outcome.unused_s / budget_s if outcome.affordable else 0.0,
        unused=outcome.unused_s / budget_s,
        baseline_measured=_has_baseline(outcome),
    )


def _has_baseline(outcome: Outcome) -> bool:
    return any(not launch.levers and launch.log_rate is not None for launch in outcome.launches)


def _line(budget_s: float, scores: list[Scored]) -> str:
    helped = [scored for scored in scores if not scored.nothing_helps]
    nothing = [scored for scored in scores if scored.nothing_helps]
    levers, useful = sum(s.levers for s in scores), sum(s.useful for s in scores)
    false = sum(scored.levers > 0 for scored in nothing)
    regrets = sorted(scored.regret for scored in helped)
    return (
        f"budget {budget_s:4.0f} s: regret where something helps: median {statistics.median(regrets):.3f}, "
        f"mean {statistics.fmean(regrets):.3f}, 90 % {regrets[int(0.9 * len(regrets))]:.3f} "
        f"(all jobs: median {statistics.median(s.regret for s in scores):.3f}); "
        f"recommended levers that help {useful}/{levers} = {useful / max(1, levers):.1%}; "
        f"false recommendations {false}/{len(nothing)} = {false / max(1, len(nothing)):.1%}; "
        f"launches {statistics.fmean(s.launches for s in scores):.1f}; "
        f"unused {statistics.fmean(s.unused for s in scores):.0%}, "
        f"while a lever was affordable {max(s.wasted for s in scores):.0%} at most, "
        f"over 10 % in {sum(s.wasted > 0.1 for s in scores)}; "
        f"no baseline in {sum(not s.baseline_measured for s in scores)}"
    )


if __name__ == "__main__":
    sys.exit(main())
