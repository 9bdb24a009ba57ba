"""Measures a stored run further where it could not be judged, without touching the one before it.

How many launches are made depends on how noisy they are, never on which side looks faster: to measure until
a difference shows would find one sooner or later.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from scalescope.analysis.comparison.environments import Difference, differences
from scalescope.analysis.comparison.runs import (
    ComparedConfig,
    RunComparison,
    compare_runs,
    more_launches_would_decide,
)
from scalescope.errors import BadInput, CannotRun, Interrupted
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Launcher
from scalescope.report.numbers import counted
from scalescope.results.provenance import describe_environment
from scalescope.results.result import Result
from scalescope.results.run import Run, load_run
from scalescope.results.run_folder import EXPERIMENT, RunFolder
from scalescope.studies.campaign import CampaignWatcher, Plan, run_campaign
from scalescope.studies.request import Request
from scalescope.studies.study import summarise_again
from scalescope.version import __version__

WINDOW_S = 3.0
_EXTENDABLE = ("train", "scale", "run")  # others number or choose their launches in a way of their own
_MAY_DIFFER = ("host", "SLURM_JOB_ID", "SLURM_JOB_NODELIST")


def extend(
    base: Run,
    new: Run,
    threshold: float,
    budget_s: float,
    launcher: Launcher,
    watcher: CampaignWatcher,
    window_s: float = WINDOW_S,
) -> tuple[Run, tuple[str, ...]]:
    """Launch what is inconclusive in rounds until the noise allows a verdict or the budget is spent.

    Further launches measure for `window_s`, whatever those before them did; counted steps stay counted.
    """
    if base.path.resolve() == new.path.resolve():
        raise BadInput(f"--until-conclusive: {base.path} and {new.path} are the same run")
    found = compare_runs(base.results, new.results, threshold)
    inconclusive = found.with_verdict("inconclusive")
    asked = [one.trial for one in inconclusive if more_launches_would_decide(one)]
    hopeless = _hopeless(len(inconclusive) - len(asked))
    if not asked:
        return new, hopeless
    experiment = _experiment_of(new, budget_s)
    machine = launcher.machine()
    _check_same_place(new, describe_environment(machine, __version__))
    for trial in asked:
        launcher.check(trial)
    plan = Plan(experiment=experiment, trials=(), machine=machine, chosen=())
    launches = _Launches(base, asked, threshold, window_s)
    folder = RunFolder.open(new.path.resolve(), resume=True)
    try:
        run_campaign(plan, launcher, folder, watcher, launches.wanted, launches.heard)
        summarise_again(folder, plan)
    except BaseException as error:
        if isinstance(error, Interrupted):
            error.kept = f"finished launches are kept in {new.path}"
        with contextlib.suppress(Exception):  # what stopped us is what the person must hear of
            summarise_again(folder, plan)
        raise
    finally:
        folder.close()
    run = load_run(new.path)
    return run, (*launches.told(run), *hopeless)


class _Launches:
    """Which launches are still wanted; one that fails ends its configuration."""

    def __init__(self, base: Run, asked: Sequence[Trial], threshold: float, window_s: float) -> None:
        self._base = base
        self._window_s = window_s
        self._asked = {trial.trial_id for trial in asked}
        self._threshold = threshold
        self.made = 0

    def heard(self, result: Result) -> None:
        self.made += 1
        if result.status != "ok":
            self._asked.discard(result.trial_id)

    def wanted(self, run: Run) -> tuple[tuple[Trial, int], ...]:
        """One more launch of every configuration that the noise still hides."""
        comparison: RunComparison = compare_runs(self._base.results, run.results, self._threshold)
        numbers: dict[str, int] = {}
        for result in run.results:
            numbers[result.trial_id] = max(result.launch, numbers.get(result.trial_id, 0))
        trials = [one.trial for one in comparison.judged if self._is_open(one)]
        return tuple((self._timed(trial), numbers[trial.trial_id] + 1) for trial in trials)

    def _timed(self, trial: Trial) -> Trial:
        return trial if trial.settings.get("window") is None else trial.replace(window=self._window_s)

    def told(self, run: Run) -> tuple[str, ...]:
        """What was done, and whether time ended it."""
        said = f"The new run was measured further ({counted(self.made, 'launch')}), the old one was not."
        left = len(self.wanted(run))
        budget = f"The budget was spent with {counted(left, 'configuration')} still too noisy."
        return (said, budget) if left else (said,)

    def _is_open(self, judged: ComparedConfig) -> bool:
        if judged.trial.trial_id not in self._asked:
            return False
        return judged.smallest_detectable is None or judged.smallest_detectable > self._threshold


def _hopeless(count: int) -> tuple[str, ...]:
    if not count:
        return ()
    return (
        f"{counted(count, 'configuration')} cannot be decided by launches of the new run alone: "
        "the old one has too few, or too noisy ones.",
    )


def _experiment_of(run: Run, budget_s: float) -> Experiment:
    """The request that the run was made by, with the time that may be spent now."""
    path = run.path / EXPERIMENT
    verb = _verb_of(path)
    if verb not in _EXTENDABLE:
        raise BadInput(
            f"--until-conclusive: {run.path} is no run of {', '.join(_EXTENDABLE)}; measure it again"
        )
    experiment = Request(verb=verb, file=path).experiment({})
    measuring = dataclasses.replace(experiment.measuring, budget=budget_s)
    return dataclasses.replace(experiment, measuring=measuring)


def _verb_of(path: Path) -> str:
    """From the first line, which says what repeats the run."""
    try:
        words = path.read_text(encoding="utf-8").splitlines()[0].split()
        return words[words.index("scalescope") + 1]
    except (OSError, ValueError, IndexError):
        return ""


def _check_same_place(run: Run, here: dict[str, object]) -> None:
    """Launches of another machine, version or commit are no further launches of this run."""
    found = [difference for difference in differences(run.environment, here) if _matters(difference)]
    if found:
        words = "; ".join(f"{one.name}: {one.before}, now {one.after}" for one in found)
        raise CannotRun(f"--until-conclusive: {run.path} was measured elsewhere or otherwise ({words})")


def _matters(difference: Difference) -> bool:
    return difference.is_known and difference.name not in _MAY_DIFFER
