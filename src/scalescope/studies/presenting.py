"""What every study presents of a stored run besides its own sections."""

import dataclasses
from collections.abc import Callable, Mapping

from scalescope.errors import ExitCode
from scalescope.report.analyzed_run import AnalyzedRun, analyzed_run
from scalescope.report.consistency import consistency_section
from scalescope.report.performance import NOTHING, headline, performance_sections, performance_text
from scalescope.report.results_json import results_json
from scalescope.report.section import Section, ShownCommand
from scalescope.report.trials import failure_section
from scalescope.results.files import to_text
from scalescope.results.run import Run
from scalescope.results.run_folder import PERFORMANCE, RESULTS
from scalescope.studies.study import Report, Study


def report_of(
    study: Study | None,
    of: Run | AnalyzedRun,
    sections: tuple[Section, ...],
    next_step: ShownCommand | None = None,
) -> Report:
    """The sections of a study with what all of them have: headline, explanation, files, exit code.

    Without a study, no failure was expected.
    """
    analyzed = analyzed_run(of)
    run = analyzed.run
    return Report(
        sections=(*failure_section(run), *consistency_section(analyzed), *sections),
        explain=lambda: performance_sections(analyzed),
        headline=headline(analyzed) or NOTHING,
        next_step=next_step,
        exit_code=_exit_code(study, run),
        files={
            RESULTS: lambda: to_text(results_json(analyzed)),
            PERFORMANCE: lambda: performance_text(analyzed),
        },
        run=run,
    )


def with_files(report: Report, files: Mapping[str, Callable[[], str]]) -> Report:
    """The report with more files, by name; they are written first."""
    return dataclasses.replace(report, files={**files, **report.files})


def _exit_code(study: Study | None, run: Run) -> int:
    statuses = {
        result.status
        for result in run.results
        if result.stopped_by != "budget" and (study is None or not study.is_expected_failure(result))
    }
    if statuses & {"failed", "oom", "interrupted"}:
        return ExitCode.WORKER_FAILED
    if "hang" in statuses:
        return ExitCode.HANG
    return ExitCode.INVALID if "invalid" in statuses else ExitCode.OK


def is_unstable(run: Run) -> bool:
    """Whether launches of some configuration disagree more than a verdict allows."""
    from scalescope.analysis.configurations import configurations

    return any(configuration.instabilities() for configuration in configurations(run.results))
