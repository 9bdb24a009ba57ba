"""Two runs compared: the sentence, the table, what differs, and the same as plain data."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalescope.analysis.comparison.environments import Difference
from scalescope.analysis.comparison.runs import CollectivePair, ComparedConfig, RunComparison, Unmatched
from scalescope.analysis.run_spread import RunSpread
from scalescope.analysis.statistics import Estimate
from scalescope.analysis.verdicts import NO_SPREAD
from scalescope.experiment.trial import Trial
from scalescope.report.comparison.undecided import is_hidden_by_spread, spread_line, undecided
from scalescope.report.comparison.variants import merged_name, unit_of, variant_lines, work_text
from scalescope.report.machine import threads_text
from scalescope.report.numbers import (
    counted,
    data_size,
    detectable,
    detection_limit,
    gigabytes_per_s,
    in_s,
    is_useful,
    short_percent,
    shortened,
    signed_percent,
    significant,
)
from scalescope.report.section import Figure, Panel, Section, Series, Table
from scalescope.report.varied import shown_value, varied_settings

SCHEMA_VERSION = "1.0"
_MACHINE_CHANGED = 0.02
_WINDOW_DIFFERS = 1.5  # times as long
_SHOWN_ALONE = 5  # of each side; -v and the JSON have all
_DETECTABLE = "detectable change"
_PER_RANK = "per rank"
_IN_THE_LABEL = ("strategy", "benchmark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A comparison with the names of its runs and what differs around them."""

    base: str
    new: str
    comparison: RunComparison
    differences: tuple[Difference, ...]
    notes: tuple[str, ...] = ()
    paths: tuple[Path, Path] | None = None  # of two stored runs
    can_interleave: bool = False  # the two sides can both be measured again, in turns
    interleaved: bool = False  # they were


def comparison_sections(compared: Compared) -> tuple[Section, ...]:
    """The sentence first, then the table, then what differs."""
    comparison = compared.comparison
    said = (*variant_lines(comparison), *filter(None, (verdict(comparison),)))
    first = Section(lines=(*said, *compared.notes, *_doubts(compared)))
    tables = [_table(compared)] if comparison.judged else []
    rest = (*_failures(comparison), *_collectives(comparison))
    differing = () if compared.interleaved else _differing(compared)
    return (first, *tables, *what_decides(compared), *rest, *differing)


def comparison_figure(compared: Compared) -> Figure | None:
    """The speed of each configuration after ÷ before, with its interval; None without a judged one."""
    judged = compared.comparison.judged
    if not judged:
        return None
    name = names_of([config.trial for config in judged])
    names = tuple(merged_name(name(config.before.trial), name(config.trial)) for config in judged)
    words = [f"{config.verdict} (regression)" if config.regressed else config.verdict for config in judged]
    groups = {word: [row for row, other in enumerate(words) if other == word] for word in words}
    series = tuple(_forest(word, rows, judged) for word, rows in groups.items())
    panel = Panel(
        kind="forest",
        x_label=f"speed of {compared.new} ÷ {compared.base}",
        y_label="",
        series=series,
        names=names,
    )
    return Figure(
        name="comparison",
        title="Speed after ÷ before, with 95 % intervals; right of 1 is faster",
        alt=f"Points with intervals for {'; '.join(names)}.",
        panels=(panel,),
    )


def _forest(word: str, rows: Sequence[int], judged: Sequence[ComparedConfig]) -> Series:
    speedups = [judged[row].speedup for row in rows]
    return Series(
        label=word,
        x=tuple(speedup.value for speedup in speedups),
        y=tuple(map(float, rows)),
        low=tuple(speedup.low for speedup in speedups),
        high=tuple(speedup.high for speedup in speedups),
    )


