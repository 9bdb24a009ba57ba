"""Weak scaling read as strong: more samples per second, but a job with a fixed batch is not faster."""

from scalescope.diagnose.advice import narrowed_to
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.results.run_commands import Argv, command_on

RULE = "weak scaling is not a faster job"
_LOOKS_GOOD = 0.8
_IS_NOT = 0.8  # of the weak speedup


def rule(facts: Facts) -> Finding | Abstention | None:
    row = facts.row
    if facts.trial.mode != "weak" or row.baseline_ranks != 1 or row.efficiency.value < _LOOKS_GOOD:
        return None
    strong = _strong_speedup(facts)
    if strong is None and facts.trial.is_command:  # it decides about its batch by itself
        return None
    if strong is None:
        return Abstention(
            rule=RULE,
            missing=f"how fast {facts.ranks} ranks work on one rank's batch",
            argv=_command(facts),
        )
    if strong >= _IS_NOT * row.speedup.value:
        return None
    return Finding(
        rule=RULE,
        claim=f"{facts.ranks} ranks process {row.speedup.value:.2f}× the samples with {facts.ranks} times "
        f"the batch; dividing the same batch among them gives {strong:.2f}×.",
        lost=0.0,
        share=0.0,
        evidence=(
            Evidence(name="weak", value=row.speedup.value, source=f"batch {row.batch:,} per rank"),
            Evidence(name="strong", value=strong, source=f"batch {row.batch:,} in total"),
        ),
        advice=()
        if facts.trial.is_command
        else (Advice(label="measure the job as it will run", argv=_command(facts)),),
    )


def _command(facts: Facts) -> Argv:
    """Strong scaling of the nearest batch that all ranks can share."""
    parts = facts.ranks * facts.trial.accumulation_steps
    batch = -(-facts.trial.rank_batch_size // parts) * parts
    changes = {"world_size": (1, facts.ranks), **narrowed_to(facts), "global_batch_size": batch}
    return command_on(facts.path, "scale", changes)


def _strong_speedup(facts: Facts) -> float | None:
    """Ranks that share one rank's batch, against that rank: a row of this run has just that share."""
    share, rest = divmod(facts.row.batch, facts.ranks)
    if rest or facts.one_rank is None:
        return None
    wanted = facts.trial.replace(batch_size=share).trial_id
    shared = next((row for row in facts.rows if row.trial.trial_id == wanted), None)
    if shared is None:
        return None
    return shared.configuration.speed.value / facts.one_rank.speed.value
