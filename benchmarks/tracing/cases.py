"""The cases of traced_causes.py: which cause is put into which job, and what must be said about its traces.

All cases and their expected rules were listed before any was explained. A case without expected rules is
healthy. Half of the cases of every cause, chosen by a hash of their names, are held out: rules may be changed
by the others only.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCALESCOPE, OWN = "scalescope", "own"
LATE, CHANGING = ("late rank",), ("changing late rank",)
# Ranks that sleep outside of every operator are late, and their host is why: both are true.
LATE_BY_HOST = ("slower host than other ranks", "late rank")
# On the CPU the host computes: longer compute on one rank is both of these.
LATE_BY_COMPUTE = ("late rank", "slower kernels than other ranks")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job, what is wrong with it, and what must be found."""

    name: str
    job: str  # a function of causes.py
    arguments: Mapping[str, Any] = field(default_factory=dict)
    expected: tuple[str, ...] = ()  # rules of which any is right; none: a healthy job
    rank: int | None = None  # that the finding must name
    ranks: int = 1
    device: str = "cpu"
    recorder: str = OWN
    without: Mapping[str, Any] | None = None  # other arguments: the same job without its cause
    allowed: tuple[str, ...] = ()  # findings that are true of a healthy job as well
    batch: int = 16  # of data sets
    steps: int = 6  # recorded ones
    stacks: bool = False
    bucket_mb: float | None = None
    gpu_shares: Mapping[int, float] = field(default_factory=dict)  # by rank, of its part of the split GPU

    @property
    def is_healthy(self) -> bool:
        return not self.expected

    @property
    def folder(self) -> str:
        return "".join(letter if letter.isalnum() else "_" for letter in f"{self.device} {self.name}")

    @property
    def is_held_out(self) -> bool:
        return self.name in _held_out()

    @property
    def cause(self) -> str:
        """The group of a case in tables."""
        return self.expected[0] if self.expected else "healthy"

    def record(self) -> dict[str, Any]:
        """As data; a stored recording counts as long as this has not changed."""
        return dataclasses.asdict(self)

    def tiny(self) -> "Case":
        """The same case small enough to be tried on the CPU; its findings mean nothing."""
        most = {"width": 32, "layers": 4, "batch": 8, "words": 67, "length": 16, "side": 16, "heads": 4}
        most |= {"tokens": 64, "exchanges": 10}
        defaults = {"bf16": False, "layers": 2, "width": 32, "batch": 8, "length": 16, "side": 16, "heads": 2}
        accepted = ACCEPTED[self.job]
        small = {name: value for name, value in defaults.items() if name in accepted} | {
            name: min(value, most[name]) if name in most and value is not None else value
            for name, value in self.arguments.items()
            if name != "bf16"
        }
        return dataclasses.replace(self, arguments=small, device="tiny", gpu_shares={}, steps=3)


# The arguments that `tiny` may set.
ACCEPTED = {
    "paced": (),
    "experts": ("layers", "width"),
    "products": ("bf16", "layers", "width", "batch"),
    "language_model": ("bf16", "layers", "width", "batch", "length", "heads"),
    "chains": ("layers", "width", "batch"),
    "images": ("layers", "width", "batch", "side"),
    "samples": ("layers", "width"),
}


