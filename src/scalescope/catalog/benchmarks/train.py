"""Card of the training benchmark: what is trained, for how long, by which optimizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.setting import PerDevice, setting
from scalescope.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Training steps: forward, backward, gradient exchange, optimizer."""

    heading = "Training"
    selects = ("workloads", "strategies", "levers")

    workload: str = setting("mlp", "Model and data to train.")
    strategy: str = setting(
        "auto",
        "How the work is spread over ranks; auto is single on one rank and ddp above.",
    )
    batch_size: int | None = setting(
        PerDevice(cpu=256, cuda=4096),
        "Samples per rank and step: the work grows with the ranks (weak scaling).",
        low=1,
        high=2**31,
    )
    global_batch_size: int | None = setting(
        None,
        "Samples per step over all ranks together: each rank gets its share (strong scaling).",
        low=1,
        high=2**31,
        neutral=None,
    )
    epochs: int = setting(1, "Passes of steps_per_epoch steps.", low=1, high=1_000_000)
    steps_per_epoch: int = setting(
        PerDevice(cpu=40, cuda=105),
        "Steps in an epoch, warm-up included. More steps average out more noise.",
        low=1,
        high=100_000_000,
    )
    warmup_steps: int = setting(
        5,
        "First steps left out of the measurement. At least 3: DDP's first iterations use other "
        "buckets than the rest.",
        low=3,
        high=1_000_000,
    )
    optimizer: str = setting(
        "sgd",
        "sgd touches each parameter once a step; adamw keeps two more copies and costs more.",
        choices=("sgd", "adamw"),
    )
    lr: float = setting(0.01, "Learning rate; no influence on speed.", low=0, high=1e6)
    ablation: str = setting(
        "none",
        "What is switched off to see what it costs.",
        choices=("none", "noop_comm"),
        neutral="none",
        internal=True,
    )

    def steps(self) -> int:
        """How many steps a launch takes, warm-up included."""
        return self.epochs * self.steps_per_epoch

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Refuse a batch that cannot be shared and a warm-up that leaves nothing."""
        total, world = values["global_batch_size"], values["world_size"]
        if total is not None and total % world:
            near = max(world, total - total % world)
            raise BadInput(f"global_batch_size {total} does not divide over {world} ranks; {near} would")
        steps = values["epochs"] * values["steps_per_epoch"]
        if values["warmup_steps"] >= steps:
            raise BadInput(
                f"warmup_steps {values['warmup_steps']} leaves nothing of {steps} steps to measure; "
                f"steps_per_epoch {values['warmup_steps'] + 10} would measure 10"
            )
