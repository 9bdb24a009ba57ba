"""Predictions in words and tables."""

from collections.abc import Callable, Iterable, Sequence

from scalescope.analysis.commands import batch_text
from scalescope.analysis.prediction.answer import Change, Contradiction, Predicted, PredictionAnswer
from scalescope.analysis.prediction.forecast import LEAST_MARGINAL, Prediction, Range, Worth
from scalescope.analysis.prediction.jobs import PROFILE, TIMES
from scalescope.report.commands import job_name
from scalescope.report.numbers import (
    MISSING,
    counted,
    data_size,
    in_ms,
    milliseconds,
    percent,
    signed_percent,
    significant,
)
from scalescope.report.section import Section, Table
from scalescope.report.varied import title_of

_EXTRAPOLATED = "*"
_STEP_INTERVAL = "step, 90 % interval"
_EFFICIENCY_INTERVAL = "efficiency, 90 %"
_EXPOSED = "exposed comm (ms)"
_EXPOSED_INTERVAL = "exposed, 90 %"
_ADDED = "added ranks"
_MEASURED = "measured (ms)"
_MEMORY = "memory per rank"
_LEAST_GAIN = 0.005  # less is not listed as a change that helps


def prediction_sections(answer: PredictionAnswer) -> tuple[Section, ...]:
    """The rows of one job, what is worth it, what they assume, and changes that would help; first of all
    whether the run contradicts them."""
    return (*_contradiction_section(answer), prediction_section(answer), *_changes_section(answer))


def prediction_verdict(answers: Sequence[PredictionAnswer]) -> Section:
    """Each job's answer in a sentence; of one job also the single change that is predicted to gain most."""
    if len(answers) == 1:
        return Section(lines=_verdict_lines(answers[0]))
    lines = tuple(f"{prediction_title(answer)}: {_verdict_lines(answer)[0]}" for answer in answers)
    return Section(lines=lines[:_MOST_JOBS], details=lines[_MOST_JOBS:])


def _verdict_lines(answer: PredictionAnswer) -> tuple[str, ...]:
    if answer.contradiction is not None:
        return (contradiction_line(answer.contradiction),)
    best = max(answer.changes, key=lambda change: change.gain, default=None)
    what_if = ""
    if best is not None and answer.changed_at is not None and best.gain >= _LEAST_GAIN:
        ranks = counted(answer.changed_at, "rank")
        what_if = f"Most promising single change: {best.name} ({signed_percent(best.gain)} on {ranks})."
    return tuple(filter(None, (worth_line(answer), what_if)))


def _contradiction_section(answer: PredictionAnswer) -> tuple[Section, ...]:
    found = answer.contradiction
    return () if found is None else (Section(lines=(contradiction_line(found),)),)


def contradiction_line(found: Contradiction) -> str:
    """`Measured 441 ms on 2 ranks, predicted 97 ms [86 to 111]: …`, with the likely reason."""
    ranks = counted(found.ranks, "rank")
    predicted = f"{in_ms(found.predicted_s.value)} [{_interval(found.predicted_s, milliseconds)}]"
    line = (
        f"Measured {in_ms(found.measured_s)} on {ranks}, predicted {predicted}: this run contradicts the "
        f"prediction. Nothing is predicted beyond {ranks}."
    )
    other_load = " Other processes used the machine meanwhile: measure again when it is idle."
    return line + (other_load if found.had_other_load else "")


def prediction_section(answer: PredictionAnswer) -> Section:
    """One line for every number of ranks."""
    cells = [_cells(answer, *pair) for pair in zip(answer.predictions, answer.worth, strict=True)]
    columns = tuple(name for name in cells[0] if any(row[name] != MISSING for row in cells))
    rate = f"{answer.unit}/s"
    expert = (_rate_interval(answer), _EXPOSED_INTERVAL)
    narrow = (
        _MEMORY,
        _ADDED,
        rate,
        _MEASURED,
        _EFFICIENCY_INTERVAL,
        _EXPOSED,
        "limit",
        _STEP_INTERVAL,
    )
    optional = (*expert, *narrow)
    return Section(
        title=f"predicted · {prediction_title(answer)}",
        table=Table(
            columns=columns,
            rows=tuple(tuple(row[name] for name in columns) for row in cells),
            left=frozenset(("limit",)),
            optional=tuple(name for name in optional if name in columns),
            expert=frozenset(expert),
        ),
        lines=(
            *(() if answer.contradiction else (worth_line(answer),)),
            *assumption_lines(answer.predictions),
            *calibration_lines(answer.predictions),
        ),
    )


