"""Strategies: the fastest configuration of each."""

from scalescope.analysis.configurations import Configuration
from scalescope.report.analyzed_run import ReportInput
from scalescope.report.chapter import Chapter
from scalescope.report.numbers import significant
from scalescope.report.section import Section, Table


def chapter(report_input: ReportInput) -> Chapter | None:
    fastest: dict[str, Configuration] = {}
    for job in sorted(report_input.selected, key=lambda job: job.samples_per_s.value):
        fastest[job.trial.strategy] = job
    if len(fastest) < 2:
        return None
    rows = tuple(
        (name, f"{job.trial.world_size}", significant(job.samples_per_s.value, 4))
        for name, job in sorted(fastest.items())
    )
    table = Table(columns=("strategy", "ranks", "samples/s"), rows=rows, left=frozenset(("strategy",)))
    section = Section(title="fastest configuration of each strategy", table=table)
    return Chapter(name="strategies", title="Strategies", order=55, sections=(section,))
