"""--verify-loss: two longer launches that record losses, with the current settings and with the winner."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scalescope.analysis.launches import summarise
from scalescope.analysis.tuning.losses import LossCheck, check_losses
from scalescope.catalog.benchmarks.train import warmup_of
from scalescope.experiment.explanations import records_breakdown
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result, Stage
from scalescope.studies.plan import Launch

_MARGIN = 1.1
_TRIES = 2  # a failure by chance is none


def measures_speed(result: Result) -> bool:
    """Whether a launch counts for the speed of its settings; those that record losses or steps do not."""
    records_losses = result.stage is not None and result.stage.kind == "loss"
    return not records_losses and not records_breakdown(result.trial)


@dataclass(frozen=True, slots=True)
class LossLaunches:
    """Launches of a fixed number of steps, and what their losses say."""

    steps: int

    def trials(self, current: Trial, winner: Trial) -> tuple[Trial, Trial]:
        """Both with the same number of steps after the same warm-up: they see the same samples."""
        warmup = max(warmup_of(current.settings), warmup_of(winner.settings))
        length = {
            "epochs": 1,
            "steps_per_epoch": self.steps + warmup,
            "warmup_steps": warmup,
            "window": None,
            "soak": None,
            "eval": False,
        }
        return current.replace(**length), winner.replace(**length)

    def to_make(self, results: Sequence[Result], current: Trial, winner: Trial) -> list[Launch]:
        """The launches that are missing, the current settings first; none where those fail."""
        launches: list[Launch] = []
        for trial, name in zip(self.trials(current, winner), ("current settings", "winner"), strict=True):
            made = _made(results, trial)
            if any(result.status == "ok" for result in made):
                continue
            if len(made) >= _TRIES or any(result.status in ("oom", "invalid") for result in made):
                return launches
            number = max((r.launch + 1 for r in results if r.trial_id == trial.trial_id), default=0)
            stage = Stage("loss", base=winner.trial_id)
            label = f"recording {self.steps} losses, {name}"
            launches.append(Launch(trial, number, stage, label=label))
        return launches

    def time_for_s(self, results: Sequence[Result], current: Trial, winner: Trial) -> float:
        """What the missing launches take together."""
        missing = {launch.trial.trial_id for launch in self.to_make(results, current, winner)}
        pairs = zip(self.trials(current, winner), (current, winner), strict=True)
        return sum(self.cost_s(results, trial) for longer, trial in pairs if longer.trial_id in missing)

    def cost_s(self, results: Sequence[Result], trial: Trial) -> float:
        """What such a launch takes, by the speed and the start of the trial; 0 where neither is known."""
        known = [
            (result.duration_s, summarise(result))
            for result in results
            if result.trial_id == trial.trial_id
            and result.status == "ok"
            and measures_speed(result)
            and result.duration_s > 0.0  # otherwise it was measured in the start of another
        ]
        if not known:
            return 0.0
        step_s = statistics.fmean(launch.mean_step_s for _, launch in known)
        start_s = min(max(0.0, duration_s - launch.window_s) for duration_s, launch in known)
        return _MARGIN * (start_s + (self.steps + warmup_of(trial.settings)) * step_s)

    def check(self, results: Sequence[Result], current: Trial, winner: Trial) -> LossCheck | None:
        """What the losses say; None where a launch is missing."""
        before, after = (_made(results, trial) for trial in self.trials(current, winner))
        current_losses, winner_losses = _losses(before), _losses(after)
        if before and current_losses is None:
            return LossCheck(steps=self.steps, unknown=f"the current settings {_failure(before)}")
        if current_losses is None or not after:
            return None
        if winner_losses is None:
            return LossCheck(steps=self.steps, current=current_losses, failure=_failure(after))
        return check_losses(self.steps, current_losses, winner_losses)


def _made(results: Sequence[Result], trial: Trial) -> list[Result]:
    """The launches of a trial that recorded losses, or failed to."""
    return [
        result
        for result in results
        if result.trial_id == trial.trial_id and not measures_speed(result) and result.status != "interrupted"
    ]


def _losses(made: Sequence[Result]) -> tuple[float, ...] | None:
    """Of the last launch that worked; None where none did."""
    worked = [result for result in made if result.status == "ok"]
    return summarise(worked[-1]).losses if worked else None


def _failure(made: Sequence[Result]) -> str:
    return f"failed ({made[-1].status}: {made[-1].reason})"
