"""Mutated run folders through every command that reads stored runs: tracebacks, waits and memory.

    python benchmarks/mutated_runs.py [--runs FOLDER ...] [--folders 1000] [--seed 0] [--minutes 40]

Copies runs (those below --runs, and some made through a simulated launcher), changes each copy at random
(bytes, JSON values of other types, huge and deep ones, links, FIFOs, devices, gzip bombs, odd names), and
calls `list`, `explain`, `report`, `compare` and `resume` on it, in a process of its own with 4 GiB and 10 s
per call. Claimed: no traceback, no wait above 10 s, nothing outside the folder shown or changed; exit code 1
otherwise.
"""

import argparse
import collections
import concurrent.futures
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from mutating.calls import VERBS, Checked, check_folder, remove_folder
from mutating.sources import make_sources, runs_below

from scalescope.quantities import counted

_SHOWN = 40  # problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, action="append", default=[], help="a folder with stored runs")
    parser.add_argument("--folders", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first folder; the others follow")
    parser.add_argument("--minutes", type=float, default=40.0, help="no folder is begun after that")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="keep the folders with problems, and say where")
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60.0 * arguments.minutes
    began = time.monotonic()
    where = Path(tempfile.mkdtemp(prefix="scalescope-mutated-"))
    sources = [*runs_below(arguments.runs), *make_sources(where / "sources")]
    seeds = range(arguments.seed, arguments.seed + arguments.folders)
    context = multiprocessing.get_context("fork")
    checked: list[Checked] = []
    with concurrent.futures.ProcessPoolExecutor(arguments.processes, mp_context=context) as pool:
        futures = [pool.submit(_check, seed, sources, where, deadline, arguments.keep) for seed in seeds]
        for future in concurrent.futures.as_completed(futures):
            result = future.result()
            if result is not None:
                checked.append(result)
                for call in result.problems:
                    print(f"seed {result.seed} ({result.source}): {call.verb}: {call.problem!a}", flush=True)
    if not arguments.keep:
        _remove(where)
    return _summary(checked, time.monotonic() - began, len(sources))


def _check(seed: int, sources: list[Path], where: Path, deadline: float, keep: bool) -> Checked | None:
    if time.monotonic() > deadline:
        return None
    checked = check_folder(seed, sources, where)
    if not (keep and checked.problems):
        remove_folder(seed, where)
    return checked


def _remove(where: Path) -> None:
    import shutil

    shutil.rmtree(where, ignore_errors=True)


def _summary(checked: Iterable[Checked], seconds: float, sources: int) -> int:
    folders = list(checked)
    calls = [call for folder in folders for call in folder.calls]
    made_of = f"{counted(len(folders), 'folder')} from {counted(sources, 'run')}"
    print(f"\n{made_of}, {len(calls)} calls, {seconds:.0f} s")
    print(f"{'verb':10}{'calls':>7}{'problems':>10}{'longest':>10}  exit codes")
    for verb in VERBS:
        own = [call for call in calls if call.verb == verb]
        codes = collections.Counter(str(call.code) for call in own)
        shown = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
        longest = max((call.seconds for call in own), default=0.0)
        problems = sum(bool(call.problem) for call in own)
        print(f"{verb:10}{len(own):7}{problems:10}{longest:9.1f}s  {shown}")
    peak = max((folder.peak_bytes for folder in folders), default=0)
    print(f"Peak memory of a process: {peak / (1 << 20):.0f} MiB")
    failing = [folder for folder in folders if folder.problems]
    print(f"Folders with a problem: {len(failing)}")
    for folder in failing[:_SHOWN]:
        print(f"  --seed {folder.seed} --folders 1: {', '.join(folder.operations)}")
    return 1 if failing else 0


if __name__ == "__main__":
    os.environ.setdefault("MPLBACKEND", "Agg")
    sys.exit(main())
