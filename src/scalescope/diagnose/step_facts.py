"""StepFacts: what rules may look at for the step of one configuration, on one rank or many."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalescope.analysis.comm.curve import Curve
from scalescope.analysis.commands import batch_text
from scalescope.analysis.configurations import Configuration, configurations
from scalescope.analysis.events import StepEvents, beside_input_s
from scalescope.analysis.recording import ReplayedStep, StepRecording, fitted, recordings_of
from scalescope.analysis.statistics import Estimate, difference_of_means
from scalescope.analysis.training.activity import RankActivity, activities_of
from scalescope.analysis.training.input import LoaderFacts, input_cost, loading_of
from scalescope.analysis.training.model_facts import ModelFacts, model_facts
from scalescope.analysis.training.pauses import PeriodicPauses, periodic_pauses
from scalescope.analysis.training.step_waterfall import (
    BACKWARD,
    FORWARD,
    IDLE_HOST,
    IDLE_SYNC,
    OTHER_KERNELS,
    StepWaterfall,
    step_waterfall,
)
from scalescope.analysis.training.uneven_work import UnevenWork, uneven_work
from scalescope.diagnose.facts import NetworkPath, curves_of, network_path
from scalescope.diagnose.finding import Finding
from scalescope.diagnose.varied import varied_settings
from scalescope.experiment.explanations import (
    at_per_rank_batch,
    single_rank_baseline,
    with_preloaded_input,
    without_optimizer,
)
from scalescope.experiment.machine import PrecisionSupport, worst_support
from scalescope.experiment.trial import Trial
from scalescope.results.result import RankRecord, Result, results_by_trial, undisturbed
from scalescope.results.run import Run

LEAST_SHARE = 0.03  # of a step: smaller losses are not worth a finding
KERNEL_TERMS = (FORWARD, BACKWARD, OTHER_KERNELS)  # of the model
HOST_TERMS = (IDLE_HOST, IDLE_SYNC)  # in which the GPU waits for the host
_SHORT_FORMATS = ("tf32", "bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """One configuration, and what was measured beside it about its step; what is not known is None."""

    path: Path  # of the run
    varied: tuple[tuple[str, object], ...]  # settings that differ inside the run, with their value here
    strategies: tuple[str, ...]  # of all configurations of the run that are wrapped
    configuration: Configuration
    plain_s: float | None = None  # the step without events; None where that was not looked for
    waterfall: StepWaterfall | None = None
    recording: StepRecording | None = None  # on a GPU; or of one rank with the same batch
    recorded_alone_s: float | None = None  # the step of that one rank, where it was recorded and not this one
    activities: tuple[RankActivity, ...] = ()  # of each rank in the first launch
    preloaded: Configuration | None = None  # the same with batches that wait on the device
    without_optimizer: Configuration | None = None
    loading: LoaderFacts | None = None  # of the rank that waited longest for batches in the first launch
    model: ModelFacts = field(default_factory=ModelFacts)
    exchange: Curve | None = None  # an all-reduce over the same ranks and links
    alone_wait_s: float | None = None  # of one rank with the same batch, what waiting for samples adds
    machine: Mapping[str, Any] | None = None  # as environment.json has it
    launches: tuple[tuple[RankActivity, ...], ...] = ()  # the ranks of every undisturbed launch

    @property
    def trial(self) -> Trial:
        return self.configuration.trial

    @property
    def ranks(self) -> int:
        return self.trial.world_size

    @property
    def batch(self) -> int:
        return self.trial.given_batch_size

    @property
    def step_s(self) -> float:
        return self.configuration.step_time_s.value

    @property
    def cores(self) -> int | None:
        cores = (self.machine or {}).get("cores")
        return cores if isinstance(cores, int) else None

    @property
    def gpu_memory_bytes(self) -> int | None:
        gpus = (self.machine or {}).get("gpus") or []
        memory = gpus[0].get("memory_bytes") if gpus else None
        return int(memory) if isinstance(memory, int | float) else None

    @property
    def ranks_per_node(self) -> int:
        """Of as many hosts as the first launch had; one where that was not recorded."""
        hosts = len(set(self.configuration.launches[0].hosts)) or 1
        return -(-self.ranks // hosts)

    @property
    def short_formats(self) -> tuple[str, ...] | None:
        """The formats shorter than fp32 that all GPUs compute natively; None where that was not recorded."""
        gpus = (self.machine or {}).get("gpus") or []
        recorded = [
            tuple(
                PrecisionSupport(
                    name=support["name"], native=support.get("native"), slowdown=support.get("slowdown")
                )
                for support in gpu.get("precisions") or ()
            )
            for gpu in gpus
        ]
        if not recorded or not all(recorded):
            return None
        supports = [worst_support(name, recorded) for name in _SHORT_FORMATS]
        return tuple(support.name for support in supports if support.native and not support.emulated)

    @property
    def about(self) -> str:
        """The configuration in a few words."""
        others = "".join(f", {name} {value}" for name, value in self.varied)
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{ranks}, {batch_text(self.trial)}{others}"

    @property
    def uneven_work(self) -> UnevenWork | None:
        """How much more the batches of some ranks hold, where that costs time."""
        return uneven_work(
            self.launches,
            recorded=self.configuration.recorded,
            recording=self.recording,
            on_gpu=self.trial.device == "cuda",
        )

    @property
    def measured_steps(self) -> int:
        """Of all launches."""
        return sum(len(launch.step_times_s) for launch in self.configuration.launches)

    @property
    def loader_processes(self) -> int:
        """As they were asked for, or as the script has them."""
        return self.trial.num_workers or (self.loading.workers if self.loading is not None else 0) or 0

    @property
    def pauses(self) -> PeriodicPauses | None:
        """Where the steps of the event that costs most are longer, as far as that is known."""
        return periodic_pauses(self.launches, on_gpu=self.trial.on_gpu)

    @property
    def beside_input_s(self) -> float:
        """The time per step in which the host does not wait for batches."""
        return beside_input_s([launch.series for launch in self.configuration.launches])

    @property
    def events(self) -> StepEvents:
        """Work that is not in every step; only what was noted, where steps are long for another reason."""
        events = self.configuration.events
        if not events.events:
            return StepEvents(plain_s=self.step_s)
        pauses = self.pauses
        is_explained = pauses is not None and pauses.has_other_cause(self.loader_processes)
        unnoted = [event for event in events.events if event.kind is None]
        cost_s = math.fsum(event.cost_s for event in unnoted)
        period = max((event.period or 0 for event in unnoted), default=0)
        is_explained = is_explained or self.ends_when_preloaded(cost_s, period)
        return events.scaled_to(self.step_s, noted_alone=is_explained)

    def ends_when_preloaded(self, cost_s: float, period: int) -> bool:
        """Whether steps with preloaded batches lack work that comes every so many steps: then it is the
        loader's, and belongs to what input costs."""
        launches = [] if self.preloaded is None else self.preloaded.launches
        times = [launch.step_times_s for launch in launches]
        if not times or min(map(len, times)) < 2 * period:
            return False
        beyond_s = statistics.fmean(statistics.fmean(steps) - statistics.median(steps) for steps in times)
        return beyond_s < cost_s / 2

    @property
    def timed_s(self) -> float:
        """The plain step of what was recorded, as it was timed."""
        return self.recorded_alone_s or self.plain_s or self.step_s

    @property
    def replay(self) -> ReplayedStep | None:
        """How long that step would take if something were otherwise; None where nothing was recorded."""
        return None if self.recording is None else fitted(self.recording.replays, self.timed_s)

    @property
    def wait_cost_s(self) -> float:
        """What lines cost that wait for the GPU in most steps."""
        if self.recording is None:
            return 0.0
        return self.bounded(self.recording.wait_cost_s(self.timed_s), *HOST_TERMS)

    def of_kernels(self, saved_s: float) -> float:
        """What shorter kernels save of the step: nothing that the host takes anyway."""
        most_s = saved_s if self.replay is None else max(0.0, self.replay.step_s - self.replay.fast_gpu_s)
        return self.bounded(min(saved_s, most_s), *KERNEL_TERMS)

    def bounded(self, cost_s: float, *terms: str) -> float:
        """At most what these terms of the breakdown have together; unchanged where there is no breakdown."""
        if self.waterfall is None:
            return cost_s
        return min(cost_s, math.fsum(self.waterfall.time_s(name) for name in terms))

    @property
    def input_wait_s(self) -> Estimate | None:
        """What waiting for samples adds to a step: measured against the same with preloaded batches."""
        processes = 0 if self.loading is None else self.loading.workers or 0
        return input_cost(self.configuration, self.preloaded, self.activities, has_processes=processes > 0)

    @property
    def optimizer_s(self) -> Estimate | None:
        """What updating parameters adds to a step: measured against the same without."""
        if self.without_optimizer is None:
            return None
        return difference_of_means(self.configuration.mean_steps_s, self.without_optimizer.mean_steps_s)

    def finding(self, rule: str, claim: str, cost_s: float | None, **more: Any) -> Finding:
        """A finding about this step that costs so much of it; None where that is unknown."""
        share = min(1.0, max(0.0, (cost_s or 0.0) / self.step_s))
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
    asked = [configuration for configuration in measured if not configuration.trial.is_ablation]
    context = _Context(
        run=run,
        launches=results_by_trial(run.results),
        by_trial={configuration.trial.trial_id: configuration for configuration in measured},
        recorded=recordings_of(run.results),
        varied=varied_settings(configuration.trial for configuration in asked),
        strategies=tuple(sorted({c.trial.strategy for c in asked if c.trial.is_wrapped})),
        curves=curves_of(run),
    )
    cases = (_with_waterfall(_facts(configuration, context), context) for configuration in asked)
    return tuple(sorted(cases, key=lambda facts: -facts.ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What was measured in the whole run."""

    run: Run
    launches: Mapping[str, list[Result]]
    by_trial: Mapping[str, Configuration]
    recorded: Mapping[str, StepRecording]
    varied: Mapping[int, tuple[str, ...]]
    strategies: tuple[str, ...]
    curves: Mapping[NetworkPath, Curve]


def _facts(configuration: Configuration, context: _Context) -> StepFacts:
    trial, run, by_trial = configuration.trial, context.run, context.by_trial
    alone = single_rank_baseline(at_per_rank_batch(trial))
    of_trial = context.launches.get(trial.trial_id, ())
    records = _records(of_trial, trial)
    launches = activities_of(of_trial, trial)
    no_update = without_optimizer(trial)
    varied = context.varied[trial.world_size]
    own, one_rank = context.recorded.get(trial.trial_id), by_trial.get(alone.trial_id)
    return StepFacts(
        path=run.path.resolve() if run.path.is_symlink() else run.path,
        varied=tuple((name, trial.settings[name]) for name in varied if name in trial.settings),
        strategies=context.strategies,
        configuration=configuration,
        recording=own or context.recorded.get(alone.trial_id),
        recorded_alone_s=None if own is not None or one_rank is None else one_rank.step_time_s.value,
        activities=next(iter(launches), ()),
        preloaded=by_trial.get(with_preloaded_input(trial).trial_id),
        without_optimizer=None if no_update is None else by_trial.get(no_update.trial_id),
        loading=loading_of(records),
        model=model_facts(records[0]) if records else ModelFacts(),
        exchange=context.curves.get(network_path(trial)),
        alone_wait_s=_wait_alone(by_trial, alone),
        machine=run.environment.get("machine") or None,
        launches=launches,
    )


def _with_waterfall(facts: StepFacts, context: _Context) -> StepFacts:
    """A recording of one rank alone says nothing about the step of several."""
    events = facts.events
    waterfall = step_waterfall(
        facts.configuration,
        context.recorded.get(facts.trial.trial_id),
        facts.activities,
        input_s=facts.input_wait_s,
        without_optimizer=facts.without_optimizer,
        events=events,
    )
    return dataclasses.replace(facts, waterfall=waterfall, plain_s=events.plain_s)


def _records(results: Iterable[Result], trial: Trial) -> tuple[RankRecord, ...]:
    """Of each rank in the first launch."""
    members = [r for r in results if r.status == "ok" and r.trial_id == trial.trial_id]
    return next((tuple(r.ranks) for r in undisturbed(members)), ())


def _wait_alone(by_trial: Mapping[str, Configuration], alone: Trial) -> float | None:
    """What waiting for samples adds to a step of one rank."""
    configuration = by_trial.get(alone.trial_id)
    if configuration is None:
        return None
    preloaded = by_trial.get(with_preloaded_input(alone).trial_id)
    wait = input_cost(configuration, preloaded, (), has_processes=False)
    return None if wait is None else wait.value
