"""`check`: whether this machine is set up right."""

import os
from typing import Any

from scalescope.analysis.checks import all_checks, matrix_of
from scalescope.errors import ExitCode
from scalescope.launch.inspection import inspect_system
from scalescope.launch.launcher import Launcher
from scalescope.report.check import check_sections
from scalescope.results.provenance import describe_environment, recorded_variables
from scalescope.studies.study import StudyReport
from scalescope.version import __version__


def check(launcher: Launcher, world_size: int | None = None) -> tuple[StudyReport, dict[str, Any]]:
    """Look at everything once; the second value is the same as plain data."""
    machine = launcher.machine()
    system = inspect_system()
    ranks = world_size or max(1, len(machine.gpus))
    checks = all_checks(machine, system, recorded_variables(os.environ), ranks)
    failed = any(one.level == "fail" for one in checks)
    report = StudyReport(
        sections=check_sections(checks, matrix_of(system["topology"] or "")),
        exit_code=ExitCode.CANNOT_RUN if failed else ExitCode.OK,
    )
    lines = [
        {"level": one.level, "subject": one.subject, "text": one.text, "advice": one.advice} for one in checks
    ]
    facts = {**describe_environment(machine, __version__), "system": system, "checks": lines}
    return report, facts