@functools.cache
def _held_out() -> frozenset[str]:
    """The second half of the cases of every cause and device, by a hash of their names."""
    alike: dict[tuple[str, str], list[str]] = {}
    for case in (*cpu_cases(), *gpu_cases()):
        alike.setdefault((case.device, case.cause), []).append(case.name)
    names = [name for group in alike.values() for name in group]
    assert len(names) == len(set(names)), "names of cases are unique"
    halves = (sorted(group, key=_hash)[len(group) // 2 :] for group in alike.values())
    return frozenset(name for half in halves for name in half)


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def cpu_cases() -> list[Case]:
    """Causes on ranks that use gloo; where there are more ranks than cores, ranks sleep."""
    return [
        *_late_ranks(),
        *_late_hosts(),
        *_changing_late_ranks(),
        *_uneven_experts(),
        *_many_exchanges(),
        *_costs_of_one_rank(),
        *_input_and_pauses(),
        *_exposed(),
        *_healthy_alone(),
        *_healthy_together(),
    ]


def _late_ranks() -> list[Case]:
    """One rank computes longer, by 20 to 60 % of a step."""
    strengths = (
        (2, 1, 0.2, SCALESCOPE), (2, 0, 0.4, OWN), (4, 2, 0.3, SCALESCOPE),
        (4, 3, 0.6, OWN), (4, 0, 0.2, OWN), (8, 5, 0.4, OWN),
    )  # fmt: skip
    times = {2: (20.0, 40.0), 4: (30.0, 60.0), 8: (60.0, 120.0)}
    paced = [
        Case(
            name=f"late rank {rank} of {ranks} by {excess:.0%}",
            job="paced",
            arguments={
                "forward_ms": times[ranks][0],
                "backward_ms": times[ranks][1],
                "late_rank": rank,
                "excess": excess,
            },
            without={"late_rank": None} if recorder == OWN else None,
            expected=LATE_BY_COMPUTE,
            rank=rank,
            ranks=ranks,
            recorder=recorder,
        )
        for ranks, rank, excess, recorder in strengths
    ]
    real = [
        Case(
            name=f"late rank {rank} of 2 computes a metric {metrics} times",
            job="products",
            arguments={"width": 256, "layers": 6, "batch": 1536, "late_rank": rank, "excess": metrics / 3},
            without={"late_rank": None},
            expected=LATE,
            rank=rank,
            ranks=2,
        )
        for rank, metrics in ((1, 1), (0, 2))
    ]
    return [*paced, *real]


def _late_hosts() -> list[Case]:
    """One rank's host sleeps in the forward pass, in no operator."""
    return [
        Case(
            name=f"rank {rank} of {ranks} sleeps for {host_ms} ms",
            job="paced",
            arguments={
                "forward_ms": compute_ms / 3,
                "backward_ms": 2 * compute_ms / 3,
                "host_rank": rank,
                "host_ms": host_ms,
            },
            without={"host_rank": None} if recorder == OWN else None,
            expected=LATE_BY_HOST,
            rank=rank,
            ranks=ranks,
            recorder=recorder,
        )
        for ranks, rank, compute_ms, host_ms, recorder in (
            (2, 0, 60.0, 24.0, OWN),
            (4, 1, 90.0, 30.0, SCALESCOPE),
            (4, 3, 90.0, 60.0, OWN),
            (8, 7, 180.0, 90.0, OWN),
        )
    ]


def _changing_late_ranks() -> list[Case]:
    return [
        Case(
            name=f"another rank of {ranks} late by {excess:.0%} in each step",
            job="paced",
            arguments={
                "forward_ms": compute_ms / 3,
                "backward_ms": 2 * compute_ms / 3,
                "changing": True,
                "excess": excess,
            },
            without={"changing": False},
            expected=CHANGING,
            ranks=ranks,
            steps=2 * ranks if ranks <= 4 else ranks,
        )
        for ranks, compute_ms, excess in ((2, 60.0, 0.5), (4, 90.0, 0.3), (4, 90.0, 0.6), (8, 180.0, 0.5))
    ]


def _uneven_experts() -> list[Case]:
    return [
        Case(
            name=f"uneven all-to-all, {hot:.0%} to rank {hot_rank} of {ranks}",
            job="experts",
            arguments={
                "hot": hot,
                "hot_rank": hot_rank,
                "dense_ms": 5.0 * ranks / 2,
                "expert_ms": 5.0 * ranks / 2,
            },
            without={"hot": None},
            expected=("uneven all-to-all",),
            ranks=ranks,
        )
        for ranks, hot, hot_rank in ((2, 0.8, 1), (4, 0.6, 0), (4, 0.45, 2), (8, 0.4, 3))
    ]


def _many_exchanges() -> list[Case]:
    return [
        Case(
            name=f"{exchanges} tiny exchanges, {ranks} ranks",
            job="paced",
            arguments={"forward_ms": 20.0, "backward_ms": 40.0, "exchanges": exchanges},
            without={"exchanges": 0},
            expected=("small collectives",),
            ranks=ranks,
            steps=4,
        )
        for ranks, exchanges in ((2, 300), (2, 150), (4, 120))
    ]


def _costs_of_one_rank() -> list[Case]:
    """Attention head by head, and layers computed twice: real compute, with the lines of the code."""
    small = {"width": 128, "layers": 4, "words": 256, "length": 32, "batch": 4}
    larger = {"width": 128, "layers": 4, "heads": 4, "words": 512, "length": 64, "batch": 8}
    loops = [
        Case(
            name=f"attention head by head, {heads} heads, {ranks} rank{'s' if ranks > 1 else ''}",
            job="language_model",
            arguments={**small, "heads": heads, "attention": "loop"},
            without={"attention": "batched"},
            expected=("batchable loops",),
            ranks=ranks,
            steps=4,
            stacks=True,
            # Two ranks that compute on two cores of one machine are never equally fast.
            allowed=() if ranks == 1 else ("changing late rank", "exposed communication"),
        )
        for ranks, heads in ((1, 16), (1, 32), (2, 16))
    ]
    twice = [
        Case(
            name=f"layers computed twice, {ranks} rank{'s' if ranks > 1 else ''}, recorded by {recorder}",
            job="language_model",
            arguments={**larger, "recompute": True},
            without={"recompute": False} if recorder == OWN else None,
            expected=("recomputation",),
            ranks=ranks,
            steps=4,
            recorder=recorder,
            stacks=ranks == 1 and recorder == OWN,
            allowed=() if ranks == 1 else ("changing late rank", "exposed communication"),
        )
        for ranks, recorder in ((1, OWN), (1, SCALESCOPE), (2, OWN))
    ]
    return [*loops, *twice]


def _input_and_pauses() -> list[Case]:
    """A loader that is slow on every rank, and a checkpoint in one of the recorded steps."""
    slow = [
        Case(
            name=f"samples of {sample_ms} ms, {ranks} rank{'s' if ranks > 1 else ''}",
            job="paced",
            arguments={"forward_ms": 20.0, "backward_ms": 40.0, "sample_ms": sample_ms},
            without={"sample_ms": 0.0} if recorder == OWN else None,
            expected=("input",),
            ranks=ranks,
            recorder=recorder,
        )
        for ranks, sample_ms, recorder in (
            (1, 2.0, OWN),
            (1, 1.0, SCALESCOPE),
            (2, 3.0, SCALESCOPE),
            (4, 2.0, OWN),
        )
    ]
    pauses = [
        Case(
            name=f"a checkpoint of {pause_ms:.0f} ms by rank {rank} of {ranks}",
            job="paced",
            arguments={
                "forward_ms": 20.0,
                "backward_ms": 40.0,
                "pause_ms": pause_ms,
                "pause_rank": rank,
                "pause_every": 6,
            },
            without={"pause_ms": 0.0},
            expected=("pause inside a step",),
            rank=rank if ranks > 1 else None,
            ranks=ranks,
        )
        for ranks, rank, pause_ms in ((1, 0, 150.0), (2, 0, 200.0), (4, 0, 300.0))
    ]
    return [*slow, *pauses]


def _exposed() -> list[Case]:
    """Gradients that take longer than the compute that could hide them.

    A smaller model would also have a shorter update, so nothing tells what the exchange alone costs.
    """
    return [
        Case(
            name=f"{megabytes} MB of gradients behind {compute_ms} ms, {ranks} ranks",
            job="paced",
            arguments={
                "forward_ms": compute_ms / 3,
                "backward_ms": 2 * compute_ms / 3,
                "megabytes": megabytes,
                "layers": 4,
            },
            expected=("exposed communication",),
            ranks=ranks,
        )
        for ranks, megabytes, compute_ms in ((2, 60, 15.0), (4, 40, 30.0))
    ]


def _healthy_alone() -> list[Case]:
    return [
        Case(
            name="healthy, 60 ms of compute",
            job="paced",
            arguments={"forward_ms": 20.0, "backward_ms": 40.0},
        ),
        Case(
            name="healthy, 15 ms of compute, recorded by scalescope",
            job="paced",
            arguments={"forward_ms": 5.0, "backward_ms": 10.0, "layers": 2},
            recorder=SCALESCOPE,
        ),
        Case(
            name="healthy products",
            job="products",
            arguments={"width": 256, "layers": 6, "batch": 768},
        ),
        Case(
            name="healthy attention in batched products",
            job="language_model",
            arguments={
                "width": 128, "layers": 4, "heads": 4, "words": 512, "length": 64, "batch": 8,
                "attention": "batched",
            },
            stacks=True,
            steps=4,
            # LayerNorm, GELU and AdamW beside products this small cost what fusing would save.
            allowed=("fusable chains",),
        ),
        Case(
            name="healthy loader",
            job="paced",
            arguments={"forward_ms": 50.0, "backward_ms": 100.0, "sample_ms": 0.05},
        ),
    ]  # fmt: skip


def _healthy_together() -> list[Case]:
    """Balanced ranks whose exchanges are small, or hidden."""
    shapes = (
        (2, 90.0, 0.05, 8, None, SCALESCOPE),
        (2, 120.0, 0.2, 8, None, OWN),
        (2, 200.0, 4.0, 16, 0.5, OWN),  # hidden: eight buckets while backward computes
        (2, 150.0, 2.0, 8, 0.5, SCALESCOPE),
        (4, 160.0, 0.05, 8, None, OWN),
        (4, 200.0, 0.1, 4, None, SCALESCOPE),
        (4, 240.0, 2.0, 16, 0.25, OWN),
        (8, 400.0, 0.05, 8, None, OWN),
        (8, 500.0, 0.02, 4, None, OWN),
    )
    paced = [
        Case(
            name=f"healthy, {ranks} ranks, {compute_ms:.0f} ms, {megabytes} MB",
            job="paced",
            arguments={
                "forward_ms": compute_ms / 3,
                "backward_ms": 2 * compute_ms / 3,
                "megabytes": megabytes,
                "layers": layers,
            },
            ranks=ranks,
            bucket_mb=bucket_mb,
            recorder=recorder,
            # The last bucket is always exposed; eight ranks also wait for two cores.
            allowed=("exposed communication",) if bucket_mb or ranks == 8 else (),
        )
        for ranks, compute_ms, megabytes, layers, bucket_mb, recorder in shapes
    ]
    even = Case(
        name="healthy experts, 4 ranks",
        job="experts",
        arguments={"dense_ms": 15.0, "expert_ms": 15.0, "tokens": 512, "width": 32},
        ranks=4,
        allowed=("exposed communication",),
    )
    return [*paced, even]


def gpu_cases() -> list[Case]:
    """Causes on one GPU, and on two and four ranks that share it; the first ones matter most."""
    return [
        dataclasses.replace(case, device="cuda")
        for case in (*_gpu_of_one_rank(), *_gpu_of_two_ranks(), *_gpu_of_four_ranks(), *_gpu_by_scalescope())
    ]


# On a GPU every product of fp32 needs its numbers, and Hopper's are fast in bf16 alone.
_WIDE = {"width": 4096, "layers": 6, "batch": 8192, "bf16": True}
_SHARED = {"width": 1024, "layers": 6, "batch": 32768}


def _gpu_of_one_rank() -> list[Case]:
    return [
        Case(
            name="host-bound, tiny layers",
            job="products",
            arguments={"width": 128, "layers": 150, "batch": 64, "tanh": True},
            expected=("host-bound",),
            steps=4,
        ),
        Case(
            name="host-bound, an update tensor by tensor",
            job="language_model",
            arguments={"batch": 2, "length": 256, "layers": 12, "update_by_tensor": True},
            expected=("host-bound",),
            steps=4,
        ),
        Case(
            name="synchronizations, a look at every layer",
            job="language_model",
            arguments={"batch": 8, "width": 512, "heads": 8, "layers": 12, "looks": True},
            without={"looks": False},
            expected=("synchronizations",),
        ),
        Case(
            name="synchronizations, norms of gradients",
            job="language_model",
            arguments={"batch": 16, "logs_norms": True},
            without={"logs_norms": False},
            expected=("synchronizations",),
        ),
        Case(
            name="slow products, 50257 words",
            job="language_model",
            arguments={"words": 50_257, "layers": 4, "batch": 16},
            without={"words": 50_304},
            expected=("slow products",),
        ),
        Case(
            name="slow products, 32001 words",
            job="language_model",
            arguments={"words": 32_001, "layers": 6, "batch": 24, "width": 1024, "heads": 16},
            without={"words": 32_064},
            expected=("slow products",),
        ),
        *(
            Case(
                name=f"attention head by head, batch {batch}, length {length}",
                job="language_model",
                arguments={"batch": batch, "length": length, "heads": 12, "layers": 6, "attention": "loop"},
                without={"attention": "batched"},
                expected=("batchable loops",),
                stacks=True,
                steps=3,
            )
            for batch, length in ((8, 256), (16, 512))
        ),
        Case(
            name="layers computed twice",
            job="language_model",
            arguments={"batch": 32, "recompute": True},
            without={"recompute": False},
            expected=("recomputation",),
        ),
        Case(
            name="wide layers computed twice",
            job="language_model",
            arguments={"batch": 16, "width": 1536, "heads": 12, "layers": 6, "recompute": True},
            without={"recompute": False},
            expected=("recomputation",),
            stacks=True,
            steps=3,
        ),
        Case(
            name="chains of elementwise operations",
            job="chains",
            without={"written": False},
            expected=("fusable chains",),
        ),
        Case(
            name="an activation as its formula",
            job="language_model",
            arguments={"batch": 32, "written": True},
            without={"written": False},
            expected=("fusable chains",),
        ),
        Case(
            name="pageable images",
            job="images",
            arguments={"source": "pageable"},
            without={"source": "device"},
            expected=("pageable copies",),
        ),
        Case(
            name="samples of 0.3 ms",
            job="samples",
            arguments={"sample_ms": 0.3, "width": 2048, "layers": 8},
            without={"sample_ms": 0.0},
            expected=("input",),
            batch=64,
        ),
        Case(name="healthy products in bf16", job="products", arguments=_WIDE),
        Case(
            name="healthy language model",
            job="language_model",
            arguments={"batch": 48, "width": 1024, "heads": 16, "layers": 6},
            # Eager LayerNorm, GELU and residual sums: fusing them would gain a little, which is true.
            allowed=("fusable chains",),
        ),
        Case(
            name="healthy convolutions",
            job="images",
            arguments={"source": "device", "width": 128, "layers": 8, "batch": 256},
            allowed=("fusable chains",),
        ),
        Case(
            name="healthy copies from pinned memory",
            job="images",
            arguments={"source": "ahead", "width": 128, "layers": 8, "batch": 256},
            allowed=("fusable chains",),
        ),
    ]


def _gpu_of_two_ranks() -> list[Case]:
    return [
        Case(
            name="late rank 1 of 2 computes a metric",
            job="products",
            arguments={**_SHARED, "late_rank": 1, "excess": 1 / 3},
            without={"late_rank": None},
            expected=LATE,
            rank=1,
            ranks=2,
            bucket_mb=4.0,
        ),
        Case(
            name="slow kernels on rank 0 of 2",
            job="products",
            arguments=_SHARED,
            expected=("slower kernels than other ranks",),
            rank=0,
            ranks=2,
            bucket_mb=4.0,
            gpu_shares={0: 0.5},
        ),
        Case(
            name="late host on rank 1 of 2",
            job="products",
            arguments={"width": 512, "layers": 16, "batch": 16384, "host_rank": 1, "host_ms": 1.5},
            without={"host_rank": None},
            expected=("slower host than other ranks",),
            rank=1,
            ranks=2,
            bucket_mb=4.0,
        ),
        Case(
            name="300 tiny exchanges on a GPU, 2 ranks",
            job="products",
            arguments={**_SHARED, "exchanges": 300},
            without={"exchanges": 0},
            expected=("small collectives",),
            ranks=2,
            bucket_mb=4.0,
            steps=4,
        ),
        Case(
            name="exposed communication, 2 ranks",
            job="products",
            arguments={"width": 4096, "layers": 3, "batch": 256},
            expected=("exposed communication",),
            ranks=2,
        ),
        Case(
            name="healthy, 2 ranks",
            job="products",
            arguments=_SHARED,
            ranks=2,
            bucket_mb=4.0,
            allowed=("exposed communication",),
        ),
    ]


def _gpu_of_four_ranks() -> list[Case]:
    shared = {**_SHARED, "batch": 16384}
    return [
        Case(
            name="late rank 3 of 4 computes two metrics",
            job="products",
            arguments={**shared, "late_rank": 3, "excess": 2 / 3},
            without={"late_rank": None},
            expected=LATE,
            rank=3,
            ranks=4,
            bucket_mb=4.0,
        ),
        Case(
            name="slow kernels on rank 2 of 4",
            job="products",
            arguments=shared,
            expected=("slower kernels than other ranks",),
            rank=2,
            ranks=4,
            bucket_mb=4.0,
            gpu_shares={2: 0.5},
        ),
        Case(
            name="uneven all-to-all, 60% of 1024 wide tokens to rank 0 of 4",
            job="experts",
            arguments={"hot": 0.6, "tokens": 8192, "width": 1024},
            without={"hot": None},
            expected=("uneven all-to-all",),
            ranks=4,
        ),
        Case(
            name="another rank of 4 computes a metric in each step",
            job="products",
            arguments={**shared, "changing": True, "excess": 2 / 3},
            without={"changing": False},
            expected=CHANGING,
            ranks=4,
            bucket_mb=4.0,
            steps=8,
        ),
        Case(
            name="late host on rank 0 of 4",
            job="products",
            arguments={"width": 512, "layers": 16, "batch": 8192, "host_rank": 0, "host_ms": 2.0},
            without={"host_rank": None},
            expected=("slower host than other ranks",),
            rank=0,
            ranks=4,
            bucket_mb=4.0,
        ),
        Case(
            name="exposed communication, 4 ranks",
            job="products",
            arguments={"width": 4096, "layers": 3, "batch": 512},
            expected=("exposed communication",),
            ranks=4,
        ),
        Case(
            name="healthy, 4 ranks",
            job="products",
            arguments=shared,
            ranks=4,
            bucket_mb=4.0,
            allowed=("exposed communication",),
        ),
        Case(
            name="400 tiny exchanges on a GPU, 4 ranks",
            job="products",
            arguments={**shared, "exchanges": 400},
            without={"exchanges": 0},
            expected=("small collectives",),
            ranks=4,
            bucket_mb=4.0,
            steps=4,
        ),
        Case(
            name="uneven all-to-all, 50% of 2048 wide tokens to rank 2 of 4",
            job="experts",
            arguments={"hot": 0.5, "hot_rank": 2, "tokens": 8192, "width": 2048},
            without={"hot": None},
            expected=("uneven all-to-all",),
            ranks=4,
        ),
    ]


def _gpu_by_scalescope() -> list[Case]:
    return [
        Case(
            name="healthy products, recorded by scalescope",
            job="products",
            arguments=_WIDE,
            recorder=SCALESCOPE,
        ),
        Case(
            name="late rank 0 of 2, recorded by scalescope",
            job="products",
            arguments={**_SHARED, "late_rank": 0, "excess": 2 / 3},
            expected=LATE,
            rank=0,
            ranks=2,
            bucket_mb=4.0,
            recorder=SCALESCOPE,
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """A job whose losses are measured twice: by taking communication away, and from traces."""

    name: str
    words: tuple[str, ...] = ()  # flags of scalescope
    job: str | None = None  # or a function of causes.py
    arguments: Mapping[str, Any] = field(default_factory=dict)
    ranks: int = 2
    device: str = "cpu"

    @property
    def folder(self) -> str:
        return "".join(letter if letter.isalnum() else "_" for letter in f"{self.device} {self.name}")


AGREEMENTS = (
    Agreement(
        name="balanced, 60 ms, 2 MB, 2 ranks",
        words=("--workload=paced", "--batch-size=32", "--layers=8", "--forward-ms=20", "--backward-ms=40",
               "--layer-mb=0.25"),
    ),
    Agreement(
        name="balanced, 30 ms, 16 MB, 2 ranks",
        words=("--workload=paced", "--batch-size=32", "--layers=8", "--forward-ms=10", "--backward-ms=20",
               "--layer-mb=2"),
    ),
    Agreement(
        name="late rank 1 by 30 %, 2 ranks",
        job="paced",
        arguments={"forward_ms": 20.0, "backward_ms": 40.0, "late_rank": 1, "excess": 0.3},
    ),
    Agreement(
        name="late rank 2 by 40 %, 4 ranks",
        job="paced",
        arguments={"forward_ms": 30.0, "backward_ms": 60.0, "late_rank": 2, "excess": 0.4},
        ranks=4,
    ),
    Agreement(
        name="MLP, batch 256, 2 ranks",
        words=("--workload=mlp", "--batch-size=256"),
    ),
    Agreement(
        name="MLP, batch 4096, 2 ranks of a split GPU",
        words=("--workload=mlp", "--batch-size=4096"),
        device="cuda",
    ),
    Agreement(
        name="late rank 1, 2 ranks of a split GPU",
        job="products",
        arguments={**_SHARED, "late_rank": 1, "excess": 1 / 3},
        device="cuda",
    ),
)  # fmt: skip
