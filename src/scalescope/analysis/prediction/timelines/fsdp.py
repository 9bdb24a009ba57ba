"""The timeline of FSDP2: units are gathered before they compute, gradients reduced after."""

import dataclasses

from scalescope.analysis.prediction.network import CollectiveTimes
from scalescope.analysis.prediction.profile import RankProfile, Unit
from scalescope.analysis.prediction.setup import Setup
from scalescope.analysis.prediction.timeline import Fitted, StepTimeline
from scalescope.analysis.prediction.timelines.exchanges import Sent, SetupCollectives
from scalescope.analysis.prediction.timelines.lanes import Lanes, covered, expected_maximum, slowdown
from scalescope.analysis.prediction.timelines.units import fitted_units, remainder

# On a GPU collectives run on streams of their own; on a CPU fully_shard waits for each of them.
_BLOCKING = ("gloo",)


def simulate_fsdp(profile: RankProfile, times: CollectiveTimes, setup: Setup, fitted: Fitted) -> StepTimeline:
    """One step of a model whose units are gathered one ahead; each rank updates its share."""
    slower = slowdown(fitted, setup.world_size)
    line = Lanes()
    line.compute("input", profile.input_s)
    step = _ShardedStep(line, SetupCollectives(times, setup), setup, fitted)
    units = _with_root(profile)
    for number in range(setup.accumulation_steps):
        step.forward(units, slower)
        step.backward(units, slower, reduces=number == setup.accumulation_steps - 1)
    line.compute("optimizer", profile.optimizer_s * slower / setup.world_size)
    line.compute("rest", profile.rest_s)
    return line.finished(line.computed_s * profile.spread * expected_maximum(setup.world_size))


def _with_root(profile: RankProfile) -> tuple[Unit, ...]:
    """Units in the order in which they are gathered; the root, first, has what is in none of them."""
    units = fitted_units(profile)
    root = remainder(profile, units)
    if root.parameter_bytes or not units:
        return (root, *units)
    *before, last = units  # what computes without parameters is the loss
    last = dataclasses.replace(
        last,
        forward_s=last.forward_s + root.forward_s,
        backward_s=last.backward_s + root.backward_s,
    )
    return (dataclasses.replace(root, forward_s=0.0, backward_s=0.0), *before, last)


class _ShardedStep:
    """Forward and backward passes that wait for their units; collectives run in turn, in order."""

    def __init__(self, line: Lanes, collectives: SetupCollectives, setup: Setup, fitted: Fitted) -> None:
        self._line = line
        self._collectives = collectives
        self._blocking = setup.backend in _BLOCKING
        self._reshards = setup.reshard_after_forward
        self._gathered_share = 0.5 if setup.fsdp_param_dtype == "bf16" else 1.0
        self._kappa = fitted.overlap_slowdown or 0.0
        self._free_s = 0.0
        self._recent: list[Sent] = []

    def forward(self, units: tuple[Unit, ...], slower: float) -> None:
        """The next unit is gathered while one computes; the first is waited for."""
        gathered_s = self._gather(units[0])
        for number, unit in enumerate(units):
            self._line.wait_until(gathered_s)
            if number + 1 < len(units):
                gathered_s = self._gather(units[number + 1])
            self._compute("forward", unit.forward_s * slower)

    def backward(self, units: tuple[Unit, ...], slower: float, reduces: bool) -> None:
        """The unit before is gathered, and the one behind reduced, while one computes."""
        again = [self._gathers_again(number) for number in range(len(units))]
        last = len(units) - 1
        root_s = self._gather(units[0]) if again[0] else 0.0  # it is needed first, and until the end
        gathered_s = self._gather(units[last]) if last and again[last] else 0.0
        self._line.wait_until(root_s)
        reduced_s = 0.0
        for number in range(last, -1, -1):
            self._line.wait_until(gathered_s)
            gathered_s = self._gather(units[number - 1]) if number > 1 and again[number - 1] else 0.0
            self._compute("backward", units[number].backward_s * slower)
            self._line.wait_until(reduced_s)  # its memory is used again
            reduced_s = self._reduce(units[number]) if reduces else 0.0
        self._line.wait_until(reduced_s)

    def _gathers_again(self, number: int) -> bool:
        return number > 0 if self._reshards is None else self._reshards

    def _gather(self, unit: Unit) -> float:
        return self._start("all_gather", unit.parameter_bytes * self._gathered_share)

    def _reduce(self, unit: Unit) -> float:
        return self._start("reduce_scatter", unit.parameter_bytes)

    def _start(self, name: str, size_bytes: float) -> float:
        """When a collective that is started now will have ended."""
        if not size_bytes:
            return 0.0
        exchange = self._collectives.exchange(name, size_bytes, self._line.now_s)
        begin_s = max(self._line.now_s, self._free_s)
        self._free_s = begin_s + exchange.time.time_s
        sent = Sent(exchange, begin_s, self._free_s)
        self._line.show(sent)
        self._recent = [*self._recent[-1:], sent]
        if self._blocking:
            self._line.wait_until(self._free_s)
        return self._free_s

    def _compute(self, name: str, time_s: float) -> None:
        now_s = self._line.now_s
        spans = [(item.begin_s, item.end_s) for item in self._recent]
        self._line.compute(name, time_s + self._kappa * covered(spans, now_s, now_s + time_s))
