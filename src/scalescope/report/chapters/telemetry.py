"""Telemetry: what processors and GPUs did while it was measured."""

from scalescope.report.analyzed_run import ReportInput
from scalescope.report.chapter import Chapter
from scalescope.report.numbers import MISSING
from scalescope.report.section import Section, Table
from scalescope.report.training.sections import cpu_reading, gpu_reading
from scalescope.report.varied import disambiguate

_MOST = 200


def chapter(report_input: ReportInput) -> Chapter | None:
    rows = []
    seen = [(one, one.telemetry) for one in report_input.measured]
    looked = [one for one, looks in seen if gpu_reading(looks) or cpu_reading(looks)]
    shown = looked[:_MOST]
    labels = disambiguate(
        [one.trial.label for one in shown], [one.trial for one in shown], [one.device for one in shown]
    )
    for label, one in zip(labels, shown, strict=True):
        gpu, cpu = gpu_reading(one.telemetry), cpu_reading(one.telemetry)
        rows.append((label, gpu or MISSING, cpu or MISSING))
    if not rows:
        return None
    table = Table(
        columns=("configuration", "GPU", "CPU"),
        rows=tuple(rows),
        left=frozenset(("configuration", "GPU", "CPU")),
    )
    left = len(looked) - len(shown)
    lines = (f"{left:,} more configurations are in trials.jsonl.",) if left else ()
    return Chapter(
        name="telemetry",
        title="What the hardware did",
        order=100,
        sections=(Section(table=table, lines=lines),),
    )