_MOST_JOBS = 6  # in the table of larger sizes; the page has all


def larger_section(predicted: Predicted) -> tuple[Section, ...]:
    """Sizes beyond those that were measured, of all jobs in one table; or what is missing for them."""
    if predicted.missing is not None:
        return (Section(lines=(f"Larger sizes are not predicted: this run has no {_bare(predicted)}.",)),)
    shown = predicted.answers[:_MOST_JOBS]
    contradicted = tuple(section for answer in shown for section in _contradiction_section(answer))
    answers = [answer.beyond(answer.most_measured) for answer in shown if answer.contradiction is None]
    rate = f"{' or '.join(sorted({answer.unit for answer in answers}))}/s"
    rows = [_larger_cells(answer, row, rate) for answer in answers for row in answer.predictions]
    if not rows:
        return contradicted
    predictions = [row for answer in answers for row in answer.predictions]
    return (
        *contradicted,
        Section(
            title="Predicted larger sizes, with 90 % intervals",
            table=Table(
                columns=tuple(rows[0]),
                rows=tuple(tuple(row.values()) for row in rows),
                left=frozenset(("strategy", "limit")),
                optional=("strategy", _EXPOSED, rate),
            ),
            lines=assumption_lines(predictions),
            details=calibration_lines(predictions),
        ),
    )


def _bare(predicted: Predicted) -> str:
    """What is missing, without its article."""
    return {PROFILE: "profile of one rank", TIMES: "times of collectives"}[predicted.missing or ""]


def _larger_cells(answer: PredictionAnswer, prediction: Prediction, rate: str) -> dict[str, str]:
    mark = _EXTRAPOLATED if prediction.is_extrapolated else ""
    step_s = prediction.step_s
    return {
        "ranks": f"{prediction.setup.world_size:,}{mark}",
        "batch": f"{answer.inputs.job.trial.given_batch_size:,}",
        "strategy": prediction.setup.strategy,
        "step (ms)": f"{milliseconds(step_s.value)} [{_interval(step_s, milliseconds)}]",
        rate: significant(prediction.samples_per_s.value, 4),
        "efficiency": f"{percent(prediction.efficiency.value)} [{_percents(prediction.efficiency)}]",
        _EXPOSED: milliseconds(prediction.exposed_s.value),
        "limit": prediction.limit,
    }


def prediction_title(answer: PredictionAnswer) -> str:
    """What is predicted."""
    trial, setup = answer.inputs.job.trial, answer.predictions[-1].setup
    batch = batch_text(trial)
    if setup.strategy != "pipeline" and not answer.inputs.job.is_strong:
        samples = answer.predictions[-1].samples_per_step // setup.world_size // setup.accumulation_steps
        batch = f"batch {samples:,} per rank"
    words = [f"{job_name(trial)} on {trial.device}", title_of(setup.strategy), batch]
    words += [f"gradients in {setup.comm_hook}"] if setup.comm_hook != "none" else []
    words += [f"{setup.accumulation_steps} micro-batches per step"] if setup.accumulation_steps > 1 else []
    if setup.layout != answer.inputs.layout:
        words.append(f"{setup.layout.ranks_per_node} ranks per node")
    return " · ".join(words)


def worth_line(answer: PredictionAnswer) -> str:
    """How many ranks are worth it."""
    best, most = answer.most_worth, answer.predictions[-1].setup.world_size
    share = percent(LEAST_MARGINAL)
    if best is None:
        return (
            f"None of these numbers of ranks is worth it: added ranks deliver less than {share} of what they "
            "would alone."
        )
    if best == most:
        return (
            f"All {best:,} ranks are worth it: added ranks deliver at least {share} of what they would alone."
        )
    return (
        f"Worth it up to {counted(best, 'rank')}: beyond, added ranks deliver less than {share} of what they "
        "would alone."
    )


def assumption_lines(predictions: Iterable[Prediction]) -> tuple[str, ...]:
    """What extrapolated rows assume, each assumption once with all rows that make it."""
    sizes: dict[str, list[int]] = {}
    for prediction in predictions:
        for assumption in prediction.assumptions:
            sizes.setdefault(assumption, []).append(prediction.setup.world_size)
    together: dict[tuple[int, ...], list[str]] = {}
    for assumption, members in sizes.items():
        together.setdefault(tuple(members), []).append(assumption)
    return tuple(
        f"{_EXTRAPOLATED} extrapolated ({_sizes(members)}): {'; '.join(assumptions)}."
        for members, assumptions in together.items()
    )


