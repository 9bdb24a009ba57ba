"""Cases of the score on one GPU: what is injected into which job, and the change that removes it."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The findings that name a cause; the first finding must be one of them.
EXPECTED: dict[str, tuple[str, ...]] = {
    "`.item()` in every layer": ("host synchronization",),
    "`.item()` of loss and accuracy": ("host synchronization",),
    "`.item()` of every gradient's norm": ("host synchronization",),
    "boolean mask": ("host synchronization",),
    "slow loader": ("input-bound",),
    "slow collate": ("input-bound",),
    "pageable copies": ("copy-bound",),
    "unfused optimizer": ("the optimizer is not fused",),
    "small kernels": ("many small kernels",),
    "graph breaks": ("graph breaks",),
    "recompilation": ("recompilation",),
    "emptied cache of the allocator": ("memory requested from the driver in every step",),
    "garbage collection": ("garbage collection",),
    "periodic checkpoints": ("periodic pauses",),
    "fp32": ("matrix units are idle",),
    "NCHW": ("images are reordered for convolutions",),
    "tiny batch": ("host-bound",),
}

TRANSFORMER = "transformer 124M"
RESNET = "ResNet-50"
MLP = "MLP of 48 layers"
LOADER = "MLP of 4 layers"
_SHORT = {"precision": "bf16", "fused_optimizer": True}
_SETTINGS: dict[str, dict[str, object]] = {
    # Eight samples: the GPU computes longer than the host takes to launch kernels.
    TRANSFORMER: {"batch_size": 8, "optimizer": "adamw", "lr": 1e-4, **_SHORT},
    RESNET: {"batch_size": 128, "memory_format": "channels_last", "lr": 1e-3, **_SHORT},
    MLP: {"batch_size": 64},
    LOADER: {"batch_size": 32},
}
_COMPILING_S = 150.0
_ONLY_ON_A_GPU = ("precision", "non_blocking", "compile", "split_gpu")


@dataclass(frozen=True)
class GpuCase:
    """A job with a cause, and the same job without it."""

    model: str
    cause: str
    job: str  # a function of workloads/gpu_jobs.py
    fixed_job: str | None = None  # None: the same job with other settings
    settings: dict[str, object] = field(default_factory=dict)  # of both
    fix: dict[str, object] = field(default_factory=dict)  # settings that remove the cause
    ranks: int = 1
    needs_s: float = 45.0  # to measure it, at most

    @property
    def name(self) -> str:
        return f"{self.model}, {self.cause}" + (f", {self.ranks} ranks" if self.ranks > 1 else "")

    @property
    def folder(self) -> str:
        return "".join(letter if letter.isalnum() else "_" for letter in self.name)

    @property
    def expected(self) -> tuple[str, ...]:
        return EXPECTED[self.cause]

    def flags(self, workloads: Path, *, fixed: bool, tiny: bool) -> dict[str, object]:
        """The flags of `train` or `scale`."""
        job = self.fixed_job or self.job if fixed else self.job
        both = {**_SETTINGS[self.model], **self.settings, **(self.fix if fixed else {})}
        if self.ranks > 1:
            both["split_gpu"] = self.ranks
        flags: dict[str, object] = {
            "workload": f"{workloads / 'gpu_jobs.py'}:{job}",
            "device": "cuda",
            "repeats": 1,
            "window": "1.5s",
            "world_size": self.ranks,
            **both,
        }
        if tiny:
            flags = {name: value for name, value in flags.items() if name not in _ONLY_ON_A_GPU}
            flags |= {"device": "cpu", "batch_size": 2, "window": "0.2s", "warmup_steps": 3}
        return flags

    def fixed_folder(self, flags: Mapping[str, object]) -> str:
        """Where the run without the cause is kept: several cases share it."""
        text = json.dumps({name: str(value) for name, value in flags.items() if name != "workload"})
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"without_{self.fixed_job or self.job}_{digest}"


# In the order in which they are measured: what takes long to compile comes last.
CASES = (
    GpuCase(MLP, "`.item()` in every layer", "mlp_item_in_layers", "mlp_healthy"),
    GpuCase(LOADER, "slow loader", "loader_slow", "loader_healthy"),
    GpuCase(TRANSFORMER, "`.item()` in every layer", "transformer_item_in_layers", "transformer_healthy"),
    GpuCase(
        TRANSFORMER,
        "`.item()` of every gradient's norm",
        "transformer_logged_norms",
        "transformer_fused_optimizer",
    ),
    GpuCase(TRANSFORMER, "boolean mask", "transformer_boolean_mask", "transformer_healthy"),
    GpuCase(TRANSFORMER, "slow loader", "transformer_slow_loader", "transformer_loader"),
    GpuCase(TRANSFORMER, "slow collate", "transformer_slow_collate", "transformer_loader"),
    GpuCase(TRANSFORMER, "unfused optimizer", "transformer_unfused_optimizer", "transformer_fused_optimizer"),
    GpuCase(TRANSFORMER, "small kernels", "transformer_small_kernels", "transformer_healthy"),
    GpuCase(TRANSFORMER, "emptied cache of the allocator", "transformer_empty_cache", "transformer_healthy"),
    GpuCase(TRANSFORMER, "garbage collection", "transformer_garbage", "transformer_healthy"),
    GpuCase(
        TRANSFORMER,
        "periodic checkpoints",
        "transformer_checkpoints",
        "transformer_healthy",
        settings={"min_steps": 60},
    ),
    GpuCase(
        TRANSFORMER,
        "fp32",
        "transformer_healthy",
        settings={"precision": "fp32"},
        fix={"precision": "bf16"},
    ),
    GpuCase(RESNET, "pageable copies", "resnet_pageable", "resnet_pinned", fix={"non_blocking": True}),
    GpuCase(
        RESNET,
        "NCHW",
        "resnet_healthy",
        settings={"memory_format": "contiguous"},
        fix={"memory_format": "channels_last"},
    ),
    GpuCase(
        RESNET,
        "fp32",
        "resnet_healthy",
        settings={"precision": "fp32", "batch_size": 64},
        fix={"precision": "bf16"},
    ),
    # Half the batch: the host launches a block hardly faster than the GPU computes it.
    GpuCase(
        RESNET,
        "`.item()` in every layer",
        "resnet_item_in_blocks",
        "resnet_healthy",
        settings={"batch_size": 64},
    ),
    GpuCase(
        RESNET,
        "periodic checkpoints",
        "resnet_checkpoints",
        "resnet_healthy",
        settings={"batch_size": 64, "min_steps": 60},
    ),
    GpuCase(
        TRANSFORMER,
        "`.item()` of loss and accuracy",
        "transformer_item_in_loss",
        "transformer_healthy",
        settings={"batch_size": 4},
    ),
    GpuCase(
        TRANSFORMER, "recompilation", "transformer_recompiled", "transformer_padded", needs_s=_COMPILING_S
    ),
    GpuCase(
        TRANSFORMER,
        "tiny batch",
        "transformer_healthy",
        settings={"batch_size": 1},
        fix={"compile": "reduce-overhead"},
        needs_s=_COMPILING_S,
    ),
    GpuCase(
        TRANSFORMER, "graph breaks", "transformer_graph_breaks", "transformer_compiled", needs_s=_COMPILING_S
    ),
)

# The first two again, on two halves of the GPU.
TWO_RANKS = tuple(dataclasses.replace(case, ranks=2, needs_s=90.0) for case in CASES[:2])


def gpu_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """What was reported first, and what it claims against what the fix gained."""
    lines = [
        "| model | cause | first finding | right | ms per step | ms claimed | ms gained | second finding |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        findings = [*row["findings"], {}, {}]
        cells = (
            row["model"],
            row["cause"] + (f", {row['ranks']} ranks" if row["ranks"] > 1 else ""),
            findings[0].get("rule", row["error"] or "none"),
            "yes" if row["right"] else "no",
            _ms(row["step_s"]),
            _ms(findings[0].get("cost_s")),
            _ms(row["gained_s"]),
            findings[1].get("rule", ""),
        )
        lines.append(f"| {' | '.join(cells)} |")
    right = sum(bool(row["right"]) for row in rows)
    return "\n".join([*lines, "", f"{right} of {len(rows)} right on the GPU"])


def _ms(time_s: float | None) -> str:
    return "" if time_s is None else f"{time_s * 1e3:.1f}"
