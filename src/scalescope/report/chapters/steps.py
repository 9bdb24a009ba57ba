"""Steps: how step times scatter, configuration by configuration."""

from scalescope.report.analyzed_run import ReportInput, notes_of
from scalescope.report.chapter import Chapter
from scalescope.report.render.figure import Figure, Panel, Series, quantiles
from scalescope.report.varied import disambiguate

_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
_MOST = 24


def chapter(report_input: ReportInput) -> Chapter | None:
    shown = sorted(report_input.measured, key=lambda one: (one.trial.world_size, one.trial.rank_batch_size))[
        :_MOST
    ]
    if not shown:
        return None
    labels = disambiguate(
        [one.trial.label for one in shown], [one.trial for one in shown], [one.device for one in shown]
    )
    series = tuple(
        Series(
            label=label,
            x=_SHARES,
            y=quantiles([step * 1e3 for launch in one.launches for step in launch.step_times_s], _SHARES),
        )
        for label, one in zip(labels, shown, strict=True)
    )
    wide = max(drawn.y[-1] for drawn in series) > 30.0 * min(drawn.y[0] for drawn in series)
    panel = Panel(kind="distribution", x_label="step time, ms", y_label="", series=series, x_log=wide)
    left = len(report_input.measured) - len(shown)
    more = f"; {left:,} more configurations are in the tables" if left > 0 else ""
    figure = Figure(
        name="steps",
        title=f"Step times: 5 to 95 %, the middle half thick, the median marked{more}",
        alt=f"For each of {len(shown)} configurations the range of its step times.",
        panels=(panel,),
        notes=notes_of(shown),
    )
    return Chapter(name="steps", title="How steps scatter", order=60, figures=(figure,))
