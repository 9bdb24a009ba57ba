"""Facts made up for rules: what each term adds to a step is given, the rest follows from it."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalescope.analysis.comm.curve import Curve
from scalescope.analysis.configurations import Configuration
from scalescope.analysis.culprit import Straggler
from scalescope.analysis.scaling.rows import ScalingRow
from scalescope.analysis.scaling.waterfall import Term, Waterfall
from scalescope.analysis.statistics import Estimate
from scalescope.analysis.telemetry import TelemetrySummary
from scalescope.diagnose.facts import Facts, facts_of
from scalescope.diagnose.finding import Abstention, Finding
from scalescope.experiment.trial import Trial
from scalescope.results.result import Result
from scalescope.results.run import Run
from tests.builders.results import make_configuration, make_result, make_trial

Times = Mapping[str, Estimate | float | None]
ON_GPUS = {"device": "cuda", "backend": "nccl"}


def make_facts(
    times_s: Times | None = None,
    *,
    ranks: int = 2,
    step_s: float = 0.1,
    settings: Mapping[str, Any] | None = None,
    changes: Mapping[str, object] | None = None,
    baseline_ranks: int = 1,
    telemetry: TelemetrySummary | None = None,
    straggler: Straggler | None = None,
    **known: Any,
) -> Facts:
    """One configuration whose step of `step_s` holds these terms, certain to a tenth; None is unknown.

    `settings` are asked for, `changes` are put in place after all checks: GPUs, for instance.
    """
    trial = make_trial(strategy="ddp", world_size=ranks, **(settings or {})).replace(**(changes or {}))
    configuration = with_telemetry(make_configuration(trial, step_s), telemetry or TelemetrySummary())
    terms = tuple(_term(name, time_s, ranks / step_s) for name, time_s in (times_s or {}).items())
    known_s = sum(term.time_s.value for term in terms if term.time_s is not None)
    speedup = ranks * (step_s - known_s) / step_s
    row = ScalingRow(
        configuration=configuration,
        baseline_ranks=baseline_ranks,
        speedup=Estimate(speedup),
        efficiency=Estimate(speedup / ranks),
        wrapped=None,
        efficiency_of_wrapped=None,
        communication_s=None,
        waterfall=_waterfall(trial, step_s, terms, straggler),
    )
    facts = Facts(
        path=Path("/run"),
        varied=(),
        row=row,
        rows=(row,),
        curve=None,
        gradient_bytes=None,
        bucket_bytes=None,
        one_rank=None,
        cores=None,
        gpu_memory_bytes=None,
    )
    return dataclasses.replace(facts, **known)


def _term(name: str, time_s: Estimate | float | None, ranks_per_s: float) -> Term:
    if time_s is None:
        return Term(name=name, time_s=None, lost=None, reason="was not measured")
    time = time_s if isinstance(time_s, Estimate) else Estimate(time_s, 0.9 * time_s, 1.1 * time_s)
    low, high = (None if end is None else end * ranks_per_s for end in (time.low, time.high))
    return Term(name=name, time_s=time, lost=Estimate(time.value * ranks_per_s, low, high))


def _waterfall(
    trial: Trial, step_s: float, terms: tuple[Term, ...], straggler: Straggler | None
) -> Waterfall:
    known_s = sum(term.time_s.value for term in terms if term.time_s is not None)
    return Waterfall(
        trial=trial,
        step_s=step_s,
        ideal_s=step_s - known_s,
        delivered=trial.world_size * (step_s - known_s) / step_s,
        terms=terms,
        unexplained_s=0.0,
        straggler=straggler,
        simple_comm_s=Estimate(known_s),
    )


def with_telemetry(configuration: Configuration, telemetry: TelemetrySummary) -> Configuration:
    """The same launches, during which GPUs and processors were seen to do this."""
    launches = tuple(dataclasses.replace(launch, telemetry=telemetry) for launch in configuration.launches)
    return dataclasses.replace(configuration, launches=launches)


def make_curve(latency_s: float = 1e-4, bytes_per_s: float = 1e9, largest: int = 1 << 28) -> Curve:
    """An all-reduce that takes a fixed time and then some for every byte."""
    sizes = [size for size in (1 << power for power in range(10, 31, 2)) if size <= largest]
    return Curve.through([(size, latency_s + size / bytes_per_s) for size in sizes])


def measured(trial: Trial, *step_times_s: float) -> list[Result]:
    """One launch for each step time, as a run stores them."""
    return [
        make_result(trial, [[step_s] * 10] * trial.world_size, launch=launch)
        for launch, step_s in enumerate(step_times_s)
    ]


def facts_from(*results: list[Result], environment: dict[str, Any] | None = None) -> tuple[Facts, ...]:
    """The facts of a run that holds these results."""
    flat = tuple(result for some in results for result in some)
    return facts_of(Run(path=Path("/run"), environment=environment or {}, results=flat, warnings=()))


def finding(outcome: Finding | Abstention | None) -> Finding:
    """What a rule found, where it must have found something."""
    assert isinstance(outcome, Finding)
    return outcome


def abstention(outcome: Finding | Abstention | None) -> Abstention:
    """What a rule wants to know, where it must abstain."""
    assert isinstance(outcome, Abstention)
    return outcome


def levers(cause: Finding) -> list[str]:
    """What its advice moves, in order."""
    return [advice.command.rpartition("--levers ")[2] for advice in cause.advice]


def evidence_of(cause: Finding) -> dict[str, float | str]:
    """What a finding stands on, by name."""
    return {evidence.name: evidence.value for evidence in cause.evidence}
