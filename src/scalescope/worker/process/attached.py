"""Worker of a run attached to torchrun or srun: one process for all trials, led by rank 0 through a store.

Requests and records travel as JSON bytes.
"""

import contextlib
import functools
import gc
import itertools
import json
import os
import signal
import sys
import time
import traceback
from typing import Any

from scalescope.cores import own_cores, share_of
from scalescope.errors import BadInput
from scalescope.parent_death import die_with_parent
from scalescope.results.rank_job import RankJob
from scalescope.results.secondary_errors import is_secondary_error
from scalescope.worker.process.node import node_name
from scalescope.worker.process.position import Position
from scalescope.worker.process.rendezvous import Rendezvous

_ANSWER_LIMIT_S = 600.0  # after a first answer: the ranks of a trial end together
_LOOK_LIMIT_S = 120.0  # the same where ranks only look around
_LOST_LIMIT_S = 10.0  # after an error that a lost rank explains: all others have seen it by then
_PART_LIMIT_S = 8.0  # our own command line ends us soon after
_STOP = b"{}"


def main() -> int:
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command line, which takes us along
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a model prints must not break the protocol
    meeting, lost = Rendezvous(), set[int]()
    for number in itertools.count():
        text = _next_request(meeting, number)
        if text == _STOP:
            _part(meeting, lost)
            return 0
        request = json.loads(text)
        meeting.say(f"answer/{number}/{meeting.rank}", json.dumps(_answer(request, meeting, number)))
        if meeting.rank == 0:
            found = _gather(request, meeting, number)
            lost |= {rank for rank, one in zip(request["ranks"], found, strict=True) if _is_lost(one)}
            answers.write(json.dumps({"answers": found}) + "\n")
            answers.flush()
    raise AssertionError("the loop above ends by returning")


def _next_request(meeting: Rendezvous, number: int) -> bytes:
    key = f"request/{number}"
    if meeting.rank == 0:
        text = sys.stdin.readline().strip().encode() or _STOP
        meeting.say(key, text)
        return text
    return meeting.hear(key)


def _answer(request: dict[str, Any], meeting: Rendezvous, number: int) -> dict[str, Any]:
    if meeting.rank not in request["ranks"]:
        return {"state": "idle"}
    if "probe" in request:
        return _look(meeting.rank)
    return _take_part(request, meeting.prefix(f"trial/{number}"), request["ranks"].index(meeting.rank))


def _look(rank: int) -> dict[str, Any]:
    """What this rank sees of its node, or why it cannot."""
    from scalescope.worker.process.rank import describe_error

    try:
        return _seen_here()
    except Exception as error:
        traceback.print_exc()
        return {"rank": rank, "host": node_name(), "state": "failed", "error": describe_error(error)}


def _seen_here() -> dict[str, Any]:
    """The first rank of each node looks at all of it."""
    from scalescope.inspection import inspect_system, own_address
    from scalescope.worker.process.probe import own_gpu, probe

    local_rank = int(os.environ["LOCAL_RANK"])
    # Before we hold a GPU ourselves, and are seen there.
    system = None if local_rank else {**inspect_system(), "own_address": own_address()}
    return {
        "host": node_name(),
        "node": _node_number() or node_name(),
        "cores": _all_cores(),
        "cpus_per_task": _cpus_per_task(),
        "gpu": own_gpu(local_rank) if local_rank else None,
        "machine": None if local_rank else probe(),
        "system": system,
    }


def _node_number() -> str | None:
    """torchrun's own count, or SLURM's: a torchrun in each of several steps is node 0 of every step."""
    name = "GROUP_RANK" if "TORCHELASTIC_RUN_ID" in os.environ else "SLURM_NODEID"
    return os.environ.get(name)


def _cpus_per_task() -> int:
    """The cores that SLURM gave this rank; 0 where it said nothing, or where the task is a whole torchrun."""
    given = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return int(given) if given.isdecimal() and "TORCHELASTIC_RUN_ID" not in os.environ else 0


