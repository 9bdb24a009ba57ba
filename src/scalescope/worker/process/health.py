"""What a rank notices of itself: calls of collectives, lack of memory, and standing still."""

import contextlib
import errno
import functools
import itertools
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from scalescope import clocks
from scalescope.errors import ExitCode, ScalescopeError
from scalescope.results.ranks import CallSlot, CollectiveCall, RankStage, slot_file
from scalescope.worker.process.node import node_name
from scalescope.worker.process.position import Position
from scalescope.worker.process.rendezvous import Rendezvous

# ---- Records which collective a rank calls: user code may call different ones per rank


# By whether the first tensor has the same shape on all ranks.
_COLLECTIVES = {
    "all_reduce": True,
    "broadcast": True,
    "reduce": True,
    "all_gather": False,
    "all_gather_into_tensor": False,
    "reduce_scatter": False,
    "reduce_scatter_tensor": False,
    "all_to_all": False,
    "all_to_all_single": False,
    "barrier": False,
}


def record_collectives(directory: Path, rank: int) -> None:
    """From now on every call on the group of all ranks is written down before it is made."""
    slot, numbers = CallSlot(slot_file(directory, rank)), itertools.count(1)
    for name, has_same_shape in _COLLECTIVES.items():
        call = _recorded(name, getattr(dist, name), slot, numbers, has_same_shape=has_same_shape)
        setattr(dist, name, call)


def _recorded(
    name: str,
    collective: Callable[..., Any],
    slot: CallSlot,
    numbers: "itertools.count[int]",
    *,
    has_same_shape: bool,
) -> Callable[..., Any]:
    @functools.wraps(collective)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("group") is None:  # parts of the ranks may do what the others do not
            tensor = kwargs.get("tensor", args[0] if args else None) if has_same_shape else None
            slot.write(CollectiveCall(number=next(numbers), name=name, tensor=_described(tensor)))
        return collective(*args, **kwargs)

    return call


def _described(tensor: Any) -> str:
    if not isinstance(tensor, torch.Tensor):
        return ""
    return f"{list(tensor.shape)} {tensor.dtype}"


# ---- Whether an error means out of memory: by its type, or by the message of torch and its libraries


# Errors of libraries below torch are plain RuntimeErrors, so only the message is left. Each pattern is a
# whole phrase: a message that only mentions memory does not match.
_PHRASES = (
    r"(?i:\b(?:can't|cannot|could not|failed to|unable to) allocate memory\b)",  # C10's allocator, ENOMEM
    r"DefaultCPUAllocator: not enough memory",  # where it is built with mimalloc, and on Windows
    r"std::bad_alloc\b",
    r"\bbad allocation\b",
    r"(?i:\b(?:CUDA|HIP|XPU|MPS backend|C10) out of memory\b)",
    r"(?i:\berror: out of memory\b)",  # of the CUDA runtime and driver
    r"'out of memory'",  # as NCCL quotes CUDA
    r"(?im:\bout of memory\.?$)",  # oneDNN's status, after the name of what it was doing
    r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|SPARSE)_STATUS_ALLOC_FAILED\b",
    r"\bCUFFT_ALLOC_FAILED\b",
    # cuDNN 9 reports a failed allocation as one of its internal errors; the others are not about memory.
    r"\bCUDNN_STATUS_INTERNAL_ERROR_(?:HOST|DEVICE)_ALLOCATION_FAILED\b",
    r"\bFailed to CUDA (?:host )?(?:calloc|malloc|alloc)\b",  # NCCL
    r"\bcould not create a memory(?: object)?(?:$|[^\w ])",  # oneDNN; a memory *descriptor* is something else
)
_PATTERN = re.compile("|".join(_PHRASES))
# oneDNN reports this for a primitive without memory for its buffers, but also for an unsupported one.
_AMBIGUOUS = re.compile(r"\bcould not (?:create|execute) a primitive\b")


def is_out_of_memory(error: BaseException, *, under_limit: bool = False) -> bool:
    """Whether `error` means that the host or the device is out of memory.

    `under_limit`: the process has a memory limit; ambiguous messages then count too.
    """
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    return bool(_PATTERN.search(text) or (under_limit and _AMBIGUOUS.search(text)))


# ---- StallWatch: notices that an attached rank makes no progress while its main thread cannot say so


_POLL_S = 0.5
_SETTLE_S = 3.0  # after rank 0's limit: the others' are over at about the same time
_LEAST_STALL_S = 30.0
_SLOWEST_STEPS = 20.0  # of the warm-up, that a step may take without progress
_CONNECT_LIMIT_S = 5.0


