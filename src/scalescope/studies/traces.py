"""`explain` and `compare` of traces that a profiler of torch wrote, of jobs that were not measured here."""

import json
import os
import re
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scalescope.analysis.trace.changes import compare_jobs
from scalescope.analysis.trace.job import JobTrace
from scalescope.cores import usable_cores
from scalescope.diagnose.finding import Diagnosis
from scalescope.diagnose.trace_rules import diagnose
from scalescope.errors import BadInput, CannotRun
from scalescope.interpreter import python_module
from scalescope.quantities import counted
from scalescope.report.chapter import Chapter, answer_chapters
from scalescope.report.findings import findings_section
from scalescope.report.key_figures import trace_change_figures
from scalescope.report.section import Section
from scalescope.report.trace.changes import (
    changes_figure,
    changes_json,
    changes_sections,
    changes_verdict,
)
from scalescope.report.trace.job import job_json, job_sections
from scalescope.results.printable import printable
from scalescope.results.run_folder import is_run_folder
from scalescope.results.stored.files import open_regular
from scalescope.results.traces.job_trace import RankTrace

_ENDINGS = (".json", ".json.gz")
_MOST_FILES = 100_000
_LOOKED_AT = 1 << 20  # bytes, unpacked: facts about the job stand before its events
_RANK = re.compile(r"rank[_-]?(\d{1,7})", re.IGNORECASE)
_NUMBERS = re.compile(r"\d+")
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedTraces:
    """A job's traces, and what they show."""

    job: JobTrace
    diagnosis: Diagnosis

    @property
    def findings(self) -> tuple[Section, ...]:
        return findings_section(self.diagnosis, every=True)

    @property
    def sections(self) -> tuple[Section, ...]:
        return (*job_sections(self.job, self.diagnosis), *self.findings)

    @property
    def data(self) -> dict[str, Any]:
        return job_json(self.job, self.diagnosis)


def are_traces(paths: Sequence[Path]) -> bool:
    """Whether paths are traces, or folders that hold some and no run."""
    return bool(paths) and all(map(_is_trace, paths))


def _is_trace(path: Path) -> bool:
    if path.is_dir():
        return not is_run_folder(path) and any(map(_looks_like_trace, _files_in(path)[:20]))
    return path.name.endswith(_ENDINGS) and path.is_file() and _looks_like_trace(path)


def _looks_like_trace(path: Path) -> bool:
    """By its beginning; a damaged or truncated trace still is one."""
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            start = stream.read(_LOOKED_AT)
    except OSError:
        return False
    if path.suffix == ".gz":
        try:
            start = zlib.decompressobj(wbits=31).decompress(start, _LOOKED_AT)
        except zlib.error:
            return True  # named as damaged
    return b'"traceEvents"' in start or start.lstrip()[:1] == b"["


def _files_in(folder: Path) -> list[Path]:
    """Traces below a folder, by name with numbers in their order; neither links nor runs are followed."""
    found: list[Path] = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_run_folder(Path(root) / name))
        found += [Path(root) / name for name in names if name.endswith(_ENDINGS)]
        if len(found) > _MOST_FILES:
            raise BadInput(f"{folder} contains more than {_MOST_FILES:,} files; give the folder of one job")
    return sorted(found, key=lambda path: (path.parent, _in_order(path.name)))


def _in_order(name: str) -> list[object]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d{1,9})", name)]


def explain_traces(paths: Sequence[Path], progress: Progress = lambda done, of: None) -> ExplainedTraces:
    """The traces of one job, read in as many processes as there are cores."""
    job = read_job(paths, progress)
    return ExplainedTraces(job=job, diagnosis=diagnose(job))


def read_job(paths: Sequence[Path], progress: Progress = lambda done, of: None) -> JobTrace:
    """The ranks of one job; what cannot be read is named, and the rest is used."""
    files = [file for path in paths for file in (_files_in(path) if path.is_dir() else [path])]
    if not files:
        raise BadInput(f"{paths[0]} contains no traces (.json or .json.gz files)")
    traces, unread = _read_all(list(dict.fromkeys(files)), progress)
    if not traces:
        first, reason = next(iter(unread.items()))
        more = f", nor can {counted(len(unread) - 1, 'more file')}" if len(unread) > 1 else ""
        raise BadInput(f"{first} cannot be read: {reason}{more}")
    chosen, left_out = _of_one_job(traces)
    return JobTrace(ranks=tuple(chosen), unread={**unread, **left_out})


