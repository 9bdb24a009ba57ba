"""Predictions as data, for files that other programs read."""

import dataclasses
from typing import Any

from scalescope.analysis.prediction.answer import Change, Contradiction, PredictionAnswer
from scalescope.analysis.prediction.forecast import Prediction, Range, Worth


def answer_json(answer: PredictionAnswer) -> dict[str, Any]:
    """One job with all of its rows."""
    return {
        "trial_id": answer.inputs.job.trial.trial_id,
        "workload": answer.inputs.job.trial.workload,
        "unit": answer.unit,
        "contradiction": _contradiction(answer.contradiction),
        "worth_ranks": answer.most_worth,
        "rows": [
            {
                **prediction_json(prediction),
                **_worth(worth, answer),
                "measured_step_s": answer.measured_s.get(worth.ranks),
            }
            for prediction, worth in zip(answer.predictions, answer.worth, strict=True)
        ],
        "what_if": [_change(change) for change in answer.changes],
        "what_if_world_size": answer.changed_at,
    }


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """One row; intervals are 90 %."""
    return {
        "world_size": prediction.setup.world_size,
        "setup": dataclasses.asdict(prediction.setup),
        "kind": dataclasses.asdict(prediction.kind),
        "curve_world_size": prediction.curve_ranks,
        "samples_per_step": prediction.samples_per_step,
        **_range("step_s", prediction.step_s),
        **_range("samples_per_s", prediction.samples_per_s),
        **_range("efficiency", prediction.efficiency),
        **_range("exposed_comm_s", prediction.exposed_s),
        **_range("memory_bytes", prediction.memory_bytes),
        "limit": prediction.limit,
        "extrapolated": prediction.is_extrapolated,
        "assumptions": list(prediction.assumptions),
        "calibration": prediction.calibration,
    }


def _range(name: str, values: Range | None) -> dict[str, Any]:
    interval = None if values is None else [values.low, values.high]
    return {name: None if values is None else values.value, f"ci90_{name}": interval}


def _worth(worth: Worth, answer: PredictionAnswer) -> dict[str, Any]:
    if answer.contradiction is not None:
        return {}
    return {
        "marginal_efficiency": worth.marginal,
        "beyond_world_size": worth.beyond,
        "is_worth_it": worth.is_worth_it,
        "cost_per_million_samples": worth.cost_per_million,
    }


def _contradiction(found: Contradiction | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "world_size": found.ranks,
        "measured_step_s": found.measured_s,
        **_range("step_s", found.predicted_s),
        "had_other_load": found.had_other_load,
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "change": change.name,
        "setting": change.setting,
        "flags": list(change.flags),
        "gain": change.gain,
        "changes_job": change.changes_job,
        **prediction_json(change.prediction),
    }
