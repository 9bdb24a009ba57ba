"""Launches of one rank that recorded a profile, made up: every number in them is known."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from scalescope.results.run import Run
from tests.builders.results import make_result, make_trial

PROFILE = {
    "profile/input_s": 1.0,
    "profile/forward_s": 2.0,
    "profile/backward_s": 4.0,
    "profile/optimizer_s": 2.0,
    "profile/rest_s": 1.0,
    "profile/step_s": 10.0,
    "profile/steps": 8,
    "profile/micro_batches": 1,
}
GRADIENTS = [
    {"parameter": 1, "size_bytes": 400, "ready_s": 1.0},
    {"parameter": 0, "size_bytes": 800, "ready_s": 4.0},
]
UNITS = [
    {"name": "(root)", "parameter_bytes": 0, "forward_s": 0.5, "backward_s": 1.0, "activation_bytes": 8},
    {"name": "0", "parameter_bytes": 800, "forward_s": 1.0, "backward_s": 2.0, "activation_bytes": 64},
    {"name": "1", "parameter_bytes": 400, "forward_s": 0.5, "backward_s": 1.0, "activation_bytes": 32},
]


def profiled_trial(**settings: Any) -> Trial:
    """A trial of one rank that measures for a time."""
    return make_trial(**{"strategy": "single", "steps_per_epoch": "auto", **settings})


def profiled_launch(
    trial: Trial,
    times_s: Sequence[float],
    *,
    launch: int = 0,
    gradients: Sequence[dict[str, Any]] = GRADIENTS,
    units: Sequence[dict[str, Any]] = UNITS,
    **counters: Any,
) -> Result:
    """A launch with these step times and this profile; counters by name, with __ for /."""
    result = make_result(trial, [times_s], launch=launch)
    (record,) = result.ranks
    recorded = dataclasses.replace(
        record,
        counters={**PROFILE, **{name.replace("__", "/"): value for name, value in counters.items()}},
        tables={"gradients": list(gradients), **({"units": list(units)} if units else {})},
    )
    return dataclasses.replace(result, ranks=[recorded])


def run_of(*results: Result) -> Run:
    """A run of these launches."""
    return Run(path=Path("run"), environment={}, results=results, warnings=())
