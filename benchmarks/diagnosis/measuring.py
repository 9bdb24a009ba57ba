"""Measures a case as `scalescope train` or `scalescope scale` would, and keeps its run."""

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from null_watcher import NullWatcher

from diagnosis.cases import QUICK, Case
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.given import Given
from scalescope.launch.local.launcher import LocalLauncher
from scalescope.results.run import Run, load_run
from scalescope.studies.execution import run_study
from scalescope.studies.plan import Plan
from scalescope.studies.prepared import prepare
from scalescope.studies.request import Request
from scalescope.studies.scaling.scale import ScaleStudy
from scalescope.studies.study import Host, Study
from scalescope.studies.train import TrainStudy

WORKLOADS = Path(__file__).resolve().parent / "workloads"
_RECORD = "case.json"
_RUN = "run"
_JOB = '''"""The job of a case."""

import functools
import sys

sys.path.insert(0, {folder!r})

import cpu_jobs

build = functools.partial(cpu_jobs.{job}, **{arguments!r})
'''


@dataclass(frozen=True, kw_only=True)
class QuickScale(ScaleStudy):
    """`scale` with a shorter measurement of the network: no pairs of ranks, and exchanges no larger than
    needed to tell about the case's buckets."""

    largest_bytes: int = 1 << 22

    def plan(self, experiment: Experiment, host: Host, *, many: bool = False) -> Plan:
        plan = super().plan(experiment, host, many=many)
        exchanges = [trial for trial in plan.once if not trial.measures_pairs]
        return dataclasses.replace(
            plan, once=tuple(trial.replace(max_bytes=self.largest_bytes) for trial in exchanges)
        )


class Measuring:
    """Measures cases one after another; what neither has a fault nor a link shares a launcher, and with it
    the import of torch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shared: LocalLauncher | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shared is not None:
            self._shared.close()

    def run_of(self, case: Case) -> Run:
        """The run of a case, measured now; a run that is interrupted leaves nothing behind."""
        folder = self._folder / case.folder
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        try:
            with self._launcher_for(case) as launcher:
                run = measure(study_of(case), flags_of(case, folder), launcher)
        except BaseException:
            shutil.rmtree(folder)
            raise
        (folder / _RECORD).write_text(json.dumps(case.record()))  # last: only a complete run counts
        return run

    @contextlib.contextmanager
    def _launcher_for(self, case: Case) -> Iterator[LocalLauncher]:
        if case.needs_clean_launcher:
            with injected(case.fault) as launcher:
                yield launcher
            return
        if self._shared is None:
            self._shared = LocalLauncher()
        yield self._shared


def stored_run(folder: Path, case: Case) -> Run | None:
    """The kept run of a case; None where there is none, or the case has changed since."""
    try:
        record = json.loads((folder / case.folder / _RECORD).read_text())
    except (OSError, ValueError):
        return None
    if record != json.loads(json.dumps(case.record())):
        return None
    return load_run(folder / case.folder / _RUN)


def measure(study: Study, flags: Mapping[str, object], launcher: LocalLauncher) -> Run:
    """What a verb measures with these flags."""
    prepared = prepare(study, request_of(study, flags))
    report = run_study(prepared, launcher, NullWatcher())  # type: ignore[arg-type]
    assert report.run is not None
    return report.run


def request_of(study: Study, flags: Mapping[str, object]) -> Request:
    """The request of a verb with these flags; commas separate values."""
    given = {
        name: tuple(Given(text, name) for text in str(value).split(",")) for name, value in flags.items()
    }
    return Request(verb=study.verb, flags=given)


def study_of(case: Case) -> Study:
    if case.ranks == 1:
        return TrainStudy()
    is_small = case.job is not None or ("layer_mb" in case.settings and "first_layer_mb" not in case.settings)
    return QuickScale(largest_bytes=1 << (22 if is_small else 26))


def flags_of(case: Case, folder: Path) -> dict[str, object]:
    """The flags of the verb; a job of ours is written into the folder as a file of the user's."""
    ranks = "1" if case.ranks == 1 else f"1,{case.ranks}"
    flags = {"device": "cpu", "world_size": ranks, "output_dir": folder / _RUN, **QUICK, **case.settings}
    if case.job is not None:
        file = folder / "job.py"
        file.write_text(_JOB.format(folder=str(WORKLOADS), job=case.job, arguments=case.arguments))
        flags["workload"] = f"{file}:build"
    return flags


@contextlib.contextmanager
def injected(fault: str | None) -> Iterator[LocalLauncher]:
    """A launcher whose ranks have the fault, through the environment of the zygote."""
    os.environ.pop("SCALESCOPE_FAULT", None)
    if fault is not None:
        os.environ["SCALESCOPE_FAULT"] = fault
    launcher = LocalLauncher()
    try:
        yield launcher
    finally:
        launcher.close()
        os.environ.pop("SCALESCOPE_FAULT", None)
