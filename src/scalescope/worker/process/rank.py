"""One rank's life: set up, join the group, measure, write the rank file, leave."""

import ctypes
import importlib
import json
import os
import socket
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalescope import clocks
from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.results.files import write_atomically
from scalescope.results.printable import printable
from scalescope.results.ranks import OWN_START, RankJob, RankStage
from scalescope.results.traces.events import trace_name
from scalescope.worker.process.faults import fault_of
from scalescope.worker.process.health import is_out_of_memory
from scalescope.worker.process.position import Position
from scalescope.worker.process.temporary_files import use_directory

if TYPE_CHECKING:
    import torch

    from scalescope.worker.process.group import Group

_CLONE_NEWNET = 0x40000000
_LONGEST_MESSAGE = 1000
_OF_THE_JOB = (
    "parameter",
    "gradient_bytes",
    "buffer_bytes",
    "convolutions",
    "threads",
    "affinity",
    "gpu",
    "model_flops",
    "own_optimizer",
)


def run_rank(job: RankJob) -> int:
    """Run the job and write the rank file, also on failure; returns the exit code."""
    use_directory(Path(job.heartbeat_file).parent / "tmp")
    position = Position(Path(job.heartbeat_file), job.rank, job.world_size)
    record: dict[str, Any] = {"rank": job.rank, "host": socket.gethostname(), "state": "running"}

    def write() -> None:
        write_atomically(Path(job.rank_file), json.dumps(record, allow_nan=False))

    try:
        leave = perform(job, None, position, record, write)
    except BaseException as error:
        record.update(state="failed", error=describe_error(error))
        write()
        traceback.print_exc()
        return 1
    leave()
    position.enter(RankStage.DONE)
    fault = fault_of(job.rank)
    if fault is not None:
        fault.at_stage("exit")
    return 0


def perform(job: RankJob, store: Any, position: Position, record: dict[str, Any], write: Any) -> Any:
    """Measure the job's trial, filling and writing `record`; returns the function that leaves the group.

    The record is complete and on disk before leaving: a hang in teardown must not cost the result.
    """
    enter_network(job.namespace)
    pin_to(job.cpus)
    import torch

    from scalescope.worker.process.device import (
        choose_device,
        describe_placement,
        device_name,
        placement_counters,
    )

    trial = Trial(settings=job.settings)
    fault = fault_of(job.rank)
    if "OMP_NUM_THREADS" not in trial.env:
        torch.set_num_threads(trial.threads_per_rank)
    device = choose_device(trial.device, job.local_rank)
    record["device"], record["device_name"] = str(device), device_name(device)
    record["placement"] = describe_placement(job.rank, job.local_rank, device, job.cpus)
    if fault is not None:
        fault.at_stage("init")
    position.enter(RankStage.JOINING)
    group = _joined_group(job, trial, store, device)
    if group.joined and job.heartbeat_file and _may_call_collectives(trial):
        from scalescope.worker.process.health import record_collectives

        record_collectives(Path(job.heartbeat_file).parent, job.rank)
    write()
    benchmark = importlib.import_module(f"scalescope.worker.benchmarks.{trial.benchmark}")
    if job.phases:
        measurements = benchmark.measure(trial, group, device, position, fault, job.phases)
    else:
        measurements = benchmark.measure(trial, group, device, position, fault)
    if measurements.write_trace is not None:
        name = trace_name(trial.trial_id, job.launch, job.rank)
        measurements.counters |= {"trace": name, **measurements.write_trace(Path(job.folder) / name)}
    counters = {**placement_counters(device), **measurements.counters}
    record.update(state="done", samples=measurements.samples, counters=counters, tables=measurements.tables)
    if measurements.go_on is not None:
        record["continues"] = True
        write()
        try:
            measurements.go_on(lambda number, phase: _store_phase(job, number, phase, record))
        except (Exception, SystemExit) as error:  # the window is measured
            record["counters"][f"{OWN_START}all"] = describe_error(error)["message"]
        record["counters"] |= {**measurements.counters, **record["counters"]}
        record["continues"] = False
    write()
    position.enter(RankStage.TEARDOWN)

    def leave() -> None:
        if fault is not None:
            fault.at_stage("teardown")
        group.leave()

    return leave


def _store_phase(job: RankJob, number: int, phase: Any, record: dict[str, Any]) -> None:
    """A record of its own; what is known of the job is the same as in the window."""
    other = {
        **record,
        "samples": phase.samples,
        "counters": {**_of_job(record["counters"]), **phase.counters},
        "tables": phase.tables,
        "continues": False,
    }
    write_atomically(Path(job.phases[number].rank_files[job.rank]), json.dumps(other, allow_nan=False))


def _of_job(counters: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in counters.items() if name.startswith(_OF_THE_JOB)}


def _joined_group(job: RankJob, trial: Trial, store: Any, device: "torch.device") -> "Group":
    """The process group of all ranks, which a rank without a wrapper does not join."""
    import torch.distributed as dist

    from scalescope.worker.process.device import device_identity
    from scalescope.worker.process.group import Group, join, shared_device

    if "strategy" in job.settings and not trial.is_wrapped:  # collectives have no strategy
        return Group(rank=job.rank, world_size=job.world_size, joined=False)
    store = store or dist.FileStore(job.store_file, job.world_size)
    identity = device_identity(device)
    clash = identity and shared_device(store, job.rank, job.world_size, identity)
    if clash and not (trial.oversubscribe or trial.split_gpu):
        raise RuntimeError(f"{clash}; add --oversubscribe to run anyway")
    return join(
        store,
        backend=trial.backend,
        rank=job.rank,
        world_size=job.world_size,
        device=device,
        timeout_s=job.group_timeout_s,
    )


def _may_call_collectives(trial: Trial) -> bool:
    """Whether user code may call collectives; in a compiled model they must stay as torch knows them."""
    is_own = trial.has_setting("workload") and trial.workload_card.brings_data
    return bool(is_own) and trial.settings.get("compile", "none") == "none"


def enter_network(namespace: str) -> None:
    """Move this rank into a network namespace, given by its file; an empty name means the host's own."""
    if namespace:
        with Path(namespace).open("rb") as namespace_file:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(namespace_file.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "cannot enter the network namespace")


def pin_to(cpus: list[int]) -> None:
    """Pin this rank to its cores, where the system supports it."""
    if cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


def describe_error(error: BaseException) -> dict[str, Any]:
    """The error as data: the launcher compares the errors of all ranks to find the first cause."""
    lines = traceback.format_exception_only(type(error), error)
    text = lines[-1].strip() if lines else repr(error)
    if isinstance(error, BadInput):
        text = str(error)
    return {
        "message": printable(_first_statement(text))[:_LONGEST_MESSAGE],
        "out_of_memory": is_out_of_memory(error),
        "bad_input": isinstance(error, BadInput),
        "at_monotonic_s": clocks.monotonic(),
        "at_wall_s": clocks.time(),
    }


def _first_statement(text: str) -> str:
    """The first line, and those it continues on: a line that ends in a blank or a comma is not the end."""
    lines = []
    for line in text.splitlines():
        lines.append(line.strip())
        if not line.endswith((" ", ",")):
            break
    return " ".join(lines)
