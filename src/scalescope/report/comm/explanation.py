"""What a measured network means for training: `comm` explained."""

from collections.abc import Iterable

from scalescope.analysis.collectives import CollectiveRow
from scalescope.analysis.comm.curve import Curve
from scalescope.report.analyzed_run import AnalyzedRun
from scalescope.report.comm.sections import against_expectation, communication_brief
from scalescope.report.numbers import counted, data_size, in_us_or_ms, percent
from scalescope.report.section import Section
from scalescope.results.run import Run

_PARAMETERS = {"10 million": 10_000_000, "124 million": 124_000_000, "1 billion": 1_000_000_000}
_BYTES = 4  # of a gradient in fp32
_LARGE_BYTES = 4 << 20  # from here on the rate hardly changes with the size
_GOOD = 0.8  # of what was expected
_MOSTLY_LATENCY = 2.0  # times the smallest message's time


def communication_explanation(analyzed: AnalyzedRun) -> tuple[Section, ...]:
    """How fast, how far from what was expected, and what that means for gradients of common models."""
    meanings = [
        line
        for rows in _all_reduces(analyzed.collectives)
        for line in (*_distance(rows, analyzed.run), *_meaning(rows))
    ]
    meaning = (Section(title="What that means for training", lines=tuple(meanings)),) if meanings else ()
    return (*communication_brief(analyzed.run), *meaning)


def _all_reduces(rows: Iterable[CollectiveRow]) -> list[list[CollectiveRow]]:
    """The all-reduces over all ranks, by trial."""
    trials: dict[str, list[CollectiveRow]] = {}
    for row in rows:
        if row.collective == "all_reduce" and row.size_bytes and row.among == "all":
            trials.setdefault(row.trial_id, []).append(row)
    return list(trials.values())


def _distance(rows: list[CollectiveRow], run: Run) -> list[str]:
    """What a rate far from the expected one means; nothing where it is near, or nothing is expected."""
    expectation = against_expectation(tuple(rows), run).expectation
    if expectation is None or expectation.share >= _GOOD:
        return []
    return [
        f"On {counted(rows[0].ranks, 'rank')}, the network delivers {percent(expectation.share)} of what is "
        f"expected, so exchanges take {1.0 / expectation.share:.1f} times as long as they should. scalescope "
        "check shows links, cards and variables that are set up wrongly."
    ]


def _meaning(rows: list[CollectiveRow]) -> list[str]:
    curve = Curve.through([(row.size_bytes, row.time_s) for row in rows])
    ranks = counted(rows[0].ranks, "rank")
    smallest_s = curve.points[0][1]
    flat = [size for size, time_s in curve.points if time_s <= _MOSTLY_LATENCY * smallest_s]
    lines = [
        f"On {ranks}, messages up to {data_size(flat[-1])} take about as long as the smallest "
        f"({in_us_or_ms(smallest_s)}): for them latency counts, and fewer, larger messages are faster."
    ]
    largest, largest_s = curve.points[-1]
    if largest < _LARGE_BYTES:
        lines.append(
            f"The largest message was {data_size(largest)}; gradients of most models are larger: --max-bytes "
            "256M measures what they take."
        )
        return lines
    times = [
        f"{in_us_or_ms(largest_s * parameters * _BYTES / largest)} for {name}"
        for name, parameters in _PARAMETERS.items()
    ]
    lines.append(
        f"Gradients in fp32 take per step, by the rate at {data_size(largest)}: {', '.join(times)} "
        "parameters (estimates). Compute that takes longer than that can hide them; shorter compute cannot."
    )
    return lines
