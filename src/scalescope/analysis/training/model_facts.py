"""Model facts: what a rank counted of its model and optimizer, and the cores that it may use."""

from dataclasses import dataclass

from scalescope.results.result import RankRecord
from scalescope.results.topology import cores_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Of the first rank; None is unknown."""

    parameters: int | None = None
    parameter_tensors: int | None = None
    buffer_bytes: int | None = None
    sync_batch_norms: int | None = None  # layers that exchange statistics themselves
    optimizer_is_fused: bool | None = None
    convolutions: int | None = None  # layers of two dimensions or more
    rank_cores: int | None = None  # that the rank may use, by its affinity


def model_facts(record: RankRecord) -> ModelFacts:
    """What the record of a rank holds."""
    counters = record.counters
    affinity, fused = counters.get("affinity"), counters.get("optimizer_is_fused")
    return ModelFacts(
        parameters=record.whole("parameters"),
        parameter_tensors=record.whole("parameter_tensors"),
        buffer_bytes=record.whole("buffer_bytes"),
        sync_batch_norms=record.whole("model_collectives"),
        convolutions=record.whole("convolutions"),
        optimizer_is_fused=bool(fused) if isinstance(fused, int) else None,
        rank_cores=len(cores_of(affinity)) or None if isinstance(affinity, str) else None,
    )
