"""`scalescope list`: the runs that are there."""

from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalescope.cli.streams import print_json
from scalescope.errors import BadInput

if TYPE_CHECKING:
    from scalescope.report.runs import ListedRun

_DEFAULT = Path("runs")  # which the first run makes
_UNFINISHED = "unfinished"
_STATUSES = (_UNFINISHED, "running", "finished", "failed", "budget", "interrupted", "killed", "submitted")


@click.command("list")
@click.argument("root", type=click.Path(path_type=Path), default=_DEFAULT)
@click.option("--verb", metavar="VERB", help="Only runs of this verb: scale, train ...")
@click.option("--workload", metavar="TEXT", help="Only runs of workloads whose name contains this text.")
@click.option(
    "--status",
    type=click.Choice(_STATUSES),
    metavar="STATUS",
    help=f"Only runs with this status: {', '.join(_STATUSES)}.",
)
@click.option("--since", metavar="TIME", help="Only runs started since: 12h, 3d or 2026-01-31.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show at most N runs, newest first.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def command(
    root: Path,
    verb: str | None,
    workload: str | None,
    status: str | None,
    since: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List the runs below ROOT (default: runs), newest first.

    Example:

      scalescope list --status unfinished --since 7d
    """
    from scalescope.report.render.terminal import console, show
    from scalescope.report.runs import listed_runs, runs_section

    if not root.is_dir() and root != _DEFAULT:
        what = "is not a folder" if root.exists() else "no such folder"
        raise BadInput(f"list: {root}: {what}; scalescope list FOLDER lists the runs below a folder")
    earliest = None if since is None else _moment(since, datetime.now().astimezone())

    def is_wanted(run: "ListedRun") -> bool:
        return (
            (verb is None or run.verb == verb)
            and (workload is None or any(workload.lower() in name.lower() for name in run.workloads))
            and (status is None or _has_status(run, status))
            and (earliest is None or run.started >= earliest)
        )

    runs = list(islice(filter(is_wanted, listed_runs(root)), limit))
    if as_json:
        print_json([run.to_json() for run in runs])
        return
    filtered = any(value is not None for value in (verb, workload, status, since))
    show((runs_section(runs, root, filtered=filtered),), console())


def _has_status(run: "ListedRun", status: str) -> bool:
    if status == _UNFINISHED:
        return run.is_unfinished and run.status != "running"
    return run.status == status


def _moment(text: str, now: datetime) -> datetime:
    """The time that --since names: so long ago, or on that day."""
    number, unit = text[:-1], text[-1:]
    units = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
    try:
        if unit in units and number.isdecimal():
            return now - int(number) * units[unit]
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise BadInput(f"--since: expected a time such as 12h, 3d or 2026-01-31, got {text!r}") from None
