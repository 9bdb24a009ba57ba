"""Measures two configurations in turns: what varies from run to run then affects both alike.

The first is that of a stored run. The second is that of another run, or the first with settings changed.
Rounds go on until the budget is spent or there are twenty: what they show never decides whether more follow.
"""

import dataclasses
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scalescope.analysis.comparison.environments import differences, other_hardware
from scalescope.analysis.comparison.runs import (
    RunComparison,
    full_configurations,
    judged_pairs,
    matched_pairs,
    variant_pairs,
)
from scalescope.analysis.configurations import configurations
from scalescope.catalog.workloads.custom import file_of, in_file
from scalescope.errors import BadInput, CannotRun, Interrupted
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.given import Entries
from scalescope.experiment.machine import Machine
from scalescope.experiment.record import to_yaml
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Launcher
from scalescope.report.comparison.two_runs import Compared
from scalescope.report.numbers import counted
from scalescope.results.files import to_text
from scalescope.results.provenance import describe_environment
from scalescope.results.run import Run, load_run
from scalescope.results.run_folder import ENVIRONMENT, EXPERIMENT, RunFolder, new_run_path
from scalescope.results.run_record import COMPARED, RunRecord, write_run_record
from scalescope.studies.campaign import run_campaign
from scalescope.studies.comparison.old_code import at_commit, changed_code
from scalescope.studies.plan import Launch, Plan
from scalescope.studies.request import Request
from scalescope.studies.study import Interim, NextLaunches
from scalescope.studies.watcher import CampaignWatcher
from scalescope.version import __version__

_MOST_ROUNDS = 20  # more of them hardly narrow an interval
_VERBS = ("train", "scale", "run")  # others number or choose their launches in a way of their own
_SHOWN = 3  # differences of the environment in a sentence
TrialPair = tuple[Trial, Trial]  # old, new


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What decides, and how long further launches may take: all together, and the window of each."""

    threshold: float
    budget_s: float
    window_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """What is measured in turns: pairs of trials, the names of the two sides, and what must be said."""

    pairs: tuple[TrialPair, ...]
    base: str
    new: str
    notes: tuple[str, ...] = ()


def interleave_runs(
    base: Run, new: Run, limits: Limits, launcher: Launcher, watcher: CampaignWatcher
) -> Compared:
    """Measure the configurations of two runs in turns."""
    machine = launcher.machine()
    here = describe_environment(machine, __version__)
    _check_hardware((base, new), here)
    with tempfile.TemporaryDirectory(prefix="scalescope-code-") as directory:
        pairs, notes = _pairs_of_runs(base, new, Path(directory))
        sides = Sides(
            pairs=pairs,
            base=f"as in {base.path.resolve().name}",
            new=f"as in {new.path.resolve().name}",
            notes=(*notes, *_since_then((base, new), here)),
        )
        return _measured(base, sides, limits, launcher, watcher)


def interleave_changes(
    base: Run, changes: Entries, limits: Limits, launcher: Launcher, watcher: CampaignWatcher
) -> Compared:
    """Measure the configurations of a run in turns with the same ones, some settings changed."""
    machine = launcher.machine()
    here = describe_environment(machine, __version__)
    _check_hardware((base,), here)
    old, new = (_expanded(base, flags, machine) for flags in ({}, changes))
    if len(old) != len(new):
        raise BadInput(
            f"--set must give each of the {counted(len(old), 'configuration')} of {base.path} another "
            f"value; with it there are {len(new)}"
        )
    pairs = tuple((left, right) for left, right in zip(old, new, strict=True) if _differ(left, right))
    if not pairs:
        raise BadInput(f"--set: {base.path} was measured with these settings")
    words = ", ".join(f"{name} {values[0].text}" for name, values in changes.items())
    name = base.path.resolve().name
    sides = Sides(pairs=pairs, base=f"as in {name}", new=f"with {words}", notes=_since_then((base,), here))
    return _measured(base, sides, limits, launcher, watcher)


def _expanded(run: Run, changes: Entries, machine: Machine) -> tuple[Trial, ...]:
    request = Request(verb=run.record.verb, file=run.path / EXPERIMENT, flags=changes)
    return tuple(trial for trial in expand(request.experiment({}), machine).trials if trial.is_training)


def _differ(left: Trial, right: Trial) -> bool:
    return left.trial_id != right.trial_id


def _pairs_of_runs(base: Run, new: Run, directory: Path) -> tuple[tuple[TrialPair, ...], tuple[str, ...]]:
    """Configurations that correspond and can be told apart: by settings, or by the code of then."""
    left, right = full_configurations(base.results), full_configurations(new.results)
    pairs = matched_pairs(left, right)
    pairs += variant_pairs(left, right, pairs)
    rooted = [(_rooted(old.trial, base), _rooted(latest.trial, new)) for old, latest in pairs]
    notes: tuple[str, ...] = ()
    if rooted and not any(_differ(*pair) for pair in rooted):
        commit = changed_code(base, new, rooted[0][1])
        if commit is None:
            raise BadInput(
                f"--interleave: {base.path} and {new.path} have the same settings and no code that can be "
                "restored: measured in turns, both would be the same configuration. Put the old code in a "
                "separate folder and measure it as another --workload, or change a setting with --set"
            )
        rooted = [(at_commit(old, commit, directory), latest) for old, latest in rooted]
        notes = (f"The old code is from commit {commit.short}, the new code is the current file.",)
    different = tuple(pair for pair in rooted if _differ(*pair))
    if not different:
        raise BadInput(f"--interleave: no configuration of {base.path} corresponds to one of {new.path}")
    return different, notes


def _rooted(trial: Trial, run: Run) -> Trial:
    """The trial with the path of its workload's file from here."""
    file = file_of(trial.workload)
    if file is None:
        return trial
    path = (Path(run.record.directory or ".") / file).resolve()
    if not path.is_file():
        raise BadInput(f"--interleave: {path}, the workload of {run.path}, no longer exists")
    if path == (Path.cwd() / file).resolve():
        return trial
    return trial.replace(workload=in_file(trial.workload, path))


