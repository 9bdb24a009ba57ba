"""SyncBatchNorm: layers that exchange statistics wait for all ranks, twice each per batch."""

from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import StepFacts
from scalescope.quantities import in_ms

RULE = "batch norm waits for all ranks"
_EXCHANGES = 2  # of a layer: one in the forward pass and one in the backward pass
_LARGE_BATCH = 16  # samples per rank: a common rule of thumb for statistics of a rank's own samples


def rule(facts: StepFacts) -> Finding | Abstention | None:
    layers = facts.model.sync_batch_norms
    if facts.ranks == 1 or not layers:
        return None
    exchanges = layers * _EXCHANGES * facts.trial.accumulation_steps
    latency_s = _latency_s(facts)
    cost_s = 0.0 if latency_s is None else exchanges * latency_s
    if latency_s is not None and not facts.is_worth(cost_s):
        return None
    takes = "" if latency_s is None else f", which takes at least {in_ms(cost_s)}"
    count = "1 SyncBatchNorm layer exchanges" if layers == 1 else f"{layers} SyncBatchNorm layers exchange"
    return facts.finding(
        RULE,
        f"{count} statistics with all ranks {exchanges} times per step{takes}. No kernel of the model "
        "hides these exchanges.",
        cost_s,
        estimated=latency_s is not None,
        evidence=(
            Evidence(name="SyncBatchNorm layers", value=layers, source="the model"),
            Evidence(name="exchanges", value=exchanges, unit="per step", source="the model"),
            *(
                ()
                if latency_s is None
                else (
                    Evidence(
                        name="latency", value=latency_s, unit="s", source="all-reduce curve of this run"
                    ),
                )
            ),
        ),
        advice=_advice(facts),
    )


def _latency_s(facts: StepFacts) -> float | None:
    """Of the smallest exchange that was measured: statistics are a few values per channel."""
    curve = facts.exchange
    return curve.points[0][1] if curve is not None and curve.points else None


def _advice(facts: StepFacts) -> tuple[Advice, ...]:
    batch = facts.trial.micro_batch_size
    if batch < _LARGE_BATCH:
        return ()
    return (
        Advice(
            label=f"leave out nn.SyncBatchNorm.convert_sync_batchnorm: {batch} samples per rank "
            "are usually enough for nn.BatchNorm",
            changes_job=True,
        ),
    )
