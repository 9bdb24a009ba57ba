"""Simulated launches of the training benchmark."""

import math
import random

from scalescope.catalog.benchmarks.train import Train
from scalescope.experiment.explanations import NO_COMM, has_ablation
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import RankRecord
from tests.simulated.cluster.model import ClusterModel
from tests.simulated.cluster.records import training_records
from tests.simulated.costs import CostModel, simulated_record


def simulate(model: CostModel | ClusterModel, trial: Trial, launch: int) -> Outcome:
    """Steps take the time that the model has for the trial, with its noise."""
    if isinstance(model, ClusterModel):
        steps = _steps(model.compute_s(trial), trial) - trial.warmup_steps
        return Outcome(status="ok", records=training_records(model, trial, launch, steps))
    return Outcome(
        status="ok", records=[_record(model, trial, launch, rank) for rank in range(trial.world_size)]
    )


def _record(model: CostModel, trial: Trial, launch: int, rank: int) -> RankRecord:
    launch_noise = random.Random(f"{trial.trial_id}/{launch}").gauss(0, model.launch_noise)
    steps = random.Random(f"{trial.trial_id}/{launch}/{rank}")
    count = _steps(model.step_time_s(trial), trial) - trial.warmup_steps
    late = model.late_s if trial.world_size > 1 else {}
    # Ranks that exchange gradients wait for the last; those that do not go their own way.
    behind_s = late.get(rank, 0.0) if has_ablation(trial, NO_COMM) else max(late.values(), default=0.0)
    mean_s = (model.step_time_s(trial) + behind_s) * math.exp(launch_noise)
    times = [mean_s * math.exp(steps.gauss(0, model.step_noise)) for _ in range(count)]
    counters: dict[str, float | int | str | None] = {
        "parameter_checksum": "0",
        "matmul_flops_per_s_before": 5e10,
        "matmul_flops_per_s_after": 5e10,
        "gradient_bytes": 4_000_000,
    }
    if trial.is_command:  # whose losses and parameters are its own
        del counters["parameter_checksum"]
        counters |= model.script.counters(trial, count)
        return simulated_record(rank, {"step_time_s": times}, counters)
    return simulated_record(rank, {"step_time_s": times, "loss": [1.0] * count}, counters)


def _steps(step_s: float, trial: Trial) -> int:
    """How many steps a launch makes, warm-up included."""
    options = trial.options(Train)
    if options.window is None:
        return trial.steps or 100 * options.epochs
    in_window = math.ceil(options.window / step_s)
    return options.warmup_steps + max(options.min_steps, in_window)
