"""A rough forecast of how long a plan takes, for --dry-run; counted from operations, not measured."""

from scalescope.catalog import cards
from scalescope.catalog.benchmarks.train import AUTO
from scalescope.experiment.trial import Trial

# Orders of magnitude of one core and one data-centre GPU in fp32; an estimate needs no more.
_FLOPS_PER_S = {"cpu": 50e9, "cuda": 30e12}
_FRESH_S = 4.0  # importing torch anew, for trials with variables of their own
# Counting a step's memory on tensors without data, and how often that is done.
_FORECAST_S = 1.5
_FORECASTS = {"measure": 7, "compare": 1, "brief": 3, "search": 0}
_STEPS_OF_A_DATA_SET = 500  # where only the data knows
_LAUNCH_S = {"cpu": 1.0, "cuda": 4.0}


def estimate_s(trials: tuple[Trial, ...], repeats: int) -> float:
    """Seconds for all launches of the trials."""
    return repeats * sum(_launch_s(trial) for trial in trials)


def _launch_s(trial: Trial) -> float:
    settings = trial.settings
    if settings["benchmark"] == "comm":
        return _LAUNCH_S[trial.device] + trial.steps * float(settings["time_per_size"])
    workload = trial.options(cards.card("workloads", settings["workload"]))
    threads = settings["threads_per_rank"] if trial.device == "cpu" else 1
    rate = _FLOPS_PER_S[trial.device] * threads
    flops = workload.flops_per_sample() or 0  # one's own workload: nobody knows, and --dry-run says "roughly"
    step_s = workload.least_step_s() + flops * trial.rank_batch_size / rate
    fresh_s = _FRESH_S if settings["env"] else 0.0
    if settings["benchmark"] == "memory":
        fresh_s += _FORECAST_S * _FORECASTS[settings["purpose"]]
    if settings.get("steps_per_epoch") == AUTO:
        window_s = max(settings["window"], settings["min_steps"] * step_s)
        measured_s = settings["warmup_steps"] * step_s + window_s
    else:
        measured_s = (trial.steps or _STEPS_OF_A_DATA_SET) * step_s
    return float(_LAUNCH_S[trial.device] * max(1, trial.world_size // 2) + fresh_s + measured_s)
