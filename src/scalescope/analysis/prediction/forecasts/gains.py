"""Gains: what moving a setting of a measured trial is predicted to gain."""

import contextlib

from scalescope.analysis.prediction.forecasts.what_if import what_if
from scalescope.analysis.prediction.inputs import inputs_of
from scalescope.errors import BadInput
from scalescope.results.run import Run


def gains_by_trial(run: Run) -> dict[str, dict[str, float]]:
    """By trial and setting the gain of the best value; empty where nothing can be predicted."""
    gains: dict[str, dict[str, float]] = {}
    with contextlib.suppress(BadInput):
        for inputs in inputs_of(run):
            for size, trial_id in inputs.job.measured.items():
                with contextlib.suppress(BadInput):
                    for change in what_if(inputs, inputs.job.setup(size, inputs.layout)):
                        of_trial = gains.setdefault(trial_id, {})
                        if change.setting is not None:
                            of_trial.setdefault(change.setting, change.gain)  # the largest comes first
    return gains
