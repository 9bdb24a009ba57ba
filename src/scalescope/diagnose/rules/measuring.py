"""Rules about the measurement itself: unfair baselines, launches that disagree, memory that is full."""

from scalescope.diagnose.advice import narrowed_to, this_job
from scalescope.diagnose.facts import Facts
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.quantities import percent
from scalescope.results.run_commands import CHECK, Argv, command_on

# ---- Unfair baseline: the speedup is not relative to plain training on one rank


UNFAIR_BASELINE = "the baseline is not plain training on one rank"


def unfair_baseline_rule(facts: Facts) -> Finding | Abstention | None:
    row = facts.row
    if row.is_baseline:
        return None
    if row.baseline_ranks > 1:
        return _finding(
            f"Speedups are relative to {row.baseline_ranks} ranks, which already lose some speed: relative "
            "to one rank they are smaller.",
            f"{row.baseline_ranks} ranks",
        )
    if facts.one_rank is None and facts.trial.mode == "weak" and not facts.trial.is_command:
        return _finding(
            "Speedups are relative to one rank inside the wrapper, not to plain training: the cost of the "
            "wrapper is left out.",
            "one rank in the wrapper",
        )
    return None


def _finding(claim: str, baseline: str) -> Finding:
    return Finding(
        rule=UNFAIR_BASELINE,
        claim=claim,
        lost=0.0,
        share=0.0,
        evidence=(Evidence(name="baseline", value=baseline, source="the smallest world size measured"),),
    )


# ---- Weak scaling read as strong: more samples per second, but a job with a fixed batch is not faster


WEAK_AS_STRONG = "weak scaling is not a faster job"
_LOOKS_GOOD = 0.8
_IS_NOT = 0.8  # of the weak speedup


def weak_as_strong_rule(facts: Facts) -> Finding | Abstention | None:
    row = facts.row
    if facts.trial.mode != "weak" or row.baseline_ranks != 1 or row.efficiency.value < _LOOKS_GOOD:
        return None
    strong = _strong_speedup(facts)
    if strong is None and facts.trial.is_command:  # the command decides its batch
        return None
    if strong is None:
        return Abstention(
            rule=WEAK_AS_STRONG,
            missing=f"the throughput of {facts.ranks} ranks on one rank's batch",
            argv=_command(facts),
        )
    if strong >= _IS_NOT * row.speedup.value:
        return None
    return Finding(
        rule=WEAK_AS_STRONG,
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


# ---- Unstable measurement: launches differ more than on an idle machine


UNSTABLE = "unstable measurement"


def unstable_rule(facts: Facts) -> Finding | Abstention | None:
    doubts = facts.row.configuration.instabilities()
    if not doubts:
        return None
    return Finding(
        rule=UNSTABLE,
        claim=f"The result is uncertain: {doubts[0]}.",
        lost=0.0,
        share=0.0,
        evidence=tuple(
            Evidence(name=f"doubt {number}", value=doubt, source="launches")
            for number, doubt in enumerate(doubts, start=1)
        ),
        advice=(Advice(label="check what else is running; use more --repeats", argv=CHECK),),
    )


# ---- Memory near its limit: the next larger batch, or a fragmented allocator, will not fit


MEMORY_LIMIT = "memory is nearly full"
_FULL = 0.92


def memory_limit_rule(facts: Facts) -> Finding | Abstention | None:
    used, there = facts.telemetry.gpu_memory_bytes, facts.gpu_memory_bytes
    if used is None or there is None or used < _FULL * there:
        return None
    return Finding(
        rule=MEMORY_LIMIT,
        claim=f"{percent(used / there)} of the GPU's memory is in use.",
        lost=0.0,
        share=0.0,
        evidence=(
            Evidence(name="used", value=used, unit="bytes", source="NVML"),
            Evidence(name="total", value=there, unit="bytes", source="the GPU"),
        ),
        advice=(_advice(facts),),
    )


def _advice(facts: Facts) -> Advice:
    if facts.trial.is_command:  # whose memory is not measured
        return Advice(label="save memory: a smaller batch, torch.utils.checkpoint, or FSDP")
    return Advice(
        label="see what uses memory and how to save it",
        argv=command_on(facts.path, "memory", this_job(facts)),
    )
