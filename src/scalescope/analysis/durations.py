"""How long launches take: for --dry-run, for the budget, and for the time left.

What has been launched is learnt from, in this run and in earlier ones of this machine; what has not is
estimated from operation counts, and corrected by what such estimates were wrong by.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scalescope.catalog.benchmarks.comm import Comm
from scalescope.catalog.benchmarks.train import Train, warmup_of
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result

# One core and one data-centre GPU in fp32, where nothing was measured.
_FLOPS_PER_S = {"cpu": 50e9, "cuda": 30e12}
# The share of a bare matrix product's rate that training reaches on a core, by what its model has.
_PLAIN_SHARE, _ATTENTION_SHARE, _CONVOLUTION_SHARE = 0.8, 0.4, 0.2
_FRESH_S = 4.0  # importing torch anew, for trials with variables of their own
# Counting a step's memory on tensors without data, and how often that is done.
_FORECAST_S = 1.5
_FORECASTS = {"measure": 7, "compare": 1, "brief": 3, "search": 0}
_STEPS_OF_A_DATA_SET = 500  # where only the data knows
_LAUNCH_S = {"cpu": 1.0, "cuda": 4.0}
_LEAST_GPU_WARMUP_S = 1.0
_LEAST_START_S = 0.3  # of a launch, whatever was learnt


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLaunch:
    """A launch that finished: what it measured, and how long it and its steps took."""

    trial: Trial
    duration_s: float
    step_s: float | None  # None where it made no training steps

    @classmethod
    def of(cls, result: Result) -> "KnownLaunch":
        steps = [time for record in result.ranks[:1] for time in record.samples.get("step_time_s", ())]
        step_s = statistics.median(steps) if steps else None
        return cls(trial=result.trial, duration_s=result.duration_s, step_s=step_s)

    def step_of(self, trial: Trial) -> float:
        """What a step of another batch, or of another size of this workload, takes in proportion."""
        assert self.step_s is not None
        if has_unknown_steps(trial) or trial.is_command:
            samples, known_samples = trial.rank_batch_size, self.trial.rank_batch_size
            return self.step_s * (samples / known_samples if samples and known_samples else 1.0)
        known = _counted_step_s(self.trial)
        return self.step_s * (_counted_step_s(trial) / known if known else 1.0)

    def start_of(self, trial: Trial) -> float:
        """What another launch takes besides its steps: as this one did, and more for more ranks."""
        assert self.step_s is not None
        besides = self.duration_s - _training_s(self.trial, self.step_s)
        return max(_LEAST_START_S, besides + _start_s(trial) - _start_s(self.trial))


class LaunchDurations:
    """Durations of the launches that ended, by trial; `earlier` are those of other runs of this machine."""

    def __init__(
        self,
        results: Iterable[Result] = (),
        earlier: Iterable[Result] = (),
        core_flops_per_s: float | None = None,
    ) -> None:
        self._core_flops_per_s = core_flops_per_s  # of this machine's processor, where that was measured
        self._by_trial: dict[str, list[float]] = {}
        self._cut_short: dict[str, float] = {}  # what launches took that the budget ended
        self._finished: list[KnownLaunch] = []
        self._earlier: list[KnownLaunch] = []
        self.learn(earlier)
        for result in results:
            self.add(result)

    def learn(self, earlier: Iterable[Result]) -> None:
        """Take launches of other runs of this machine into account."""
        known = (result for result in earlier if result.status == "ok" and result.duration_s > 0.0)
        self._earlier += map(KnownLaunch.of, known)

    def add(self, result: Result) -> None:
        if result.duration_s == 0.0:  # measured in the launch of another trial
            return
        self._by_trial.setdefault(result.trial_id, []).append(result.duration_s)
        if result.status == "ok":
            self._finished.append(KnownLaunch.of(result))
        elif result.stopped_by == "budget":
            longest = max(result.duration_s, self._cut_short.get(result.trial_id, 0.0))
            self._cut_short[result.trial_id] = longest

    def knows(self, trial: Trial) -> bool:
        """Whether a launch that finished says how long one of this trial takes."""
        return bool(_most_similar(trial, self._finished) or _most_similar(trial, self._earlier))

    def estimate_s(self, trial: Trial) -> float:
        """What a launch of a trial takes: as the nearest known launches did, else by operation counts."""
        for known in (self._finished, self._earlier):
            same = [launch for launch in known if launch.trial.trial_id == trial.trial_id]
            if same:
                estimate = statistics.median(_at_window_of(trial, launch) for launch in same)
                break
        else:
            estimate = self._estimate_by_others(trial)
        return max(estimate, self._cut_short.get(trial.trial_id, 0.0))

    def _estimate_by_others(self, trial: Trial) -> float:
        """An estimate from launches of other trials, the most similar ones there are."""
        similar = _most_similar(trial, self._finished) or _most_similar(trial, self._earlier)
        if not similar:
            return estimated_launch_s(trial, self._counted_step_s(trial))
        with_steps = [launch for launch in similar if launch.step_s is not None]
        if with_steps:
            start_s = statistics.median(launch.start_of(trial) for launch in with_steps)
            same = [launch for launch in with_steps if _workload(launch.trial) == _workload(trial)]
            steps = [launch.step_of(trial) for launch in same]  # of other workloads, only the start is alike
            return start_s + _training_s(
                trial, statistics.median(steps) if steps else self._counted_step_s(trial)
            )
        ratios = [launch.duration_s / estimated_launch_s(launch.trial) for launch in similar]
        return statistics.median(ratios) * estimated_launch_s(trial)

    def _counted_step_s(self, trial: Trial) -> float | None:
        """A step by its operations at the rate of this processor; None where that does not matter."""
        if self._core_flops_per_s is None or trial.on_gpu or not trial.has_strategy:
            return None
        return _counted_step_s(trial, _share_of(trial) * self._core_flops_per_s)

    def of(self, trial_id: str) -> list[float]:
        """The durations of a trial's launches, in their order; empty where it had none."""
        return self._by_trial.get(trial_id, [])

    def expected(self, trial: Trial) -> float:
        """What a budget must allow for: the trial's last launch, or the longest of the other trials."""
        if trial.trial_id in self._by_trial:
            return self._by_trial[trial.trial_id][-1]
        return max((durations[-1] for durations in self._by_trial.values()), default=0.0)

    def total_s(self, launches: Iterable[tuple[Trial, int]]) -> float | None:
        """What this many launches per trial take: each as its trial's, or as the mean of other trials.

        None while nothing was learnt.
        """
        means = {trial_id: statistics.fmean(values) for trial_id, values in self._by_trial.items()}
        if not means:
            return None
        usual = statistics.fmean(means.values())
        return sum(count * means.get(trial.trial_id, usual) for trial, count in launches)


