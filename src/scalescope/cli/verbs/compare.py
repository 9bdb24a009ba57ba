"""`scalescope compare`: whether a run is slower than an earlier one."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalescope.cli.interruption import interruptible
from scalescope.errors import BadInput

if TYPE_CHECKING:
    from scalescope.studies.comparison.compare import ComparisonReport

_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%?")
_BUDGET = "10m"
_WINDOW = "3s"


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="BASE NEW [RUN...]")
@click.option(
    "--threshold",
    default="3%",
    metavar="PERCENT",
    help="Slower by more than this, and surely so, ends with exit code 8. [default: 3%]",
)
@click.option("--any-hardware", is_flag=True, help="Compare runs of different machines all the same.")
@click.option(
    "--until-conclusive",
    is_flag=True,
    help="Measure NEW further where it is too noisy to judge; BASE is not measured again.",
)
@click.option("--budget", metavar="TIME", help=f"Time that --until-conclusive may take. [default: {_BUDGET}]")
@click.option(
    "--window", metavar="TIME", help=f"How long each of these launches measures. [default: {_WINDOW}]"
)
@click.option("--side-by-side", is_flag=True, help="Show how runs scale beside each other, without a gate.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write it as data.")
@click.option(
    "--markdown", "markdown_file", type=click.Path(path_type=Path), help="Also write it as Markdown."
)
@click.option("-v", "--verbose", is_flag=True, help="Also show everything that found no partner.")
def command(**arguments: Any) -> None:
    """Compare two stored runs: what is slower in NEW than in BASE, and by how much.

    Exit code 8 says that a configuration is slower beyond the threshold. Three or more runs are laid side
    by side instead. Nothing is measured, but with --until-conclusive. Example:

      scalescope compare runs/main runs/latest --threshold 3% --markdown comment.md
    """
    threshold = _threshold(arguments["threshold"])
    limits = Limits(
        budget_s=_duration("budget", arguments["budget"], _BUDGET),
        window_s=_duration("window", arguments["window"], _WINDOW),
    )
    for name in ("budget", "window"):
        if arguments[name] is not None and not arguments["until_conclusive"]:
            raise BadInput(f"--{name} is for --until-conclusive; without it nothing is measured")
    report = _report(arguments, threshold, limits)
    from scalescope.report.render.markdown import markdown
    from scalescope.report.render.terminal import console, show
    from scalescope.results.files import to_text, write_atomically

    show(report.sections, console(), verbose=arguments["verbose"])
    if arguments["json_file"] is not None:
        write_atomically(arguments["json_file"], to_text(report.data))
    if arguments["markdown_file"] is not None:
        write_atomically(arguments["markdown_file"], markdown(report.sections))
    sys.exit(report.exit_code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long further launches may take: all together, and the window of each."""

    budget_s: float
    window_s: float


def _report(arguments: dict[str, Any], threshold: float, limits: Limits) -> "ComparisonReport":
    from scalescope.studies.comparison.compare import compare, lay_side_by_side

    runs = arguments["runs"]
    if len(runs) < 2:
        raise BadInput("compare needs two runs: BASE and NEW")
    if len(runs) > 2 or arguments["side_by_side"]:
        if arguments["until_conclusive"]:
            raise BadInput("--until-conclusive is for two runs, BASE and NEW")
        return lay_side_by_side(runs)
    if not arguments["until_conclusive"]:
        return compare(runs[0], runs[1], threshold, any_hardware=arguments["any_hardware"])
    if arguments["any_hardware"]:
        raise BadInput("--until-conclusive needs the machine of both runs; leave --any-hardware out")
    return _measuring(runs, threshold, limits, verbose=arguments["verbose"])


def _measuring(
    runs: tuple[Path, Path], threshold: float, limits: Limits, *, verbose: bool
) -> "ComparisonReport":
    """Compare with a launcher at hand, which loads torch in a process of its own when it is needed."""
    from scalescope.cli.progress import TerminalWatcher
    from scalescope.launch.local.launcher import LocalLauncher
    from scalescope.results.run import Run
    from scalescope.studies.comparison.compare import compare
    from scalescope.studies.comparison.extend import extend

    with interruptible(), TerminalWatcher(every_placement=False, verbose=verbose) as watcher:
        launcher = LocalLauncher()

        def further(base: Run, new: Run) -> tuple[Run, tuple[str, ...]]:
            return extend(base, new, threshold, limits.budget_s, launcher, watcher, limits.window_s)

        try:
            return compare(*runs, threshold, extend=further)
        finally:
            launcher.close()


def _threshold(text: str) -> float:
    match = _PERCENT.fullmatch(text.strip())
    if match is None or not 0.0 < float(match[1]) < 100.0:
        raise BadInput(f"--threshold: expected a share such as 3%, got {text!r}")
    return float(match[1]) / 100.0


def _duration(name: str, text: str | None, default: str) -> float:
    from scalescope.catalog.setting import Setting, parse_value

    limit = Setting(name=name, kind="duration", default=None, help="", card="compare", low=0.01)
    seconds = parse_value(limit, text or default, f"--{name}")
    assert isinstance(seconds, float)
    return seconds
