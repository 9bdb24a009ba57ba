"""Steps from events: the repeating period in the order in which a script's optimizers are stepped."""

from collections import deque
from collections.abc import Sequence

_REPETITIONS = 3
MOST_EVENTS = 256  # without a period until then there is none


def period_of(keys: Sequence[int]) -> tuple[int, ...] | None:
    """The keys of one step, from the first key on; None where the last events do not repeat three times.

    A script may begin with other events, so only the end must be periodic; every key that appears in the
    second half of the events must be part of the period.
    """
    recent = set(keys[len(keys) // 2 :])
    for length in range(1, len(keys) // _REPETITIONS + 1):
        last = tuple(keys[-length:])
        ends = keys[-length * _REPETITIONS :]
        repeats = all(key == last[number % length] for number, key in enumerate(ends))
        if repeats and recent <= set(last):
            return _from_first_key(last)
    return None


def _from_first_key(period: tuple[int, ...]) -> tuple[int, ...]:
    """The rotation that begins with the optimizer that the script stepped first."""
    rotations = [period[start:] + period[:start] for start in range(len(period))]
    return min(rotations)


class StepEnds:
    """Tells which events end a step."""

    def __init__(self) -> None:
        self._keys: deque[int] = deque(maxlen=MOST_EVENTS)
        self.events = 0
        self._period: tuple[int, ...] | None = None
        self._expected = 0
        self.is_broken = False  # an event came that the period does not have

    @property
    def period(self) -> tuple[int, ...] | None:
        return self._period

    def add(self, key: int) -> bool:
        """Whether a step ends with this event; False while no period is known."""
        self.events += 1
        self._keys.append(key)
        if self._period is not None:
            if self._period[self._expected] == key:
                self._expected = (self._expected + 1) % len(self._period)
                return self._expected == 0
            self.is_broken = True
        return False

    def settle(self) -> bool:
        """Look for the period in the events so far; returns whether the last event ends a step."""
        self._period = period_of(list(self._keys))
        self.is_broken = False
        if self._period is None:
            return False
        self._expected = self._position(self._period)
        return self._expected == 0

    def _position(self, period: tuple[int, ...]) -> int:
        """How many events of the period have happened of the step that is under way."""
        length = len(period)
        last = tuple(self._keys)[-length:]
        for done in range(length):
            if period[done:] + period[:done] == last:
                return done
        return 0