def _most_similar(trial: Trial, launches: Sequence[KnownLaunch]) -> list[KnownLaunch]:
    """The launches of the same workload and world size, else of the same workload, else of the same kind."""
    kind = [launch for launch in launches if _kind(launch.trial) == _kind(trial)]
    if has_unknown_steps(trial) or trial.is_command:  # launches of other workloads say nothing about it
        kind = [launch for launch in kind if _workload(launch.trial) == _workload(trial)]
    job = [launch for launch in kind if _workload(launch.trial) == _workload(trial)]
    return [launch for launch in job if launch.trial.world_size == trial.world_size] or job or kind


def _kind(trial: Trial) -> tuple[str, str]:
    return trial.benchmark, trial.device


def _workload(trial: Trial) -> str | None:
    """The workload, or the command itself."""
    if trial.is_command:
        return trial.command
    return trial.workload if trial.has_strategy else None


def has_unknown_steps(trial: Trial) -> bool:
    """Whether the operations of a step have no formula: a custom workload must be run to know."""
    return trial.has_strategy and bool(trial.workload_card.counts_operations)


def _at_window_of(trial: Trial, launch: KnownLaunch) -> float:
    """What a launch would have taken with the window of another; a trial's id is the same for all windows.

    The same holds for soaking: the longest time is assumed.
    """
    if trial.window_s is None or launch.trial.window_s is None:
        return launch.duration_s
    now, then = trial.window_s + trial.soak_s, launch.trial.window_s + launch.trial.soak_s
    return launch.duration_s if now == then else max(launch.duration_s - then, 0.0) + now


def estimated_launch_s(trial: Trial, step_s: float | None = None) -> float:
    """Seconds for one launch, before any was made; `step_s` is what a step takes, where that is known."""
    if trial.benchmark == "comm":
        return _LAUNCH_S[trial.device] + trial.steps * trial.options(Comm).time_per_size
    return _start_s(trial) + _FORECAST_S * _forecasts(trial) + _training_s(trial, step_s)


def _start_s(trial: Trial) -> float:
    """Seconds until the ranks of a launch make steps."""
    is_fresh = bool(trial.env) or trial.is_command
    return _LAUNCH_S[trial.device] * max(1, trial.world_size // 2) + (_FRESH_S if is_fresh else 0.0)


def _forecasts(trial: Trial) -> int:
    """How often a launch counts the memory of a step."""
    if trial.benchmark != "memory" or trial.purpose is None:
        return 0
    return _FORECASTS[trial.purpose]


def _training_s(trial: Trial, step_s: float | None) -> float:
    """Seconds for the steps of a launch."""
    if step_s is None:
        step_s = _counted_step_s(trial)
    if trial.is_training and (training := trial.options(Train)).is_timed:
        window_s = max(training.window or 0.0, training.min_steps * step_s)
        warmup_s = max(warmup_of(trial.settings) * step_s, _LEAST_GPU_WARMUP_S if trial.on_gpu else 0.0)
        return warmup_s + trial.soak_s + window_s
    return (trial.steps or _STEPS_OF_A_DATA_SET) * step_s


def _counted_step_s(trial: Trial, flops_per_s: float | None = None) -> float:
    """Seconds for a step, by its operations; `flops_per_s` is the rate of one core or GPU."""
    workload = trial.options(trial.workload_card)
    threads = 1 if trial.on_gpu else trial.threads_per_rank
    flops = workload.flops_per_sample() or 0  # of an own workload nobody knows
    rate = (flops_per_s or _FLOPS_PER_S[trial.device]) * threads
    return float(workload.least_step_s() + flops * trial.rank_batch_size / rate)


def _share_of(trial: Trial) -> float:
    """The share of a matrix product's rate that a workload reaches on a processor."""
    workload = trial.workload_card
    if workload.has_convolutions:
        return _CONVOLUTION_SHARE
    return _ATTENTION_SHARE if workload.has_attention else _PLAIN_SHARE
