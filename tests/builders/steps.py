"""Step waterfalls whose every part is known."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalescope.analysis.configurations import Configuration
from scalescope.analysis.recording import StepRecording
from scalescope.analysis.statistics import Estimate
from scalescope.analysis.training.activity import RankActivity
from scalescope.analysis.training.input import LoaderFacts
from scalescope.analysis.training.step_waterfall import (
    BACKWARD,
    COPIES,
    FORWARD,
    IDLE_SYNC,
    OPTIMIZER,
    StepTerm,
    StepWaterfall,
    TermSource,
)
from scalescope.diagnose.step_facts import StepFacts, step_facts_of
from scalescope.experiment.trial import Trial
from scalescope.results.other_load import OtherLoad
from scalescope.results.result import Result
from scalescope.results.run import Run
from tests.builders.results import make_configuration, make_trial

WAITING_MS = {FORWARD: 0.5, BACKWARD: 1.0, OPTIMIZER: 0.2, COPIES: 0.0, IDLE_SYNC: 9.8}


def make_step(
    trial: Trial, parts_ms: Mapping[str, float], *, ideal_ms: float | None = None, **more: Any
) -> StepWaterfall:
    """A step that consists of these parts, each ± 10 %."""
    return StepWaterfall(
        trial=trial,
        step_s=sum(parts_ms.values()) / 1e3,
        ideal_s=None if ideal_ms is None else ideal_ms / 1e3,
        terms=tuple(
            StepTerm(name=name, time_s=Estimate(ms / 1e3, 0.9 * ms / 1e3, 1.1 * ms / 1e3), source="trace")
            for name, ms in parts_ms.items()
        ),
        **more,
    )


def make_facts(
    parts_ms: Mapping[str, float] | None = None, *, ideal_ms: float | None = None, **settings: Any
) -> StepFacts:
    """One configuration; without parts, what its step consists of is unknown."""
    trial = make_trial(**{"strategy": "single", **settings})
    step = None if parts_ms is None else make_step(trial, parts_ms, ideal_ms=ideal_ms)
    return StepFacts(
        path=Path("run"),
        varied=(),
        strategies=(),
        configuration=make_configuration(trial, 0.010 if step is None else step.step_s),
        waterfall=step,
    )


def halves_of(configuration: Configuration, *_: object, **__: object) -> StepWaterfall:
    """In place of what a trace or a clock tells: half of every step is forward, half waits after a
    synchronization, and a tenth would be the ideal."""
    step_ms = configuration.step_time_s.value * 1e3
    parts_ms = {FORWARD: step_ms / 2, IDLE_SYNC: step_ms / 2}
    return make_step(configuration.trial, parts_ms, ideal_ms=step_ms / 10)


# ---- StepFacts made up for rules: a step of known length, and what is known about it

STEP_S = 0.1


def step_facts(
    *,
    ranks: int = 1,
    step_s: float | Sequence[float] = STEP_S,
    settings: Mapping[str, Any] | None = None,
    changes: Mapping[str, object] | None = None,
    preloaded_s: Sequence[float] = (),
    without_optimizer_s: Sequence[float] = (),
    terms_s: Mapping[str, float] | None = None,
    source: TermSource = "trace",
    **known: Any,
) -> StepFacts:
    """One configuration whose launches take steps of `step_s`.

    `settings` are asked for, `changes` are put in place after all checks: GPUs, for instance. `preloaded_s`
    and `without_optimizer_s` are the steps of ablations, one per launch; `terms_s` makes a waterfall.
    """
    strategy = "single" if ranks == 1 else "ddp"
    trial = make_trial(**{"strategy": strategy, "world_size": ranks, **(settings or {})})
    trial = trial.replace(**(changes or {}))
    steps_s = (step_s,) if isinstance(step_s, int | float) else tuple(step_s)
    facts = StepFacts(
        path=Path("/run"),
        varied=(),
        strategies=() if ranks == 1 else (trial.strategy,),
        configuration=make_configuration(trial, *steps_s),
        preloaded=make_configuration(trial, *preloaded_s) if preloaded_s else None,
        without_optimizer=make_configuration(trial, *without_optimizer_s) if without_optimizer_s else None,
    )
    if terms_s is not None:
        waterfall = StepWaterfall(
            trial=trial,
            step_s=facts.step_s,
            ideal_s=None,
            terms=tuple(StepTerm(name=n, time_s=Estimate(s), source=source) for n, s in terms_s.items()),
        )
        facts = dataclasses.replace(facts, waterfall=waterfall)
    return dataclasses.replace(facts, **known)


def recording(
    *, step_s: float = STEP_S, parts: Mapping[str, float] | None = None, **known: Any
) -> StepRecording:
    """One rank's recorded steps."""
    return StepRecording(rank=0, parts=parts or {}, recorded_step_s=step_s, plain_step_s=step_s, **known)


def loader(**known: Any) -> LoaderFacts:
    """A loader that was watched."""
    return LoaderFacts(**{"rank": 0, "first_batch_s": 0.5, "workers": 2, **known})


def host_times(*per_rank: Mapping[str, float]) -> tuple[RankActivity, ...]:
    """The host's time by part of the step, of each rank."""
    return tuple(RankActivity(rank=rank, host_s=times) for rank, times in enumerate(per_rank))


def with_loads(facts: StepFacts, *loads: OtherLoad) -> StepFacts:
    """The same launches beside this other load."""
    return dataclasses.replace(
        facts, configuration=dataclasses.replace(facts.configuration, loads=tuple(loads))
    )


def with_own_optimizer(facts: StepFacts, name: str) -> StepFacts:
    """The same with an optimizer that the workload brought along."""
    configuration: Configuration = facts.configuration
    launches = tuple(dataclasses.replace(launch, own_optimizer=name) for launch in configuration.launches)
    return dataclasses.replace(facts, configuration=dataclasses.replace(configuration, launches=launches))


def step_facts_from(
    *results: list[Result], environment: dict[str, Any] | None = None
) -> tuple[StepFacts, ...]:
    """The facts of a run that holds these results."""
    flat = tuple(result for some in results for result in some)
    return step_facts_of(Run(path=Path("/run"), environment=environment or {}, results=flat, warnings=()))
