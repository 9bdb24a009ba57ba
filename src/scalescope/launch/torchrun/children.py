"""The worker child of every rank, and what leads and follows."""

import contextlib
import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from scalescope.catalog.measuring import INIT_TIMEOUT_S
from scalescope.errors import BadInput, CannotRun, TimedOut
from scalescope.experiment.trial import Trial
from scalescope.interpreter import python_module
from scalescope.launch.guard import start_guarded
from scalescope.launch.private_directory import (
    is_abandoned,
    own_directories,
    private_directory,
    shared_directory,
)
from scalescope.launch.torchrun.node_watch import NodeSampler, NodeWatch, watch_worker
from scalescope.launch.torchrun.rank_context import RankContext
from scalescope.results.ranks import (
    INIT_TIMEOUT_VARIABLE,
    NCCL_LOG_VARIABLE,
    RANK_VARIABLE,
    STORE_FILE_VARIABLE,
    WATCH_VARIABLE,
)

# ---- What ranks of torchrun or srun cannot be, however new they are


def check_for_ranks(trial: Trial, ranks: int) -> None:
    """Refuse a trial that these ranks of torchrun or srun cannot run: we started neither them nor a link."""
    if trial.env:
        raise BadInput(
            "--env cannot be used under torchrun or srun; export the variable before the ranks start"
        )
    if trial.link or trial.split_gpu:
        raise BadInput("--link and --split-gpu cannot be used under torchrun or srun")
    if trial.world_size > ranks:
        raise CannotRun(f"{trial.world_size} ranks were requested, but only {ranks} are running")


# ---- Whether rank 0 still runs: ranks of its host see a lock that the system frees when it ends


class Leader:
    """A file that rank 0 keeps locked as long as it runs."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "leader"
        self._held: int | None = None
        self.was_there = False

    def acquire(self) -> None:
        """Become the leader; the file has its name only once it is locked."""
        unnamed = self._path.with_suffix(".new")
        self._held = os.open(unnamed, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._held, fcntl.LOCK_EX)
        unnamed.rename(self._path)

    def release(self) -> None:
        """What the system does when the leader ends."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def is_gone(self) -> bool:
        """Whether there was a leader and it has ended."""
        try:
            gone = is_abandoned(self._path)
        except FileNotFoundError:
            return self.was_there
        self.was_there = True
        return gone


# ---- The worker that every attached rank's command line starts once for the whole run


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


# ---- A rank other than 0: its worker does what rank 0 publishes, and its command line watches its node


_LEADER_POLL_S = 0.5  # at whether rank 0 is still there
_LEAVE_S = 5.0  # for a worker to exit after the end of the run


def follow(context: RankContext, init_timeout_s: float = INIT_TIMEOUT_S) -> int:
    """The whole life of a rank other than 0: its worker does what rank 0 publishes."""
    with contextlib.ExitStack() as held:
        variables, leader = worker_variables(context, held, init_timeout_s)
        child = _start_follower(variables)
        started = time.monotonic()
        while leader is not None and not leader.is_gone():
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(_LEADER_POLL_S)
            if not leader.was_there and time.monotonic() - started > init_timeout_s:
                child.kill()
                child.wait()
                raise TimedOut(
                    f"rank 0 did not appear within {init_timeout_s:g} s; check that all ranks share /dev/shm"
                )
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(None if leader is None else _LEAVE_S)
        child.kill()
        return child.wait()


def _start_follower(variables: dict[str, str]) -> "subprocess.Popen[bytes]":
    """The worker of a rank other than 0; the first one of a node has its node sampled by us."""
    environment = {**os.environ, **variables}
    if environment.get("LOCAL_RANK") != "0":
        return start_worker(variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    watch = NodeWatch(NodeSampler(ranks_here(environment)))
    child = start_worker({**variables, WATCH_VARIABLE: "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    watch_worker(watch, child.stdout, child.stdin)
    return child
