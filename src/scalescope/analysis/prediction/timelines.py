"""What happens when in a step of data parallel ranks: compute, exchanges, and what waits for what."""

import dataclasses
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from scalescope.analysis.prediction.collective_times import CollectiveTime, CollectiveTimes
from scalescope.analysis.prediction.profiles import ExchangedBucket, RankProfile, Unit, buckets_of
from scalescope.analysis.prediction.setup import Fitted, Lane, Setup, StepTimeline, TimelineEvent

# ---- Units: the parts of a model with their times made to sum up to those of the whole step


def fitted_units(profile: RankProfile) -> tuple[Unit, ...]:
    """The profile's units, shortened alike where timing each of them took longer than the whole pass."""
    forward = _at_most(profile.forward_s, sum(unit.forward_s for unit in profile.units))
    backward = _at_most(profile.backward_s, sum(unit.backward_s for unit in profile.units))
    return tuple(
        dataclasses.replace(unit, forward_s=unit.forward_s * forward, backward_s=unit.backward_s * backward)
        for unit in profile.units
    )


def remainder(profile: RankProfile, units: tuple[Unit, ...]) -> Unit:
    """What the model has and does outside its units; of no length where they are all of it."""
    return Unit(
        name="remainder",
        parameter_bytes=max(0, profile.gradient_bytes - sum(unit.parameter_bytes for unit in units)),
        forward_s=_rest(profile.forward_s, sum(unit.forward_s for unit in units)),
        backward_s=_rest(profile.backward_s, sum(unit.backward_s for unit in units)),
    )


def _at_most(whole_s: float, sum_s: float) -> float:
    return whole_s / sum_s if sum_s > whole_s else 1.0


def _rest(whole_s: float, sum_s: float) -> float:
    rest_s = whole_s - sum_s
    return rest_s if rest_s > 1e-9 * whole_s else 0.0


# ---- Exchanges: when transfers that wait for each other, or share a link, begin and end


