"""`tune` as ranks of torchrun or srun: one launch of everything, which shows what to look at, no more.

The processes stay the same: further launches of them would be no repeats, and no verdict could rest on them.
"""

import dataclasses
import random
from collections.abc import Mapping
from dataclasses import dataclass

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.statistics import Estimate, ratio_of_logs
from scalescope.analysis.tuning.losses import loss_of
from scalescope.analysis.verdicts import LAUNCHES_FOR_A_CLAIM
from scalescope.catalog.setting import Setting
from scalescope.errors import ScalescopeError
from scalescope.experiment.trial import Value
from scalescope.report.section import ShownCommand
from scalescope.report.tuning.as_json import tuning_json
from scalescope.report.tuning.sections import (
    NOW,
    OtherJob,
    TriedCombination,
    TriedLever,
    Tuning,
    fastest_so_far,
)
from scalescope.results.files import to_text
from scalescope.results.run import Run
from scalescope.results.run_commands import command_on, flags_of
from scalescope.results.run_folder import TUNING
from scalescope.studies.plan import Launch, Plan
from scalescope.studies.study import Host, Interim
from scalescope.studies.tuning.levers import Candidate, Inapplicable, Levers, other_jobs, settings_of_trial

_NOTE = "Under torchrun or srun each lever is launched once, so there are no intervals and no verdicts."
_KEEP_CORES = "ranks that are already running keep their cores; tune without torchrun or srun tries it"


def for_ranks_of(host: Host, levers: Levers) -> Levers:
    """The levers without those that ranks of others cannot move; refuses a baseline they cannot be."""
    host.check(levers.baseline)
    fixed = {
        candidate.text: why for candidate in levers.candidates if (why := _why_fixed(candidate, levers, host))
    }
    left_out = (Inapplicable(text=text, reason=why) for text, why in fixed.items())
    return dataclasses.replace(
        levers,
        candidates=tuple(candidate for candidate in levers.candidates if candidate.text not in fixed),
        inapplicable=(*levers.inapplicable, *left_out),
    )


