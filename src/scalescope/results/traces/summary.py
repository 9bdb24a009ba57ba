"""Summary of a rank's trace: what its steps consist of, and how long each of its exchanges took.

It is small enough to be stored in the rank's record: waiting can then be analyzed for many ranks, and
where their traces lie on other machines. No clock is compared between ranks: everything is a duration.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scalescope.results.traces.events import is_rooted
from scalescope.results.traces.intervals import total, without
from scalescope.results.traces.rank_trace import DATA, HOST, QUEUED, TracedRank, TracedStep

PREFIX = "trace/"
_PARTS = ("step_s", "compute_s", "exposed_s", "copy_s", "idle_host_s", "idle_data_s", "idle_queued_s")
_IDLE = {"idle_host_s": HOST, "idle_data_s": DATA, "idle_queued_s": QUEUED}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """One rank's recorded steps. A step is compute, exposed communication, exposed copies and idle time."""

    parts: Mapping[str, Sequence[float]]  # per step
    # Of every step, each exchange that all ranks make together, in order; None is unknown.
    collective_s: Sequence[Sequence[float]] | None = None
    collective_exposed_s: Sequence[Sequence[float]] = field(default_factory=tuple)

    @property
    def steps(self) -> int:
        return len(self.parts["step_s"])

    def samples(self) -> dict[str, list[float]]:
        """As a rank's record holds it."""
        stored = {f"{PREFIX}{name}": list(values) for name, values in self.parts.items()}
        if self.collective_s is not None:
            stored[f"{PREFIX}collectives"] = [float(len(step)) for step in self.collective_s]
            stored[f"{PREFIX}collective_s"] = _flat(self.collective_s)
            stored[f"{PREFIX}collective_exposed_s"] = _flat(self.collective_exposed_s)
        return stored

    @classmethod
    def from_record(cls, samples: Mapping[str, Sequence[float]]) -> "TraceSummary | None":
        """What a record holds; None where it has no summary, or one that does not fit together."""
        parts = {name: samples.get(f"{PREFIX}{name}", ()) for name in _PARTS}
        steps = len(parts["step_s"])
        if not steps or any(len(values) != steps for values in parts.values()):
            return None
        counts = [int(count) for count in samples.get(f"{PREFIX}collectives", ()) if count >= 0.0]
        times = samples.get(f"{PREFIX}collective_s", ())
        exposed = samples.get(f"{PREFIX}collective_exposed_s", ())
        if len(counts) != steps or not len(times) == len(exposed) == sum(counts):
            return cls(parts=parts)
        return cls(parts=parts, collective_s=_cut(times, counts), collective_exposed_s=_cut(exposed, counts))


def summary_of(traced: TracedRank) -> TraceSummary:
    """The summary of a trace that was read."""
    parts = {
        "step_s": [step.time_s for step in traced.steps],
        "compute_s": [step.compute_s for step in traced.steps],
        "exposed_s": [step.exposed_s for step in traced.steps],
        "copy_s": [step.copy_s for step in traced.steps],
        **{name: [step.idle_s[cause] for step in traced.steps] for name, cause in _IDLE.items()},
    }
    exchanges = [_exchanges(step) for step in traced.steps]
    return TraceSummary(
        parts=parts,
        collective_s=[[time_s for time_s, _ in exchange] for exchange in exchanges],
        collective_exposed_s=[[exposed_s for _, exposed_s in exchange] for exchange in exchanges],
    )


def _exchanges(step: TracedStep) -> list[tuple[float, float]]:
    """(duration, exposed) of every exchange that no rank leaves early; exposed time counts once, for the
    exchange that began first."""
    covered = list(step.spans.get("compute", ()))
    exchanges = []
    for collective in step.collectives:
        interval = (collective.start_s, collective.start_s + collective.time_s)
        exposed_s = total(without([interval], covered))
        covered.append(interval)
        if not is_rooted(collective.name):
            exchanges.append((collective.time_s, exposed_s))
    return exchanges


def _flat(rows: Sequence[Sequence[float]]) -> list[float]:
    return [value for row in rows for value in row]


def _cut(values: Sequence[float], counts: Sequence[int]) -> list[list[float]]:
    ends = list(itertools.accumulate(counts))
    return [list(values[end - count : end]) for count, end in zip(counts, ends, strict=True)]