def verdict(comparison: RunComparison) -> str:
    """What became slower at the same work; otherwise that nothing did, and what is inconclusive."""
    total, least = len(comparison.same_work), short_percent(comparison.threshold)
    failed = len(comparison.failed)
    broken = f" {counted(failed, 'configuration')} failed that worked before." if failed else ""
    if not total and comparison.other_work:
        return broken.strip()
    if not total:
        return (
            broken.strip()
            or "Collectives are shown without a verdict; no training was measured in both runs."
        )
    faster = _faster(comparison)
    if comparison.regressions:
        slow = len(comparison.regressions)
        most = short_percent(-min(regression.change for regression in comparison.regressions))
        are = "is" if slow == 1 else "are"
        text = (
            f"{slow} of {counted(total, 'configuration')} {are} slower by more than {least}, by up to {most}"
        )
        return f"{text}{_unsure(comparison)}.{faster}{broken}"
    if len(comparison.with_verdict("inconclusive")) == total:
        return f"No configuration can be compared to within {least}{_unsure(comparison)}.{broken}"
    return f"No configuration is slower by more than {least}{_unsure(comparison)}.{faster}{broken}"


def _unsure(comparison: RunComparison) -> str:
    """What the sentence does not cover."""
    total = len(comparison.same_work)
    inconclusive = comparison.with_verdict("inconclusive")
    few = sum(config.too_few for config in inconclusive)
    hidden = sum(is_hidden_by_spread(config) for config in inconclusive)
    reasons = (
        (len(inconclusive) - few - hidden, "too noisy"),
        (hidden, "run-to-run variation is too large"),
        (few, "fewer than two launches per run"),
    )
    return "".join(
        f"; {count} of {total} {'is' if count == 1 else 'are'} inconclusive ({reason})"
        for count, reason in reasons
        if count
    )


def _faster(comparison: RunComparison) -> str:
    configs = comparison.with_verdict("faster")
    if not configs:
        return ""
    most = short_percent(max(config.change for config in configs))
    are = "is" if len(configs) == 1 else "are"
    return f" {len(configs)} of {len(comparison.same_work)} {are} faster, by up to {most}."


def what_decides(compared: Compared) -> tuple[Section, ...]:
    """What would decide what is inconclusive."""
    configs = compared.comparison.with_verdict("inconclusive")
    return undecided(configs, compared.paths, can_interleave=compared.can_interleave) if configs else ()


def _doubts(compared: Compared) -> tuple[str, ...]:
    """What besides the code may make a difference; nothing does between launches made in turns."""
    if compared.interleaved:
        return ()
    return (*_windows_differ(compared.comparison), *_machine_changed(compared.comparison))


def _windows_differ(comparison: RunComparison) -> tuple[str, ...]:
    """How long launches measured, where that is not the same in both runs."""
    differing = [pair for judged in comparison.judged if _is_longer(*(pair := judged.windows_s))]
    if not differing:
        return ()
    before, after = (statistics.median(side) for side in zip(*differing, strict=True))
    return (
        f"Launches measured for {in_s(before)} before and {in_s(after)} after "
        f"({len(differing)} of {counted(len(comparison.judged), 'configuration')}).",
    )


def _is_longer(before_s: float, after_s: float) -> bool:
    return max(before_s, after_s) > _WINDOW_DIFFERS * min(before_s, after_s)


def _machine_changed(comparison: RunComparison) -> tuple[str, ...]:
    """Whether the machine itself ran at another speed: then it may not be the code."""
    changes = [config.machine_change for config in comparison.judged if config.machine_change is not None]
    if not changes or abs(change := statistics.median(changes)) <= _MACHINE_CHANGED:
        return ()
    direction = "faster" if change > 0 else "slower"
    return (
        f"A plain matrix multiplication ran {short_percent(abs(change))} {direction} in the new run: the "
        "machine itself changed speed, which may explain differences.",
    )


def _table(compared: Compared) -> Section:
    judged = compared.comparison.judged
    name = names_of([config.trial for config in judged])
    rows = tuple(
        _row(merged_name(name(config.before.trial), name(config.trial)), config) for config in judged
    )
    units = " or ".join(sorted({unit_of(config) for config in judged}))
    sides = [side for config in judged for side in (config.before, config.after)]
    threads = "".join(f" · {text}" for text in (threads_text(sides),) if text)
    has_other_ranks = any(config.work == "other ranks" for config in judged)
    columns = tuple(column for column in rows[0] if column != _PER_RANK or has_other_ranks)
    return Section(
        title=f"{units}/s before ({compared.base}) and after ({compared.new}), 95 % intervals in "
        f"brackets{threads}",
        table=Table(
            columns=columns,
            rows=tuple(tuple(row[name] for name in columns) for row in rows),
            left=frozenset(("configuration", "verdict")),
            optional=(_DETECTABLE, "launches"),
            expert=frozenset((_DETECTABLE,)),
        ),
        lines=spread_line(compared.comparison.spread),
        details=detection_limit(config.smallest_detectable for config in judged),
    )


