"""Worker of a run attached to torchrun or srun: one process per rank for all trials.

Rank 0 publishes requests in a store and the other ranks follow. Requests and records are JSON.
"""

import contextlib
import functools
import gc
import itertools
import json
import os
import signal
import sys
import traceback
from typing import Any, TextIO

from scalescope import clocks
from scalescope.catalog.measuring import INIT_TIMEOUT_S
from scalescope.cores import cores_near, own_cores, share_near, share_of
from scalescope.errors import BadInput, ScalescopeError, TimedOut
from scalescope.parent_death import die_with_parent
from scalescope.results.ranks import INIT_TIMEOUT_VARIABLE, RankJob, is_secondary_error
from scalescope.worker.process.health import StallWatch, answer_key, stall_key
from scalescope.worker.process.main import ignore_preemption_warning
from scalescope.worker.process.node import NodeEvidence, node_name
from scalescope.worker.process.position import Position
from scalescope.worker.process.rendezvous import Rendezvous

_ANSWER_LIMIT_S = 600.0  # after the first answer: the ranks of a trial end together
_PROBE_LIMIT_S = 120.0  # the same for a probe
_LOST_LIMIT_S = 10.0  # after an error caused by a lost rank: all other ranks have the same error by then
_LEAVE_LIMIT_S = 8.0  # the command line ends this process soon after
_STOP = b"{}"


def main() -> int:
    die_with_parent(os.getppid())  # a guard, which has looked whether it still runs
    ignore_preemption_warning()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command line, which ends this process
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a model prints must not break the protocol
    try:
        rendezvous = _joined()
    except ScalescopeError as error:
        return _refused(error, answers)
    lost = set[int]()
    evidence = NodeEvidence(rendezvous.rank, answers)
    for number in itertools.count():
        text = _next_request(rendezvous, number)
        if text == _STOP:
            _leave_together(rendezvous, lost)
            return 0
        request = json.loads(text)
        answer = _answer(request, rendezvous, number, evidence, answers)
        rendezvous.publish(answer_key(number, rendezvous.rank), json.dumps(answer))
        if rendezvous.rank == 0:
            collected = _gather(request, rendezvous, number)
            lost |= {
                rank for rank, answer in zip(request["ranks"], collected, strict=True) if _is_lost(answer)
            }
            answers.write(json.dumps({"answers": collected}) + "\n")
            answers.flush()
    raise AssertionError("the loop above ends by returning")


def _joined() -> Rendezvous:
    """The store with all ranks; who is missing after the time for starting is named."""
    rendezvous = Rendezvous(float(os.environ.get(INIT_TIMEOUT_VARIABLE, INIT_TIMEOUT_S)))
    try:
        missing = rendezvous.meet()
        if missing:
            _leave_together(rendezvous, set(missing))
    except RuntimeError:
        raise TimedOut(
            "the store of the ranks closed while they were connecting; rank 0 has the reason"
        ) from None
    if missing:
        raise TimedOut(rendezvous.missing_text(missing))
    return rendezvous


def _refused(error: ScalescopeError, answers: TextIO) -> int:
    """Let the command line of rank 0 say what is wrong; other ranks say it themselves."""
    if os.environ["RANK"] == "0":
        answers.write(json.dumps({"refused": {"message": str(error), "exit_code": error.exit_code}}) + "\n")
        answers.flush()
    else:
        print(f"scalescope: rank {os.environ['RANK']}: {error}", file=sys.stderr)
    return error.exit_code


def _next_request(rendezvous: Rendezvous, number: int) -> bytes:
    key = f"request/{number}"
    if rendezvous.rank == 0:
        text = sys.stdin.readline().strip().encode() or _STOP
        rendezvous.publish(key, text)
        return text
    return rendezvous.wait(key)


def _answer(
    request: dict[str, Any], rendezvous: Rendezvous, number: int, evidence: NodeEvidence, answers: TextIO
) -> dict[str, Any]:
    if rendezvous.rank not in request["ranks"]:
        return {"state": "idle"}
    if "probe" in request:
        return _probe(rendezvous.rank, evidence)

    def report(published: dict[int, dict[str, Any]]) -> None:
        records = [published.get(index) or _lost(index) for index in range(len(request["ranks"]))]
        answers.write(json.dumps({"answers": records, "hang": True}) + "\n")
        answers.flush()

    evidence.begin(request)
    rank = request["ranks"].index(rendezvous.rank)
    position = Position(None, rank, request["settings"]["world_size"])
    with StallWatch(request, number, rendezvous.rank, position, report):
        record = _run_trial(request, rendezvous.prefix(f"trial/{number}"), rank, position)
    return evidence.end(request, record)


def _probe(rank: int, evidence: NodeEvidence) -> dict[str, Any]:
    """What this rank finds on its node, or the error that prevented it."""
    from scalescope.worker.process.rank import describe_error

    try:
        return _describe_node(evidence)
    except Exception as error:
        traceback.print_exc()
        return {"rank": rank, "host": node_name(), "state": "failed", "error": describe_error(error)}


def _describe_node(evidence: NodeEvidence) -> dict[str, Any]:
    """The first rank of each node inspects the whole node, the others their own GPU."""
    from scalescope.inspection import inspect_system, own_address
    from scalescope.worker.machine.probe import own_gpu, probe

    local_rank = int(os.environ["LOCAL_RANK"])
    # Before this process uses a GPU: nvidia-smi would list it.
    system = None
    if not local_rank:
        system = evidence.system({**inspect_system(), "own_address": own_address()})
    return {
        "host": node_name(),
        "pid": os.getpid(),
        "node": _node_number() or node_name(),
        "cores": _all_cores(),
        "cpus_per_task": _cpus_per_task(),
        "gpu": own_gpu(local_rank) if local_rank else None,
        "machine": None if local_rank else probe(),
        "system": system,
    }


