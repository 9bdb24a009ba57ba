"""Run history: the speeds of finished runs, kept in the user's cache, and the spread between them.

Every finished run of `train`, `scale` or `run` adds its configurations. What cannot be read or written is
not missed: a comparison then uses the default spread.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scalescope.analysis.comparison.environments import hardware_facts
from scalescope.analysis.comparison.runs import full_configurations
from scalescope.analysis.configurations import Configuration
from scalescope.analysis.run_spread import DEFAULT_SPREAD, RunMean, RunSpread, run_spread
from scalescope.analysis.verdicts import NO_SPREAD
from scalescope.catalog.workloads.custom import Custom, file_of
from scalescope.experiment.explanations import LENGTH, job_key
from scalescope.experiment.trial import Trial
from scalescope.results.files import to_text, write_atomically
from scalescope.results.run import Run
from scalescope.results.run_folder import read_json

FILE = "run_variance.json"
_SCHEMA_VERSION = "1.0"
_VERBS = ("train", "scale", "run")  # others choose their launches by how fast they were
_MOST_RUNS = 20  # of one job: the newest
_MOST_JOBS = 100  # of one machine


def history_file() -> Path:
    """Where the history lies; a relative XDG_CACHE_HOME does not count, as its specification says."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    root = given if given.is_absolute() else Path.home() / ".cache"
    return root / "scalescope" / FILE


def remember_run(run: Run) -> None:
    """Add a finished run to the history; what goes wrong here must not cost a run its result."""
    with contextlib.suppress(Exception):
        means = run_means(run)
        if means:
            _add(machine_id(run.environment), means)


def spread_between(before: Run, after: Run) -> RunSpread:
    """The run-to-run variation of earlier runs on this hardware, these two excluded."""
    if before.path.resolve() == after.path.resolve():
        return NO_SPREAD
    with contextlib.suppress(Exception):
        compared = {_run_id(run) for run in (before, after)}
        known = read_history(machine_id(after.environment))
        return run_spread(mean for mean in known if mean.run not in compared)
    return DEFAULT_SPREAD


def read_history(machine: str) -> tuple[RunMean, ...]:
    """What is known of a machine's runs, oldest first; entries that are damaged are left out."""
    entries = _entries(read_json(history_file()), machine)
    return tuple(mean for entry in entries if (mean := _run_mean(entry)) is not None)


def run_means(run: Run, *, disturbed: bool = False) -> tuple[RunMean, ...]:
    """The configurations of a run whose speed can be held against that of another run.

    Several launches that nothing disturbed, unless those are wanted too, of code that can be told from other
    code.
    """
    if run.record.verb not in _VERBS or not run.environment:
        return ()
    measured = [
        configuration
        for configuration in full_configurations(run.results)
        if len(configuration.launches) > 1 and (disturbed or not configuration.is_disturbed)
    ]
    jobs = [(configuration, _job(configuration.trial, run)) for configuration in measured]
    return tuple(_mean(configuration, job, _run_id(run)) for configuration, job in jobs if job is not None)


def machine_id(environment: Mapping[str, Any]) -> str:
    """The hardware that must be equal for two runs to be compared."""
    return _hash(hardware_facts(environment))


def _mean(configuration: Configuration, job: str, run: str) -> RunMean:
    rates = configuration.as_measured(configuration.log_rates)
    variance = statistics.variance(rates) / len(rates)
    return RunMean(job=job, run=run, mean=statistics.fmean(rates), variance=variance)


def _run_id(run: Run) -> str:
    started = run.record.started_at or min((result.started_at for result in run.results), default="")
    return _hash([started, [result.trial_id for result in run.results[:1]]])


def _job(trial: Trial, run: Run) -> str | None:
    """Equal where the same settings, versions, variables and code were measured; None if that is unknown."""
    code = _code(trial, run)
    if code is None:
        return None
    names = ("environment_id", "scalescope_version", "variables")
    return _hash([job_key(trial, ignoring=LENGTH), [run.environment.get(name) for name in names], code])


def _code(trial: Trial, run: Run) -> list[Any] | None:
    """What tells a user's code from another state of it; nothing of a built-in workload."""
    if trial.workload_card is not Custom:
        return []
    git = run.environment.get("git") or {}
    if git.get("commit") and git.get("changed") is not False:
        return None  # changes that no commit names
    file = file_of(trial.workload)
    if file is None:
        return [git["commit"]] if git.get("commit") else None
    content = (Path(run.record.directory or ".") / file).read_bytes()
    return [git.get("commit"), hashlib.sha256(content).hexdigest()]


def _add(machine: str, means: Iterable[RunMean]) -> None:
    """Write the history with these means, in place of what the same run stored before."""
    file = history_file()
    stored = read_json(file)
    machines = stored.get("machines") if isinstance(stored, dict) else None
    jobs: dict[str, list[RunMean]] = {}
    for mean in (*read_history(machine), *means):
        others = [other for other in jobs.pop(mean.job, []) if other.run != mean.run]
        jobs[mean.job] = [*others, mean][-_MOST_RUNS:]  # the job that was measured last comes last
    kept = [mean for members in list(jobs.values())[-_MOST_JOBS:] for mean in members]
    record = {
        "spread": dataclasses.asdict(run_spread(kept)),  # for people; it is estimated anew when it is used
        "runs": [dataclasses.asdict(mean) for mean in kept],
    }
    known = machines if isinstance(machines, dict) else {}
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"schema_version": _SCHEMA_VERSION, "machines": {**known, machine: record}}
    write_atomically(file, to_text(content))


def _entries(stored: object, machine: str) -> list[object]:
    try:
        entries = stored["machines"][machine]["runs"]  # type: ignore[index]
    except (KeyError, TypeError, IndexError):
        return []
    return entries if isinstance(entries, list) else []


def _run_mean(entry: object) -> RunMean | None:
    try:
        assert isinstance(entry, dict)
        mean, variance = float(entry["mean"]), float(entry["variance"])
        if not (abs(mean) < 1e6 and 0.0 <= variance < 1e6):  # neither a number, nor one that launches have
            return None
        return RunMean(job=str(entry["job"]), run=str(entry["run"]), mean=mean, variance=variance)
    except (AssertionError, KeyError, TypeError, ValueError):
        return None


def _hash(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
