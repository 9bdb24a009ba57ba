"""Shorthand for requests and machines."""

import dataclasses

from scalescope.experiment.experiment import Experiment, build_experiment
from scalescope.experiment.given import Entries, Given
from scalescope.experiment.machine import Gpu, Machine
from tests.simulated.launcher import TWO_CORES


def flags(**texts: str) -> Entries:
    """What was typed: `world_size="1,2"` reads as `--world-size 1,2`; `env__A` as `--env A=...`."""
    return {
        name.replace("__", "."): tuple(
            Given(text, "--" + name.replace("_", "-")) for text in texts.split(",")
        )
        for name, texts in texts.items()
    }


def ask(**texts: str) -> Experiment:
    """A checked request made of flags alone."""
    return build_experiment("train", "train", {}, flags(**texts), {})


def with_gpus(count: int, *, cores: int = 8) -> Machine:
    """A machine with that many GPUs and a torch that can use them."""
    gpus = tuple(Gpu(index=i, name="fake GPU", memory_bytes=1 << 34, uuid=f"GPU-{i}") for i in range(count))
    return dataclasses.replace(TWO_CORES, cores=cores, gpus=gpus, backends=("gloo", "nccl"))
