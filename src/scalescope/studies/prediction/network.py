"""--network: times of collectives by name, from a run, from nccl-tests, or from a curve.json."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, PositiveInt, ValidationError

from scalescope.analysis.comm.curve import Curve
from scalescope.analysis.prediction.measured_times import MeasuredTimes, measured_times
from scalescope.analysis.prediction.network import CollectiveTimes
from scalescope.errors import BadInput
from scalescope.report.comm.nccl_tests import parse, read_output
from scalescope.results.run import load_run
from scalescope.results.run_folder import is_run_folder
from scalescope.results.stored.validation import problem_of

Points = dict[tuple[str, int], list[tuple[int, float]]]


class _Curve(BaseModel, defer_build=True):
    collective: str
    world_size: int
    points: list[tuple[PositiveInt, Annotated[float, Field(gt=0, allow_inf_nan=False)]]]


class _CurveFile(BaseModel, defer_build=True):
    curves: list[_Curve]


def network_of(text: str) -> CollectiveTimes:
    """A path where there is one, or else the name of a network."""
    path = Path(text)
    try:
        if path.is_dir():
            return _of_run(path)
        if path.is_file():
            return _of_file(path)
    except OSError as error:
        raise BadInput(f"--network {text}: cannot be read: {error.strerror}") from None
    if "/" in text or path.suffix:
        raise BadInput(f"--network {text}: no such file or run folder")
    return _named(text)


def _named(text: str) -> CollectiveTimes:
    from scalescope.analysis.prediction.hardware_times import network_named

    return network_named(text)


def _of_run(path: Path) -> CollectiveTimes:
    """The collectives of a run, over the one link that it measured."""
    if not is_run_folder(path):
        raise BadInput(f"--network {path}: not a run folder; scalescope list shows the runs there are")
    results = load_run(path).results
    links = {result.trial.link for result in results if result.trial.benchmark == "comm"}
    if len(links) > 1:
        words = ", ".join(sorted(link or "no limit" for link in links))
        raise BadInput(f"--network {path}: measured several links ({words}); use a run with one")
    times = measured_times(results, *links)
    if times is None:
        raise BadInput(f"--network {path}: has no times of collectives; scalescope comm measures them")
    return times


def _of_file(path: Path) -> CollectiveTimes:
    text = read_output(path, f"--network {path}")
    curves = _curves_in(text, path)
    if curves is None:
        curves = _curves_of_nccl_tests(text, path)
    times = MeasuredTimes({key: Curve.through(points) for key, points in curves.items()})
    if not times.world_sizes:
        raise BadInput(f"--network {path}: has no curve of two or more ranks")
    return times


def _curves_of_nccl_tests(text: str, path: Path) -> Points:
    points: Points = {}
    for row in parse(text, f"--network {path}"):
        if row.ranks is None:
            raise BadInput(
                f"--network {path}: does not say how many ranks it ran on; "
                f"scalescope comm --import {path} --world-size N makes a run that does"
            )
        points.setdefault((row.collective, row.ranks), []).append((row.size_bytes, row.time_s))
    return points


def _curves_in(text: str, path: Path) -> Points | None:
    """The curves of a curve.json; None where the file is something else."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or "curves" not in raw:
        return None
    try:
        curves = _CurveFile.model_validate(raw).curves
    except ValidationError as error:
        raise BadInput(f"--network {path}: not a curve.json: {problem_of(error, 'the file')}") from None
    points: Points = {}
    for curve in curves:
        points.setdefault((curve.collective, curve.world_size), []).extend(curve.points)
    return points
