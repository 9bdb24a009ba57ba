"""When a trial that fails is not launched again."""

from scalescope.results.result import Result

TRIES_BEFORE_GIVING_UP = 2


def failure_weight(result: Result) -> int:
    """How much a launch counts for giving up; failures that will repeat themselves count in full."""
    if result.status == "ok":
        return 0
    return TRIES_BEFORE_GIVING_UP if result.status in ("oom", "invalid") else 1