_AT_ONCE = {"gloo": 2}  # exchanges that a backend runs side by side; NCCL runs one
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective that can begin once its data is ready."""

    name: str
    size_bytes: int
    ready_s: float
    time: CollectiveTime


@dataclass(frozen=True, slots=True)
class Sent:
    """An exchange with its begin and end."""

    exchange: Exchange
    begin_s: float
    end_s: float


class SetupCollectives:
    """The times of collectives among all ranks of a setup."""

    def __init__(self, times: CollectiveTimes, setup: Setup) -> None:
        self._times = times
        self._setup = setup

    def exchange(self, name: str, size_bytes: float, ready_s: float = 0.0) -> Exchange:
        size = int(size_bytes)
        time = self._times.time_of(name, size, self._setup.world_size, self._setup.layout)
        return Exchange(name, size, ready_s, time)


def scheduled(exchanges: Sequence[Exchange], backend: str) -> tuple[Sent, ...]:
    """Exchanges in their order; those that run side by side share the link, but not their latency."""
    return _shared(exchanges, _AT_ONCE[backend]) if backend in _AT_ONCE else _in_turn(exchanges)


def _in_turn(exchanges: Sequence[Exchange]) -> tuple[Sent, ...]:
    sent: list[Sent] = []
    free_s = 0.0
    for exchange in exchanges:
        begin_s = max(exchange.ready_s, free_s)
        free_s = begin_s + exchange.time.time_s
        sent.append(Sent(exchange, begin_s, free_s))
    return tuple(sent)


@dataclass(slots=True)
class _Running:
    number: int
    begin_s: float
    latency_s: float  # that is left
    transfer_s: float  # that is left, at the whole rate of the link


def _shared(exchanges: Sequence[Exchange], at_once: int) -> tuple[Sent, ...]:
    sent: dict[int, Sent] = {}
    running: list[_Running] = []
    now_s, next_number = 0.0, 0
    while len(sent) < len(exchanges):
        while next_number < len(exchanges) and len(running) < at_once:
            exchange = exchanges[next_number]
            if exchange.ready_s > now_s:
                break
            latency_s = min(exchange.time.latency_s, exchange.time.time_s)
            running.append(_Running(next_number, now_s, latency_s, exchange.time.time_s - latency_s))
            next_number += 1
        may_begin = next_number < len(exchanges) and len(running) < at_once
        begins_s = exchanges[next_number].ready_s - now_s if may_begin else _NEVER
        passed_s = min([begins_s, *_until_change(running)])
        _advance(running, passed_s)
        now_s += passed_s
        for item in [item for item in running if item.latency_s <= 0.0 and item.transfer_s <= 0.0]:
            running.remove(item)
            sent[item.number] = Sent(exchanges[item.number], item.begin_s, now_s)
    return tuple(sent[number] for number in range(len(exchanges)))


def _until_change(running: Sequence[_Running]) -> list[float]:
    transferring = sum(item.latency_s <= 0.0 for item in running)
    return [item.latency_s if item.latency_s > 0.0 else item.transfer_s * transferring for item in running]


def _advance(running: Sequence[_Running], passed_s: float) -> None:
    transferring = sum(item.latency_s <= 0.0 for item in running)
    for item, left_s in zip(running, _until_change(running), strict=True):
        ends = left_s <= passed_s  # exactly, whatever rounding a subtraction leaves
        if item.latency_s > 0.0:
            item.latency_s = 0.0 if ends else item.latency_s - passed_s
        else:
            item.transfer_s = 0.0 if ends else item.transfer_s - passed_s / transferring


# ---- Lanes: the events of one rank's step, compute on one lane and communication on the other


class Lanes:
    """Puts events on the two lanes, one after the other."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.computed_s = 0.0
        self._exposed_s = 0.0
        self._exchanges = 0
        self._events: list[TimelineEvent] = []
        self._assumptions: dict[str, None] = {}

    def compute(self, name: str, time_s: float) -> None:
        """Compute that nothing else runs beside on its lane."""
        if time_s > 0.0:
            self._add("compute", name, self.now_s, self.now_s + time_s)
            self.now_s += time_s
            self.computed_s += time_s

    def wait_for(self, exchange: Exchange) -> None:
        """An exchange that nothing hides."""
        end_s = self.now_s + exchange.time.time_s
        self.exchange([Sent(exchange, self.now_s, end_s)])

    def exchange(self, sent: Iterable[Sent]) -> None:
        """Exchanges that began earlier; the step goes on when the last has ended."""
        end_s = self.now_s
        for item in sent:
            self.show(item)
            end_s = max(end_s, item.end_s)
        self.wait_until(end_s)

    def show(self, item: Sent) -> None:
        """An exchange that nothing waits for yet."""
        exchange = item.exchange
        self._add(
            "communication", exchange.name, item.begin_s, item.end_s, self._exchanges, exchange.size_bytes
        )
        self._exchanges += 1
        self.note(exchange.time)

    def wait_until(self, time_s: float) -> None:
        """Compute goes on then; what it waits is exposed communication."""
        self._exposed_s += max(0.0, time_s - self.now_s)
        self.now_s = max(self.now_s, time_s)

    def note(self, time: CollectiveTime) -> None:
        self.assume(*time.assumptions)

    def assume(self, *assumptions: str) -> None:
        self._assumptions |= dict.fromkeys(assumptions)

    def finished(self, straggling_s: float) -> StepTimeline:
        """The current step, with what the slowest rank adds."""
        return StepTimeline(
            events=tuple(self._events),
            step_s=self.now_s + straggling_s,
            exposed_s=self._exposed_s,
            straggling_s=straggling_s,
            assumptions=tuple(self._assumptions),
        )

    def _add(
        self,
        lane: Lane,
        name: str,
        begin_s: float,
        end_s: float,
        bucket: int | None = None,
        size_bytes: int | None = None,
    ) -> None:
        self._events.append(
            TimelineEvent(
                lane=lane, name=name, begin_s=begin_s, end_s=end_s, bucket=bucket, size_bytes=size_bytes
            )
        )


def covered(spans: Sequence[tuple[float, float]], low_s: float, high_s: float) -> float:
    """How much of [low, high] any of the spans covers."""
    covered_s, reached_s = 0.0, low_s
    for begin_s, end_s in sorted(spans):
        begin_s, end_s = max(begin_s, reached_s), min(end_s, high_s)
        if end_s > begin_s:
            covered_s += end_s - begin_s
            reached_s = end_s
    return covered_s


