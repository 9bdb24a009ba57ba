"""Card of the communication benchmark: which collectives, at which sizes, for how long."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from scalescope.catalog.collectives import COLLECTIVES, collective_named
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

LEAST_PAIR_ITERATIONS = 10  # fewer make a link look slow by chance
NCCL_LOG = "nccl_log"  # an untimed launch in which NCCL logs what it chooses


@dataclass(frozen=True, slots=True, kw_only=True)
class Comm:
    """Collectives by themselves: time against size, checked for correctness."""

    heading = "Communication"
    selects = ()
    takes_commands = False
    measures = "collectives"
    measures_by_purpose: ClassVar[Mapping[str | None, str]] = {}
    launch_figure: ClassVar[str | None] = "bus bandwidth"
    oom_is_result = False
    measures_time = True
    optional_purposes: ClassVar[tuple[str, ...]] = ()
    lists_failures_as_training = False

    collective: str = setting(
        ALL,
        "Collectives to measure, separated by commas; all measures every one.",
        sweep=False,
        common="Collectives",
        brief="all_reduce, all_gather ...",
    )
    min_bytes: int = setting(
        8, "Smallest size.", kind="bytes", low=1, high=2**40, aliases=("-b",), common="Collectives"
    )
    max_bytes: int = setting(
        PerDevice(cpu=64 << 20, cuda=1 << 30),
        "Largest size.",
        kind="bytes",
        low=1,
        high=2**40,
        aliases=("-e",),
        common="Collectives",
    )
    step_factor: int = setting(2, "Factor from each size to the next.", low=2, high=1024, aliases=("-f",))
    iters: int | None = setting(
        None,
        "Iterations per size; auto fits as many as possible into time_per_size. Pairs get at least 10.",
        low=1,
        high=1_000_000,
        none_word="auto",
        aliases=("-n",),
        common="Collectives",
    )
    warmup: int = setting(5, "Maximum number of warm-up iterations.", low=1, high=100_000, aliases=("-w",))
    time_per_size: float = setting(
        0.2,
        "Time per size if iters is auto; all ranks use the same number of iterations.",
        kind="duration",
        low=0.001,
    )
    dtype: str = setting(
        "float32", "Element type; a list measures each.", choices=tuple(DTYPE_BYTES), common="Collectives"
    )
    in_place: bool | None = setting(
        None,
        "Measure only in place or only out of place; the default is both, if torch offers both.",
        opposite="--out-of-place",
    )
    pairs: bool = setting(
        False,
        "Measure each pair of ranks in a node and each pair of nodes separately, to find a slow link.",
        common="Collectives",
        brief="Measure each pair of ranks, to find a slow link.",
    )

    longest_exchange: float | None = setting(
        None,
        "Skip all sizes after the first one that takes longer than this.",
        kind="duration",
        low=0.001,
        internal=True,
    )
    purpose: str = setting(
        "measure",
        "Measure, or only log what NCCL chose.",
        choices=("measure", NCCL_LOG),
        internal=True,
    )

    def collectives(self) -> tuple[str, ...]:
        """The names that are measured, in the catalog's order."""
        known, wanted = tuple(COLLECTIVES), self.collective.split(",")
        return known if ALL in wanted else tuple(name for name in known if name in wanted)

    def sizes(self) -> tuple[int, ...]:
        """All sizes in bytes, smallest first."""
        return _sizes(self.min_bytes, self.max_bytes, self.step_factor)

    def steps(self) -> int:
        """How many sizes a launch measures, over all collectives."""
        chosen = [collective_named(name) for name in self.collectives()]
        return sum(len(self.sizes()) if card.has_data else 1 for card in chosen)

    @staticmethod
    def warmup_iterations(settings: Mapping[str, Any]) -> int | None:
        """Iterations before the measured ones."""
        return settings.get("warmup")

    @staticmethod
    def measured_iterations(settings: Mapping[str, Any]) -> int | None:
        """Iterations at each size; None where the time decides."""
        return settings.get("iters")

    @staticmethod
    def check(values: Mapping[str, Any]) -> None:
        """Refuse unknown collectives, sizes that leave nothing, and types the backend cannot carry."""
        _check_offered(values["collective"].split(","), values["in_place"])
        if values["max_bytes"] < values["min_bytes"]:
            raise BadInput(f"max_bytes {values['max_bytes']} is below min_bytes {values['min_bytes']}")
        if values["world_size"] < 2:
            raise BadInput("collectives require at least 2 ranks; use --world-size 2 or more")
        _check_largest(values)
        if values["backend"] == "gloo" and values["device"] == "cuda":
            raise CannotRun(
                "gloo does not support all collectives on GPUs; use --backend nccl, or add --device cpu"
            )


def check_collectives(names: list[str]) -> None:
    """Refuse collectives that do not exist."""
    for name in names:
        if name != ALL:
            collective_named(name)


def _check_offered(names: list[str], in_place: bool | None) -> None:
    """Refuse what is unknown, or offered by torch only the other way."""
    check_collectives(names)
    chosen = [collective_named(name) for name in names if name != ALL]
    if in_place is None or ALL in names or any(in_place in card.in_place for card in chosen):
        return
    other, asked = ("out of place", "--in-place") if in_place else ("in place", "--out-of-place")
    raise BadInput(f"{asked} cannot be used with {', '.join(names)}, which torch offers only {other}")


def _check_largest(values: Mapping[str, Any]) -> None:
    """Refuse sizes if even the largest is smaller than one element, or one element per rank."""
    largest = _sizes(values["min_bytes"], values["max_bytes"], values["step_factor"])[-1]
    names = values["collective"].split(",")
    shared = ALL not in names and all(collective_named(name).shares_array for name in names)
    if largest < DTYPE_BYTES[values["dtype"]] * (values["world_size"] if shared else 1):
        part = " per rank" if shared else ""
        raise BadInput(
            f"the largest size, {largest} bytes, is smaller than one {values['dtype']} element{part}"
        )


def _sizes(least: int, most: int, factor: int) -> tuple[int, ...]:
    sizes = [least]
    while sizes[-1] * factor <= most:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)
