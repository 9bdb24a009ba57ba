"""Weak sold as strong: more samples a second, while a job with a fixed batch gets no faster."""

from scalescope.analysis.scaling import ScalingRow
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.results.run_folder import EXPERIMENT

RULE = "weak scaling is not a faster job"
_LOOKS_GOOD = 0.8
_IS_NOT = 0.8  # of the weak speedup


def rule(facts: Facts) -> Finding | Abstention | None:
    row = facts.row
    if facts.trial.mode != "weak" or row.baseline_ranks != 1 or row.efficiency.value < _LOOKS_GOOD:
        return None
    command = (
        f"scalescope scale {facts.path / EXPERIMENT} --world-size 1,{facts.ranks} "
        f"--global-batch-size {row.batch}"
    )
    strong = _strong_speedup(facts)
    if strong is None:
        return Abstention(
            rule=RULE, missing=f"how fast {facts.ranks} ranks work on one rank's batch", command=command
        )
    if strong >= _IS_NOT * row.speedup.value:
        return None
    return Finding(
        rule=RULE,
        claim=f"{facts.ranks} ranks give {row.speedup.value:.2f}× the samples with {facts.ranks} times the "
        f"batch; the same batch shared out gives {strong:.2f}×.",
        lost=0.0,
        share=0.0,
        evidence=(
            Evidence(name="weak", value=row.speedup.value, source=f"batch {row.batch:,} a rank"),
            Evidence(name="strong", value=strong, source=f"batch {row.batch:,} in all"),
        ),
        advice=(Advice(text="measure the job as it will run", command=command),),
    )


def _strong_speedup(facts: Facts) -> float | None:
    """Ranks that share one rank's batch, against that rank: a row of this run has just that share."""
    share, rest = divmod(facts.row.batch, facts.ranks)
    if rest:
        return None
    shared = _row(facts, facts.ranks, share)
    alone = _row(facts, 1, facts.row.batch)
    if shared is None or alone is None:
        return None
    return shared.configuration.samples_per_s.value / alone.configuration.samples_per_s.value


def _row(facts: Facts, ranks: int, batch: int) -> ScalingRow | None:
    wanted = facts.trial.replace(batch_size=batch)
    for row in facts.rows:
        same = ranks == 1 or row.trial.trial_id == wanted.trial_id
        if row.ranks == ranks and row.trial.mode == "weak" and row.batch == batch and same:
            return row
    return None
