"""Measures a stored run further where it could not be judged, without touching the one before it.

How many launches are made depends on how noisy they are, never on which side looks faster: to measure until
a difference shows would find one sooner or later.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.analysis.comparison.environments import Difference, differences
from scalescope.analysis.comparison.runs import (
    ComparedConfig,
    compare_runs,
    is_too_noisy,
    more_launches_would_decide,
)
from scalescope.analysis.run_spread import RunSpread
from scalescope.errors import BadInput, CannotRun, Interrupted
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Launcher
from scalescope.report.numbers import counted
from scalescope.results.provenance import describe_environment
from scalescope.results.result import Result
from scalescope.results.run import Run, load_run
from scalescope.results.run_folder import EXPERIMENT, RunFolder
from scalescope.studies.campaign import run_campaign
from scalescope.studies.execution import check_same_code, write_files
from scalescope.studies.plan import Launch, Plan
from scalescope.studies.request import Request
from scalescope.studies.runs.run_history import spread_between
from scalescope.studies.stored import present
from scalescope.studies.study import NextLaunches
from scalescope.studies.watcher import CampaignWatcher
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
    spread = spread_between(base, new)
    comparison = compare_runs(base.results, new.results, threshold, spread=spread)
    inconclusive = comparison.with_verdict("inconclusive")
    asked = [compared.trial for compared in inconclusive if more_launches_would_decide(compared)]
    hopeless = _hopeless(len(inconclusive) - len(asked))
    if not asked:
        return new, hopeless
    experiment = experiment_of(new, budget_s, "--until-conclusive")
    machine = launcher.machine()
    _check_same_machine(new, describe_environment(machine, __version__))
    check_same_code(new.path, "--until-conclusive")
    for trial in asked:
        launcher.check(trial)
    plan = Plan(experiment=experiment, trials=(), machine=machine, chosen=())
    extension = Extension(base, new, asked, Goal(threshold, spread, window_s))
    folder = RunFolder.open(new.path.resolve(), resume=True)
    try:
        run_campaign(plan, launcher, folder, watcher, extension)
        write_files(present(load_run(folder.path)), folder)
    except BaseException as error:
        if isinstance(error, Interrupted):
            error.kept = f"finished launches are kept in {new.path}"
        with contextlib.suppress(Exception):  # what stopped the run is what the person must see
            write_files(present(load_run(folder.path)), folder)
        raise
    finally:
        folder.close()
    run = load_run(new.path)
    return run, (*extension.notes(run), *hopeless)


@dataclass(frozen=True, slots=True)
class Goal:
    """What launches must show, by how much runs differ of themselves, and how long each launch measures."""

    threshold: float
    spread: RunSpread
    window_s: float


class Extension(NextLaunches):
    """Launches that a comparison still needs; a configuration of which one fails gets no more."""

    def __init__(self, base: Run, new: Run, asked: Sequence[Trial], precision: Goal) -> None:
        self._base = base
        self._earlier = {result.key for result in new.results}
        self._asked = {trial.trial_id for trial in asked}
        self._precision = precision

    def _made(self, run: Run) -> list[Result]:
        return [result for result in run.results if result.key not in self._earlier]

    def next_launches(self, run: Run, remaining_s: float | None) -> tuple[Launch, ...]:
        """One more launch of every configuration that the noise still hides."""
        wanted = self._precision
        comparison = compare_runs(self._base.results, run.results, wanted.threshold, spread=wanted.spread)
        failed = {result.trial_id for result in self._made(run) if result.status != "ok"}
        numbers: dict[str, int] = {}
        for result in run.results:
            numbers[result.trial_id] = max(result.launch, numbers.get(result.trial_id, 0))
        trials = [compared.trial for compared in comparison.judged if self._is_open(compared, failed)]
        return tuple(Launch(self._timed(trial), numbers[trial.trial_id] + 1) for trial in trials)

    def _timed(self, trial: Trial) -> Trial:
        return trial if trial.window_s is None else trial.replace(window=self._precision.window_s)

    def notes(self, run: Run) -> tuple[str, ...]:
        """What was done, and whether time ended it."""
        made = counted(len(self._made(run)), "launch")
        extended = f"The new run was measured further ({made}), the old one was not."
        left = len(self.next_launches(run, None))
        budget = f"The budget was spent with {counted(left, 'configuration')} still too noisy."
        return (extended, budget) if left else (extended,)

    def _is_open(self, judged: ComparedConfig, failed: set[str]) -> bool:
        return judged.trial.trial_id in self._asked - failed and is_too_noisy(judged)


def _hopeless(count: int) -> tuple[str, ...]:
    if not count:
        return ()
    return (
        f"{counted(count, 'configuration')} cannot be decided by launches of the new run alone: "
        "the old one has too few, or too noisy ones, or runs differ too much of themselves (--interleave).",
    )


def experiment_of(run: Run, budget_s: float, flag: str) -> Experiment:
    """The request that the run was made by, with the time that may be spent now."""
    verb = run.record.verb
    if verb not in _EXTENDABLE:
        raise BadInput(f"{flag}: {run.path} is not a run of {', '.join(_EXTENDABLE)}; measure it again")
    experiment = Request(verb=verb, file=run.path / EXPERIMENT).experiment({})
    measuring = dataclasses.replace(experiment.measuring, budget=budget_s)
    return dataclasses.replace(experiment, measuring=measuring)


def _check_same_machine(run: Run, here: dict[str, object]) -> None:
    """Launches of another machine, version or commit are no further launches of this run."""
    differing = [difference for difference in differences(run.environment, here) if _matters(difference)]
    if differing:
        words = "; ".join(
            f"{difference.name}: {difference.before}, now {difference.after}" for difference in differing
        )
        raise CannotRun(f"--until-conclusive: {run.path} was measured elsewhere or otherwise ({words})")


def _matters(difference: Difference) -> bool:
    return difference.is_known and difference.name not in _MAY_DIFFER
