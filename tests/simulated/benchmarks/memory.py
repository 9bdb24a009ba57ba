"""Simulated launches of the memory benchmark."""

from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Outcome
from scalescope.results.result import RankRecord
from tests.simulated.costs import CostModel, simulated_record


def simulate(model: CostModel, trial: Trial, launch: int) -> Outcome:
    """A batch that needs more than a rank may take runs out of memory."""
    if model.peak_bytes(trial) > model.room_bytes(trial):
        return Outcome(status="oom", reason="rank 0 failed at step 0: out of memory", rank=0, step=0)
    return Outcome(status="ok", records=[_record(model, trial, rank) for rank in range(trial.world_size)])


def _record(model: CostModel, trial: Trial, rank: int) -> RankRecord:
    held = model.activation_bytes * trial.micro_batch_size
    sizes = {
        "parameters": model.parameter_bytes,
        "buffers": 0,
        "gradients": model.parameter_bytes,
        "optimizer": 2 * model.parameter_bytes if trial.optimizer == "adamw" else 0,
        "activations": held,
        "temporary": model.temporary_bytes,
        "inputs": 0,
    }
    counters: dict[str, float | int | str | None] = {"measured/peak": model.peak_bytes(trial)}
    if trial.purpose != "search":
        counters |= {f"measured/{name}": size for name, size in sizes.items() if name != "temporary"}
        counters |= {f"forecast/as_asked/{name}": size for name, size in sizes.items()}
        counters |= {"trace/temporary": model.temporary_bytes}
        counters["forecast/gathered"] = model.parameter_bytes // 4
    if trial.purpose == "measure":
        ways = {"now": sizes, "kept": sizes, "bf16": {**sizes, "activations": held // 2}}
        counters |= {f"forecast/{way}/{name}": size for way in ways for name, size in ways[way].items()}
        counters["forecast/other_ways_batch"] = trial.micro_batch_size
    if trial.device == "cuda":
        peak = model.peak_bytes(trial)
        counters |= {"measured/library": 0, "measured/reserved": peak}
        counters |= {"device/total": model.device_bytes, "device/free": model.device_bytes - peak}
    return simulated_record(rank, {}, counters)
