"""The timeline of a data-parallel step: buckets are exchanged while the backward pass goes on."""

import dataclasses
from collections.abc import Sequence

from scalescope.analysis.prediction.buckets import ExchangedBucket, buckets_of
from scalescope.analysis.prediction.network import CollectiveTimes
from scalescope.analysis.prediction.profile import RankProfile
from scalescope.analysis.prediction.setup import Setup
from scalescope.analysis.prediction.timeline import Fitted, StepTimeline
from scalescope.analysis.prediction.timelines.exchanges import Exchange, Sent, SetupCollectives, scheduled
from scalescope.analysis.prediction.timelines.lanes import Lanes, covered, expected_maximum, slowdown

_SHORTEST_S = 1e-12
_NOT_HIDDEN = 0.5  # of such work: an exchange sums what has arrived while the rest arrives
_PASSES = 2  # until the shares of exchanges in the backward pass change little
HALVES = ("fp16", "bf16")  # hooks that send gradients in 16 bits


def simulate_data_parallel(
    profile: RankProfile, times: CollectiveTimes, setup: Setup, fitted: Fitted
) -> StepTimeline:
    """One step of DDP on so many ranks."""
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
        """When each runs in a backward pass that takes so long, so many times the profile's.

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
    """An exchange of which that share of its latency leaves the link, and the cores, to others."""
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
