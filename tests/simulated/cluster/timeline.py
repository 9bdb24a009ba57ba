"""Steps of a simulated cluster, event by event: when ranks arrive, transfers run, and who waits.

All ranks have the last transfer's end in common. From there a rank runs the optimizer, which ends its step,
then waits for input, then runs the forward and the backward pass. The backward pass yields one bucket after
the other. The transfer of a bucket starts when the last rank has it and the transfer before has ended; while
it runs, compute goes on more slowly. A rank whose backward pass is over waits for the last transfer: that is
exposed.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulated.cluster.model import ClusterModel

_OPTIMIZER_VARIANCE = 0.1  # of the jitter: ranks do not end their steps at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchNoise:
    """In what a launch differs from the others, through all of its steps."""

    compute: float = 1.0  # a factor of all compute
    network: float = 1.0  # a factor of all transfers
    ranks_s: tuple[float, ...]  # what each rank's step takes longer

    @classmethod
    def drawn(cls, model: ClusterModel, ranks: int, draw: random.Random) -> "LaunchNoise":
        return cls(
            compute=1.0 + draw.gauss(0.0, model.launch_noise),
            network=1.0 + draw.gauss(0.0, model.network_noise),
            ranks_s=tuple(draw.gauss(0.0, model.rank_noise_s) for _ in range(ranks)),
        )

    @property
    def mirrored(self) -> "LaunchNoise":
        """The noise with the opposite sign: of both, the mean is exact."""
        return LaunchNoise(
            compute=2.0 - self.compute,
            network=2.0 - self.network,
            ranks_s=tuple(-noise_s for noise_s in self.ranks_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The all-reduce of a bucket; `arrived_s` is when each rank was ready for it."""

    arrived_s: list[float]
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStep:
    """A step: a value for every rank, and its transfers."""

    step_s: list[float]
    stall_s: list[float]
    input_s: float
    ready_s: list[float]  # when each rank's backward pass ended
    transfers: list[Transfer]

    @property
    def end_s(self) -> float:
        """When the last transfer ended."""
        return self.transfers[-1].end_s

    @property
    def exposed_s(self) -> list[float]:
        """What each rank waited for communication, be it for peers or for bytes."""
        return [self.end_s - ready_s for ready_s in self.ready_s]

    @property
    def compute_s(self) -> list[float]:
        """What each rank computed, slowed where transfers ran."""
        rows = zip(self.step_s, self.exposed_s, self.stall_s, strict=True)
        return [step_s - exposed_s - stall_s - self.input_s for step_s, exposed_s, stall_s in rows]

    def waited_s(self) -> list[float]:
        """What each rank waited for peers, with nothing left to compute."""
        waited_s, first_s = [0.0] * len(self.ready_s), min(self.ready_s)
        for transfer in self.transfers:
            if transfer.start_s > first_s:
                idle_s = map(max, transfer.arrived_s, self.ready_s)  # since when
                waits = zip(waited_s, idle_s, strict=True)
                waited_s = [before_s + max(0.0, transfer.start_s - since_s) for before_s, since_s in waits]
        return waited_s

    def durations_s(self) -> list[list[float]]:
        """By transfer, how long each rank was in it."""
        return [
            [transfer.end_s - arrived_s for arrived_s in transfer.arrived_s] for transfer in self.transfers
        ]

    def exposures_s(self) -> list[list[float]]:
        """By transfer, for how long of it each rank had nothing left to compute."""
        return [
            [
                max(0.0, transfer.end_s - max(arrived_s, ready_s))
                for arrived_s, ready_s in zip(transfer.arrived_s, self.ready_s, strict=True)
            ]
            for transfer in self.transfers
        ]


