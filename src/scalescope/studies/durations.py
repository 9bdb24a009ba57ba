"""How long launches take, learnt from those that ended: for the budget, and for the time left."""

import statistics
from collections.abc import Iterable

from scalescope.experiment.trial import Trial
from scalescope.results.result import Result


class LaunchDurations:
    """Durations of the launches that ended, by trial."""

    def __init__(self, results: Iterable[Result] = ()) -> None:
        self._by_trial: dict[str, list[float]] = {}
        for result in results:
            self.add(result)

    def add(self, result: Result) -> None:
        self._by_trial.setdefault(result.trial_id, []).append(result.duration_s)

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
