"""Telemetry: utilization of CPUs and GPUs during the measurement."""

from scalescope.analysis.configurations import Configuration
from scalescope.report.analyzed_run import ReportInput, labels_of
from scalescope.report.chapter import Chapter
from scalescope.report.numbers import MISSING
from scalescope.report.section import Section, Table
from scalescope.report.training.sections import cpu_reading, gpu_reading

_MOST = 200


def chapter(report_input: ReportInput) -> Chapter | None:
    readings = [(job, *_readings(job)) for job in report_input.measured]
    sampled = [(job, gpu, cpu) for job, gpu, cpu in readings if gpu or cpu]
    if not sampled:
        return None
    shown = sampled[:_MOST]
    labels = labels_of([job for job, _, _ in shown])
    rows = [
        (label, gpu or MISSING, cpu or MISSING) for label, (_, gpu, cpu) in zip(labels, shown, strict=True)
    ]
    table = Table(
        columns=("configuration", "GPU", "CPU"),
        rows=tuple(rows),
        left=frozenset(("configuration", "GPU", "CPU")),
    )
    left = len(sampled) - len(shown)
    lines = (f"{left:,} more configurations are in trials.jsonl.",) if left else ()
    return Chapter(
        name="telemetry",
        title="Hardware utilization",
        order=100,
        sections=(Section(table=table, lines=lines),),
    )


def _readings(configuration: Configuration) -> tuple[str | None, str | None]:
    """What GPU and CPU did, in words; None where they were not sampled."""
    summary = configuration.telemetry
    return gpu_reading(summary), cpu_reading(summary)
