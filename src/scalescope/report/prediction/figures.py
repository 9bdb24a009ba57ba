"""Predictions as figures: efficiency on more ranks with its band, and one predicted step."""

from collections.abc import Iterable

from scalescope.analysis.prediction.answer import PredictionAnswer
from scalescope.analysis.prediction.forecast import Prediction
from scalescope.analysis.prediction.setup import TimelineEvent
from scalescope.report.caveats import context
from scalescope.report.numbers import counted, percent
from scalescope.report.prediction.sections import prediction_title
from scalescope.report.section import Figure, Panel, Series

_MOST_BUCKETS = 24  # later ones share a row


def efficiency_figure(answer: PredictionAnswer, number: int = 0, command: str = "") -> Figure:
    """Efficiency by number of ranks with its band, and what was measured."""
    rows = answer.predictions
    ranks = tuple(float(row.setup.world_size) for row in rows)
    predicted = Series(
        label="predicted, with its 90 % interval",
        x=ranks,
        y=tuple(100.0 * row.efficiency.value for row in rows),
        low=tuple(100.0 * row.efficiency.low for row in rows),
        high=tuple(100.0 * row.efficiency.high for row in rows),
        is_band=True,
    )
    sizes = sorted(answer.measured_efficiency)
    measured = Series(
        label="measured",
        x=tuple(map(float, sizes)),
        y=tuple(100.0 * answer.measured_efficiency[size] for size in sizes),
    )
    ideal = Series(label="ideal", x=ranks, y=(100.0,) * len(ranks), role="ideal")
    last = rows[-1]
    return Figure(
        name="predicted_efficiency" if number == 0 else f"predicted_efficiency_{number + 1}",
        title=f"Predicted efficiency by number of ranks: {prediction_title(answer)}",
        alt="A line of predicted efficiency by number of ranks inside its band, and measured points. On "
        f"{counted(last.setup.world_size, 'rank')} it is {percent(last.efficiency.value)}.",
        panels=(
            Panel(
                kind="lines",
                x_label="ranks",
                y_label="efficiency, %",
                series=(predicted, *([measured] if sizes else []), ideal),
                x_log=True,
            ),
        ),
        command=command,
        notes=tuple(context(answer.inputs.job.trial)),
    )


def timeline_figure(answer: PredictionAnswer, number: int = 0, command: str = "") -> Figure:
    """The step of the largest number of ranks that was measured, or else of the smallest predicted."""
    measured = [row for row in answer.predictions if row.setup.world_size <= answer.most_measured]
    prediction = measured[-1] if measured else answer.predictions[0]
    ranks = counted(prediction.setup.world_size, "rank")
    names, series = _lanes(prediction)
    exposed = percent(prediction.exposed_s.value / prediction.step_s.value)
    return Figure(
        name="predicted_step" if number == 0 else f"predicted_step_{number + 1}",
        title=f"One predicted step on {ranks}: {prediction_title(answer)}",
        alt=f"Bars of compute and of the exchange of each bucket during one predicted step on {ranks}. "
        f"{exposed} of the step is communication not hidden by compute.",
        panels=(
            Panel(
                kind="timeline",
                x_label="ms since the start of the step",
                y_label="",
                series=series,
                names=names,
            ),
        ),
        command=command,
        notes=tuple(context(answer.inputs.job.trial)),
    )


def _lanes(prediction: Prediction) -> tuple[tuple[str, ...], tuple[Series, ...]]:
    """A row of compute, and one for every bucket, or kind of exchange without buckets."""
    rows = {"compute": 0}
    spans: dict[tuple[str, int], list[TimelineEvent]] = {}
    for event in prediction.timeline.events:
        row = rows.setdefault(_row_of(event), len(rows))
        spans.setdefault((event.name, row), []).append(event)
    return tuple(rows), tuple(
        Series(
            label=name,
            row=row,
            x=_milliseconds(e.begin_s for e in events),
            y=_milliseconds(e.end_s for e in events),
        )
        for (name, row), events in spans.items()
    )


def _row_of(event: TimelineEvent) -> str:
    if event.lane == "compute":
        return "compute"
    if event.bucket is None:
        return event.name
    return f"bucket {event.bucket + 1}" if event.bucket < _MOST_BUCKETS else "later buckets"


def _milliseconds(times_s: Iterable[float]) -> tuple[float, ...]:
    return tuple(time_s * 1e3 for time_s in times_s)