def calibration_lines(predictions: Iterable[Prediction]) -> tuple[str, ...]:
    """Where the widths of the intervals come from."""
    sizes: dict[str, list[int]] = {}
    for prediction in predictions:
        sizes.setdefault(prediction.calibration, []).append(prediction.setup.world_size)
    if len(sizes) == 1:
        return tuple(f"Intervals (90 %) from {words}." for words in sizes)
    return tuple(f"Intervals (90 %) of {_sizes(members)} from {words}." for words, members in sizes.items())


def _sizes(members: Sequence[int]) -> str:
    if len(members) <= 4:
        return f"{', '.join(f'{size:,}' for size in members)} ranks"
    return f"{members[0]:,} to {members[-1]:,} ranks"


def _cells(answer: PredictionAnswer, prediction: Prediction, worth: Worth) -> dict[str, str]:
    ranks = prediction.setup.world_size
    measured_s = answer.measured_s.get(ranks)
    memory = prediction.memory_bytes
    cost = worth.cost_per_million
    return {
        "ranks": f"{ranks:,}{_EXTRAPOLATED if prediction.is_extrapolated else ''}",
        "step (ms)": milliseconds(prediction.step_s.value),
        _STEP_INTERVAL: _interval(prediction.step_s, milliseconds),
        _MEASURED: MISSING if measured_s is None else milliseconds(measured_s),
        f"{answer.unit}/s": significant(prediction.samples_per_s.value, 4),
        _rate_interval(answer): _interval(prediction.samples_per_s, significant),
        "efficiency": percent(prediction.efficiency.value),
        _EFFICIENCY_INTERVAL: _percents(prediction.efficiency),
        _EXPOSED: milliseconds(prediction.exposed_s.value),
        _EXPOSED_INTERVAL: _interval(prediction.exposed_s, milliseconds),
        _MEMORY: MISSING if memory is None else f"{data_size(memory.value)} ± {_half_percent(memory)}",
        "limit": prediction.limit,
        _ADDED: MISSING if answer.contradiction else percent(worth.marginal),
        f"cost per 1M {answer.unit}": MISSING if cost is None else significant(cost),
    }


def _rate_interval(answer: PredictionAnswer) -> str:
    return f"{answer.unit}/s, 90 %"


def _interval(values: Range, shown: Callable[[float], str]) -> str:
    return f"{shown(values.low)} to {shown(values.high)}"


def _percents(values: Range) -> str:
    return f"{100.0 * values.low:.0f} to {percent(values.high)}"


def _half_percent(values: Range) -> str:
    return percent((values.high - values.value) / values.value) if values.value else "0 %"


def _changes_section(answer: PredictionAnswer) -> tuple[Section, ...]:
    if answer.changed_at is None:
        return ()
    helping = [change for change in answer.changes if change.gain >= _LEAST_GAIN]
    others = [change for change in answer.changes if change.gain < _LEAST_GAIN]
    ranks = counted(answer.changed_at, "rank")
    if not helping:
        table = None
        lines: tuple[str, ...] = ("No single change is predicted to help.",)
    else:
        table = Table(
            columns=("change", "gain", "step (ms)", _EXPOSED, "flag"),
            rows=tuple(_change_cells(change) for change in helping),
            left=frozenset(("change", "flag")),
            optional=(_EXPOSED, "flag", "step (ms)"),
        )
        trains = any(change.changes_job for change in helping)
        lines = ("** trains with another batch: not a free speed-up.",) if trains else ()
    return (
        Section(
            title=f"What if, on {ranks}: single changes by predicted gain in {answer.unit} per second",
            table=table,
            lines=lines,
            details=tuple(
                f"Does not help: {change.name} ({signed_percent(change.gain)})." for change in others
            ),
        ),
    )


def _change_cells(change: Change) -> tuple[str, ...]:
    return (
        f"{change.name}{' **' if change.changes_job else ''}",
        signed_percent(change.gain),
        milliseconds(change.prediction.step_s.value),
        milliseconds(change.prediction.exposed_s.value),
        " ".join(change.flags) or MISSING,
    )
