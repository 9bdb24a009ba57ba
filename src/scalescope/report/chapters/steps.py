"""Steps: the distribution of step times per configuration."""

from scalescope.report.analyzed_run import ReportInput, labels_of, notes_of
from scalescope.report.chapter import Chapter
from scalescope.report.numbers import counted
from scalescope.report.section import Figure, Panel, Series, quantiles

_SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
_MOST = 24


def chapter(report_input: ReportInput) -> Chapter | None:
    jobs = sorted(report_input.measured, key=lambda job: (job.trial.world_size, job.trial.rank_batch_size))
    shown = jobs[:_MOST]
    if not shown:
        return None
    series = tuple(
        Series(
            label=label,
            x=_SHARES,
            y=quantiles([step * 1e3 for launch in job.launches for step in launch.step_times_s], _SHARES),
        )
        for label, job in zip(labels_of(shown), shown, strict=True)
    )
    wide = max(drawn.y[-1] for drawn in series) > 30.0 * min(drawn.y[0] for drawn in series)
    panel = Panel(kind="distribution", x_label="step time, ms", y_label="", series=series, x_log=wide)
    left = len(jobs) - len(shown)
    more = f"; {left:,} more configurations are in the tables" if left > 0 else ""
    figure = Figure(
        name="steps",
        title=f"Step times: 5th to 95th percentile (thin), 25th to 75th (thick), median (mark){more}",
        alt=f"Ranges of step times for {counted(len(shown), 'configuration')}.",
        panels=(panel,),
        notes=notes_of(shown),
    )
    return Chapter(name="steps", title="Step time distribution", order=60, figures=(figure,))
