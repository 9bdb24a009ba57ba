"""What `tune` found, as plain data."""

from typing import Any

from scalescope.analysis.tuning.lever_comparison import LeverComparison
from scalescope.report.tuning.sections import Tuning, verdict


def tuning_json(tuning: Tuning) -> dict[str, Any]:
    """The same as plain data."""
    judged = {single.candidate.trial.trial_id: single for single in tuning.singles}
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
                "lever": attempt.text,
                "adds": attempt.adds,
                "speedup": attempt.speedup,
                "kept": attempt.kept,
                "launches": attempt.launches,
            }
            for attempt in tuning.attempts
        ],
        "scaling": {
            name or "now": {
                "speedup": speedup.value,
                "ci95": [speedup.low, speedup.high] if speedup.has_interval else None,
            }
            for name, speedup in tuning.scaling.items()
        },
        "winner": sorted(tuning.winner),
        "recommended": tuning.recommended,
        "confirmed": None if tuning.final is None else _judgement(tuning.final),
    }


def _judgement(comparison: LeverComparison | None) -> dict[str, Any]:
    if comparison is None:
        return {"verdict": None}
    speedup = comparison.speedup
    return {
        "verdict": comparison.verdict if len(comparison.candidate.launches) > 1 else None,
        "speedup": speedup.value,
        "ci95_speedup": [speedup.low, speedup.high] if speedup.has_interval else None,
        "p_value": comparison.p_value,
        "smallest_effect_seen": comparison.smallest_detectable,
        "loss_change": comparison.loss_change,
        "loss_differs": comparison.loss_differs,
        "launches": len(comparison.candidate.launches),
        "peak_memory_bytes": comparison.candidate.peak_memory_bytes,
        "gpu_utilization": comparison.candidate.telemetry.gpu_utilization,
    }
