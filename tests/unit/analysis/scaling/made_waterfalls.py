"""Waterfalls of random terms: significant, not significant, without an interval, unknown, of either sign."""

from hypothesis import strategies as st

from scalescope.analysis.scaling.waterfall import TERMS, Term, Waterfall
from scalescope.analysis.statistics import Estimate
from tests.unit.analysis.made_results import make_trial

_VALUES = st.floats(-3.0, 3.0).filter(lambda value: value == 0.0 or abs(value) > 1e-6)


def make_waterfall(ranks: int, delivered: float, terms: tuple[Term, ...]) -> Waterfall:
    """What is missing to N is left for the terms that are unknown."""
    step_s = 0.1
    known = sum(term.lost.value for term in terms if term.lost is not None)
    return Waterfall(
        trial=make_trial(strategy="ddp", world_size=ranks),
        step_s=step_s,
        ideal_s=delivered * step_s / ranks,
        delivered=delivered,
        terms=terms,
        unexplained_s=(ranks - delivered - known) * step_s / ranks,
        straggler=None,
        simple_comm_s=Estimate(0.0),
    )


def make_term(name: str, value: float | None, half: float | None, ranks: int) -> Term:
    """A loss with its interval of ± half; without one where `half` is None, unknown where `value` is."""
    if value is None:
        return Term(name=name, time_s=None, lost=None, reason="it was not measured")
    ends = (None, None) if half is None else (value - half, value + half)
    seconds = 0.1 / ranks
    low_s, high_s = (None if end is None else end * seconds for end in ends)
    return Term(name=name, time_s=Estimate(value * seconds, low_s, high_s), lost=Estimate(value, *ends))


@st.composite
def waterfalls(draw: st.DrawFn) -> Waterfall:
    ranks = draw(st.integers(2, 16))
    halves = st.none() | st.floats(0.0, 4.0)
    names = draw(st.lists(st.sampled_from(TERMS), unique=True, min_size=1).map(sorted))
    terms = tuple(make_term(name, draw(st.none() | _VALUES), draw(halves), ranks) for name in names)
    known = sum(term.lost.value for term in terms if term.lost is not None)
    complete = all(term.lost is not None for term in terms)
    delivered = ranks - known if complete else draw(st.floats(0.05, 1.5)) * ranks
    return make_waterfall(ranks, delivered, terms)
