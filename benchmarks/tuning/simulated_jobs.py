"""Jobs with a known truth for `tune_value.py`: a step is a queue of kernels that a host launches one by one.

Nothing here is shared with the search: no shares, no factors of cards, no formula of a step. A step is played
through: the host launches each kernel, the GPU runs it when it is free, batches come from processes that
prepare them, gradients are sent behind the backward pass. A setting changes kernels, launches, processes or
links, by amounts that each job draws for itself; some do the opposite of what their cards say. The host is
slow for minutes at a time, epochs restart, and launches differ.
"""

import dataclasses
import math
import random
from dataclasses import dataclass, field

_KINDS = ("transformer", "cnn", "recurrent", "embedding", "loader", "ranks", "cpu", "slow link")
_OPPOSITE = 0.08  # of settings do the opposite of what is usual
_NOTHING = 0.25  # of jobs have nothing to gain
_FAILS_TOGETHER = 0.15  # of jobs with channels_last cannot be compiled with it
_BATCHES_PER_EPOCH = (30, 2000)


@dataclass(frozen=True, slots=True)
class Kernel:
    """What the GPU runs: for how long, and what it belongs to."""

    kind: str  # product, convolution, elementwise, attention, optimizer, cast
    gpu_s: float
    launch_s: float  # of the host


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step as it would be played: kernels in order, and what feeds and follows them."""

    kernels: tuple[Kernel, ...]
    prepare_s: float = 0.0  # of a batch, by one process
    processes: int = 0
    copy_s: float = 0.0
    copy_waits: bool = True  # the host waits until the GPU is idle and the copy done
    send_s: float = 0.0
    hidden: float = 0.0  # share of the kernels behind which gradients are sent
    restart_s: float = 0.0  # at the beginning of an epoch
    epoch: int = 10**9  # batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a played step took, and what can be seen of it."""

    step_s: float
    busy_s: float
    input_s: float
    send_s: float
    by_kind_s: dict[str, float]


