"""Rules about work that is not in every step."""

from scalescope.analysis.events import Event
from scalescope.analysis.training.pauses import REST, PeriodicPauses
from scalescope.diagnose.advice import advise
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import StepFacts
from scalescope.quantities import counted, in_ms
from scalescope.results.result import CHECKPOINT, EVALUATION, LOGGING

PERIODIC_PAUSES = "periodic pauses"
_PARTS = {
    "input": "while waiting for a batch",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer step",
    REST: "between steps",
}
_DOES = {EVALUATION: "evaluates", CHECKPOINT: "saves a checkpoint", LOGGING: "logs"}
_ADVICE = {
    EVALUATION: "evaluate less often, or on fewer batches",
    CHECKPOINT: "save less often, or in the background (torch.distributed.checkpoint.async_save)",
    LOGGING: "log less often; every `.item()` and every printed tensor waits for the device",
}
_STEP_TIMES = "step times of each rank"


def periodic_pauses_rule(facts: StepFacts) -> Finding | Abstention | None:
    events, pauses = facts.events, facts.pauses
    if events.events:
        return _of_events(facts, events.events, pauses) if facts.is_worth(events.cost_s) else None
    if pauses is None or not facts.is_worth(pauses.cost_s) or pauses.has_other_cause(facts.loader_processes):
        return None
    if pauses.cost_s > facts.beside_input_s or facts.ends_when_preloaded(pauses.cost_s, pauses.period):
        return None
    return facts.finding(
        PERIODIC_PAUSES,
        f"Every {pauses.period} steps {_who(facts, pauses, pauses.length_s)}.",
        pauses.cost_s,
        root=True,
        evidence=(
            Evidence(name="period", value=pauses.period, unit="steps", source=_STEP_TIMES),
            Evidence(name="pause", value=pauses.length_s, unit="s", source=_STEP_TIMES),
            *_origin(pauses),
            Evidence(
                name="pauses at random, per step", value=pauses.other_cost_s, unit="s", source=_STEP_TIMES
            ),
        ),
        advice=_advice(facts, pauses.period, pauses),
    )


def _of_events(facts: StepFacts, events: tuple[Event, ...], pauses: PeriodicPauses | None) -> Finding:
    """All events together, which cost what the parts of the step say."""
    sentence = "; ".join(_claim(facts, event, _at(event, pauses)) for event in events)
    advice = [advice for event in events for advice in _advice_for(facts, event, _at(event, pauses))]
    return facts.finding(
        PERIODIC_PAUSES,
        f"{sentence[:1].upper()}{sentence[1:]}.",
        facts.events.cost_s,
        root=True,
        evidence=(
            Evidence(name="plain step", value=facts.events.plain_s, unit="s", source=_STEP_TIMES),
            *(
                Evidence(name=f"{event.name}, each", value=event.length_s, unit="s", source=_STEP_TIMES)
                for event in events
            ),
            *(() if pauses is None else _origin(pauses)),
        ),
        advice=tuple(dict.fromkeys(advice)),
    )


def _at(event: Event, pauses: PeriodicPauses | None) -> PeriodicPauses | None:
    """Where the steps of an event are longer, if that is known of this one."""
    return pauses if pauses is not None and pauses.period == event.period else None


def _claim(facts: StepFacts, event: Event, pauses: PeriodicPauses | None) -> str:
    """`every 50 steps the script evaluates for 450 ms (9.00 ms per step)`."""
    often = f"every {event.period} steps"
    if event.period is None:
        often = f"in {counted(event.occurrences, 'step')} of {facts.measured_steps}"
    what = f"the script {_DOES[event.kind]} for {in_ms(event.length_s)}" if event.kind in _DOES else ""
    if not what:
        what = _who(facts, pauses, event.length_s)
    return f"{often} {what} ({in_ms(event.cost_s)} per step)"


def _who(facts: StepFacts, pauses: PeriodicPauses | None, length_s: float) -> str:
    """Who pauses for how long, and where."""
    long = f"for {in_ms(length_s)}"
    where = "" if pauses is None or pauses.part is None else f" {_PARTS[pauses.part]}"
    if facts.ranks == 1:
        return f"the rank pauses {long}{where}"
    origins = () if pauses is None else pauses.origins
    if not origins or len(origins) == facts.ranks:
        return f"all ranks pause {long}{where}"
    if len(origins) == 1:
        return f"rank {origins[0]} pauses {long}{where}, and all others wait for it"
    return f"ranks {', '.join(map(str, origins))} pause {long}{where}, and all others wait for them"


def _origin(pauses: PeriodicPauses) -> tuple[Evidence, ...]:
    source = "host time of long steps"
    part = (
        () if pauses.part is None else (Evidence(name="part of the step", value=pauses.part, source=source),)
    )
    return (*(Evidence(name="rank", value=rank, source=source) for rank in pauses.origins), *part)


def _advice_for(facts: StepFacts, event: Event, pauses: PeriodicPauses | None) -> tuple[Advice, ...]:
    if event.kind in _ADVICE:
        return (Advice(label=_ADVICE[event.kind]),)
    return _advice(facts, event.period, pauses)


def _advice(facts: StepFacts, period: int | None, pauses: PeriodicPauses | None) -> tuple[Advice, ...]:
    if pauses is not None and pauses.part == "input":
        return (
            *advise(facts, "keep loader processes between epochs", "persistent_workers", True),
            Advice(label=f"find what the data does every {period} batches, such as opening a file"),
        )
    return (
        Advice(
            label=f"find what the code does every {period} steps: save checkpoints in a thread "
            "(torch.distributed.checkpoint.async_save), and log and validate less often"
        ),
    )
