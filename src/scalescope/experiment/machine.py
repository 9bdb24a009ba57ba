"""What a machine can do, as the probe found it: the facts that resolve `auto`."""

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU that torch can use."""

    index: int
    name: str
    memory_bytes: int
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Hardware and torch of one host."""

    host: str
    system: str
    architecture: str
    cpu_model: str
    cores: int
    memory_bytes: int | None
    python_version: str
    torch_version: str
    cuda_version: str | None
    nccl_version: str | None
    driver_version: str | None
    backends: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    gpu_problem: str | None
    ranks_per_node: int | None = (
        None  # where several nodes work together: `cores` are one's, `gpus` all nodes'
    )

    def ranks_on_a_host(self, ranks: int) -> int:
        """How many of so many ranks share a host's cores."""
        return ranks if self.ranks_per_node is None else min(ranks, self.ranks_per_node)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Machine":
        """The machine a probe wrote down."""
        known = {field.name for field in dataclasses.fields(cls)}
        facts = {key: value for key, value in record.items() if key in known}
        facts["gpus"] = tuple(Gpu(**gpu) for gpu in record["gpus"])
        facts["backends"] = tuple(record["backends"])
        return cls(**facts)
