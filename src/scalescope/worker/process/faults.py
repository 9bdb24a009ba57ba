"""Injected faults for tests: SCALESCOPE_FAULT=kind@rank:step makes one rank fail at one step.

`all` means every rank. The step counts from 0 over warm-up and measured steps; faults of a stage
(init-hang, teardown-hang, exit-hang) ignore it. `kind:N` passes an argument: slow:50 means 50 milliseconds.
"""

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from scalescope import clocks

_FORM = re.compile(r"([a-z-]+)(?::(\d+))?@(\d+|all):(\d+)")
_FOREVER_S = 3600.0
_HICCUP_EVERY = 10
# Time added to each step, from the argument in seconds: constant, random, or every tenth step.
_EVERY_STEP: dict[str, Callable[[float, int], float]] = {
    "slow": lambda time_s, step: time_s or 0.2,
    # Forked ranks share the state of an ordinary generator and would all be late in the same steps.
    "jitter": lambda time_s, step: random.SystemRandom().uniform(0.0, 2.0 * time_s),
    "hiccup": lambda time_s, step: time_s if step % _HICCUP_EVERY == 0 else 0.0,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What fails on this rank, and when."""

    kind: str
    argument: int
    step: int

    def at_step(self, step: int) -> None:
        """Called before every step; acts at the chosen step, or from it on for slow, jitter and hiccup."""
        if self.kind in _EVERY_STEP:
            if step >= self.step:
                clocks.sleep(_EVERY_STEP[self.kind](self.argument / 1e3, step))
        elif step == self.step and self.kind in _AT_STEP:
            _AT_STEP[self.kind](self.argument)

    def at_stage(self, stage: str) -> None:
        """Called when a stage begins: `init`, `teardown` or `exit`."""
        if self.kind == f"{stage}-hang":
            clocks.sleep(_FOREVER_S)

    def corrupts(self, what: str) -> bool:
        """Whether this fault corrupts the loss (`nan`) or the parameters (`diverge`)."""
        return self.kind == what


def fault_of(rank: int) -> Fault | None:
    """The fault that the environment requests for this rank, if any."""
    text = os.environ.get("SCALESCOPE_FAULT")
    if not text:
        return None
    match = _FORM.fullmatch(text)
    if match is None or match[1] not in KINDS:
        raise ValueError(
            f"SCALESCOPE_FAULT={text!r}: expected kind@rank:step with a kind of {', '.join(KINDS)}"
        )
    if match[3] not in (str(rank), "all"):
        return None
    return Fault(kind=match[1], argument=int(match[2] or 0), step=int(match[4]))


def _raise(_: int) -> None:
    raise RuntimeError("injected fault")


def _ignore_sigterm(_: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    clocks.sleep(_FOREVER_S)


def _leave_grandchild(_: int) -> None:
    sleeper = "import time; clocks.sleep(3600)"
    child = subprocess.Popen([sys.executable, "-S", "-c", sleeper])
    print(f"grandchild {child.pid}", flush=True)
    raise RuntimeError("injected fault with a grandchild")


def _print_much(argument: int) -> None:
    for _ in range(argument or 1):
        sys.stdout.write("x" * (1 << 20) + "\n")


def _kill(number: int) -> Callable[[int], None]:
    return lambda _: os.kill(os.getpid(), number)


def _stop(_: int) -> None:
    """Stop this rank here: another thread may take the signal first, while this one goes on for a moment."""
    os.kill(os.getpid(), signal.SIGSTOP)
    clocks.sleep(1.0)


_AT_STEP: dict[str, Callable[[int], None]] = {
    "raise": _raise,
    "exit": lambda code: os._exit(code),
    "kill": _kill(signal.SIGKILL),
    "segv": _kill(signal.SIGSEGV),
    "abort": _kill(signal.SIGABRT),
    "stop": _stop,
    "deadlock": lambda _: clocks.sleep(_FOREVER_S),
    "stall": lambda seconds: clocks.sleep(seconds or 5),
    "ignore-term": _ignore_sigterm,
    "grandchild": _leave_grandchild,
    "print": _print_much,
}
KINDS = (*_AT_STEP, *_EVERY_STEP, "nan", "diverge", "init-hang", "teardown-hang", "exit-hang")
