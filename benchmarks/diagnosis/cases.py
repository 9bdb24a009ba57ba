"""Cases of the score on the CPU: causes at several strengths on one rank and on many, and healthy runs."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

HEALTHY = "healthy"

# The findings that name a cause; the first finding must be one of them.
EXPECTED: dict[str, tuple[str, ...]] = {
    HEALTHY: (),
    "slow loader": ("input-bound",),
    "slow collate": ("input-bound",),
    "garbage collection": ("garbage collection",),
    "periodic pauses": ("periodic pauses",),
    "periodic pauses on one rank": ("periodic pauses",),
    "hiccup": ("periodic pauses",),  # of one rank, every tenth step
    "unfused optimizer": ("the optimizer is not fused",),
    "too many threads": ("too many CPU threads",),
    "uneven work": ("uneven work per rank",),
    "random lengths": ("uneven work per rank",),
    "slow link": ("communication-bound by bandwidth",),
    "slow rank": ("straggling rank",),
    "jitter": ("random skew between ranks", "straggling rank"),
    "tiny batch": ("too little work per exchange", "communication-bound by latency"),
    "tiny model": (
        "model too small for several ranks",
        "too little work per exchange",
        "communication-bound by latency",
    ),
    "tiny buckets": ("buckets too small", "communication-bound by latency"),
    "giant last parameter": ("last bucket too large",),
}

QUICK = {"repeats": 3, "window": "0.7s", "warmup_steps": 3}
_SHORTER = {"window": "0.5s"}  # for jobs on several ranks, which are also launched with preloaded batches
_LONG = {"window": "1s", "min_steps": 45}  # for causes that act at every tenth step: four times and more


@dataclass(frozen=True)
class Case:
    """A cause with its strength, and the job that has it."""

    cause: str
    strength: str
    settings: dict[str, object]
    ranks: int = 1
    fault: str | None = None  # of ranks, as SCALESCOPE_FAULT has it
    job: str | None = None  # a function of workloads/cpu_jobs.py
    arguments: dict[str, object] = field(default_factory=dict)  # of that function

    @property
    def name(self) -> str:
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{self.cause}, {ranks}, {self.strength}"

    @property
    def expected(self) -> tuple[str, ...]:
        """The findings that are right."""
        return EXPECTED[self.cause] or (HEALTHY,)

    @property
    def folder(self) -> str:
        """Where its run is kept."""
        return "".join(letter if letter.isalnum() else "_" for letter in self.name)

    @property
    def is_held_out(self) -> bool:
        """Whether rules may not be changed by it: half of the cases, by a hash of their names."""
        return hashlib.sha256(self.name.encode()).digest()[0] % 2 == 1

    @property
    def needs_clean_launcher(self) -> bool:
        """A fault is part of the environment of all ranks, and links stay until a launcher is closed."""
        return self.fault is not None or "link" in self.settings

    def record(self) -> dict[str, object]:
        """What is measured: a stored run counts as long as this has not changed."""
        return {
            "settings": {name: str(value) for name, value in self.settings.items()},
            "ranks": self.ranks,
            "fault": self.fault,
            "job": self.job,
            "arguments": self.arguments,
        }


def all_cases() -> list[Case]:
    """Every cause at every strength, and healthy runs."""
    return [
        *causes_on_one_rank(),
        *causes_of_jobs_on_two_ranks(),
        *causes_of_links_and_ranks(),
        *causes_of_settings(),
        *causes_on_many_ranks(),
        *healthy_on_one_rank(),
        *healthy_on_many_ranks(),
        *almost_healthy(),
    ]


def paced(forward_ms: float, backward_ms: float, layer_mb: float = 0.02, **more: object) -> dict[str, object]:
    """Ranks that sleep for these times and all-reduce eight gradients of this size."""
    times = {"forward_ms": forward_ms, "backward_ms": backward_ms, "layer_mb": layer_mb}
    return {"workload": "paced", "batch_size": 32, "layers": 8, **times, **more}


def of_job(
    cause: str, job: str, strengths: Iterable[dict[str, object]], ranks: int = 1, **settings: object
) -> list[Case]:
    """A cause inside a workload of the user's."""
    return [
        Case(
            cause,
            f"{job} {' '.join(f'{name}={value}' for name, value in strength.items())}",
            {"batch_size": 16, **({} if ranks == 1 else _SHORTER), **settings},
            ranks,
            job=job,
            arguments=strength,
        )
        for strength in strengths
    ]


def each(name: str, *values: object, **more: object) -> list[dict[str, object]]:
    """One strength per value of an argument."""
    return [{name: value, **more} for value in values]


