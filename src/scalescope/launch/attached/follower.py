"""A rank other than 0: its worker does what rank 0 publishes, and its command line watches its node."""

import contextlib
import os
import subprocess
import time

from scalescope.catalog.measuring import INIT_TIMEOUT_S
from scalescope.errors import TimedOut
from scalescope.launch.attached.node_watch import NodeSampler, NodeWatch, watch_worker
from scalescope.launch.attached.rank_context import RankContext
from scalescope.launch.attached.worker_child import ranks_here, start_worker, worker_variables
from scalescope.results.ranks.rank_job import WATCH_VARIABLE

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
