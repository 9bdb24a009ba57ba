"""Measures the points of a job, and what a prediction of them rests on, launch by launch in turns."""

import dataclasses
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

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


def measure_job(job: str, points: Iterable[Settings], folder: Path, until: float) -> bool:
    """All launches that are not stored yet; False where the time was up first."""
    launcher = LocalLauncher(fork=True)
    try:
        machine = launcher.machine()
        trials = [*inputs_of_job(job, points, machine), *(training(point, machine)[0] for point in points)]
        experiment = training(next(iter(points)), machine)[1]
        left_s = until - time.monotonic()
        if left_s <= 0.0:
            return False
        measuring = dataclasses.replace(experiment.measuring, repeats=REPEATS, budget=left_s)
        experiment = dataclasses.replace(experiment, measuring=measuring)
        unique = {trial.trial_id: trial for trial in trials}
        plan = Plan(experiment=experiment, trials=tuple(unique.values()), machine=machine)
        launcher.expect(plan.trials)
        run_folder = RunFolder.open(folder, resume=folder.exists())
        run_folder.write(EXPERIMENT, "# made by benchmarks/prediction.py\n")
        try:
            _, end = run_campaign(plan, launcher, run_folder, NullWatcher())  # type: ignore[arg-type]
        finally:
            run_folder.close()
    finally:
        launcher.close()
    return end is None or end.why != "budget"


def inputs_of_job(job: str, points: Iterable[Settings], machine: Machine) -> list[Trial]:
    """One rank's profile at every batch size, compute on several ranks, and curves of every link."""
    trials: dict[str, Trial] = {}
    for point in points:
        chosen = [training(alone(point), machine)[0]]
        if job != "pipeline":
            chosen.append(training(silent(point), machine)[0])
        for ranks in sorted({2, point["world_size"]}):
            chosen.append(collectives(job, point, ranks, machine))
        trials |= {trial.trial_id: trial for trial in chosen}
    return list(trials.values())


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
        "time_per_size": "0.1s",
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
