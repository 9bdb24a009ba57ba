"""Predicts the measured points of a job, fitted on one half of them, beside what simpler models say."""

import dataclasses
import math
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predicting.measuring import alone, silent
from scalescope.analysis.configurations import configurations
from scalescope.analysis.prediction.collective_times import (
    CollectiveTime,
    CollectiveTimes,
    MeasuredTimes,
    measured_times,
)
from scalescope.analysis.prediction.profiles import RankProfile, profiles_of
from scalescope.analysis.prediction.setup import Fitted, RankLayout, Setup, StepTimeline, setup_of
from scalescope.analysis.prediction.simulation import (
    MeasuredStep,
    contention_of,
    fit,
    simulate,
    simulate_once,
)
from scalescope.catalog.link import parse_rate
from scalescope.experiment.trial import Trial
from scalescope.results.run import Run, load_run

Settings = Mapping[str, Any]
Point = Mapping[str, Any]  # job, half and settings


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One point: measured, and as predicted by each model (None where a model does not apply)."""

    job: str
    half: str
    settings: Settings
    step_s: float
    exposed_s: float | None
    predicted_s: dict[str, float | None]
    predicted_exposed_s: float
    trial_id: str
    started_at: str
    environment_id: str

    @property
    def ranks(self) -> int:
        return int(self.settings["world_size"])

    @property
    def strategy(self) -> str:
        return str(self.settings.get("strategy", "ddp"))

    def error(self, model: str) -> float | None:
        """ln(predicted ÷ measured); None where the model does not apply."""
        predicted_s = self.predicted_s[model]
        return None if predicted_s is None else math.log(predicted_s / self.step_s)


class MeasuredJob:
    """What was measured of one job."""

    def __init__(self, job: str, folder: Path) -> None:
        self.job = job
        self._run: Run = load_run(folder)
        self._configurations = configurations(self._run.of_status("ok"))
        self._profiles = profiles_of(self._run)

    def step_s(self, settings: Settings) -> float | None:
        """The mean step over launches."""
        measured = next((item for item in self._configurations if _matches(item.trial, settings)), None)
        return None if measured is None else statistics.fmean(measured.mean_steps_s)

    def profile(self, point: Settings) -> RankProfile:
        return next(item.profile for item in self._profiles if _matches(item.trial, alone(point)))

    def times(self, link: str | None, ranks: int) -> MeasuredTimes:
        """Curves of that number of ranks alone."""
        chosen = [result for result in self._run.results if result.trial.world_size == ranks]
        times = measured_times(chosen, link)
        assert times is not None, f"{self.job}: no times of collectives over {link} on {ranks} ranks"
        return times

    def setup(self, point: Settings) -> Setup:
        trial = next(item.trial for item in self._configurations if _matches(item.trial, point))
        return setup_of(trial, RankLayout(cores_per_node=None if trial.on_gpu else self._cores()))

    def _cores(self) -> int:
        """Of the host that all ranks share, as a launch saw them."""
        return next(r.telemetry["load"]["cores"] for r in self._run.results if "load" in (r.telemetry or {}))

    def origin(self, point: Settings) -> dict[str, str]:
        """Which launches measured a point."""
        launches = [result for result in self._run.of_status("ok") if _matches(result.trial, point)]
        first = min(launches, key=lambda result: result.started_at)
        return {
            "trial_id": first.trial_id,
            "started_at": first.started_at,
            "environment_id": first.environment_id,
        }

    def measured_step(self, point: Settings, curve_ranks: int | None = None) -> MeasuredStep | None:
        step_s = self.step_s(point)
        if step_s is None:
            return None
        silent_s = None if self.job == "pipeline" else self.step_s(silent(point))
        return MeasuredStep(
            profile=self.profile(point),
            times=self.times(point.get("link"), curve_ranks or point["world_size"]),
            setup=self.setup(point),
            step_s=step_s,
            silent_step_s=silent_s,
        )


def _matches(trial: Trial, settings: Settings) -> bool:
    wanted = {"link": None, "without_communication": False, **settings}
    return all(trial.settings.get(name) == value for name, value in wanted.items())


class _Nominal:
    """α–β: a ring over links of the nominal rate."""

    def __init__(self, bits_per_s: float, latency_s: float = 50e-6) -> None:
        self._bytes_per_s, self._latency_s = bits_per_s / 8, latency_s

    def time_of(self, collective: str, size_bytes: float, ranks: int, layout: RankLayout) -> CollectiveTime:
        passes = 2 if collective == "all_reduce" else 1
        hops = passes * (ranks - 1)
        return CollectiveTime(time_s=hops * self._latency_s + hops / ranks * size_bytes / self._bytes_per_s)


_FOLDS = 4
KINDS = (("mlp", "transformer", "cnn"), ("paced",), ("stand-in",), ("fsdp",), ("pipeline",), ("gpu",))


def score(jobs: Sequence[MeasuredJob], points: Sequence[Point]) -> list[Scored]:
    """All points, each by a model that was fitted without it.

    What is fitted belongs to a machine and to how ranks use it, so jobs of one kind are fitted together.
    Points of the score half are predicted by what was fitted on the calibration half; points of that half,
    whose errors calibrate intervals, by what was fitted on three quarters of it.
    """
    rows = []
    for kind in KINDS:
        alike = {job.job: job for job in jobs if job.job in kind}
        calibration = [point for point in points if point["job"] in alike and point["half"] == "calibration"]
        held_out = [point for point in points if point["job"] in alike and point["half"] == "score"]
        rows += _scored(alike, held_out, calibration)
        random.Random(_FOLDS).shuffle(calibration)  # listed in turns, a fold would be all of one setting
        for fold in range(_FOLDS if len(calibration) >= _FOLDS else 0):
            others = [point for number, point in enumerate(calibration) if number % _FOLDS != fold]
            rows += _scored(alike, calibration[fold::_FOLDS], others)
    return rows


def _scored(
    jobs: Mapping[str, MeasuredJob], points: Sequence[Point], fitted_on: Sequence[Point]
) -> list[Scored]:
    same, from_two = fit(_steps(jobs, fitted_on, None)), fit(_steps(jobs, fitted_on, 2))
    rows = (_score(jobs[point["job"]], point, same, from_two) for point in points)
    return [row for row in rows if row is not None]


def _steps(
    jobs: Mapping[str, MeasuredJob], points: Iterable[Point], curve_ranks: int | None
) -> list[MeasuredStep]:
    steps = (jobs[point["job"]].measured_step(point["settings"], curve_ranks) for point in points)
    return [step for step in steps if step is not None]


def _simulated(step: MeasuredStep, fitted: Fitted, times: CollectiveTimes) -> StepTimeline:
    """The step as it is predicted, with the contention of its own ranks where that was measured."""
    contention = contention_of(step)
    if contention is not None:
        fitted = dataclasses.replace(fitted, contention={step.setup.world_size: contention})
    return simulate_once(step.profile, times, step.setup, fitted)


def _score(job: MeasuredJob, point: Point, same: Fitted, from_two: Fitted) -> Scored | None:
    settings = point["settings"]
    measured = job.measured_step(settings)
    if measured is None:
        return None
    line = _simulated(measured, same, measured.times)
    two = _simulated(measured, from_two, job.times(settings.get("link"), 2))
    silent_s, link = measured.silent_step_s, settings.get("link")
    compute_s = simulate(measured.profile, measured.times, _alone(measured.setup)).step_s
    communication_s = sum(event.end_s - event.begin_s for event in line.events if event.lane != "compute")
    nominal = None if link is None else _nominal_s(measured, parse_rate(link, "link"))
    return Scored(
        job=job.job,
        half=point["half"],
        settings=settings,
        step_s=measured.step_s,
        exposed_s=None if silent_s is None else max(0.0, measured.step_s - silent_s),
        predicted_s={
            "same N": line.step_s,
            "N = 2": two.step_s,
            "perfect overlap": max(compute_s, communication_s),
            "no overlap": compute_s + communication_s,
            "nominal rate": nominal,
        },
        predicted_exposed_s=line.step_s - (silent_s or compute_s),
        **job.origin(settings),
    )


def _alone(setup: Setup) -> Setup:
    return dataclasses.replace(setup, world_size=1)


def _nominal_s(measured: MeasuredStep, bits_per_s: float) -> float:
    """Without anything that several ranks showed."""
    return simulate(measured.profile, _Nominal(bits_per_s), measured.setup).step_s