class StallWatch:
    """Watches one trial of one rank; `report` gets what all ranks published, on rank 0."""

    def __init__(
        self,
        request: Mapping[str, Any],
        number: int,
        rank: int,
        position: Position,
        report: Callable[[dict[int, dict[str, Any]]], None],
    ) -> None:
        self._limits: Mapping[str, float | None] = request["limits"]
        self._ranks: list[int] = request["ranks"]
        self._group_timeout_s = float(request["group_timeout_s"])
        self._number, self._rank = number, rank
        self._position = position
        self._report = report
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the watch; after a report this waits for the command line, which ends this process."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        progress, moved_at = self._position.progress, clocks.monotonic()
        stage, stage_since = self._position.stage, moved_at
        is_published = False
        while not self._ended.wait(_POLL_S):
            now = clocks.monotonic()
            if self._position.progress != progress:
                progress, moved_at, is_published = self._position.progress, now, False
            if self._position.stage != stage:
                stage, stage_since = self._position.stage, now
            idle_s = now - (moved_at if stage == RankStage.STEADY else stage_since)
            limit_s = self.limit_s(stage)
            if idle_s > limit_s / 2 and not is_published and self._rank != 0:
                is_published = self._publish_idle(idle_s)  # rank 0's limit may be over a little earlier
            if idle_s > limit_s:
                self._stalled(idle_s)
                return

    def limit_s(self, stage: RankStage) -> float:
        """How long this rank may stay where it is."""
        if stage == RankStage.WARMUP:
            return float(self._limits["warmup"] or 0.0)
        if stage != RankStage.STEADY:
            return float(self._limits["init"] or 0.0)
        stall_s = self._limits["stall"]
        if stall_s is not None:
            return float(stall_s)
        return max(_LEAST_STALL_S, _SLOWEST_STEPS * self._position.slowest_warmup_s)

    def _publish_idle(self, idle_s: float) -> bool:
        """Publish where this rank is; whether that was possible."""
        with contextlib.suppress(ScalescopeError, RuntimeError):
            self._publish(Rendezvous(_CONNECT_LIMIT_S, of_watch=True), _idle_key, idle_s)
            return True
        return False

    def _publish(self, rendezvous: Rendezvous, key: Callable[[int, int], str], idle_s: float) -> None:
        step = self._position.begun - 1 if self._position.begun else None
        error = {
            "message": f"no progress for {idle_s:.0f} s",
            "step": step,
            "position": self._position.progress,
            "at_wall_s": 0.0,
            "out_of_memory": False,
            "stalled": True,
        }
        record = {
            "rank": self._ranks.index(self._rank),
            "host": node_name(),
            "state": "failed",
            "error": error,
        }
        rendezvous.publish(key(self._number, self._rank), json.dumps(record))

    def _stalled(self, idle_s: float) -> None:
        try:
            rendezvous = Rendezvous(_CONNECT_LIMIT_S, of_watch=True)
            self._publish(rendezvous, stall_key, idle_s)
            if self._rank != 0:
                self._wait_for_verdict(rendezvous)
                return
            self._settle(rendezvous)
        except (ScalescopeError, RuntimeError):  # the store has ended, and rank 0 with it
            _leave()
        if self._ended.is_set():
            return
        rendezvous.publish(_verdict_key(self._number), b"1")
        self._report(self._records(rendezvous))
        threading.Event().wait()

    def _wait_for_verdict(self, rendezvous: Rendezvous) -> None:
        """Rank 0 says which rank is to blame, and then this rank cannot go on."""
        while not self._ended.wait(_POLL_S):
            if rendezvous.get(_verdict_key(self._number)) is not None:
                _leave()

    def _settle(self, rendezvous: Rendezvous) -> None:
        """Wait for what the others publish. Where one of them failed, the group's limit may set us free."""
        began = clocks.monotonic()
        while not self._ended.wait(0.1):
            records = self._records(rendezvous)
            failed = any(_is_failure(record) for record in records.values())
            if len(records) == len(self._ranks) and not failed:
                return
            if clocks.monotonic() - began > _SETTLE_S + (self._group_timeout_s if failed else 0.0):
                return

    def _records(self, rendezvous: Rendezvous) -> dict[int, dict[str, Any]]:
        """What the ranks of the trial published, by the index of the rank in it."""
        records = {}
        for index, rank in enumerate(self._ranks):
            keys = (
                answer_key(self._number, rank),
                stall_key(self._number, rank),
                _idle_key(self._number, rank),
            )
            texts = (text for text in map(rendezvous.get, keys) if text is not None)
            for text in itertools.islice(texts, 1):
                records[index] = json.loads(text)
        return records


def _is_failure(record: Mapping[str, Any]) -> bool:
    """Whether a rank failed, and not only because another one did."""
    return record.get("state") == "failed" and not record["error"].get("stalled")


def _leave() -> None:
    """Rank 0 says why; the main thread cannot leave without help."""
    os._exit(ExitCode.HANG)


def answer_key(number: int, rank: int) -> str:
    """Where a rank publishes its answer to a request."""
    return f"answer/{number}/{rank}"


def stall_key(number: int, rank: int) -> str:
    """Where a rank publishes that it made no progress for longer than it may."""
    return f"stall/{number}/{rank}"


def _idle_key(number: int, rank: int) -> str:
    return f"idle/{number}/{rank}"


def _verdict_key(number: int) -> str:
    return f"verdict/{number}"
