"""StepFacts: what rules may look at for the step of one configuration, on one rank or many."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.statistics import Estimate, difference_of_means
from scalescope.analysis.training.activity import RankActivity, activity_of
from scalescope.analysis.training.recording import StepRecording, recordings_of
from scalescope.analysis.training.step_waterfall import StepWaterfall, step_waterfall
from scalescope.diagnose.finding import Finding
from scalescope.diagnose.varied import varied_settings
from scalescope.experiment.ablations import (
    at_per_rank_batch,
    single_rank_baseline,
    with_preloaded_input,
    without_optimizer,
)
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result, undisturbed
from scalescope.results.run import Run

LEAST_SHARE = 0.03  # of a step: smaller losses are not worth a finding


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """One configuration, and what was measured beside it about its step; what is not known is None."""

    path: Path  # of the run
    varied: tuple[tuple[str, object], ...]  # settings that differ inside the run, with their value here
    strategies: tuple[str, ...]  # of all configurations of the run that are wrapped
    configuration: Configuration
    waterfall: StepWaterfall | None = None
    recording: StepRecording | None = None  # on a GPU; or of one rank with the same batch
    activities: tuple[RankActivity, ...] = ()  # of each rank in the first launch
    preloaded: Configuration | None = None  # the same with batches that wait on the device
    without_optimizer: Configuration | None = None
    machine: dict[str, object] | None = None  # as environment.json has it

    @property
    def trial(self) -> Trial:
        return self.configuration.trial

    @property
    def ranks(self) -> int:
        return self.trial.world_size

    @property
    def batch(self) -> int:
        """As its setting has it: per rank, or over all ranks."""
        trial = self.trial
        return trial.batch_size or trial.global_batch_size or trial.rank_batch_size

    @property
    def step_s(self) -> float:
        return self.configuration.step_time_s.value

    @property
    def cores(self) -> int | None:
        cores = (self.machine or {}).get("cores")
        return cores if isinstance(cores, int) else None

    @property
    def about(self) -> str:
        """The configuration in a few words."""
        others = "".join(f", {name} {value}" for name, value in self.varied)
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{ranks}, batch {self.trial.rank_batch_size:,}{others}"

    @property
    def input_wait_s(self) -> Estimate | None:
        """What waiting for samples adds to a step: measured against the same with preloaded batches."""
        if self.preloaded is None or self.preloaded is self.configuration:
            return None
        return difference_of_means(self.configuration.mean_steps_s, self.preloaded.mean_steps_s)

    @property
    def optimizer_s(self) -> Estimate | None:
        """What updating parameters adds to a step: measured against the same without."""
        if self.without_optimizer is None:
            return None
        return difference_of_means(self.configuration.mean_steps_s, self.without_optimizer.mean_steps_s)

    def finding(self, rule: str, claim: str, cost_s: float, **more: Any) -> Finding:
        """A finding about this step that costs so much of it."""
        share = min(1.0, max(0.0, cost_s / self.step_s))
        single = len(self.configuration.launches) == 1
        return Finding(
            rule=rule,
            claim=claim,
            cost_s=cost_s,
            lost=share * self.ranks,
            share=share,
            **{"single": single, **more},
        )

    def is_worth(self, cost_s: float) -> bool:
        """Whether a cost per step is worth a finding."""
        return cost_s > LEAST_SHARE * self.step_s


def step_facts_of(run: Run) -> tuple[StepFacts, ...]:
    """The facts of every configuration that was asked for, the largest world size first."""
    measured = configurations(run.results)
    by_trial = {configuration.trial.trial_id: configuration for configuration in measured}
    asked = [configuration for configuration in measured if not configuration.trial.is_ablation]
    recorded = recordings_of(run.results)
    varied = varied_settings(configuration.trial for configuration in asked)
    strategies = tuple(sorted({c.trial.strategy for c in asked if c.trial.is_wrapped}))
    cases = []
    for configuration in asked:
        trial = configuration.trial
        recording = recorded.get(trial.trial_id)
        one_rank = single_rank_baseline(at_per_rank_batch(trial))
        activities = _activities(run.results, trial)
        no_update = without_optimizer(trial)
        ablations = {
            "preloaded": by_trial.get(with_preloaded_input(trial).trial_id),
            "without_optimizer": None if no_update is None else by_trial.get(no_update.trial_id),
        }
        cases.append(
            StepFacts(
                path=run.path.resolve() if run.path.is_symlink() else run.path,
                varied=tuple((n, trial.settings[n]) for n in varied[trial.world_size] if n in trial.settings),
                strategies=strategies,
                configuration=configuration,
                waterfall=step_waterfall(configuration, recording, activities, **ablations),
                recording=recording or recorded.get(one_rank.trial_id),
                activities=activities,
                machine=run.environment.get("machine") or None,
                **ablations,
            )
        )
    return tuple(sorted(cases, key=lambda facts: -facts.ranks))


def _activities(results: Iterable[Result], trial: Trial) -> tuple[RankActivity, ...]:
    members = [r for r in results if r.status == "ok" and r.trial_id == trial.trial_id]
    return next((tuple(map(activity_of, r.ranks)) for r in undisturbed(members)), ())
