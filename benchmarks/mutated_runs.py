"""Mutated run folders through every command that reads stored runs: tracebacks, waits and memory.

    python benchmarks/mutated_runs.py [--runs FOLDER ...] [--folders 1000] [--seed 0] [--no-figures]

Copies runs (those below --runs, stored ones of the tests, and some made through a simulated launcher), adds
what only some launches store (profiles, tables, topologies, traces), changes each copy, its traces and a
ledger at random (bytes, JSON values of other types, huge and deep ones, links, FIFOs, devices, held locks,
gzip bombs, odd names), and calls `list`, `predict`, `predict --ledger`, `explain`, `report`, `compare` and
`resume` on it, in a process of its own with 4 GiB, 10 s of CPU and 60 s per call. Claimed: no traceback,
no call beyond these, nothing outside the folder shown or changed; exit code 1 otherwise.
"""

import argparse
import collections
import concurrent.futures
import os
import queue
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from mutating.calls import VERBS, Caller, Checked, check_folder, remove_folder
from mutating.sources import enriched_copies, make_sources, runs_below

from scalescope.quantities import counted

_SHOWN = 40  # problems
_STORED = Path(__file__).parents[1] / "tests" / "stored_runs"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, action="append", default=[], help="a folder with stored runs")
    parser.add_argument("--folders", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first folder; the others follow")
    parser.add_argument("--minutes", type=float, default=40.0, help="no folder is begun after that")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-figures", action="store_true", help="pages without figures: most of their time")
    parser.add_argument("--keep", action="store_true", help="keep the folders with problems, and say where")
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60.0 * arguments.minutes
    began = time.monotonic()
    where = Path(tempfile.mkdtemp(prefix="scalescope-mutated-"))
    made = [*make_sources(where / "made"), *runs_below([_STORED])]
    enriched = enriched_copies(made, where / "enriched")
    predictable = [run for run in enriched if run.name.startswith("scale")]
    sources = [*runs_below(arguments.runs), *made, *enriched, *predictable * 10]
    seeds = range(arguments.seed, arguments.seed + arguments.folders)
    checked: list[Checked] = []
    callers: queue.SimpleQueue[Caller] = queue.SimpleQueue()
    for _ in range(arguments.processes):
        callers.put(Caller(draws=not arguments.no_figures))

    def check(seed: int) -> Checked | None:
        if time.monotonic() > deadline:
            return None
        caller = callers.get()
        try:
            result = check_folder(seed, sources, where, caller)
        finally:
            callers.put(caller)
        if not (arguments.keep and result.problems):
            remove_folder(seed, where)
        return result

    with concurrent.futures.ThreadPoolExecutor(arguments.processes) as pool:
        futures = [pool.submit(check, seed) for seed in seeds]
        for future in concurrent.futures.as_completed(futures):
            result = future.result()
            if result is not None:
                checked.append(result)
                for call in result.problems:
                    print(f"seed {result.seed} ({result.source}): {call.verb}: {call.problem!a}", flush=True)
    for _ in range(arguments.processes):
        callers.get().close()
    if not arguments.keep:
        shutil.rmtree(where, ignore_errors=True)
    return _summary(checked, time.monotonic() - began, len(sources))


def _summary(checked: Iterable[Checked], seconds: float, sources: int) -> int:
    folders = list(checked)
    calls = [call for folder in folders for call in folder.calls]
    made_of = f"{counted(len(folders), 'folder')} from {counted(sources, 'run')}"
    print(f"\n{made_of}, {len(calls)} calls, {seconds:.0f} s")
    print(f"{'verb':10}{'calls':>7}{'problems':>10}{'longest':>10}{'most CPU':>10}  exit codes")
    for verb in VERBS:
        own = [call for call in calls if call.verb == verb]
        codes = collections.Counter(str(call.code) for call in own)
        shown = ", ".join(f"{code}: {count}" for code, count in sorted(codes.items()))
        longest = max((call.seconds for call in own), default=0.0)
        most_cpu = max((call.cpu_s for call in own), default=0.0)
        problems = sum(bool(call.problem) for call in own)
        print(f"{verb:10}{len(own):7}{problems:10}{longest:9.1f}s{most_cpu:9.1f}s  {shown}")
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
