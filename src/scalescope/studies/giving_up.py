"""When a trial that fails is not launched again."""

from collections.abc import Iterable

from scalescope.experiment.recordings import explained_job
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result

TRIES_BEFORE_GIVING_UP = 2


def failure_weight(result: Result) -> int:
    """How much a launch counts for giving up; failures that will repeat themselves count in full."""
    if result.status == "ok":
        return 0
    return TRIES_BEFORE_GIVING_UP if result.status in ("oom", "invalid") else 1


class FailedJobs:
    """Jobs that only failed so far: the same with a part removed is likely to fail as well."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._ended: dict[str, bool] = {}  # by trial, whether a launch of it worked
        for result in results:
            self.add(result)

    def add(self, result: Result) -> None:
        self._ended[result.trial_id] = self._ended.get(result.trial_id, False) or result.status == "ok"

    def include_job_of(self, trial: Trial) -> bool:
        """Whether a launch would only explain one of them."""
        job = explained_job(trial)
        return job is not None and self._ended.get(job.trial_id) is False
