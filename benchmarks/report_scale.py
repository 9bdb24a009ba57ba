"""The cost of `scalescope report` for a run with many trials, and of `list` for many runs.

    python benchmarks/report_scale.py [--trials 1000] [--samples 200] [--times 10] [--folders 10000]

Writes a run folder with so many trials, each with two ranks and so many steps, and one with `--times` as
many; then makes a report of each in a separate process. Then lists so many folders of a run of 10 trials.
Seconds are processor time. Claimed: 1,000 trials take at most 10 s, 500 MB and 3 MB of page, and ten times
the trials at most 12 times the time; `list` takes at most 5 s for 10,000 folders.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from from_tests import TWO_CORES

from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import build_experiment
from scalescope.experiment.given import Given
from scalescope.experiment.trial import Trial
from scalescope.results.result import RankRecord, Result, to_json
from scalescope.results.run import load_run
from scalescope.results.run_folder import RESULTS
from scalescope.results.run_record import RunEnd, RunRecord, write_run_record
from scalescope.studies.stored import present

MOST_S, MOST_MB, MOST_PAGE_MB, MOST_TIMES = 10.0, 500.0, 3.0, 12.0
MOST_LIST_S = 5.0
BATCHES = 20
RANKS = 2


def trials(count: int) -> list[Trial]:
    """Training on two ranks with many batch sizes and seeds."""
    asked = {"world_size": RANKS, "batch_size": 16, "steps_per_epoch": 210, "warmup_steps": 10}
    flags = {name: (Given(str(value), name),) for name, value in asked.items()}
    (first,) = expand(build_experiment("train", "train", {}, flags, {}), TWO_CORES).trials
    return [first.replace(batch_size=8 * (1 + n % BATCHES), seed=n // BATCHES) for n in range(count)]


def write_run(folder: Path, count: int, samples: int) -> None:
    """A run folder as a measurement would write it."""
    folder.mkdir()
    noise = random.Random(0)
    with (folder / "trials.jsonl").open("w", encoding="utf-8") as stream:
        for number, trial in enumerate(trials(count)):
            stream.write(json.dumps(to_json(_result(number, trial, samples, noise))) + "\n")


def _result(number: int, trial: Trial, samples: int, noise: random.Random) -> Result:
    mean_s = 0.004 + 0.0001 * trial.rank_batch_size
    records = [
        RankRecord(
            rank=rank,
            host="here",
            device="cpu",
            placement=f"[Rank {rank}]",
            samples={
                "step_time_s": [mean_s * noise.lognormvariate(0.0, 0.02) for _ in range(samples)],
                "loss": [2.3 * 0.99**step for step in range(samples)],
            },
            counters={"parameter_checksum": "0", "gradient_bytes": 4_000_000},
        )
        for rank in range(RANKS)
    ]
    return Result(
        trial_id=trial.trial_id,
        launch=0,
        order=number,
        status="ok",
        settings=dict(trial.settings),
        started_at=time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(1_700_000_000 + 3 * number)),
        duration_s=3.0,
        environment_id="made-up",
        ranks=records,
    )


def write_copies(root: Path, count: int, samples: int) -> None:
    """So many finished runs; their files are links to those of one, which cost a reader the same."""
    first = root / "run-0"
    root.mkdir()
    write_run(first, 10, samples)
    end = RunEnd(why="finished", missing=0, failed=0)
    write_run_record(first, RunRecord(verb="train", started_at="2026-01-31T10:00:00+00:00", end=end))
    (first / RESULTS).write_text(present(load_run(first)).files[RESULTS](), encoding="utf-8")
    files = list(first.iterdir())
    for number in range(1, count):
        folder = root / f"run-{number}"
        folder.mkdir()
        for file in files:
            (folder / file.name).hardlink_to(file)


def cost(*words: str) -> tuple[float, float]:
    """(seconds of processor time, peak MB) of a command line in a separate process."""
    process = subprocess.Popen([sys.executable, "-m", "scalescope", *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{words[0]} ended with exit code {process.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024
    return used.ru_utime + used.ru_stime, used.ru_maxrss * unit / 1e6


def report_cost(folder: Path, out: Path) -> tuple[float, float, float]:
    """(seconds, peak MB, MB of page) of a report."""
    seconds, memory_mb = cost("report", str(folder), "--out", str(out))
    return seconds, memory_mb, (out / "report.html").stat().st_size / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--folders", type=int, default=10_000)
    asked = parser.parse_args()
    costs = []
    with tempfile.TemporaryDirectory() as directory:
        for count in (asked.trials, asked.trials * asked.times):
            folder = Path(directory) / f"run-{count}"
            write_run(folder, count, asked.samples)
            seconds, memory_mb, page_mb = report_cost(folder, Path(directory) / f"out-{count}")
            costs.append((seconds, memory_mb, page_mb))
            print(f"{count:,} trials: {seconds:.1f} s, {memory_mb:.0f} MB, page {page_mb:.2f} MB", flush=True)
        write_copies(Path(directory) / "many", asked.folders, asked.samples)
        list_s, list_mb = cost("list", str(Path(directory) / "many"))
    (first_s, first_mb, first_page), (second_s, _, second_page) = costs
    ratio = second_s / first_s
    print(f"{asked.times} times the trials take {ratio:.1f} times the time")
    print(f"list of {asked.folders:,} folders: {list_s:.1f} s, {list_mb:.0f} MB")
    kept = first_s <= MOST_S and first_mb <= MOST_MB and max(first_page, second_page) <= MOST_PAGE_MB
    kept = kept and ratio <= MOST_TIMES and list_s <= MOST_LIST_S
    sys.exit(0 if kept else "a claim does not hold")


if __name__ == "__main__":
    main()
