"""`scalescope compare`: whether a run is slower than an earlier one."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalescope.catalog.setting import Setting, parse_value, threshold_from
from scalescope.cli.outputs import output_options, show_and_write
from scalescope.cli.streams import interruptible
from scalescope.errors import BadInput, Interrupted

if TYPE_CHECKING:
    from scalescope.experiment.given import Entries
    from scalescope.studies.comparison.compare import ComparisonReport

_BUDGET = "5m"
_WINDOW = "3s"


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="BASE NEW [RUN...]")
@click.option(
    "--threshold",
    default="3%",
    metavar="PERCENT",
    help="Exit with code 8 if significantly slower than this. [default: 3%]",
)
@click.option(
    "--fail-inconclusive",
    is_flag=True,
    help="Exit with code 6 if any result is inconclusive or the two runs did different work.",
)
@click.option("--any-hardware", is_flag=True, help="Compare even if the runs are from different machines.")
@click.option(
    "--interleave",
    is_flag=True,
    help="Measure both again, alternating, and compare those launches: less noise than two separate runs.",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="With --interleave and only BASE: NEW is BASE with this setting changed. May be repeated.",
)
@click.option("--budget", metavar="TIME", help=f"Time budget for --interleave. [default: {_BUDGET}]")
@click.option(
    "--window", metavar="TIME", help=f"Measuring time per launch, for --interleave. [default: {_WINDOW}]"
)
@click.option("--trust", is_flag=True, help="With --interleave: run stored commands, whoever wrote them.")
@click.option("--side-by-side", is_flag=True, help="Show how runs scale side by side, without a verdict.")
@output_options
@click.option("-v", "--verbose", is_flag=True, help="Also show configurations that only one run has.")
def command(**arguments: Any) -> None:
    """Compare two stored runs: what is slower in NEW than in BASE, and by how much.

    Exit code 8 means that a configuration is slower beyond the threshold. Three or more runs are shown side
    by side instead. Only --interleave measures anything. BASE and NEW may also be profiler traces of one job,
    or folders of traces: then compare shows parts of the step, exchanges and operations. Example:

      scalescope compare runs/main runs/latest --threshold 3% --markdown comment.md
    """
    from scalescope.studies.traces import are_traces

    _check(arguments)
    report = _traces_compared(arguments) if are_traces(arguments["runs"]) else _report(arguments)
    _show(report, arguments)
    sys.exit(report.exit_code)


def _show(report: "ComparisonReport", arguments: dict[str, Any]) -> None:
    names = " and ".join(path.name or str(path) for path in arguments["runs"])
    show_and_write(report, arguments, f"scalescope: {names}", names)


def _check(arguments: dict[str, Any]) -> None:
    """Refuse flags that contradict each other, before anything is read."""
    threshold_from(arguments["threshold"], "--threshold")
    for name, default in (("budget", _BUDGET), ("window", _WINDOW)):
        _duration(name, arguments[name], default)
    for name in ("budget", "window"):
        if arguments[name] is not None and not arguments["interleave"]:
            raise BadInput(f"--{name} requires --interleave; without it nothing is measured")
    count = len(arguments["runs"])
    if arguments["changes"] and (not arguments["interleave"] or count != 1):
        raise BadInput("--set requires --interleave and a single run, BASE")
    if count < 2 and not arguments["changes"]:
        alone = "; give NEW, or what to change with --set" if arguments["interleave"] else ""
        raise BadInput(f"compare requires two runs: BASE and NEW{alone}")
    if arguments["interleave"] and (count > 2 or arguments["side_by_side"]):
        raise BadInput("--interleave requires exactly two runs, BASE and NEW")
    if arguments["interleave"] and arguments["any_hardware"]:
        raise BadInput("--interleave measures on this machine and cannot be used with --any-hardware")


def _traces_compared(arguments: dict[str, Any]) -> "ComparisonReport":
    """Two recordings of one job, by what their traces hold."""
    from scalescope.studies.comparison.compare import ComparisonReport
    from scalescope.studies.traces import compare_traces

    if len(arguments["runs"]) > 2 or arguments["interleave"] or arguments["side_by_side"]:
        raise BadInput("compare takes exactly two traces, without --interleave and --side-by-side")
    compared = compare_traces(*arguments["runs"])
    return ComparisonReport(sections=compared.sections, data=compared.data, chapters=compared.chapters)


def _report(arguments: dict[str, Any]) -> "ComparisonReport":
    from scalescope.studies.comparison.compare import compare, show_side_by_side

    runs = arguments["runs"]
    if len(runs) > 2 or arguments["side_by_side"]:
        return show_side_by_side(runs)
    if arguments["interleave"]:
        return _interleaved(arguments)
    return compare(
        runs[0],
        runs[1],
        threshold_from(arguments["threshold"], "--threshold"),
        any_hardware=arguments["any_hardware"],
        fail_inconclusive=arguments["fail_inconclusive"],
    )


def _interleaved(arguments: dict[str, Any]) -> "ComparisonReport":
    """Measure both sides in turns, with a launcher that loads torch in a process of its own."""
    from scalescope.launch.local.launcher import LocalLauncher
    from scalescope.progress.terminal import TerminalWatcher
    from scalescope.report.comparison.two_runs import Compared
    from scalescope.studies.comparison.compare import load_comparable, report_of_comparison
    from scalescope.studies.comparison.interleave import Limits, interleave_changes, interleave_runs
    from scalescope.studies.runs.trust import refuse_untrusted

    for path in arguments["runs"]:
        refuse_untrusted(path, trusted=arguments["trust"])
    limits = Limits(
        threshold=threshold_from(arguments["threshold"], "--threshold"),
        budget_s=_duration("budget", arguments["budget"], _BUDGET),
        window_s=_duration("window", arguments["window"], _WINDOW),
    )
    watcher = TerminalWatcher(every_placement=False, verbose=arguments["verbose"])
    try:
        with interruptible(), watcher:
            launcher = LocalLauncher()
            try:
                base, *others = (load_comparable(path) for path in arguments["runs"])
                if others:
                    compared = interleave_runs(base, others[0], limits, launcher, watcher)
                else:
                    changes = _changes(arguments["changes"])
                    compared = interleave_changes(base, changes, limits, launcher, watcher)
            finally:
                launcher.close()
    except Interrupted as interruption:
        if isinstance(interruption.report, Compared):  # the answer so far
            _show(report_of_comparison(interruption.report, fail_inconclusive=False), arguments)
        raise
    return report_of_comparison(compared, fail_inconclusive=arguments["fail_inconclusive"])


def _changes(texts: tuple[str, ...]) -> "Entries":
    """NAME=VALUE of each --set, as an experiment's settings."""
    from scalescope.experiment.given import Given

    changes: Entries = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise BadInput(f"--set: expected NAME=VALUE, got {text!r}")
        changes[name.strip().replace("-", "_")] = (Given(value.strip(), f"--set {text}"),)
    return changes


def _duration(name: str, text: str | None, default: str) -> float:
    limit = Setting(name=name, kind="duration", default=None, help="", card="compare", low=0.01)
    seconds = parse_value(limit, text or default, f"--{name}")
    assert isinstance(seconds, float)
    return seconds
