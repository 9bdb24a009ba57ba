"""Where ranks run: settings shared by every benchmark that starts ranks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog.link import rates_of
from scalescope.catalog.setting import Lever, PerDevice, setting
from scalescope.errors import BadInput, CannotRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the ranks run and what they get of the machine."""

    world_size: int = setting(
        1,
        "Number of ranks (processes, one per GPU). A list measures each.",
        low=1,
        high=65_536,
        aliases=("--nproc-per-node",),
    )
    device: str = setting(
        "auto",
        "What a rank computes on; auto takes the GPUs where there are any.",
        choices=("cpu", "cuda", "auto"),
    )
    backend: str = setting(
        "auto",
        "Library that carries the collectives; auto is nccl on GPUs and gloo on the CPU.",
        choices=("gloo", "nccl", "auto"),
    )
    threads_per_rank: int | None = setting(
        None,
        "CPU threads of each rank; auto divides the cores by the largest world size of the run, "
        "so that one rank does not own a bigger machine than two.",
        low=1,
        high=4096,
        none_word="auto",
        lever=Lever(multiples=(2,), needs=("cpu",), changes="rounding", needs_new_ranks=True),
    )
    pin_cores: str = setting(
        "auto",
        "Keep every rank on cores of its own; auto does so on the CPU where there are enough, and not for "
        "GPU ranks.",
        choices=("auto", "yes", "no"),
        neutral="auto",
        lever=Lever(tries=(PerDevice(cpu="no", cuda="yes"),), needs_new_ranks=True),
    )
    oversubscribe: bool = setting(
        False,
        "Let several ranks share a GPU. Exercises the code path; the result is marked as no "
        "scaling measurement.",
        neutral=False,
    )
    link: str | None = setting(
        None,
        "Run every rank in a network namespace of its own behind a link of this rate: 100mbit, 1gbit, or "
        "0:1gbit,1:100mbit for each rank. Needs Linux and root; repeat for a sweep.",
        kind="link",
        neutral=None,
    )
    split_gpu: int | None = setting(
        None,
        "Give every rank 1/N of one GPU's multiprocessors (CUDA MPS), with real NCCL between them. Memory "
        "bandwidth, cache and power stay shared.",
        low=2,
        high=48,
        neutral=None,
    )
    among: str = setting(
        "all",
        "Of the ranks of several nodes: all in their order, those of one node, or one a node.",
        choices=("all", "one node", "one a node"),
        neutral="all",
        internal=True,
    )
    seed: int = setting(
        0, "Seed of parameters and data; every launch of a trial uses the same.", low=0, high=2**31
    )
    env: str = setting(
        None,
        "NAME=VALUE put into the environment of the ranks (NCCL_ALGO, OMP_NUM_THREADS, ...). "
        "Repeat for more names; the same name twice is a sweep.",
        kind="env",
        neutral=None,
        lever=Lever(
            tries=("NCCL_ALGO=Ring", "NCCL_ALGO=Tree", "NCCL_PROTO=Simple", "NCCL_PROTO=LL128"),
            needs=("nccl", "ranks"),
            changes="rounding",
        ),
    )

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Refuse links and shares that these ranks cannot have."""
        if values["link"] is not None:
            rates_of(values["link"], values["world_size"])
            if values["backend"] == "nccl":
                raise CannotRun(
                    "--link shapes sockets, which NCCL does not use on one host; add --device cpu"
                )
        parts = values["split_gpu"]
        if parts is None:
            return
        if values["device"] != "cuda":
            raise CannotRun("--split-gpu needs a CUDA GPU")
        if values["world_size"] > parts:
            raise BadInput(f"{values['world_size']} ranks do not fit a GPU split in {parts}")