def causes_on_one_rank() -> list[Case]:
    """Causes that one rank alone has, from a tenth of a step to most of it."""
    pause = [
        *({"every": 5, "pause_ms": ms} for ms in (20, 60)),
        *({"every": 10, "pause_ms": ms} for ms in (40, 100, 200)),
    ]
    return [
        *of_job("slow loader", "slow_samples", each("sample_ms", 0.2, 0.4, 0.8, 1.5, 4.0)),
        *of_job("slow loader", "slow_samples", each("sample_ms", 5.0, 8.0), num_workers=2),
        *of_job("slow collate", "slow_collate", each("collate_ms", 3, 6, 12, 30)),
        *of_job("garbage collection", "collected", each("objects", 80_000, 150_000, 400_000)),
        *of_job("garbage collection", "collected", each("objects", 600_000, every=3)),
        *of_job("garbage collection", "kept_records", each("records", 6_000)),
        *of_job("garbage collection", "cyclic_garbage", each("nodes", 20_000, 60_000)),
        *of_job("periodic pauses", "pauses", pause, **_LONG),
        *of_job("periodic pauses", "checkpoints", each("megabytes", 32, 128, every=8), **_LONG),
        *of_job("unfused optimizer", "many_tensors", each("layers", 100, 300, busy_ms=2), optimizer="adamw"),
        *of_job("unfused optimizer", "many_tensors", each("layers", 200, busy_ms=20), optimizer="adamw"),
        *of_job("unfused optimizer", "many_tensors", each("layers", 100, 400, busy_ms=5, loop=True)),
        *(threads(number, 1) for number in (4, 6, 8)),
    ]


def threads(number: int, ranks: int) -> Case:
    """More threads than cores: products too short for them to share."""
    return Case("too many threads", f"{number}", {"batch_size": 128, "threads_per_rank": number}, ranks)


def causes_of_jobs_on_two_ranks() -> list[Case]:
    """The causes of one rank again on two, and those that make ranks unequal."""
    checkpoint = [{"every": every, "pause_ms": ms, "only_rank": 0} for every, ms in ((5, 40), (10, 150))]
    work = {"ranks": 2, "batch_size": 8}
    return [
        *of_job("slow loader", "slow_samples", each("sample_ms", 0.5, 1.0, 2.0, 4.0, busy_ms=20), ranks=2),
        *of_job("slow collate", "slow_collate", each("collate_ms", 10, 25, busy_ms=20), ranks=2),
        *of_job("garbage collection", "collected", each("objects", 200_000, 500_000, busy_ms=20), ranks=2),
        *of_job("periodic pauses", "pauses", each("pause_ms", 60, 200, every=8), ranks=2, **_LONG),
        *of_job("periodic pauses on one rank", "pauses", checkpoint, ranks=2, **_LONG),
        *of_job(
            "periodic pauses on one rank",
            "checkpoints",
            each("megabytes", 96, every=8, only_rank=0),
            ranks=2,
            **_LONG,
        ),
        *of_job(
            "unfused optimizer", "many_tensors", each("layers", 200, 500, busy_ms=10), 2, optimizer="adamw"
        ),
        *of_job("uneven work", "uneven", each("excess", 0.5, 1.0, 2.0, tokens=128), **work),
        *of_job("uneven work", "uneven", each("excess", 0.3, tokens=256), **work),
        *of_job("uneven work", "computed_lengths", each("excess", 1.0, 2.0), ranks=2, batch_size=32),
        *of_job("random lengths", "random_lengths", each("most", 256, 512, least=32), **work),
    ]


def causes_of_links_and_ranks() -> list[Case]:
    """A slow network, and ranks that are late, on two ranks."""
    busy = paced(15, 30)
    often = paced(10, 20, **_LONG)
    links = [
        Case("slow link", f"{rate}, {size} MB", paced(10, 20, size / 8, link=rate), 2)
        for rate, size in (("50mbit", 0.5), ("50mbit", 2.0), ("100mbit", 1.0), ("200mbit", 0.5))
    ]
    links.append(Case("slow link", "200mbit, 2.0 MB", paced(10, 20, 2.0 / 8, link="200mbit"), 2))
    return [
        *links,
        *(Case("slow rank", f"{ms} ms", busy, 2, f"slow:{ms}@1:0") for ms in (6, 10, 15, 30, 45)),
        *(Case("jitter", f"±{ms} ms", busy, 2, f"jitter:{ms}@all:0") for ms in (10, 15, 25, 40)),
        *(Case("hiccup", f"{ms} ms", often, 2, f"hiccup:{ms}@1:0") for ms in (80, 150, 300)),
    ]


def causes_of_settings() -> list[Case]:
    """Too little work, too many threads, small buckets, and one gradient that is large and comes last."""
    tiny = paced(5, 10, layers=200)
    models = [
        Case("tiny model", f"{width} wide", {**_mlp(width), "batch_size": 32}, 2) for width in (16, 48, 128)
    ]
    return [
        *(Case("tiny batch", f"{batch}", {"batch_size": batch}, 2) for batch in (1, 2, 4, 8)),
        *models,
        *(threads(number, 2) for number in (2, 4, 8)),
        *(
            Case("tiny buckets", f"{cap} MB", {**tiny, "bucket_cap_mb": cap}, 2)
            for cap in (0.001, 0.01, 0.02)
        ),
        *(
            Case("giant last parameter", f"{size} MB", paced(20, 40, 1.0, first_layer_mb=size), 2)
            for size in (24, 48, 64, 96)
        ),
    ]


