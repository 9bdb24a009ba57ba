"""Lanes: the events of one rank's step, compute on one lane and communication on the other."""

from collections.abc import Iterable, Sequence
from statistics import NormalDist

from scalescope.analysis.prediction.network import CollectiveTime
from scalescope.analysis.prediction.timeline import Fitted, Lane, StepTimeline, TimelineEvent
from scalescope.analysis.prediction.timelines.exchanges import Exchange, Sent


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
        """The step as it is now, with what the slowest rank adds."""
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
    """The mean of the largest of so many standard normal values (Blom's approximation)."""
    return 0.0 if count < 2 else NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def slowdown(fitted: Fitted, ranks: int) -> float:
    """Compute on so many ranks ÷ compute on one; 1 where that was not measured."""
    return fitted.contention.get(ranks, 1.0)