class Timeline:
    """The ranks of a launch; `compute_s` is what a usual rank computes in a step."""

    def __init__(
        self,
        model: ClusterModel,
        noise: LaunchNoise,
        draw: random.Random,
        *,
        compute_s: float,
        input_s: float = 0.0,
    ) -> None:
        self._model = model
        self._draw = draw
        self._input_s = input_s
        self.ranks = len(noise.ranks_s)
        delays = zip(model.delays_s(self.ranks), noise.ranks_s, strict=True)
        self._work_s = [compute_s * noise.compute + delay_s + noise_s for delay_s, noise_s in delays]
        size = model.gradient_bytes / model.buckets
        self._transfer_s = model.transfer_s(size, self.ranks) * noise.network
        self._until_stall = self._gap()
        self._begun_s = self._optimized()

    def free_step(self) -> list[float]:
        """A step of ranks that send nothing and wait for nobody."""
        stalls_s = self._stalls()
        rows = zip(self._work_s, self._jitters(1.0), stalls_s, strict=True)
        return [work_s + jitter_s + stall_s + self._input_s for work_s, jitter_s, stall_s in rows]

    def step(self, *, recording_s: float = 0.0) -> ClusterStep:
        """A step of normal training."""
        model, begun_s, stalls_s = self._model, self._begun_s, self._stalls()
        forward_s = self._input_s + recording_s
        slice_share = model.backward_share / model.buckets
        jitters_s = self._jitters(1.0 - _OPTIMIZER_VARIANCE)
        rows = zip(begun_s, self._work_s, jitters_s, stalls_s, strict=True)
        ready = [
            begin + work * model.forward_share + jitter + stall + forward_s
            for begin, work, jitter, stall in rows
        ]
        transfers: list[Transfer] = []
        free_s = 0.0  # when the network is
        for _ in range(model.buckets):
            ready = self._after_slices(ready, slice_share, transfers)
            arrived = [max(time_s, free_s) for time_s in ready]
            start_s = max(arrived)
            free_s = start_s + self._transfer_s
            transfers.append(Transfer(arrived_s=arrived, start_s=start_s, end_s=free_s))
        # The next step's clock starts at the end of the last transfer, so that times stay small.
        self._begun_s = self._optimized()
        step_s = [free_s + after - before for before, after in zip(begun_s, self._begun_s, strict=True)]
        return ClusterStep(
            step_s=step_s, stall_s=stalls_s, input_s=self._input_s, ready_s=ready, transfers=transfers
        )

    def _after_slices(self, ready: list[float], share: float, transfers: list[Transfer]) -> list[float]:
        """When every rank has the next bucket, with compute slowed by the transfers so far."""
        if not transfers or not self._model.slowdown:
            return [time_s + work_s * share for time_s, work_s in zip(ready, self._work_s, strict=True)]
        busy = [(transfer.start_s, transfer.end_s) for transfer in transfers]
        slower = 1.0 + self._model.slowdown
        return [
            _end_of(time_s, work_s * share, busy, slower)
            for time_s, work_s in zip(ready, self._work_s, strict=True)
        ]

    def _optimized(self) -> list[float]:
        """When each rank's optimizer is done, after the last transfer's end."""
        share, jitters_s = self._model.optimizer_share, self._jitters(_OPTIMIZER_VARIANCE)
        return [work_s * share + jitter_s for work_s, jitter_s in zip(self._work_s, jitters_s, strict=True)]

    def _jitters(self, variance_share: float) -> list[float]:
        jitter_s = self._model.jitter_s * math.sqrt(variance_share)
        if not jitter_s:
            return [0.0] * self.ranks
        gauss = self._draw.gauss
        return [gauss(0.0, jitter_s) for _ in range(self.ranks)]

    def _stalls(self) -> list[float]:
        """Which ranks stall in a step: the number of steps of ranks between two stalls is geometric."""
        stalls_s = [0.0] * self.ranks
        while self._until_stall < self.ranks:
            stalls_s[self._until_stall] = self._model.burst_s
            self._until_stall += 1 + self._gap()
        self._until_stall -= self.ranks
        return stalls_s

    def _gap(self) -> int:
        probability = self._model.burst_probability
        if not probability:
            return 1 << 62
        return int(math.log(1.0 - self._draw.random()) / math.log1p(-probability))


def _end_of(time_s: float, work_s: float, busy: list[tuple[float, float]], slower: float) -> float:
    """When work that starts at a time is done, if it takes longer while a transfer runs."""
    for start_s, end_s in busy:
        if end_s <= time_s:
            continue
        if time_s < start_s:
            if time_s + work_s <= start_s:
                return time_s + work_s
            work_s -= start_s - time_s
            time_s = start_s
        if time_s + work_s * slower <= end_s:
            return time_s + work_s * slower
        work_s -= (end_s - time_s) / slower
        time_s = end_s
    return time_s + work_s


def launch_timeline(
    model: ClusterModel, key: str, ranks: int, *, compute_s: float, input_s: float = 0.0
) -> Timeline:
    """The ranks of the launch that the key names, always with the same noise."""
    draw = random.Random(f"{model.seed}/{key}")
    noise = LaunchNoise.drawn(model, ranks, draw)
    return Timeline(model, noise, draw, compute_s=compute_s, input_s=input_s)


def normal_steps(timeline: Timeline, count: int, *, recording_s: float = 0.0) -> Iterator[ClusterStep]:
    """Steps of normal training after a first one, in which ranks come from nowhere."""
    timeline.step()
    for _ in range(count):
        yield timeline.step(recording_s=recording_s)
