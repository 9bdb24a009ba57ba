"""The time of `scalescope report` for a small run, in processor seconds, and against another version.

    python benchmarks/report_time.py [RUN] [--times 5] [--before FOLDER/src]

Makes a report of RUN (a stored run of the tests where none is named) so many times, each in a process of its
own. With `--before` the sources of another version make the same report in between, one after the other in
turn, so that other work on the machine hits both; the ratio is that of each pair. Processor time counts what
the report itself takes: on a busy machine it is less than the time on the clock. Claimed: a small run takes
at most 5 s, and writes no figure file that was not asked for.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_S = 5.0


@dataclass(frozen=True)
class Cost:
    """What one report took, and how many files it left."""

    cpu_s: float
    clock_s: float
    files: int
    figures: int


def report(run: Path, source: Path) -> Cost:
    """Make the report of a run with the sources of a version."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report"
        command = [sys.executable, "-m", "scalescope", "report", str(run), "--out", str(out)]
        before, start = _cpu_of_children_s(), time.perf_counter()
        subprocess.run(
            command, check=True, env={**os.environ, "PYTHONPATH": str(source)}, stdout=subprocess.DEVNULL
        )
        clock_s, cpu_s = time.perf_counter() - start, _cpu_of_children_s() - before
        files = [path for path in out.rglob("*") if path.is_file()]
        return Cost(cpu_s, clock_s, len(files), sum(path.parent.name == "figures" for path in files))


def _cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def show(name: str, costs: list[Cost]) -> None:
    cpu = [cost.cpu_s for cost in costs]
    clock = [cost.clock_s for cost in costs]
    print(
        f"{name}: processor {statistics.median(cpu):.2f} s ({min(cpu):.2f} to {max(cpu):.2f}), clock "
        f"{statistics.median(clock):.2f} s ({min(clock):.2f} to {max(clock):.2f}), "
        f"{costs[0].files} files, {costs[0].figures} of them figures"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, default=ROOT / "tests" / "stored_runs" / "scale")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--before", type=Path, help="the src folder of another version")
    asked = parser.parse_args()
    now: list[Cost] = []
    earlier: list[Cost] = []
    report(asked.run, ROOT / "src")  # fonts and byte code are cached by then
    for _ in range(asked.times):
        now.append(report(asked.run, ROOT / "src"))
        if asked.before is not None:
            earlier.append(report(asked.run, asked.before))
    show("this version", now)
    if earlier:
        show("before", earlier)
        ratios = [cost.cpu_s / other.cpu_s for cost, other in zip(now, earlier, strict=True)]
        print(f"this version / before, processor time: {statistics.median(ratios):.2f}")
    met = max(cost.cpu_s for cost in now) <= MOST_S and not any(cost.figures for cost in now)
    print(f"at most {MOST_S:g} s of processor time, no figure files: {'yes' if met else 'NO'}")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
