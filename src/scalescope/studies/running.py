"""Runs a prepared study here: with ranks that torchrun or srun started, or with ranks started for it."""

import contextlib
import dataclasses
import os

from scalescope.errors import ScalescopeError
from scalescope.launch.allocation import current_allocation
from scalescope.launch.local.launcher import LocalLauncher
from scalescope.launch.torchrun.launcher import AttachedLauncher
from scalescope.launch.torchrun.rank_context import RankContext, stray_variables
from scalescope.results.run_folder import RunFolder
from scalescope.results.run_record import UNKNOWN_VERB, RunEnd, read_run_record, write_run_record
from scalescope.studies.execution import run_study
from scalescope.studies.prepared import Prepared
from scalescope.studies.slurm.slurm_request import is_job_folder
from scalescope.studies.study import Report
from scalescope.studies.watcher import CampaignWatcher


def run_here(prepared: Prepared, context: RankContext | None, watcher: CampaignWatcher) -> Report:
    """Measure, and do what the study does with the report; `context` is that of ranks that are there."""
    for name in stray_variables(os.environ):
        watcher.noted(f"{name} is set without the other variables of a rank: ignored.")
    with contextlib.ExitStack() as held:
        try:
            launcher = _launcher_for(prepared, context)
            held.callback(launcher.close)
            if isinstance(launcher, AttachedLauncher):
                for note in launcher.notes():
                    watcher.noted(note)
            report = run_study(prepared, launcher, watcher)
        except ScalescopeError as error:
            if prepared.request.is_shared:
                _record_error(prepared, error)
            raise
        if report.run is None:
            return report
        return prepared.study.after_measuring(report, own_ranks=launcher.repeatable)


def _launcher_for(prepared: Prepared, context: RankContext | None) -> LocalLauncher | AttachedLauncher:
    init_timeout_s = prepared.experiment.measuring.init_timeout
    if context is not None:
        return AttachedLauncher(context, init_timeout_s)
    allocation = current_allocation(os.environ) if prepared.experiment.is_command else None
    if allocation is None:
        launcher = LocalLauncher()
    else:
        from scalescope.launch.allocation import AllocationLauncher

        launcher = AllocationLauncher(allocation)
    launcher.init_timeout_s = init_timeout_s
    return launcher


def _record_error(prepared: Prepared, error: ScalescopeError) -> None:
    """Leave what stopped a step of a job in the run folder, where the command that submitted it looks."""
    path, verb = prepared.output_dir, prepared.study.verb
    if path is None or not is_job_folder(path):
        return
    with contextlib.suppress(Exception):
        folder = RunFolder.open(path, resume=True)  # fails where another step measures
        try:
            stored = read_run_record(folder.path)
            if stored.end is None and stored.verb in (UNKNOWN_VERB, verb):
                end = RunEnd(why="failed", message=str(error))
                write_run_record(folder.path, dataclasses.replace(stored, verb=verb, end=end))
        finally:
            folder.close()
