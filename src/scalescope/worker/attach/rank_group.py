"""The ranks of a script: who this one is, and how they wait for each other without a collective."""

import contextlib
import datetime
import multiprocessing
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from scalescope import clocks

_PREFIX = "scalescope"
_LIMIT = datetime.timedelta(hours=1)  # the launcher's limits are shorter
_LEAVING_LIMIT = datetime.timedelta(seconds=5)
_AFTER_LAST_S = 0.1
_GAVE_UP = f"{_PREFIX}/gave-up"
_IMPATIENT_S = 30.0  # that a training which goes on may wait for its ranks
_LOOK_S = 0.002


@dataclass(frozen=True)
class ScriptRanks:
    """This rank among the others of the script, with the store of their process group."""

    rank: int
    world_size: int
    store: Any = None
    is_patient: bool = True  # otherwise no rank waits for another that has given up
    asked: Counter[str] = field(default_factory=Counter)  # how often each value was agreed on

    @classmethod
    def current(cls, *, is_patient: bool = True) -> "ScriptRanks":
        """The ranks of the process group; without one, those that the launcher's variables name."""
        if dist.is_available() and dist.is_initialized():
            store = dist.distributed_c10d._get_default_store()
            return cls(dist.get_rank(), dist.get_world_size(), store, is_patient)
        with contextlib.suppress(KeyError, ValueError):
            return cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        return cls(0, 1)

    @property
    def are_joined(self) -> bool:
        return self.world_size == 1 or self.store is not None

    def common(self, name: str, value: float) -> float:
        """The value of rank 0; a measurement that begins anew asks again, under another key."""
        self.asked[name] += 1
        return float(self.agree(f"{name}/{self.asked[name]}", repr(value)))

    def agree(self, name: str, text: str) -> str:
        """What rank 0 says; the others wait for it."""
        if self.world_size == 1:
            return text
        key = f"{_PREFIX}/{name}"
        if self.rank == 0:
            self.store.set(key, text)
            return text
        self._wait([key], _LIMIT)
        return str(self.store.get(key).decode())

    def meet(self, name: str, limit: datetime.timedelta = _LIMIT) -> None:
        """Wait until all ranks are here."""
        if self.world_size == 1:
            return
        self.store.set(f"{_PREFIX}/{name}/{self.rank}", "here")
        self._wait([f"{_PREFIX}/{name}/{rank}" for rank in range(self.world_size)], limit)

    def arrive(self, name: str) -> None:
        """Be at a meeting without waiting for others."""
        if self.world_size > 1:
            self.store.set(f"{_PREFIX}/{name}/{self.rank}", "here")

    def give_up(self) -> None:
        """Let no other rank wait for this one."""
        if self.world_size > 1 and not self.is_patient:
            self.store.set(_GAVE_UP, str(self.rank))

    def _wait(self, keys: list[str], limit: datetime.timedelta) -> None:
        if self.is_patient:
            self.store.wait(keys, limit)
            return
        deadline = clocks.monotonic() + _IMPATIENT_S
        while not self.store.check(keys):
            if self.store.check([_GAVE_UP]) or clocks.monotonic() > deadline:
                raise TimeoutError("another rank could not be measured")
            clocks.sleep(_LOOK_S)

    def leave(self, code: int) -> None:
        """End this process; the one that may host the store ends last."""
        with contextlib.suppress(Exception):  # a store whose host has gone
            if code == 0:
                self.meet("done", _LEAVING_LIMIT)
            if self.world_size > 1 and self.rank > 0:
                self.store.set(f"{_PREFIX}/left/{self.rank}", "gone")
            elif self.world_size > 1:
                others = [f"{_PREFIX}/left/{rank}" for rank in range(1, self.world_size)]
                self.store.wait(others, _LEAVING_LIMIT)
                clocks.sleep(_AFTER_LAST_S)
        for child in multiprocessing.active_children():
            child.terminate()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)
