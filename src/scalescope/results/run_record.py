"""run.json: which command made a run, and why it ended."""

import math
import shlex
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from scalescope.results.files import to_text, write_atomically
from scalescope.results.result import SCHEMA_VERSION
from scalescope.results.run_folder import (
    EXPERIMENT,
    JOB_RECORD,
    JOB_REQUEST,
    RUN,
    TRIALS,
    find_runs,
    read_json,
    writer_of,
)
from scalescope.results.stored.files import Unreadable, parse_json, stored_lines

WhyEnded = Literal["finished", "budget", "interrupted", "ranks_lost", "failed"]
UNKNOWN_VERB = ""
_MOST_RANKS = 1 << 24
COMPARED = "compare"  # launches made in turns for a comparison: no request alone repeats them


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """Why a run ended, and what it left undone."""

    why: WhyEnded
    missing: int | None = None  # launches that were planned and not made; None where that is not known
    failed: int | None = None  # launches that failed, and may succeed when they are repeated
    budget_s: float | None = None
    next_launch_s: float | None = None  # what the first of them is expected to take
    rest_s: float | None = None  # what all of them are expected to take
    start_s: float | None = None  # what the command took before its first launch
    signal: str | None = None
    message: str | None = None  # what stopped a run that failed


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The command of a run, and its end; the end is None while it is being measured, or after a crash."""

    verb: str = UNKNOWN_VERB
    flags: tuple[str, ...] = ()  # of the verb alone; settings are in experiment.yaml
    name: str | None = None
    directory: str | None = None  # where the command was started: files of the request are named from there
    started_at: str | None = None  # when the run began, however often it was continued
    repeatable: bool = True  # False where ranks of torchrun or srun measured it: one launch of everything
    attached_ranks: int | None = None  # those that torchrun or srun started; None: they were started for it
    end: RunEnd | None = None


def resume_argv(path: Path, budget_s: float | None = None, repeats: int | None = None) -> tuple[str, ...]:
    """The command that continues a run, from any folder."""
    budget = () if budget_s is None else ("--budget", round_duration(budget_s))
    more = () if repeats is None else ("--repeats", str(repeats))
    return ("scalescope", "resume", str(path.absolute()), *budget, *more)


def resume_command(path: Path, budget_s: float | None = None) -> str:
    """The same as text for a shell."""
    return shlex.join(resume_argv(path, budget_s))


def round_duration(seconds: float) -> str:
    """At least so long, as a round number that flags take: 40s, 3m, 2h."""
    for unit_s, unit, step in ((1, "s", 5), (60, "m", 1), (3600, "h", 1)):
        number = math.ceil(seconds / unit_s / step) * step
        if number < 100 or unit == "h":
            return f"{max(number, step)}{unit}"
    raise AssertionError


def write_run_record(path: Path, record: RunRecord) -> None:
    content = {"schema_version": SCHEMA_VERSION, **asdict(record)}
    write_atomically(path / RUN, to_text(content))


def read_run_record(path: Path) -> RunRecord:
    """The record of a run folder; what it lacks, or has with another type, is unknown."""
    raw = read_json(path / RUN)
    if raw is None:  # a job that has not begun has what was asked of it
        job = read_json(path / JOB_RECORD)
        if not isinstance(job, dict):
            return RunRecord()
        raw = {"verb": job.get("verb"), "flags": job.get("verb_flags")}
    from scalescope.results.stored.records import without_misfits

    record = without_misfits(RunRecord, raw, RUN, lambda problem: None) or RunRecord()
    is_possible = 0 < (record.attached_ranks or 1) <= _MOST_RANKS
    return record if is_possible else replace(record, attached_ranks=None)


def is_unfinished(path: Path, record: RunRecord | None = None) -> bool:
    """Whether something of a run is left to measure; of one that was killed, or is a job, nobody knows."""
    end = (record or read_run_record(path)).end
    return end is None or end.why != "finished" or bool(end.missing or end.failed)


def newest_unfinished_run(verb: str, root: Path) -> Path | None:
    """The run of a verb that began last, has not finished and is not being measured; None without one."""
    runs = sorted(find_runs(root, jobs=True), key=began_at, reverse=True)
    candidates = (path for path in runs if read_run_record(path).verb == verb)
    return next((path for path in candidates if is_unfinished(path) and writer_of(path) is None), None)


def began_at(path: Path, record: RunRecord | None = None) -> datetime:
    """When a run began; of one that does not say so, when its oldest file was last changed."""
    for is_recorded in (True, False):  # reading the launches takes longer
        try:
            text = (record or read_run_record(path)).started_at if is_recorded else _first_start(path)
            moment = datetime.fromisoformat(text or "")
        except ValueError:
            continue
        if not 1970 <= moment.year < 9999:  # valid in every time zone
            continue
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    files = [path / name for name in (EXPERIMENT, JOB_REQUEST, TRIALS)]
    changed = [file.lstat().st_mtime for file in files if file.is_file()]
    try:
        return datetime.fromtimestamp(min(changed, default=0.0), UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(0.0, UTC)


def _first_start(path: Path) -> str | None:
    """When the first launch of a run started."""
    try:
        _, line = next(stored_lines(path / TRIALS, lambda warning: None))
        record = parse_json(line)
    except (StopIteration, Unreadable):
        return None
    started_at = record.get("started_at") if isinstance(record, dict) else None
    return started_at if isinstance(started_at, str) else None
