"""Step model: what a step consists of, and what levers are expected to do to it.

A lever shortens or lengthens parts of a step. What that gives for the whole step follows from the shares of
those parts (Amdahl's law), so the facts of a baseline order the levers: shorter products give nothing where
the host is the limit, and more loader processes give nothing where nobody waits for input.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from scalescope.catalog.setting import Part

_DEVICE_PARTS: tuple[Part, ...] = ("products", "kernels", "optimizer")
_RELATIVE_DOUBT = 0.5  # of an expected gain
_LEAST_DOUBT = 0.1  # of the share that a lever changes, where it is expected to change nothing
_REPLACING_DOUBT = 0.1  # of the gain of a value that another one replaces

_NEARLY = 0.8  # of the longer part: either of host and device may be the limit
_NO_PARTS: dict[Part, float] = {
    "products": 0.0,
    "kernels": 0.0,
    "optimizer": 0.0,
    "host": 0.0,
    "load": 0.0,
    "communication": 0.0,
}

Factors = Mapping[Part, float]


@dataclass(frozen=True, slots=True)
class Gain:
    """The logarithm of a speedup, as expected: its mean and its standard deviation."""

    mean: float
    deviation: float

    def given(self, value: float, error: float) -> "Gain":
        """What is expected after a measurement of it, with its standard error."""
        if self.deviation == 0.0 or error == 0.0:
            return Gain(value if error == 0.0 else self.mean, 0.0)
        weight = self.deviation**2 / (self.deviation**2 + error**2)
        return Gain(self.mean + weight * (value - self.mean), error * math.sqrt(weight))

    def improvement(self, least: float = 0.0) -> float:
        """The expected value of what exceeds `least`, and of nothing where it does not."""
        if self.deviation == 0.0:
            return max(0.0, self.mean - least)
        z = (self.mean - least) / self.deviation
        density = math.exp(-z * z / 2.0) / math.sqrt(2.0 * math.pi)
        probability = 0.5 * math.erfc(-z / math.sqrt(2.0))
        return (self.mean - least) * probability + self.deviation * density


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverEffect:
    """What a lever does to parts of a step: their time after ÷ before; and what else in company of others."""

    factors: Factors = field(default_factory=dict)
    company: frozenset[str] = frozenset()  # levers of which any brings `together` about
    together: Factors = field(default_factory=dict)

    def among(self, levers: Iterable[str]) -> dict[Part, float]:
        """The factors in this company."""
        factors = dict(self.factors)
        if self.company.intersection(levers):
            for part, factor in self.together.items():
                factors[part] = factors.get(part, 1.0) * factor
        return factors


Parts = Mapping[Part, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """What is known of steps, and the effects of levers by their names.

    `parts_of` gives the parts of a combination's step as shares of it, where its launches showed them; those
    of the baseline are known. `products`, `kernels` and `optimizer` are the device's work, one after the
    other; `host` runs beside it, and the longer of both counts; `load` runs beside both. `communication` is
    what is exposed of it.
    """

    parts_of: Callable[[frozenset[str]], Parts | None]
    effects: Mapping[str, LeverEffect] = field(default_factory=dict)

    def gain(
        self, levers: frozenset[str], base: frozenset[str] = frozenset(), host: float | None = None
    ) -> Gain:
        """What levers are expected to give in place of others.

        `host` is the host's share of the base's step, where other launches showed it.
        """
        before = self._parts(base)
        if host is not None:
            before["host"] = max(host, before["host"])
        after = self._changed(before, levers, base)
        mean = math.log(_step(before) / _step(after))
        attacked = _share(before, self._touched(levers - base, levers))
        doubt = max(_RELATIVE_DOUBT * abs(mean), _LEAST_DOUBT * attacked)
        if base - levers:  # another value of a setting: both are uncertain
            kept = self._changed(before, base & levers, base)
            doubt += _REPLACING_DOUBT * abs(math.log(_step(kept) / _step(before)))
        return Gain(mean, doubt)

    def host_share(self, levers: frozenset[str], base: frozenset[str], ratio: float) -> float | None:
        """The host's share of the base's step, by a launch with more levers whose limit was the host.

        `ratio` is the step of that launch ÷ the step of the base; None where the host was not its limit.
        """
        parts = self.parts_of(levers)
        if parts is None or parts["host"] < _compute(parts) or parts["host"] <= _device(parts):
            return None
        return parts["host"] * ratio * self._factors(base)["host"] / self._factors(levers)["host"]

    def _parts(self, levers: frozenset[str]) -> dict[Part, float]:
        shown = self.parts_of(levers)
        if shown is not None:
            return {**_NO_PARTS, **shown}
        baseline = {**_NO_PARTS, **(self.parts_of(frozenset()) or parts_of_step())}
        return self._changed(baseline, levers, frozenset())

    def _changed(self, parts: Parts, levers: frozenset[str], base: frozenset[str]) -> dict[Part, float]:
        """Parts of a step with some levers, from those with others."""
        before, after = self._factors(base), self._factors(levers)
        return {part: time * after[part] / before[part] for part, time in parts.items()}

    def _factors(self, levers: frozenset[str]) -> dict[Part, float]:
        factors: dict[Part, float] = dict.fromkeys(_NO_PARTS, 1.0)
        for lever in levers & self.effects.keys():
            for part, factor in self.effects[lever].among(levers - {lever}).items():
                factors[part] *= factor
        return factors

    def _touched(self, added: frozenset[str], levers: frozenset[str]) -> set[Part]:
        """The parts that levers change; all of them where nobody knows."""
        if not added <= self.effects.keys():
            return set(_NO_PARTS)
        return {part for lever in added for part in self.effects[lever].among(levers)}


def _share(parts: Parts, touched: set[Part]) -> float:
    """The share of a step that changes with some parts of it."""
    step, compute = _step(parts), _compute(parts)
    device = _device(parts)
    share = parts["communication"] if "communication" in touched else 0.0
    if "load" in touched:
        share += max(0.0, parts["load"] - compute)
    if device >= _NEARLY * parts["host"]:
        share += sum(parts[part] for part in _DEVICE_PARTS if part in touched)
    if "host" in touched and parts["host"] >= _NEARLY * device:
        share += parts["host"]
    return min(1.0, share / step)


def _step(parts: Parts) -> float:
    compute = _compute(parts)
    waiting = max(0.0, parts["load"] - compute)
    return max(1e-9, compute + waiting + parts["communication"])


def _device(parts: Parts) -> float:
    return sum(parts[part] for part in _DEVICE_PARTS)


def _compute(parts: Parts) -> float:
    return max(_device(parts), parts["host"])


# What a step is assumed to be where nothing says otherwise, as shares of the device's work.
_PRODUCTS, _OPTIMIZER = 0.6, 0.06
_BUSY = 0.9  # of the compute: a device that works less waits for the host
_HIDDEN_HOST = 0.3  # of the compute: the host's work that hides behind it


def parts_of_step(
    *,
    input_share: float = 0.0,
    communication_share: float = 0.0,
    busy_share: float | None = None,
    products_share: float | None = None,
    optimizer_share: float | None = None,
) -> dict[Part, float]:
    """The parts of a step from what its launch showed: shares of the step, None where that is unknown.

    `busy_share` is how much of it the GPU computed; what is neither that nor input nor communication is the
    host's. `products_share` and `optimizer_share` are parts of the device's work.
    """
    compute = max(0.0, 1.0 - input_share - communication_share)
    device = compute if busy_share is None else min(compute, busy_share)
    optimizer = _OPTIMIZER if optimizer_share is None else optimizer_share
    products = min(1.0 - optimizer, _PRODUCTS if products_share is None else products_share)
    return {
        "products": products * device,
        "kernels": (1.0 - products - optimizer) * device,
        "optimizer": optimizer * device,
        "host": compute if device < _BUSY * compute else _HIDDEN_HOST * compute,
        "load": compute + input_share if input_share > 0.0 else 0.0,
        "communication": communication_share,
    }
