"""Step model: what a step consists of, and what levers are expected to do to it.

A lever shortens or lengthens parts of a step. What that gives for the whole step follows from the shares of
those parts (Amdahl's law), so the facts of a launch order the levers: shorter products give nothing where the
host is the limit, and more loader processes give nothing where nobody waits for input.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from scalescope.catalog.setting import Part

# What a step is assumed to be where nothing says otherwise, as shares of the device's work.
_DEVICE: tuple[Part, ...] = ("products", "convolutions", "kernels", "optimizer")
_PRODUCTS, _OPTIMIZER = 0.6, 0.06
_BUSY = 0.9  # of the compute: a device that works less waits for the host
_HIDDEN_HOST = 0.3  # of the compute: the host's work that hides behind it
_HIDDEN_LOADING = 0.5  # of the compute, per process: loading that nobody waits for


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """The parts of a step as shares of some step.

    `products`, `convolutions`, `kernels` and `optimizer` are the device's work, one after the other; `host`
    runs beside it, and the longer of both counts. `prepare` is what one process takes to prepare the batches
    of a step: the rank itself if there are no `processes`, which otherwise work beside it. Of the former only
    what is exposed counts: the GPU may be busy meanwhile; `hidden_prepare` is the rest of it. A process takes
    `process_prepare` instead, where that is known: the rank has more threads. `copy` and `communication` are
    exposed. `rest` is what no lever changes: waits of the script's own, for instance.
    """

    times: Mapping[Part, float]
    processes: int = 0
    hidden_prepare: float = 0.0
    process_prepare: float | None = None
    rest: float = 0.0

    @property
    def device(self) -> float:
        return sum(self.times.get(part, 0.0) for part in _DEVICE)

    @property
    def step(self) -> float:
        beside = self.times["host"] + (0.0 if self.processes else self.hidden_prepare)
        compute = max(self.device, beside) + self.times["copy"]
        prepare = self.times["prepare"]
        waiting = max(0.0, prepare / self.processes - compute) if self.processes else prepare
        return max(1e-9, compute + waiting + self.times["communication"] + self.rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverEffect:
    """What a lever does to parts of a step: their time after ÷ before; and what else in company of others."""

    factors: Mapping[Part, float] = field(default_factory=dict)
    company: frozenset[str] = frozenset()  # any of these levers brings `together` about
    together: Mapping[Part, float] = field(default_factory=dict)
    processes: int | None = None  # that prepare batches from then on

    def among(self, levers: Iterable[str]) -> dict[Part, float]:
        """The factors in this company."""
        factors = dict(self.factors)
        if "products" in factors:
            factors.setdefault("convolutions", factors["products"])
        if self.company.intersection(levers):
            together = {"convolutions": self.together.get("products", 1.0), **self.together}
            for part, factor in together.items():
                factors[part] = factors.get(part, 1.0) * factor
        return factors


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """What is known of steps, and the effects of levers by their names.

    `parts_of` gives the parts of a set's step if its launches showed them, as those of `launched` may have.
    """

    parts_of: Callable[[frozenset[str]], StepParts | None]
    effects: Mapping[str, LeverEffect] = field(default_factory=dict)
    launched: Collection[frozenset[str]] = ()

    def gain(self, levers: frozenset[str], base: frozenset[str] = frozenset()) -> float:
        """The logarithm of the speedup that levers are expected to give in place of others."""
        before = self._parts(base)
        return math.log(before.step / self._changed(before, levers, base).step)

    def knows_effect(self, levers: Iterable[str]) -> bool:
        """Whether what levers do comes from cards, and not from facts of the step."""
        return any(self.effects[lever].factors for lever in levers if lever in self.effects)

    def _parts(self, levers: frozenset[str]) -> StepParts:
        """As its launches showed them, or else from those of the set that differs in fewest levers."""
        nearest = sorted(self.launched, key=lambda other: (len(levers ^ other), sorted(other)))
        for other in (levers, *nearest, frozenset()):
            shown = self.parts_of(other)
            if shown is not None:
                return self._changed(shown, levers, other)
        return self._changed(parts_of_step(), levers, frozenset())

    def _changed(self, parts: StepParts, levers: frozenset[str], base: frozenset[str]) -> StepParts:
        """The parts of a step with some levers, from those with others."""
        before, after = self._factors(base), self._factors(levers)
        times = {
            part: time * after.get(part, 1.0) / before.get(part, 1.0) for part, time in parts.times.items()
        }
        added = (self.effects[lever].processes for lever in levers - base if lever in self.effects)
        processes = next((count for count in added if count is not None), parts.processes)
        if not processes or parts.processes:
            return dataclasses.replace(parts, times=times, processes=processes)
        by_rank = times["prepare"] + parts.hidden_prepare
        times["prepare"] = max(by_rank, parts.process_prepare or 0.0)  # a thread is no faster than many
        return StepParts(times=times, processes=processes, rest=parts.rest)

    def _factors(self, levers: frozenset[str]) -> dict[Part, float]:
        factors: dict[Part, float] = {}
        for lever in levers & self.effects.keys():
            for part, factor in self.effects[lever].among(levers - {lever}).items():
                factors[part] = factors.get(part, 1.0) * factor
        return factors


def parts_of_step(
    *,
    input_share: float = 0.0,
    copy_share: float = 0.0,
    communication_share: float = 0.0,
    busy_share: float | None = None,
    products_share: float | None = None,
    convolution_share: float = 0.0,
    optimizer_share: float | None = None,
    prepare_share: float | None = None,
    process_share: float | None = None,
    processes: int = 0,
) -> StepParts:
    """The parts of a step from what its launch showed: shares of the step, None where that is unknown.

    `busy_share` is how much of it the GPU computed; what is neither that nor input, copies or communication
    is the host's. `products_share` and `optimizer_share` are parts of the device's work, `convolution_share`
    of the products.
    """
    compute = max(0.0, 1.0 - input_share - copy_share - communication_share)
    device = compute if busy_share is None else min(compute, busy_share)
    optimizer = _OPTIMIZER if optimizer_share is None else optimizer_share
    products = min(1.0 - optimizer, _PRODUCTS if products_share is None else products_share)
    hidden = 0.0 if processes else max(0.0, (prepare_share or 0.0) - input_share)
    if prepare_share is None and processes:
        prepare_share = processes * (1.0 if input_share > 0.0 else _HIDDEN_LOADING * compute)
    times: dict[Part, float] = {
        "products": products * (1.0 - convolution_share) * device,
        "convolutions": products * convolution_share * device,
        "kernels": (1.0 - products - optimizer) * device,
        "optimizer": optimizer * device,
        "host": compute if device < _BUSY * compute else _HIDDEN_HOST * compute,
        "prepare": input_share if not processes or prepare_share is None else prepare_share,
        "copy": copy_share,
        "communication": communication_share,
    }
    return StepParts(times=times, processes=processes, hidden_prepare=hidden, process_prepare=process_share)