def _node_number() -> str | None:
    """torchrun's count, since separate srun steps all have SLURM_NODEID 0; otherwise SLURM's."""
    name = "GROUP_RANK" if "TORCHELASTIC_RUN_ID" in os.environ else "SLURM_NODEID"
    return os.environ.get(name)


def _cpus_per_task() -> int:
    """The cores SLURM gave this rank; 0 if unknown, or if the task is a whole torchrun."""
    given = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return int(given) if given.isdecimal() and "TORCHELASTIC_RUN_ID" not in os.environ else 0


def _run_trial(request: dict[str, Any], store: Any, rank: int, position: Position) -> dict[str, Any]:
    from scalescope.worker.process.rank import describe_error, perform

    settings = request["settings"]
    record: dict[str, Any] = {"rank": rank, "host": node_name(), "state": "running"}
    job = RankJob(
        settings=settings,
        launch=request["launch"],
        rank=rank,
        local_rank=int(os.environ["LOCAL_RANK"]),
        world_size=settings["world_size"],
        store_file="",
        heartbeat_file="",
        rank_file="",
        folder=request["folder"],
        cpus=_own_cores(settings),
        namespace="",
        group_timeout_s=request["group_timeout_s"],
    )
    try:
        leave = perform(job, store, position, record, lambda: None)
        leave()
    except Exception as error:
        if not isinstance(error, BadInput):  # the message of a wrong request is enough
            traceback.print_exc()
        step = position.begun - 1 if position.begun else None
        record.update(state="failed", error={**describe_error(error), "step": step})
    if record["state"] == "failed":  # outside the handler, whose traceback would keep DDP alive
        _release()
    return record


def _release() -> None:
    """Leave the process group of a failed trial and free its memory for the next trials."""
    import torch
    import torch.distributed as dist

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if dist.is_initialized():
        dist.destroy_process_group()


def _own_cores(settings: dict[str, Any]) -> list[int]:
    """This rank's share of the host's cores; torchrun itself does not pin ranks."""
    asked, on_cpu = settings.get("pin_cores", "auto"), settings["device"] == "cpu"
    cores = _all_cores()
    if asked == "no" or (asked == "auto" and not on_cpu):
        return cores if on_cpu else []
    ranks, local_rank = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), int(os.environ["LOCAL_RANK"])
    share: list[int] = []
    if not on_cpu:
        share = share_near(cores, [cores_near(bus) for bus in _gpu_buses(ranks)], local_rank)
    threads = settings["threads_per_rank"] if on_cpu else len(cores) // ranks
    # All of them in the end: an earlier trial may have pinned this process.
    return share or share_of(cores, threads, ranks, local_rank) or cores


def _gpu_buses(ranks: int) -> list[str | None]:
    """The PCI bus of the GPU of every local rank; unknown where each rank is shown only its own."""
    import torch

    from scalescope.worker.machine.probe import pci_bus_of

    count = torch.cuda.device_count()
    if count == 0 or (count == 1 and ranks > 1):
        return [None] * ranks
    return [pci_bus_of(torch.cuda.get_device_properties(rank % count)) for rank in range(ranks)]


@functools.cache
def _all_cores() -> list[int]:
    """The cores this process started with; cached, because pinning changes what the system reports."""
    return own_cores()


def _gather(request: dict[str, Any], rendezvous: Rendezvous, number: int) -> list[dict[str, Any]]:
    """The answers of all requested ranks; a rank that does not answer counts as failed."""
    ranks: list[int] = request["ranks"]
    answers: dict[int, dict[str, Any]] = {}
    deadline = float("inf")  # until the first answer: a trial may take any time
    for index in itertools.cycle(range(len(ranks))):
        answer = None if index in answers else rendezvous.get(answer_key(number, ranks[index]))
        answer = answer or (None if index in answers else rendezvous.get(stall_key(number, ranks[index])))
        if answer is not None:
            answers[index] = json.loads(answer)
            deadline = min(deadline, clocks.monotonic() + _remaining_limit_s(request, answers[index]))
        if len(answers) == len(ranks) or clocks.monotonic() > deadline:
            break
        if index == len(ranks) - 1:
            clocks.sleep(0.02)
    return [answers.get(index) or _lost(index) for index in range(len(ranks))]


def _remaining_limit_s(request: dict[str, Any], answer: dict[str, Any]) -> float:
    """How long to wait for the other ranks after this answer.

    If a single rank failed, the others wait for it in a collective until the group's timeout.
    """
    if "probe" in request:
        return _PROBE_LIMIT_S
    if answer.get("state") != "failed":
        return _ANSWER_LIMIT_S
    lost = is_secondary_error(str(answer["error"]["message"]))
    return _LOST_LIMIT_S + (0.0 if lost else float(request["group_timeout_s"]))


def _lost(rank: int) -> dict[str, Any]:
    error = {
        "message": "the rank was lost: it has ended or cannot be reached",
        "at_wall_s": 0.0,
        "step": None,
        "out_of_memory": False,
        "lost": True,
    }
    return {"rank": rank, "host": "unknown", "state": "failed", "error": error}


def _is_lost(answer: dict[str, Any]) -> bool:
    return bool(answer.get("error", {}).get("lost"))


def _leave_together(rendezvous: Rendezvous, lost: set[int]) -> None:
    """Leave together: the store may live in rank 0's process, and the others still read from it."""
    rendezvous.publish(f"left/{rendezvous.rank}", b"1")
    if rendezvous.rank == 0:
        for other in {*range(1, rendezvous.world_size)} - lost:
            with contextlib.suppress(TimeoutError):  # a rank lost while it waited
                rendezvous.wait(f"left/{other}", limit_s=_LEAVE_LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
