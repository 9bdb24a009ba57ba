"""What `tune` found, as plain data."""

from typing import Any

from scalescope.analysis.tuning.verdicts import Comparison
from scalescope.report.tuning.sections import Tuning, verdict


def tuning_json(tuning: Tuning) -> dict[str, Any]:
    """The same as plain data."""
    judged = {one.candidate.trial.trial_id: one for one in tuning.singles}
    return {
        "verdict": verdict(tuning),
        "baseline": tuning.baseline.trial_id,
        "finished": tuning.finished,
        "threshold": tuning.threshold,
        "tried": [
            {
                "lever": text,
                "trial_id": trial,
                "changes": changes,
                "dropped": trial in tuning.dropped,
                "failed": tuning.failed.get(trial),
                **_judgement(judged.get(trial)),
            }
            for text, trial, changes in tuning.levers
        ],
        "inapplicable": [{"lever": text, "reason": reason} for text, reason in tuning.inapplicable],
        "combined": [
            {
                "lever": one.text,
                "adds": one.adds,
                "speedup": one.speedup,
                "kept": one.kept,
                "launches": one.launches,
            }
            for one in tuning.attempts
        ],
        "scaling": {
            name or "now": {"speedup": one.value, "ci95": [one.low, one.high] if one.has_interval else None}
            for name, one in tuning.scaling.items()
        },
        "winner": sorted(tuning.winner),
        "recommended": tuning.recommended,
        "confirmed": None if tuning.final is None else _judgement(tuning.final),
    }


def _judgement(one: Comparison | None) -> dict[str, Any]:
    if one is None:
        return {"verdict": None}
    speedup = one.speedup
    return {
        "verdict": one.verdict if len(one.candidate.launches) > 1 else None,
        "speedup": speedup.value,
        "ci95_speedup": [speedup.low, speedup.high] if speedup.has_interval else None,
        "p_value": one.p_value,
        "smallest_effect_seen": one.smallest_seen,
        "loss_change": one.loss_change,
        "loss_differs": one.loss_differs,
        "launches": len(one.candidate.launches),
        "peak_memory_bytes": one.candidate.peak_memory_bytes,
        "gpu_utilization": one.candidate.seen.gpu_utilization,
    }
