"""How long launches take: for --dry-run, for the budget, and for the time left.

What has been launched is learnt from; what has not is estimated from operation counts, roughly.
"""

import statistics
from collections.abc import Iterable

from scalescope.catalog.benchmarks.comm import Comm
from scalescope.catalog.benchmarks.train import Train
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result

# Orders of magnitude of one core and one data-centre GPU in fp32; an estimate needs no more.
_FLOPS_PER_S = {"cpu": 50e9, "cuda": 30e12}
_FRESH_S = 4.0  # importing torch anew, for trials with variables of their own
# Counting a step's memory on tensors without data, and how often that is done.
_FORECAST_S = 1.5
_FORECASTS = {"measure": 7, "compare": 1, "brief": 3, "search": 0}
_STEPS_OF_A_DATA_SET = 500  # where only the data knows
_LAUNCH_S = {"cpu": 1.0, "cuda": 4.0}


class LaunchDurations:
    """Durations of the launches that ended, by trial."""

    def __init__(self, results: Iterable[Result] = ()) -> None:
        self._by_trial: dict[str, list[float]] = {}
        for result in results:
            self.add(result)

    def add(self, result: Result) -> None:
        self._by_trial.setdefault(result.trial_id, []).append(result.duration_s)

    def of(self, trial_id: str) -> list[float]:
        """The durations of a trial's launches, in their order; empty where it had none."""
        return self._by_trial.get(trial_id, [])

    def expected(self, trial: Trial) -> float:
        """What a budget must allow for: the trial's last launch, or the longest of the other trials."""
        if trial.trial_id in self._by_trial:
            return self._by_trial[trial.trial_id][-1]
        return max((durations[-1] for durations in self._by_trial.values()), default=0.0)

    def total_s(self, launches: Iterable[tuple[Trial, int]]) -> float | None:
        """What so many launches of each trial take: each as its trial's, or as the mean of other trials.

        None while nothing was learnt.
        """
        means = {trial_id: statistics.fmean(values) for trial_id, values in self._by_trial.items()}
        if not means:
            return None
        usual = statistics.fmean(means.values())
        return sum(count * means.get(trial.trial_id, usual) for trial, count in launches)


def estimate_s(trials: tuple[Trial, ...], repeats: int) -> float:
    """Seconds for all launches of the trials, before any was made."""
    return repeats * sum(estimated_launch_s(trial) for trial in trials)


def estimated_launch_s(trial: Trial) -> float:
    """Seconds for one launch, before any was made."""
    if trial.benchmark == "comm":
        return _LAUNCH_S[trial.device] + trial.steps * trial.options(Comm).time_per_size
    start_s = _LAUNCH_S[trial.device] * max(1, trial.world_size // 2) + (_FRESH_S if trial.env else 0.0)
    return start_s + _FORECAST_S * _forecasts(trial) + _training_s(trial)


def _forecasts(trial: Trial) -> int:
    """How often a launch counts the memory of a step."""
    if trial.benchmark != "memory" or trial.purpose is None:
        return 0
    return _FORECASTS[trial.purpose]


def _training_s(trial: Trial) -> float:
    """Seconds for the steps of a launch."""
    workload = trial.options(trial.workload_card)
    threads = 1 if trial.on_gpu else trial.threads_per_rank
    flops = workload.flops_per_sample() or 0  # of a custom workload nobody knows: --dry-run says "about"
    rate = _FLOPS_PER_S[trial.device] * threads
    step_s = float(workload.least_step_s() + flops * trial.rank_batch_size / rate)
    if trial.is_training and (training := trial.options(Train)).is_timed:
        window_s = max(training.window or 0.0, training.min_steps * step_s)
        return training.warmup_steps * step_s + window_s
    return (trial.steps or _STEPS_OF_A_DATA_SET) * step_s
