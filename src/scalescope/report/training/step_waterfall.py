"""The waterfall of one rank's step in words, as bars of text, and as plain data."""

from collections.abc import Sequence
from typing import Any

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.events import StepEvents
from scalescope.analysis.statistics import Estimate
from scalescope.analysis.training import step_waterfall as step_terms
from scalescope.analysis.training.step_waterfall import COMPUTE, StepTerm, StepWaterfall
from scalescope.diagnose.step_facts import StepFacts
from scalescope.report.analyzed_run import labels_of
from scalescope.report.numbers import in_ms, milliseconds, percent, range_ms
from scalescope.report.section import Section, Table

# What a sentence says of the largest part that is not compute.
_LOSSES = {
    step_terms.IDLE_SYNC: "the GPU waits {} after synchronizations",
    step_terms.IDLE_HOST: "the GPU waits {} for the host to launch kernels",
    step_terms.IDLE_INPUT: "the GPU waits {} for input",
    step_terms.IDLE_BETWEEN: "pauses between kernels take {}",
    step_terms.IDLE_UNKNOWN: "the GPU is idle for {}, for an unknown reason",
    step_terms.INPUT: "waiting for input takes {}",
    step_terms.COPIES: "copies take {}",
    step_terms.COMMUNICATION: "communication takes {}",
    step_terms.REST: "{} is in none of its parts",
}
_PART, _TIME, _INTERVAL, _SOURCE = "part of the step", "ms per step", "95 % interval", "measured by"
_BAR_WIDTH = 30
_SHOWN = 0.0005  # of a step; less is zero in every column
_WORTH_A_WORD = 0.03  # of a step
_FEW = 2  # configurations, each with its waterfall


def known_steps(steps: Sequence[StepFacts]) -> tuple[StepFacts, ...]:
    """Those whose parts are known."""
    return tuple(facts for facts in steps if facts.waterfall is not None)


def step_sections(steps: Sequence[StepFacts], *, every: bool = False) -> tuple[Section, ...]:
    """The waterfall of each configuration; of more than a few the slowest one's, unless all are wanted."""
    known = known_steps(steps)
    shown = known if every or len(known) <= _FEW else (min(known, key=_rate),)
    names = names_of(known) if len(known) > 1 else ("",) * len(known)
    titles = dict(zip(map(id, known), names, strict=True))
    sections = tuple(section for facts in shown for section in step_section(facts, titles[id(facts)]))
    left = len(known) - len(shown)
    if not left:
        return sections
    line = f"This is the slowest of {len(known)} configurations; scalescope explain shows all of them."
    return (*sections, Section(lines=(line,)))


def names_of(steps: Sequence[StepFacts]) -> tuple[str, ...]:
    """A few words for each configuration, which differ."""
    return labels_of([facts.configuration for facts in steps])


def _rate(facts: StepFacts) -> float:
    """Speed of one rank."""
    return facts.configuration.speed.value / facts.ranks


def step_section(facts: StepFacts, name: str = "") -> tuple[Section, ...]:
    """The bar as a table, one row per term, its total, and the ideal; empty where the terms are unknown.
    `name` is the configuration's among others."""
    waterfall = facts.waterfall
    if waterfall is None:
        return ()
    where = f"{name}: " if name else ""
    return (
        Section(
            title=where + step_sentence(waterfall),
            table=_table(waterfall),
            lines=(*events_lines(waterfall), ideal_line(waterfall, facts.configuration)),
            details=_details(waterfall),
        ),
    )


def _table(waterfall: StepWaterfall) -> Table:
    """One row per term; intervals only where some term has one."""
    terms = shown_terms(waterfall)
    rows = [_cells(term, waterfall) for term in terms]
    total = {_PART: "total", _TIME: milliseconds(waterfall.step_s), "share": percent(1.0)}
    interval = (_INTERVAL,) if any(term.time_s.has_interval for term in terms) else ()
    columns = (_PART, "", _TIME, "share", *interval, _SOURCE)
    return Table(
        columns=columns,
        rows=tuple(tuple(row.get(name, "") for name in columns) for row in (*rows, total)),
        left=frozenset((_PART, "", _SOURCE)),
        optional=(*interval, ""),
        expert=frozenset((_SOURCE,)),
    )


def shown_terms(waterfall: StepWaterfall) -> tuple[StepTerm, ...]:
    """Those that are not zero."""
    least = _SHOWN * waterfall.step_s
    return tuple(term for term in waterfall.terms if abs(term.time_s.value) >= least)