def _measured(
    base: Run, sides: Sides, limits: Limits, launcher: Launcher, watcher: CampaignWatcher
) -> Compared:
    """Launch both sides in turns into a folder of their own, and compare them inside that run."""
    pairs = tuple((_timed(old, limits), _timed(new, limits)) for old, new in sides.pairs)
    trials = {trial.trial_id: trial for pair in pairs for trial in pair}
    for trial in trials.values():
        launcher.check(trial)
    experiment = _experiment_of(base, limits.budget_s)
    plan = Plan(experiment=experiment, trials=tuple(trials.values()), machine=launcher.machine(), chosen=())
    folder = RunFolder.open(new_run_path(COMPARED), resume=False)
    turns = Turns(pairs, limits.threshold, experiment.measuring.order_seed)
    try:
        folder.write(EXPERIMENT, to_yaml(experiment))
        folder.write(ENVIRONMENT, to_text(describe_environment(plan.machine, __version__, launcher.nodes())))
        record = RunRecord(verb=COMPARED, directory=str(Path.cwd()))
        write_run_record(folder.path, record)
        _, end = run_campaign(plan, launcher, folder, watcher, turns)
        write_run_record(folder.path, dataclasses.replace(record, end=end))
    except Interrupted as interruption:
        interruption.kept = f"finished launches are kept in {folder.path}"
        interruption.report = _so_far(load_run(folder.path), sides, turns)
        raise
    finally:
        folder.close()
    compared = _so_far(load_run(folder.path), sides, turns)
    if compared is None:
        raise CannotRun(f"--interleave: no launch succeeded on both sides; {folder.path} has the reasons")
    return compared


def _so_far(run: Run, sides: Sides, turns: "Turns") -> Compared | None:
    """What the launches of both sides say; None where no two ended well."""
    comparison = turns.comparison(run)
    if not comparison.judged:
        return None
    spent = turns.spent_note(comparison)
    return Compared(
        base=sides.base,
        new=sides.new,
        comparison=comparison,
        differences=(),
        notes=(_made_note(run), *spent, *sides.notes, *run.warnings),
        interleaved=True,
    )


def _experiment_of(run: Run, budget_s: float) -> Experiment:
    """The request that the run was made by, with the time that may be spent now."""
    verb = run.record.verb
    if verb not in _VERBS:
        raise BadInput(f"--interleave: {run.path} is not a run of {', '.join(_VERBS)}")
    experiment = Request(verb=verb, file=run.path / EXPERIMENT).experiment({})
    measuring = dataclasses.replace(experiment.measuring, budget=budget_s)
    return dataclasses.replace(experiment, measuring=measuring)


