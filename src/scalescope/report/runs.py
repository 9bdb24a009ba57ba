"""The list of runs below a folder."""

from collections import Counter
from pathlib import Path
from typing import Any

from scalescope.report.numbers import counted
from scalescope.report.section import Section, Table
from scalescope.results.old_formats import summary_status
from scalescope.results.run_folder import RESULTS, TRIALS, find_runs, read_json
from scalescope.results.run_record import read_run_record

_COLUMNS = ("run", "command", "name", "ranks", "device", "trials", "ended", "started")
_UNKNOWN_END = ""  # of runs from before it was recorded, and of those that are still measured


def runs_section(root: Path) -> Section:
    """One row for each run, from its summary and its record alone."""
    rows = [_row(path) for path in find_runs(root)]
    if not rows:
        return Section(lines=(f"No runs below {root}.",))
    kept = [name for name in _COLUMNS if any(row[name] for row in rows)]
    cells = tuple(tuple(row[name] for name in kept) for row in rows)
    table = Table(columns=tuple(kept), rows=cells, left=frozenset(kept), optional=("device", "name"))
    return Section(table=table)


def _row(path: Path) -> dict[str, str]:
    summary: Any = read_json(path / RESULTS)
    record = read_run_record(path)
    row = dict.fromkeys(_COLUMNS, "")
    row |= {"run": str(path), "command": record.verb or "unknown"}
    row["ended"] = _UNKNOWN_END if record.end is None else record.end.why.replace("_", " ")
    try:
        counts = Counter(summary_status(trial) for trial in summary["results"]["training"])
        device = summary["config"]["device"]
    except (AttributeError, KeyError, IndexError, TypeError):
        return row | {"trials": _launches(path)}
    trials = ", ".join(f"{count} {status}" for status, count in sorted(counts.items(), reverse=True))
    name = str(summary.get("name", ""))
    return row | {
        "command": record.verb or str(summary.get("verb", "unknown")),
        "name": "" if name == path.name else name,
        "ranks": str(summary.get("world_size") or ""),
        "device": str(device or "unknown"),
        "trials": trials or "none",
        "started": str(summary.get("timestamp") or "")[:16].replace("T", " "),
    }


def _launches(path: Path) -> str:
    """What a run without a summary has: its process was killed, or it is still measured."""
    try:
        launches = (path / TRIALS).read_bytes().count(b"\n")
    except OSError:
        launches = 0
    return "no summary" if not launches else f"stopped after {counted(launches, 'launch')}"
