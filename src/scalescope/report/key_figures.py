"""Key figures: the two or three numbers of an answer that a page shows in large type.

Each is a quantity that the verdict, a table or a finding has too, read from the same place.
"""

from collections.abc import Iterable

from scalescope.analysis.commands import batch_text
from scalescope.analysis.comparison.runs import RunComparison
from scalescope.analysis.configurations import Configuration
from scalescope.analysis.prediction.answer import PredictionAnswer
from scalescope.analysis.scaling.rows import ScalingRow
from scalescope.analysis.statistics import Estimate
from scalescope.analysis.trace.changes import JobChanges
from scalescope.analysis.trace.job import JobTrace
from scalescope.diagnose.finding import Diagnosis
from scalescope.report.analyzed_run import AnalyzedRun
from scalescope.report.numbers import counted, in_ms, percent, signed_percent, significant
from scalescope.report.scaling.sections import is_doubtful
from scalescope.report.section import KeyFigure, Tone
from scalescope.results.run_folder import TUNING, read_json

_TONES: dict[str, Tone] = {
    "excellent": "good",
    "good": "good",
    "fair": "fair",
    "poor": "poor",
    "negative scaling": "poor",
}
_TONES_OF_VERDICTS: dict[str, Tone] = {"faster": "good", "slower": "poor", "inconclusive": "uncertain"}
_LARGE_LOSS = 0.2  # of a step


def run_figures(analyzed: AnalyzedRun) -> tuple[KeyFigure, ...]:
    """What a run is about: the gain of `tune`, how it scales, or its fastest step."""
    if analyzed.run.record.verb == "tune":
        return _tuned(read_json(analyzed.run.path / TUNING))
    if analyzed.scales:
        return tuple(_scaled(analyzed.rows))
    full = [configuration for configuration in analyzed.measured if not configuration.trial.is_ablation]
    return tuple(_trained(max(full, key=lambda each: each.speed.value))) if full else ()


def _tuned(tuning: object) -> tuple[KeyFigure, ...]:
    """The recommended set against the current settings; nothing of a file that is not ours."""
    if not isinstance(tuning, dict) or tuning.get("recommended") is not True:
        return ()
    try:
        by_levers = {tuple(each["levers"]): each for each in tuning["combinations"]}
        winner, now = by_levers[tuple(tuning["winner"])], by_levers[()]
        gain = tuning["confirmed"] or winner
        low, high = gain["ci95_speedup"] or (None, None)
        speedup = Estimate(float(gain["speedup"]), low, high)
        label = f"the current speed{_interval(speedup)}"
        before, after = in_ms(float(now["step_time_s"])), in_ms(float(winner["step_time_s"]))
    except (KeyError, TypeError, ValueError):
        return ()
    return (
        KeyFigure(value=f"{speedup.value:.2f}×", label=label, tone="good"),
        KeyFigure(value=after, label=f"per step, {before} before"),
    )


def _scaled(rows: Iterable[ScalingRow]) -> Iterable[KeyFigure]:
    """The largest number of ranks, where it scales best."""
    scaled = [row for row in rows if not row.is_baseline]
    most = max(row.ranks for row in scaled)
    at_most = [row for row in scaled if row.ranks == most]
    best = max(at_most, key=lambda row: row.efficiency.value)
    at_batch = f" at {batch_text(best.trial)}" if len({row.batch for row in at_most}) > 1 else ""
    ideal = f"{best.ranks / best.baseline_ranks:g}×"
    yield KeyFigure(
        value=f"{best.speedup.value:.2f}×",
        label=f"speed of {counted(best.ranks, 'rank')}{at_batch}{_interval(best.speedup)}, ideal {ideal}",
        tone="uncertain" if is_doubtful(best) else _TONES.get(best.reading),
    )
    if not best.trial.oversubscribe:
        yield KeyFigure(value=percent(best.efficiency.value), label=f"efficiency: {best.reading}")
    yield _rate(best.configuration)


def _trained(fastest: Configuration) -> Iterable[KeyFigure]:
    step = fastest.step_time_s
    yield KeyFigure(value=in_ms(step.value), label=f"per step{_interval(step, 1e3)}")
    yield _rate(fastest)
    if fastest.mfu is not None:
        yield KeyFigure(value=percent(fastest.mfu), label="MFU, of the data sheet's peak")


def _rate(configuration: Configuration) -> KeyFigure:
    if not configuration.knows_samples:
        return KeyFigure(value=significant(configuration.speed.value), label="steps/s")
    return KeyFigure(value=f"{configuration.speed.value:,.0f}", label=f"{configuration.unit}/s")


def _interval(estimate: Estimate, scale: float = 1.0) -> str:
    """` [1.55, 1.66]` where there is one."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f" [{significant(estimate.low * scale)}, {significant(estimate.high * scale)}]"


def prediction_figures(answer: PredictionAnswer) -> tuple[KeyFigure, ...]:
    """The largest number of ranks that was asked for, and how many are worth it."""
    if answer.contradiction is not None or not answer.predictions:
        return ()
    last = answer.predictions[-1]
    share = last.efficiency
    efficiency = KeyFigure(
        value=percent(share.value),
        label=f"predicted efficiency on {counted(last.setup.world_size, 'rank')} "
        f"[{percent(share.low)}, {percent(share.high)}]",
    )
    worth = answer.most_worth
    most = "none" if worth is None else f"{worth:,}"
    return (
        efficiency,
        KeyFigure(
            value=most,
            label="of these numbers of ranks are worth it" if worth is None else "ranks are worth it",
            tone=None if worth else "poor",
        ),
    )


def trace_figures(job: JobTrace, diagnosis: Diagnosis) -> tuple[KeyFigure, ...]:
    """The step, how much of it is compute, and what costs most."""
    shown = [
        KeyFigure(value=in_ms(job.step_s), label="per step"),
        KeyFigure(value=percent(job.breakdown["compute_s"] / job.step_s), label="of it is compute"),
    ]
    if diagnosis.findings:
        first = diagnosis.findings[0]
        share = first.share or 0.0
        shown.append(
            KeyFigure(value=percent(share), label=first.rule, tone="poor" if share >= _LARGE_LOSS else "fair")
        )
    return tuple(shown)


def trace_change_figures(changes: JobChanges) -> tuple[KeyFigure, ...]:
    """The step, and how it changed."""
    before_s, after_s = changes.before.step_s, changes.after.step_s
    is_noise = abs(after_s - before_s) <= changes.noise_s
    return (
        KeyFigure(
            value=signed_percent(after_s / before_s - 1.0),
            label="normal variation of steps" if is_noise else "time per step",
            tone="uncertain" if is_noise else "poor" if after_s > before_s else "good",
        ),
        KeyFigure(value=in_ms(after_s), label=f"per step, {in_ms(before_s)} before"),
    )


def comparison_figures(comparison: RunComparison) -> tuple[KeyFigure, ...]:
    """The speed of the configuration that changed most for the worse, or else most."""
    same = comparison.same_work
    if not same:
        return ()
    most = min(comparison.regressions or same, key=lambda config: config.speedup.value)
    if not comparison.regressions:
        most = max(same, key=lambda config: abs(config.change))
    shown = [
        KeyFigure(
            value=signed_percent(most.change),
            label=f"speed: {most.verdict}{_interval(most.speedup)}",
            tone=_TONES_OF_VERDICTS.get(most.verdict),
        )
    ]
    if len(same) > 1:
        slower = len(comparison.regressions)
        shown.append(
            KeyFigure(
                value=f"{slower} of {len(same)}",
                label="configurations are slower",
                tone="poor" if slower else None,
            )
        )
    return tuple(shown)
