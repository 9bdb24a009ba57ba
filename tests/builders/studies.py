"""Measuring verbs as functions, for tests: each runs its study with a launcher and a watcher."""

from typing import Any

from scalescope.experiment.given import Entries
from scalescope.studies.comm import CommStudy
from scalescope.studies.execution import run_study
from scalescope.studies.memory import MemoryStudy
from scalescope.studies.plan import Plan
from scalescope.studies.prepared import host_of, prepare
from scalescope.studies.request import Request
from scalescope.studies.scaling.run import RunStudy
from scalescope.studies.scaling.scale import ScaleStudy
from scalescope.studies.slurm.slurm_request import SlurmRun, prepared_job
from scalescope.studies.study import Report, Study
from scalescope.studies.train import TrainStudy
from scalescope.studies.tuning.tune import TuneStudy
from scalescope.studies.watcher import CampaignWatcher


def _run(
    kind: type[Study], request: Request, launcher: Any, watcher: CampaignWatcher, options: dict[str, Any]
) -> Report:
    """Run a study; `most_ranks` is the number of ranks that torchrun or srun would have started."""
    if "most_ranks" in options:
        launcher.ranks = options.pop("most_ranks")
    return run_study(prepare(kind(**options), request), launcher, watcher)


def scale(request: Request, launcher: Any, watcher: CampaignWatcher, **options: Any) -> Report:
    return _run(ScaleStudy, request, launcher, watcher, options)


def train(request: Request, launcher: Any, watcher: CampaignWatcher, **options: Any) -> Report:
    return _run(TrainStudy, request, launcher, watcher, options)


def tune(request: Request, launcher: Any, watcher: CampaignWatcher, **options: Any) -> Report:
    return _run(TuneStudy, request, launcher, watcher, options)


def comm(request: Request, launcher: Any, watcher: CampaignWatcher, **options: Any) -> Report:
    return _run(CommStudy, request, launcher, watcher, options)


def memory(request: Request, launcher: Any, watcher: CampaignWatcher, **options: Any) -> Report:
    return _run(MemoryStudy, request, launcher, watcher, options)


def standard_run(request: Request, launcher: Any, watcher: CampaignWatcher, **options: Any) -> Report:
    return _run(RunStudy, request, launcher, watcher, options)


def plan_of(study: Study, request: Request, launcher: Any) -> Plan:
    """What a study would launch."""
    return prepare(study, request).on(host_of(launcher)).plan


def job_of(study: Study, request: Request, flags: Entries, setup: tuple[str, ...] = ()) -> SlurmRun:
    """A study as a job that is ready to be submitted."""
    return prepared_job(prepare(study, request), flags, setup)
