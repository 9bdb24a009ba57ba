"""What `tune` found, as plain data."""

from typing import Any

from scalescope.analysis.tuning.losses import LossCheck
from scalescope.report.tuning.code import changes_between, code_json, code_section, context_of
from scalescope.report.tuning.sections import OtherJob, TriedCombination, TriedLever, Tuning, verdict


def tuning_json(tuning: Tuning) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "verdict": verdict(tuning),
        "baseline": tuning.baseline.trial_id,
        "finished": tuning.finished,
        "combinations": [_combination(combination) for combination in tuning.combinations],
        "without_communication": _without_communication(tuning),
        "levers": [_lever(lever) for lever in tuning.levers],
        "inapplicable": [{"lever": text, "reason": reason} for text, reason in tuning.inapplicable],
        "other_jobs": [_other_job(job) for job in tuning.other_jobs],
        "winner": list(tuning.winner),
        "recommended": tuning.recommended,
        "code": _code(tuning),
        "script": _script(tuning),
        "arguments": [
            {"setting": argument.setting, "argument": argument.text, "known": argument.is_known}
            for argument in tuning.arguments
        ],
        "at_most": tuning.at_most,
        "confirmed": {"speedup": tuning.gain.value, "ci95_speedup": tuning.gain.bounds}
        if tuning.gain is not None and tuning.is_confirmed
        else None,
        "loss_check": None if tuning.loss_check is None else _loss_check(tuning.loss_check),
    }


def _loss_check(check: LossCheck) -> dict[str, Any]:
    return {
        "steps": check.steps,
        "last_steps": check.last_steps,
        "change": check.change,
        "differs": check.differs,
        "failure": check.failure,
        "current": list(check.current),
        "winner": list(check.winner),
    }


def _code(tuning: Tuning) -> list[dict[str, Any]]:
    """The lines of PyTorch that do what is recommended."""
    if not tuning.recommended or tuning.winner_trial is None:
        return []
    changes = changes_between(tuning.baseline, tuning.winner_trial)
    return code_json(changes, context_of(tuning.winner_trial))


def _script(tuning: Tuning) -> str | None:
    """The same lines as a piece of Python."""
    if not tuning.recommended or tuning.winner_trial is None:
        return None
    changes = changes_between(tuning.baseline, tuning.winner_trial)
    return code_section(changes, context_of(tuning.winner_trial)).code or None


def _combination(combination: TriedCombination) -> dict[str, Any]:
    configuration = combination.configuration
    return {
        "levers": list(combination.levers),
        "trial_id": configuration.trial.trial_id,
        "speedup": combination.speedup.value,
        "ci95_speedup": combination.speedup.bounds,
        "verdict": combination.verdict,
        "launches": combination.launches,
        "left_out": combination.left_out,
        "step_time_s": combination.step_s,
        "loss_change": combination.loss_change,
        "loss_differs": combination.loss_differs,
        "loss_unknown": combination.loss_unknown,
        "confirmed": combination.is_confirmed,
        "failure": combination.failure,
        "peak_memory_bytes": configuration.peak_memory_bytes,
        "gpu_utilization": configuration.telemetry.gpu_utilization,
    }


def _without_communication(tuning: Tuning) -> dict[str, Any] | None:
    configuration = tuning.without_communication
    if configuration is None:
        return None
    return {
        "trial_id": configuration.trial.trial_id,
        "step_time_s": configuration.step_time_s.value,
        "launches": len(configuration.launches),
    }


def _lever(lever: TriedLever) -> dict[str, Any]:
    return {
        "lever": lever.name,
        "trial_id": lever.trial_id,
        "changes": lever.changes,
        "status": lever.status,
        "added_to": list(lever.added_to),
        "speedup": None if lever.speedup is None else lever.speedup.value,
        "ci95_speedup": None if lever.speedup is None else lever.speedup.bounds,
        "support": lever.support,
        "launches": lever.launches,
        "reason": lever.reason,
        "may_give": lever.may_give,
    }


def _other_job(job: OtherJob) -> dict[str, Any]:
    return {
        "job": job.name or "now",
        "speedup": job.speedup.value,
        "ci95_speedup": job.speedup.bounds,
        "scaling": None if job.scaling is None else job.scaling.value,
        "ci95_scaling": None if job.scaling is None else job.scaling.bounds,
        "launches": len(job.configuration.launches),
    }