def _timed(trial: Trial, limits: Limits) -> Trial:
    return trial if trial.window_s is None else trial.replace(window=limits.window_s)


def _made_note(run: Run) -> str:
    return (
        f"Both were measured alternately, {counted(len(run.results), 'launch')} in all, so run-to-run "
        f"variation does not matter here. They are stored in {run.path}."
    )


class Turns(NextLaunches):
    """Rounds of one launch of every trial, both sides of a pair next to each other in a random order, which
    every second round turns round."""

    def __init__(self, pairs: Sequence[TrialPair], threshold: float, seed: int) -> None:
        self._pairs = pairs
        self._threshold = threshold
        self._seed = seed

    def comparison(self, run: Run) -> RunComparison:
        """Every pair as measured so far; what failed is left out."""
        known = {configuration.trial.trial_id: configuration for configuration in configurations(run.results)}
        measured = [
            (known[old.trial_id], known[new.trial_id])
            for old, new in self._pairs
            if {old.trial_id, new.trial_id} <= known.keys()
        ]
        return RunComparison(
            threshold=self._threshold,
            judged=judged_pairs(measured, self._threshold),
            failed=(),
            only_before=(),
            only_after=(),
            collectives=(),
        )

    def next_launches(self, run: Run, remaining_s: float | None) -> tuple[Launch, ...]:
        """One more round."""
        failed = {result.trial_id for result in run.results if result.status != "ok"}
        made = len({result.launch for result in run.results})
        number = max((result.launch + 1 for result in run.results), default=0)
        if made >= _MOST_ROUNDS:
            return ()
        # In random order, and in the next round turned round: load that grows meanwhile favours neither side.
        chance = random.Random(f"{self._seed}/{number // 2}")
        ordered = [chance.sample(pair, 2)[:: -1 if number % 2 else 1] for pair in self._pairs]
        sides = [pair for pair in ordered if not failed & {trial.trial_id for trial in pair}]
        launches = [
            Launch(trial, number, block=str(index))
            for index, pair in enumerate(chance.sample(sides, len(sides)))
            for trial in pair
        ]
        return tuple({launch.key: launch for launch in launches}.values())

    def interim(self, run: Run) -> Interim | None:
        """The pair that differs most, after each round."""
        judged = self.comparison(run).judged
        if not judged:
            return None
        most = max(judged, key=lambda config: abs(config.change))
        ratio = most.speedup
        width = "" if ratio.low is None or ratio.high is None else f" [{ratio.low:.3f}, {ratio.high:.3f}]"
        rounds = counted(min(most.launches), "round")
        return Interim(f"{most.trial.label}: {ratio.value:.3f}×{width} ({rounds})")

    def spent_note(self, comparison: RunComparison) -> tuple[str, ...]:
        """That time ended it before launches decided."""
        left = len(comparison.with_verdict("inconclusive"))
        if not left:
            return ()
        return (f"Measuring ended with {counted(left, 'configuration')} undecided; see --budget.",)


def _check_hardware(runs: Sequence[Run], here: dict[str, object]) -> None:
    for run in runs:
        hardware = other_hardware(differences(run.environment, here))
        if hardware:
            words = "; ".join(f"{fact.name}: {fact.before}, here {fact.after}" for fact in hardware)
            raise CannotRun(f"--interleave: {run.path} was measured on different hardware ({words})")


def _since_then(runs: Sequence[Run], here: dict[str, object]) -> tuple[str, ...]:
    """What is not as it was in the runs: everything is measured with the code and versions of now."""
    notes = []
    for run in runs:
        facts = [
            f"{fact.name} {fact.before}, now {fact.after}"
            for fact in differences(run.environment, here)
            if fact.is_known and fact.kind in ("version", "code", "variable")
        ]
        if facts:
            more = f" and {len(facts) - _SHOWN} more" if len(facts) > _SHOWN else ""
            notes.append(
                f"Measured with the current code and versions; since {run.path.resolve().name}, these "
                f"changed: {'; '.join(facts[:_SHOWN])}{more}."
            )
    return tuple(notes)