def expected_maximum(count: int) -> float:
    """The mean of the largest of n standard normal values (Blom's approximation)."""
    return 0.0 if count < 2 else NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def slowdown(fitted: Fitted, ranks: int) -> float:
    """Compute on this many ranks ÷ compute on one; 1 where that was not measured."""
    return fitted.contention.get(ranks, 1.0)


# ---- The timeline of a data-parallel step: buckets are exchanged while the backward pass goes on


_SHORTEST_S = 1e-12
_NOT_HIDDEN = 0.5  # of such work: an exchange sums what has arrived while the rest arrives
_PASSES = 2  # until the shares of exchanges in the backward pass change little
HALVES = ("fp16", "bf16")  # hooks that send gradients in 16 bits


def simulate_data_parallel(
    profile: RankProfile, times: CollectiveTimes, setup: Setup, fitted: Fitted
) -> StepTimeline:
    """One step of DDP on this many ranks."""
    line = Lanes()
    add_averaged_gradients(line, profile, times, setup, fitted)
    line.compute("optimizer", profile.optimizer_s * slowdown(fitted, setup.world_size))
    line.compute("rest", profile.rest_s)
    return line.finished(line.computed_s * profile.spread * expected_maximum(setup.world_size))


def add_averaged_gradients(
    line: Lanes, profile: RankProfile, times: CollectiveTimes, setup: Setup, fitted: Fitted
) -> None:
    """Everything before the optimizer: input, forward and backward, with the exchange of gradients."""
    ranks = setup.world_size
    slower = slowdown(fitted, ranks)
    collectives = SetupCollectives(times, setup)
    line.compute("input", profile.input_s)
    for _ in range(setup.accumulation_steps - 1):
        line.compute("forward", profile.forward_s * slower)
        line.compute("backward", profile.backward_s * slower)
    if ranks > 1 and profile.buffer_bytes and setup.broadcast_buffers:
        line.wait_for(collectives.exchange("broadcast", profile.buffer_bytes))
    line.compute("forward", profile.forward_s * slower)
    buckets = buckets_of(profile.gradients, setup.bucket_cap_mb) if ranks > 1 else ()
    exchange = _BucketExchange(buckets, collectives, setup, fitted, line.now_s)
    sent, backward_s = _overlapped(exchange, slower, profile.backward_s * slower)
    line.compute("backward", backward_s)
    line.exchange(sent)


class _BucketExchange:
    """The exchange of buckets during a backward pass that began at some time."""

    def __init__(
        self,
        buckets: Sequence[ExchangedBucket],
        collectives: SetupCollectives,
        setup: Setup,
        fitted: Fitted,
        began_s: float,
    ) -> None:
        has_hook = setup.comm_hook in HALVES
        share = 0.5 if has_hook else 1.0
        self._hook_s = (fitted.hook_s or 0.0) if has_hook else 0.0
        # Sums and conversions in 16 bits are work of the rank: they take longer beside compute, and slow it.
        self._work_s_per_byte = fitted.conversion_s_per_byte(setup.comm_hook)
        overlapping = 1.0 - (fitted.shared_latency or 0.0)
        all_reduces = [collectives.exchange("all_reduce", bucket.size_bytes * share) for bucket in buckets]
        self._latencies_s = {item.size_bytes: item.time.latency_s for item in all_reduces}
        self._exchanges = [
            _longer(
                _with_latency(all_reduce, overlapping),
                self._hook_s + _NOT_HIDDEN * self._work_s_per_byte * all_reduce.size_bytes,
            )
            for all_reduce in all_reduces
        ]
        self._buckets = buckets
        self._backend = setup.backend
        self._fitted = fitted
        self.began_s = began_s

    def sent(self, slower: float, backward_s: float) -> tuple[Sent, ...]:
        """When each runs in a backward pass of this length, as a multiple of the profile's.

        Exchanges take longer while ranks compute: by as much of that as lies in the backward pass.
        """
        shares = [1.0] * len(self._buckets)
        sent = self._scheduled(slower, shares)
        for _ in range(_PASSES):
            shares = [self._overlap(item, backward_s) for item in sent]
            sent = self._scheduled(slower, shares)
        return sent

    def _overlap(self, item: Sent, backward_s: float) -> float:
        """The share of an exchange that lies in the backward pass."""
        overlap_s = min(item.end_s, self.began_s + backward_s) - item.begin_s
        return max(0.0, overlap_s) / max(item.end_s - item.begin_s, _SHORTEST_S)

    def _scheduled(self, slower: float, shares: Sequence[float]) -> tuple[Sent, ...]:
        exchanges = []
        for item, bucket, share in zip(self._exchanges, self._buckets, shares, strict=True):
            ready = dataclasses.replace(item, ready_s=self.began_s + bucket.ready_s * slower)
            exchanges.append(_longer(ready, share * self._busy_s(item)))
        return scheduled(exchanges, self._backend)

    def _busy_s(self, exchange: Exchange) -> float:
        """What an exchange takes longer while the rank computes."""
        per_byte = (self._fitted.busy_s_per_byte or 0.0) + self._work_s_per_byte
        latency = self._fitted.busy_latency or 0.0
        return per_byte * exchange.size_bytes + latency * self._latencies_s[exchange.size_bytes]

    def lost_compute_s(self, sent: Sequence[Sent], backward_s: float) -> float:
        """By how much the backward pass is longer because of what is exchanged meanwhile."""
        ends_s = self.began_s + backward_s
        kappa = self._fitted.overlap_slowdown or 0.0
        per_byte = (self._fitted.compute_s_per_byte or 0.0) + self._work_s_per_byte
        busy_s = covered([(item.begin_s, item.end_s) for item in sent], self.began_s, ends_s)
        exchanged_bytes = sum(item.exchange.size_bytes * self._overlap(item, backward_s) for item in sent)
        hooks_s = self._hook_s * sum(self._overlap(item, backward_s) for item in sent)
        return kappa * busy_s + per_byte * exchanged_bytes + hooks_s


