"""The list of runs below a folder."""

from collections import Counter
from pathlib import Path
from typing import Any

from scalescope.report.numbers import counted
from scalescope.report.section import Section, Table
from scalescope.results.run_folder import RESULTS, TRIALS, find_runs, read_json
from scalescope.results.run_record import UNKNOWN_VERB, read_run_record

_COLUMNS = ("run", "command", "name", "ranks", "device", "trials", "started")


def runs_section(root: Path) -> Section:
    """One row for each run, from its summary alone."""
    rows = tuple(_row(path) for path in find_runs(root))
    if not rows:
        return Section(lines=(f"No runs below {root}.",))
    return Section(table=Table(columns=_COLUMNS, rows=rows, left=frozenset(_COLUMNS)))


def _row(path: Path) -> tuple[str, ...]:
    summary: Any = read_json(path / RESULTS)
    try:
        training = summary["results"]["training"]
        counts = Counter(str(trial["status"]) for trial in training)
        device = summary["config"]["device"]
    except (KeyError, IndexError, TypeError):
        return _row_without_summary(path)
    trials = ", ".join(f"{count} {status}" for status, count in sorted(counts.items(), reverse=True))
    return (
        str(path),
        str(summary.get("verb", "unknown")),
        str(summary.get("name", "")),
        str(summary.get("world_size") or ""),
        str(device or "unknown"),
        trials or "none",
        str(summary.get("timestamp") or "")[:19],
    )


def _row_without_summary(path: Path) -> tuple[str, ...]:
    """A run whose process was killed has its launches, and the record of its command."""
    verb = read_run_record(path).verb
    try:
        launches = (path / TRIALS).read_bytes().count(b"\n")
    except OSError:
        launches = None
    if launches is None or verb == UNKNOWN_VERB:
        return (str(path), verb or "unknown", "", "", "", "no summary", "")
    ended = f"stopped after {counted(launches, 'launch')}"
    return (str(path), verb, path.name, "", "", ended, "")
