"""Joined runs: the runs of one machine as one; the measurements of each inform what is said of the others."""

import dataclasses
from collections.abc import Sequence

from scalescope.results.result import Result
from scalescope.results.run import Run


def by_machine(runs: Sequence[Run]) -> tuple[tuple[Run, ...], ...]:
    """The runs of each machine, in their order; one without results, or of several machines, is alone."""
    groups: dict[str, list[Run]] = {}
    for number, run in enumerate(runs):
        machines = {result.environment_id for result in run.results}
        key = machines.pop() if len(machines) == 1 else f"run {number}"
        groups.setdefault(key, []).append(run)
    return tuple(tuple(group) for group in groups.values())


def joined(runs: Sequence[Run]) -> Run:
    """All results of runs of one machine. Of two results with one key the newer counts, as inside a run.

    Path, record and environment are those of the run that trains on most ranks, because what is advised is
    advised for that one.
    """
    if len(runs) == 1:
        return runs[0]
    counted: dict[tuple[str, int], tuple[Result, Run]] = {}
    replaced: list[Result] = [result for run in runs for result in run.replaced]
    pairs = [(result, run) for run in runs for result in run.results]
    for result, origin in pairs:
        before = counted.get(result.key)
        if before is None:
            counted[result.key] = result, origin
            continue
        older, newer = sorted((before, (result, origin)), key=lambda pair: pair[0].started_at)
        counts, other = (older, newer) if _only_first_is_ok(older[0], newer[0]) else (newer, older)
        counted[result.key] = counts
        replaced += [other[0]] if other[0].status == "ok" else []
    main = max(runs, key=_weight)
    return dataclasses.replace(
        main,
        results=tuple(result for result, _ in counted.values()),
        warnings=tuple(warning for run in runs for warning in run.warnings),
        replaced=tuple(replaced),
        folders={key: run.folder_of(result) for key, (result, run) in counted.items()},
    )


def _only_first_is_ok(first: Result, second: Result) -> bool:
    return first.status == "ok" and second.status != "ok"


def _weight(run: Run) -> tuple[int, str]:
    """The largest world size that was trained on, then the newest."""
    trained = [result.trial.world_size for result in run.of_status("ok") if result.trial.is_training]
    return max(trained, default=0), max((result.started_at for result in run.results), default="")
