"""Whether the diagnosis is right: causes injected at several strengths, diagnosed blind, and a table.

    python benchmarks/diagnosis_score.py [--set development|held-out|all] [--only CAUSE] [--minutes 45]
    python benchmarks/diagnosis_score.py --set all --again [--gpu-results FILE]

Every case is what `scalescope train` does with a request on one rank, and `scalescope scale` on several:
gloo ranks on the CPU; links need Linux and root. The injected cause is a setting (a shaped link, a tiny
batch, tiny buckets, many threads), a fault in a rank (slow, jitter, hiccup) or a job with a flaw (a slow data
set, collections, checkpoints, an optimizer of many kernels, longer samples on one rank). A healthy case is
right if no finding costs more than 5 %.

A hash of its name puts a case into one of two sets. Rules may be changed by what *development* shows.
*Held out* is measured and scored once, at the end.

Runs are kept in `--keep` and not measured again, unless other processes disturbed them: such runs do not
count. A call ends after `--minutes` with the table of what there is; the next one goes on. Cases run in
random order, so that temporary load on the machine does not affect a single cause. Causes on a GPU are
measured by gpu_causes.py.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from diagnosis.cases import Case, all_cases
from diagnosis.gpu_cases import gpu_table
from diagnosis.measuring import Measuring, stored_run
from diagnosis.scoring import Verdict, cause_table, judge, rank_table, score_table

from scalescope.errors import ScalescopeError

KEEP = Path(__file__).resolve().parents[1] / "build" / "diagnosis"
_CASE_S = 75.0  # what a case takes at most: none is begun with less time left


def verdicts_of(cases: Sequence[Case], keep: Path, minutes: float, *, again: bool) -> Iterator[Verdict]:
    """The verdict about each case that is stored, or can be measured in time."""
    ends = time.monotonic() + 60.0 * minutes
    with Measuring(keep) as measuring:
        for case in cases:
            run = stored_run(keep, case)
            verdict = None if run is None else judge(case, run)
            is_wanted = verdict is None or verdict.is_disturbed
            if is_wanted and not again and time.monotonic() + _CASE_S < ends:
                began = time.monotonic()
                try:
                    verdict = judge(case, measuring.run_of(case))
                except ScalescopeError as error:
                    print(f"--  {case.name}: not measured: {error}", flush=True)
                print(f"{time.monotonic() - began:4.0f} s  ", end="")
            if verdict is not None:
                print(verdict.line(), flush=True)
                yield verdict


def chosen_cases(which: str, cause: str | None) -> list[Case]:
    """The cases of a set."""
    wanted = {"development": (False,), "held-out": (True,), "all": (False, True)}[which]
    return [case for case in all_cases() if case.is_held_out in wanted and cause in (None, case.cause)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", choices=("development", "held-out", "all"), default="development")
    parser.add_argument("--only", help="a cause")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--minutes", type=float, default=45.0, help="then the call ends")
    parser.add_argument("--keep", type=Path, default=KEEP, help="where runs are stored")
    parser.add_argument("--again", action="store_true", help="diagnose stored runs; measures nothing")
    parser.add_argument("--json", type=Path, help="write the verdicts there")
    parser.add_argument("--gpu-results", type=Path, help="what gpu_causes.py wrote")
    parser.add_argument("--list", action="store_true", help="list the cases and end")
    asked = parser.parse_args()
    cases = chosen_cases(asked.set, asked.only)
    if not cases:
        parser.error(f"no case of {asked.set} has the cause {asked.only}")
    if asked.list:
        print("\n".join(case.name for case in cases))
        return
    random.Random(asked.seed).shuffle(cases)
    began = time.monotonic()
    verdicts = list(verdicts_of(cases, asked.keep, asked.minutes, again=asked.again))
    if asked.json is not None:
        asked.json.write_text(json.dumps([verdict.record() for verdict in verdicts], indent=1))
    counted = [verdict for verdict in verdicts if not verdict.is_disturbed]
    tables = [score_table(verdicts, cases)]
    tables += [cause_table(counted), rank_table(counted)] if counted else []
    if asked.gpu_results is not None and asked.gpu_results.is_file():
        tables.append(gpu_table(json.loads(asked.gpu_results.read_text())))
    print("\n" + "\n\n".join(tables))
    print(f"\n{len(cases) - len(counted)} of {len(cases)} missing; {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
