"""`tune` as ranks of torchrun or srun: one launch of everything, which shows what to look at, no more.

The processes stay the same: further launches of them would be no repeats, and no verdict could rest on them.
"""

import dataclasses
import random
import shlex
from dataclasses import dataclass

from scalescope.analysis.configurations import configurations
from scalescope.analysis.statistics import ratio_of_logs
from scalescope.analysis.tuning.verdicts import compare_all
from scalescope.catalog.setting import Setting
from scalescope.diagnose.advice import as_flag
from scalescope.errors import ScalescopeError
from scalescope.experiment.emulation import emulation_notes
from scalescope.experiment.expand import expand
from scalescope.experiment.experiment import Experiment
from scalescope.experiment.trial import Trial, Value
from scalescope.launch.launcher import Launcher
from scalescope.report.tuning.as_json import tuning_json
from scalescope.report.tuning.sections import Tuning, fastest_so_far, tuning_sections
from scalescope.results.files import to_text
from scalescope.results.run import Run
from scalescope.results.run_folder import EXPERIMENT, TUNING
from scalescope.studies.campaign import CampaignWatcher, Plan
from scalescope.studies.request import Request
from scalescope.studies.study import StudyReport, run_study
from scalescope.studies.tuning.levers import Candidate, Inapplicable, Levers, other_jobs, settings_of_trial

_NOTE = "Attached ranks make one launch of each lever: no interval and no verdict."
_KEEP_CORES = "threads of ranks that run already keep their cores; tune without torchrun or srun tries it"


def for_running_ranks(levers: Levers, launcher: Launcher) -> Levers:
    """The levers without those that ranks cannot move once they run; refuses a baseline they cannot be."""
    launcher.check(levers.baseline)
    fixed = {
        candidate.text: why
        for candidate in levers.candidates
        if (why := _why_fixed(candidate, levers, launcher))
    }
    left_out = (Inapplicable(text=text, reason=why) for text, why in fixed.items())
    return dataclasses.replace(
        levers,
        candidates=tuple(candidate for candidate in levers.candidates if candidate.text not in fixed),
        inapplicable=(*levers.inapplicable, *left_out),
    )


def _why_fixed(candidate: Candidate, levers: Levers, launcher: Launcher) -> str | None:
    lever = settings_of_trial(levers.baseline)[candidate.name].lever
    if lever is not None and lever.needs_new_ranks:
        return _KEEP_CORES
    try:
        launcher.check(candidate.trial)
    except ScalescopeError as error:
        return str(error)
    return None


def tune_once(
    request: Request,
    launcher: Launcher,
    watcher: CampaignWatcher,
    experiment: Experiment,
    levers: Levers,
    threshold: float,
) -> StudyReport:
    """Launch the baseline and every lever once, and show them without a verdict."""
    machine = launcher.machine()
    expansion = expand(experiment, machine)
    singles = SingleLaunches(levers=levers, threshold=threshold, seed=experiment.measuring.order_seed)
    trials = tuple(trial for trial, _ in singles.launches)
    plan = Plan(
        experiment=expansion.experiment,
        trials=trials,
        machine=machine,
        notes=tuple(dict.fromkeys((*expansion.notes, *emulation_notes(trials, machine), _NOTE))),
        chosen=singles.launches,
    )
    nodes, baseline = len(launcher.nodes()), levers.baseline
    on_a_node = machine.ranks_on_a_host(baseline.world_size)
    return run_study(
        request,
        plan,
        launcher,
        watcher,
        lambda run: tuning_sections(singles.read(run)),
        lambda run: singles.next_step(run, nodes, on_a_node),
        lambda run: {TUNING: to_text(tuning_json(singles.read(run)))},
        answers=lambda result: result.trial_id != baseline.trial_id,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleLaunches:
    """What to launch once, and what these launches say."""

    levers: Levers
    threshold: float
    seed: int

    @property
    def launches(self) -> tuple[tuple[Trial, int], ...]:
        """Everything once, in a random order; what starts slowly, and what is only there for scaling, last.

        The baseline comes second: the first launch pays for what processes do once, and a budget that ends
        before the baseline would leave nothing to compare.
        """
        order = list(self.levers.candidates)
        random.Random(f"{self.seed}/0").shuffle(order)
        order.sort(key=lambda one: one.starts_slowly)
        trials = [one.trial for one in order]
        trials.insert(1, self.levers.baseline)
        alone = [one for _, one in other_jobs(self.levers).values()]
        by_id = {trial.trial_id: trial for trial in (*trials, *alone)}
        return tuple((trial, 0) for trial in by_id.values())

    def read(self, run: Run) -> Tuning:
        """What there is, each lever against the one launch of the baseline."""
        once = [result for result in run.results if result.launch == 0]
        found = {configuration.trial.trial_id: configuration for configuration in configurations(once)}
        failed = {
            one.trial_id: f"{one.status}: {one.reason}"
            for one in once
            if one.status != "ok"
            and one.trial_id not in found
            and not str(one.reason).startswith("interrupted by")  # a signal that ended it says nothing of it
        }
        baseline = found.get(self.levers.baseline.trial_id)
        ids = [candidate.trial.trial_id for candidate in self.levers.candidates]
        judged = [found[one] for one in ids if one in found]
        return Tuning(
            levers=tuple(
                (candidate.text, candidate.trial.trial_id, candidate.changes)
                for candidate in self.levers.candidates
            ),
            inapplicable=tuple((one.text, one.reason) for one in self.levers.inapplicable),
            baseline=self.levers.baseline,
            singles=() if baseline is None else compare_all(baseline, judged, self.threshold),
            dropped=frozenset(),
            failed=failed,
            scaling={
                name: ratio_of_logs(found[every.trial_id].log_rates, found[one.trial_id].log_rates)
                for name, (every, one) in other_jobs(self.levers).items()
                if {every.trial_id, one.trial_id} <= set(found)
            },
            first=None,
            attempts=(),
            winner=frozenset(),
            final=None,
            threshold=self.threshold,
            finished=all(trial.trial_id in {*found, *failed} for trial, _ in self.launches),
            one_launch_each=True,
        )

    def next_step(self, run: Run, nodes: int, on_a_node: int) -> str | None:
        """The command that launches what looked fastest anew; none where nothing did."""
        best = fastest_so_far(self.read(run))
        if best is None:
            return None
        one = next(candidate for candidate in self.levers.candidates if candidate.text == best[0])
        setting = settings_of_trial(self.levers.baseline)[one.name]
        file = shlex.quote(str(run.path / EXPERIMENT))
        if nodes == 1:
            lever = shlex.quote(f"{one.name}={_typed(setting, one.value)}")
            return f"without torchrun or srun: scalescope tune {file} --levers {lever} --repeats 5"
        ranks = "gpus" if self.levers.baseline.device == "cuda" else "tasks"
        job = f"--repeats 5 --launcher slurm --nodes {nodes} --{ranks}-per-node {on_a_node}"
        now = self.levers.baseline.settings[one.name]
        if setting.kind == "bool":
            way = as_flag(one.name, one.value)
            return f"scalescope train {file} {job}, and the same with {way}"
        both = shlex.quote(f"{_typed(setting, now)},{_typed(setting, one.value)}")
        return f"scalescope train {file} {setting.flag} {both} {job}"


def _typed(setting: Setting, value: Value) -> str:
    """A value as a flag takes it."""
    return setting.none_word if value is None else str(value)