def _read_all(
    files: Sequence[Path], progress: Progress
) -> tuple[list[tuple[Path, RankTrace]], dict[str, str]]:
    """Each file in a process of its own, which its memory and its faults do not outlive."""
    answers: dict[Path, RankTrace | str] = {}
    running: set[subprocess.Popen[bytes]] = set()
    with ThreadPoolExecutor(max_workers=max(1, min(len(files), usable_cores()))) as pool:
        tasks = {pool.submit(_read, file, running): file for file in files}
        try:
            for task in as_completed(tasks):
                answers[tasks[task]] = task.result()
                progress(len(answers), len(files))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                process.kill()
            raise
    read = [(file, answer) for file in files if isinstance(answer := answers[file], RankTrace)]
    unread = {printable(str(file)): answer for file in files if isinstance(answer := answers[file], str)}
    return read, unread


def _read(file: Path, running: "set[subprocess.Popen[bytes]]") -> RankTrace | str:
    command = python_module("scalescope.results.traces.job_trace", str(file.absolute()))
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        raise CannotRun(f"explain: a process to read traces cannot be started: {error.strerror}") from None
    running.add(process)
    try:
        output, _ = process.communicate()
    finally:
        running.discard(process)
    try:
        answer = json.loads(output)
        if "refused" in answer:
            return printable(str(answer["refused"]))[:300]
        return RankTrace.from_json(answer["trace"])
    except (ValueError, KeyError, TypeError):
        return f"the process that read it exited with code {process.returncode}"


def _of_one_job(read: Sequence[tuple[Path, RankTrace]]) -> tuple[list[RankTrace], dict[str, str]]:
    """The traces of the job with the most ranks, each rank once; files of one job have names that differ in
    numbers alone, and the same number of ranks."""
    jobs: dict[tuple[object, ...], list[tuple[Path, RankTrace]]] = defaultdict(list)
    for file, trace in read:
        named = _RANK.search(file.name)
        if trace.rank is None and named is not None:
            trace = replace(trace, rank=int(named[1]))
        jobs[_job_of(file, trace)].append((file, trace))
    if len({trace.world_size for _, trace in read}) == 1 and not _has_twice(read):
        jobs = {(): [each for members in jobs.values() for each in members]}  # named by hosts, for instance
    chosen = max(jobs.values(), key=len)
    left_out = {
        printable(
            str(file)
        ): f"another job or recording in the same folder ({chosen[0][1].file} is explained)"
        for members in jobs.values()
        if members is not chosen
        for file, _ in members
    }
    ranks: dict[int | str, RankTrace] = {}
    for file, trace in chosen:
        key = str(file) if trace.rank is None else trace.rank
        if key in ranks:
            left_out[printable(str(file))] = f"rank {trace.rank} is read from {ranks[key].file} already"
        else:
            ranks[key] = trace
    return list(ranks.values()), left_out


def _has_twice(read: Sequence[tuple[Path, RankTrace]]) -> bool:
    ranks = [trace.rank for _, trace in read if trace.rank is not None]
    return len(set(ranks)) < len(ranks)


def _job_of(file: Path, trace: RankTrace) -> tuple[object, ...]:
    """What the files of one job have in common: our own end with launch and rank."""
    own = re.match(r"(.*)-\d+\.pt\.trace\.json", file.name)
    stem = own[1] if own else _NUMBERS.sub("#", file.name.removesuffix(".gz"))
    return (trace.world_size, file.parent, stem)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTraces:
    """What became slower from one recording to another."""

    sections: tuple[Section, ...]
    data: dict[str, Any]
    chapters: tuple[Chapter, ...]


def compare_traces(old: Path, new: Path, progress: Progress = lambda done, of: None) -> ComparedTraces:
    """The traces of two recordings of one job, by operation, collective and idle cause."""
    changes = compare_jobs(read_job([old], progress), read_job([new], progress))
    sections = changes_sections(changes)
    verdict = Section(lines=(changes_verdict(changes),))
    return ComparedTraces(
        sections=sections,
        data=changes_json(changes),
        chapters=answer_chapters(
            (verdict,), sections, (changes_figure(changes),), trace_change_figures(changes)
        ),
    )
