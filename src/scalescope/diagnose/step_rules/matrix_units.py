"""Tensor cores idle: products on a GPU that do not use its units for shorter formats."""

from collections.abc import Sequence

from scalescope.diagnose.advice import advise
from scalescope.diagnose.finding import Abstention, Advice, Evidence, Finding
from scalescope.diagnose.step_facts import KERNEL_TERMS, StepFacts
from scalescope.quantities import in_ms, milliseconds

RULE = "matrix units are idle"
_MOSTLY = 0.5  # of the products' time: less may be kernels that their names do not tell apart


def rule(facts: StepFacts) -> Finding | Abstention | None:
    if not facts.trial.on_gpu:
        return None
    if facts.trial.is_command:
        return _of_command(facts)
    if facts.trial.precision != "fp32":
        return _despite_precision(facts)
    formats = facts.short_formats
    if formats is None:
        return Abstention(rule=RULE, missing="which number formats the GPU has matrix units for")
    if not formats:
        return None
    slow_s = _slow_s(facts)
    return _by_settings(facts, formats) if slow_s is None else _by_recording(facts, formats, slow_s)


def _of_command(facts: StepFacts) -> Finding | None:
    """The format that a script computes in shows in recorded kernels alone."""
    slow_s, formats = _slow_s(facts), facts.short_formats
    if slow_s is None or not formats or slow_s < _MOSTLY * _products_s(facts):
        return None
    return _by_recording(facts, formats, slow_s)


def _products_s(facts: StepFacts) -> float:
    return (facts.recording.matrix_product_s if facts.recording is not None else None) or 0.0


def _slow_s(facts: StepFacts) -> float | None:
    """Products outside matrix units; None where no recording tells."""
    recording = facts.recording
    if recording is None or recording.matrix_product_s is None or recording.matrix_unit_s is None:
        return None
    return max(0.0, recording.matrix_product_s - recording.matrix_unit_s)


def _speed_of(facts: StepFacts, formats: Sequence[str]) -> tuple[str, float] | None:
    """The first of the formats whose bare product is faster than in fp32, and how many times; the last of
    them where none is. None where their speed is unknown."""
    rates = (facts.recording.product_flops_per_s if facts.recording is not None else None) or {}
    times = [(name, rates[name] / rates["fp32"]) for name in formats if name in rates and rates.get("fp32")]
    return next((pair for pair in times if pair[1] > 1.0), times[-1] if times else None)


def _by_settings(facts: StepFacts, formats: Sequence[str]) -> Finding:
    *others, last = formats
    names = f"{', '.join(others)} and {last} do" if others else f"{last} does"
    exchange = "" if facts.ranks == 1 else " This speeds up compute, but not the exchange of gradients."
    return facts.finding(
        RULE,
        f"fp32 products do not use the GPU's matrix units; {names}.{exchange}",
        0.0,
        evidence=(Evidence(name="precision", value="fp32", source="settings"),),
        advice=_formats(facts, formats),
    )


def _by_recording(facts: StepFacts, formats: Sequence[str], slow_s: float) -> Finding | None:
    speed = _speed_of(facts, formats)
    if speed is None:
        return _by_settings(facts, formats) if facts.is_worth(slow_s) else None
    name, times = speed
    cost_s = facts.of_kernels(slow_s * (1.0 - 1.0 / times))
    if not facts.is_worth(cost_s):
        return None
    return facts.finding(
        RULE,
        f"Matrix products and convolutions take {in_ms(slow_s)} per step in fp32 without the GPU's "
        f"matrix units. A bare product in {name} is {times:.1f} times as fast, which would save about "
        f"{in_ms(cost_s)}.",
        cost_s,
        estimated=True,
        terms=KERNEL_TERMS,
        evidence=_evidence(facts, slow_s, times),
        advice=_formats(facts, formats),
    )


def _despite_precision(facts: StepFacts) -> Finding | None:
    """A short format was asked for, but most products do not use it."""
    recording, slow_s, precision = facts.recording, _slow_s(facts), facts.trial.precision
    if recording is None or slow_s is None or slow_s < _MOSTLY * (recording.matrix_product_s or 0.0):
        return None
    speed = _speed_of(facts, (precision,))
    cost_s = 0.0 if speed is None else facts.of_kernels(slow_s * (1.0 - 1.0 / speed[1]))
    if speed is None or not facts.is_worth(cost_s):
        return None
    total_s = recording.matrix_product_s or 0.0
    return facts.finding(
        RULE,
        f"The precision is {precision}, but {milliseconds(slow_s)} of {in_ms(total_s)} of products per "
        f"step do not use matrix units, which would save about {in_ms(cost_s)}.",
        cost_s,
        estimated=True,
        terms=KERNEL_TERMS,
        evidence=_evidence(facts, slow_s, speed[1]),
        advice=(
            Advice(
                label="look for layers outside autocast (autocast(enabled=False), .float()) and for sizes "
                "that are not multiples of 8"
            ),
        ),
    )


def _evidence(facts: StepFacts, slow_s: float, times: float) -> tuple[Evidence, ...]:
    return (
        Evidence(name="precision", value=facts.trial.precision, source="settings"),
        Evidence(name="products without matrix units", value=slow_s, unit="s", source="recorded steps"),
        Evidence(name="speed of a bare product against fp32", value=times, source="measured in this run"),
    )


def _formats(facts: StepFacts, formats: Sequence[str]) -> tuple[Advice, ...]:
    """To try each of the formats; a script may not scale its loss, as fp16 requires."""
    names = [name for name in formats if name != "fp16" or not facts.trial.is_command]
    return tuple(
        advice for name in names for advice in advise(facts, f"compute in {name}", "precision", name)
    )
