"""Where ranks run: settings shared by every benchmark that starts ranks."""

from dataclasses import dataclass

from scalescope.catalog.setting import setting


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
    )
    oversubscribe: bool = setting(
        False,
        "Let several ranks share a GPU. Exercises the code path; the result is marked as no "
        "scaling measurement.",
        neutral=False,
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
    )
