"""Run: a run folder read back, as sections, rules and the Python API see it; launches of earlier runs."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalescope.errors import BadInput
from scalescope.experiment.observed import Observations, ObservedLaunch, as_observed, observations
from scalescope.results.files import to_line
from scalescope.results.printable import printable
from scalescope.results.result import FIRST_REPEAT, SCHEMA_VERSION, Result, to_json
from scalescope.results.run_folder import EXPERIMENT, RUN, TRIALS
from scalescope.results.run_record import RunRecord, read_run_record
from scalescope.results.schema import NOT_A_RESULT, parse_result
from scalescope.results.stored.files import open_regular, stored_lines, why_unreadable
from scalescope.results.stored.records import read_environment

# How much of earlier runs is read, to know how long launches take on this machine.
_MOST_RUNS = 10
_MOST_LAUNCHES = 50  # of each run
_LARGEST_BYTES = 4 << 20  # a file beyond that takes longer to read than it is worth
_MOST_WARNINGS = 20  # that are shown
_LONGEST_WARNING = 1_000
_MOST_BROKEN = 10_000  # lines, after which a file is not read on


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All results of a run, one record of each launch, and what could not be read."""

    path: Path
    record: RunRecord = field(default_factory=RunRecord)
    environment: dict[str, Any]
    results: tuple[Result, ...]
    warnings: tuple[str, ...]
    replaced: tuple[Result, ...] = ()  # disturbed launches that were repeated: kept, but not counted
    # By key, where the files of a launch are; empty where all are below `path`.
    folders: Mapping[tuple[str, int], Path] = field(default_factory=dict)

    def of_status(self, *statuses: str) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.status in statuses)

    def folder_of(self, result: Result) -> Path:
        """The run folder that has the files of a launch."""
        return self.folders.get(result.key, self.path)


def load_run(path: str | Path) -> Run:
    """Read a run folder; broken lines are reported and left out, the rest is kept."""
    folder = Path(path)
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such run folder")
    if not any((folder / name).is_file() for name in (TRIALS, EXPERIMENT)):
        raise BadInput(f"{folder}: contains no run")
    warnings: list[str] = []
    counted: dict[tuple[str, int], Result] = {}
    replaced: list[Result] = []
    for result in _read_results(folder / TRIALS, warnings):
        if result.launch >= FIRST_REPEAT and result.status != "ok":
            continue  # the launch that it repeats is there
        before = counted.get(result.key)
        counted[result.key], other = (result, before) if before is None else _counted(before, result)
        if other is not None and other.status == "ok":
            replaced.append(other)
    environment, misfits = read_environment(folder)
    unreadable = why_unreadable(folder / RUN)
    warnings += [*misfits, *([] if unreadable is None else [unreadable])]
    observed = observations_of((*counted.values(), *replaced))
    return Run(
        path=folder,
        record=read_run_record(folder),
        environment=environment,
        results=tuple(_as_observed(result, observed) for result in counted.values()),
        warnings=few_warnings(warnings, folder),
        replaced=tuple(_as_observed(result, observed) for result in replaced),
    )


def observations_of(results: Iterable[Result]) -> Observations:
    """What finished launches of training commands show of these."""
    finished = (result for result in results if result.status == "ok" and result.trial.is_command)
    return observations(
        ObservedLaunch(trial=result.trial, ranks=[record.counters for record in result.ranks])
        for result in finished
    )


def _as_observed(result: Result, observed: Observations) -> Result:
    """The result with what the launches of its command showed; other results as they are."""
    if not result.trial.is_command:
        return result
    return dataclasses.replace(result, settings=dict(as_observed(result.trial, observed).settings))


def _counted(before: Result, after: Result) -> tuple[Result, Result]:
    """Of two records of one launch the one that counts, then the other.

    It is the newer one, unless a disturbed launch was repeated and the repeat did not even finish.
    """
    return (before, after) if before.status == "ok" and after.status != "ok" else (after, before)


def _read_results(path: Path, warnings: list[str]) -> Iterator[Result]:
    for number, line in stored_lines(path, warnings.append):
        try:
            yield parse_result(line)
        except ValueError as error:
            warnings.append(f"{path}:{number}: left out: {_what_is_wrong(line, error)}")
            if len(warnings) > _MOST_BROKEN:
                warnings.append(f"{path}: what follows line {number} is left out: too much is broken")
                return


def few_warnings(warnings: list[str], where: Path) -> tuple[str, ...]:
    """The first warnings, and how many more there are."""
    shown = [printable(warning[:_LONGEST_WARNING]) for warning in warnings[:_MOST_WARNINGS]]
    more = len(warnings) - len(shown)
    return (*shown, f"{where}: {more} more lines or values are left out") if more else tuple(shown)


def _what_is_wrong(line: bytes, error: ValueError) -> str:
    if not line.endswith(b"\n"):
        return "the line is cut off"
    if str(error) == NOT_A_RESULT:  # of padding, json.loads would make text of four times its size
        return NOT_A_RESULT
    try:
        version = str(json.loads(line)["schema_version"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return NOT_A_RESULT
    if version.partition(".")[0] not in ("1", SCHEMA_VERSION.partition(".")[0]):
        return f"schema {version} is not {SCHEMA_VERSION}; another version of scalescope wrote it"
    return (str(error).splitlines() or [NOT_A_RESULT])[0]


def earlier_results(root: Path, environment_id: str, *, but: Path | None = None) -> list[Result]:
    """Finished launches of this machine in the newest runs of a folder, without those of the run `but`."""
    results = []
    for path in _newest_trials(root):
        if but is not None and path.parent.resolve() == but.resolve():
            continue
        for result in _first_results(path):
            if result.status == "ok" and result.environment_id == environment_id:
                results.append(result)
    return results


def _newest_trials(root: Path) -> list[Path]:
    """The results of the runs that lie directly in a folder, the newest first."""
    changed: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    trials = Path(entry.path) / TRIALS
                    status = trials.lstat()
                    if status.st_size <= _LARGEST_BYTES:
                        changed.append((status.st_mtime, trials))
    return [path for _, path in sorted(changed, reverse=True)[:_MOST_RUNS]]


def _first_results(path: Path) -> Iterator[Result]:
    with contextlib.suppress(OSError), os.fdopen(open_regular(path), "rb") as stream:
        for _, line in zip(range(_MOST_LAUNCHES), stream, strict=False):
            with contextlib.suppress(ValueError):
                yield parse_result(line)


def storable(result: Result) -> Result:
    """The result, or a failed launch where its line could not be read back: it must not vanish."""
    try:
        parse_result(to_line(to_json(result)).encode())
    except (ValueError, TypeError, RecursionError) as error:
        return dataclasses.replace(
            result,
            status="failed",
            reason=f"the result could not be stored: {printable(str(error))[:_LONGEST_WARNING]}",
            ranks=[],
            telemetry={},
        )
    return result
