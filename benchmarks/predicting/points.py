"""The points of benchmarks/prediction.py: drawn once, committed before any was predicted.

    python benchmarks/predicting/points.py

A job is a model with its batch sizes; a point is a job on so many ranks over a link with other settings.
"""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("points.jsonl")
GPU_FILE = Path(__file__).with_name("gpu_points.jsonl")
SEED = 22


@dataclass(frozen=True, kw_only=True)
class JobPoints:
    """How many points are drawn of all combinations of these settings."""

    count: int
    model: Mapping[str, Any]
    varied: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def drawn(self, draw: random.Random) -> list[dict[str, Any]]:
        names = list(self.varied)
        combinations = list(product(*self.varied.values()))
        chosen = sorted(draw.sample(range(len(combinations)), self.count))
        return [{**self.model, **dict(zip(names, combinations[number], strict=True))} for number in chosen]


_CAPS = (0.5, 2.0, 50.0)
_HOOKS = ("none", "fp16", "bf16")
_MLP = {"workload": "mlp", "input_dim": 512, "hidden_dim": 512, "num_layers": 6, "output_dim": 512}
_TRANSFORMER = {"workload": "transformer", "num_layers": 4, "vocab_size": 2000, "max_seq_len": 64}
_CNN = {"workload": "cnn"}
_PACED = {"workload": "paced", "layers": 12, "forward_ms": 15.0, "backward_ms": 30.0, "layer_mb": 0.25}

JOBS = {
    "mlp": JobPoints(
        count=28,
        model={**_MLP, "world_size": 2},
        varied={
            "batch_size": (64, 256),
            "link": (None, "2gbit", "1gbit", "500mbit"),
            "bucket_cap_mb": _CAPS,
            "comm_hook": _HOOKS,
            "accumulation_steps": (1, 3),
        },
    ),
    "transformer": JobPoints(
        count=26,
        model={**_TRANSFORMER, "world_size": 2},
        varied={
            "batch_size": (16, 48),
            "link": (None, "1gbit", "200mbit", "50mbit"),
            "bucket_cap_mb": _CAPS,
            "comm_hook": _HOOKS,
            "accumulation_steps": (1, 3),
        },
    ),
    "cnn": JobPoints(
        count=22,
        model={**_CNN, "world_size": 2},
        varied={
            "batch_size": (8, 24),
            "link": (None, "500mbit", "100mbit"),
            "bucket_cap_mb": _CAPS,
            "comm_hook": _HOOKS,
            "accumulation_steps": (1, 3),
        },
    ),
    "paced": JobPoints(
        count=46,
        model=_PACED,
        varied={
            "world_size": (4, 8),
            "batch_size": (32,),
            "link": (None, "2gbit", "500mbit", "50mbit"),
            "bucket_cap_mb": _CAPS,
            "comm_hook": _HOOKS,
            "accumulation_steps": (1, 3),
        },
    ),
    "stand-in": JobPoints(
        count=10,
        model={**_TRANSFORMER, "world_size": 4, "stand_in": True},
        varied={
            "batch_size": (16, 48),
            "link": ("1gbit", "200mbit"),
            "bucket_cap_mb": _CAPS,
            "comm_hook": ("none", "bf16"),
        },
    ),
    "fsdp": JobPoints(
        count=8,
        model={**_TRANSFORMER, "world_size": 2, "strategy": "fsdp"},
        varied={
            "batch_size": (16, 48),
            "link": (None, "1gbit", "200mbit"),
            "reshard_after_forward": (True, False),
        },
    ),
    "pipeline": JobPoints(
        count=8,
        model={**_TRANSFORMER, "world_size": 2, "strategy": "pipeline", "batch_size": 48},
        varied={
            "link": (None, "200mbit"),
            "schedule": ("gpipe", "1f1b"),
            "microbatches": (2, 4, 8),
        },
    ),
}

_ON_A_SHARE = {"device": "cuda", "split_gpu": 4, "threads_per_rank": 2}
_SMALL_GPT = {
    "workload": "transformer",
    "d_model": 512,
    "n_heads": 8,
    "num_layers": 6,
    "dim_feedforward": 2048,
}
_ON_GPU = {**_SMALL_GPT, "vocab_size": 8192, "max_seq_len": 256, "precision": "bf16", **_ON_A_SHARE}
_GPU_CHANGES = {"bucket_cap_mb": (5.0, 25.0), "comm_hook": ("none", "bf16")}
GPU = {  # other batch sizes calibrate than are scored
    "score": JobPoints(
        count=16,
        model=_ON_GPU,
        varied={"world_size": (2, 4), "batch_size": (16, 64), **_GPU_CHANGES},
    ),
    "calibration": JobPoints(
        count=16,
        model=_ON_GPU,
        varied={"world_size": (2, 4), "batch_size": (24, 96), **_GPU_CHANGES},
    ),
}


def draw_points() -> Iterator[dict[str, Any]]:
    draw = random.Random(SEED)
    for job, points in JOBS.items():
        for number, settings in enumerate(points.drawn(draw)):
            half = "calibration" if number % 2 == 0 else "score"
            given = {name: value for name, value in settings.items() if value is not None}
            yield {"job": job, "half": half, "settings": given}


def gpu_points() -> Iterator[dict[str, Any]]:
    for half, points in GPU.items():
        for settings in points.drawn(random.Random(SEED)):
            yield {"job": "gpu", "half": half, "settings": settings}


def read_points(file: Path = FILE) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


if __name__ == "__main__":
    FILE.write_text("".join(f"{json.dumps(point)}\n" for point in draw_points()))
    GPU_FILE.write_text("".join(f"{json.dumps(point)}\n" for point in gpu_points()))
