"""--dry-run: the trials of a plan and about how long they take, without measuring them."""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from scalescope.analysis.durations import LaunchDurations, has_unknown_steps
from scalescope.analysis.other_load import load_text
from scalescope.errors import BadInput
from scalescope.experiment.trial import Trial
from scalescope.launch.launcher import Launcher
from scalescope.report.machine import format_lines
from scalescope.report.trials import EstimateBasis, plan_section
from scalescope.results.other_load import OtherLoad
from scalescope.results.provenance import environment_id
from scalescope.results.ranks import RankPlacement
from scalescope.results.result import Result
from scalescope.results.run import earlier_results, load_run
from scalescope.results.run_folder import DEFAULT_ROOT, RunFolder
from scalescope.studies.campaign import DISTURBED_IN_A_ROW, KEPT
from scalescope.studies.plan import Plan
from scalescope.studies.prepared import Prepared
from scalescope.studies.study import Report
from scalescope.studies.watcher import CampaignWatcher

_MORE_FOLLOWS = (
    "Launches that explain the result (without communication, with preloaded input) are planned after the "
    "command has run."
)
_PRESENTING_S = 1.0  # to analyze what was measured and to write the files
_WARMUP_STEPS, _TIMED_STEPS = 3, 2  # of an own workload, to know how long its steps take
_TIMING_LIMIT_S = 30.0  # a step that takes longer is not waited for


def only_planned(prepared: Prepared, launcher: Launcher, watcher: CampaignWatcher) -> Report:
    """What --dry-run shows: the trials and how long they take."""
    plan, request = prepared.plan, prepared.request
    if plan.preview:
        return Report(sections=plan.preview)
    if plan.continues:
        watcher.noted(_MORE_FOLLOWS)
        plan = dataclasses.replace(plan, continues=False)
    output_dir = plan.experiment.measuring.output_dir
    stored = load_run(output_dir).results if request.resume and output_dir is not None else ()
    seconds, basis = estimated_run(plan, request.started_s, launcher, watcher, stored)
    repeats, budget = plan.experiment.measuring.repeats, plan.experiment.measuring.budget
    if budget is not None and budget < seconds:
        watcher.noted(f"The budget of {budget:g} s would end this early.")
    formats = format_lines(plan.machine, plan.all_trials)
    return Report(sections=(plan_section(plan.trials, repeats, seconds, plan.once, formats, basis),))


def estimated_run(
    plan: Plan,
    started_s: float | None,
    launcher: Launcher,
    watcher: CampaignWatcher,
    stored: Sequence[Result] = (),
) -> tuple[float, EstimateBasis]:
    """How long a run takes from its command to its report; `started_s` is when this command began.

    Starting takes what it took just now. What is `stored` of the run is not made again, but learnt from.
    """
    start_s = 0.0 if started_s is None else time.monotonic() - started_s
    load = launcher.other_load()
    if load.is_present:
        watcher.noted(f"Other load: {load_text(load, now=True)}. The estimate allows for it.")
    durations, basis = _durations(plan, launcher, watcher, _slowdown(load))
    for result in stored:
        durations.add(result)
    answered = {result.key for result in stored if result.status in KEPT}
    missing = [launch for launch in plan.launches() if launch.key not in answered]
    launches_s = [durations.estimate_s(launch.trial) for launch in missing]
    timed_s = [
        seconds
        for launch, seconds in zip(missing, launches_s, strict=True)
        if launch.trial.benchmark_card.measures_time
    ]
    if timed_s and load.is_present and plan.experiment.measuring.repeat_disturbed:
        launches_s += [statistics.fmean(timed_s)] * min(len(timed_s), DISTURBED_IN_A_ROW)
    return start_s + sum(launches_s) + _PRESENTING_S, basis


def _slowdown(load: OtherLoad) -> float:
    """How much longer computing takes where others use the cores too."""
    if not load.cores or not (load.uses_cores or load.is_stolen_from):
        return 1.0
    return 1.0 + ((load.other_cores or 0.0) + (load.stolen_cores or 0.0)) / load.cores


def _durations(
    plan: Plan, launcher: Launcher, watcher: CampaignWatcher, slowdown: float
) -> tuple[LaunchDurations, EstimateBasis]:
    """What is known of how long launches take, and from what."""
    rate = plan.machine.core_flops_per_s
    durations = LaunchDurations(
        earlier=_earlier_launches(plan), core_flops_per_s=None if rate is None else rate / slowdown
    )
    unknown = [trial for trial in plan.all_trials if has_unknown_steps(trial) and not durations.knows(trial)]
    if unknown and launcher.repeatable:
        timed = _timed_steps(min(unknown, key=_effort), plan, launcher, watcher)
        if timed is not None:
            durations.add(timed)
            return durations, "timed steps"
    if any(trial.is_command and not durations.knows(trial) for trial in plan.all_trials):
        return durations, "windows alone"
    known = any(durations.knows(trial) for trial in plan.all_trials)
    return durations, "earlier runs" if known else "operation counts"


def _earlier_launches(plan: Plan) -> Sequence[Result]:
    """The launches of this machine in the newest runs beside the run of a plan."""
    output_dir = plan.experiment.measuring.output_dir
    path = None if output_dir is None else Path(output_dir)
    root = DEFAULT_ROOT if path is None else path.parent
    return earlier_results(root, environment_id(plan.machine), but=path)


def _effort(trial: Trial) -> tuple[int, int]:
    return trial.world_size, trial.rank_batch_size


def _timed_steps(trial: Trial, plan: Plan, launcher: Launcher, watcher: CampaignWatcher) -> Result | None:
    """A launch of a few steps in a folder that does not stay; None where it does not succeed."""
    steps = _WARMUP_STEPS + _TIMED_STEPS
    counted = trial.replace(epochs=1, steps_per_epoch=steps, warmup_steps=_WARMUP_STEPS, window=None)
    began, started_at = time.monotonic(), datetime.now(UTC).isoformat(timespec="milliseconds")
    with tempfile.TemporaryDirectory(prefix="scalescope-") as directory:
        folder = RunFolder.open(Path(directory) / "run", resume=False)
        try:
            limits = plan.experiment.measuring
            deadline = began + _TIMING_LIMIT_S
            outcome = launcher.launch(counted, 0, folder, limits, _Unwatched(), deadline=deadline)
        finally:
            folder.close()
    if outcome.bad_input:
        raise BadInput(str(outcome.reason))
    if outcome.status != "ok":
        watcher.noted(f"The steps of {trial.workload} could not be timed: {outcome.reason}.")
        return None
    return Result(
        trial_id=counted.trial_id,
        launch=0,
        order=0,
        status="ok",
        settings=dict(counted.settings),
        started_at=started_at,
        duration_s=time.monotonic() - began,
        environment_id=environment_id(plan.machine),
        ranks=outcome.records,
    )


class _Unwatched:
    """A watcher of launches that nobody follows."""

    def placed(self, ranks: Sequence[RankPlacement]) -> None:
        pass

    def advanced(self, fraction: float) -> None:
        pass