def _row(name: str, judged: ComparedConfig) -> dict[str, str]:
    launches, rates = judged.launches, judged.rates
    verdict = f"{judged.verdict} (regression)" if judged.regressed else judged.verdict
    return {
        "configuration": name,
        "before": significant(rates[0], 4),
        "after": significant(rates[1], 4),
        "change": signed(judged.speedup),
        _PER_RANK: signed_percent(judged.per_rank - 1.0),
        "verdict": verdict if judged.work == "same" else work_text(judged),
        "launches": f"{launches[0]} + {launches[1]}",
        _DETECTABLE: detectable(judged.smallest_detectable),
    }


def names_of(trials: Sequence[Trial]) -> Callable[[Trial], str]:
    """A function that names each of the trials, with the settings in which they differ."""
    varied = [name for name in varied_settings(trials) if name not in _IN_THE_LABEL]

    def name(trial: Trial) -> str:
        others = [
            f"{setting} {shown_value(trial, setting)}" for setting in varied if setting in trial.settings
        ]
        return ", ".join((trial.label, *others))

    return name


def signed(ratio: Estimate) -> str:
    """`-8.1 % [-9.0, -7.2]` of a ratio."""
    value = signed_percent(ratio.value - 1.0)
    if ratio.low is None or ratio.high is None:
        return value
    if not is_useful(ratio):
        return f"{value} [wide]"
    return f"{value} [{(ratio.low - 1.0) * 100:+.1f}, {(ratio.high - 1.0) * 100:+.1f}]"


def _failures(comparison: RunComparison) -> tuple[Section, ...]:
    lines = tuple(f"{failure.trial.label}: {failure.reason}" for failure in comparison.failed)
    return (Section(title="Worked before, failed now", lines=lines),) if lines else ()


def _collectives(comparison: RunComparison) -> tuple[Section, ...]:
    """One line each next to training; a full table without training."""
    pairs = comparison.collectives
    if not pairs:
        return ()
    if not comparison.judged:
        return (_collective_table(pairs),)
    groups: dict[str, list[CollectivePair]] = {}
    for pair in pairs:
        row = pair.after
        name = f"{row.collective} over {counted(row.ranks, 'rank')}{row.where}"
        groups.setdefault(name, []).append(pair)
    lines = []
    for name, members in groups.items():
        changes = sorted(pair.change for pair in members)
        spread = f"{changes[0] * 100:+.0f} to {changes[-1] * 100:+.0f} %"
        middle = signed_percent(statistics.median(changes), 0)
        lines.append(f"{name}: bus bandwidth {middle} ({spread} over {counted(len(changes), 'size')})")
    return (Section(title="Collectives (no verdict)", lines=tuple(lines)),)


def _collective_table(pairs: Sequence[CollectivePair]) -> Section:
    rows = tuple(_collective_cells(pair) for pair in pairs)
    columns = ("collective", "type", "ranks", "size", "before GB/s", "after GB/s", "change")
    return Section(
        title="Bus bandwidth, mean over iterations (no verdict)",
        table=Table(columns=columns, rows=rows, left=frozenset(("collective", "type"))),
    )


def _collective_cells(pair: CollectivePair) -> tuple[str, ...]:
    row = pair.after
    where = "in place" if row.in_place else "out of place"
    return (
        f"{row.collective}, {where}{row.where}",
        row.dtype,
        f"{row.ranks}",
        data_size(row.size_bytes),
        gigabytes_per_s(pair.before.busbw_bytes_per_s),
        gigabytes_per_s(pair.after.busbw_bytes_per_s),
        signed_percent(pair.change),
    )


