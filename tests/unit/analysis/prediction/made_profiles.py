"""Profiles and networks with round numbers."""

from hypothesis import strategies as st

from scalescope.analysis.prediction.network import CollectiveTime
from scalescope.analysis.prediction.profile import Gradient, RankProfile, Unit
from scalescope.analysis.prediction.setup import RankLayout

MIB = 1 << 20


class PerMib:
    """So many seconds for every MiB, on any number of ranks; remembers what was asked for."""

    def __init__(self, seconds: float, error: float = 0.1) -> None:
        self.seconds = seconds
        self.error = error
        self.asked: list[tuple[str, float, int, RankLayout]] = []

    def time_of(self, collective: str, size_bytes: float, ranks: int, layout: RankLayout) -> CollectiveTime:
        self.asked.append((collective, size_bytes, ranks, layout))
        return CollectiveTime(
            time_s=self.seconds * size_bytes / MIB, error=self.error, assumptions=("as per MiB",)
        )


def unit(
    name: str, forward_s: float, backward_s: float, mib: float = 1.0, activation_mib: float = 0.0
) -> Unit:
    return Unit(
        name=name,
        parameter_bytes=int(mib * MIB),
        forward_s=forward_s,
        backward_s=backward_s,
        activation_bytes=int(activation_mib * MIB),
    )


def profile_of(*units: Unit, optimizer_s: float = 1.0, input_s: float = 0.5) -> RankProfile:
    """A model that consists of these units; each gradient is ready when its unit's backward has ended."""
    ready_s, gradients = 0.0, []
    for part in reversed(units):
        ready_s += part.backward_s
        gradients.append(Gradient(size_bytes=part.parameter_bytes, ready_s=ready_s))
    return RankProfile(
        samples=8,
        input_s=input_s,
        forward_s=sum(part.forward_s for part in units),
        backward_s=sum(part.backward_s for part in units),
        optimizer_s=optimizer_s,
        gradients=tuple(gradients),
        units=units,
    )


seconds = st.floats(0.01, 4.0)
units = st.builds(
    unit,
    st.just("unit"),
    seconds,
    seconds,
    st.floats(0.1, 64),
    st.floats(0.0, 8),
)
profiles = st.lists(units, min_size=4, max_size=12).map(lambda parts: profile_of(*parts))