def causes_on_many_ranks() -> list[Case]:
    """Ranks that sleep, on 4 and 8: two cores are enough for them, where steps are long."""
    cases = []
    for ranks, busy in ((4, paced(30, 60)), (8, paced(60, 90))):
        slow = (20, 60) if ranks == 4 else (40, 100)
        jitter = (30, 60) if ranks == 4 else (50, 100)
        often = paced(10, 20, **_LONG) if ranks == 4 else paced(20, 40, **_LONG)
        cases += [
            *(Case("slow rank", f"{ms} ms", busy, ranks, f"slow:{ms}@{ranks - 1}:0") for ms in slow),
            *(Case("jitter", f"±{ms} ms", busy, ranks, f"jitter:{ms}@all:0") for ms in jitter),
            Case("hiccup", "250 ms", often, ranks, "hiccup:250@1:0"),
            Case("periodic pauses", "200 ms", often, ranks, "hiccup:200@all:0"),
            *(
                Case("slow link", f"{rate}, {size} MB", paced(15, 30, size / 8, link=rate), ranks)
                for rate, size in (("100mbit", 0.5), ("200mbit", 1.0))
            ),
        ]
    return cases


def _mlp(width: int) -> dict[str, object]:
    return dict.fromkeys(("hidden_dim", "input_dim", "output_dim"), width)


def healthy_on_one_rank() -> list[Case]:
    """Steps of 5, 50 and 200 ms on one rank.

    Ranks that sleep lose nothing. Real models have a batch so large that updating the parameters is a few
    percent of a step: an update moves 12 bytes per parameter, forward and backward compute 6 operations per
    parameter and sample. A ready batch costs a loader 0.1 ms, so jobs with one have 20 ms and more.
    """
    times = ((2, 3), (1, 4), (2.5, 2.5), (3, 2), (1.5, 4), (2, 4))
    times += ((20, 30), (15, 35), (25, 25), (30, 20), (80, 120), (60, 140), (100, 100))
    sizes = ((2, 256, 256), (2, 256, 384), (6, 256, 1024), (6, 192, 1536), (4, 384, 768))
    return [
        *(Case(HEALTHY, f"{forward}+{backward} ms", paced(forward, backward)) for forward, backward in times),
        *(
            Case(
                HEALTHY,
                f"mlp {layers}×{width}, batch {batch}",
                {**_mlp(width), "num_layers": layers, "batch_size": batch},
            )
            for layers, width, batch in sizes
        ),
        Case(HEALTHY, "cnn", {"workload": "cnn", "batch_size": 8}),
        Case(HEALTHY, "transformer", {"workload": "transformer", "batch_size": 8, "vocab_size": 500}),
        *of_job(HEALTHY, "healthy", each("busy_ms", 20, 50, 200)),
    ]


# Forward and backward pass in ms by number of ranks. One all-reduce of a gradient of 160 KB takes gloo 2 to
# 4 ms on two busy cores and no backward pass hides it: less than 5 % of 100 ms, and more of 50. A single
# gradient of 4 KB is exchanged in less than a millisecond on two ranks, so that 60 ms are enough. Four and
# eight ranks on two cores also wait for a core, each 1 to 2 ms per step. Real models are not among these: on
# two cores of one processor they slow each other down, which is a finding.
_SHORT = ((25, 35), (20, 40), (30, 30))
_LONGER = {
    2: ((40, 60), (60, 60), (45, 75), (60, 80), (80, 120), (100, 100), (60, 140), (120, 80)),
    4: ((60, 100), (80, 120), (100, 100), (60, 140)),
    8: ((100, 150), (120, 180), (80, 180)),
}


def healthy_on_many_ranks() -> list[Case]:
    """Steps of 60 to 300 ms on ranks that sleep."""
    return [
        *(
            Case(HEALTHY, f"{forward}+{backward} ms", paced(forward, backward, 0.004, layers=1), 2)
            for forward, backward in _SHORT
        ),
        *(
            Case(HEALTHY, f"{forward}+{backward} ms", paced(forward, backward), ranks)
            for ranks, times in _LONGER.items()
            for forward, backward in times
        ),
    ]


def almost_healthy() -> list[Case]:
    """Causes so weak that they cost 1 to 2 % of a step."""
    slow = paced(60, 80)
    return [
        Case(HEALTHY, "slow rank by 2 of 140 ms", slow, 2, "slow:2@1:0"),
        Case(HEALTHY, "jitter of 2 of 140 ms", slow, 2, "jitter:2@all:0"),
        Case(HEALTHY, "hiccup of 20 of 140 ms", slow, 2, "hiccup:20@1:0"),
        Case(HEALTHY, "slow rank by 4 of 200 ms", paced(80, 120), 4, "slow:4@3:0"),
        *of_job(HEALTHY, "slow_samples", each("sample_ms", 0.05, busy_ms=100)),
        *of_job(HEALTHY, "pauses", each("pause_ms", 5, every=10, busy_ms=50)),
    ]