def played(step: Step, host: float = 1.0) -> Played:
    """Play a step; `host` multiplies what the host takes."""
    now = gpu = 0.0
    by_kind: dict[str, float] = {}
    if step.copy_s:
        now += step.copy_s if step.copy_waits else 0.1 * step.copy_s
    for kernel in step.kernels:
        now += kernel.launch_s * host
        gpu = max(gpu, now) + kernel.gpu_s
        by_kind[kernel.kind] = by_kind.get(kernel.kind, 0.0) + kernel.gpu_s
    computing = max(now, gpu)
    busy = sum(by_kind.values())
    preparing = step.prepare_s * host
    waiting = max(0.0, preparing / step.processes - computing) if step.processes else preparing
    exposed = max(0.0, step.send_s - step.hidden * busy)
    restarting = step.restart_s / step.epoch
    return Played(
        step_s=computing + waiting + exposed + restarting,
        busy_s=busy,
        input_s=waiting,
        send_s=exposed,
        by_kind_s=by_kind,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a setting at a value does to a step."""

    name: str
    setting: str
    in_bundle: bool = False
    compiles: bool = False
    gpu: dict[str, float] = field(default_factory=dict)  # factors on kernels by kind
    launches: float = 1.0  # factor on what the host takes for a kernel
    fuses: int = 1  # so many elementwise kernels become one
    casts: int = 0  # kernels that are added
    joins_optimizer: bool = False
    processes: int | None = None
    copy: float = 1.0
    waits: bool | None = None
    send: float = 1.0
    restart: float = 1.0
    with_any: tuple[str, ...] = ()  # only in this company do the factors on kernels hold
    needs_any: tuple[str, ...] = ()  # cannot run otherwise
    fails: bool = False
    fails_with: tuple[str, ...] = ()  # only in this company

    def apply(self, step: Step, levers: frozenset[str]) -> Step:
        factors = self.gpu if not self.with_any or levers & set(self.with_any) else {}
        kernels: list[Kernel] = []
        pending: list[Kernel] = []
        optimizer = [kernel for kernel in step.kernels if kernel.kind == "optimizer"]
        for kernel in step.kernels:
            changed = Kernel(
                kernel.kind, kernel.gpu_s * factors.get(kernel.kind, 1.0), kernel.launch_s * self.launches
            )
            if self.joins_optimizer and kernel.kind == "optimizer":
                continue
            if self.fuses > 1 and kernel.kind == "elementwise":
                pending.append(changed)
                if len(pending) < self.fuses:
                    continue
                changed = Kernel("elementwise", sum(k.gpu_s for k in pending), pending[0].launch_s)
                pending = []
            kernels.append(changed)
        kernels += pending[:1]
        kernels += [Kernel("cast", 2e-6, 5e-6 * self.launches)] * self.casts
        if self.joins_optimizer and optimizer:
            gpu_s = sum(kernel.gpu_s for kernel in optimizer) * factors.get("optimizer", 1.0)
            kernels.append(Kernel("optimizer", gpu_s, optimizer[0].launch_s * 3))
        return dataclasses.replace(
            step,
            kernels=tuple(kernels),
            processes=step.processes if self.processes is None else self.processes,
            copy_s=step.copy_s * self.copy,
            copy_waits=step.copy_waits if self.waits is None else self.waits,
            send_s=step.send_s * self.send,
            restart_s=step.restart_s * self.restart,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job: its step, what can be changed, and how its launches differ."""

    number: int
    kind: str
    device: str
    step: Step
    changes: tuple[Change, ...]
    start_s: float
    compile_s: float
    compile_again_s: float
    deviation: float
    slow_host: float  # factor while others use the machine
    slow_share: float

    def of(self, name: str) -> Change:
        return next(change for change in self.changes if change.name == name)

    def with_levers(self, levers: frozenset[str]) -> Step:
        step = self.step
        for change in self.changes:
            if change.name in levers:
                step = change.apply(step, levers)
        return step

    def played(self, levers: frozenset[str], host: float = 1.0) -> Played:
        return played(self.with_levers(levers), host)

    def can_run(self, levers: frozenset[str]) -> bool:
        chosen = [self.of(name) for name in levers]
        if len({change.setting for change in chosen}) < len(chosen):
            return False
        return all(not change.needs_any or levers & set(change.needs_any) for change in chosen)

    def fails(self, levers: frozenset[str]) -> bool:
        chosen = [self.of(name) for name in levers]
        return any(change.fails or levers & set(change.fails_with) for change in chosen)

    def compiles(self, levers: frozenset[str]) -> bool:
        return any(self.of(name).compiles for name in levers)


def make_job(number: int) -> Job:
    """The job of a number; the same for all time."""
    draw = random.Random(f"job {number}")
    kind = _KINDS[number % len(_KINDS)]
    device = "cpu" if kind in ("cpu", "slow link") else "cuda"
    step = _step(kind, draw)
    changes = _changes(kind, device, draw)
    if draw.random() < _NOTHING:
        changes = [_useless(change, draw) for change in changes]
    if random.Random(f"fails together {number}").random() < _FAILS_TOGETHER:
        company = ("memory_format channels_last",)
        changes = [dataclasses.replace(c, fails_with=company) if c.compiles else c for c in changes]
    return Job(
        number=number,
        kind=kind,
        device=device,
        step=step,
        changes=tuple(changes),
        start_s=draw.uniform(6.0, 15.0) if device == "cuda" else draw.uniform(1.0, 5.0),
        compile_s=draw.uniform(12.0, 60.0),
        compile_again_s=draw.uniform(3.0, 12.0),
        deviation=math.exp(draw.uniform(math.log(0.002), math.log(0.03))),
        slow_host=draw.uniform(1.0, 1.5),
        slow_share=draw.uniform(0.0, 0.3),
    )


def _step(kind: str, draw: random.Random) -> Step:
    layers = draw.randint(6, 60)
    unit_s = math.exp(draw.uniform(math.log(5e-6), math.log(1e-3)))
    launch_s = draw.uniform(4e-6, 2e-5)
    body: list[Kernel] = []
    product = "convolution" if kind == "cnn" else "product"
    for _ in range(layers):
        body.append(Kernel(product, unit_s * draw.uniform(0.5, 4.0), launch_s))
        body += [Kernel("elementwise", unit_s * draw.uniform(0.05, 0.5), launch_s)] * draw.randint(2, 6)
        if kind == "transformer":
            body.append(Kernel("attention", unit_s * draw.uniform(0.2, 2.0), launch_s))
    tensors = draw.randint(10, 300)
    body += [Kernel("optimizer", unit_s * draw.uniform(0.01, 0.2), launch_s)] * tensors
    alone = played(Step(kernels=tuple(body))).step_s
    has_loader = kind in ("cnn", "loader") or draw.random() < 0.4
    return Step(
        kernels=tuple(body),
        prepare_s=alone * draw.uniform(0.1, 12.0) if has_loader else 0.0,
        processes=draw.choice((0, 0, 2)) if has_loader else 0,
        copy_s=alone * draw.uniform(0.0, 0.2) if has_loader else 0.0,
        send_s={"ranks": alone * draw.uniform(0.1, 1.5), "slow link": alone * draw.uniform(2.0, 20.0)}.get(
            kind, 0.0
        ),
        hidden=draw.uniform(0.0, 0.6),
        restart_s=draw.uniform(0.0, 2.0) if has_loader else 0.0,
        epoch=draw.randint(*_BATCHES_PER_EPOCH),
    )


def _changes(kind: str, device: str, draw: random.Random) -> list[Change]:
    def around(low: float, high: float) -> float:
        """A factor, which now and then does the opposite."""
        factor = draw.uniform(low, high)
        return 1.0 / factor if draw.random() < _OPPOSITE else factor

    def alike(factor: float) -> float:
        """A factor of what differs in the kind of number alone, or now and then the opposite."""
        factor *= draw.uniform(0.93, 1.07)
        return 1.0 / factor if draw.random() < _OPPOSITE else factor

    short = ("precision bf16", "precision fp16")
    products = {"product": 1.0, "convolution": 1.0, "attention": 1.0}
    shorter, sent = draw.uniform(0.1, 0.6), draw.uniform(0.5, 0.65)
    changes = [
        Change(
            name="precision bf16",
            setting="precision",
            in_bundle=device == "cuda",
            gpu={**dict.fromkeys(products, alike(shorter)), "elementwise": around(0.5, 1.0)},
            casts=draw.randint(5, 60),
        ),
        Change(name="fused_optimizer True", setting="fused_optimizer", in_bundle=True, joins_optimizer=True,
               gpu={"optimizer": around(0.3, 0.9)}),
        Change(
            name="compile default",
            setting="compile",
            compiles=True,
            fuses=draw.randint(2, 6),
            launches=around(0.5, 0.95),
            gpu={"elementwise": around(0.3, 0.9)},
            fails=draw.random() < 0.1,
        ),
    ]  # fmt: skip
    if device == "cuda":
        changes += [
            Change(name="precision tf32", setting="precision",
                   gpu=dict.fromkeys(products, around(0.25, 0.7))),
            Change(name="precision fp16", setting="precision", casts=draw.randint(10, 90),
                   gpu=dict.fromkeys(products, alike(shorter))),
            Change(name="compile reduce-overhead", setting="compile", compiles=True, fuses=draw.randint(2, 6),
                   launches=around(0.02, 0.2), gpu={"elementwise": around(0.3, 0.9)},
                   fails=draw.random() < 0.3),
        ]  # fmt: skip
    if kind == "cnn":
        changes += [
            Change(name="memory_format channels_last", setting="memory_format", in_bundle=True,
                   with_any=short, gpu={"convolution": around(0.4, 0.95)}),
            Change(name="cudnn_benchmark True", setting="cudnn_benchmark",
                   gpu={"convolution": around(0.85, 1.0)}),
        ]  # fmt: skip
    if kind == "transformer":
        changes += [
            Change(name=f"attention {name}", setting="attention", gpu={"attention": draw.uniform(0.9, 1.8)},
                   needs_any=short if name in ("flash", "cudnn") else ())
            for name in ("flash", "efficient", "cudnn", "math")
        ]  # fmt: skip
    if kind in ("cnn", "loader"):
        per_process = draw.uniform(0.0, 0.2)
        changes += [
            Change(name=f"num_workers {count}", setting="num_workers", in_bundle=True, processes=count,
                   restart=1.0 + count * per_process)
            for count in (1, 2, 4, 8, 12)
        ]  # fmt: skip
        changes += [
            Change(name="persistent_workers True", setting="persistent_workers", in_bundle=True,
                   restart=draw.uniform(0.1, 0.9)),
        ]  # fmt: skip
        if device == "cuda":
            changes += [
                Change(name="pin_memory True", setting="pin_memory", in_bundle=True, copy=around(0.3, 0.9)),
                Change(name="non_blocking True", setting="non_blocking", in_bundle=True, waits=False,
                       needs_any=("pin_memory True",)),
            ]  # fmt: skip
    if kind in ("ranks", "slow link"):
        changes += [
            Change(name=f"comm_hook {name}", setting="comm_hook", send=alike(sent), casts=10)
            for name in ("bf16", "fp16")
        ]
        changes += [
            Change(name=f"bucket_cap_mb {size}", setting="bucket_cap_mb", send=draw.uniform(0.9, 1.3))
            for size in (1, 5, 100)
        ]
    return changes


def _useless(change: Change, draw: random.Random) -> Change:
    """A change that makes nothing faster."""
    return dataclasses.replace(
        change,
        gpu={kind: draw.uniform(1.0, 1.2) for kind in change.gpu},
        launches=draw.uniform(1.0, 1.2),
        fuses=1,
        joins_optimizer=False,
        processes=None,
        copy=1.0,
        waits=None,
        send=draw.uniform(1.0, 1.2),
        restart=1.0,
    )
