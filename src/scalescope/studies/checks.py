"""The study of `check`."""

from collections.abc import Mapping
from typing import Any

from scalescope.analysis.checks.host import Check, all_checks
from scalescope.analysis.checks.nodes import checks_between, checks_of_hosts
from scalescope.errors import ExitCode
from scalescope.launch.launcher import Launcher
from scalescope.link_matrix import matrix_of
from scalescope.report.checks import check_sections, host_sections
from scalescope.results.provenance import describe_environment
from scalescope.studies.study import Report
from scalescope.version import __version__


def check(launcher: Launcher, world_size: int | None = None) -> tuple[Report, dict[str, Any]]:
    """Look at everything once; the second value is the same as plain data."""
    machine = launcher.machine()
    (system,) = launcher.systems().values()
    ranks = world_size or max(1, len(machine.gpus))
    checks = all_checks(machine, system, system["variables"], ranks)
    report = Report(
        sections=check_sections(checks, matrix_of(system["link_matrix"] or "")), exit_code=_exit_code(checks)
    )
    described = describe_environment(machine, __version__)
    return report, {**described, "system": system, "checks": [_plain(check) for check in checks]}


def check_hosts(launcher: Launcher, ranks: Mapping[str, tuple[int, ...]]) -> tuple[Report, dict[str, Any]]:
    """The same for several hosts, which should be alike; `ranks` has those of each."""
    nodes, systems = launcher.nodes(), launcher.systems()
    hosts = checks_of_hosts(nodes, systems, ranks)
    between = checks_between(hosts)
    report = Report(
        sections=host_sections(hosts, between),
        exit_code=_exit_code((*between, *(check for host in hosts for check in host.checks))),
    )
    lines: list[dict[str, str | None]] = [
        {"host": host.host, **_plain(check)} for host in hosts for check in host.checks
    ]
    lines += [{"host": None, **_plain(check)} for check in between]
    described = describe_environment(launcher.machine(), __version__, nodes)
    return report, {**described, "systems": systems, "ranks": ranks, "checks": lines}


def _plain(check: Check) -> dict[str, str]:
    return {"level": check.level, "subject": check.subject, "text": check.text, "advice": check.advice}


def _exit_code(checks: tuple[Check, ...]) -> int:
    return ExitCode.CANNOT_RUN if any(check.level == "fail" for check in checks) else ExitCode.OK
