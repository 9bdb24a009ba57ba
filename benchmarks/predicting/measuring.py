"""Measures the points of a job, and what a prediction of them rests on, launch by launch in turns."""

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from null_watcher import NullWatcher

from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.given import Given
from scalescope.experiment.machine import Machine
from scalescope.experiment.trial import Trial
from scalescope.launch.local.launcher import LocalLauncher
from scalescope.results.run_folder import EXPERIMENT, RunFolder
from scalescope.studies.campaign import run_campaign
from scalescope.studies.plan import Plan
from scalescope.studies.request import Request

REPEATS = 2
WINDOW = "1.5s"
_COLLECTIVES = {"fsdp": "all_gather,reduce_scatter", "pipeline": "sendrecv"}
_LARGEST = {"mlp": "8MiB", "gpu": "128MiB"}  # more than all gradients; elsewhere 4 MiB
_OF_EXCHANGES = ("link", "bucket_cap_mb", "comm_hook", "reshard_after_forward")
_ON_MANY_RANKS = (*_OF_EXCHANGES, "schedule", "microbatches", "stand_in")
_ON_CPU = {"device": "cpu", "threads_per_rank": 1}
Settings = Mapping[str, Any]
Trials: TypeAlias = tuple[Trial, ...]


def measure_job(job: str, points: Sequence[Settings], folder: Path, until: float) -> bool:
    """All launches that are not stored yet; False where the time was up first."""
    launcher = LocalLauncher(fork=True)
    try:
        machine = launcher.machine()
        inputs = _unique(inputs_of_job(job, points, machine))
        trained = _unique(training(point, machine)[0] for point in points)
        experiment = training(next(iter(points)), machine)[1]
        launcher.expect((*inputs, *trained))
        run_folder = RunFolder.open(folder, resume=folder.exists())
        run_folder.write(EXPERIMENT, "# made by benchmarks/prediction.py\n")
        try:
            for trials, repeats in _rounds(inputs, trained):
                plan = Plan(experiment=experiment, trials=trials, machine=machine)
                if not _measured(plan, repeats, launcher, run_folder, until):
                    return False
        finally:
            run_folder.close()
    finally:
        launcher.close()
    return True


def _rounds(inputs: Trials, trained: Trials) -> Iterator[tuple[Trials, int]]:
    """Trials and how often each has been launched after a round.

    Every point is predicted from inputs: those have twice as many launches, before and after the points'.
    """
    for number in range(1, REPEATS + 1):
        yield inputs, 2 * number - 1
        yield trained, number
        yield inputs, 2 * number


def _measured(plan: Plan, repeats: int, launcher: LocalLauncher, folder: RunFolder, until: float) -> bool:
    """Whether everything was launched as often before the time was up."""
    left_s = until - time.monotonic()
    if left_s <= 0.0:
        return False
    measuring = dataclasses.replace(plan.experiment.measuring, repeats=repeats, budget=left_s)
    experiment = dataclasses.replace(plan.experiment, measuring=measuring)
    plan = dataclasses.replace(plan, experiment=experiment)
    _, end = run_campaign(plan, launcher, folder, NullWatcher())  # type: ignore[arg-type]
    return end is None or end.why != "budget"


def _unique(trials: Iterable[Trial]) -> Trials:
    return tuple({trial.trial_id: trial for trial in trials}.values())


def inputs_of_job(job: str, points: Iterable[Settings], machine: Machine) -> list[Trial]:
    """One rank's profile at every batch size, compute on several ranks, and curves of every link."""
    trials = []
    for point in points:
        trials.append(training(alone(point), machine)[0])
        if job != "pipeline":
            trials.append(training(silent(point), machine)[0])
        for ranks in sorted({2, point["world_size"]}):
            trials.append(collectives(job, point, ranks, machine))
    return trials


def silent(point: Settings) -> dict[str, Any]:
    """The point's job without communication, so that its settings do not matter."""
    settings = {name: value for name, value in point.items() if name not in _OF_EXCHANGES}
    return settings | {"without_communication": True}


def alone(point: Settings) -> dict[str, Any]:
    """The point's job on one rank."""
    settings = {name: value for name, value in point.items() if name not in _ON_MANY_RANKS}
    batch = point["batch_size"] // point.get("microbatches", 1)
    return settings | {"world_size": 1, "strategy": "single", "accumulation_steps": 1, "batch_size": batch}


def training(settings: Settings, machine: Machine) -> tuple[Trial, Experiment]:
    """The trial of these settings."""
    return _trial("train", {"window": WINDOW, **_ON_CPU, **settings}, machine)


def collectives(job: str, point: Settings, ranks: int, machine: Machine) -> Trial:
    """The curve of the collectives that the job's strategy uses, over the point's network."""
    settings = {
        "collective": _COLLECTIVES.get(job, "all_reduce"),
        "world_size": ranks,
        "link": point.get("link"),
        "min_bytes": "4KiB",
        "max_bytes": _LARGEST.get(job, "4MiB"),
        "time_per_size": "0.4s",
        "in_place": True if job not in _COLLECTIVES else None,
        **_ON_CPU,
        **{name: point[name] for name in ("device", "split_gpu", "threads_per_rank") if name in point},
    }
    return _trial("comm", settings, machine)[0]


def _trial(benchmark: str, settings: Settings, machine: Machine) -> tuple[Trial, Experiment]:
    flags = {
        name: (Given(_text(value), name),)
        for name, value in settings.items()
        if value is not None and name != "without_communication"
    }
    verb = "comm" if benchmark == "comm" else "train"
    request = Request(verb=verb, benchmark=benchmark, flags=flags)
    expansion = expand(request.experiment({}), machine)
    (trial,) = expansion.trials
    if settings.get("without_communication"):
        trial = trial.replace(without_communication=True)
    return trial, expansion.experiment


def _text(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