def _differing(compared: Compared) -> tuple[Section, ...]:
    """What differs around the two runs, and configurations that only one of them has."""
    comparison = compared.comparison
    lines = [
        f"{difference.kind} {difference.name}: {difference.before} → {difference.after}"
        for difference in compared.differences
    ]
    sides = (("before", comparison.only_before), ("after", comparison.only_after))
    details = []
    for side, alone in sides:
        unmatched = [f"only {side}: {_alone(config)}" for config in alone]
        lines += unmatched[:_SHOWN_ALONE]
        details += unmatched[_SHOWN_ALONE:]
        if len(unmatched) > _SHOWN_ALONE:
            lines.append(f"only {side}: {len(unmatched) - _SHOWN_ALONE} more; -v shows them")
    if not lines:
        lines = ["No recorded difference in machine, versions, environment variables or code."]
    return (Section(title="What differs", lines=tuple(lines), details=tuple(details)),)


def _alone(alone: Unmatched) -> str:
    return f"{alone.trial.label}{nearest_words(alone)}"


def nearest_words(alone: Unmatched) -> str:
    """How the nearest configuration of the other run differs, in brackets."""
    if not alone.nearest:
        return ""
    words = [f"{name} {here} instead of {there}" for name, here, there in alone.nearest]
    return f" ({shortened('; '.join(words), 100)})"


def comparison_json(compared: Compared) -> dict[str, Any]:
    """The same as plain data."""
    comparison = compared.comparison
    return {
        "schema_version": SCHEMA_VERSION,
        "base": compared.base,
        "new": compared.new,
        "threshold": comparison.threshold,
        "verdict": " ".join((*variant_lines(comparison), verdict(comparison))).strip(),
        "gate_missed": comparison.gate_missed,
        "run_spread": _spread_json(comparison.spread),
        "trials": [_trial_json(config) for config in comparison.judged],
        "failed": [
            {"trial_id": failure.trial.trial_id, "reason": failure.reason} for failure in comparison.failed
        ],
        "collectives": [_collective_json(collective) for collective in comparison.collectives],
        "only_base": [_alone_json(config) for config in comparison.only_before],
        "only_new": [_alone_json(config) for config in comparison.only_after],
        "differences": differences_json(compared.differences),
        "notes": [*compared.notes, *_doubts(compared)],
    }


def differences_json(differences: Sequence[Difference]) -> list[dict[str, str]]:
    return [
        {"kind": difference.kind, "name": difference.name, "base": difference.before, "new": difference.after}
        for difference in differences
    ]


def _trial_json(judged: ComparedConfig) -> dict[str, Any]:
    speedup = judged.speedup
    return {
        "trial_id": judged.trial.trial_id,
        "configuration": judged.trial.label,
        "base_samples_per_s": _value(judged.before.samples_per_s),
        "new_samples_per_s": _value(judged.after.samples_per_s),
        "change": judged.change,
        "ci95_change": [speedup.low - 1.0, speedup.high - 1.0]
        if speedup.low is not None and speedup.high is not None
        else None,
        "p_value": judged.p_value,
        "smallest_effect_seen": judged.smallest_detectable,
        "verdict": judged.verdict,
        "work": judged.work,
        "differs": [{"setting": name, "base": old, "new": new} for name, old, new in judged.differs],
        "would_decide": None if judged.remedy is None else dataclasses.asdict(judged.remedy),
        "regression": judged.regressed,
        "base_launches": judged.launches[0],
        "new_launches": judged.launches[1],
        "settings": dict(judged.trial.settings),
    }


def _value(rate: Estimate | None) -> float | None:
    return None if rate is None else rate.value


def _spread_json(spread: RunSpread) -> dict[str, Any] | None:
    """The run-to-run variation, and from how many runs it is known; None inside one run."""
    return None if spread == NO_SPREAD else {"deviation": spread.deviation, "runs": spread.runs}


def _alone_json(alone: Unmatched) -> dict[str, Any]:
    nearest = [{"setting": name, "here": here, "there": there} for name, here, there in alone.nearest]
    return {
        "trial_id": alone.trial.trial_id,
        "configuration": alone.trial.label,
        "nearest_differs_by": nearest,
    }


def _collective_json(pair: CollectivePair) -> dict[str, Any]:
    row = pair.after
    return {
        "collective": row.collective,
        "dtype": row.dtype,
        "ranks": row.ranks,
        "in_place": row.in_place,
        "size_bytes": row.size_bytes,
        "base_busbw_bytes_per_s": pair.before.busbw_bytes_per_s,
        "new_busbw_bytes_per_s": pair.after.busbw_bytes_per_s,
        "change": pair.change,
    }
