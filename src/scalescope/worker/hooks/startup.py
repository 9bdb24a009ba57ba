"""What a Python process of a training command does first: next to nothing, until it imports torch."""

import contextlib
import dataclasses
import os
import sys
import traceback
from pathlib import Path

from scalescope import clocks  # noqa: F401 - taken before the script can replace them
from scalescope.parent_death import die_with_parent
from scalescope.results.ranks import JOB_VARIABLE, AttachJob
from scalescope.worker.hooks.imports import after_import, apart_from_script
from scalescope.worker.hooks.process_file import ProcessFile
from scalescope.worker.process.node import node_name
from scalescope.worker.process.temporary_files import use_directory


def begin(job_file: str | None = None) -> None:
    """Prepare this process, and look on from when it has imported torch."""
    path = job_file or os.environ.get(JOB_VARIABLE)
    if not path:
        return
    job = AttachJob.from_text(Path(path).read_text(encoding="utf-8"))
    process = ProcessFile(job)
    process.write()
    _see_private_view(job, process)
    rank = rank_from_environment()
    if rank is not None and not job.settings.get("keep_running"):
        _prepare_rank(job, rank)

    def attach() -> None:
        """Runs inside the script's import of torch, where an error of ours must not appear."""
        try:
            _attach()
        except Exception as error:
            process.update(error=f"{type(error).__name__}: {error}")
            if not job.settings.get("keep_running"):
                traceback.print_exception(error)
                os._exit(1)

    def _attach() -> None:
        with apart_from_script():
            if not job.settings.get("keep_running"):
                use_directory(Path(job.directory) / "tmp")
            from scalescope.worker.hooks.session import Session

            process.update(torch=True)
            Session(_on_this_node(job), process).install()

    if "torch" in sys.modules:
        attach()
    else:
        after_import("torch", attach)


def _see_private_view(job: AttachJob, process: ProcessFile) -> None:
    """Let what the script writes go to copies, where its processes have no file system of their own."""
    if job.view is None:
        return
    from scalescope.private_view import OVERLAY, View, forbid_writing
    from scalescope.worker.hooks.redirection import Redirection, rename_folders_by_copying

    view = View(**job.view)
    if view.kind == OVERLAY:
        rename_folders_by_copying()
        return
    if job.forbids_writing and view.is_enforced:
        forbid_writing(view.writable)

    def refuse(reason: str) -> None:
        process.update(refused=reason)
        print(f"scalescope: {reason}", file=sys.stderr, flush=True)
        os._exit(1)

    Redirection(view, refuse).install()


def rank_from_environment() -> int | None:
    """The rank that a launcher has given this process; None where there is none, or not yet."""
    for name in ("RANK", *(("SLURM_PROCID",) if _is_task() else ())):
        with contextlib.suppress(KeyError, ValueError):
            return int(os.environ[name])
    return None


def _is_task() -> bool:
    """Whether srun started this process, or one above it, as one of several: job scripts are rank 0 too."""
    return "SLURM_STEP_ID" in os.environ and os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"


def _on_this_node(job: AttachJob) -> AttachJob:
    """The job on a node other than the launcher's: neither its memory nor its process is here."""
    if job.node in ("", node_name()):
        return job
    return dataclasses.replace(job, parent=0, heartbeat_file=f"{job.heartbeat_file}-of-{job.node}")


def _prepare_rank(job: AttachJob, rank: int) -> None:
    """What has to be there before the script reads it: variables and cores of this rank."""
    if job.parent:
        die_with_parent(os.getppid())
    if rank < len(job.environment):
        os.environ.update(job.environment[rank])
    if _is_task():  # SLURM has bound it
        return
    if rank < len(job.cpus) and job.cpus[rank] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, job.cpus[rank])
