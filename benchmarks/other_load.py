"""Whether other load is seen exactly when it is there, and what repeating disturbed launches gains.

    python benchmarks/other_load.py finding [--runs 10] [--folder runs/other-load]
    python benchmarks/other_load.py bursts  [--runs 10] [--folder runs/other-load]

`finding`: short runs of `scale`, in turns without other processes, with two busy loops, and with one that is
busy for part of the time. Prints for every run the cores that others used according to /proc/stat (all busy
time less the CPU time of the command and everything it started, by the kernel's own accounts) and whether the
finding "other load" is in results.json. It should be there exactly from 0.3 cores on.

`bursts`: runs of `scale` while a busy loop computes for 3 of every 10 s, in turns with and without repeating
disturbed launches. Prints the spread over the runs of speedup and communication: with all launches counted,
with disturbed ones left out, and with these repeated.

Finished runs are kept in the folder; the same command continues with it.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scalescope.analysis.configurations import configurations
from scalescope.analysis.scaling.rows import ScalingRow, scaling_rows
from scalescope.results.result import Result
from scalescope.results.run import Run, load_run

LEAST_CORES = 0.3
JOB = (
    "--workload=mlp",
    "--hidden-dim=512",
    "--num-layers=4",
    "--batch-size=64",
    "--world-size=1,2",
    "--device=cpu",
    "--threads-per-rank=1",
)
# A loop that is busy for `busy` of every `period` seconds.
LOOP = """
import sys, time
busy, period = map(float, sys.argv[1:])
while True:
    began = time.monotonic()
    while time.monotonic() - began < busy:
        pass
    time.sleep(max(0.0, period - busy))
"""
LOADS = {
    "none": (),
    "two loops": ((1.0, 1.0), (1.0, 1.0)),
    "0.15 cores": ((0.03, 0.2),),
    "0.6 cores": ((0.12, 0.2),),
}

BETWEEN = ("0.15 cores", "0.6 cores")  # half as many runs of these


@contextlib.contextmanager
def other_processes(duties: tuple[tuple[float, float], ...]) -> Iterator[None]:
    """Processes that are busy for the given seconds of the given period."""
    command = [sys.executable, "-c", LOOP]
    loops = [subprocess.Popen([*command, str(busy), str(period)]) for busy, period in duties]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def busy_s() -> float:
    """Busy time of all cores since the start, in seconds."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, _steal = fields
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A run, and what others used meanwhile by the accounts of the kernel."""

    path: Path
    other_cores: float


def measured(path: Path, *flags: str) -> Finished:
    """Run `scale` into a folder, or take what is there."""
    account = path.parent / f"{path.name}.json"
    if account.is_file():
        return Finished(path=path, other_cores=json.loads(account.read_text())["other_cores"])
    command = [sys.executable, "-m", "scalescope", "scale", *JOB, *flags, f"--output-dir={path}"]
    if path.exists():
        command.append("--resume")
    busy, began = busy_s(), time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    own_s = usage.ru_utime + usage.ru_stime
    others = max(0.0, busy_s() - busy - own_s) / (time.monotonic() - began)
    account.write_text(json.dumps({"other_cores": others}))
    return Finished(path=path, other_cores=others)


def finding(folder: Path, runs: int) -> None:
    """Print for every run whether load was there, and whether it was reported."""
    flags = ("--repeats=1", "--window=1s", "--no-waterfall", "--no-repeat-disturbed")
    agreed = total = 0
    print("load         cores used by others   finding   disturbed launches")
    for number in range(runs):
        for name, duties in LOADS.items():
            if name in BETWEEN and number >= runs // 2:
                continue
            with other_processes(duties):
                run = measured(folder / f"finding-{name.replace(' ', '-')}-{number}", *flags)
            rules = {item["rule"] for item in summary_of(run.path)["results"]["findings"]}
            there, reported = run.other_cores >= LEAST_CORES, "other load" in rules
            results = [result for result in load_run(run.path).results if result.trial.is_training]
            disturbed = sum(result.is_disturbed for result in results)
            agreed, total = agreed + (there == reported), total + 1
            mark = "" if there == reported else "   <- differs"
            print(
                f"{name:<12} {run.other_cores:>20.2f}   {'yes' if reported else 'no':<7}   "
                f"{disturbed} of {len(results)}{mark}",
                flush=True,
            )
    print(
        f"{agreed} of {total} runs: the finding is there exactly when others used {LEAST_CORES} cores or more"
    )


def bursts(folder: Path, runs: int) -> None:
    """Print the spread of the estimates over the runs, by what is done with disturbed launches."""
    common = ("--repeats=3", "--window=1s")
    repeated: list[Run] = []
    plain: list[Run] = []
    with other_processes(((3.0, 10.0),)):
        for number in range(runs):
            plain.append(
                load_run(measured(folder / f"plain-{number}", *common, "--no-repeat-disturbed").path)
            )
            repeated.append(load_run(measured(folder / f"repeated-{number}", *common).path))
            print(f"{number + 1} of {runs} pairs of runs", flush=True)
    calm = [load_run(measured(folder / f"calm-{number}", *common).path) for number in range(runs // 2)]
    print("launches counted                    speedup: mean, SD     communication (ranks): mean, SD")
    show("all, no bursts", [row_of(run, ignore_load=True) for run in calm])
    show("all", [row_of(run, ignore_load=True) for run in plain])
    show("disturbed left out", [row_of(run) for run in plain])
    show("disturbed left out and repeated", [row_of(run) for run in repeated])
    made = sum(len(run.results) + len(run.replaced) for run in repeated)
    print(f"launches made with repeats: {made}, without: {sum(len(run.results) for run in plain)}")


def row_of(run: Run, *, ignore_load: bool = False) -> ScalingRow:
    """The row of two ranks; with `ignore_load` of all launches, as if nothing was known of others."""
    results = run.results
    if ignore_load:
        results = tuple(without_load(result) for result in results)
    (row,) = (row for row in scaling_rows(configurations(results)) if row.ranks == 2)
    return row


def without_load(result: Result) -> Result:
    telemetry = {name: value for name, value in result.telemetry.items() if name != "load"}
    return dataclasses.replace(result, telemetry=telemetry)


def show(name: str, rows: list[ScalingRow]) -> None:
    speedups = [row.speedup.value for row in rows]
    lost = [row.lost_by_communication for row in rows if row.lost_by_communication is not None]
    communication = (
        f"{statistics.fmean(lost):>10.3f}  {statistics.stdev(lost):.3f}" if len(lost) > 1 else "unknown"
    )
    print(
        f"{name:<34}  {statistics.fmean(speedups):>6.3f}  {statistics.stdev(speedups):.3f} "
        f"{communication:>26}"
    )


def summary_of(path: Path) -> dict[str, dict[str, list[dict[str, object]]]]:
    summary: dict[str, dict[str, list[dict[str, object]]]] = json.loads((path / "results.json").read_text())
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("finding", "bursts"))
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--folder", type=Path, default=Path("runs/other-load"))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    {"finding": finding, "bursts": bursts}[arguments.part](arguments.folder, arguments.runs)


if __name__ == "__main__":
    main()