def step_sentence(waterfall: StepWaterfall) -> str:
    """`A step takes 14.0 ms; 1.70 ms of it is compute; the GPU waits 9.80 ms after synchronizations.`"""
    compute_s = sum(waterfall.time_s(name) for name in COMPUTE)
    mixed_s = sum(waterfall.time_s(name) for name in step_terms.MIXED)
    text = f"{in_ms(compute_s)} of it is compute"
    if mixed_s:
        text = f"{in_ms(compute_s + mixed_s)} of it is compute and communication"
    parts = [f"A step takes {in_ms(waterfall.step_s)}", text]
    events = () if waterfall.events is None else waterfall.events.events
    losses = {**_LOSSES, **{event.name: f"{event.name} takes {{}} of it" for event in events}}
    others = [term for term in waterfall.terms if term.name in losses]
    largest = max(others, key=lambda term: term.time_s.value, default=None)
    if largest is not None and largest.time_s.value > _WORTH_A_WORD * waterfall.step_s:
        parts.append(losses[largest.name].format(in_ms(largest.time_s.value)))
    return f"{'; '.join(parts)}."


def events_lines(waterfall: StepWaterfall) -> tuple[str, ...]:
    """`Plain step: 80.2 ms. Evaluation every 50 steps: 450 ms, which is 9.00 ms per step (10 %).`"""
    if waterfall.events is None:
        return ()
    events = [
        f"{event.name.capitalize()}: {in_ms(event.length_s)}, which is {in_ms(event.cost_s)} per step "
        f"({percent(event.cost_s / waterfall.step_s)})."
        for event in waterfall.events.events
    ]
    return (f"Plain step: {in_ms(waterfall.events.plain_s)}. {' '.join(events)}",)


def ideal_line(waterfall: StepWaterfall, configuration: Configuration | None = None) -> str:
    """The ideal beside the step, or why it is unknown."""
    if waterfall.ideal_s is None:
        return f"Ideal: unknown, because {_why_no_ideal(waterfall, configuration)}."
    known = None if configuration is None else configuration.number_format
    return (
        f"Ideal: {in_ms(waterfall.ideal_s)} (the model's operations at the speed of a bare matrix product in "
        f"{known or waterfall.trial.precision}), {_share(waterfall.ideal_s / waterfall.step_s)} of the step."
    )


def _share(share: float) -> str:
    return percent(share) if share >= 0.005 else "less than 1 %"


def _why_no_ideal(waterfall: StepWaterfall, configuration: Configuration | None) -> str:
    if configuration is not None and configuration.model_flops_per_s is None:
        return why_not_counted(configuration)
    if waterfall.trial.is_command:
        return "the speed of a bare matrix product was not measured"
    return f"the speed of a matrix product in {waterfall.trial.precision} was not measured"


def why_not_counted(configuration: Configuration) -> str:
    """Why the operations of a step are unknown."""
    recording = configuration.recording
    flops = None if recording is None else recording.flops
    if flops is not None and not flops.is_whole:
        return (
            f"{percent(flops.unlinked)} of the time in products is in kernels whose shapes are not recorded"
        )
    if configuration.trial.is_command and recording is None:
        return "operations are counted in recorded steps on a GPU, and there are none"
    return "the operations of this workload could not be counted"


def _cells(term: StepTerm, waterfall: StepWaterfall) -> dict[str, str]:
    share = term.time_s.value / waterfall.step_s
    return {
        _PART: term.name,
        "": _bar(share),
        _TIME: milliseconds(term.time_s.value),
        "share": percent(share),
        _INTERVAL: _interval(term.time_s),
        _SOURCE: term.source,
    }


def _bar(share: float) -> str:
    length = round(_BAR_WIDTH * abs(share))
    return ("−" if share < 0.0 and length else "") + "█" * length


def _interval(time_s: Estimate) -> str:
    return "" if time_s.low is None or time_s.high is None else range_ms(time_s.low, time_s.high)


def _details(waterfall: StepWaterfall) -> tuple[str, ...]:
    """How the parts were measured, as far as it needs saying."""
    lines = []
    if waterfall.recorded_rank is not None:
        lines.append(f"The parts are those of rank {waterfall.recorded_rank}.")
    if any(term.source == "trace" for term in waterfall.terms):
        lines.append(
            "From recorded steps: kernels and copies take as long as recorded; idle time is what the step "
            "without a profiler leaves, divided as in the recorded steps (an estimate)."
        )
    return tuple(lines)


def events_json(events: StepEvents) -> list[dict[str, Any]]:
    """What each event is and costs."""
    return [
        {
            "name": event.name,
            "kind": event.kind,
            "period_steps": event.period,
            "occurrences": event.occurrences,
            "time_s": event.length_s,
            "time_per_step_s": event.cost_s,
        }
        for event in events.events
    ]


def step_waterfall_json(waterfall: StepWaterfall) -> dict[str, Any]:
    """The same as plain data, in seconds per step."""
    return {
        "step_time_s": waterfall.step_s,
        "ideal_step_time_s": waterfall.ideal_s,
        "rank": waterfall.recorded_rank,
        "plain_step_time_s": waterfall.step_s if waterfall.events is None else waterfall.events.plain_s,
        "events": [] if waterfall.events is None else events_json(waterfall.events),
        "terms": [
            {
                "name": term.name,
                "time_s": term.time_s.value,
                "ci95_time_s": term.time_s.bounds,
                "measured_by": term.source,
            }
            for term in waterfall.terms
        ],
    }
