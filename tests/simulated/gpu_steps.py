"""Steps of a host and a GPU with known truth: what a profiler would record of them, and what a change saves.

The host makes calls one after the other: each takes some time, and launches a kernel or waits for the GPU.
Kernels run one after the other, with a queue of limited length between. A launch of the job has a host of its
own speed; the profiler slows the host by a factor and by some time per call, and not the kernels.
"""

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scalescope.results.traces.events import BACKWARD, CLEAR, FORWARD, INPUT, OPTIMIZER

Part = Literal["forward", "backward", "again", "optimizer"]
_RANGES = {"forward": FORWARD, "backward": BACKWARD, "again": BACKWARD, "optimizer": OPTIMIZER}
_QUEUE = 1000  # launches that the host may be ahead
_LATENCY_S, _PAUSE_S, _RETURN_S, _API_S = 4e-6, 0.8e-6, 6e-6, 3e-6


@dataclass(frozen=True, slots=True)
class Call:
    """What the host does until it has launched a kernel, or until it waits."""

    part: Part
    host_s: float
    kernel_s: float = 0.0
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Host:
    """How fast the host is in some launch; the profiler adds time to every call."""

    factor: float = 1.0
    per_call_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Steps:
    """The calls of every step, and how long each waits for its batch."""

    calls: tuple[Call, ...]
    input_s: float = 0.0

    def step_s(self, host: Host, seed: int, steps: int = 40) -> float:
        """Seconds per step."""
        ends, _ = _simulated(self, host, random.Random(seed), steps)
        return (ends[-1] - ends[9]) / (steps - 10)

    def recorded(self, host: Host, seed: int, steps: int = 7) -> list[dict[str, Any]]:
        """The events of a trace."""
        return _simulated(self, host, random.Random(seed), steps)[1]

    def changed(self, **changes: object) -> "Steps":
        """The same steps with other calls: without waits, with a host that takes no time …"""
        calls = [dataclasses.replace(call, **changes) for call in self.calls]  # type: ignore[arg-type]
        return dataclasses.replace(self, calls=tuple(call for call in calls if call.waits or call.kernel_s))

    def without_waits(self) -> "Steps":
        return dataclasses.replace(self, calls=tuple(call for call in self.calls if not call.waits))

    def without(self, part: Part) -> "Steps":
        return dataclasses.replace(self, calls=tuple(call for call in self.calls if call.part != part))

    def fused(self, kernels: int, share: float) -> "Steps":
        """A few kernels in place of the optimizer's, which take a share of their time."""
        kernel_s = sum(call.kernel_s for call in self.calls if call.part == "optimizer")
        few = Call("optimizer", 10e-6, share * kernel_s / kernels)
        return dataclasses.replace(self, calls=(*self.without("optimizer").calls, *[few] * kernels))


def _simulated(
    steps: Steps, host: Host, noise: random.Random, count: int
) -> tuple[list[float], list[dict[str, Any]]]:
    """When each step was done, and what a profiler saw."""
    now = free = 0.0
    ends: list[float] = []
    kernels_done: list[float] = []
    events: list[dict[str, Any]] = []
    for _ in range(count):
        begin = now
        now += steps.input_s * noise.uniform(0.95, 1.05)
        events.append(_event("user_annotation", INPUT, begin, now))
        opened: tuple[str, float] | None = None
        slow = noise.gauss(1.0, 0.01)
        for number, call in enumerate(steps.calls):
            name = _RANGES[call.part]
            if opened is None or opened[0] != name:
                if opened is not None:
                    events.append(_event("user_annotation", *opened, now))
                opened = (name, now)
            node = now
            now += (
                max(0.0, call.host_s * host.factor * slow * noise.lognormvariate(0.0, 0.2)) + host.per_call_s
            )
            if call.waits:
                called, now = now, max(now, free) + _RETURN_S
                events.append(_event("cuda_runtime", "cudaStreamSynchronize", called, now))
                continue
            if len(kernels_done) >= _QUEUE:
                now = max(now, kernels_done[-_QUEUE])
            called, now = now, now + (_API_S * host.factor if call.host_s else 0.0)
            start = max(now + _LATENCY_S, free + _PAUSE_S)
            free = start + call.kernel_s * noise.uniform(0.99, 1.01)
            kernels_done.append(free)
            link = len(kernels_done)
            events.append(_event("cuda_runtime", "cudaLaunchKernel", called, now, correlation=link))
            events.append(_event("kernel", f"{call.part}_kernel", start, free, correlation=link))
            events += _operations(call, number, node, now, steps.calls)
        if opened is not None:
            events.append(_event("user_annotation", *opened, now))
        events.append(_event("user_annotation", CLEAR, now, now + 1e-6))
        now += 1e-6
        ends.append(max(now, free))
    return ends, events


def _operations(
    call: Call, number: int, begin: float, end: float, calls: Sequence[Call]
) -> list[dict[str, Any]]:
    """What computes again in the backward pass is a forward operation inside of a node of the graph."""
    if call.part == "again":
        node = _event("cpu_op", "autograd::engine::evaluate_function: LinearBackward0", begin, end + 1e-7)
        return [node, _event("cpu_op", "aten::linear", begin, end)]
    return [_event("cpu_op", "aten::mm", begin, end)] if number % 5 == 0 else []


def _event(category: str, name: str, begin: float, end: float, **arguments: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "tid": 1, "ts": begin * 1e6, "dur": (end - begin) * 1e6,
        "args": arguments,
    }  # fmt: skip


Kind = Literal["healthy", "slow host", "waits", "many updates", "computed twice", "slow input"]
KINDS: tuple[Kind, ...] = ("healthy", "slow host", "waits", "many updates", "computed twice", "slow input")


def made_up(kind: Kind, chance: random.Random) -> Steps:
    """Steps of random operations with one thing wrong."""
    kernels = chance.randint(40, 400)
    host_s = chance.uniform(5e-6, 20e-6)
    busy = chance.uniform(3.0, 10.0)  # times the host's: the GPU is behind
    if kind in ("slow host", "waits"):
        busy = chance.uniform(0.2, 0.9) if kind == "slow host" else chance.uniform(1.5, 5.0)
    if kind in ("many updates", "computed twice"):
        busy = chance.uniform(0.3, 4.0)

    def launch(part: Part, factor: float = 1.0) -> Call:
        kernel_s = factor * busy * host_s * chance.lognormvariate(-0.3, 0.8)
        return Call(part, host_s * chance.lognormvariate(-0.1, 0.4), max(1.5e-6, kernel_s))

    forward = [launch("forward") for _ in range(kernels // 3)]
    backward = [launch("backward") for _ in range(kernels - kernels // 3)]
    update = [launch("optimizer", 0.5) for _ in range(chance.randint(3, 12))]
    if kind == "many updates":
        update = [Call("optimizer", host_s, 2e-6) for _ in range(chance.randint(kernels, 4 * kernels))]
    if kind == "computed twice":
        again = [launch("again") for _ in range(kernels // 3)]
        middle = len(backward) // 2
        backward = [*backward[:middle], *again, *backward[middle:]]
    if kind == "waits":
        for _ in range(chance.randint(2, 12)):
            forward.insert(chance.randrange(len(forward)), Call("forward", 2e-6, waits=True))
    steps = Steps((*forward, *backward, *update))
    if kind == "slow input":
        compute_s = sum(call.kernel_s for call in steps.calls)
        return dataclasses.replace(steps, input_s=chance.uniform(0.3, 2.0) * compute_s)
    return steps
