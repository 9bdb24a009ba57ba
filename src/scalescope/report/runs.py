"""The list of runs below a folder, newest first, from their records and summaries alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from scalescope.errors import BadInput
from scalescope.experiment.yaml_file import read_experiment_file
from scalescope.report.commands.jobs import command_name
from scalescope.report.numbers import counted, data_rate, shortened, significant
from scalescope.report.section import Section, Table
from scalescope.results.old_formats import summary_status
from scalescope.results.run_folder import (
    EXPERIMENT,
    JOB_REQUEST,
    RESULTS,
    RUN,
    TRIALS,
    TUNING,
    find_runs,
    read_json,
    writer_of,
)
from scalescope.results.run_record import RunRecord, began_at, is_unfinished, read_run_record
from scalescope.results.stored.regular_files import stored_lines

_COLUMNS = ("run", "command", "workload", "ranks", "result", "status", "started", "name", "trials", "device")
_LEFT_OUT = (
    "device",
    "trials",
    "name",
    "command",
    "started",
    "workload",
)  # where the page is narrow, in this order
_LONGEST_WORKLOAD = 11  # so that all that matters fits 80 columns
RunStatus = Literal[
    "running", "finished", "failed", "budget", "interrupted", "ranks_lost", "killed", "submitted", "unknown"
]
FigureKind = Literal["speedup", "samples_per_s", "busbw_bytes_per_s", "largest_batch", "tuned_speedup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadlineFigure:
    """The number that a run is about."""

    kind: FigureKind
    value: float
    unit: str = "samples"  # of a speed

    @property
    def text(self) -> str:
        if self.kind == "samples_per_s":
            return f"{significant(self.value)} {self.unit}/s"
        if self.kind == "busbw_bytes_per_s":
            return data_rate(self.value)
        if self.kind == "largest_batch":
            return f"batch {self.value:,.0f}"
        return f"speedup {self.value:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """One run of the list; None is unknown."""

    path: Path
    verb: str | None
    name: str | None
    started: datetime
    status: RunStatus
    is_unfinished: bool
    workloads: tuple[str, ...]
    ranks: int | None
    device: str | None
    trials: Mapping[str, int]  # how many trials ended how; empty without a summary
    launches: int  # lines of results
    figure: HeadlineFigure | None

    def to_json(self) -> dict[str, Any]:
        figure = None if self.figure is None else {"kind": self.figure.kind, "value": self.figure.value}
        return {
            "path": str(self.path),
            "verb": self.verb,
            "name": self.name,
            "started_at": self.started.isoformat(timespec="seconds"),
            "status": self.status,
            "unfinished": self.is_unfinished,
            "workloads": list(self.workloads),
            "world_size": self.ranks,
            "device": self.device,
            "trials": dict(self.trials),
            "launches": self.launches,
            "figure": figure,
        }


def listed_runs(root: Path) -> list[ListedRun]:
    """All runs at or below a folder, the newest first."""
    runs = [_listed(path) for path in find_runs(root, jobs=True)]
    return sorted(runs, key=lambda run: (run.started, str(run.path)), reverse=True)


def runs_section(runs: Sequence[ListedRun], root: Path, *, filtered: bool = False) -> Section:
    """One row for each run; columns that say nothing are left out."""
    if not runs:
        like_this = " like this" if filtered else ""
        return Section(lines=(f"No runs{like_this} below {root}.",))
    rows = [_row(run) for run in runs]
    kept = tuple(name for name in _COLUMNS if any(row[name] for row in rows))
    cells = tuple(tuple(row[name] for name in kept) for row in rows)
    optional = tuple(name for name in _LEFT_OUT if name in kept)
    return Section(table=Table(columns=kept, rows=cells, left=frozenset(kept) - {"ranks"}, optional=optional))


def _row(run: ListedRun) -> dict[str, str]:
    counts = sorted(run.trials.items(), reverse=True)
    trials = ", ".join(f"{count} {status}" for status, count in counts)
    if not trials:
        trials = f"stopped after {counted(run.launches, 'launch')}" if run.launches else "no summary"
    workloads = [shortened(_short_workload(name), _LONGEST_WORKLOAD) for name in run.workloads]
    return {
        "run": str(run.path),
        "command": run.verb or "unknown",
        "workload": ", ".join(workloads),
        "ranks": "" if run.ranks is None else str(run.ranks),
        "result": "" if run.figure is None else run.figure.text,
        "status": run.status.replace("_", " "),
        "started": run.started.astimezone().strftime("%Y-%m-%d %H:%M"),
        "name": run.name or "",
        "trials": trials,
        "device": run.device or "",
    }


def _short_workload(name: str) -> str:
    """An own workload by its file and function, without folders and ending."""
    return Path(name).name.replace(".py:", ":")


def _listed(path: Path) -> ListedRun:
    record, summary = read_run_record(path), _mapping(read_json(path / RESULTS))
    results = _mapping(summary.get("results"))
    training = _entries(results.get("training"))
    workloads, most_ranks = _requested(path)
    name = record.name or _text(summary.get("name"))
    ranks = summary.get("world_size")
    return ListedRun(
        path=path,
        verb=record.verb or _text(summary.get("verb")),
        name=None if name == path.name else name,
        started=began_at(path),
        status=_status(path, record),
        is_unfinished=is_unfinished(path),
        workloads=_workloads((*training, *_entries(results.get("memory")))) or workloads,
        ranks=ranks if isinstance(ranks, int) else most_ranks,
        device=_text(_mapping(summary.get("config")).get("device")),
        trials=Counter(summary_status(entry) for entry in training if "status" in entry),
        launches=_launches(path),
        figure=_figure(record.verb, results, read_json(path / TUNING)),
    )


def _status(path: Path, record: RunRecord) -> RunStatus:
    if writer_of(path) is not None:
        return "running"
    if record.end is not None:
        if record.end.why == "finished":
            return "failed" if record.end.failed else "finished"
        return record.end.why
    if (path / JOB_REQUEST).is_file():
        return "submitted"
    return "killed" if (path / RUN).is_file() else "unknown"  # of runs from before it was recorded


def _requested(path: Path) -> tuple[tuple[str, ...], int | None]:
    """The workloads and the largest world size that a run was asked for, for runs without a summary."""
    try:
        asked = read_experiment_file(path / EXPERIMENT)
    except BadInput:
        return (), None
    sizes = [int(given.text) for given in asked.get("world_size", ()) if given.text.isdecimal()]
    commands = tuple(command_name(given.text) for given in asked.get("command", ()))
    workloads = commands or tuple(given.text for given in asked.get("workload", ()))
    return workloads, max(sizes, default=None)


def _workloads(entries: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    names = (_text(entry.get("workload")) for entry in entries)
    return tuple(dict.fromkeys(name for name in names if name is not None))


def _figure(verb: str, results: Mapping[str, Any], tuning: object) -> HeadlineFigure | None:
    """The first of these that a run has: what tuning gains, speedup, throughput, bandwidth, batch."""
    confirmed = _mapping(_mapping(tuning).get("confirmed"))
    if verb == "tune":
        return _largest("tuned_speedup", [confirmed], "speedup")
    scaling = [row for row in _entries(results.get("scaling")) if row.get("world_size") != 1]
    collectives = _mapping(results.get("communication")).values()
    rows = [entry for collective in collectives for entry in _entries(collective)]
    figures = (
        _largest("speedup", scaling, "speedup"),
        _largest("samples_per_s", _entries(results.get("training")), "samples_per_s"),
        _largest("busbw_bytes_per_s", rows, "busbw_bytes_per_s"),
        _largest("largest_batch", _entries(results.get("memory")), "largest_batch"),
    )
    return next((figure for figure in figures if figure is not None), None)


def _largest(kind: FigureKind, entries: Sequence[Mapping[str, Any]], name: str) -> HeadlineFigure | None:
    known = [(value, entry) for entry in entries if isinstance(value := entry.get(name), int | float)]
    if not known:
        return None
    value, entry = max(known, key=lambda pair: pair[0])
    return HeadlineFigure(kind=kind, value=float(value), unit=_text(entry.get("unit")) or "samples")


def _launches(path: Path) -> int:
    return sum(1 for _ in stored_lines(path / TRIALS, lambda warning: None))


def _mapping(value: object) -> Mapping[str, Any]:
    """A JSON object; anything else counts as an empty one."""
    return value if isinstance(value, dict) else {}


def _entries(value: object) -> list[Mapping[str, Any]]:
    """The objects of a JSON list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
