"""How often `compare` calls two runs of the same configuration different, and by how much runs differ.

    python benchmarks/aa_runs.py [--paced] [--runs 40] [--launches 4] [--window 2s] [--folder runs/aa_runs]

One series of short runs of one configuration, each a command of its own, one after the other; then every
pair (i, i + 4) is compared by `compare`'s own statistics: without the spread between runs, with the default,
and with what the runs before the pair taught. Any claim is a false alarm. The last lines give the spread that
the whole series shows, which is what `DEFAULT_SPREAD` stands for. --paced sleeps instead of computing.
Finished runs are kept in the folder; the same command continues with it. 40 runs take about 15 minutes.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from aa import PACED, SMALL, interval

from scalescope.analysis.comparison.runs import compare_runs
from scalescope.analysis.run_spread import DEFAULT_SPREAD, RunMean, RunSpread, run_spread
from scalescope.analysis.verdicts import NO_SPREAD
from scalescope.results.run import Run, load_run
from scalescope.results.run_folder import is_run_folder
from scalescope.studies.runs.run_history import run_means

DISTANCE = 4
LONGEST_S = 45 * 60.0
SpreadOf = Callable[[int], RunSpread]


def command(job: dict[str, object], folder: Path, asked: argparse.Namespace) -> list[str]:
    settings = [word for name, value in job.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    measuring = ["--device", asked.device, "--repeats", str(asked.launches), "--window", asked.window]
    return [
        *(sys.executable, "-m", "scalescope", "train"),
        *(*settings, *measuring, "--output-dir", str(folder)),
    ]


def finished(folder: Path, launches: int) -> Run | None:
    if not is_run_folder(folder):
        return None
    run = load_run(folder)
    return run if len(run.of_status("ok")) >= launches else None


def measured(folder: Path, asked: argparse.Namespace, deadline: float) -> list[Run]:
    """The runs of the series, in their order; what is there already is not measured again."""
    runs = []
    # The history of this series must not be that of the machine.
    environment = {**os.environ, "XDG_CACHE_HOME": str((folder / "cache").absolute())}
    job: dict[str, object] = dict(PACED if asked.paced else SMALL)
    for number in range(asked.runs):
        path = folder / f"{number:03}"
        run = finished(path, asked.launches)
        if run is None:
            if time.monotonic() > deadline:
                print(f"time is up after {len(runs)} runs; the same command continues")
                break
            shutil.rmtree(path, ignore_errors=True)
            line = command(job, path, asked)
            done = subprocess.run(line, env=environment, capture_output=True, text=True)
            run = finished(path, asked.launches)
            if run is None:
                raise SystemExit(f"{path}: {done.stderr[-2000:]}")
        runs.append(run)
    return runs


def verdicts(runs: Sequence[Run], threshold: float, spread_of: SpreadOf) -> list[str]:
    """The verdict on every pair, the later run against the earlier."""
    judged = []
    for number in range(len(runs) - DISTANCE):
        before, after = runs[number], runs[number + DISTANCE]
        comparison = compare_runs(before.results, after.results, threshold, spread=spread_of(number))
        judged += [config.verdict for config in comparison.judged]
    return judged


def taught(means: Sequence[RunMean], until: int) -> RunSpread:
    """What the runs before the later of a pair teach, without the earlier of it."""
    return run_spread(mean for number, mean in enumerate(means[: until + DISTANCE]) if number != until)


def spread_at(means: Sequence[RunMean], distance: int) -> float:
    """Standard deviation between runs so far apart, beyond what their launches explain."""
    pairs = list(zip(means, means[distance:], strict=False))
    excess = [((b.mean - a.mean) ** 2 - a.variance - b.variance) / 2.0 for a, b in pairs]
    return float(max(0.0, statistics.fmean(excess)) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--launches", type=int, default=4)
    parser.add_argument("--window", default="2s")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threshold", type=float, default=0.03)
    parser.add_argument("--paced", action="store_true", help="ranks that sleep instead of computing")
    parser.add_argument("--disturbed", action="store_true", help="also use what other load disturbed")
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    folder = asked.folder or Path("runs") / ("aa_runs_paced" if asked.paced else "aa_runs")
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    runs = measured(folder, asked, began + LONGEST_S)
    known = [(run, means) for run in runs if (means := run_means(run, disturbed=asked.disturbed))]
    print(f"{len(runs) - len(known)} of {len(runs)} runs were disturbed by other load and are left out")
    runs, means = [run for run, _ in known], [mean for _, (mean,) in known]
    if len(runs) <= DISTANCE:
        raise SystemExit(f"{len(runs)} runs are too few; {folder} has them")
    within = statistics.fmean(mean.variance for mean in means) ** 0.5
    print(f"{len(runs)} runs of {asked.launches} launches, {time.monotonic() - began:.0f} s in this command")
    ways: dict[str, SpreadOf] = {
        "launches alone": lambda number: NO_SPREAD,
        f"default spread {DEFAULT_SPREAD.deviation:.1%}": lambda number: DEFAULT_SPREAD,
        "spread of the runs before": lambda number: taught(means, number),
    }
    for name, spread_of in ways.items():
        counts = Counter(verdicts(runs, asked.threshold, spread_of))
        alarms, total = counts["faster"] + counts["slower"], counts.total()
        print(f"{name}: {alarms} of {total} false alarms {interval(alarms, total)}, {dict(counts)}")
    whole = run_spread(means)
    print(f"standard error of a run's mean by its launches: {within:.2%}")
    print(f"spread between runs: {whole.deviation:.2%} ({whole.freedom:.0f} degrees of freedom)")
    distances = [distance for distance in (1, 2, 4, 8, 16) if distance < len(means)]
    print(
        "by distance: "
        + ", ".join(f"{spread_at(means, distance):.2%} at {distance}" for distance in distances)
    )


if __name__ == "__main__":
    main()