def _why_fixed(candidate: Candidate, levers: Levers, host: Host) -> str | None:
    lever = settings_of_trial(levers.baseline)[candidate.name].lever
    if lever is not None and lever.needs_new_ranks and not host.repeatable:
        return _KEEP_CORES
    if candidate.why_not_alone is not None and not host.repeatable:
        return candidate.why_not_alone
    try:
        host.check(candidate.trial)
    except ScalescopeError as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleLaunches:
    """What to launch once, and what these launches show."""

    levers: Levers
    threshold: float
    seed: int
    host: Host

    def planned(self, plan: Plan) -> Plan:
        """The plan with everything launched once."""
        trials = tuple(launch.trial for launch in self.launches)
        return dataclasses.replace(plan, trials=trials, chosen=self.launches, notes=(*plan.notes, _NOTE))

    def next_launches(self, run: Run, remaining_s: float | None) -> tuple[Launch, ...]:
        """Nothing follows on the single launches."""
        return ()

    def interim(self, run: Run) -> Interim | None:
        """One launch each is not an answer until all are done."""
        return None

    def files(self, run: Run) -> dict[str, str]:
        return {TUNING: to_text(tuning_json(self.read(run)))}

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Everything once, in a random order; what compiles, and what is only there for scaling, last.

        The baseline comes second: the first launch pays for what processes do once, and a budget that ends
        before the baseline would leave nothing to compare.
        """
        settings = settings_of_trial(self.levers.baseline)
        order = list(self.levers.candidates)
        random.Random(f"{self.seed}/0").shuffle(order)
        order.sort(key=lambda candidate: _starts_slowly(settings[candidate.name], candidate))
        trials = [candidate.trial for candidate in order]
        trials.insert(1, self.levers.baseline)
        alone = [trial for _, trial in other_jobs(self.levers).values()]
        by_id = {trial.trial_id: trial for trial in (*trials, *alone)}
        return tuple(Launch(trial) for trial in by_id.values())

    def read(self, run: Run) -> Tuning:
        """What there is, each lever against the one launch of the baseline."""
        once = [result for result in run.results if result.launch == 0]
        by_id = {configuration.trial.trial_id: configuration for configuration in configurations(once)}
        failed = {
            result.trial_id: f"{result.status}: {result.reason}"
            for result in once
            if result.status not in ("ok", "interrupted") and result.trial_id not in by_id
        }
        current = self.levers.baseline.trial_id
        baseline = by_id.get(current)
        same_job = [candidate for candidate in self.levers.candidates if candidate.changes != "the job"]
        tried = [_current(baseline)] if baseline is not None else []
        if baseline is not None:
            measured = [candidate for candidate in same_job if candidate.trial.trial_id in by_id]
            tried += [_tried(candidate, by_id[candidate.trial.trial_id], baseline) for candidate in measured]
        return Tuning(
            baseline=self.levers.baseline,
            combinations=tuple(sorted(tried, key=lambda combination: -combination.speedup.value)),
            levers=tuple(_lever(candidate, by_id, failed) for candidate in same_job),
            other_jobs=() if baseline is None else self._other_jobs(by_id, baseline),
            inapplicable=tuple((lever.text, lever.reason) for lever in self.levers.inapplicable),
            baseline_failure=next(
                (
                    result.status
                    for result in once
                    if result.trial_id in failed and result.trial_id == current
                ),
                None,
            ),
            finished=all(launch.trial.trial_id in {*by_id, *failed} for launch in self.launches),
            one_launch_each=True,
        )

    def _other_jobs(
        self, by_id: Mapping[str, Configuration], baseline: Configuration
    ) -> tuple[OtherJob, ...]:
        return tuple(
            OtherJob(
                name=name,
                configuration=by_id[every.trial_id],
                speedup=Estimate(1.0)
                if name == NOW
                else ratio_of_logs(by_id[every.trial_id].log_rates, baseline.log_rates),
                scaling=ratio_of_logs(by_id[every.trial_id].log_rates, by_id[alone.trial_id].log_rates)
                if alone.trial_id in by_id and alone.trial_id != every.trial_id
                else None,
            )
            for name, (every, alone) in other_jobs(self.levers).items()
            if every.trial_id in by_id
        )

    def next_step(self, run: Run) -> ShownCommand | None:
        """The command that launches what looked fastest anew; none where nothing did."""
        best = fastest_so_far(self.read(run))
        if best is None:
            return None
        (name,) = best.levers
        candidate = next(candidate for candidate in self.levers.candidates if candidate.text == name)
        setting = settings_of_trial(self.levers.baseline)[candidate.name]
        if self.host.nodes == 1:
            lever = f"{candidate.name}={_typed(setting, candidate.value)}"
            argv = command_on(run.path, "tune", {"repeats": LAUNCHES_FOR_A_CLAIM}, ("--levers", lever))
            return ShownCommand(label="without torchrun or srun", argv=argv)
        return self._as_job(run, candidate, setting)

    def _as_job(self, run: Run, candidate: Candidate, setting: Setting) -> ShownCommand:
        """Jobs with and without the lever, on the nodes of this run."""
        baseline = self.levers.baseline
        ranks = "gpus_per_node" if baseline.on_gpu else "tasks_per_node"
        job = {
            "repeats": LAUNCHES_FOR_A_CLAIM,
            "launcher": "slurm",
            "nodes": self.host.nodes,
            ranks: self.host.machine.ranks_on_a_host(baseline.world_size),
        }
        now = baseline.value(setting)
        if setting.kind == "bool":
            (flag,) = flags_of({candidate.name: candidate.value})
            argv = command_on(run.path, "train", job)
            return ShownCommand(label=f"as jobs, once unchanged and once with {flag}", argv=argv)
        argv = command_on(run.path, "train", {candidate.name: (now, candidate.value), **job})
        return ShownCommand(label="as jobs, with and without it", argv=argv)


def _starts_slowly(setting: Setting, candidate: Candidate) -> bool:
    return setting.lever is not None and setting.lever.starts_slowly and candidate.value != setting.default


def _current(baseline: Configuration) -> TriedCombination:
    return TriedCombination(levers=(), configuration=baseline, speedup=Estimate(1.0), verdict=None)


def _tried(candidate: Candidate, configuration: Configuration, baseline: Configuration) -> TriedCombination:
    loss = loss_of(baseline, configuration)
    return TriedCombination(
        levers=(candidate.text,),
        configuration=configuration,
        speedup=ratio_of_logs(configuration.log_rates, baseline.log_rates),
        verdict=None,
        loss_change=loss.change,
        loss_differs=loss.differs,
        loss_unknown=loss.unknown,
    )


def _lever(candidate: Candidate, by_id: Mapping[str, Configuration], failed: Mapping[str, str]) -> TriedLever:
    """A lever that had its one launch is in the table of what was measured; here stands what failed."""
    trial_id = candidate.trial.trial_id
    return TriedLever(
        name=candidate.text,
        trial_id=trial_id,
        changes=candidate.changes,
        status="failed" if trial_id in failed else "undecided" if trial_id in by_id else "not measured",
        launches=1 if trial_id in by_id else 0,
        reason=failed.get(trial_id),
    )


def _typed(setting: Setting, value: Value) -> str:
    """A value as a flag takes it."""
    return setting.none_word if value is None else str(value)
