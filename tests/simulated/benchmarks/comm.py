"""Simulated launches of the communication benchmark."""

from scalescope.catalog.benchmarks.comm import Comm
from scalescope.catalog.collectives import collective_named
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import RankRecord
from tests.simulated.cluster.model import ClusterModel
from tests.simulated.cluster.records import collective_records, pair_records
from tests.simulated.costs import CostModel, simulated_record


def simulate(model: CostModel | ClusterModel, trial: Trial, launch: int) -> Outcome:
    """Every collective takes the time that the model has for its size."""
    if isinstance(model, ClusterModel):
        records = pair_records if trial.measures_pairs else collective_records
        return Outcome(status="ok", records=records(model, trial))
    return Outcome(status="ok", records=[_record(model, trial, rank) for rank in range(trial.world_size)])


def _record(model: CostModel, trial: Trial, rank: int) -> RankRecord:
    options = trial.options(Comm)
    samples: dict[str, list[float]] = {}
    for name in options.collectives():
        card = collective_named(name)
        for size in options.sizes() if card.has_data else (0,):
            if _is_beyond(model, options, size):
                break
            for in_place in card.in_place:
                key = f"{name}/{'in' if in_place else 'out'}/{size}"
                samples[key] = [model.collective_time_s(size)] * 5
    return simulated_record(rank, samples, {f"{key}/wrong": 0 for key in samples})


def _is_beyond(model: CostModel, options: Comm, size: int) -> bool:
    """Whether the size before took too long already."""
    smaller = size // options.step_factor
    limit = options.longest_exchange
    return limit is not None and model.collective_time_s(smaller) > limit
