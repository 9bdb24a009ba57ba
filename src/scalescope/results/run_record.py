"""run.json: which command made a run, and why it ended."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from scalescope.results.files import to_text, write_atomically
from scalescope.results.old_formats import request_of_comment
from scalescope.results.result import SCHEMA_VERSION
from scalescope.results.run_folder import EXPERIMENT, RUN, read_json

WhyEnded = Literal["finished", "budget", "interrupted", "ranks_lost", "failed"]
UNKNOWN_VERB = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """Why a run ended, and what it left undone."""

    why: WhyEnded
    missing: int | None = None  # launches that were planned and not made; None where that is not known
    budget_s: float | None = None
    next_launch_s: float | None = None  # what the first of them is expected to take
    signal: str | None = None
    message: str | None = None  # what stopped a run that failed


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The command of a run, and its end; the end is None while it is being measured, or after a crash."""

    verb: str = UNKNOWN_VERB
    flags: tuple[str, ...] = ()  # of the verb alone; settings are in experiment.yaml
    name: str | None = None
    repeatable: bool = True  # False where ranks of torchrun or srun measured it: one launch of everything
    end: RunEnd | None = None
    directory: str | None = None  # where the command ran: relative paths of its settings start there


def write_run_record(path: Path, record: RunRecord) -> None:
    content = {"schema_version": SCHEMA_VERSION, **asdict(record)}
    write_atomically(path / RUN, to_text(content))


def read_run_record(path: Path) -> RunRecord:
    """The record of a run folder; of a run older than the file, what its request says of itself."""
    raw = read_json(path / RUN)
    if not isinstance(raw, dict):
        verb, flags = request_of_comment(path / EXPERIMENT)
        return RunRecord(verb=verb, flags=flags)
    stored, name, directory = raw.get("flags"), raw.get("name"), raw.get("directory")
    return RunRecord(
        verb=str(raw.get("verb", UNKNOWN_VERB)),
        flags=tuple(map(str, stored)) if isinstance(stored, list) else (),
        name=name if isinstance(name, str) else None,
        repeatable=raw.get("repeatable") is not False,
        end=_end_of(raw.get("end")),
        directory=directory if isinstance(directory, str) else None,
    )


def _end_of(raw: Any) -> RunEnd | None:
    if not isinstance(raw, dict) or raw.get("why") not in get_args(WhyEnded):
        return None
    known = {name: raw[name] for name in RunEnd.__dataclass_fields__ if name in raw}
    return RunEnd(**known)
