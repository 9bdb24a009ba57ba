"""What the ranks of a simulated cluster write down, by benchmark."""

from itertools import combinations

from scalescope.catalog.benchmarks.comm import NCCL_LOG, Comm
from scalescope.catalog.collectives import collective_named
from scalescope.experiment.explanations import NO_COMM, has_ablation
from scalescope.experiment.trial import Trial
from scalescope.results.result import RankRecord
from tests.simulated.cluster.model import ClusterModel
from tests.simulated.cluster.timeline import (
    ClusterStep,
    Timeline,
    launch_timeline,
    normal_steps,
)
from tests.simulated.costs import simulated_record

Samples = dict[str, list[float]]
_DIGITS = 9  # as ranks round them
_ITERATIONS = 10
_PAIR_SIZES = (1 << 16, 1 << 26)


def training_records(model: ClusterModel, trial: Trial, launch: int, steps: int) -> list[RankRecord]:
    """Timed steps: those of ranks without communication, and of one rank, wait for nobody."""
    timeline = _timeline(model, trial, launch)
    if trial.world_size == 1 or has_ablation(trial, NO_COMM):
        by_step = [timeline.free_step() for _ in range(steps)]
    else:
        by_step = [step.step_s for step in normal_steps(timeline, steps)]
    counters: dict[str, float | int | str | None] = {
        "parameter_checksum": "0",
        "gradient_bytes": model.gradient_bytes,
        "matmul_flops_per_s_before": 5e13,
        "matmul_flops_per_s_after": 5e13,
    }
    return [
        _record(model, rank, {"step_time_s": _rounded(times_s), "loss": [1.0] * steps}, counters)
        for rank, times_s in enumerate(zip(*by_step, strict=True))
    ]


def recorded_steps(model: ClusterModel, trial: Trial, launch: int, steps: int) -> list[RankRecord]:
    """Steps under a profiler: every rank's parts of each, and every collective."""
    timeline = _timeline(model, trial, launch)
    played = list(normal_steps(timeline, steps, recording_s=model.recording_s))
    counts = {"trace/collectives": [float(model.buckets)] * len(played)}
    traces = enumerate(_traces(played, timeline))
    return [_record(model, rank, {**samples, **counts}, {}) for rank, samples in traces]


def _traces(steps: list[ClusterStep], timeline: Timeline) -> list[Samples]:
    """By rank, what its trace shows."""
    nothing = [0.0] * len(steps)
    by_rank = {
        "recorded_step_time_s": [step.step_s for step in steps],
        "trace/step_s": [step.step_s for step in steps],
        "trace/compute_s": [step.compute_s for step in steps],
        "trace/exposed_s": [step.exposed_s for step in steps],
        "trace/idle_host_s": [step.stall_s for step in steps],
        "trace/collective_s": [times for step in steps for times in step.durations_s()],
        "trace/collective_exposed_s": [times for step in steps for times in step.exposures_s()],
    }
    columns = {name: list(zip(*rows, strict=True)) for name, rows in by_rank.items()}
    constant = {
        "trace/idle_data_s": [step.input_s for step in steps],
        "trace/copy_s": nothing,
        "trace/idle_queued_s": nothing,
    }
    return [
        {**{name: _rounded(column[rank]) for name, column in columns.items()}, **constant}
        for rank in range(timeline.ranks)
    ]


def collective_records(model: ClusterModel, trial: Trial) -> list[RankRecord]:
    """Every collective at every size takes as long as an all-reduce of ranks that all have arrived."""
    options, ranks = trial.options(Comm), trial.world_size
    samples: Samples = {}
    for name in options.collectives() if options.purpose != NCCL_LOG else ():
        card = collective_named(name)
        for size in options.sizes() if card.has_data else (0,):
            time_s = model.transfer_s(size, ranks)
            for in_place in card.in_place:
                samples[f"{name}/{'in' if in_place else 'out'}/{size}"] = [
                    round(time_s, _DIGITS)
                ] * _ITERATIONS
            if options.longest_exchange is not None and time_s > options.longest_exchange:
                break
    counters = {f"{key}/wrong": 0 for key in samples}
    return [_record(model, rank, dict(samples), counters) for rank in range(ranks)]


def pair_records(model: ClusterModel, trial: Trial) -> list[RankRecord]:
    """Each two ranks of a node; and of each two nodes first with first rank, second with second."""
    ranks = trial.world_size
    nodes = [
        range(first, min(first + model.ranks_per_node, ranks))
        for first in range(0, ranks, model.ranks_per_node)
    ]
    pairs = [pair for node in nodes for pair in combinations(node, 2)]
    for node, other in combinations(nodes, 2):
        pairs += zip(node, other, strict=False)
    samples: list[Samples] = [{} for _ in range(ranks)]
    for low, high in pairs:
        for size in _PAIR_SIZES:
            times_s = [round(model.pair_s(size, low, high), _DIGITS)] * _ITERATIONS
            samples[low][f"pair/{low}-{high}/{size}"] = times_s
            samples[high][f"pair/{low}-{high}/{size}"] = times_s
    return [_record(model, rank, rank_samples, {}) for rank, rank_samples in enumerate(samples)]


def _timeline(model: ClusterModel, trial: Trial, launch: int) -> Timeline:
    return launch_timeline(
        model,
        f"{trial.trial_id}/{launch}",
        trial.world_size,
        compute_s=model.compute_s(trial),
        input_s=model.waiting_for_input_s(trial),
    )


def _record(
    model: ClusterModel,
    rank: int,
    samples: Samples,
    counters: dict[str, float | int | str | None] | dict[str, int],
) -> RankRecord:
    device = f"cuda:{rank % model.ranks_per_node}"
    return simulated_record(rank, samples, counters, host=model.host_of(rank), device=device)


def _rounded(times_s: tuple[float, ...]) -> list[float]:
    return [round(time_s, _DIGITS) for time_s in times_s]
