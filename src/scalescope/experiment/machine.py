"""What a machine can do, as the probe found it: the facts that resolve `auto`."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

# Above this, a product in a shorter format cannot come from units made for it: those are about as fast as
# fp32's or faster, and what torch does without them is tens of times slower. In between lies what a busy
# machine or a matrix too small to matter adds to a measurement.
_MUCH_SLOWER = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionSupport:
    """How a processor or a GPU computes in one number format; None is unknown."""

    name: str
    native: bool | None = None  # whether it has instructions for products in that format
    slowdown: float | None = None  # time of a matrix product divided by that in fp32

    @property
    def emulated(self) -> bool:
        """Whether the format can only cost time here: no instructions for it, or none that torch uses."""
        return self.native is False or (self.slowdown is not None and self.slowdown > _MUCH_SLOWER)


Precisions = tuple[PrecisionSupport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU that torch can use."""

    index: int
    name: str
    memory_bytes: int
    uuid: str
    pci_bus: str | None = None  # 0000:1b:00.0
    compute_capability: tuple[int, int] | None = None
    precisions: Precisions = ()

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Gpu":
        """The GPU a probe wrote down."""
        facts = _known_facts(cls, record)
        capability = record.get("compute_capability")
        facts["compute_capability"] = None if capability is None else tuple(capability)
        return cls(**facts)


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
    precisions: Precisions = ()  # of the processor; each GPU has its own
    # A matrix product in fp32 on one core when it was probed, other load included; None is unknown.
    core_flops_per_s: float | None = None

    def support_of(self, precision: str, device: str) -> PrecisionSupport:
        """How `device` (cpu or cuda) computes in a format; of several GPUs, the worst."""
        sources = [gpu.precisions for gpu in self.gpus] if device == "cuda" else [self.precisions]
        return worst_support(precision, sources)

    def ranks_on_a_host(self, ranks: int) -> int:
        """How many of so many ranks share a host's cores."""
        return ranks if self.ranks_per_node is None else min(ranks, self.ranks_per_node)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "Machine":
        """The machine a probe wrote down."""
        facts = _known_facts(cls, record)
        facts["gpus"] = tuple(Gpu.from_json(gpu) for gpu in record["gpus"])
        facts["backends"] = tuple(record["backends"])
        return cls(**facts)


def worst_support(precision: str, sources: Iterable[Precisions]) -> PrecisionSupport:
    """What all of `sources` together can do in a format: ranks go at the pace of the slowest."""
    known = [support for precisions in sources for support in precisions if support.name == precision]
    natives = {support.native for support in known}
    slowdowns = [support.slowdown for support in known if support.slowdown is not None]
    native = next((value for value in (False, None, True) if value in natives), None)
    return PrecisionSupport(name=precision, native=native, slowdown=max(slowdowns, default=None))


def _known_facts(cls: type, record: dict[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass in a record, which may have others."""
    names = {field.name for field in dataclasses.fields(cls)}
    facts = {key: value for key, value in record.items() if key in names}
    facts["precisions"] = tuple(
        PrecisionSupport(name=support["name"], native=support.get("native"), slowdown=support.get("slowdown"))
        for support in record.get("precisions", ())
    )
    return facts