def _take_part(request: dict[str, Any], store: Any, rank: int) -> dict[str, Any]:
    from scalescope.worker.process.rank import describe_error, perform

    settings = request["settings"]
    record: dict[str, Any] = {"rank": rank, "host": node_name(), "state": "running"}
    job = RankJob(
        settings=settings,
        launch=request["launch"],
        rank=rank,
        local_rank=int(os.environ["LOCAL_RANK"]),
        world_size=settings["world_size"],
        parent=os.getppid(),
        store_file="",
        heartbeat_file="",
        rank_file="",
        folder=request["folder"],
        cpus=_own_cores(settings),
        namespace="",
        group_timeout_s=request["group_timeout_s"],
    )
    position = Position(None, rank, job.world_size)
    try:
        leave = perform(job, store, position, record, lambda: None)
        leave()
    except Exception as error:
        if not isinstance(error, BadInput):  # the request is wrong, which is said in one line
            traceback.print_exc()
        step = position.begun - 1 if position.begun else None
        record.update(state="failed", error={**describe_error(error), "step": step})
    if record["state"] == "failed":  # outside the handler, whose traceback would keep DDP alive
        _clear_away()
    return record


def _clear_away() -> None:
    """Leave the process group of a failed trial and give back its memory, for the trials to come."""
    import torch
    import torch.distributed as dist

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if dist.is_initialized():
        dist.destroy_process_group()


def _own_cores(settings: dict[str, Any]) -> list[int]:
    """Deal the host's cores out to its ranks; torchrun itself pins nothing."""
    asked, on_cpu = settings.get("pin_cores", "auto"), settings["device"] == "cpu"
    cores = _all_cores()
    if asked == "no" or (asked == "auto" and not on_cpu):
        return cores if on_cpu else []
    ranks, place = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), int(os.environ["LOCAL_RANK"])
    share = share_of(cores, settings["threads_per_rank"] if on_cpu else len(cores) // ranks, ranks, place)
    return share or cores  # all of them again: an earlier trial may have pinned this process


@functools.cache
def _all_cores() -> list[int]:
    """The cores this process was given, remembered: pinning narrows what the system says later."""
    return own_cores()


def _gather(request: dict[str, Any], meeting: Rendezvous, number: int) -> list[dict[str, Any]]:
    """What the ranks that were asked have answered; one that is gone is a failed one."""
    ranks: list[int] = request["ranks"]
    answers: dict[int, dict[str, Any]] = {}
    deadline = float("inf")  # until a first answer: a trial takes as long as it takes
    for place in itertools.cycle(range(len(ranks))):
        answer = None if place in answers else meeting.heard(f"answer/{number}/{ranks[place]}")
        if answer is not None:
            answers[place] = json.loads(answer)
            deadline = min(deadline, time.monotonic() + _patience_s(request, answers[place]))
        if len(answers) == len(ranks) or time.monotonic() > deadline:
            break
        if place == len(ranks) - 1:
            time.sleep(0.02)
    return [answers.get(place) or _lost(place) for place in range(len(ranks))]


def _patience_s(request: dict[str, Any], answer: dict[str, Any]) -> float:
    """How long the others may take after this answer: where a rank failed by itself, they wait for it in the
    group until its limit."""
    if "probe" in request:
        return _LOOK_LIMIT_S
    if answer.get("state") != "failed":
        return _ANSWER_LIMIT_S
    lost = is_secondary_error(str(answer["error"]["message"]))
    return _LOST_LIMIT_S + (0.0 if lost else float(request["group_timeout_s"]))


def _lost(rank: int) -> dict[str, Any]:
    error = {
        "message": "it was lost: it has ended, or cannot be reached any more",
        "at_wall_s": 0.0,
        "step": None,
        "out_of_memory": False,
        "lost": True,
    }
    return {"rank": rank, "host": "unknown", "state": "failed", "error": error}


def _is_lost(answer: dict[str, Any]) -> bool:
    return bool(answer.get("error", {}).get("lost"))


def _part(meeting: Rendezvous, lost: set[int]) -> None:
    """Leave together: the store may live in rank 0's process, and the others still read from it."""
    meeting.say(f"left/{meeting.rank}", b"1")
    if meeting.rank == 0:
        for other in {*range(1, meeting.world_size)} - lost:
            with contextlib.suppress(TimeoutError):  # one that was lost while it waited
                meeting.hear(f"left/{other}", limit_s=_PART_LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
