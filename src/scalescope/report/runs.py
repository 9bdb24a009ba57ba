"""The list of runs below a folder, newest first, from their records and the heads of their summaries."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from scalescope.errors import BadInput
from scalescope.experiment.yaml_file import read_experiment_file
from scalescope.report.commands import command_name
from scalescope.report.numbers import counted, data_rate, shortened, significant
from scalescope.report.section import Section, Table
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
from scalescope.results.stored.files import Unreadable, open_regular, parse_json, stored_lines

_COLUMNS = ("run", "command", "workload", "ranks", "result", "status", "started", "name", "trials", "device")
_LEFT_OUT = (
    "device",
    "trials",
    "name",
    "command",
    "started",
    "workload",
)  # where the page is narrow, in this order
_LONGEST_WORKLOAD = 11  # all important columns then fit in 80 characters
_LONGEST_STATUS = 20
_HEAD_BYTES = 1 << 14  # of results.json: what stands above the results themselves
_RESULTS_BEGIN = b',\n "results": {'  # a line break is in no JSON text, so this is the key and no value
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
    launches: int
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


def listed_runs(root: Path) -> Iterator[ListedRun]:
    """All runs at or below a folder, the newest first; each is read when it is asked for."""
    records = [(path, read_run_record(path)) for path in find_runs(root, jobs=True)]
    found = [(began_at(path, record), str(path), record) for path, record in records]
    for started, path, record in sorted(found, key=lambda run: run[:2], reverse=True):
        yield _listed(Path(path), record, started)


def headline_json(results: Mapping[str, Any], verb: str, launches: int) -> dict[str, Any]:
    """What the list shows of the results of a run; results.json has it at its head."""
    training = _entries(results.get("training"))
    figure = _figure(verb, results)
    return {
        "workloads": list(_workloads((*training, *_entries(results.get("memory"))))),
        "trials": dict(
            Counter(str(entry["status"])[:_LONGEST_STATUS] for entry in training if "status" in entry)
        ),
        "launches": launches,
        "figure": None if figure is None else asdict(figure),
    }


def runs_section(runs: Iterable[ListedRun], root: Path, *, filtered: bool = False) -> Section:
    """One row for each run; columns that say nothing are left out."""
    rows = [_row(run) for run in runs]
    if not rows:
        like_this = " like this" if filtered else ""
        return Section(lines=(f"No runs{like_this} below {root}.",))
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


def _listed(path: Path, record: RunRecord, started: datetime) -> ListedRun:
    summary = _summary(path, record.verb)
    headline = summary["headline"]
    name = record.name or _text(summary.get("name"))
    workloads, ranks = _texts(headline.get("workloads")), _whole(summary.get("world_size"))
    if not workloads or ranks is None:
        asked, most_ranks = _requested(path)
        workloads, ranks = workloads or asked, most_ranks if ranks is None else ranks
    return ListedRun(
        path=path,
        verb=record.verb or _text(summary.get("verb")),
        name=None if name == path.name else name,
        started=started,
        status=_status(path, record),
        is_unfinished=is_unfinished(path, record),
        workloads=workloads,
        ranks=ranks,
        device=_text(_mapping(summary.get("config")).get("device")),
        trials={status: count for status, count in _mapping(headline.get("trials")).items() if _whole(count)},
        launches=_whole(headline.get("launches")) or 0,
        figure=_tuned(path) if record.verb == "tune" else _stored_figure(headline.get("figure")),
    )


def _summary(path: Path, verb: str) -> Mapping[str, Any]:
    """The head of results.json; of one without a headline the whole file, with the headline it would have."""
    with contextlib.suppress(OSError, Unreadable):
        with os.fdopen(open_regular(path / RESULTS), "rb") as stream:
            head, found, _ = stream.read(_HEAD_BYTES).partition(_RESULTS_BEGIN)
        summary = _mapping(parse_json(head + b"}")) if found else {}
        if isinstance(summary.get("headline"), dict):
            return summary
    summary = _mapping(read_json(path / RESULTS))
    return {**summary, "headline": headline_json(_mapping(summary.get("results")), verb, _launches(path))}


def _status(path: Path, record: RunRecord) -> RunStatus:
    if writer_of(path) is not None:
        return "running"
    if record.end is not None:
        if record.end.why == "finished":
            return "failed" if record.end.failed else "finished"
        return record.end.why
    if (path / JOB_REQUEST).is_file():
        return "submitted"
    return "killed" if (path / RUN).is_file() else "unknown"


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


def _tuned(path: Path) -> HeadlineFigure | None:
    confirmed = _mapping(_mapping(read_json(path / TUNING)).get("confirmed"))
    return _largest("tuned_speedup", [confirmed], "speedup")


def _stored_figure(raw: object) -> HeadlineFigure | None:
    stored = _mapping(raw)
    for kind in get_args(FigureKind):
        if stored.get("kind") == kind:
            return _largest(kind, [stored], "value")
    return None


def _figure(verb: str, results: Mapping[str, Any]) -> HeadlineFigure | None:
    """The first of these that a run has: speedup, throughput, bandwidth, batch; a search has its own file."""
    if verb == "tune":
        return None
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


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _texts(value: object) -> tuple[str, ...]:
    members = value if isinstance(value, list) else ()
    return tuple(text for member in members if (text := _text(member)) is not None)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
