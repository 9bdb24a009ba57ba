"""Card of the communication benchmark: which collectives, at which sizes, for how long."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalescope.catalog import cards
from scalescope.catalog.setting import PerDevice, setting
from scalescope.errors import BadInput, CannotRun

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
}
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comm:
    """Collectives by themselves: time against size, checked for correctness."""

    heading = "Communication"
    selects = ()

    collective: str = setting(
        ALL, "Collectives to measure, separated by commas; all is every one there is.", sweep=False
    )
    min_bytes: int = setting(8, "Smallest size.", kind="bytes", low=1, high=2**40, aliases=("-b",))
    max_bytes: int = setting(
        PerDevice(cpu=64 << 20, cuda=1 << 30),
        "Largest size.",
        kind="bytes",
        low=1,
        high=2**40,
        aliases=("-e",),
    )
    step_factor: int = setting(2, "Each size is this many times the last.", low=2, high=1024, aliases=("-f",))
    iters: int | None = setting(
        None,
        "Iterations at each size; auto fits them into time_per_size.",
        low=1,
        high=1_000_000,
        none_word="auto",
        aliases=("-n",),
    )
    warmup: int = setting(
        5, "Most iterations before the measured ones.", low=1, high=100_000, aliases=("-w",)
    )
    time_per_size: float = setting(
        0.2,
        "Time for each size where iters is auto; agreed over ranks, for all must run as many.",
        kind="duration",
        low=0.001,
    )
    dtype: str = setting("float32", "Element type; a list measures each.", choices=tuple(DTYPE_BYTES))
    in_place: bool | None = setting(
        None,
        "Measure only in place or only out of place; both where torch offers both.",
        opposite="--out-of-place",
    )
    pairs: bool = setting(
        False, "Measure every pair of ranks by itself, to find the one bad link.", neutral=False
    )

    purpose: str = setting(
        "measure",
        "Whether to measure, or only to hear from NCCL what it chose.",
        choices=("measure", "listen"),
        neutral="measure",
        internal=True,
    )

    def collectives(self) -> tuple[str, ...]:
        """The names that are measured, in the catalog's order."""
        known = cards.names("collectives")
        return known if self.collective == ALL else tuple(n for n in known if n in self.collective.split(","))

    def sizes(self) -> tuple[int, ...]:
        """All sizes in bytes, smallest first."""
        found = [self.min_bytes]
        while found[-1] * self.step_factor <= self.max_bytes:
            found.append(found[-1] * self.step_factor)
        return tuple(found)

    def steps(self) -> int:
        """How many sizes a launch measures, over all collectives."""
        return max(1, len(self.collectives()) * len(self.sizes()))

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Refuse unknown collectives, sizes that leave nothing, and types the backend cannot carry."""
        for name in values["collective"].split(","):
            if name != ALL:
                cards.card("collectives", name)
        if values["max_bytes"] < values["min_bytes"]:
            raise BadInput(f"max_bytes {values['max_bytes']} is below min_bytes {values['min_bytes']}")
        if values["world_size"] < 2:
            raise BadInput("a collective needs two ranks or more; --world-size 2 is the least")
        if values["dtype"] == "bfloat16" and values["backend"] == "gloo" and values["device"] == "cuda":
            raise CannotRun("gloo carries no bfloat16 between GPUs; use --backend nccl")
