"""The list of runs below a folder."""

from collections import Counter
from pathlib import Path
from typing import Any

from scalescope.report.numbers import counted
from scalescope.report.section import Section, Table
from scalescope.results.run_folder import EXPERIMENT, RESULTS, TRIALS, find_runs, read_json

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
        counts = Counter(_status(trial) for trial in training)
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


def _status(trial: dict[str, Any]) -> str:
    """How a trial ended; one that a signal stopped did not fail by itself."""
    status = str(trial["status"])
    return "stopped" if str(trial.get("reason")).startswith("interrupted by") else status


def _row_without_summary(path: Path) -> tuple[str, ...]:
    """A run whose process was killed has its launches, and its request in the first line of the file."""
    try:
        first = (path / EXPERIMENT).read_text(encoding="utf-8").splitlines()[0].split()
        verb = first[first.index("scalescope") + 1]
        launches = (path / TRIALS).read_bytes().count(b"\n")
    except (OSError, ValueError, IndexError):
        return (str(path), "unknown", "", "", "", "no summary", "")
    return (str(path), verb, path.name, "", "", f"stopped after {counted(launches, 'launch')}", "")
