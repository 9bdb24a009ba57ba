"""Causes injected into jobs on one CUDA GPU: what is reported first, and the claimed cost against the gain.

    python benchmarks/gpu_causes.py [--only TEXT] [--two-ranks] [--out DIR] [--minutes 8]

Each job is measured as `scalescope train` does (with --two-ranks the two small jobs as `scalescope scale
--world-size 1,2 --split-gpu 2`), and again without the cause. Runs are kept in `--out` and not measured
again: a call ends after `--minutes`, and the next one goes on. `--again` diagnoses stored runs. `--tiny`
tries all of it on the CPU with tiny jobs, where the findings mean nothing.
"""

import argparse
import dataclasses
import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

from diagnosis.gpu_cases import CASES, TWO_RANKS, GpuCase, gpu_table
from diagnosis.measuring import WORKLOADS, measure

from scalescope.analysis.configurations import configurations
from scalescope.diagnose.diagnosis import diagnose
from scalescope.errors import ScalescopeError
from scalescope.launch.local.launcher import LocalLauncher
from scalescope.results.run import Run, load_run
from scalescope.studies.scaling.scale import ScaleStudy
from scalescope.studies.study import Study
from scalescope.studies.train import TrainStudy

OUT = Path(__file__).resolve().parents[1] / "build" / "gpu_causes"
_COMPLETE = "complete"
_RUN = "run"
_MOST_FINDINGS = 5


class NoTime(Exception):
    """There is not enough time left for another measurement."""


@dataclasses.dataclass(frozen=True)
class GpuMeasuring:
    """Measures what is not stored yet."""

    out: Path
    launcher: LocalLauncher
    ends_s: float  # on the monotonic clock
    tiny: bool

    def row(self, case: GpuCase, *, again: bool) -> dict[str, Any]:
        """What is said about a case, and what its fix gains; `again` measures nothing."""
        least_s = math.inf if again else case.needs_s
        flags = case.flags(WORKLOADS, fixed=False, tiny=self.tiny)
        if case.ranks > 1:
            flags["world_size"] = f"1,{case.ranks}"
        run = self._run(case.folder, ScaleStudy() if case.ranks > 1 else TrainStudy(), flags, least_s)
        flags = case.flags(WORKLOADS, fixed=True, tiny=self.tiny)
        fixed = self._run(case.fixed_folder(flags), TrainStudy(breakdown=False), flags, least_s / 3.0)
        return row_of(case, run, fixed)

    def _run(self, name: str, study: Study, flags: dict[str, object], least_s: float) -> Run:
        folder = self.out / name
        if (folder / _COMPLETE).is_file():
            return load_run(folder / _RUN)
        if time.monotonic() + least_s > self.ends_s:
            raise NoTime
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        run = measure(study, {**flags, "output_dir": folder / _RUN}, self.launcher)
        (folder / _COMPLETE).touch()
        return run


def row_of(case: GpuCase, run: Run, fixed: Run) -> dict[str, Any]:
    """The findings about a run, the most expensive first, against what the fix gained."""
    step_s, fixed_s = step_of(run, case.ranks), step_of(fixed, case.ranks)
    findings = [
        {
            "rule": finding.rule,
            "claim": finding.claim,
            "share": finding.share,
            "cost_s": finding.share * (step_s or 0.0) if finding.cost_s is None else finding.cost_s,
            "estimated": finding.estimated,
        }
        for finding in diagnose(run).findings
        if finding.share > 0.0
    ]
    failures = [result for result in (*run.results, *fixed.results) if result.status != "ok"]
    return {
        "model": case.model,
        "cause": case.cause,
        "ranks": case.ranks,
        "expected": case.expected,
        "right": bool(findings) and findings[0]["rule"] in case.expected,
        "step_s": step_s,
        "fixed_s": fixed_s,
        "gained_s": None if step_s is None or fixed_s is None else step_s - fixed_s,
        "findings": findings[:_MOST_FINDINGS],
        "failed_launches": [f"{result.trial.benchmark}: {result.reason}" for result in failures],
        "error": "",
    }


def step_of(run: Run, ranks: int) -> float | None:
    """The step of the job itself on so many ranks; None where it could not be measured."""
    steps_s = [
        configuration.step_time_s.value
        for configuration in configurations(run.results)
        if configuration.trial.world_size == ranks and not configuration.trial.is_ablation
    ]
    return steps_s[0] if steps_s else None


def failed_row(case: GpuCase, error: Exception) -> dict[str, Any]:
    empty = {"step_s": None, "fixed_s": None, "gained_s": None, "findings": [], "failed_launches": []}
    known = {"model": case.model, "cause": case.cause, "ranks": case.ranks, "expected": case.expected}
    return {**known, **empty, "right": False, "error": str(error) or repr(error)}


def line_of(row: dict[str, Any]) -> str:
    costs = ", ".join(f"{finding['rule']} {finding['share']:.2f}" for finding in row["findings"][:3])
    failed = f"; failed launches: {row['failed_launches']}" if row["failed_launches"] else ""
    return (
        f"{'ok' if row['right'] else 'NO'}  {row['model']}, {row['cause']}: {costs or row['error']}{failed}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="cases whose name contains this text")
    parser.add_argument("--two-ranks", action="store_true", help="the two small jobs on halves of the GPU")
    parser.add_argument("--out", type=Path, default=OUT, help="where runs, table.md and results.json go")
    parser.add_argument("--minutes", type=float, default=8.0, help="then the call ends")
    parser.add_argument("--again", action="store_true", help="diagnose stored runs; measures nothing")
    parser.add_argument("--tiny", action="store_true", help="tiny jobs on the CPU")
    asked = parser.parse_args()
    chosen = TWO_RANKS if asked.two_ranks else CASES
    measured = [case for case in chosen if asked.only is None or asked.only in case.name]
    if not measured:
        parser.error(f"no case has {asked.only} in its name")
    asked.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    launcher = LocalLauncher()
    ends_s = time.monotonic() + 60.0 * asked.minutes
    measuring = GpuMeasuring(asked.out, launcher, ends_s, asked.tiny)
    try:
        for case in chosen:
            began = time.monotonic()
            try:
                rows.append(measuring.row(case, again=asked.again or case not in measured))
            except NoTime:
                continue  # what comes later may be stored, or quicker
            except (ScalescopeError, OSError, ValueError, RuntimeError) as error:
                rows.append(failed_row(case, error))
            print(f"{time.monotonic() - began:4.0f} s  {line_of(rows[-1])}", flush=True)
            suffix = "_two_ranks" if asked.two_ranks else ""
            (asked.out / f"results{suffix}.json").write_text(json.dumps(rows, indent=1))
            (asked.out / f"table{suffix}.md").write_text(gpu_table(rows) + "\n")
    finally:
        launcher.close()
    print(f"\n{gpu_table(rows)}\n\n{len(chosen) - len(rows)} of {len(chosen)} missing")


if __name__ == "__main__":
    main()