def _with_latency(exchange: Exchange, share: float) -> Exchange:
    """An exchange that leaves the link, and the cores, to others for that share of its latency."""
    time = dataclasses.replace(exchange.time, latency_s=exchange.time.latency_s * share)
    return dataclasses.replace(exchange, time=time)


def _longer(exchange: Exchange, added_s: float) -> Exchange:
    """An exchange that takes longer, but does not occupy the link meanwhile."""
    added_s = max(added_s, -exchange.time.latency_s)
    time = dataclasses.replace(
        exchange.time,
        time_s=exchange.time.time_s + added_s,
        latency_s=exchange.time.latency_s + added_s,
    )
    return dataclasses.replace(exchange, time=time)


def _overlapped(
    exchange: _BucketExchange, slower: float, backward_s: float
) -> tuple[tuple[Sent, ...], float]:
    """When each exchange runs, and how long the backward pass takes while they do."""
    sent = exchange.sent(slower, backward_s)
    lost_s = exchange.lost_compute_s(sent, backward_s)
    if not lost_s:
        return sent, backward_s
    stretched_s = backward_s + lost_s
    return exchange.sent(slower * stretched_s / backward_s, stretched_s), stretched_s


# ---- The timeline of ZeRO-1: DDP's exchange of gradients, then each rank updates and sends its parameters


def simulate_zero1(
    profile: RankProfile, times: CollectiveTimes, setup: Setup, fitted: Fitted
) -> StepTimeline:
    """One step of DDP with PyTorch's ZeroRedundancyOptimizer, which broadcasts parameter by parameter."""
    line = Lanes()
    add_averaged_gradients(line, profile, times, setup, fitted)
    sizes = [gradient.size_bytes for gradient in profile.gradients]
    share = largest_share(sizes, setup.world_size)
    line.compute("optimizer", profile.optimizer_s * share * slowdown(fitted, setup.world_size))
    collectives = SetupCollectives(times, setup)
    updated = [collectives.exchange("broadcast", size, line.now_s) for size in sizes]
    line.exchange(scheduled(updated, setup.backend))
    line.compute("rest", profile.rest_s)
    return line.finished(line.computed_s * profile.spread * expected_maximum(setup.world_size))


def largest_share(sizes: list[int], ranks: int) -> float:
    """The part of all parameters that the busiest rank updates: the largest go to the emptiest rank first."""
    if not sum(sizes):
        return 1.0 / ranks
    held = [0] * ranks
    for size in sorted(sizes, reverse=True):
        heapq.heapreplace(held, held[0] + size)
    return max(held) / sum(sizes)


# ---- The timeline of FSDP2: units are gathered before they compute, gradients reduced after


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
