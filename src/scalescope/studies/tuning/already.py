"""Levers that do what a script does already, as the launches of its current settings showed."""

from collections.abc import Iterable, Mapping

from scalescope.experiment.trial import Trial, Value
from scalescope.results.ranks.attach_job import OBSERVED
from scalescope.results.result import RankRecord, Result
from scalescope.studies.tuning.levers import Candidate


def already_in_script(
    results: Iterable[Result], baseline: Trial, candidates: Mapping[str, Candidate]
) -> dict[str, str]:
    """Candidates by name, with the reason; not those that were asked for."""
    records = [r.ranks[0] for r in results if r.status == "ok" and r.trial_id == baseline.trial_id]
    if not baseline.is_command or not records:
        return {}
    reasons = {
        text: _why_already(records[0], candidate.name, candidate.value)
        for text, candidate in candidates.items()
        if not candidate.asked
    }
    return {text: reason for text, reason in reasons.items() if reason is not None}


def _why_already(record: RankRecord, name: str, value: Value) -> str | None:
    """Why a setting at a value is of no use to a script; None where it may be, or nothing is known."""

    def fact(of: str) -> float | int | str | None:
        return record.counters.get(f"{OBSERVED}{of}")

    if name == "precision":
        if fact("autocast") is not None:  # what it leaves in fp32 gains little from tf32
            return f"the script already uses {fact('autocast')} autocast"
        if fact("parameter_format") is not None:
            return f"the script's model already computes in {fact('parameter_format')}"
        return "the script already allows tf32" if value == "tf32" and fact("tf32") == 1 else None
    if name == "compile":
        return "the script already compiles its model" if fact("compiled") == 1 else None
    if name == "fused_optimizer":
        if fact("fused") == 1:
            return "the script's optimizer is already fused"
        return "torch cannot fuse the script's optimizer" if fact("fusible") == 0 else None
    if name == "num_workers":
        has_as_many = value is not None and fact("loader_workers") == value
        return f"the script's DataLoader already has {value} worker processes" if has_as_many else None
    if name == "pin_memory" and value is True:
        return "the script already pins its batches" if fact("loader_pinned") == 1 else None
    if name == "persistent_workers" and value is True:
        return "the script already keeps its workers" if fact("loader_persistent") == 1 else None
    return None
