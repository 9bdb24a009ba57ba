"""The worker that every attached rank's command line starts once for the whole run."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from scalescope.errors import CannotRun
from scalescope.interpreter import python_module
from scalescope.launch.attached.leader import Leader
from scalescope.launch.attached.rank_context import RankContext
from scalescope.launch.guard import start_guarded
from scalescope.launch.private_directory import own_directories, private_directory, shared_directory
from scalescope.results.ranks.rank_job import (
    INIT_TIMEOUT_VARIABLE,
    NCCL_LOG_VARIABLE,
    RANK_VARIABLE,
    STORE_FILE_VARIABLE,
)

# What NCCL prints while ranks connect. TUNING would print a line for every collective that is timed.
_SUBSYSTEMS = "INIT,GRAPH,NET,ENV"


def worker_variables(
    context: RankContext, held: contextlib.ExitStack, init_timeout_s: float
) -> tuple[dict[str, str], Leader | None]:
    """The worker's variables and rank 0's lock; `held` keeps the directory that ranks of one host share."""
    variables = {
        **context.variables,
        **_log_variables(held),
        INIT_TIMEOUT_VARIABLE: f"{init_timeout_s:g}",
    }
    if context.directory is None:
        return variables, None
    meeting = held.enter_context(shared_directory(context.directory))
    return {**variables, STORE_FILE_VARIABLE: str(meeting / "store")}, Leader(meeting)


def _log_variables(held: contextlib.ExitStack) -> dict[str, str]:
    """What makes NCCL log for us, unless the user asked it for something else or there is no room."""
    if not nccl_log_variables(os.environ, Path()):
        return {}
    with contextlib.suppress(CannotRun):
        directory = held.enter_context(private_directory(Path(tempfile.gettempdir())))
        return nccl_log_variables(os.environ, directory)
    return {}


def nccl_log_variables(environment: Mapping[str, str], directory: Path) -> dict[str, str]:
    """What makes NCCL log into a file; nothing where the user chose what NCCL logs."""
    if "NCCL_DEBUG" in environment or "NCCL_DEBUG_FILE" in environment:
        return {}
    log = str(directory / "nccl.log")
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": environment.get("NCCL_DEBUG_SUBSYS", _SUBSYSTEMS),
        "NCCL_DEBUG_FILE": log,
        NCCL_LOG_VARIABLE: log,
    }


def ranks_here(environment: Mapping[str, str]) -> int:
    """How many ranks this host has, by the launcher's variables."""
    text = environment.get("LOCAL_WORLD_SIZE", "")
    return int(text) if text.isdecimal() else 1


def start_worker(variables: dict[str, str], stdin: int, stdout: int) -> "subprocess.Popen[bytes]":
    """The worker's guard, which reads, writes and ends as the worker does.

    If we are killed, it ends the worker and removes our directories; the shared one only after the last rank.
    """
    environment = {**os.environ, **variables}
    environment[RANK_VARIABLE] = environment["RANK"]
    store = variables.get(STORE_FILE_VARIABLE)
    shared = () if store is None else (str(Path(store).parent),)
    command = python_module("scalescope.worker.process.attached")
    removes = (*own_directories(), *shared)
    try:
        return start_guarded(command, removes=removes, stdin=stdin, stdout=stdout, env=environment).guard
    except OSError as error:
        raise CannotRun(f"the worker of a rank could not be started: {error.strerror}") from None
