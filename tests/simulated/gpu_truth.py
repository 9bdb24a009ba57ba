"""What is found out about a simulated step of a GPU, against the truth about it."""

import dataclasses
import math
import random
from dataclasses import dataclass
from pathlib import Path

from scalescope.analysis.recording import SyncSite, recordings
from scalescope.analysis.training.model_facts import ModelFacts
from scalescope.analysis.training.step_waterfall import step_waterfall
from scalescope.diagnose.diagnosis import diagnose_facts
from scalescope.diagnose.step_facts import StepFacts
from scalescope.results.traces.step_trace import read_steps
from scalescope.worker.trace.recorder import store_parts
from scalescope.worker.training.measurements import Measurements
from tests.builders.results import make_configuration, make_result, make_trial
from tests.simulated.costs import simulated_record
from tests.simulated.gpu_steps import Host, Kind, Steps, made_up

RULES = {
    "slow host": "host-bound",
    "waits": "host synchronization",
    "many updates": "the optimizer is not fused",
    "computed twice": "activations are computed twice",
    "slow input": "input-bound",
}
_WORTH = 0.05  # of the step: causes that cost less may be named or not
_MEMORY = 80 << 30
_LINE = SyncSite(file="train.py", line=1, function="step", code="", operation="", per_step=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCase:
    """Claimed and true costs by rule, in seconds."""

    step_s: float
    claims: dict[str, tuple[float, float]]
    is_first: bool  # what is wrong is named first; nothing where nothing is
    above_terms: bool


def simulated_case(kind: Kind, chance: random.Random) -> SimulatedCase:
    """One job: timed in a launch, recorded in another."""
    steps = made_up(kind, chance)
    timed = Host(chance.uniform(0.9, 1.1))
    slowed = chance.uniform(1.2, 3.0)
    beside = Host(chance.uniform(0.9, 1.1))
    recorded = Host(beside.factor * slowed, chance.uniform(0.0, 4e-6))
    seed = chance.randrange(1 << 30)
    step_s = steps.step_s(timed, seed)
    facts = _facts(steps, step_s, recorded, beside, seed)
    findings = diagnose_facts((), steps=(facts,)).findings
    truth = _truth(steps, timed, seed, step_s, chance)
    claimed = {finding.rule: (finding.cost_s or 0.0) + finding.counted_s for finding in findings}
    costly = [finding for finding in findings if finding.share > 0.0]
    expected = RULES.get(kind)
    is_worth = expected is not None and truth[expected] > _WORTH * step_s
    named = costly[0].rule if costly else None
    assert facts.waterfall is not None
    total_s = math.fsum(finding.cost_s or 0.0 for finding in costly)
    return SimulatedCase(
        step_s=step_s,
        claims={rule: (claimed[rule], truth[rule]) for rule in claimed if rule in truth},
        is_first=named == expected if is_worth else named in (None, expected),
        above_terms=total_s > 1.001 * facts.waterfall.step_s,
    )


def _facts(steps: Steps, step_s: float, recorded: Host, beside: Host, seed: int) -> StepFacts:
    measurements = Measurements()
    trace = read_steps(steps.recorded(recorded, seed + 1))
    store_parts(measurements, trace, steps.step_s(beside, seed + 2))
    record = simulated_record(0, dict(measurements.samples), dict(measurements.counters))
    record = dataclasses.replace(record, tables=dict(measurements.tables))
    trial = make_trial(optimizer="adamw").replace(device="cuda", compile="none", fused_optimizer=False)
    (recording,) = recordings(dataclasses.replace(make_result(trial, [[step_s]]), ranks=[record]))
    waits = sum(call.waits for call in steps.calls)
    recording = dataclasses.replace(
        recording, syncs=(dataclasses.replace(_LINE, per_step=float(waits)),) if waits else ()
    )
    configuration = make_configuration(trial, step_s)
    launches = tuple(dataclasses.replace(item, peak_memory_bytes=1 << 30) for item in configuration.launches)
    configuration = dataclasses.replace(configuration, launches=launches)
    return StepFacts(
        path=Path("/run"),
        varied=(),
        strategies=(),
        configuration=configuration,
        recording=recording,
        waterfall=step_waterfall(configuration, recording, ()),
        model=ModelFacts(parameters=10_000_000, parameter_tensors=100, optimizer_is_fused=False),
        machine={"gpus": [{"memory_bytes": _MEMORY}]},
    )


def _truth(steps: Steps, host: Host, seed: int, step_s: float, chance: random.Random) -> dict[str, float]:
    """What each change saves of a step, with the same host."""
    free = steps.without_waits()
    free_s = free.step_s(host, seed)
    fast_s = free.changed(host_s=0.0).step_s(host, seed)
    fused = steps.fused(chance.randint(2, 8), chance.uniform(0.3, 0.6))
    return {
        "host-bound": free_s - fast_s,
        "host synchronization": step_s - free_s,
        "the optimizer is not fused": step_s - fused.step_s(host, seed),
        "activations are computed twice": step_s - steps.without("again").step_s(host, seed),
        "input-bound": step_s - dataclasses.replace(steps, input_s=0.0).step_s(host, seed),
    }
